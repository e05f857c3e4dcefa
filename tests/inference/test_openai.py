"""The OpenAI-compatible client against a real HTTP server: answers, streams, tool calls, refusals, breakdowns."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from contextlib import suppress
from email.utils import formatdate
from typing import Any

import pytest
from agents_chat_server import chat, chat_server, event, reply, send, stream
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_forge.agents import TokenUsage, Toolbox, tool
from agent_forge.errors import ModelError, UsageError
from agent_forge.inference import Completion, ModelClient, OpenAICompatible, ToolCall, use_recorder
from agent_forge.inference.openai_compatible import key_for, retry_after
from agent_forge.inference.wire import Assembly, BrokenStream, events
from agent_forge.traces import Recorder, Span, Store

HELLO = [{"role": "user", "content": "hello"}]


class Naps:
    """Stands for the clock at the edge of the process: keeps the pauses that were asked for, takes none."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


def client(url: str, **options: Any) -> OpenAICompatible:
    return OpenAICompatible(url, "m", **{"sleep": Naps(), "timeout_s": 20, **options})


def ask(model: OpenAICompatible, **options: Any) -> Completion:
    async def main() -> Completion:
        try:
            return await model.complete(HELLO, **options)
        finally:
            await model.aclose()

    return asyncio.run(main())


def read(model: OpenAICompatible, **options: Any) -> tuple[list[str], Completion]:
    async def main() -> tuple[list[str], Completion]:
        try:
            answer = model.stream(HELLO, **options)
            return [piece async for piece in answer], answer.completion
        finally:
            await model.aclose()

    return asyncio.run(main())


def all_spans(store: Store) -> list[Span]:
    return [span for trace in {row.trace_id for row in store.search().items} for span in store.trace(trace)]


@tool
def weather(city: str) -> str:
    """The weather."""
    return city


def test_an_answer() -> None:
    with chat_server(reply(chat("hi"))) as server:
        model = client(server.url + "/", extra={"top_k": 3})
        assert isinstance(model, ModelClient)
        got = ask(model, temperature=0.5, max_tokens=9, stop="x", seed=4, tools=Toolbox([weather]))
        assert got == Completion("hi", "served-model", "stop", (), TokenUsage(7, 3))
        assert server.requests == [
            {
                "path": "/v1/chat/completions",
                "model": "m",
                "messages": HELLO,
                "tools": [weather.spec],
                "temperature": 0.5,
                "max_tokens": 9,
                "stop": ["x"],
                "seed": 4,
                "top_k": 3,
            }
        ]
        assert repr(model) == f"OpenAICompatible('{server.url}', 'm')"


def test_what_was_not_given_is_not_sent() -> None:
    with chat_server(reply(chat("hi"))) as server:
        ask(client(server.url))
        assert set(server.requests[0]) == {"path", "model", "messages"}


def test_tool_calls() -> None:
    calls = [
        {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
        {"id": "b", "type": "function", "function": {"name": "now", "arguments": ""}},
        {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}},
    ]
    with chat_server(reply(chat(None, tool_calls=calls))) as server:  # type: ignore[arg-type]
        got = ask(client(server.url))
    assert got.text == ""
    assert got.tool_calls == (
        ToolCall("a", "weather", {"city": "Oslo"}),
        ToolCall("b", "now", {}),
        ToolCall("", "weather", {"city": "Rome"}),
    )


