"""Whether the tasks of a plan are well formed, one by one, and what each of them refers to."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from typing import Any

from agent_forge.plans.conditions import ConditionError, condition
from agent_forge.plans.faults import PlanFault, PlanLimits
from agent_forge.plans.references import ITEM, LAST, Reference, reads_as_name, split_text, strings_in, whole_reference
from agent_forge.plans.task import Task

_BRACE_WORD = re.compile(r'(?<!\{)\{[ \t]{0,3}(\w[\w-]*)(?=[.\[]|$)|(?<!\{)\{([^{},"]*,[^{}"]*)\}')
_DIGITS = re.compile(r"\d+")
_INTEGER_BITS = 1024  # what a double holds; longer ones are refused by many JSON readers
_MOST_ITEMS = 1_000_000_000
_TOO_DEEP = "nested deeper than"
_ESCAPE = "for the text itself double the braces"


class Vocabulary:
    """The ids of a plan, and what an id looks like in it, computed at the first use."""

    def __init__(self, ids: Collection[str], unread: Collection[str] = ()) -> None:
        self.ids = ids
        self.unread = unread  # of tasks that could not be read, so that nobody is blamed for referring to them
        self._shapes: set[str] | None = None

    def resembles(self, head: str) -> bool:
        """Whether a head differs from an id only in its number or its case: `s9` beside `s1`."""
        if self._shapes is None:
            self._shapes = set(map(_shape, self.ids))
        return _shape(head) in self._shapes


def field_faults(task: Task, limits: PlanLimits) -> list[PlanFault]:
    """What is wrong with the fields of one task."""
    faults = []
    for name in ("goal", "action", "parent", "for_each"):
        value = getattr(task, name)
        if not (isinstance(value, str) or (value is None and name != "goal")):
            faults.append(f"{name} must be text, not {type(value).__name__}")
        elif value and not value.isascii() and not _encodes(value):
            faults.append(f"{name} holds half of a character (a lone surrogate)")
    if task.limit is not None and (type(task.limit) is not int or not 1 <= task.limit <= _MOST_ITEMS):
        faults.append(f"limit must be a whole number from 1 to {_MOST_ITEMS}, not {task.limit!r:.40}")
    if task.action == "":
        faults.append("action is empty; leave it out when there is none")
    for name in ("args", "meta"):
        if value := getattr(task, name):
            faults.extend(f"{name}: {what}" for what in _value_faults(value, limits.nesting))
    if isinstance(task.for_each, str) and whole_reference(task.for_each) is None:
        faults.append(f"for_each must be one reference to a list, such as {{s1.rows}}, not {task.for_each!r}")
    if task.control is not None:
        faults.extend(_control_faults(task))
    return [
        PlanFault("too_large" if _TOO_DEEP in what else "malformed", f"task {task.id!r}: {what}", task.id)
        for what in faults
    ]


def _control_faults(task: Task) -> list[str]:
    """What is wrong with the control flow of one task, taken by itself."""
    faults = []
    for name in ("when", "until"):
        text = getattr(task, name)
        if text is not None and not isinstance(text, str):
            faults.append(f"{name} must be text, not {type(text).__name__}")
        elif text is not None:
            try:
                condition(text)
            except ConditionError as error:
                faults.append(f"{name}: {error}")
    for name in ("fallback", "first_of"):
        names = getattr(task, name)
        if not all(isinstance(each, str) for each in names):
            faults.append(f"{name} must be a list of ids")
        elif len(set(names)) < len(names):
            faults.append(f"{name} names a task twice")
    if not all(isinstance(part, Task) for part in task.do):
        faults.append("do must be a list of tasks")
    elif any(part.parent is not None for part in task.do):
        faults.append("the tasks in do cannot have a parent; put do inside do instead")
    if task.do and (task.action is not None or task.args):
        faults.append("it has do, so it is not called: leave out action and args")
    if task.until is not None and task.for_each is not None:
        faults.append("it has for_each and until; put one of them on a task in its do")
    called = task.action is not None or task.args or task.do or not set(task.depends_on) <= set(task.first_of)
    if task.first_of and (called or task.for_each is not None or task.until is not None or task.when is not None):
        faults.append(
            "a first_of only waits for its tasks: leave out action, args, depends_on, for_each, when, until, do"
        )
    return faults


def id_fault(name: Any, limits: PlanLimits) -> str | None:
    """Why something cannot be the id of a task, or None when it can."""
    if not isinstance(name, str):
        return f"an id must be text, not {type(name).__name__}"
    if not name:
        return "an id is empty"
    if len(name) > limits.id_chars:
        return f"an id has {len(name)} characters, the limit is {limits.id_chars}"
    if not name.isprintable() or name != name.strip():
        return f"the id {name!r} holds a line break, a control character, or blanks at its ends"
    return None


def referring_texts(task: Task) -> list[tuple[str, str]]:
    """The (place, text) pairs of a task in which a reference may stand and a brace does."""
    texts = [("goal", task.goal)] if "{" in task.goal else []
    if task.args:
        texts.extend((f"args.{path}", text) for path, text in strings_in(task.args) if "{" in text)
    if task.for_each is not None:
        texts.append(("for_each", task.for_each))
    if task.control is not None:
        conditions = (("when", task.when), ("until", task.until))
        texts.extend((place, text) for place, text in conditions if text is not None)
    return texts


def references_of(task: Task, vocabulary: Vocabulary) -> tuple[list[tuple[str, Reference]], list[PlanFault]]:
    """The references of a task as (place, reference), and what is wrong with those that are not usable.

    A head that is an id of the plan makes a reference. `item` is one inside a `for_each` task, `last` inside one with
    `until`, whose condition may name the task itself and those in its `do`. Any other head is a fault where a value is
    expected (`args`, `for_each`, conditions) and the head reads like a name, and anywhere when it differs from an id
    only in its number or its case (`{s9}` beside s1). Everything else is text.
    """
    own = {ITEM} if task.for_each is not None else {LAST} if task.until is not None else set()
    inner = {*own, task.id, *(part.id for part in task.do)}
    references: list[tuple[str, Reference]] = []
    faults: list[PlanFault] = []
    for place, text in referring_texts(task):
        pieces = split_text(text)
        for piece in pieces:
            if isinstance(piece, str) or (piece.head in own and place not in ("for_each", "when")):
                continue
            if place == "until" and piece.head in inner:
                continue
            if piece.head in vocabulary.ids:
                references.append((place, piece))
            elif piece.head not in vocabulary.unread and (
                vocabulary.resembles(piece.head) or (place != "goal" and reads_as_name(piece))
            ):
                what = f"task {task.id!r} refers to {piece} in {place}, and there is no task {piece.head!r}"
                faults.append(PlanFault("unknown_dependency", f"{what} ({_ESCAPE})", task.id))
        faults.extend(
            PlanFault("malformed", f"task {task.id!r}: {what} in {place}", task.id)
            for what in _broken(text, pieces, vocabulary.ids)
        )
    return references, faults


def _shape(name: str) -> str:
    return _DIGITS.sub("#", name.lower())


def _broken(text: str, pieces: Sequence[str | Reference], ids: Collection[str]) -> list[str]:
    """Expressions that begin like a reference to a task of the plan and are not one."""
    faults: list[str] = []
    if all(isinstance(piece, Reference) or "{" not in piece for piece in pieces):
        return faults
    whole = {piece.source for piece in pieces if isinstance(piece, Reference)}
    for match in _BRACE_WORD.finditer(text):
        head, listed = match.groups()
        if head is not None and head in ids:
            rest = text[match.start() :]
            if not any(rest.startswith(source) for source in whole):
                cut = rest.find("}") + 1 or len(rest)
                faults.append(f"malformed reference {rest[: min(cut, 60)]!r} (write {{{head}}} or {{{head}.name[0]}})")
        elif listed is not None and all(part.strip() in ids for part in listed.split(",")):
            faults.append(f"malformed reference {match.group()!r} (one pair of braces each: {{a}}, {{b}})")
    return faults


def _value_faults(value: Any, nesting: int) -> list[str]:
    """Why a value is not plain JSON, walking it without recursion."""
    waiting: list[tuple[str, Any, int]] = [("", value, 1)]
    faults = []
    while waiting:
        path, entry, depth = waiting.pop()
        if entry is None or isinstance(entry, bool):
            continue
        if isinstance(entry, int):
            if entry.bit_length() > _INTEGER_BITS:
                faults.append(f"{path or 'it'} is a number of more than {_INTEGER_BITS} bits")
        elif isinstance(entry, str):
            if not entry.isascii() and not _encodes(entry):
                faults.append(f"{path or 'it'} holds half of a character (a lone surrogate)")
        elif isinstance(entry, float):
            if not math.isfinite(entry):
                faults.append(f"{path or 'it'} is {entry}, which JSON cannot hold")
        elif depth > nesting:
            return [*faults, f"{_TOO_DEEP} {nesting}"]
        elif isinstance(entry, dict):
            odd = [key for key in entry if not isinstance(key, str) or not _encodes(key)]
            faults.extend(f"the key {key!r} is not text" for key in odd[:3])
            waiting.extend((f"{path}.{key}" if path else str(key), entry[key], depth + 1) for key in entry)
        elif isinstance(entry, (list, tuple)):
            waiting.extend((f"{path}[{index}]", each, depth + 1) for index, each in enumerate(entry))
        else:
            faults.append(f"{path or 'it'} is a {type(entry).__name__}, which JSON cannot hold")
    return faults


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
