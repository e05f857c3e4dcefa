"""JSONL files, plain or compressed: read line by line, written whole or not at all."""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from agent_forge.errors import DataError, MissingExtraError, UsageError
from agent_forge.files import atomic_write

Row = dict[str, Any]
_BLOCK = 1 << 12  # compressed bytes taken at once: zstd can unpack them to 30,000 times as many
MOST_UNPACKED = 256 * 2**20  # bytes that a compressed file may unpack to whatever its size
MOST_RATIO = 100  # and how many times its size a larger one may unpack to; text packs 3 to 20 times
LONGEST_LINE = 256 * 2**20  # bytes of a line of a compressed file


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtraError("reading and writing .zst files", "data") from error
    return zstandard


def require_regular(path: str | os.PathLike[str]) -> Path:
    """The path of a file that can be read more than once. Raises UsageError."""
    source = Path(path)
    if not source.is_file():
        what = "not a regular file" if source.exists() else "there is no such file"
        raise UsageError(what, where=str(source), fix="Save its content to a file first" if source.is_fifo() else None)
    return source


@contextmanager
def open_lines(path: str | os.PathLike[str]) -> Iterator[Iterable[bytes]]:
    """The lines of a file, decompressed by its suffix (.gz, .zst). Raises DataError where the file is damaged."""
    source = require_regular(path)
    with ExitStack() as stack:
        raw: Any = stack.enter_context(open(source, "rb"))
        if source.suffix == ".gz":
            raw = _bounded(_gzip_lines(stack.enter_context(gzip.open(raw, "rb"))), source)
        elif source.suffix == ".zst":
            raw = _bounded(_zstd_lines(raw), source)
        yield _checked(raw, source)


def _gzip_lines(unpacked: IO[bytes]) -> Iterator[bytes]:
    while line := unpacked.readline(LONGEST_LINE + 1):
        _check_length(len(line))
        yield line


def _bounded(lines: Iterator[bytes], source: Path) -> Iterator[bytes]:
    """The lines of a compressed file, up to the size that an honest one may have."""
    most, size = max(MOST_UNPACKED, MOST_RATIO * source.stat().st_size), 0
    for line in lines:
        size += len(line)
        if size > most:
            fix = "If you trust it, unpack it yourself and use that file"
            raise DataError(f"unpacks to more than {most / 2**20:.0f} MiB", where=str(source), fix=fix)
        yield line


def _check_length(size: int) -> None:
    """A small archive can unpack to a line that no memory holds."""
    if size > LONGEST_LINE:
        raise EOFError(f"a line unpacks to more than {LONGEST_LINE / 2**20:g} MiB")


def _zstd_lines(raw: IO[bytes]) -> Iterator[bytes]:
    partial: list[bytes] = []
    size = 0
    for block in _zstd_blocks(raw):
        first, *rest = block.split(b"\n")
        partial.append(first)
        size = len(rest[-1]) if rest else size + len(first)
        _check_length(size)
        for piece in rest:
            yield b"".join(partial) + b"\n"
            partial = [piece]
    if tail := b"".join(partial):
        yield tail


def _zstd_blocks(raw: IO[bytes]) -> Iterator[bytes]:
    """The content of all frames. (The library's own reader accepts a truncated file.)"""
    decompressor = _zstandard().ZstdDecompressor()
    frame, open_frame = decompressor.decompressobj(), False
    while data := raw.read(_BLOCK):
        while data:
            open_frame = True
            if block := frame.decompress(data):
                yield block
            data = b""
            if frame.eof:
                data, frame, open_frame = frame.unused_data, decompressor.decompressobj(), False
    if open_frame:
        raise EOFError("the last frame is incomplete")


def _checked(lines: Iterable[bytes], source: Path) -> Iterator[bytes]:
    try:
        yield from lines
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"the compressed file is damaged or hostile ({error})", where=str(source)) from error
    except OSError as error:
        raise DataError(f"the file cannot be read ({error.strerror or error})", where=str(source)) from error
    except Exception as error:
        if type(error).__name__ != "ZstdError":
            raise
        raise DataError(f"the compressed file is damaged ({error})", where=str(source)) from error


