"""Scenario 7: archives and bombs. A file of a megabyte that unpacks to gigabytes is refused with a typed error, by a
process that may not use a gigabyte, wherever a compressed file is read."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import resource
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_forge.curation.downloads import Published, _unzipped
from agent_forge.curation.lines import MOST_UNPACKED, open_lines
from agent_forge.errors import AgentForgeError, DataError
from agent_forge.forge.corpus import read_rows
from agent_forge.forge.evaluation.sets import _rows

LONG = os.environ.get("AGENT_FORGE_SCENARIOS") == "long"
SIZE = (5 << 30) if LONG else MOST_UNPACKED + (64 << 20)
SMALL = (24 << 20) if not LONG else SIZE  # of the bombs for every reader, whose bound is lower in the short form
ROW = b'{"text": "' + b"a" * 900 + b'"}\n'
LINE = b"a" * (1 << 20)
ROOM = 1 << 30  # bytes that a reader may hold


def blocks(content: bytes, size: int) -> Iterator[bytes]:
    block = content * max(1, (1 << 20) // len(content))
    for _ in range(size // len(block) + 1):
        yield block


def gzip_bomb(path: Path, content: bytes, size: int) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for block in blocks(content, size):
            file.write(block)


def zstd_bomb(path: Path, content: bytes, size: int) -> None:
    zstandard = pytest.importorskip("zstandard")
    with open(path, "wb") as raw, zstandard.ZstdCompressor().stream_writer(raw) as file:
        for block in blocks(content, size):
            file.write(block)


BOMBS = {"rows.jsonl.gz": (gzip_bomb, ROW), "line.jsonl.gz": (gzip_bomb, LINE),
         "text.txt.gz": (gzip_bomb, b"a" * 9999 + b"\n"),
         "rows.jsonl.zst": (zstd_bomb, ROW), "line.jsonl.zst": (zstd_bomb, LINE)}  # fmt: skip


@pytest.fixture(scope="module")
def bombs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bombs")
    for name in ("rows.jsonl.gz", "line.jsonl.gz", "line.jsonl.zst"):
        make, content = BOMBS[name]
        make(folder / name, content, SIZE)
        assert (folder / name).stat().st_size < SIZE / 100
    return folder


@pytest.fixture(scope="module")
def small_bombs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    for name, (make, content) in BOMBS.items():
        make(folder / name, content, SMALL)
    return folder


def read_lines(path: Path) -> int:
    with open_lines(path) as lines:
        return sum(map(len, lines))


READERS: dict[str, Callable[[Path], int]] = {
    "lines": read_lines,
    "corpus": lambda path: sum(1 for _ in read_rows(str(path))),
    "evaluation": lambda path: sum(1 for _ in _rows(path)),
}


@pytest.mark.untraced
@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("reader", READERS)
def test_a_bomb_is_refused(small_bombs: Path, reader: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not LONG:
        monkeypatch.setattr("agent_forge.curation.lines.MOST_UNPACKED", SMALL - (8 << 20))
    with pytest.raises(DataError, match="unpacks to more than"):
        READERS[reader](small_bombs / name)


@pytest.mark.untraced
@pytest.mark.parametrize("name", ["rows.jsonl.gz", "line.jsonl.gz", "line.jsonl.zst"])
def test_refusing_a_bomb_takes_little_memory(bombs: Path, name: str) -> None:
    code = "import sys\nfrom agent_forge.curation.lines import open_lines\n"
    code += "with open_lines(sys.argv[1]) as lines:\n    for _ in lines: pass"
    limit = lambda: resource.setrlimit(resource.RLIMIT_DATA, (ROOM, ROOM))  # noqa: E731
    ran = subprocess.run(
        [sys.executable, "-c", code, str(bombs / name)], capture_output=True, text=True, preexec_fn=limit
    )
    assert "unpacks to more than" in ran.stderr
    assert "MemoryError" not in ran.stderr


@pytest.mark.untraced
def test_without_the_bound_it_would_take_all_there_is(bombs: Path) -> None:
    """The control: a reader without a bound would get all of it."""
    with gzip.open(bombs / "rows.jsonl.gz") as file:
        file.seek(MOST_UNPACKED)
        assert file.read(1)


def test_an_honest_archive_is_read(tmp_path: Path) -> None:
    """The other control: a file as large as the bound that packs as text does, read to its end."""
    path = tmp_path / "rows.jsonl.gz"
    with gzip.open(path, "wb") as file:
        file.writelines(b'{"text": "row %d"}\n' % number for number in range(10_000))
    assert sum(1 for _ in read_rows(str(path))) == 10_000
    assert read_lines(path) > 180_000


@pytest.mark.parametrize("end", [0, 1, 10, 100])
def test_a_truncated_archive_is_a_data_error(tmp_path: Path, end: int) -> None:
    whole = gzip.compress(b'{"text": "a"}\n' * 1000)
    (tmp_path / "rows.jsonl.gz").write_bytes(whole[: len(whole) - 1 - end])
    with pytest.raises(DataError):
        list(read_rows(str(tmp_path / "rows.jsonl.gz")))


def test_a_zip_that_lies_about_its_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_forge.curation.downloads.MOST_UNPACKED", 1 << 20)
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", bytes(8 << 20))
    file = Published.__new__(Published)
    object.__setattr__(file, "member", "data")
    object.__setattr__(file, "url", "http://host/x.zip")
    with pytest.raises(DataError, match="unpacks to more than 1 MiB"):
        _unzipped(held.getvalue(), file)
    monkeypatch.setattr("agent_forge.curation.downloads.MOST_UNPACKED", 9 << 20)
    assert len(_unzipped(held.getvalue(), file)) == 8 << 20


def test_a_packed_tokenizer_that_unpacks_to_gigabytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_forge.forge.compression import packed_tokenizer

    if not LONG:
        monkeypatch.setattr(packed_tokenizer, "MOST_BYTES", 16 << 20)

    compressor = lzma.LZMACompressor(format=lzma.FORMAT_XZ, filters=[{"id": lzma.FILTER_LZMA2, "preset": 0}])
    count = packed_tokenizer.MOST_BYTES // (1 << 20) + 8
    data = b"".join(compressor.compress(bytes(1 << 20)) for _ in range(count)) + compressor.flush()
    with pytest.raises(AgentForgeError, match="truncated"):
        packed_tokenizer.unpack_tokenizer(data)


def test_a_table_in_a_compressed_model_unpacks_to_its_own_size() -> None:
    """`entropy` unpacks with a limit: what zlib does with one is what this relies on."""
    assert len(zlib.decompressobj().decompress(zlib.compress(bytes(1 << 24)), 100)) == 100