def test_text_in_parts_and_missing_usage() -> None:
    document = chat("")
    document["choices"][0]["message"]["content"] = [
        {"type": "text", "text": "a"},
        {"type": "image", "x": 1},
        {"type": "text", "text": "b"},
    ]
    document["usage"] = {"prompt_tokens": 5, "completion_tokens": None}
    del document["model"]
    with chat_server(reply(document)) as server:
        got = ask(client(server.url))
    assert (got.text, got.model, got.usage) == ("ab", "m", TokenUsage(5, None))
    del document["usage"]
    with chat_server(reply(document)) as server:
        assert ask(client(server.url)).usage == TokenUsage(None, None)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>proxy page</html>", "the answer is not JSON: '<html>proxy page"),
        (b"", "the answer is not JSON"),
        (b"[]", "not a chat completion"),
        (b'{"choices": []}', "not a chat completion"),
        (b'{"choices": [{"text": "old"}]}', "not a chat completion"),
        (b'{"choices": [{"message": {"content": "", "tool_calls": [{"id": "a"}]}}]}', "not a chat completion"),
        (
            json.dumps(chat("", tool_calls=[{"function": {"name": "f", "arguments": "{broken"}}])).encode(),
            "arguments of the call of 'f' are not JSON: {broken",
        ),
        (
            json.dumps(chat("", tool_calls=[{"function": {"name": "f", "arguments": "[1]"}}])).encode(),
            "are not an object",
        ),
    ],
)
def test_answers_that_are_none(body: bytes, words: str) -> None:
    with chat_server(reply(body)) as server, pytest.raises(ModelError) as caught:
        ask(client(server.url))
    assert words in str(caught.value)
    assert server.url in str(caught.value)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 529, 408])
def test_what_may_pass_is_tried_again(status: int) -> None:
    with chat_server(reply({"error": {"message": "busy"}}, status), reply(b"", status), reply(chat("ok"))) as server:
        model = client(server.url, backoff_s=1.0)
        assert ask(model).text == "ok"
        assert len(server.requests) == 3
        first, second = model._sleep.taken  # type: ignore[attr-defined]
        assert 0.5 <= first <= 1.0 <= second <= 2.0


def test_retry_after_is_honoured() -> None:
    date = formatdate(time.time() + 30, usegmt=True)
    with chat_server(reply({}, 429, Retry_After="7"), reply({}, 503, Retry_After=date), reply(chat("ok"))) as server:
        model = client(server.url)
        assert ask(model).text == "ok"
        first, second = model._sleep.taken  # type: ignore[attr-defined]
        assert first == 7.0
        assert 5 < second <= 30


def test_a_server_that_asks_for_too_long_is_not_waited_for() -> None:
    with chat_server(reply({"error": {"message": "quota"}}, 429, Retry_After="3600")) as server:
        model = client(server.url)
        with pytest.raises(ModelError, match=r"status 429: quota. The server demands a wait of 3600 s"):
            ask(model)
        assert model._sleep.taken == []  # type: ignore[attr-defined]


def test_it_gives_up_with_the_servers_words() -> None:
    with chat_server(reply({"error": {"message": "out of memory"}}, 500)) as server:
        with pytest.raises(ModelError, match="status 500: out of memory"):
            ask(client(server.url, retries=2))
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (400, b'{"error": {"message": "context too long"}}', "status 400: context too long"),
        (404, b'{"detail": "no such model"}', "status 404: no such model"),
        (422, b'{"message": "bad"}', "status 422: bad"),
        (400, b'{"error": "plain"}', "status 400: plain"),
        (400, b"[1]", r"status 400: \[1\]"),
        (400, b"", "status 400: Bad Request"),
        (401, b"{}", "AGENT_FORGE_API_KEY"),
    ],
)
def test_refusals_are_final(status: int, body: bytes, words: str) -> None:
    with chat_server(reply(body, status)) as server:
        with pytest.raises(ModelError, match=words):
            ask(client(server.url))
        assert len(server.requests) == 1


def test_a_dead_port_is_tried_again_and_then_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = client(f"http://127.0.0.1:{port}/v1", retries=2)
    with pytest.raises(ModelError, match="the model cannot be reached"):
        ask(model)
    assert len(model._sleep.taken) == 2  # type: ignore[attr-defined]


def test_a_connection_that_is_dropped_is_tried_again() -> None:
    def drop(handler: Any) -> None:
        handler.connection.shutdown(socket.SHUT_RDWR)

    with chat_server(drop, reply(chat("ok"))) as server:
        assert ask(client(server.url)).text == "ok"


