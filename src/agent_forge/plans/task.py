"""One task of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent_forge.plans.references import ITEM, LAST, find_references, split_text

# JSON values: None, bool, int, float, str, lists and string-keyed mappings of them. mypy has no recursive spelling of
# this that also accepts the invariant containers people really pass.
JSON = Any


@dataclass(frozen=True, slots=True)
class Control:
    """The control flow of a task; `Task` explains it. One object: most tasks have none, and one more slot."""

    when: str | None = None
    until: str | None = None
    fallback: tuple[str, ...] = ()
    first_of: tuple[str, ...] = ()
    do: tuple[Task, ...] = ()


@dataclass(frozen=True, slots=True, init=False)
class Task:
    """A piece of work: what it is for, what it calls, and what it waits for.

    `args` values, `for_each` and `goal` may hold references to other tasks' results (`{s1.rows[0]}`), and a reference
    implies a dependency. `parent` only groups. With `for_each`, a reference to a list result, the task is carried out
    once for each element, `{item}` being the element, and its result is the list of their results in order; `limit`
    is the most elements it may have (a longer list fails the task, it is never cut). `meta` is free.

    Control flow: `when` is a condition over results, without which the task is not needed. `until` repeats the task
    until the condition holds, at most `limit` times; `{last}` is the result of the round before. `fallback` are the
    tasks to try in its place, in order, if it fails. `first_of` gives the result of whichever of these tasks is done
    first. `do` are tasks to carry out in place of a call: once, or for each element or round.

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
    control: Control | None

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
        control: Control | None = None,
        when: str | None = None,
        until: str | None = None,
        fallback: Iterable[str] = (),
        first_of: Iterable[str] = (),
        do: Iterable[Task] = (),
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
        if when is not None or until is not None or fallback or first_of or do:
            control = Control(when, until, _names(fallback), _names(first_of), tuple(do))
        _put_control(self, control)

    @classmethod
    def from_dict(cls, document: Mapping[str, JSON]) -> Task:
        """The task that `as_dict` describes.

        >>> task = Task("a", when="{b}", do=[Task("c", "Go")])
        >>> Task.from_dict(task.as_dict()) == task
        True
        """
        parts = [cls.from_dict(part) for part in document.get("do", ())]
        return cls(**{**document, "do": parts} if parts else document)

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def when(self) -> str | None:
        """The condition without which the task is not needed."""
        return None if self.control is None else self.control.when

    @property
    def until(self) -> str | None:
        """The condition that ends its rounds."""
        return None if self.control is None else self.control.until

    @property
    def fallback(self) -> tuple[str, ...]:
        """The tasks to try in its place, in order, if it fails."""
        return () if self.control is None else self.control.fallback

    @property
    def first_of(self) -> tuple[str, ...]:
        """The tasks of which the first that is done gives the result."""
        return () if self.control is None else self.control.first_of

    @property
    def do(self) -> tuple[Task, ...]:
        """The tasks to carry out in place of a call."""
        return () if self.control is None else self.control.do

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
        if (control := self.control) is not None:
            fields = {"when": control.when, "until": control.until}
            document.update((name, text) for name, text in fields.items() if text is not None)
            lists = {"fallback": control.fallback, "first_of": control.first_of}
            document.update((name, list(names)) for name, names in lists.items() if names)
            if control.do:
                document["do"] = [part.as_dict() for part in control.do]
        return document

    def needs(self, ids: Iterable[str] = ()) -> tuple[str, ...]:
        """What this task waits for, before the whole plan is known (for a plan that is still being written).

        Stated dependencies and references in `args`, `for_each` and conditions always count; an expression in the goal
        counts when its head is among the `ids` ids, since a goal is prose. What the tasks in `do` need from outside of
        it is needed too.

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
        if (control := self.control) is not None:
            heads.update((reference.head, None) for reference in find_references(control.when))
            heads.update(dict.fromkeys(control.first_of))
            inner = [reference.head for reference in find_references(control.until)]
            inner += [head for part in control.do for head in part.needs(ids)]
            own = {self.id, LAST, *(part.id for part in control.do)}
            heads.update((head, None) for head in inner if head not in own)
            if control.until is not None:
                heads.pop(LAST, None)
        if self.for_each is not None:
            heads.pop(ITEM, None)
        return tuple(heads)

    def parts(self) -> Iterator[Task]:
        """The tasks in `do`, and those inside of them."""
        for part in self.do:
            yield part
            yield from part.parts()


def _names(value: Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _slot(name: str) -> Callable[[Task, Any], None]:
    put: Callable[[Task, Any], None] = vars(Task)[name].__set__
    return put


_put_id, _put_goal, _put_action, _put_args = _slot("id"), _slot("goal"), _slot("action"), _slot("args")
_put_depends_on, _put_parent, _put_for_each = _slot("depends_on"), _slot("parent"), _slot("for_each")
_put_limit, _put_meta, _put_control = _slot("limit"), _slot("meta"), _slot("control")
