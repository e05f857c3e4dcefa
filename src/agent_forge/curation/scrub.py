"""Scrubs JSONL files: streamed, in order, on several processes, atomically."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

from agent_forge.curation.lines import bad_row, open_lines, same_file, write_lines
from agent_forge.errors import DataError, UsageError
from agent_forge.pii import Match
from agent_forge.pii.replace import Scrubber, Surrogates, hint_of

# A JSON string, and the colon after it if it is a key. One character decides each step, so it takes linear time.
_STRING = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"(\s*:)?')
_BATCH_BYTES = 1 << 19
_BOM = b"\xef\xbb\xbf"
_BATCH_LINES = 2048


@dataclass(slots=True)
class ScrubReport:
    """What a scrub did. `reserved` counts those of `replaced` that belong to nobody (example.com, test cards);
    `fields` counts the strings under each requested field."""

    rows: int = 0
    rejected: int = 0
    dropped: int = 0
    changed: int = 0
    replaced: dict[str, int] = field(default_factory=dict)
    reserved: dict[str, int] = field(default_factory=dict)
    fields: dict[str, int] | None = None
    names_covered: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "fields" or value is not None}

    def add(self, other: ScrubReport) -> None:
        self.rows += other.rows
        self.rejected += other.rejected
        self.dropped += other.dropped
        self.changed += other.changed
        self.replaced = dict(sorted((Counter(self.replaced) + Counter(other.replaced)).items()))
        self.reserved = dict(sorted((Counter(self.reserved) + Counter(other.reserved)).items()))
        for name, count in (other.fields or {}).items():
            self.fields = self.fields or {}
            self.fields[name] = self.fields.get(name, 0) + count


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as a list of its members, so that a repeated key keeps both values."""


_DECODER = json.JSONDecoder(object_pairs_hook=_Pairs)


Fields = dict[str, int]  # the names of fields, and how many strings were seen under each


def leaves(value: Any, fields: Fields | None = None) -> list[tuple[str, str | None]]:
    """The strings of a parsed line that are values, in order, each with the hint of its key.

    With `fields` ("messages.content"; lists in between do not count) strings elsewhere come as ("", None); those under
    a field are counted there.

    >>> leaves(json.loads('{"phone": "5551234567", "n": [1.10, "x"]}', object_pairs_hook=_Pairs))
    [('5551234567', 'phone'), ('x', None)]
    """
    strings: list[tuple[str, str | None]] = []
    if isinstance(value, str):
        strings.append((value, None) if fields is None else ("", None))
    elif isinstance(value, list):
        _walk(value, None, "", fields, strings)
    return strings


def _walk(
    item: list[Any], hint: str | None, path: str, fields: Fields | None, strings: list[tuple[str, str | None]]
) -> None:
    if type(item) is _Pairs:
        for key, inner in item:
            kind = type(inner)
            if kind is str or kind is list or kind is _Pairs:
                below = (f"{path}.{key}" if path else key) if fields else ""
                if kind is str:
                    selected = fields is None or _is_under(below, fields)
                    strings.append((inner, hint_of(key)) if selected else ("", None))
                else:
                    _walk(inner, hint_of(key), below, fields, strings)
        return
    for inner in item:
        if type(inner) is str:
            strings.append((inner, hint) if fields is None or _is_under(path, fields) else ("", None))
        elif isinstance(inner, list):
            _walk(inner, hint, path, fields, strings)


def _is_under(path: str, fields: Fields) -> bool:
    names = [name for name in fields if path == name or path.startswith(f"{name}.")]
    for name in names:
        fields[name] += 1
    return bool(names)


def _encoded(text: str, ascii_only: bool) -> str:
    written = json.dumps(text, ensure_ascii=ascii_only)
    try:
        written.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, escaped in the input
        written = json.dumps(text)
    return written[1:-1]


def scrub_line(
    line: str, scrubber: Scrubber, fields: Fields | Iterable[str] | None = None, *, where: str = "line", number: int = 1
) -> tuple[str, list[Match]]:
    """One line of JSON without personal data, and the matches. Raises DataError if it is not JSON.

    Only the strings that change are rewritten: numbers, order, spacing and repeated keys stay as they are.

    >>> scrub_line('{"n": 1.10, "to": "jo@corp.io"}', Scrubber())[0]
    '{"n": 1.10, "to": "[EMAIL]"}'
    """
    pool: Surrogates | None = None
    all_matches: list[Match] = []
    changes: dict[int, str] = {}
    if fields is not None and not isinstance(fields, dict):
        fields = dict.fromkeys(fields, 0)
    try:
        strings = leaves(_DECODER.decode(line), fields)
    except (ValueError, RecursionError) as error:
        raise bad_row(error, number, where) from error
    for index, (text, hint) in enumerate(strings):
        matches = scrubber.find(text, hint)
        if matches:
            pool = pool or (Surrogates.beside(line) if scrubber.action == "surrogate" else Surrogates())
            changes[index], matches = scrubber.replaced(text, matches, hint, pool)
            all_matches += matches
    return (_spliced(line, changes) if changes else line), all_matches


