"""How much time and memory does the search for near duplicates take, compared with datasketch on a part of the rows?

    python benchmarks/near_duplicates.py [--quick] [--rows 1000000]

Short rows of random words; one in ten is a copy of an earlier one with a word changed. The goal: 1,000,000 rows within
ten minutes and 4 GB on two cores.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections.abc import Iterator

from agent_forge.curation.duplicates import near_groups, shingles

THRESHOLD = 0.7
WORDS = 24


def planted(count: int) -> set[int]:
    """The numbers of the rows that are changed copies."""
    rng = random.Random(9)
    return {number for number in range(count) if number >= 100 and rng.random() < 0.1}


def rows(count: int) -> Iterator[str]:
    copies = planted(count)
    for number in range(count):
        if number in copies:
            words = list(base(number - 100))
            words[-1] = f"changed{number}"
            yield " ".join(words)
        else:
            yield " ".join(base(number))


def base(number: int) -> list[str]:
    rng = random.Random(number)
    return [f"w{rng.randrange(50_000)}" for _ in range(WORDS)]


def datasketch_seconds(count: int) -> float | None:
    """CPU seconds of the same search by datasketch, or None if it is not installed."""
    try:
        from datasketch import MinHash, MinHashLSH
    except ImportError:
        return None
    start = time.process_time()
    index = MinHashLSH(threshold=THRESHOLD, num_perm=128)
    for number, text in enumerate(rows(count)):
        sketch = MinHash(num_perm=128)
        sketch.update_batch([piece.encode() for piece in shingles(text)])
        index.query(sketch)
        index.insert(str(number), sketch)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    count = 20_000 if options.quick else options.rows
    start, cpu = time.monotonic(), time.process_time()
    for _ in rows(count):
        pass
    making = time.process_time() - cpu
    start, cpu = time.monotonic(), time.process_time()
    groups = near_groups(rows(count), threshold=THRESHOLD)
    wall, spent = time.monotonic() - start, time.process_time() - cpu - making
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    together = {row: place for place, group in enumerate(groups) for row in group}
    changed = planted(count)
    copies = {number for number in changed if number - 100 not in changed}
    hits = sum(number in together and together.get(number - 100) == together[number] for number in copies)
    print(f"{'rows':32s} {count:12,}")
    print(f"{'wall time':32s} {wall:12.1f} s      ≤ 600 at 1,000,000 rows")
    print(f"{'CPU time of the search':32s} {spent:12.1f} s")
    print(f"{'peak memory':32s} {memory:12.0f} MB     ≤ 4096")
    print(f"{'planted copies found':32s} {hits / max(1, len(copies)):12.4f}")
    part = min(count, 5_000 if options.quick else 20_000)
    peer = datasketch_seconds(part)
    if peer is not None:
        print(f"{'datasketch, CPU time by rows':32s} {peer / part * count:12.1f} s      (from {part:,} rows)")
        print(f"{'ratio to datasketch':32s} {peer / part * count / spent:12.1f} ×")


if __name__ == "__main__":
    main()
