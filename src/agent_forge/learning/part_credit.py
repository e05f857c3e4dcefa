"""Credit for the parts of a JSON answer, by executing its checker on answers that were never written.

A part is any value in an answer: a field, an item of a list, an object, or the whole. Its credit is what the answer
earns, less what it would earn with that part taken from the other answers to the same exercise, on average. That is the
counterfactual baseline of COMA (1705.08926), with the group of answers as a sample of the policy:

    credit(answer i, part p) = r(i) - mean over answers j of r(i with p of j)

The credit of the whole is GRPO's advantage. Where the reward is a sum over parts, the credit of a part is the advantage
of that part alone: whether the second field was right no longer blurs what the first one learns.

What a part changes in the parts that are written after it is not seen: the credit suits answers whose parts do not
depend on each other, as those to several questions. Where the first field decides what the others must be, one number
per answer learns faster (docs/results/reinforcement.md). Lists of different lengths are compared as wholes: their third
items need not be about the same thing, and of two lists that differ in several places each change alone earns nothing.
An object with a `working` is one part: what else it says was computed there, where nobody judges.
"""

from __future__ import annotations

import copy
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

MOST_PARTS, DEEPEST = 200, 20  # of an answer; one with more is judged as a whole
Path = tuple[str | int, ...]


class JsonPart(NamedTuple):
    """A value in a JSON text: where it is, and the characters that it spans."""

    path: Path
    start: int
    end: int


class PartCredit(NamedTuple):
    """The credit of the characters from `start` to `end`, except those of parts inside."""

    start: int
    end: int
    credit: float


def json_parts(text: str) -> list[JsonPart]:
    """Every value in a JSON text, an outer one before those inside; none where the text is not JSON, or has too many.
    What is inside an object with a `working` belongs to that.

    >>> [(part.path, '{"a": [1, "b"]}'[part.start : part.end]) for part in json_parts('{"a": [1, "b"]}')]
    [((), '{"a": [1, "b"]}'), (('a',), '[1, "b"]'), (('a', 0), '1'), (('a', 1), '"b"')]
    """
    try:
        json.loads(text)
        parts: list[JsonPart] = []
        _read(text, _next(text, 0), (), parts)
    except (ValueError, RecursionError):
        return []
    return parts if len(parts) <= MOST_PARTS and all(len(part.path) <= DEEPEST for part in parts) else []


_DECODER = json.JSONDecoder()


def _next(text: str, at: int) -> int:
    """The place of the next character that is not white space."""
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _read(text: str, at: int, path: Path, parts: list[JsonPart]) -> int:
    """Notes the value that begins at a place of valid JSON, and those inside; returns its end."""
    place, start = len(parts), at
    parts.append(JsonPart(path, start, start))
    opening = text[at]
    if opening in "{[":
        at, number, is_worked = _next(text, at + 1), 0, False
        while text[at] not in "}]":
            step: str | int = number
            if opening == "{":
                step, at = _DECODER.raw_decode(text, at)
                at = _next(text, _next(text, at) + 1)  # behind the colon
                is_worked |= step == "working"
            at = _next(text, _read(text, at, (*path, step), parts))
            number += 1
            if text[at] == ",":
                at = _next(text, at + 1)
        at += 1
        if is_worked:
            del parts[place + 1 :]
    else:
        _, at = _DECODER.raw_decode(text, at)
    parts[place] = JsonPart(path, start, at)
    return at


class PartSwap(NamedTuple):
    """A text with one part of another answer, and how many answers have that part."""

    text: str
    times: int


def part_credits(
    texts: Sequence[str],
    rewards: Sequence[float],
    earn: Callable[[Sequence[tuple[int, str]]], Sequence[float]],
    most: int = 8,
) -> list[list[PartCredit]]:
    """The credits of the parts of each answer to one exercise, outer parts first; none for a text that is not JSON.

    `earn` says what answers would earn with other texts, given as pairs of an answer's place and a text. Of each part
    the `most` frequent variants are tried.
    """
    parts = [json_parts(text) for text in texts]
    values = {place: json.loads(texts[place]) for place, own in enumerate(parts) if own}
    lengths = defaultdict[Path, set[int]](set)  # of the lists at each path
    for value in values.values():
        _measure(value, (), lengths)
    swaps = {
        (place, part.path): _swaps(value, part.path, list(values.values()), most)
        if all(len(lengths.get(part.path[:depth], ())) < 2 for depth in range(len(part.path)))
        else []
        for place, value in values.items()
        for part in parts[place][1:]
    }
    wanted = {(place, swap.text) for (place, _), tried in swaps.items() for swap in tried}
    wanted |= {(place, _dump(values[place])) for place, _ in swaps}
    order = sorted(wanted)
    earned = dict(zip(order, earn(order), strict=True))
    mean = sum(rewards) / len(rewards)
    credits: list[list[PartCredit]] = []
    for place, own in enumerate(parts):
        of_path: dict[Path, float] = {(): rewards[place] - mean}
        for part in own[1:]:
            tried = swaps[place, part.path]
            if tried:
                others = sum(swap.times * earned[place, swap.text] for swap in tried) / sum(s.times for s in tried)
                of_path[part.path] = earned[place, _dump(values[place])] - others
            else:  # no other answer has anything there, or nothing that could be compared
                of_path[part.path] = of_path[part.path[:-1]]
        credits.append([PartCredit(part.start, part.end, of_path[part.path]) for part in own])
    return credits


def _measure(value: Any, path: Path, lengths: dict[Path, set[int]]) -> None:
    """Notes the lengths of all lists in a value."""
    if isinstance(value, list):
        lengths[path].add(len(value))
    inner = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for step, each in inner:
        _measure(each, (*path, step), lengths)


def _swaps(value: Any, path: Path, values: Sequence[Any], most: int) -> list[PartSwap]:
    """A value with what each of `values`, itself among them, has at a path; none if no other has anything there."""
    variants = [variant[0] for other in values if (variant := _at(other, path)) is not None]
    if len(variants) < 2:
        return []
    by_text = {_dump(variant): variant for variant in variants}
    counts = Counter(map(_dump, variants))
    return [PartSwap(_dump(_with(value, path, by_text[text])), count) for text, count in counts.most_common(most)]


def _at(value: Any, path: Path) -> tuple[Any] | None:
    """What stands at a path; None where there is no such place."""
    for step in path:
        places: Any = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        if step not in places:
            return None
        value = value[step]
    return (value,)


def _with(value: Any, path: Path, new: Any) -> Any:
    """A value with something else at a path."""
    value = copy.deepcopy(value)
    inner = value
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = new
    return value


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def token_credits(pieces: Sequence[str], credits: Sequence[PartCredit], whole: float) -> list[float]:
    """The credit of each token, from the text that it stands for: that of the innermost part which has its first
    character, white space aside. Tokens outside the answer have that of the `whole`.

    >>> token_credits(['{"', 'a', '":', ' 1', '}', ''], [PartCredit(0, 8, 0.5), PartCredit(6, 7, 2.0)], 0.5)
    [0.5, 0.5, 0.5, 2.0, 0.5, 0.5]
    """
    length = sum(map(len, pieces))
    of_character = [whole] * (length + 1)
    for start, end, credit in credits:
        of_character[start:end] = [credit] * (end - start)
    tokens, at = [], 0
    for piece in pieces:
        blank = len(piece) - len(piece.lstrip())
        tokens.append(of_character[at + blank if blank < len(piece) else at])
        at += len(piece)
    return tokens
