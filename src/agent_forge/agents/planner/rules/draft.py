"""A plan being drafted: goals that name earlier steps by reference."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

_REFERENCE = re.compile(r"\{(s\d+)\}")


@dataclass(slots=True)
class Step:
    goal: str
    kind: str  # "look-up": find a value; "combine": from earlier values alone; "act": call a tool
    after: tuple[str, ...] = ()  # steps it must follow although its goal does not name them
    action: str | None = None
    args: dict[str, Any] = field(default_factory=dict)

    def depends_on(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*_REFERENCE.findall(self.goal), *self.after]))


@dataclass(slots=True)
class Draft:
    """The steps so far; every method answers with the reference to the step it added, to be put into later goals."""

    shape: str
    steps: list[Step] = field(default_factory=list)

    def look_up(self, goal: str) -> str:
        return self._add(Step(_tidy(goal), "look-up"))

    def combine(self, goal: str) -> str:
        return self._add(Step(_tidy(goal), "combine"))

    def act(self, goal: str, after: tuple[str, ...] = ()) -> str:
        return self._add(Step(_tidy(goal), "act", after))

    def _add(self, step: Step) -> str:
        self.steps.append(step)
        return f"{{s{len(self.steps)}}}"


def step_id(reference: str) -> str:
    return reference.strip("{}")


def _tidy(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip(" ,;")
