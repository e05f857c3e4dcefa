"""The types that every model client shares: a request, a completion, and the interface between them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, runtime_checkable

from agent_forge.errors import ModelError

if TYPE_CHECKING:
    from typing_extensions import Unpack

Message = Mapping[str, Any]
"""A chat message as in the OpenAI API: role, content, and for tools tool_calls or tool_call_id."""


class HasSpec(Protocol):
    """A tool that can describe itself to a model (an `agent_forge.agents.Tool` is one)."""

    @property
    def spec(self) -> Mapping[str, Any]: ...


Tools = Iterable[HasSpec | Mapping[str, Any]]
ToolChoice = Literal["auto", "required", "none"]


class SamplingOptions(TypedDict, total=False):
    """How a model writes its answer; what is missing or None is left to the model.

    `tool_choice`: "auto" (the default with tools), "required" (it must call one) or "none" (it must not).
    `answer_schema`: the JSON Schema of the answer. A model in process cannot write anything else but a call; an
    endpoint is only asked to, so the answer still has to be checked.
    """

    temperature: float | None
    max_tokens: int | None
    stop: Sequence[str] | str | None
    seed: int | None
    tool_choice: ToolChoice | None
    answer_schema: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens read and written, and the cost in US dollars; None where it is not known."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    cached_tokens: int | None = None  # of the input tokens, those that the provider had cached


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call requested by the model. Its arguments are JSON, not yet checked against the tool's schema."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer. A LocalModel with `keep_tokens` adds token ids and log probabilities."""

    text: str
    model: str
    finish_reason: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    usage: TokenUsage = TokenUsage()
    prompt_ids: tuple[int, ...] | None = None
    output_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a model: the messages, the tools it may call (in the OpenAI format), and the sampling settings."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    tool_choice: ToolChoice | None = None
    answer_schema: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls, messages: Sequence[Message], tools: Tools | None = None, **sampling: Unpack[SamplingOptions]
    ) -> Request:
        """The request for the arguments of `complete` and `stream`. Raises ModelError."""
        texts: object = messages
        if isinstance(texts, str):
            raise ModelError("messages is a string", fix='Pass a list: [{"role": "user", "content": "..."}]')
        settings: dict[str, Any] = dict(sampling)
        stop = settings.pop("stop", None) or ()
        specs = [dict(each if isinstance(each, Mapping) else each.spec) for each in tools or ()]
        return cls(tuple(messages), tuple(specs), stop=(stop,) if isinstance(stop, str) else tuple(stop), **settings)

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling settings that are set."""
        settings = {"temperature": self.temperature, "max_tokens": self.max_tokens, "seed": self.seed}
        present = {name: value for name, value in settings.items() if value is not None}
        return {**present, "stop": list(self.stop)} if self.stop else present

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of `complete` and `stream` that make this request again."""
        shape = {"tool_choice": self.tool_choice, "answer_schema": self.answer_schema}
        return {**self.sampling, **{name: value for name, value in shape.items() if value is not None}}

    @property
    def body(self) -> dict[str, Any]:
        """The request as JSON, without unset fields."""
        body: dict[str, Any] = {"messages": [dict(message) for message in self.messages]}
        if self.tools:
            body["tools"] = [dict(spec) for spec in self.tools]
            if self.tool_choice is not None:
                body["tool_choice"] = self.tool_choice
        if self.answer_schema is not None:
            shape = {"name": "answer", "schema": dict(self.answer_schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": shape}
        return {**body, **self.sampling}

    @property
    def may_call(self) -> bool:
        """Whether the model may call a tool."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def digest(self) -> str:
        """Equal for equal requests, whatever the order of their keys."""
        return digest_of(self.body)


def digest_of(document: Any) -> str:
    """The SHA-256 of a JSON value, whatever the order of its keys."""
    canonical = json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


class CompletionStream:
    """Text as it is written, then the whole: `async for piece in stream: ...`, then `stream.completion`."""

    def __init__(self, source: AsyncIterator[str | Completion]) -> None:
        self._source = source
        self._completion: Completion | None = None

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        while True:
            item = await self._source.__anext__()
            if isinstance(item, str):
                return item
            self._completion = item

    @property
    def completion(self) -> Completion:
        """The whole answer, with tool calls and usage. Raises ModelError while the stream has not ended."""
        if self._completion is None:
            raise ModelError("the stream has not ended", fix="Read it to the end first: `async for piece in stream`")
        return self._completion

    async def aclose(self) -> None:
        """Stops reading: the connection is closed, a local model stops writing."""
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()


@runtime_checkable
class ModelClient(Protocol):
    """A model that answers chat messages: behind a URL, in this process, or from a recording."""

    @property
    def name(self) -> str:
        """The model's name, for spans and results."""

    async def complete(
        self, messages: Sequence[Message], *, tools: Tools | None = None, **sampling: Unpack[SamplingOptions]
    ) -> Completion:
        """The whole answer. `sampling`: temperature, max_tokens, stop, seed. Raises ModelError."""

    def stream(
        self, messages: Sequence[Message], *, tools: Tools | None = None, **sampling: Unpack[SamplingOptions]
    ) -> CompletionStream:
        """The answer as it is written; iterating raises ModelError."""
