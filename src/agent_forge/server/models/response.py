"""The output of an engine in the shapes of the OpenAI API: complete answers and streams of chunks."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_forge.errors import ModelError
from agent_forge.inference.tool_calls import Call, Screen, split_calls
from agent_forge.server.responses import error_document

if TYPE_CHECKING:
    from agent_forge.inference.job import DecodeJob, OutputPiece
    from agent_forge.inference.sampling import SampledToken
    from agent_forge.server.models.request import CompletionRequest


@dataclass(slots=True)
class CompletionChoice:
    """One answer, as far as it has been written."""

    job: DecodeJob
    text: str = ""
    tokens: list[SampledToken] = field(default_factory=list)
    screen: Screen | None = None
    calls: list[Call] = field(default_factory=list)
    finish: str | None = None

    def add(self, piece: OutputPiece, names: tuple[str, ...], keep: bool) -> str:
        """Adds a piece and returns the text that may be shown now."""
        self.text += piece.text
        if keep and piece.token is not None:
            self.tokens.append(piece.token)
        shown = piece.text if self.screen is None else "".join(self.screen.add(piece.text))
        if piece.finish is not None:
            self.finish = piece.finish
            shown += self._settle(names)
        return shown

    def _settle(self, names: tuple[str, ...]) -> str:
        """At the end: separates calls from the text, and returns what was held back in vain."""
        if self.screen is None:
            return ""
        held, self.screen.held = self.screen.held, ""
        rest, self.calls = split_calls(held, names)
        if self.calls:
            self.finish = "tool_calls"
        self.text, _ = split_calls(self.text, names)
        return rest


async def pieces_of(completion: CompletionRequest) -> AsyncGenerator[tuple[CompletionChoice, str, OutputPiece], None]:
    """The output of the jobs of a request, as it comes. Raises ModelError."""
    choices = {
        job: CompletionChoice(job, screen=Screen() if completion.tool_names else None) for job in completion.jobs
    }
    keep, open_jobs = completion.logprobs, len(completion.jobs)
    while open_jobs:
        job, piece = await completion.outbox.get()
        if piece.error is not None:
            raise piece.error
        open_jobs -= piece.finish is not None
        yield choices[job], choices[job].add(piece, completion.tool_names, keep), piece


async def finished_choices(completion: CompletionRequest) -> list[CompletionChoice]:
    """All choices of a request. Raises ModelError."""
    done: dict[int, CompletionChoice] = {}
    async for choice, _, _ in pieces_of(completion):
        done[choice.job.index] = choice
    return [done[index] for index in sorted(done)]


@dataclass(slots=True)
class Envelope:
    """What all chunks of one response share."""

    completion: CompletionRequest
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.id = self.id or f"{'chatcmpl' if self.completion.chat else 'cmpl'}-{secrets.token_hex(12)}"

    def document(self, object_: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """A response, or a chunk of one."""
        head = {"id": self.id, "object": object_, "created": self.created, "model": self.completion.model.name}
        return {**head, "choices": choices, **more}

    def complete(self, choices: list[CompletionChoice]) -> dict[str, Any]:
        """The complete response."""
        make = self._chat_choice if self.completion.chat else self._completion_choice
        kind = "chat.completion" if self.completion.chat else "text_completion"
        return self.document(kind, [make(choice) for choice in choices], usage=self.completion.usage)

    def _chat_choice(self, choice: CompletionChoice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.calls:
            message["content"] = choice.text or None
            message["tool_calls"] = [call.document for call in choice.calls]
        logprobs = {"content": self.chat_logprobs(choice.tokens)} if self.completion.logprobs else None
        index = choice.job.index
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish}

    def _completion_choice(self, choice: CompletionChoice) -> dict[str, Any]:
        echo = self.echo(choice)
        logprobs = self.completion_logprobs(choice.tokens, len(echo)) if self.completion.logprobs else None
        text, index = echo + choice.text, choice.job.index
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": choice.finish}

    def echo(self, choice: CompletionChoice) -> str:
        """The prompt, if the request wants it in front of the answer."""
        if not self.completion.body.get("echo"):
            return ""
        return str(self.completion.model.tokenizer.decode(list(choice.job.prompt), skip_special_tokens=True))

    # Log probabilities

    def token_text(self, token: int) -> str:
        return str(self.completion.model.tokenizer.decode([token]))

    def _logprob(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.token_text(token)
        whole = "\ufffd" not in text  # else it is a part of a character, and the text does not have its bytes
        return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if whole else None}

    def chat_logprobs(self, tokens: list[SampledToken]) -> list[dict[str, Any]]:
        """Log probabilities in the shape of the chat API."""
        return [
            {
                **self._logprob(token.id, token.logprob or 0.0),
                "top_logprobs": [self._logprob(other, logprob) for other, logprob in token.top],
            }
            for token in tokens
        ]

    def completion_logprobs(self, tokens: list[SampledToken], offset: int) -> dict[str, Any]:
        """Log probabilities in the shape of the completion API."""
        texts = [self.token_text(token.id) for token in tokens]
        offsets = [offset + sum(map(len, texts[:place])) for place in range(len(texts))]
        top = [{self.token_text(other): logprob for other, logprob in token.top} for token in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": top,
            "text_offset": offsets,
        }


class Chunks:
    """Writes the pieces of a stream as chunks."""

    def __init__(self, envelope: Envelope) -> None:
        self.envelope = envelope
        self.completion = envelope.completion
        self._object = "chat.completion.chunk" if self.completion.chat else "text_completion"
        # Chunks differ only in their text, so the rest is written once.
        self._around = {job.index: self._template(job.index) for job in self.completion.jobs}

    def _template(self, index: int) -> tuple[str, str]:
        filled = _data(self.envelope.document(self._object, [self._choice(index, "\0", None, None)]))
        head, tail = filled.split('"\\u0000"')
        return head, tail

    def _choice(self, index: int, text: str | None, logprobs: Any, finish: str | None, **delta: Any) -> dict[str, Any]:
        if self.completion.chat:
            content = {} if text is None else {"content": text}
            body: dict[str, Any] = {"delta": {**delta, **content}}
        else:
            body = {"text": text or ""}
        return {"index": index, **body, "logprobs": logprobs, "finish_reason": finish}

    def one(self, choice: dict[str, Any], **more: Any) -> str:
        return _data(self.envelope.document(self._object, [choice], **more))

    def opening(self) -> str:
        """The first chunks: the role, or the prompt where it is echoed."""
        if self.completion.chat:
            return "".join(
                self.one(self._choice(job.index, "", None, None, role="assistant")) for job in self.completion.jobs
            )
        echoes = [(job.index, self.envelope.echo(CompletionChoice(job))) for job in self.completion.jobs]
        return "".join(self.one(self._choice(index, echo, None, None)) for index, echo in echoes if echo)

    def piece(self, choice: CompletionChoice, shown: str, piece: OutputPiece) -> str:
        """The chunks of one piece, or "" while a character or a call is incomplete."""
        index, chunks = choice.job.index, ""
        if self.completion.logprobs and piece.token is not None:
            chunks = self.one(self._choice(index, shown, self._logprobs(piece.token), None))
        elif shown:
            head, tail = self._around[index]
            chunks = f"{head}{json.dumps(shown)}{tail}"
        if piece.finish is None:
            return chunks
        calls = [{"index": place, **call.document} for place, call in enumerate(choice.calls)]
        if calls:
            chunks += self.one(self._choice(index, None, None, None, tool_calls=calls))
        return chunks + self.one(self._choice(index, None, None, choice.finish))

    def _logprobs(self, token: SampledToken) -> dict[str, Any]:
        if self.completion.chat:
            return {"content": self.envelope.chat_logprobs([token])}
        return self.envelope.completion_logprobs([token], 0)

    def closing(self) -> str:
        """The usage, if the request wants it, and the end."""
        with_usage = (self.completion.body.get("stream_options") or {}).get("include_usage")
        usage = _data(self.envelope.document(self._object, [], usage=self.completion.usage)) if with_usage else ""
        return f"{usage}data: [DONE]\n\n"


def _data(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document)}\n\n"


async def stream(envelope: Envelope, choices: dict[int, CompletionChoice]) -> AsyncGenerator[bytes, None]:
    """The response as server-sent events. What is ready together is sent together; `choices` fills on the way."""
    chunks = Chunks(envelope)
    waiting = [chunks.opening()]
    try:
        async for choice, shown, piece in pieces_of(envelope.completion):
            choices[choice.job.index] = choice
            waiting.append(chunks.piece(choice, shown, piece))
            if envelope.completion.outbox.empty() and any(waiting):
                yield "".join(waiting).encode()
                waiting.clear()
        yield ("".join(waiting) + chunks.closing()).encode()
    except ModelError as error:
        yield _data(error_document(500, str(error), "model_failed")).encode()
