"""Balancing by selection and by generation, against a real endpoint on this machine."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agent_forge.curation import Endpoint, balance, parse_target, read_rows, write_rows
from agent_forge.curation.balancing import wanted_rows
from agent_forge.curation.difficulties import Difficulty
from agent_forge.curation.generate import Intake
from agent_forge.errors import DataError, ModelError, UsageError

TARGET = parse_target("easy=0.3,medium=0.45,hard=0.25")


def _rows(easy: int, medium: int, hard: int) -> list[dict[str, Any]]:
    labels = ["easy"] * easy + ["medium"] * medium + ["hard"] * hard
    return [
        {"task": f"Task {n} about topic{n % 17} and item{n}", "answer": f"a{n}", "difficulty": d}
        for n, d in enumerate(labels)
    ]


def _label_in_text(row: dict[str, Any]) -> Difficulty:
    """A judge that looks at what the row says: its text names how hard it is."""
    return Difficulty(next((s for s in ("easy", "medium", "hard") if s in row["task"]), "medium"), "structure")


class Server:
    """An OpenAI-compatible endpoint that answers from a list, then repeats a good answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: list[str] = []
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                prompt = body["messages"][0]["content"]
                outer.asked.append(prompt.split("difficulty must be ")[1].split(":")[0])
                number = len(outer.asked)
                said = (
                    outer.answers.pop(0)
                    if outer.answers
                    else json.dumps(
                        {
                            "task": f"A {outer.asked[-1]} new task nr {number} with word{number} and thing{number * 7}",
                            "answer": f"x{number}",
                        }
                    )
                )
                payload = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *_: object) -> None:
                return None

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.endpoint = Endpoint(f"http://127.0.0.1:{self.http.server_port}/v1", "test", timeout_s=20)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def test_selection_reaches_the_target_and_changes_no_row(tmp_path: Path) -> None:
    rows = _rows(600, 300, 100)
    write_rows(tmp_path / "in.jsonl", rows)
    report = balance(tmp_path / "in.jsonl", tmp_path / "out.jsonl", TARGET)
    out = list(read_rows(tmp_path / "out.jsonl"))
    assert Counter(row["difficulty"] for row in out) == {"easy": 120, "medium": 180, "hard": 100}
    assert report.shares == {"easy": 0.3, "medium": 0.45, "hard": 0.25}
    assert all(row in rows for row in out[:20])
    places = [rows.index(row) for row in out]
    assert places == sorted(places)
    assert (report.shortfall, report.to_generate["hard"]) == (0, 67)


