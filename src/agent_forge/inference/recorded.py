"""Recorded exchanges with a real model, replayed in tests and demonstrations that must not vary.

A cassette is a JSONL file with one exchange per line: {"digest", "request", "completion", "pieces"}. The digest covers
messages, tools and sampling; a request that is not in the file is an error, never an invented answer. If a request was
recorded several times, its answers are replayed in order, and the last one is then repeated.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent_forge.errors import ModelError
from agent_forge.inference.chat import ChatClient
from agent_forge.inference.client import Completion, ModelClient, Request, TokenUsage, ToolCall


class MissingRecording(ModelError):
    """A request that is not in the cassette."""


class Recorded(ChatClient):
    """Replays a cassette. Raises ModelError if the file cannot be read."""

    provider = "recorded"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._exchanges: dict[str, list[tuple[Completion, list[str] | None]]] = {}
        self.requests = 0
        try:
            text = self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"the recording cannot be read: {error}", where=str(self.path)) from error
        for number, line in enumerate((line for line in text.split("\n") if line.strip()), 1):
            digest, completion, pieces = _exchange(line, f"{self.path}, line {number}")
            self._exchanges.setdefault(digest, []).append((completion, pieces))
        models = (completion.model for exchanges in self._exchanges.values() for completion, _ in exchanges)
        self.name = next(models, f"recorded:{self.path.name}")

    def __repr__(self) -> str:
        return f"Recorded({str(self.path)!r})"

    def _next(self, request: Request) -> tuple[Completion, list[str] | None]:
        self.requests += 1
        exchanges = self._exchanges.get(request.digest)
        if not exchanges:
            raise MissingRecording(
                f"no recording of the request {request.digest[:12]} ({_summary(request)})",
                where=str(self.path),
                fix="Record it with Recording(client, path)",
            )
        return exchanges.pop(0) if len(exchanges) > 1 else exchanges[0]

    async def answer(self, request: Request) -> Completion:
        """The recorded answer. Raises MissingRecording."""
        return self._next(request)[0]

    async def pieces(self, request: Request) -> AsyncIterator[str | Completion]:
        """The recorded answer in its original pieces, or whole if it was not recorded as a stream."""
        completion, pieces = self._next(request)
        for piece in pieces if pieces is not None else [completion.text]:
            yield piece
        yield completion


class Recording(ChatClient):
    """Forwards to a client and appends every exchange to a cassette.

    The file holds messages and answers verbatim: review it before you share it.
    """

    provider = "recording"
    leaves_spans = False

    def __init__(self, client: ModelClient, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.name = client.name
        self._client = client

    def __repr__(self) -> str:
        return f"Recording({self._client!r}, {str(self.path)!r})"

    async def answer(self, request: Request) -> Completion:
        completion = await self._client.complete(request.messages, tools=request.tools, **request.options)
        self._append(request, completion, None)
        return completion

    async def pieces(self, request: Request) -> AsyncIterator[str | Completion]:
        stream = self._client.stream(request.messages, tools=request.tools, **request.options)
        pieces: list[str] = []
        try:
            async for piece in stream:
                pieces.append(piece)
                yield piece
        finally:
            await stream.aclose()
        self._append(request, stream.completion, pieces)
        yield stream.completion

    def _append(self, request: Request, completion: Completion, pieces: list[str] | None) -> None:
        row: dict[str, Any] = {"digest": request.digest, "request": request.body, "completion": asdict(completion)}
        if pieces is not None:
            row["pieces"] = pieces
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _exchange(line: str, where: str) -> tuple[str, Completion, list[str] | None]:
    try:
        row = json.loads(line)
        fields = dict(row["completion"])
        calls = tuple(ToolCall(**call) for call in fields.pop("tool_calls", None) or ())
        usage = TokenUsage(**(fields.pop("usage", None) or {}))
        lists = {name: tuple(fields[name]) for name in ("prompt_ids", "output_ids", "logprobs") if fields.get(name)}
        return row["digest"], Completion(**{**fields, **lists}, tool_calls=calls, usage=usage), row.get("pieces")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"not a recorded exchange: {error!r}", where=where) from error


def _summary(request: Request) -> str:
    last = str(request.messages[-1].get("content", "")) if request.messages else ""
    shown = last if len(last) <= 80 else f"{last[:80]}…"
    return f"{len(request.messages)} messages, the last: {shown!r}"
