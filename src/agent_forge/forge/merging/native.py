"""The compiled kernel: the same numbers as `compute`, in one or two passes over the inputs and next to no memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_forge.forge.merging.layout import Output
    from agent_forge.forge.merging.staging import Stage


def can(output: Output) -> bool:
    return False


def whole(stage: Stage, output: Output) -> memoryview:
    raise NotImplementedError


def library() -> object:
    return None


def write(stage: Stage, output: Output, descriptor: int, at: int) -> None:
    raise NotImplementedError
