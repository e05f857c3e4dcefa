"""The one shape in which data sets reach the forge and the evaluations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Record:
    """One example. `input` is the prompt as text or as messages, `target` the right answer.

    >>> Record("svamp/train/0", "arithmetic", "1 + 1?", "2", "train", "MIT", "SVAMP").as_dict()["target"]
    '2'
    """

    id: str
    task: str
    input: str | list[dict[str, Any]]
    target: Any
    split: str
    licence: str
    source: str
    meta: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        row = {
            name: getattr(self, name)
            for name in ("id", "task", "input", "target", "split", "licence", "source", "meta")
        }
        return row if self.meta else {name: value for name, value in row.items() if name != "meta"}


def graph(nodes: list[Any], edges: list[tuple[str, str]]) -> dict[str, Any]:
    """A plan as the target of a record: nodes numbered "1", "2", … and edges (before, after), each once."""
    return {
        "nodes": [
            {"id": str(number), "goal": node} if isinstance(node, str) else node for number, node in enumerate(nodes, 1)
        ],
        "edges": [list(edge) for edge in dict.fromkeys(edges)],
    }
