"""Rows that say the same thing: exactly, nearly, and on both sides of a split."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any
from zlib import crc32

from agent_forge.curation.lines import Row, content_of, open_lines, read_rows, same_file, words_of, write_lines
from agent_forge.errors import MissingExtraError, UsageError

_SAMPLES = 5


@dataclass(slots=True)
class Group:
    """Rows (numbered from 0) that duplicate each other; `sample` is the beginning of the first."""

    rows: list[int]
    sample: str


@dataclass(slots=True)
class DuplicateReport:
    """`duplicates` counts the rows that could go: all but the first of each group."""

    kind: str
    rows: int
    groups: int
    duplicates: int
    largest: list[Group] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.duplicates / self.rows if self.rows else 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"share": self.share}


def normalised(text: str) -> str:
    """Text without letter case, punctuation and extra spaces, but with operators (`words_of`).

    >>> normalised("Hello,  World!") == normalised("hello world")
    True
    """
    return " ".join(words_of(text))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()


def exact_groups(texts: Iterable[str]) -> list[list[int]]:
    """Groups of rows whose normalised text is the same, each in order, larger groups first."""
    first: dict[bytes, int] = {}
    groups: dict[int, list[int]] = defaultdict(list)
    for row, text in enumerate(texts):
        start = first.setdefault(_digest(normalised(text)), row)
        if start != row:
            groups[start].append(row)
    return sorted(([start, *rest] for start, rest in groups.items()), key=lambda rows: (-len(rows), rows[0]))


def shingles(text: str, size: int = 3) -> list[str]:
    """Runs of `size` words; a shorter text is one run."""
    words = words_of(text)
    return [" ".join(words[at : at + size]) for at in range(max(1, len(words) - size + 1))]


@dataclass(slots=True)
class _Forest:
    """Sets that merge (union-find with path halving), as one array of numbers."""

    parent: array[int]

    def root(self, row: int) -> int:
        parent = self.parent
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    def join(self, left: int, right: int) -> None:
        left, right = self.root(left), self.root(right)
        if left != right:
            self.parent[max(left, right)] = min(left, right)

    def groups(self) -> list[list[int]]:
        """The sets of more than one, each in order, larger ones first."""
        members: dict[int, list[int]] = defaultdict(list)
        for row in range(len(self.parent)):
            root = self.root(row)
            if root != row:
                members[root].append(row)
        return sorted(([root, *rest] for root, rest in members.items()), key=lambda rows: (-len(rows), rows[0]))


def near_groups(
    texts: Iterable[str], *, threshold: float = 0.8, permutations: int = 128, seed: int = 42
) -> list[list[int]]:
    """Groups of rows whose sets of three-word runs overlap by `threshold` (estimated Jaccard similarity) or more.

    MinHash signatures of `rensa`; rows with an equal band of their signatures are candidates (locality-sensitive
    hashing), and candidates are compared on the whole signature. Memory: four bytes per permutation and
    row. Raises MissingExtraError without rensa.
    """
    if not 0 < threshold <= 1:
        raise UsageError(f"the similarity cannot be {threshold}", fix="Use a number above 0 and up to 1")
    signatures = _signatures(texts, permutations, seed)
    count = len(signatures) // permutations
    forest = _Forest(array("q", range(count)))
    bands, width = _bands(threshold, permutations)
    for band in range(bands):
        for left, right in _candidates(signatures, permutations, band * width, width):
            if (
                forest.root(left) != forest.root(right)
                and _similarity(signatures, left, right, permutations) >= threshold
            ):
                forest.join(left, right)
    return forest.groups()


def _signatures(texts: Iterable[str], permutations: int, seed: int) -> array[int]:
    """`permutations` numbers per text, end to end."""
    try:
        import rensa  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError as error:
        raise MissingExtraError("the search for near duplicates", "data") from error
    signatures = array("I")
    source = iter(texts)
    while batch := [shingles(text) for text in islice(source, 4096)]:
        for digest in rensa.RMinHash.digests_from_token_sets(batch, num_perm=permutations, seed=seed):
            signatures.extend(digest)
    return signatures


def _candidates(signatures: array[int], size: int, start: int, width: int) -> Iterator[tuple[int, int]]:
    """Among the rows with the same band, pairs of neighbours and pairs with the first."""
    raw, item = memoryview(signatures).cast("B"), signatures.itemsize
    step, left, right = size * item, start * item, (start + width) * item
    keys = [crc32(raw[row + left : row + right]) for row in range(0, len(raw), step)]  # equal by chance: compared later
    first = last = -1
    for row in sorted(range(len(keys)), key=keys.__getitem__):
        if last >= 0 and keys[row] == keys[last]:
            yield first, row
            if last != first:
                yield last, row
        else:
            first = row
        last = row


def _bands(threshold: float, permutations: int) -> tuple[int, int]:
    """Bands and their width: the S-curve 1-(1-s^r)^b rises somewhat below the threshold, so that few pairs are missed.

    (Leskovec, Rajaraman, Ullman: Mining of Massive Datasets, section 3.4.)
    """
    widths = [width for width in range(1, permutations + 1) if permutations % width == 0]
    aim = threshold * 0.85
    width = min(widths, key=lambda r: abs((r / permutations) ** (1 / r) - aim))
    return permutations // width, width


def _similarity(signatures: array[int], left: int, right: int, size: int) -> float:
    mine, other = signatures[left * size : (left + 1) * size], signatures[right * size : (right + 1) * size]
    return sum(map(int.__eq__, mine, other)) / size


def duplicate_report(kind: str, texts: Sequence[str], groups: list[list[int]]) -> DuplicateReport:
    """Counts and a few samples, never the whole list."""
    largest = [Group(rows[:10], texts[rows[0]][:160]) for rows in groups[:_SAMPLES]]
    return DuplicateReport(kind, len(texts), len(groups), sum(len(rows) - 1 for rows in groups), largest)


def find_duplicates(
    rows: Iterable[Row], *, near: bool = True, threshold: float = 0.8, fields: tuple[str, ...] | None = None
) -> tuple[list[list[int]], DuplicateReport]:
    """The groups of duplicate rows, and their report.

    >>> find_duplicates([{"task": "Add 1 and 2"}, {"task": "add 1 and 2."}], near=False)[1].duplicates
    1
    """
    texts = [content_of(row, fields) for row in rows]
    groups = near_groups(texts, threshold=threshold) if near else exact_groups(texts)
    return groups, duplicate_report("near" if near else "exact", texts, groups)


@dataclass(slots=True)
class LeakageReport:
    """Rows of the test file that leak into the training file: the same text, or many consecutive words in common."""

    train_rows: int
    test_rows: int
    exact: int
    overlapping: int
    samples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def share(self) -> float:
        return (self.exact + self.overlapping) / self.test_rows if self.test_rows else 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"share": self.share}


def find_leakage(
    train: Iterable[Row], test: Iterable[Row], *, run: int = 13, fields: tuple[str, ...] | None = None
) -> LeakageReport:
    """Test rows whose text is in `train`, or that share `run` consecutive words with it (13, after Brown et al. 2020).

    >>> find_leakage([{"q": "How many apples?"}], [{"q": "how many apples"}, {"q": "Why?"}]).exact
    1
    """
    texts: dict[bytes, int] = {}  # digest: first row of `train` with it
    ngrams: dict[bytes, int] = {}
    report = LeakageReport(0, 0, 0, 0)
    for row, item in enumerate(train):
        report.train_rows = row + 1
        text = normalised(content_of(item, fields))
        texts.setdefault(_digest(text), row)
        for ngram in _ngrams(text, run):
            ngrams.setdefault(ngram, row)
    for row, item in enumerate(test):
        report.test_rows = row + 1
        content = content_of(item, fields)
        text = normalised(content)
        kind, source = "exact", texts.get(_digest(text))
        if source is None:
            kind = "overlapping"
            source = next((ngrams[ngram] for ngram in _ngrams(text, run) if ngram in ngrams), None)
        if source is not None:
            setattr(report, kind, getattr(report, kind) + 1)
            if len(report.samples) < _SAMPLES:
                report.samples.append({"kind": kind, "test_row": row, "train_row": source, "text": content[:160]})
    return report


def _ngrams(text: str, size: int) -> Iterator[bytes]:
    words = text.split()
    for at in range(len(words) - size + 1):
        yield _digest(" ".join(words[at : at + size]))


def deduplicate_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    near: bool = True,
    threshold: float = 0.8,
    fields: tuple[str, ...] | None = None,
) -> DuplicateReport:
    """Writes the first row of each group of duplicates, and every row that has none, in order and byte for byte."""
    if same_file(source, target):
        raise UsageError("the output would overwrite the input", where=str(source), fix="Name another file")
    groups, report = find_duplicates(read_rows(source), near=near, threshold=threshold, fields=fields)
    repeats = {row for rows in groups for row in rows[1:]}
    with open_lines(source) as lines, write_lines(target) as file:
        for number, line in enumerate(line for line in lines if line.strip()):
            if number not in repeats:
                file.write(line if line.endswith(b"\n") else line + b"\n")
    return report


def diversity_order(texts: Sequence[str]) -> list[int]:
    """Rows from the most to the least informative: each next one adds the most new words, weighted by rarity.

    A lazy greedy cover: a row's gain only falls as others are taken, so a stale gain is an upper bound.
    """
    import heapq

    words = [frozenset(words_of(text)) for text in texts]
    counts: Counter[str] = Counter(word for row in words for word in row)
    weight = {word: 1.0 / count for word, count in counts.items()}
    covered: Counter[str] = Counter()

    def gain(row: int) -> float:
        return sum(weight[word] / (1 + covered[word]) for word in words[row])

    heap = [(-gain(row), row) for row in range(len(texts))]
    heapq.heapify(heap)
    order: list[int] = []
    while heap:
        _, row = heapq.heappop(heap)
        fresh = -gain(row)
        if heap and fresh > heap[0][0] + 1e-12:
            heapq.heappush(heap, (fresh, row))
            continue
        order.append(row)
        covered.update(words[row])
    return order
