"""Random traces for the tests of `traces`, and the shortest way to write one down by hand."""

from __future__ import annotations

import random

from agent_forge.traces.span import Span

TRACE = "1" * 32
SECOND = 10**9


def sid(name: object) -> str:
    """A span id that shows its name: the tests read better in letters."""
    return f"{name!s:0>16}"


def make(name, start, end, parent=None, links=(), kind="tool", status="ok", **fields) -> Span:
    return Span(
        TRACE,
        sid(name),
        str(name),
        kind=kind,
        parent_id=None if parent is None else sid(parent),
        start_ns=start * SECOND,
        end_ns=None if end is None else end * SECOND,
        status=status,
        links=[(TRACE, sid(link)) for link in links],
        **fields,
    )


def random_trace(seed: int, size: int = 8) -> list[Span]:
    """A random forest of spans with random times and links that point back in time (so they form no circle)."""
    rng = random.Random(seed)
    parents: list[int | None] = [None]
    for number in range(1, rng.randint(2, size)):
        parents.append(rng.choice([None, *range(number)]))
    times: dict[int, tuple[int, int]] = {}
    for number in reversed(range(len(parents))):
        inside = [times[child] for child, parent in enumerate(parents) if parent == number]
        begin = rng.randint(0, 20)
        times[number] = (
            (min(start for start, _ in inside) - rng.randint(0, 2), max(end for _, end in inside) + rng.randint(0, 2))
            if inside
            else (begin, begin + rng.randint(1, 6))
        )
    spans = [
        make(number, *times[number], parent=parents[number], kind=rng.choice(["run", "task", "task", "tool"]))
        for number in range(len(parents))
    ]
    wanted = rng.choice([0, 0, 1, 3, 6])
    for _ in range(wanted):
        a, b = rng.sample(range(len(spans)), 2) if len(spans) > 1 else (0, 0)
        if a != b and times[a][1] <= times[b][0]:
            spans[b].links.append((TRACE, sid(a)))
    rng.shuffle(spans)
    return spans
