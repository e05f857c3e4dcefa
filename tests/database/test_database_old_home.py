"""A home made by an earlier version opens: its runs are listed and resumed, its traces grow, its models are there.

The stored home was made by version 0.1.0 with `fixtures/make_home.py`. When a schema changes, it stays as it is; a home
of the version before the change may be added to `HOMES`.
"""

from __future__ import annotations

import asyncio
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from agent_forge.plans import Task
from agent_forge.runtime import Journal, execute, resume
from agent_forge.runtime.journal import SCHEMA
from agent_forge.traces import Recorder, Store

FIXTURES = Path(__file__).parent / "fixtures"
HOMES = ["home-0.1.0.tar.gz"]


@pytest.fixture(params=HOMES)
def old_home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("AGENT_FORGE_STORE", raising=False)
    with tarfile.open(FIXTURES / request.param) as archive:
        archive.extractall(tmp_path / "home", filter="data")
    return tmp_path / "home"


def test_its_runs_are_listed_with_what_was_noted_beside_them(old_home: Path) -> None:
    journal = Journal.open(old_home)
    assert [(run.run, run.state, run.done) for run in journal.runs()] == [
        ("interrupted", "interrupted", 1),
        ("failed", "failed", 0),
        ("answered", "done", 1),
    ]
    assert journal.summary("answered").notes["request"] == "What is 6 * 7?"
    assert journal.summary("interrupted").notes == {}
    assert stat.S_IMODE((old_home / "runs.db").stat().st_mode) == 0o600, "it was readable for everyone"
    with journal._database.read() as cursor:
        assert cursor.execute("PRAGMA user_version").fetchone()[0] == SCHEMA.version
    journal.close()
    assert len(Journal.open(old_home).runs()) == 3, "and once more"


def test_its_interrupted_run_is_resumed(old_home: Path) -> None:
    calls: list[str] = []

    async def handler(task: Task, inputs: dict[str, Any]) -> Any:
        calls.append(task.id)
        return 2 * task.args["x"] if "x" in task.args else sum(inputs["double"])

    journal = Journal.open(old_home)
    assert journal.load("interrupted").in_doubt == ["pay"]
    result = asyncio.run(resume("interrupted", handler, journal=journal, known={"pay": "receipt"}))
    assert result.state == "done"
    assert sorted(calls) == ["double[1]", "double[2]", "last"], "the rest was done by version 0.1.0"
    assert result.results["double"] == [2, 4, 6]
    assert result.results["last"] == 12
    assert asyncio.run(execute([Task("new")], lambda task, inputs: 1, journal=journal)).state == "done"
    journal.close()


def test_its_traces_are_read_and_grow(old_home: Path) -> None:
    with Store.open(old_home) as store:
        before = store.count()
        assert {summary.name for summary in store.traces()} >= {"What is 6 * 7?", "plan"}
        recorder = Recorder(store)
        with recorder.span("new", "task"):
            pass
        recorder.close()
        assert store.count() == before + 1
        assert store.check() == []


def test_its_models_are_there(old_home: Path) -> None:
    registry_module = pytest.importorskip("agent_forge.forge.registry", reason="needs the extra forge")
    registry = registry_module.Registry(old_home)
    (entry,) = registry.ls()
    assert entry.phase == "toy"
    assert (entry.path / "config.json").is_file()
    assert entry.path.is_relative_to(old_home)
    registry.db.close()