@contextmanager
def write_lines(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file that appears only when the block succeeds, compressed by its suffix."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target, "wb") as raw:
        if target.suffix == ".gz":
            with gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
                yield file  # type: ignore[misc]
        elif target.suffix == ".zst":
            with _zstandard().ZstdCompressor(level=6).stream_writer(raw, closefd=False) as file:
                yield file
        else:
            yield raw


def parse_row(line: bytes | str, number: int, where: str) -> Any:
    """The JSON value of one line. Raises DataError that names the line."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise bad_row(error, number, where) from error


def bad_row(error: Exception, number: int, where: str) -> DataError:
    """The error for a line that cannot be read."""
    reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
    return DataError(f"line {number} is not JSON ({reason})", where=where)


def read_rows(path: str | os.PathLike[str]) -> Iterator[Row]:
    """The objects of a JSONL file. Raises DataError on a line that is not a JSON object."""
    with open_lines(path) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                row = parse_row(line, number, str(path))
                if not isinstance(row, dict):
                    raise DataError(f"line {number} is not a JSON object", where=str(path))
                yield row


def write_rows(path: str | os.PathLike[str], rows: Iterable[Row]) -> int:
    """Writes `rows` as JSONL, atomically; returns how many."""
    count = 0
    with write_lines(path) as file:
        for row in rows:
            count += 1
            file.write(json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
    return count


def same_file(left: str | os.PathLike[str], right: str | os.PathLike[str]) -> bool:
    return Path(right).exists() and Path(left).samefile(right)


def strings_of(value: Any) -> Iterator[str]:
    """All string leaves of a JSON value, in order; keys are not leaves."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            stack.extend(reversed(item.values()))
        elif isinstance(item, list):
            stack.extend(reversed(item))


# Metadata: two rows that differ in nothing else are the same row.
_BOOKKEEPING = frozenset(
    {"id", "uuid", "row_id", "split", "source", "licence", "license", "difficulty", "difficulty_level", "level"}
    | {"generated", "timestamp", "created_at", "pass_rate", "weight", "hash"}
)


def text_of(row: Any, fields: tuple[str, ...] | None = None) -> str:
    """What a row says: its string leaves, one per line, without ids, splits and labels; or the named top-level fields.

    >>> text_of({"id": "7", "task": "Add.", "messages": [{"role": "user", "content": "1 + 1"}]})
    'Add.\\nuser\\n1 + 1'
    """
    if isinstance(row, dict):
        if fields:
            row = [row.get(name) for name in fields]
        else:
            row = [value for key, value in row.items() if key not in _BOOKKEEPING] or row
    return "\n".join(strings_of(row))


# Counters and measurements: numbers under these keys make no difference between two rows.
_COUNTERS = re.compile(
    r"(?:^|_)(?:id|ids|idx|index|uuid|row|line|seq|seed|hash|timestamp|created|created_at|duration|latency|score|reward|"
    r"rating|weight|tokens|label|labels|level|difficulty|pass_rate)$",
    re.IGNORECASE,
)


def content_of(row: Any, fields: tuple[str, ...] | None = None) -> str:
    """What two equal rows have in common: the text (`text_of`), and the numbers that are not ids or counters.

    >>> content_of({"id": 7, "a": 3, "op": "+", "b": [4.5]})
    '+\\n3 4.5'
    """
    if fields and isinstance(row, dict):
        row = {name: row.get(name) for name in fields}
    numbers = " ".join(_numbers(row))
    text = text_of(row)
    return f"{text}\n{numbers}" if numbers else text


def _numbers(value: Any) -> Iterator[str]:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(inner for key, inner in reversed(item.items()) if not _COUNTERS.search(key))
        elif isinstance(item, list):
            stack.extend(reversed(item))
        elif isinstance(item, (int, float)):
            yield str(item)


# A word is a letter of a script without spaces, a whole number, another word, or a sign that changes the meaning:
# operators, a minus, the parentheses of a formula. Other punctuation does not count.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(
    rf"\d+(?:[.,]\d+)+|[^\W{UNSPACED}]+|[{UNSPACED}]|[+*/=<>%^&|~#@$€£×÷−]|"
    r"-(?=[\w(.])(?<![^\W\d_]-)|(?<=\d )-(?= )|\((?=[\d.\-])|\)(?=\s?[+*/^=<>%\-])"
)


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, as two texts are compared.

    >>> words_of("Well-known: is (5 - 3) * 4.5 > -2?"), words_of("天气好")
    (['well', 'known', 'is', '(', '5', '-', '3', ')', '*', '4.5', '>', '-', '2'], ['天', '气', '好'])
    """
    return _WORD.findall(text.lower())
