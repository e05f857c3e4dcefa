"""Data sets into records: from a folder, and from a home on this machine."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agent_forge.curation import DATASETS, fetch, load
from agent_forge.curation.downloads import DOWNLOADS, Published
from agent_forge.curation.loaders import dataset
from agent_forge.errors import DataError, UsageError

DATA = Path(__file__).parents[2].parent / "shared" / "data"
ROWS = {  # as ../shared/data/README.md gives them
    "gsm8k": 7473, "svamp": 3138, "arc_easy": 2251, "arc_challenge": 1119, "piqa": 919, "mbpp": 474, "asynchow": 970,
    "worfbench": 1247, "ultratool": 3027, "seal_tools": 700, "nestful": 215, "restbench": 100, "break_qdmr": 6689,
    "strategyqa": 2061, "llmcompiler": 1987, "mhqa": 12070, "taskbench": 17450,
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_the_shared_copies_load_whole(name: str) -> None:
    if not DATA.is_dir():
        pytest.skip("the shared data sets are absent")
    records = list(load(name, DATA))
    assert len(records) == ROWS[name]
    assert len({record.id for record in records}) == len(records)
    assert all(record.input and record.split and record.licence and record.source for record in records)


@pytest.mark.parametrize(
    "name", ["asynchow", "worfbench", "ultratool", "seal_tools", "nestful", "restbench", "break_qdmr"]
)
def test_plan_graphs_name_only_nodes_they_have(name: str) -> None:
    if not DATA.is_dir():
        pytest.skip("the shared data sets are absent")
    edges = 0
    for record in load(name, DATA):
        ids = {node["id"] for node in record.target["nodes"]}
        edges += len(record.target["edges"])
        if name != "worfbench":  # a few of its answers draw edges to nodes they do not list
            assert all(a in ids and b in ids for a, b in record.target["edges"])
    assert edges > 30


def test_records_of_each_family(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"question": "q", "answer": "1+1=2\\n#### 1,002"}\n')
    (record,) = load("gsm8k", tmp_path)
    assert (record.id, record.target, record.meta["steps"]) == ("gsm8k/train/0", "1002", ["1+1=2"])
    assert "meta" in record.as_dict()
    (tmp_path / "SVAMP.json").write_text(
        json.dumps([{"Body": "A has 3.", "Question": "Sum?", "Answer": 3.0, "Equation": "(1+2)"}])
    )
    (record,) = load("svamp", tmp_path, split="test")
    assert (record.input, record.target, record.split) == ("A has 3. Sum?", "3", "test")
    published = {
        "id": "A1",
        "answerKey": "2",
        "question": {"stem": "Why?", "choices": [{"label": "1", "text": "x"}, {"label": "2", "text": "y"}]},
    }
    (tmp_path / "arc").mkdir()
    (tmp_path / "arc" / "ARC-Easy-Test.jsonl").write_text(json.dumps(published))
    (record,) = load("arc_easy", tmp_path / "arc")
    assert (record.target, record.split, record.input) == ("B", "test", "Why?\nA. x\nB. y")
    (tmp_path / "valid.jsonl").write_text('{"goal": "g", "sol1": "a", "sol2": "b"}\n')
    (tmp_path / "valid-labels.lst").write_text("1\n")
    assert next(load("piqa", tmp_path)).target == "B"
    (tmp_path / "HumanEval.jsonl").write_text(
        json.dumps(
            {
                "task_id": "HumanEval/0",
                "prompt": "def f():",
                "canonical_solution": " pass",
                "test": "t",
                "entry_point": "f",
            }
        )
    )
    assert next(load("humaneval", tmp_path)).meta["entry_point"] == "f"


def test_what_is_not_there_or_not_right_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no data set 'imagenet'"):
        dataset("imagenet")
    with pytest.raises(DataError, match=r"no files of gsm8k"):
        list(load("gsm8k", tmp_path))
    (tmp_path / "train.jsonl").write_text('{"text": "no question"}\n')
    with pytest.raises(DataError, match="does not have the shape of gsm8k"):
        list(load("gsm8k", tmp_path))
    assert {"gsm8k", "svamp", "arc_easy", "mbpp", "piqa", "humaneval"} <= set(DOWNLOADS)
    assert set(DOWNLOADS) <= set(DATASETS)


@pytest.fixture
def home_of_files(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    folder = tmp_path / "www"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_download_is_checked_against_the_table(tmp_path: Path, home_of_files: tuple[Path, str]) -> None:
    folder, url = home_of_files
    content = b'{"question": "q", "answer": "#### 2"}\n'
    (folder / "train.jsonl").write_bytes(content)
    good = Published(f"{url}/train.jsonl", "train.jsonl", hashlib.sha256(content).hexdigest())
    out = fetch("gsm8k", folder=tmp_path / "out", published=[good])
    assert next(load("gsm8k", out)).target == "2"
    bad = Published(f"{url}/train.jsonl", "train.jsonl", "0" * 64)
    with pytest.raises(DataError, match="SHA-256"):
        fetch("gsm8k", folder=tmp_path / "other", published=[bad])
    assert not (tmp_path / "other" / "train.jsonl").exists()


def test_a_file_without_a_known_digest_is_trusted_once(tmp_path: Path, home_of_files: tuple[Path, str]) -> None:
    folder, url = home_of_files
    (folder / "test.jsonl").write_text("first")
    file = Published(f"{url}/test.jsonl", "test.jsonl")
    out = fetch("gsm8k", folder=tmp_path / "out", published=[file])
    assert json.loads((out / "checksums.json").read_text())["test.jsonl"] == hashlib.sha256(b"first").hexdigest()
    (out / "test.jsonl").unlink()
    (folder / "test.jsonl").write_text("changed")
    with pytest.raises(DataError, match="expected"):
        fetch("gsm8k", folder=tmp_path / "out", published=[file])


def test_archives_are_opened_and_wrong_ones_refused(tmp_path: Path, home_of_files: tuple[Path, str]) -> None:
    folder, url = home_of_files
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("inner/x.jsonl", "{}")
    (folder / "a.zip").write_bytes(packed.getvalue())
    out = fetch(
        "arc_easy", folder=tmp_path / "out", published=[Published(f"{url}/a.zip", "x.jsonl", member="inner/x.jsonl")]
    )
    assert (out / "x.jsonl").read_text() == "{}"
    with pytest.raises(DataError, match="does not contain"):
        fetch(
            "arc_easy",
            folder=tmp_path / "out",
            published=[Published(f"{url}/a.zip", "y.jsonl", member="inner/y.jsonl")],
        )


def test_an_unreachable_home_and_one_without_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_FORGE_HOME", str(tmp_path))
    with pytest.raises(DataError, match="--from"):
        fetch("gsm8k", published=[Published("http://127.0.0.1:9/x", "x")], timeout_s=5)
    with pytest.raises(UsageError, match="no stable download"):
        fetch("worfbench")


def test_a_line_ends_where_the_line_ends(tmp_path: Path) -> None:
    """JSON strings and quoted CSV fields may hold what Python takes for the end of a line."""
    row = {"question": "one\u2028two\x85three", "answer": "1\n#### 1"}
    (tmp_path / "train.jsonl").write_text(json.dumps(row, ensure_ascii=False), "utf-8")
    (record,) = load("gsm8k", tmp_path)
    assert record.input == "one\u2028two\x85three"


def test_a_split_that_is_not_there_is_no_empty_file(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    with pytest.raises(DataError, match="has no split 'tset'"):
        list(load("gsm8k", tmp_path, split="tset"))
