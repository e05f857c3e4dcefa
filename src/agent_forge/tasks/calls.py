"""Are these the right calls? Compared without regard to order, case and punctuation, references by what they refer to.

Calls are `{"tool", "args"}`; a reference to an earlier result is `{"ref": n, "field": f}`, call n counted from 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_LOOSE = re.compile(r"[\s,./\-_*^'\"’?!;:()]+")

Call = Mapping[str, Any]


@dataclass(frozen=True)
class CallScore:
    """How near a plan comes: `right` is all of it, the F1s are of tools, of arguments, and of edges between calls."""

    right: bool
    tools: float
    arguments: float
    edges: float


def score_calls(expected: Sequence[Call], actual: Sequence[Call]) -> CallScore:
    """Compares two plans.

    >>> gold = [{"tool": "find", "args": {"city": "Oslo"}}, {"tool": "book", "args": {"id": {"ref": 1, "field": "id"}}}]
    >>> score_calls(gold, gold).right, score_calls(gold, gold[:1]).tools
    (True, 0.6666666666666666)
    """
    wanted, written = expanded(expected), expanded(actual)
    return CallScore(
        sorted(map(repr, wanted)) == sorted(map(repr, written)),
        f1([call[0] for call in wanted], [call[0] for call in written]),
        f1(_arguments(wanted), _arguments(written)),
        f1(_edges(expected), _edges(actual)),
    )


def expanded(calls: Sequence[Call]) -> list[tuple[Any, ...]]:
    """Each call as a value of its own: (tool, arguments), every reference replaced by the call that it refers to."""
    result: list[tuple[Any, ...]] = []
    for call in calls:
        args = tuple(sorted((name, _plain(value, result)) for name, value in call["args"].items()))
        waits = tuple(sorted(repr(result[n - 1]) for n in call.get("after") or () if 0 < n <= len(result)))
        result.append((call["tool"], args, waits))
    return result


def _plain(value: Any, earlier: Sequence[tuple[Any, ...]]) -> Any:
    if isinstance(value, Mapping) and "ref" in value and set(value) <= {"ref", "field"}:
        call = earlier[value["ref"] - 1] if 0 < value["ref"] <= len(earlier) else None
        return ("ref", repr(call), value.get("field"))
    if isinstance(value, Mapping):
        return ("object", tuple(sorted((name, repr(_plain(each, earlier))) for name, each in value.items())))
    if isinstance(value, (list, tuple)):
        return ("list", tuple(repr(_plain(each, earlier)) for each in value))
    return loose(value)


def loose(value: Any) -> str:
    """A value without case, punctuation and the difference between 5, 5.0 and "5".

    >>> loose("San Francisco, CA") == loose("san francisco ca"), loose(5.0) == loose("5"), loose(True)
    (True, True, 'true')
    """
    if isinstance(value, bool):
        return str(value).lower()
    try:
        number = float(value)
        return str(int(number)) if number == int(number) else str(number)
    except (TypeError, ValueError, OverflowError):
        return _LOOSE.sub(" ", str(value)).strip().lower()


def _arguments(calls: Sequence[tuple[Any, ...]]) -> list[str]:
    return [repr((call[0], name, value)) for call in calls for name, value in call[1]]


def _edges(calls: Sequence[Call]) -> list[tuple[str, str]]:
    edges = []
    for call in calls:
        earlier = {*(call.get("after") or ()), *(each["ref"] for each in _references(call["args"]))}
        edges += [(calls[n - 1]["tool"], call["tool"]) for n in sorted(earlier) if 0 < n <= len(calls)]
    return edges


def _references(value: Any) -> list[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        if "ref" in value and set(value) <= {"ref", "field"}:
            return [value]
        return [each for inner in value.values() for each in _references(inner)]
    if isinstance(value, (list, tuple)):
        return [each for inner in value for each in _references(inner)]
    return []


def f1(expected: Sequence[Any], actual: Sequence[Any]) -> float:
    """The F1 of two bags; two empty ones agree.

    >>> f1(["a", "b"], ["a"]), f1([], [])
    (0.6666666666666666, 1.0)
    """
    if not expected and not actual:
        return 1.0
    rest = list(expected)
    hits = 0
    for each in actual:
        if each in rest:
            rest.remove(each)
            hits += 1
    return 2 * hits / (len(expected) + len(actual))


def accepted_calls(answers: Sequence[Mapping[str, Mapping[str, Sequence[Any]]]], actual: Sequence[Call]) -> bool:
    """Whether calls are among those that BFCL accepts: for each expected call the right values of every argument,
    an empty string among them where it may be left out; any order. BFCL itself takes the first call that fits an
    answer; here a call gives way where another order fits them all."""
    wanted = [next(iter(answer.items())) for answer in answers]
    fitting = [
        [
            place
            for place, (tool, options) in enumerate(wanted)
            if tool == call["tool"] and _accepted(options, call["args"])
        ]
        for call in actual
    ]
    taken: dict[int, int] = {}  # answer: call
    return len(answers) == len(actual) and all(_paired(call, fitting, taken, set()) for call in range(len(actual)))


def _paired(call: int, fitting: Sequence[Sequence[int]], taken: dict[int, int], tried: set[int]) -> bool:
    """Gives a call one of the answers it fits, moving others to other answers if need be (Kuhn's algorithm)."""
    for answer in fitting[call]:
        if answer not in tried:
            tried.add(answer)
            if answer not in taken or _paired(taken[answer], fitting, taken, tried):
                taken[answer] = call
                return True
    return False


def _accepted(options: Mapping[str, Sequence[Any]], args: Mapping[str, Any]) -> bool:
    if any(name not in options for name in args):
        return False
    return all(
        any(_same(option, args[name]) for option in values) if name in args else "" in values
        for name, values in options.items()
    )


def _same(option: Any, value: Any) -> bool:
    """Whether a value is an accepted one; inside an accepted object every field again has a list of right values."""
    if isinstance(option, Mapping):
        return isinstance(value, Mapping) and _accepted(
            {k: v if isinstance(v, list) else [v] for k, v in option.items()}, value
        )
    if isinstance(option, (list, tuple)):
        return isinstance(value, (list, tuple)) and len(option) == len(value) and all(map(_same, option, value))
    if isinstance(value, (list, Mapping)) or isinstance(option, bool) != isinstance(value, bool):
        return False
    if isinstance(option, str) != isinstance(value, str):
        return False
    return (
        re.sub(r"[ ,./\-_*^]", "", str(option)).lower().replace("'", '"')
        == re.sub(r"[ ,./\-_*^]", "", str(value)).lower().replace("'", '"')
        if isinstance(option, str)
        else option == value
    )
