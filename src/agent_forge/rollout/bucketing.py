"""Who is in: a fixed place in [0, 1) for every experiment and unit.

A unit is in at a share if its bucket lies below it, so whoever is in at 10 % stays in at 50 %. The place is the same in
every process, on every machine and in every version of Python (the built-in `hash` is salted per process), and the
places of one unit in two experiments have nothing to do with each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

_STEP = 2.0**-53  # the spacing of the floats in [0.5, 1)


def bucket(experiment: str, unit: str | int) -> float:
    """The place of a unit in an experiment: a float in [0, 1).

    It is the first 53 bits of the SHA-256 of the experiment, preceded by its length, and the unit. This never changes:
    another function would give every user another arm.

    >>> bucket("checkout", "user-1")
    0.8564019841287257
    >>> bucket("checkout", 7) == bucket("checkout", "7")
    True
    """
    text = f"{len(experiment)}:{experiment}:{unit}"  # the length keeps ("a", "b:c") and ("a:b", "c") apart
    return (int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest()[:7], "big") >> 3) * _STEP


def choose_variant(experiment: str, unit: str | int, weights: Mapping[str, float]) -> str:
    """The variant of a unit. `weights` are taken in their order and need not add up to 1.

    >>> choose_variant("checkout", "user-1", {"control": 1, "short": 1, "long": 2})
    'long'
    """
    place = bucket(experiment, unit) * sum(weights.values())
    chosen = ""
    for variant, weight in weights.items():
        if weight > 0:
            chosen = variant
            place -= weight
            if place < 0:
                break
    return chosen
