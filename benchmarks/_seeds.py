"""As many seeds as fit into a time limit, with the figures so far after each."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

BEGAN = time.monotonic()  # when the script was loaded


def elapsed() -> float:
    return time.monotonic() - BEGAN


def fast_folder(least: float = 24e9) -> str | None:
    """Memory, where there is enough for some training checkpoints of 2 GB: writing them to a disk takes minutes."""
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() and shutil.disk_usage(shared).free >= least else None


def seeds_that_fit(most: int, seconds: float, *, at_once: bool = False) -> Iterator[int]:
    """1, 2, … `most`, as long as another seed, which takes as long as the last one did, ends within `seconds`.

    With `at_once` all seeds after the first are one step, for work that has to be set up again for every step.
    """
    done, lasted = 0, 0.0
    while done < most:
        fitting = most - done if not lasted else int((seconds - elapsed()) / lasted)
        if fitting < 1:
            print(f"no time for seed {done + 1}: {elapsed():.0f} of {seconds:.0f} s are over", flush=True)
            return
        more = min(most - done, fitting) if at_once and done else 1
        begun = elapsed()
        yield done + more
        lasted = (elapsed() - begun) / more
        done += more
