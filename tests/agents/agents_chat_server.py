"""A real HTTP server for the tests of model clients: it answers each request with the next line of a script."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class ChatServer:
    port: int = 0
    script: list[Reply] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


def send(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    if "Content_Length" not in headers:
        handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def reply(document: Any, status: int = 200, **headers: str) -> Reply:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return lambda handler: send(handler, status, body, **headers)


def chat(text: str, **message: Any) -> dict[str, Any]:
    """A whole answer as OpenAI's API gives it."""
    return {
        "id": "c1",
        "object": "chat.completion",
        "model": "served-model",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text, **message}}
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }


def event(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps({"model": "served-model", "choices": choices, **more}, ensure_ascii=False).encode()


def stream(*lines: bytes, end: bytes = b"data: [DONE]\n\n", joint: bytes = b"\n\n", size: int = 0) -> Reply:
    """A stream of events, cut into chunks of `size` bytes (0: as they are)."""
    body = b"".join(line + joint for line in lines) + end

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        for start in range(0, len(body), size or max(1, len(body))):
            handler.wfile.write(body[start : start + (size or len(body))])
            handler.wfile.flush()

    return answer


@contextmanager
def chat_server(*script: Reply) -> Iterator[ChatServer]:
    state = ChatServer(script=list(script))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            state.requests.append({"path": self.path, **json.loads(self.rfile.read(length))})
            state.headers.append(dict(self.headers))
            answer = state.script.pop(0) if len(state.script) > 1 else state.script[0]
            with suppress(OSError):  # the client has gone, as some tests want it to
                answer(self)
            self.close_connection = True

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        state.release.set()
        server.shutdown()
        thread.join()
        server.server_close()
