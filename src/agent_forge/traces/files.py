"""Trace files: OTLP/JSON as collectors and exporters write it, our own JSON lines, and two older forms (`records`)."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import IO, Any, TypeVar

from agent_forge.errors import AgentForgeError, DataError, TraceError
from agent_forge.traces.otlp import read_request, read_rows
from agent_forge.traces.records import is_record, read_record
from agent_forge.traces.rows import Row, to_rows
from agent_forge.traces.span import Span
from agent_forge.traces.store import BATCH, Store
from agent_forge.traces.values import parse, restore

MOST_UNPACKED = 2**30  # bytes of a compressed file when unpacked

T = TypeVar("T")


def read_file(path: str | Path) -> Iterator[Span]:
    """The spans of a file: one OTLP request, a request per line, our own JSON lines, trajectory records, trace logs, or
    a JSON array of any of them, gzipped or not (whatever its name).

    Raises DataError, naming the line, for anything else; it may have yielded spans by then.
    """
    with opened(path) as file:
        yield from _read(file, str(path), _spans_of)


def import_file(store: Store, path: str | Path, *, each: Callable[[int], object] | None = None) -> tuple[int, int]:
    """Adds the spans of a file to a store. Returns the number of spans in the file and the number of new ones.

    The file is read twice, so that a fault in its last line shows before the first span is stored. Raises DataError.
    """
    with opened(path) as file:
        count = sum(1 for _ in _read(file, str(path), _rows_of))
        file.seek(0)
        rows = _read(file, str(path), _rows_of)
        return count, store.add_batches(iter(lambda: list(islice(rows, BATCH)), []), each=each)


@contextmanager
def opened(path: str | Path, unreadable: type[AgentForgeError] = DataError) -> Iterator[IO[bytes]]:
    """A trace file that can be read more than once: a gzipped one, or a pipe, is copied first.

    Raises `unreadable` if it cannot be read, DataError if it is damaged or unpacks to more than MOST_UNPACKED.
    """
    try:
        with Path(path).open("rb") as file:
            packed = file.peek(2)[:2] == b"\x1f\x8b"
            if not packed and file.seekable():
                yield file
                return
            with TemporaryFile() as copy:
                if packed:
                    _unpack(file, copy, str(path))
                else:
                    copyfileobj(file, copy)
                copy.seek(0)
                yield copy
    except OSError as error:
        raise unreadable(f"cannot be read: {error.strerror or error}", where=str(path)) from error


def _unpack(file: IO[bytes], copy: IO[bytes], where: str) -> None:
    size, unpacked = 0, gzip.GzipFile(fileobj=file)
    try:
        while block := unpacked.read(1 << 20):
            size += len(block)
            if size > MOST_UNPACKED:  # a few kilobytes can unpack to gigabytes
                what = f"unpacks to more than {MOST_UNPACKED / 2**30:g} GiB"
                raise DataError(what, where=where, fix="If you trust it, unpack it yourself and use that file")
            copy.write(block)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"the compressed file is damaged: {error}", where=where) from error


def _read(file: IO[bytes], path: str, read: Callable[[Any], list[T]]) -> Iterator[T]:
    """What `read` makes of the requests and spans in a file."""
    for number, data in _documents(file, path):
        where = f"{path}:{number}" if number else path
        try:
            document = parse(data)
            if _is_ours(document[0] if isinstance(document, list) and document else document):
                document = json.loads(data)  # `parse` may round integers beyond 64 bits
        except ValueError as error:
            raise DataError(f"is not JSON: {error}", where=where) from error
        yield from _read_document(document, where, read)


def _read_document(document: Any, where: str, read: Callable[[Any], list[T]]) -> Iterator[T]:
    if isinstance(document, list):
        if not document:
            raise DataError("is an empty list", where=where, fix="It must hold an OTLP trace request or spans")
        for number, item in enumerate(document):
            yield from _read_document(item, f"{where}[{number}]", read)
        return
    try:
        yield from read(document)
    except TraceError as error:
        place = f"{where}: {error.where}" if error.where else where
        raise DataError(error.what, where=place, fix=error.fix) from error


def _spans_of(document: Any) -> list[Span]:
    if is_record(document):
        return read_record(document)
    return [Span.from_dict(restore(document))] if _is_ours(document) else read_request(document)


def _rows_of(document: Any) -> list[Row]:
    return to_rows(_spans_of(document)) if _is_ours(document) or is_record(document) else read_rows(document)


def _is_ours(document: Any) -> bool:
    return isinstance(document, dict) and "trace_id" in document


def _documents(file: IO[bytes], where: str) -> Iterator[tuple[int, bytes]]:
    """The unparsed JSON documents of a file with their line numbers; 0 if the file is one document."""
    lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
    number, first = next(lines, (0, b""))
    if not first:
        raise DataError("is empty", where=where, fix="It must hold an OTLP trace request or spans")
    try:
        parse(first)
    except ValueError:  # then the file must be one document of several lines
        file.seek(0)
        yield 0, file.read()
        return
    yield number, first
    yield from lines
