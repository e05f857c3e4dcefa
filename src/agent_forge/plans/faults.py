"""What can be wrong with a plan, and how much of one is accepted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agent_forge.errors import PlanError

CODES = ("cycle", "unknown_dependency", "duplicate_id", "empty_plan", "too_large", "malformed", "ungrounded")


@dataclass(frozen=True, slots=True)
class PlanFault:
    """One thing wrong with a plan: a code of `CODES`, a sentence, and where it is when that is known."""

    code: str
    message: str
    task: str | None = None
    line: int | None = None

    def as_dict(self) -> dict[str, str | int | None]:
        """The fault as JSON, `line` only where it is known.

        >>> PlanFault("empty_plan", "no task").as_dict()
        {'code': 'empty_plan', 'message': 'no task', 'task': None}
        """
        document: dict[str, str | int | None] = {"code": self.code, "message": self.message, "task": self.task}
        if self.line is not None:
            document["line"] = self.line
        return document

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line is not None else self.message


class PlanInvalid(PlanError):
    """A plan that was refused; `errors` holds every fault, not only the first.

    >>> raise_for([PlanFault("empty_plan", "the plan has no task")])
    Traceback (most recent call last):
    ...
    agent_forge.plans.faults.PlanInvalid: the plan has no task
    """

    def __init__(self, errors: Iterable[PlanFault]) -> None:
        self.errors = list(errors)
        shown = "; ".join(str(fault) for fault in self.errors[:5])
        rest = len(self.errors) - 5
        super().__init__(f"{shown}; and {rest} more" if rest > 0 else shown)

    def __reduce__(self) -> tuple[type[PlanInvalid], tuple[list[PlanFault]]]:
        return type(self), (self.errors,)

    @property
    def codes(self) -> list[str]:
        """The codes of the faults, in the order found."""
        return [fault.code for fault in self.errors]


def raise_for(faults: Iterable[PlanFault]) -> None:
    """Raise `PlanInvalid` if there is any fault."""
    errors = list(faults)
    if errors:
        raise PlanInvalid(errors)


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """How large a plan may be. Beyond a limit the fault is `too_large`; nothing is ever cut off to fit."""

    tasks: int = 1_000_000
    edges: int = 5_000_000  # after groups are expanded to their leaves
    references: int = 1_000_000
    depth: int = 32  # groups inside groups
    nesting: int = 64  # lists and objects inside args and meta
    id_chars: int = 256
    text_bytes: int = 8 * 1024 * 1024


# A text may come from anywhere (a model, a file someone sent), so less of it is accepted.
TEXT_LIMITS = PlanLimits(tasks=10_000, edges=500_000, references=100_000)
