"""Trace files that cannot be read as they lie: gzipped ones, damaged and hostile ones, pipes."""

from __future__ import annotations

import gzip
import json
import os
import threading
from pathlib import Path

import pytest
from trace_spans import make, randoms

from agent_forge.cli import run
from agent_forge.errors import DataError
from agent_forge.traces import Store, files, import_file, read_file, write_request
from agent_forge.traces.validate import validate_file

SPANS = randoms(12)
PLAIN = json.dumps(write_request(SPANS)).encode()
LINES = b"".join(json.dumps(write_request([span])).encode() + b"\n" for span in SPANS)


@pytest.mark.parametrize(
    "data",
    [gzip.compress(PLAIN), gzip.compress(LINES), gzip.compress(LINES[:5000]) + gzip.compress(LINES[5000:])],
    ids=["one request", "lines", "two members"],
)
def test_a_gzipped_file_is_read_whatever_its_name(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "export of ünknown.name"
    path.write_bytes(data)
    with Store.open(tmp_path / "store") as store:
        assert import_file(store, path) == (12, 12)
        assert import_file(store, path) == (12, 0)
    assert [span.span_id for span in read_file(path)] == [span.span_id for span in SPANS]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gzip.compress(LINES)[:-9], "damaged"),
        (gzip.compress(LINES)[:40] + b"\0" * 40 + gzip.compress(LINES)[80:], "damaged"),
        (gzip.compress(b" \n\n"), "empty"),
        (gzip.compress(LINES + b"{broken\n"), ":13: is not JSON"),
        (gzip.compress(b" " * 2_000_000 + PLAIN), "unpacks to more than"),
    ],
    ids=["cut", "overwritten", "empty", "fault", "bomb"],
)
def test_a_gzipped_file_with_a_fault_is_refused_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, words: str
) -> None:
    monkeypatch.setattr(files, "MOST_UNPACKED", 1 << 20)
    path = tmp_path / "spans.json.gz"
    path.write_bytes(data)
    with Store.open(tmp_path / "store") as store:
        with pytest.raises(DataError, match=words):
            import_file(store, path)
        assert store.count() == 0


def test_validate_reads_gzipped_files_too(tmp_path: Path) -> None:
    (tmp_path / "plain.jsonl").write_bytes(LINES)
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(LINES))
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(LINES)[:-9])
    assert validate_file(tmp_path / "packed.jsonl.gz") == validate_file(tmp_path / "plain.jsonl")
    assert [fault.code for fault in validate_file(tmp_path / "cut.jsonl.gz")] == ["json"]


def test_a_pipe_can_be_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`traces import <(zcat …)`: it cannot be read twice, which import does."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(LINES,))
    writer.start()
    assert run(["traces", "import", str(pipe), "--home", str(tmp_path / "home"), "--json"]) == 0
    writer.join()
    assert json.loads(capsys.readouterr().out)["added"] == 12


def test_an_array_of_requests_or_spans_is_read_as_validate_reads_it(tmp_path: Path) -> None:
    for name, items in (
        ("requests", [write_request([span]) for span in SPANS]),
        ("ours", [span.to_dict() for span in SPANS]),
    ):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(items))
        assert [span.span_id for span in read_file(path)] == [span.span_id for span in SPANS]
        assert {fault.code for fault in validate_file(path)} <= {"kind_fields", "outside_root"}  # as random spans have
    path.write_text(json.dumps([items[0], {"a": 1}]))
    with pytest.raises(DataError, match=r"json:1\[1\]: this is not"):
        list(read_file(path))


def test_a_line_ends_where_the_line_ends(tmp_path: Path) -> None:
    """JSON strings may hold what Python takes for the end of a line."""
    span = make(name="a\u2028b\x85c", inputs="\u2029")
    (tmp_path / "spans.jsonl").write_text(json.dumps(span.to_dict(), ensure_ascii=False), "utf-8")
    assert validate_file(tmp_path / "spans.jsonl") == []
    assert list(read_file(tmp_path / "spans.jsonl")) == [span]


def test_the_line_of_a_fault_counts_empty_lines_too(tmp_path: Path) -> None:
    (tmp_path / "spans.jsonl").write_bytes(b"\n\n" + LINES + b"{broken\n")
    with pytest.raises(DataError, match=":15: is not JSON"):
        list(read_file(tmp_path / "spans.jsonl"))


def test_a_span_of_ours_with_a_field_of_another_type_stores_nothing_of_its_file(tmp_path: Path) -> None:
    lines = [span.to_dict() for span in randoms(1200)]
    lines[-1]["agent"] = 7
    (tmp_path / "ours.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with Store.open(tmp_path / "store") as store:
        with pytest.raises(DataError, match=r":1200: the span's agent is not text: '7'"):
            import_file(store, tmp_path / "ours.jsonl")
        assert store.count() == 0
