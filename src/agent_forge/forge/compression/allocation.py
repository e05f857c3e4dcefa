"""Who gets the bytes: one option for every tensor, so that the measured loss is least within a byte budget.

Each option has a size and the loss that it was measured to add on its own. With a price on bytes
every tensor chooses for itself (Lagrange); the price is found by bisection, and what is left of the
budget then goes, upgrade by upgrade, where it buys the most. Losses of different tensors are taken
to add up, which is checked afterwards on the whole model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Option:
    """One way to store a tensor: its bytes, and the loss (nats per token) that it adds on its own."""

    codec: str
    bytes: int
    loss: float
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        settings = ", ".join(f"{name}={value:g}" for name, value in self.settings.items())
        return f"{self.codec}({settings})"


@dataclass(frozen=True)
class Allocation:
    """The chosen option of every tensor, and the price at which they were chosen: loss saved per
    additional byte."""

    chosen: Mapping[str, Option]
    price: float

    @property
    def bytes(self) -> int:
        return sum(option.bytes for option in self.chosen.values())

    @property
    def loss(self) -> float:
        return sum(option.loss for option in self.chosen.values())


def worthwhile(options: Sequence[Option]) -> list[Option]:
    """The lower convex hull: options that are the best at some price, smallest first. No others can be chosen.

    >>> [o.bytes for o in worthwhile([Option("a", 1, 9.0), Option("b", 2, 8.9), Option("c", 3, 1.0)])]
    [1, 3]
    """
    hull: list[Option] = []
    for option in sorted(options, key=lambda o: (o.bytes, o.loss)):
        if hull and option.loss >= hull[-1].loss:
            continue
        while len(hull) >= 2 and _slope(hull[-2], hull[-1]) < _slope(hull[-1], option):
            hull.pop()
        hull.append(option)
    return hull


def _slope(small: Option, large: Option) -> float:
    """Loss saved per byte."""
    return (small.loss - large.loss) / max(1, large.bytes - small.bytes)


def at_price(options: Mapping[str, Sequence[Option]], price: float) -> Allocation:
    """What every tensor chooses when a byte costs `price`."""
    return Allocation(
        {name: min(of, key=lambda o: (o.loss + price * o.bytes, o.bytes)) for name, of in options.items()}, price
    )


def allocate(options: Mapping[str, Sequence[Option]], budget: int) -> Allocation | None:
    """The least loss within the budget, or None where not even the smallest options fit."""
    hulls = {name: worthwhile(of) for name, of in options.items()}
    if sum(of[0].bytes for of in hulls.values()) > budget:
        return None
    low, high = 0.0, 1.0
    while at_price(hulls, high).bytes > budget:
        high *= 4
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if at_price(hulls, middle).bytes <= budget else (middle, high)
    return _filled(hulls, at_price(hulls, high), budget)


def _filled(hulls: Mapping[str, Sequence[Option]], start: Allocation, budget: int) -> Allocation:
    """Spends what is left on the upgrades that save the most per byte."""
    chosen, left = dict(start.chosen), budget - start.bytes
    while True:
        upgrades = [
            (_slope(chosen[name], option), name, option)
            for name, of in hulls.items()
            for option in of
            if 0 < option.bytes - chosen[name].bytes <= left and option.loss < chosen[name].loss
        ]
        if not upgrades:
            return Allocation(chosen, start.price)
        _, name, option = max(upgrades, key=lambda upgrade: (upgrade[0], upgrade[1]))
        left -= option.bytes - chosen[name].bytes
        chosen[name] = option