def test_a_slow_server_ends_in_time() -> None:
    with chat_server(lambda handler: server.release.wait(20)) as server:  # type: ignore[arg-type,return-value]
        start = time.monotonic()
        with pytest.raises(ModelError, match=r"no answer within 0.2 s"):
            ask(client(server.url, timeout_s=0.2))
        assert time.monotonic() - start < 15

    def half(handler: Any) -> None:
        send(handler, 200, b"{", Content_Length="100")
        server.release.wait(20)

    with chat_server(half) as server, pytest.raises(ModelError, match=r"no answer within 0.2 s"):
        ask(client(server.url, timeout_s=0.2))
    with chat_server(lambda handler: send(handler, 200, b"{", Content_Length="100")) as server:
        with pytest.raises(ModelError, match="the answer broke off"):
            ask(client(server.url))


def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    key = "sk-very-secret-canary"
    monkeypatch.setenv("AGENT_FORGE_API_KEY", key)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other-canary")
    refusal = reply({"error": {"message": f"Incorrect API key provided: {key}"}}, 401)
    with chat_server(reply(chat("ok")), refusal) as server:
        model = client(server.url)
        store = Store.open(":memory:")
        recorder = Recorder(store)
        with use_recorder(recorder):
            ask(model)
            with pytest.raises(ModelError) as caught:
                ask(model)
        recorder.flush()
        assert server.headers[0]["authorization"] == f"Bearer {key}"
        spans = [repr(span) for span in all_spans(store)]
        assert len(spans) == 2
        for text in (repr(model), str(caught.value), repr(caught.value), caplog.text, *spans):
            assert "canary" not in text
        assert "***" in str(caught.value)
        recorder.close()


def test_whose_key_goes_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_FORGE_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    monkeypatch.setenv("MY_KEY", "mine")
    assert OpenAICompatible("https://api.openai.com/v1", "m")._key() == "sk-openai"
    for url in ("http://localhost/v1", "https://evil.test/api.openai.com/v1", "https://api.openai.com.evil.test/v1"):
        assert OpenAICompatible(url, "m")._key() is None
    assert OpenAICompatible("http://h/v1", "m", api_key_env="MY_KEY")._key() == "mine"


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://[::"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises((UsageError, ModelError)):
        ask(OpenAICompatible(url, "m", retries=0))


def test_messages_must_be_a_list() -> None:
    with pytest.raises(ModelError, match="messages is a string"):
        asyncio.run(client("http://h/v1").complete("hello"))  # type: ignore[arg-type]


WORDS = ["Hel", "lo ", "wörld\u2028next", "\n\n", "end"]


