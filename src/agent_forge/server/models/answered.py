"""What an engine wrote, in the shapes of the OpenAI API: whole answers and streams of chunks."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_forge.errors import ModelError
from agent_forge.server.answers import error_document
from agent_forge.server.models.tool_calls import Call, Screen, split_calls

if TYPE_CHECKING:
    from agent_forge.server.models.asked import Asked
    from agent_forge.server.models.job import Job, Piece
    from agent_forge.server.models.sampling import Chosen


@dataclass(slots=True)
class Choice:
    """One answer as far as it has come."""

    job: Job
    text: str = ""
    tokens: list[Chosen] = field(default_factory=list)
    screen: Screen | None = None
    calls: list[Call] = field(default_factory=list)
    finish: str | None = None

    def add(self, piece: Piece, names: tuple[str, ...], keep: bool) -> str:
        """Takes a piece, and gives the text that may be shown now."""
        self.text += piece.text
        if keep and piece.chosen is not None:
            self.tokens.append(piece.chosen)
        shown = piece.text if self.screen is None else "".join(self.screen.add(piece.text))
        if piece.finish is not None:
            self.finish = piece.finish
            shown += self._settle(names)
        return shown

    def _settle(self, names: tuple[str, ...]) -> str:
        """At the end: calls out of the text, and what was held back for nothing."""
        if self.screen is None:
            return ""
        held, self.screen.held = self.screen.held, ""
        rest, self.calls = split_calls(held, names)
        if self.calls:
            self.finish = "tool_calls"
        self.text, _ = split_calls(self.text, names)
        return rest


async def written(asked: Asked) -> AsyncGenerator[tuple[Choice, str, Piece], None]:
    """What the jobs of a request write, as it comes. Raises ModelError."""
    choices = {job: Choice(job, screen=Screen() if asked.tool_names else None) for job in asked.jobs}
    keep, open_jobs = asked.logprobs, len(asked.jobs)
    while open_jobs:
        job, piece = await asked.outbox.get()
        if piece.error is not None:
            raise piece.error
        open_jobs -= piece.finish is not None
        yield choices[job], choices[job].add(piece, asked.tool_names, keep), piece


async def whole(asked: Asked) -> list[Choice]:
    """All choices, finished. Raises ModelError."""
    done: dict[int, Choice] = {}
    async for choice, _, _ in written(asked):
        done[choice.job.index] = choice
    return [done[index] for index in sorted(done)]


@dataclass(slots=True)
class Frame:
    """What all chunks of one answer share."""

    asked: Asked
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.id = self.id or f"{'chatcmpl' if self.asked.chat else 'cmpl'}-{secrets.token_hex(12)}"

    def document(self, object_: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """An answer or a chunk of one."""
        head = {"id": self.id, "object": object_, "created": self.created, "model": self.asked.model.name}
        return {**head, "choices": choices, **more}

    def answer(self, choices: list[Choice]) -> dict[str, Any]:
        """The whole answer."""
        make = self._chat_choice if self.asked.chat else self._completion_choice
        kind = "chat.completion" if self.asked.chat else "text_completion"
        return self.document(kind, [make(choice) for choice in choices], usage=self.asked.usage)

    def _chat_choice(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.calls:
            message["content"] = choice.text or None
            message["tool_calls"] = [call.document for call in choice.calls]
        logprobs = {"content": self.chat_logprobs(choice.tokens)} if self.asked.logprobs else None
        index = choice.job.index
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish}

    def _completion_choice(self, choice: Choice) -> dict[str, Any]:
        echo = self.echo(choice)
        logprobs = self.completion_logprobs(choice.tokens, len(echo)) if self.asked.logprobs else None
        text, index = echo + choice.text, choice.job.index
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": choice.finish}

    def echo(self, choice: Choice) -> str:
        """The prompt, where the request wants it in front of the answer."""
        if not self.asked.body.get("echo"):
            return ""
        return str(self.asked.model.tokenizer.decode(list(choice.job.prompt), skip_special_tokens=True))

    # Log probabilities

    def token_text(self, token: int) -> str:
        return str(self.asked.model.tokenizer.decode([token]))

    def _told(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.token_text(token)
        whole = "\ufffd" not in text  # else it is a part of a character, and its bytes are not to be had from the text
        return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if whole else None}

    def chat_logprobs(self, tokens: list[Chosen]) -> list[dict[str, Any]]:
        """As a chat has them."""
        return [
            {
                **self._told(chosen.token, chosen.logprob or 0.0),
                "top_logprobs": [self._told(token, logprob) for token, logprob in chosen.top],
            }
            for chosen in tokens
        ]

    def completion_logprobs(self, tokens: list[Chosen], offset: int) -> dict[str, Any]:
        """As a completion has them."""
        texts = [self.token_text(chosen.token) for chosen in tokens]
        offsets = [offset + sum(map(len, texts[:place])) for place in range(len(texts))]
        top = [{self.token_text(token): logprob for token, logprob in chosen.top} for chosen in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [chosen.logprob for chosen in tokens],
            "top_logprobs": top,
            "text_offset": offsets,
        }


class Chunks:
    """A stream: what a piece becomes on the wire."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.asked = frame.asked
        self._object = "chat.completion.chunk" if self.asked.chat else "text_completion"
        # A chunk differs from the one before in its text alone, so the rest is written once.
        self._around = {job.index: self._template(job.index) for job in self.asked.jobs}

    def _template(self, index: int) -> tuple[str, str]:
        filled = _data(self.frame.document(self._object, [self._choice(index, "\0", None, None)]))
        head, tail = filled.split('"\\u0000"')
        return head, tail

    def _choice(self, index: int, text: str | None, logprobs: Any, finish: str | None, **delta: Any) -> dict[str, Any]:
        if self.asked.chat:
            content = {} if text is None else {"content": text}
            body: dict[str, Any] = {"delta": {**delta, **content}}
        else:
            body = {"text": text or ""}
        return {"index": index, **body, "logprobs": logprobs, "finish_reason": finish}

    def one(self, choice: dict[str, Any], **more: Any) -> str:
        return _data(self.frame.document(self._object, [choice], **more))

    def opening(self) -> str:
        """The first chunks: the role, or the prompt where it is echoed."""
        if self.asked.chat:
            return "".join(
                self.one(self._choice(job.index, "", None, None, role="assistant")) for job in self.asked.jobs
            )
        echoes = [(job.index, self.frame.echo(Choice(job))) for job in self.asked.jobs]
        return "".join(self.one(self._choice(index, echo, None, None)) for index, echo in echoes if echo)

    def piece(self, choice: Choice, shown: str, piece: Piece) -> str:
        """The chunks of one piece; none while a character or a call is incomplete."""
        index, told = choice.job.index, ""
        if self.asked.logprobs and piece.chosen is not None:
            told = self.one(self._choice(index, shown, self._logprobs(piece.chosen), None))
        elif shown:
            head, tail = self._around[index]
            told = f"{head}{json.dumps(shown)}{tail}"
        if piece.finish is None:
            return told
        calls = [{"index": place, **call.document} for place, call in enumerate(choice.calls)]
        if calls:
            told += self.one(self._choice(index, None, None, None, tool_calls=calls))
        return told + self.one(self._choice(index, None, None, choice.finish))

    def _logprobs(self, chosen: Chosen) -> dict[str, Any]:
        if self.asked.chat:
            return {"content": self.frame.chat_logprobs([chosen])}
        return self.frame.completion_logprobs([chosen], 0)

    def closing(self) -> str:
        """The usage, where it was asked for, and the end."""
        wanted = (self.asked.body.get("stream_options") or {}).get("include_usage")
        usage = _data(self.frame.document(self._object, [], usage=self.asked.usage)) if wanted else ""
        return f"{usage}data: [DONE]\n\n"


def _data(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document)}\n\n"


async def streamed(frame: Frame, choices: dict[int, Choice]) -> AsyncGenerator[bytes, None]:
    """The answer as server-sent events. What is ready together is sent together; `choices` fills as it is written."""
    chunks = Chunks(frame)
    waiting = [chunks.opening()]
    try:
        async for choice, shown, piece in written(frame.asked):
            choices[choice.job.index] = choice
            waiting.append(chunks.piece(choice, shown, piece))
            if frame.asked.outbox.empty() and any(waiting):
                yield "".join(waiting).encode()
                waiting.clear()
        yield ("".join(waiting) + chunks.closing()).encode()
    except ModelError as error:
        yield _data(error_document(500, str(error), "model_failed")).encode()