def _spliced(line: str, changes: dict[int, str]) -> str:
    """`line` with some of its string values replaced, by their number, counted from 0."""
    parts: list[str] = []
    at = 0
    values = (token for token in _STRING.finditer(line) if not token[2])
    for index, token in enumerate(values):
        if index in changes:
            parts += (line[at : token.start(1)], _encoded(changes[index], line.isascii()))
            at = token.end(1)
    return "".join(parts) + line[at:]


@dataclass(frozen=True, slots=True)
class _Job:
    scrubber: Scrubber
    fields: tuple[str, ...] | None
    where: str
    reject: bool


def _scrub_batch(job: _Job, first: int, lines: list[bytes]) -> tuple[bytes, bytes, ScrubReport]:
    """The scrubbed lines, the rejected ones, and the counts. Raises DataError on a bad line, unless `reject`."""
    clean: list[bytes] = []
    bad: list[bytes] = []
    report = ScrubReport(fields=dict.fromkeys(job.fields, 0) if job.fields else None)
    kinds: Counter[str] = Counter()
    reserved: Counter[str] = Counter()
    for number, raw in enumerate(lines, first):
        if not raw.strip():
            clean.append(raw)
            continue
        report.rows += 1
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            written, matches = scrub_line(line, job.scrubber, report.fields, where=job.where, number=number)
        except (UnicodeDecodeError, DataError) as error:
            if not job.reject:
                raise _bad_line(error, number, job.where) from error
            bad.append(raw if raw.endswith(b"\n") else raw + b"\n")
            continue
        if not matches:
            clean.append(raw.removeprefix(_BOM) if number == 1 else raw)
            continue
        kinds.update(match.type for match in matches)
        reserved.update(match.type for match in matches if match.reserved)
        if job.scrubber.action == "drop":
            report.dropped += 1
            continue
        report.changed += 1
        clean.append(written.encode("utf-8", "surrogatepass"))
    report.rejected, report.replaced, report.reserved = len(bad), dict(kinds), dict(reserved)
    return b"".join(clean), b"".join(bad), report


def _bad_line(error: Exception, number: int, where: str) -> DataError:
    what = error.what if isinstance(error, DataError) else f"line {number} is not UTF-8"
    return DataError(what, where=where, fix="Repair the line, or add --rejected FILE for bad lines")


def _batches(lines: Iterable[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    batch: list[bytes] = []
    size, first, number = 0, 1, 0
    for number, line in enumerate(lines, 1):
        batch.append(line)
        size += len(line)
        if size >= _BATCH_BYTES or len(batch) >= _BATCH_LINES:
            yield first, batch
            batch, size, first = [], 0, number + 1
    if batch:
        yield first, batch


def scrub_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    scrubber: Scrubber | None = None,
    fields: Iterable[str] | None = None,
    reject: str | os.PathLike[str] | None = None,
    workers: int = 1,
    on_batch: Callable[[ScrubReport], None] | None = None,
) -> ScrubReport:
    """Scrubs the JSONL file `source` into `target`; suffixes .gz and .zst are (de)compressed.

    The source is never changed. The target appears when everything is done, and not at all if a line is bad (the
    DataError has its number), unless `reject` names a file for such lines. Memory stays flat at any size. `on_batch`
    gets the counts so far; what it raises ends the run.
    """
    if same_file(source, target) or (reject is not None and same_file(source, reject)):
        raise UsageError("the output would overwrite the input", where=str(source), fix="Name another file")
    if reject is not None and Path(reject).resolve() == Path(target).resolve():
        raise UsageError("the output and the rejected lines cannot share a file", where=str(target))
    job = _Job(scrubber or Scrubber(), tuple(fields) if fields else None, str(source), reject is not None)
    report = ScrubReport(names_covered=job.scrubber.names is not None)
    with ExitStack() as stack:
        lines = stack.enter_context(open_lines(source))
        out = stack.enter_context(write_lines(target))
        rejects: IO[bytes] | None = stack.enter_context(write_lines(reject)) if reject is not None else None
        for clean, bad, counts in _results(job, _batches(lines), workers):
            out.write(clean)
            if rejects is not None and bad:
                rejects.write(bad)
            report.add(counts)
            if on_batch is not None:
                on_batch(report)
    return report


def _results(
    job: _Job, batches: Iterator[tuple[int, list[bytes]]], workers: int
) -> Iterator[tuple[bytes, bytes, ScrubReport]]:
    """The results of the batches in order, with no more batches in memory than the workers need."""
    if workers <= 1 or job.scrubber.names is not None:
        for first, lines in batches:
            yield _scrub_batch(job, first, lines)
        return
    context = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_leave_signals_to_the_parent)
    pending: deque[Future[tuple[bytes, bytes, ScrubReport]]] = deque()
    try:
        for first, lines in islice(batches, workers * 2):
            pending.append(pool.submit(_scrub_batch, job, first, lines))
        while pending:
            yield pending.popleft().result()
            for first, lines in islice(batches, 1):
                pending.append(pool.submit(_scrub_batch, job, first, lines))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _leave_signals_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def default_workers(source: str | os.PathLike[str]) -> int:
    """One process for small files, else as many as there are cores."""
    return 1 if Path(source).stat().st_size < 8 * _BATCH_BYTES else os.cpu_count() or 1
