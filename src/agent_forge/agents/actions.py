"""What a task can mean besides the call of a tool: look a value up, or combine earlier results.

A plan carries the meaning in `action` and `args`; the goal says the same in words, for people and models.

    look_up   {"relation": "date of birth", "entity": "{s1}"}
    combine   {"operation": "earliest", "operands": ["{s3}", "{s4}"], "labels": ["Heat", "Alien"]}

>>> LookUp("director", "film Alien").goal
'director of film Alien'
>>> Combine("earliest", ("{s1}", "{s2}"), ("Ann", "Bob")).goal
'which is earliest of {s1} (Ann), {s2} (Bob)'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from agent_forge.errors import ToolError

SEARCH = "search"  # the tool that look-ups search with
ANSWER = "answer"
LOOK_UP = "look_up"
COMBINE = "combine"

CHOICES = ("earliest", "latest", "largest", "smallest", "true")
# Every operation in words; the operands stand where the braces are.
OPERATIONS = {
    **{choice: f"which is {choice} of {{}}" for choice in CHOICES},
    "both": "if both {} are true",
    "same": "if {} are the same",
    "common": "what {} have in common",
    "difference": "difference of {}",
    "number": "number of {}",
    "sum": "sum of {}",
}


@dataclass(frozen=True, slots=True)
class LookUp:
    """The value of a relation of an entity, to be read from the passage about the entity."""

    action: ClassVar[str] = LOOK_UP
    relation: str
    entity: Any  # text; a reference in a plan may stand for any value

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> LookUp:
        """Raises ToolError unless the arguments are those of a look-up."""
        if set(args) != {"relation", "entity"} or not isinstance(args["relation"], str):
            raise ToolError(f"{LOOK_UP} takes a relation and an entity, got {', '.join(args) or 'nothing'}")
        return cls(args["relation"], args["entity"])

    @property
    def args(self) -> dict[str, Any]:
        return {"relation": self.relation, "entity": self.entity}

    @property
    def goal(self) -> str:
        return f"{self.relation} of {self.entity}"


@dataclass(frozen=True, slots=True)
class Combine:
    """An operation on earlier results. `labels` name what the operands stand for: a choice answers with a label."""

    action: ClassVar[str] = COMBINE
    operation: str  # one of OPERATIONS
    operands: tuple[Any, ...]
    labels: tuple[str, ...] = ()

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> Combine:
        """Raises ToolError unless the arguments are those of a combination."""
        operation, operands, labels = (args.get(name, []) for name in ("operation", "operands", "labels"))
        lists = isinstance(operands, list) and isinstance(labels, list) and len(labels) in (0, len(operands))
        if not isinstance(operation, str) or operation not in OPERATIONS or not lists:
            raise ToolError(
                f"{COMBINE} takes an operation, a list of operands and, if any, a label for each",
                fix=f"The operations are {', '.join(OPERATIONS)}",
            )
        return cls(operation, tuple(operands), tuple(map(str, labels)))

    @property
    def args(self) -> dict[str, Any]:
        labels = {"labels": list(self.labels)} if self.labels else {}
        return {"operation": self.operation, "operands": list(self.operands), **labels}

    @property
    def goal(self) -> str:
        words = [str(operand) for operand in self.operands]
        if self.labels:
            pairs = [f"{word} ({label})" for word, label in zip(words, self.labels, strict=True)]
            return OPERATIONS[self.operation].format(", ".join(pairs))
        return OPERATIONS[self.operation].format(" and ".join(words))


Meaning = LookUp | Combine
