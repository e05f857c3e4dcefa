"""A plan being drafted: steps that refer to the results of earlier ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_forge.agents.actions import SEARCH, Combine, LookUp, Meaning
from agent_forge.agents.planner.binding import read_goal
from agent_forge.agents.relations import canonical
from agent_forge.plans import Plan, Task

_REFERENCE = re.compile(r"(?<!\{)\{(s\d+)\}(?!\})")  # {{s1}} is text


@dataclass(slots=True)
class Step:
    goal: str
    action: str | None = None
    args: dict[str, Any] = field(default_factory=dict)
    after: tuple[str, ...] = ()  # steps that must come first although no reference names them


@dataclass(slots=True)
class PlanDraft:
    """The steps so far. Every method returns the reference to its step ("{s1}"), for use in later steps."""

    shape: str
    steps: list[Step] = field(default_factory=list)

    def look_up(self, relation: str, entity: str) -> str:
        """A value of an entity that is itself known or a reference."""
        relation, entity = tidy(relation), tidy(entity)
        return self._mean(LookUp(canonical(relation), entity), tidy(f"{relation} of {entity}"))

    def find(self, text: str) -> str:
        """A value described in words: a look-up if the words read as one, else a search."""
        text = tidy(text)
        meaning = read_goal(text)
        if isinstance(meaning, LookUp):
            return self._mean(meaning, text)
        return self.add(Step(text, SEARCH, {"query": text}))

    def combine(self, operation: str, operands: Sequence[Any], labels: Sequence[str] = ()) -> str:
        meaning = Combine(operation, tuple(operands), tuple(labels))
        return self._mean(meaning, meaning.goal)

    def _mean(self, meaning: Meaning, goal: str) -> str:
        return self.add(Step(goal, meaning.action, meaning.args))

    def add(self, step: Step) -> str:
        self.steps.append(step)
        return f"{{s{len(self.steps)}}}"

    def plan(self) -> Plan:
        """The steps as tasks. A step needs those that its goal refers to: the goal says what the arguments say."""
        return Plan(
            Task(
                f"s{number}",
                step.goal,
                step.action,
                step.args,
                dict.fromkeys([*_REFERENCE.findall(step.goal), *step.after]),
            )
            for number, step in enumerate(self.steps, 1)
        )


def tidy(text: str) -> str:
    return " ".join(text.split()).strip(" ,;")
