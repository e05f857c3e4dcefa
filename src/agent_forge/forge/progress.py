"""Progress of long work, by one callback: `tell(stage="trials", done=12, total=211)`.

A call with `done` and `total` says how far a stage is. A call without them carries the figures that
were measured at the end of a stage. Who shows them (a terminal, plain lines, the dashboard) decides
what to make of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
Tell = Callable[..., None]
EVERY_S = 1.0  # between two reports of one stage


def silent(**_: Any) -> None:
    """Tells nobody."""


def training_figures(record: Mapping[str, Any]) -> str:
    """Loss and speed of a logged training step.

    >>> training_figures({"step": 30, "loss": 2.5, "tokens_per_s": 1000.0, "mfu": 0.25})
    'loss 2.500, 1,000 tokens/s, MFU 25.0%'
    """
    parts = [f"loss {record['loss']:.3f}"]
    if record.get("tokens_per_s"):
        parts.append(f"{record['tokens_per_s']:,.0f} tokens/s")
    if record.get("mfu") is not None:
        parts.append(f"MFU {record['mfu']:.1%}")
    return ", ".join(parts)


def reporter(stage: str, total: int, tell: Tell) -> Callable[[int], None]:
    """A function that reports how many of `total` are done: the first time, about once per second,
    and the last time."""
    last = -math.inf

    def report(done: int) -> None:
        nonlocal last
        if done == total or time.monotonic() - last >= EVERY_S:
            last = time.monotonic()
            tell(stage=stage, done=done, total=total)

    return report


def track(items: Collection[T], stage: str, tell: Tell) -> Iterator[T]:
    """Yields the items and reports how many are done.

    >>> [letter for letter in track("ab", "read", lambda **fields: print(fields))]
    {'stage': 'read', 'done': 0, 'total': 2}
    {'stage': 'read', 'done': 2, 'total': 2}
    ['a', 'b']
    """
    report = reporter(stage, len(items), tell)
    report(0)
    for done, item in enumerate(items, 1):
        yield item
        report(done)
