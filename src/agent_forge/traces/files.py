"""Trace files: OTLP/JSON as collectors and exporters write it, and our own JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from agent_forge.errors import DataError, TraceError
from agent_forge.traces.compiled import no_collection
from agent_forge.traces.otlp import read_request
from agent_forge.traces.otlp_native import json_reader
from agent_forge.traces.span import Span
from agent_forge.traces.store import Store
from agent_forge.traces.values import restore


def read_file(path: str | Path, *, whole: bool = True) -> Iterator[Span]:
    """The spans of a file: one OTLP request, a request a line, or our own JSON lines (told apart by looking).

    Raises DataError for a file that cannot be read as one of them, naming the line; it may have given spans by then.
    """
    path = Path(path)
    quick = None if whole else json_reader()
    for number, data in _documents(path):
        where = f"{path}:{number}" if number else str(path)
        found = None if quick is None else quick(data)
        yield from _spans(_parsed(data, where), where, whole) if found is None else found


def _spans(document: Any, where: str, whole: bool) -> list[Span]:
    try:
        return [Span.from_dict(restore(document))] if _is_ours(document) else read_request(document, whole=whole)
    except TraceError as error:
        place = f"{where}: {error.where}" if error.where else where
        raise DataError(error.what, where=place, fix=error.fix) from error


def import_file(store: Store, path: str | Path, *, each: Callable[[int], object] | None = None) -> tuple[int, int]:
    """Adds the spans of a file to a store. Returns how many it holds and how many of them were new.

    The file is read twice: a fault in its last line is found before the first span is stored. Raises DataError.
    """
    found = sum(1 for _ in read_file(path, whole=False))
    return found, store.add_many(read_file(path, whole=False), each=each)


def _is_ours(document: Any) -> bool:
    return isinstance(document, dict) and "trace_id" in document


def _documents(path: Path) -> Iterator[tuple[int, bytes]]:
    """The JSON documents of a file, not parsed yet, with their line numbers; 0: the file is one document."""
    try:
        with path.open("rb") as file:
            first = file.readline()
            while first and not first.strip():
                first = file.readline()
            if not first:
                raise DataError("is empty", where=str(path), fix="it should hold an OTLP trace request, or spans")
            if not _is_document(first):
                file.seek(0)
                yield 0, file.read()
                return
            yield 1, first
            for number, line in enumerate(file, start=2):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=str(path)) from error


def _is_document(line: bytes) -> bool:
    try:
        parse(line)
    except ValueError:
        return False
    return True


def _parsed(data: bytes, where: str) -> Any:
    try:
        return parse(data)
    except ValueError as error:
        raise DataError(f"is not JSON: {error}", where=where) from error


def parse(data: bytes) -> Any:
    """JSON, as fast as this machine can: with orjson where it is installed, and without pauses for the garbage
    collector, which would look through every object made so far a dozen times a megabyte. Raises ValueError.
    """
    try:
        with no_collection():  # nothing else runs meanwhile: the parser keeps the interpreter lock
            return _loads()(data)
    except RecursionError as error:
        raise ValueError("it nests too deep") from error


@lru_cache(maxsize=1)
def _loads() -> Callable[[bytes], Any]:
    try:
        fast = import_module("orjson").loads
    except ImportError:
        return json.loads
    return _loads_with(fast)


def _loads_with(fast: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def loads(data: bytes) -> Any:
        try:
            return fast(data)
        except ValueError:  # orjson refuses NaN and large integers, which OTLP files do hold
            return json.loads(data)

    return loads
