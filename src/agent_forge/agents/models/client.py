"""What every model client answers to, and what it answers with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from agent_forge.agents.tools import Tool, Toolbox
from agent_forge.errors import ModelError

Message = Mapping[str, Any]
"""A chat message as the OpenAI API has it: role, content, and for tools tool_calls or tool_call_id."""
Tools = Toolbox | Sequence[Tool | Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens read and written; None where the model did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for. Its arguments are JSON, not yet checked against the tool's schema."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer. `token_ids` and `logprobs` (of the written tokens) are there when they were asked for."""

    text: str
    model: str
    finish_reason: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None


class Stream:
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
            raise ModelError("the stream has not ended", fix="read it to the end first: `async for piece in stream`")
        return self._completion

    async def aclose(self) -> None:
        """Stops reading; the connection is closed."""
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()


@runtime_checkable
class ModelClient(Protocol):
    """A model that answers chat messages: by URL, in this process, or from a recording."""

    @property
    def name(self) -> str:
        """The model's name, for spans and results."""

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> Completion:
        """The answer. Raises ModelError."""

    def stream(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> Stream:
        """The answer as it is written. Iterating raises ModelError."""


def specs_of(tools: Tools | None) -> list[dict[str, Any]]:
    """Tools in the format of the OpenAI API: from a toolbox, from tools, or as they are."""
    if tools is None:
        return []
    return [each.spec if isinstance(each, Tool) else dict(each) for each in tools]