@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize("joint", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_a_stream(size: int, joint: bytes) -> None:
    lines = [
        b": a comment",
        event({"role": "assistant", "content": ""}),
        *(event({"content": word}) for word in WORDS),
        event({}, "stop"),
        event(usage={"prompt_tokens": 11, "completion_tokens": 5}),
    ]
    with chat_server(stream(*lines, size=size, joint=joint)) as server:
        pieces, whole = read(client(server.url))
    assert pieces == WORDS
    assert whole == Completion("".join(WORDS), "served-model", "stop", (), TokenUsage(11, 5))
    assert server.requests[0]["stream"] is True
    assert server.requests[0]["stream_options"] == {"include_usage": True}


def test_streamed_tool_calls() -> None:
    def delta(index: int, **function: str) -> bytes:
        more = {"id": function.pop("id")} if "id" in function else {}
        return event({"tool_calls": [{"index": index, **more, "function": function}]})

    lines = [
        delta(0, id="a", name="weather", arguments=""),
        delta(0, arguments='{"ci'),
        delta(1, id="b", name="now", arguments="{}"),
        delta(0, arguments='ty": "Oslo"}'),
        event({}, "tool_calls"),
    ]
    with chat_server(stream(*lines, size=5)) as server:
        pieces, whole = read(client(server.url, stream_usage=False))
    assert pieces == []
    assert whole.tool_calls == (ToolCall("a", "weather", {"city": "Oslo"}), ToolCall("b", "now", {}))
    assert whole.finish_reason == "tool_calls"
    assert "stream_options" not in server.requests[0]


def test_streamed_tool_calls_without_an_index() -> None:
    def delta(**call: Any) -> bytes:
        return event({"tool_calls": [call]})

    lines = [
        delta(id="a", function={"name": "f", "arguments": '{"x"'}),
        delta(function={"arguments": ": 1}"}),
        delta(id="b", function={"name": "g", "arguments": {"y": 2}}),
        event({}, "tool_calls"),
    ]
    with chat_server(stream(*lines)) as server:
        _, whole = read(client(server.url))
    assert whole.tool_calls == (ToolCall("a", "f", {"x": 1}), ToolCall("b", "g", {"y": 2}))


@pytest.mark.parametrize(
    ("lines", "end", "words"),
    [
        ([event({"content": "half"})], b"", "broke off before the answer was complete"),
        ([event({"content": "half"}), b"data: {broken"], b"", "an event is not JSON"),
        ([event({"content": "half"}), b"data: 3"], b"", "not an object"),
        (
            [event({"content": "half"}), b'data: {"error": {"message": "GPU lost"}}'],
            b"",
            "the server reports: GPU lost",
        ),
        ([event({"content": "half"}), b'data: {"error": 7}'], b"", "the server reports: 7"),
        ([event({"content": "half"}), b'data: {"choices": [3]}'], b"", "not part of a chat completion"),
        ([event({"content": "half"}), event({"tool_calls": [{"index": 500}]})], b"", "not part of a chat completion"),
    ],
)
def test_streams_that_break(lines: list[bytes], end: bytes, words: str) -> None:
    with chat_server(stream(*lines, end=end)) as server, pytest.raises(BrokenStream) as caught:
        read(client(server.url))
    assert words in str(caught.value)
    assert caught.value.partial == "half"


def test_an_empty_stream_and_one_without_its_end() -> None:
    with chat_server(stream(end=b"")) as server, pytest.raises(BrokenStream):
        read(client(server.url))
    with chat_server(stream(event({"content": "all"}), event({}, "length"), end=b"")) as server:
        assert read(client(server.url))[1].finish_reason == "length"


def test_a_stream_that_is_cut_or_stands_still() -> None:
    def cut(handler: Any) -> None:
        send(handler, 200, event({"content": "half"}) + b"\n\n", Content_Length="9999")

    def stall(handler: Any) -> None:
        cut(handler)
        handler.wfile.flush()
        server.release.wait(20)

    with chat_server(cut) as server, pytest.raises(BrokenStream, match="the stream broke off") as caught:
        read(client(server.url))
    assert caught.value.partial == "half"
    with chat_server(stall) as server, pytest.raises(BrokenStream, match=r"stalled for 0.3 s"):
        read(client(server.url, timeout_s=0.3))


def test_a_stream_is_retried_before_it_begins_only() -> None:
    with chat_server(reply({}, 503), stream(event({"content": "x"}), event({}, "stop"))) as server:
        assert read(client(server.url))[0] == ["x"]
        assert len(server.requests) == 2


def test_a_stream_can_be_left_and_has_no_completion_then() -> None:
    with chat_server(stream(event({"content": "a"}), event({"content": "b"}), event({}, "stop"))) as server:

        async def main() -> None:
            model = client(server.url)
            answer = model.stream(HELLO)
            async for _ in answer:
                break
            with pytest.raises(ModelError, match="has not ended"):
                _ = answer.completion
            await answer.aclose()
            await model.aclose()

        asyncio.run(main())


def test_spans() -> None:
    store = Store.open(":memory:")
    recorder = Recorder(store)
    with chat_server(reply(chat("hi")), stream(event({"content": "x"}), event({}, "stop")), stream(end=b"")) as server:
        with use_recorder(recorder):
            ask(client(server.url), temperature=0.5, tools=[weather])
            read(client(server.url))
            with pytest.raises(BrokenStream):
                read(client(server.url))
    recorder.flush()
    whole, streamed, broken = sorted(all_spans(store), key=lambda span: span.start_ns)
    assert (whole.name, whole.kind, whole.model, whole.provider) == ("chat m", "model", "served-model", "openai")
    assert (whole.input_tokens, whole.output_tokens, whole.status) == (7, 3, "ok")
    assert whole.inputs["messages"] == HELLO
    assert whole.inputs["tools"] == [weather.spec]
    assert whole.outputs == {"text": "hi", "finish_reason": "stop"}
    assert whole.sampling == {"temperature": 0.5}
    assert streamed.outputs["text"] == "x"
    assert streamed.input_tokens is None
    assert broken.status == "error"
    assert "broke off" in (broken.error or "")
    recorder.close()


def test_an_abandoned_stream_leaves_an_error_span() -> None:
    store = Store.open(":memory:")
    recorder = Recorder(store)
    with chat_server(stream(event({"content": "a"}), event({"content": "b"}), event({}, "stop"))) as server:

        async def main() -> None:
            model = client(server.url)
            with use_recorder(recorder):
                answer = model.stream(HELLO)
                async for _ in answer:
                    break
                await answer.aclose()
            await model.aclose()

        asyncio.run(main())
    recorder.flush()
    (span,) = all_spans(store)
    assert span.status == "error"
    assert span.error is not None
    assert "not read to its end" in span.error
    recorder.close()


def test_one_client_serves_many_event_loops() -> None:
    with chat_server(reply(chat("ok"))) as server:
        model = client(server.url)
        for _ in range(3):
            assert asyncio.run(model.complete(HELLO)).text == "ok"


def test_openais_own_client_reads_the_same_server() -> None:
    """The scripted server speaks the real protocol: the official client understands its answers and streams."""
    openai = pytest.importorskip("openai")
    lines = [event({"content": word}, id="1", created=1, object="chat.completion.chunk") for word in WORDS]
    with chat_server(reply({**chat("hi"), "created": 1}), stream(*lines)) as server:
        peer = openai.OpenAI(base_url=server.url, api_key="none")
        assert peer.chat.completions.create(model="m", messages=HELLO).choices[0].message.content == "hi"
        chunks = peer.chat.completions.create(model="m", messages=HELLO, stream=True)
        assert "".join(chunk.choices[0].delta.content for chunk in chunks) == "".join(WORDS)
        peer.close()


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after-ms": "250", "retry-after": "3"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 90.0),
        ({"retry-after": "Thu, 01 Jan 1960 00:01:40 GMT"}, 0.0),
    ],
)
def test_retry_after_forms(headers: dict[str, str], expected: float | None) -> None:
    assert retry_after(headers, 10.0) == expected


