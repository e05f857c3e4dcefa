"""One task of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_forge.plans.references import ITEM, find_references, split_text

# JSON values: None, bool, int, float, str, lists and string-keyed mappings of them. mypy has no recursive spelling of
# this that also accepts the invariant containers people really pass.
JSON = Any


@dataclass(frozen=True, slots=True, init=False)
class Task:
    """A piece of work: what it is for, what it calls, and what it waits for.

    `args` values, `for_each` and `goal` may hold references to other tasks' results (`{s1.rows[0]}`), and a reference
    implies a dependency. `parent` only groups. With `for_each`, a reference to a list result, the task is carried out
    once for each element, `{item}` being the element, and its result is the list of their results in order; `limit`
    is the most elements it may have (a longer list fails the task, it is never cut). `meta` is free.

    >>> Task("report", "Write it", action="write", args={"facts": "{search.rows}"}, depends_on=["outline"]).depends_on
    ('outline',)
    """

    id: str
    goal: str
    action: str | None
    args: Mapping[str, JSON]
    depends_on: tuple[str, ...]
    parent: str | None
    for_each: str | None
    limit: int | None
    meta: Mapping[str, JSON]

    def __init__(
        self,
        id: str,
        goal: str = "",
        action: str | None = None,
        args: Mapping[str, JSON] | None = None,
        depends_on: Iterable[str] = (),
        parent: str | None = None,
        for_each: str | None = None,
        limit: int | None = None,
        meta: Mapping[str, JSON] | None = None,
    ) -> None:
        # Written out, and through the slots themselves: plans of 100,000 tasks are built in one go.
        _put_id(self, id)
        _put_goal(self, goal)
        _put_action(self, action)
        _put_args(self, dict(args) if args else {})
        _put_depends_on(self, (depends_on,) if isinstance(depends_on, str) else tuple(depends_on))
        _put_parent(self, parent)
        _put_for_each(self, for_each)
        _put_limit(self, limit)
        _put_meta(self, dict(meta) if meta else {})

    def __hash__(self) -> int:
        return hash(self.id)

    def as_dict(self) -> dict[str, JSON]:
        """The task as JSON, empty fields left out.

        >>> Task("a", "Go", depends_on=["b"]).as_dict()
        {'id': 'a', 'goal': 'Go', 'depends_on': ['b']}
        """
        document: dict[str, JSON] = {"id": self.id, "goal": self.goal}
        if self.action is not None:
            document["action"] = self.action
        if self.args:
            document["args"] = dict(self.args)
        document["depends_on"] = list(self.depends_on)
        for name in ("parent", "for_each", "limit"):
            if (value := getattr(self, name)) is not None:
                document[name] = value
        if self.meta:
            document["meta"] = dict(self.meta)
        return document

    def needs(self, ids: Iterable[str] = ()) -> tuple[str, ...]:
        """What this task waits for, before the whole plan is known (for a plan that is still being written).

        Stated dependencies and references in `args` and `for_each` always count; an expression in the goal counts when
        its head is among the `ids` ids, since a goal is prose.

        >>> Task("c", "use {a} and {x}", args={"q": "{b.name}"}).needs({"a"})
        ('b', 'a')
        """
        heads = dict.fromkeys(self.depends_on)
        if self.args or self.for_each:
            heads.update((reference.head, None) for reference in find_references([self.args, self.for_each]))
        if "{" in self.goal:
            ids = ids if isinstance(ids, (set, frozenset, dict)) else set(ids)
            pieces = (piece for piece in split_text(self.goal) if not isinstance(piece, str))
            heads.update((piece.head, None) for piece in pieces if piece.head in ids)
        if self.for_each is not None:
            heads.pop(ITEM, None)
        return tuple(heads)


def _slot(name: str) -> Callable[[Task, Any], None]:
    put: Callable[[Task, Any], None] = vars(Task)[name].__set__
    return put


_put_id, _put_goal, _put_action, _put_args = _slot("id"), _slot("goal"), _slot("action"), _slot("args")
_put_depends_on, _put_parent, _put_for_each = _slot("depends_on"), _slot("parent"), _slot("for_each")
_put_limit, _put_meta = _slot("limit"), _slot("meta")