def test_a_stratum_without_rows_is_a_shortfall_not_a_new_label(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", _rows(580, 420, 0))
    report = balance(tmp_path / "in.jsonl", tmp_path / "out.jsonl", TARGET)
    labels = Counter(row["difficulty"] for row in read_rows(tmp_path / "out.jsonl"))
    assert labels == {"easy": 280, "medium": 420}
    assert report.strata["hard"].shortfall == report.shortfall == 233
    assert report.as_dict()["basis"] == {"label": 1000}


def test_the_most_diverse_rows_are_kept(tmp_path: Path) -> None:
    rows = [{"task": "the same words again", "n": n, "difficulty": "easy"} for n in range(30)]
    rows += [{"task": f"unusual{n} thing{n}", "n": 30 + n, "difficulty": "easy"} for n in range(10)]
    rows += [{"task": f"m{n}", "n": 40 + n, "difficulty": "medium"} for n in range(15)]
    write_rows(tmp_path / "in.jsonl", rows)
    balance(tmp_path / "in.jsonl", tmp_path / "out.jsonl", parse_target("easy=0.4,medium=0.6"))
    kept = [row["n"] for row in read_rows(tmp_path / "out.jsonl") if row["difficulty"] == "easy"]
    assert kept == list(range(30, 40))


def test_how_many_to_drop_and_to_generate_is_the_least_that_does_it() -> None:
    have = {"easy": 3903, "medium": 2740, "hard": 22}
    wanted = wanted_rows(have, TARGET, generating=True)
    effort = sum(abs(wanted[name] - have[name]) for name in have)
    for total in range(1000, 14000, 50):
        assert effort <= sum(abs(total * TARGET[name] - have[name]) for name in have) + 2


@pytest.mark.parametrize(
    "text", ["easy=1,hard=1", "tiny=1", "easy=x", "easy=-0.5,hard=1.5", "easy=nan,medium=0.5,hard=0.5"]
)
def test_a_target_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_target(text)


def test_no_rows_and_the_same_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("")
    with pytest.raises(DataError, match="no rows"):
        balance(tmp_path / "in.jsonl", tmp_path / "out.jsonl", TARGET)
    with pytest.raises(UsageError, match="overwrite"):
        balance(tmp_path / "in.jsonl", tmp_path / "in.jsonl", TARGET)


def test_generation_fills_the_deficit_and_checks_every_row(tmp_path: Path, server: Server) -> None:
    write_rows(tmp_path / "in.jsonl", _rows(12, 18, 4))
    server.answers = [
        "I cannot do that",
        json.dumps({"task": "hard without an answer"}),
        json.dumps({"task": "An easy one that claims to be difficult", "answer": "y", "difficulty": "hard"}),
        "```json\n" + json.dumps({"task": "A hard one for jo@corp.io with many parts", "answer": "y"}) + "\n```",
        json.dumps({"task": "A hard one for [EMAIL] with many parts", "answer": "y"}),
    ]
    report = balance(
        tmp_path / "in.jsonl", tmp_path / "out.jsonl", TARGET, endpoint=server.endpoint, judge=_label_in_text
    )
    out = list(read_rows(tmp_path / "out.jsonl"))
    made = [row for row in out if row.get("generated")]
    assert (report.shortfall, report.strata["hard"].generated, len(made)) == (0, 6, 6)
    assert report.refused == {"difficulty": 1, "duplicate": 1, "not_json": 1, "schema": 1}
    assert made[0]["task"] == "A hard one for [EMAIL] with many parts"
    assert set(server.asked) == {"hard"}
    assert not (tmp_path / "out.jsonl.generated.jsonl").exists()


def test_a_resumed_run_fills_what_is_missing_and_does_not_start_again(tmp_path: Path, server: Server) -> None:
    write_rows(tmp_path / "in.jsonl", _rows(12, 18, 4))
    ledger = tmp_path / "out.jsonl.generated.jsonl"
    write_rows(
        ledger,
        [
            {"task": f"earlier hard {n} piece{n}", "answer": "z", "difficulty": "hard", "generated": True}
            for n in range(4)
        ],
    )
    report = balance(
        tmp_path / "in.jsonl", tmp_path / "out.jsonl", TARGET, endpoint=server.endpoint, judge=_label_in_text
    )
    assert (len(server.asked), report.strata["hard"].generated, report.shortfall) == (2, 6, 0)


def test_an_endpoint_that_fails_leaves_what_was_made_and_no_output(tmp_path: Path, server: Server) -> None:
    write_rows(tmp_path / "in.jsonl", _rows(12, 18, 4))
    server.status = 500
    with pytest.raises(ModelError, match="no usable answer"):
        balance(tmp_path / "in.jsonl", tmp_path / "out.jsonl", TARGET, endpoint=server.endpoint, judge=_label_in_text)
    assert len(server.asked) == 3
    assert not (tmp_path / "out.jsonl").exists()


def test_an_endpoint_that_never_gives_a_good_row_ends_with_a_shortfall(tmp_path: Path, server: Server) -> None:
    write_rows(tmp_path / "in.jsonl", _rows(3, 5, 1))
    server.answers = ["no"] * 60
    report = balance(
        tmp_path / "in.jsonl", tmp_path / "out.jsonl", TARGET, endpoint=server.endpoint, judge=_label_in_text
    )
    assert report.shortfall == 2
    assert report.refused == {"not_json": len(server.asked)}


def test_the_intake_knows_near_copies() -> None:
    words = " ".join(f"w{n}" for n in range(40))
    intake = Intake([{"task": "x"}], _label_in_text)
    intake.remember([{"task": f"hard {words}"}])
    assert intake.take(json.dumps({"task": f"hard {words} more"}), "hard") is None
    assert intake.refused == {"duplicate": 1}
    assert intake.take("[1, 2]", "hard") is None
    assert intake.take(json.dumps({"task": "hard " + words[::-1]}), "hard") is not None


def test_one_stratum_alone_is_kept_and_the_others_are_a_shortfall() -> None:
    shares = {"easy": 0.3, "medium": 0.45, "hard": 0.25}
    for generating in (False, True):
        wanted = wanted_rows({"easy": 0, "medium": 300, "hard": 0}, shares, generating=generating)
        assert wanted == {"easy": 200, "medium": 300, "hard": 167}