@settings(max_examples=25, deadline=None)
@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"data: {}\n\n", b"data: [DONE]", b"\r\n"]), max_size=10))
def test_any_bytes_are_a_stream_or_a_typed_error(chunks: list[bytes]) -> None:
    async def source() -> Any:
        for chunk in chunks:
            yield chunk

    async def main() -> None:
        assembly = Assembly("m", "here")
        async for data in events(source()):
            assembly.add(data)
        assembly.completion(ended=False)

    with pytest.raises(ModelError):
        asyncio.run(main())


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_forge.inference.wire.MOST_EVENT_BYTES", 1000)
    with chat_server(stream(b"data: " + b"x" * 5000)) as server, pytest.raises(ModelError, match="larger than 1,000"):
        read(client(server.url))


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://api.openai.com/v1", "theirs"),
        ("https://api.openai.com:443/v1", "theirs"),
        ("https://evil.example//api.openai.com/v1", None),
        ("https://evil.example/?//api.openai.com/", None),
        ("https://api.openai.com.evil.example/v1", None),
    ],
)
def test_the_key_of_openai_goes_to_openai_alone(url: str, key: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_FORGE_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "theirs")
    assert key_for(url) == key


def test_an_answer_without_an_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        with suppress(OSError):
            while True:
                handler.wfile.write(b'data: {"choices": []}\n\n' * 100)

    monkeypatch.setattr("agent_forge.inference.openai_compatible.MOST_BYTES", 100_000)
    with chat_server(endless) as server:
        model = OpenAICompatible(server.url, "m", retries=0, timeout_s=20)

        async def streamed() -> None:
            async for _ in model.stream([{"role": "user", "content": "hi"}]):
                pass

        for work in (lambda: model.complete([{"role": "user", "content": "hi"}]), streamed):
            with pytest.raises(ModelError, match="larger than"):
                asyncio.run(work())
