"""What was measured is kept, and the standard error of a difference over exercises and seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from agent_forge.files import atomic_write


def paired_error(differences: np.ndarray) -> float:
    """The standard error of a mean difference [S, N]: exercises and seeds are both samples, and their variances add.
    One seed says nothing about the second."""
    seeds, items = differences.shape
    over_items = differences.mean(0).var(ddof=1) / items
    over_seeds = differences.mean(1).var(ddof=1) / seeds if seeds > 1 else 0.0
    return float(math.sqrt(over_items + over_seeds))


def kept(file: Path, compute: Callable[[], Any]) -> Any:
    """What an earlier process computed, from its file; else computed and written there, as JSON."""
    if file.is_file():
        return json.loads(file.read_text(encoding="utf-8"))
    value = compute()
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as handle:
        json.dump(value, handle)
    return value
