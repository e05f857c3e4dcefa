"""The registry, the same on SQLite and PostgreSQL; its cleanup against a direct statement of the policy."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from agent_forge.cli import run as cli
from agent_forge.errors import CheckpointError, DataError, StoreError, UsageError
from agent_forge.forge import cleanup
from agent_forge.forge import registry as registry_module
from agent_forge.forge.checkpoint import Card, Checkpoint, finish, load, staging
from agent_forge.forge.cleanup import CleanupPolicy
from agent_forge.forge.registry import Registry

DAY = 86_400.0


@pytest.fixture(params=["sqlite", "postgresql"])
def registry(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.delenv("AGENT_FORGE_STORE", raising=False)
    url = None
    if request.param == "postgresql":
        import psycopg

        url = f"postgresql://postgres@/postgres?host={request.getfixturevalue('postgres')}"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA IF EXISTS agent_forge_model_registry CASCADE")
    opened = Registry(tmp_path / "home", url)
    yield opened
    opened.db.close()


def make(models: Path, number: float, parents: tuple[str, ...] = (), phase: str = "toy", notes: str = "") -> Checkpoint:
    with staging(models) as folder:
        save_file({"w": np.full(2, number, dtype=np.float32)}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"architectures": ["Toy"]}))
        return finish(folder, Card(phase, {}, inputs=parents, notes=notes), models)


def added(registry: Registry, number: float, parents: tuple[str, ...] = (), phase: str = "toy") -> str:
    checkpoint = make(registry.models, number, parents, phase)
    registry.add(checkpoint)
    return checkpoint.digest


def set_age(registry: Registry, digest: str, created_s: float) -> None:
    with registry.db.write() as cursor:
        cursor.execute("UPDATE checkpoints SET created_s = ? WHERE digest = ?", (created_s, digest))


def session(
    registry: Registry, name: str, state: str, at_s: float, checkpoints: list[str], start: tuple[str, ...] = ()
) -> None:
    registry.start_session(name, {"name": "toy", "start": list(start)})
    for number, digest in enumerate(checkpoints):
        registry.record_phase(name, f"p{number}", state="completed", checkpoint=digest)
    if state not in ("running", "interrupted"):
        registry.end_session(name, state)
    dead = 2**22 + 1  # beyond the largest process number
    with registry.db.write() as cursor:
        cursor.execute(
            "UPDATE sessions SET started_s = ?, ended_s = ? WHERE id = ?",
            (at_s - 60, None if state in ("running", "interrupted") else at_s, name),
        )
        if state == "interrupted":
            cursor.execute("UPDATE sessions SET pid = ? WHERE id = ?", (dead, name))


def test_checkpoints_lineage_and_names(registry: Registry) -> None:
    base = added(registry, 1, phase="base")
    child = added(registry, 2, (base,), phase="child")
    registry.add(load(registry.find(base).path))
    assert [entry.digest for entry in registry.ls()] == [child, base], "adding it again changes nothing"
    registry.add(make(registry.models, 1, phase="base", notes="again"))
    assert [entry.digest for entry in registry.ls()] == [base, child], "made again, it is the newest"
    assert [entry.digest for entry in registry.ls("child")] == [child]
    entry = registry.find(child)
    assert (entry.parents, entry.parameters, entry.phase) == ((base,), 2, "child")
    assert entry.bytes == sum(file.stat().st_size for file in entry.path.iterdir())
    for name in (child, child[:9], f"child-{child[:5]}", str(entry.path)):
        assert registry.find(name).digest == child
    for name in ("", "child", "child-", f"base-{child[:5]}", "zz", "-"):
        with pytest.raises(UsageError, match="there is no checkpoint"):
            registry.find(name)


def test_a_checkpoint_by_its_session_and_phase(registry: Registry) -> None:
    old, base, more = (added(registry, number) for number in (1, 2, 3))
    session(registry, "toy-1", "completed", time.time() - DAY, [old])
    session(registry, "toy-2", "completed", time.time(), [base, more])
    names = {"toy-1": old, "toy-2": more, "toy": more, "toy-2/p0": base, "toy/p1": more, "toy-1/p0": old}
    assert {name: registry.find(name).digest for name in names} == names
    for name in ("toy/p2", "toy-3", "/p0", "toy-1/p1"):
        with pytest.raises(UsageError, match="there is no checkpoint"):
            registry.find(name)


def test_a_home_folder_may_be_moved(registry: Registry, tmp_path: Path) -> None:
    checkpoint = make(registry.models, 1)
    registry.add(checkpoint)
    registry.home.rename(tmp_path / "moved")
    registry.home, registry.models = tmp_path / "moved", tmp_path / "moved" / "models"
    assert registry.load(checkpoint.digest).path == tmp_path / "moved" / "models" / checkpoint.name
    registry.gc(CleanupPolicy(keep=0), dry=False, now_s=time.time() + 40 * DAY)
    assert not (tmp_path / "moved" / "models" / checkpoint.name).exists()


def test_an_ambiguous_beginning_is_refused(registry: Registry) -> None:
    seen: dict[str, str] = {}
    for number in range(40):  # more than the sixteen first letters that there are
        digest = added(registry, number)
        if digest[0] in seen:
            break
        seen[digest[0]] = digest
    with pytest.raises(UsageError, match="2 checkpoints start with"):
        registry.find(digest[0])


def test_what_was_changed_is_refused_and_what_is_made_again_is_taken(registry: Registry) -> None:
    checkpoint = make(registry.models, 1)
    registry.add(checkpoint)
    registry.finish("key", {"checkpoint": checkpoint.digest, "gate": None})
    assert registry.finished("key") is not None
    assert registry.finished("other") is None
    card = checkpoint.path / "card.json"
    text = card.read_text()
    card.write_text(text.replace('"seed": null', '"seed": 1'))
    with pytest.raises(CheckpointError, match="the card was changed"):
        registry.load(checkpoint.digest)
    assert registry.finished("key") is None
    registry.add(make(registry.models, 1, notes="again"))
    assert registry.load(checkpoint.digest).card.notes == "again"
    assert registry.finished("key") is not None
    shutil.rmtree(checkpoint.path)
    with pytest.raises(CheckpointError):
        registry.load(checkpoint.digest)
    again = make(registry.models, 1)
    (again.path / "config.json").unlink()  # between being made and being registered
    with pytest.raises(CheckpointError, match="removed meanwhile"):
        registry.add(again)


def test_the_same_model_at_two_places_stays_where_it_is_sound(registry: Registry, tmp_path: Path) -> None:
    checkpoint = make(registry.models, 1)
    registry.add(checkpoint)
    copy = shutil.copytree(checkpoint.path, tmp_path / "elsewhere")
    registry.add(load(copy))
    assert registry.find(checkpoint.digest).path == checkpoint.path.resolve()
    shutil.rmtree(checkpoint.path)
    registry.add(load(copy))
    assert registry.find(checkpoint.digest).path == copy.resolve()


def test_sessions_phases_and_handoffs(registry: Registry) -> None:
    registry.start_session("s", {"name": "toy"})
    registry.record_phase("s", "a", state="running", started_s=1.0)
    registry.record_phase("s", "a", state="completed", gate={"verdict": "passed"}, ended_s=2.0)
    registry.record_phase("s", "b", state="failed", error="no", started_s=3.0)
    assert [(p["name"], p["state"], p["gate"]) for p in registry.phases("s")] == [
        ("a", "completed", {"verdict": "passed"}),
        ("b", "failed", None),
    ]
    assert registry.sessions()[0]["state"] == "running"
    registry.end_session("s", "paused")
    assert registry.sessions()[0]["state"] == "paused"
    with pytest.raises(ValueError, match="not a final state of a session"):
        registry.end_session("s", "running")
    with pytest.raises(ValueError, match="no such column: nonsense"):
        registry.record_phase("s", "a", state="x", nonsense=1)
    with pytest.raises(ValueError, match="a phase needs a state"):
        registry.record_phase("s", "a", error="x")
    with pytest.raises(DataError, match="cannot be stored"):
        registry.record_phase("no such session", "a", state="x")
    registry.record_handoff("s", "a", "b", "passed", ["checkpoints: exactly 1 checkpoints, found 1"])
    assert registry.handoffs()[0]["clauses"] == ["checkpoints: exactly 1 checkpoints, found 1"]
    session(registry, "dead", "interrupted", time.time(), [])
    assert {s["session"]: s["state"] for s in registry.sessions()} == {"s": "paused", "dead": "interrupted"}


def policy_by_hand(
    sessions: list[dict], entries: dict[str, dict], policy: CleanupPolicy, now: float
) -> tuple[set[str], set[str]]:
    """The policy as the documentation states it: which sessions and which checkpoints go."""
    over = sorted((s for s in sessions if s["state"] != "running"), key=lambda s: (-s["started"], s["name"]))
    gone = set()
    for rank, s in enumerate(over):
        limit = {"completed": policy.completed_days, "paused": policy.completed_days}.get(
            s["state"], policy.failed_days
        )
        age = now - (s["ended"] if s["ended"] is not None else s["started"])
        if age > limit * DAY or rank >= policy.sessions:
            gone.add(s["name"])
    newest = sorted(entries, key=lambda d: (-entries[d]["created"], d))[: policy.keep]

    def needed(digest: str, seen: frozenset[str] = frozenset()) -> bool:
        if digest in seen:
            return False
        entry = entries[digest]
        if (
            entry["pinned"]
            or digest in newest
            or now - entry["created"] <= min(policy.completed_days, policy.failed_days) * DAY
        ):
            return True
        if any(digest in (*s["checkpoints"], *s["start"]) for s in sessions if s["name"] not in gone):
            return True
        return any(digest in other["parents"] and needed(name, seen | {digest}) for name, other in entries.items())

    return gone, {digest for digest in entries if not needed(digest)}


@pytest.mark.parametrize("seed", range(4))
def test_cleanup_follows_the_policy_on_random_histories(registry: Registry, seed: int, tmp_path: Path) -> None:
    rng, now = random.Random(seed), time.time()
    policy = CleanupPolicy(rng.choice([30, 10]), rng.choice([7, 20]), rng.choice([2, 4, 100]), rng.choice([0, 1, 3]))
    entries: dict[str, dict] = {}
    for number in range(12):
        parents = tuple(rng.sample(list(entries), min(len(entries), rng.choice([0, 1, 1, 2]))))
        digest = added(registry, 100 * seed + number, parents)
        entries[digest] = {"created": now - rng.uniform(0, 60) * DAY, "parents": parents, "pinned": rng.random() < 0.1}
        set_age(registry, digest, entries[digest]["created"])  # in any order: also children older than their parents
        if entries[digest]["pinned"]:
            registry.pin(digest)
    sessions = []
    for number in range(8):
        state, at = (
            rng.choice(["running", "completed", "failed", "paused", "interrupted"]),
            now - rng.uniform(0, 50) * DAY,
        )
        outputs, start = rng.sample(list(entries), 2), tuple(rng.sample(list(entries), rng.choice([0, 0, 1])))
        session(registry, f"s{number}", state, at, outputs, start)
        ended = None if state in ("running", "interrupted") else at
        sessions.append(
            {
                "name": f"s{number}",
                "state": state,
                "started": at - 60,
                "ended": ended,
                "checkpoints": outputs,
                "start": start,
            }
        )
        (registry.home / "sessions" / f"s{number}").mkdir(parents=True)
    expected = policy_by_hand(sessions, entries, policy, now)
    before = {path: path.read_bytes() for path in registry.models.rglob("*") if path.is_file()}
    dry = registry.gc(policy, now_s=now)
    assert (set(dry.sessions), set(dry.checkpoints)) == expected
    assert {path: path.read_bytes() for path in registry.models.rglob("*") if path.is_file()} == before
    assert len(registry.ls()) == 12
    sizes = {entry.digest: entry.bytes for entry in registry.ls()}
    assert dry.bytes == sum(sizes[digest] for digest in dry.checkpoints)
    assert registry.gc(policy, dry=False, now_s=now) == dry
    assert {entry.digest for entry in registry.ls()} == entries.keys() - expected[1]
    for entry in registry.ls():
        registry.load(entry.digest)
    assert {folder.name for folder in registry.models.iterdir()} == {entry.path.name for entry in registry.ls()}
    left = {s["session"] for s in registry.sessions()}
    assert left == {s["name"] for s in sessions} - expected[0]
    assert {folder.name for folder in (registry.home / "sessions").iterdir()} == left
    assert registry.gc(policy, dry=False, now_s=now).checkpoints == ()


def test_at_most_a_hundred_sessions(registry: Registry) -> None:
    now = time.time()
    for number in range(103):
        session(registry, f"s{number:03}", "completed", now - number, [])
    assert sorted(registry.gc(now_s=now).sessions) == ["s100", "s101", "s102"]


def test_imported_models_are_forgotten_but_never_deleted(registry: Registry, tmp_path: Path) -> None:
    outside = make(tmp_path / "mine", 1)
    registry.add(outside)
    set_age(registry, outside.digest, 0.0)
    registry.finish("key", {"checkpoint": outside.digest, "gate": None})
    assert registry.gc(CleanupPolicy(keep=0), dry=False).checkpoints == (outside.digest,)
    assert load(outside.path).digest == outside.digest
    assert registry.ls() == []
    with registry.db.read() as cursor:
        assert cursor.execute("SELECT count(*) FROM finished").fetchone()[0] == 0


def test_a_pin_is_taken_back(registry: Registry) -> None:
    digest = added(registry, 1)
    set_age(registry, digest, 0.0)
    registry.pin(digest)
    assert registry.gc(CleanupPolicy(keep=0)).checkpoints == ()
    registry.pin(digest, False)
    assert registry.gc(CleanupPolicy(keep=0)).checkpoints == (digest,)


class Crash(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("place", ["_delete", "remove_marked", "remove_folder"])
def test_a_crash_during_cleanup_leaves_no_row_without_a_folder(
    registry: Registry, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = [added(registry, number) for number in range(3)]
    for digest in digests:
        set_age(registry, digest, 0.0)

    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(cleanup if place == "remove_folder" else registry_module, place, crash)
        with pytest.raises(Crash):
            registry.gc(CleanupPolicy(keep=1), dry=False)
    for entry in registry.ls():
        registry.load(entry.digest)
    registry.gc(CleanupPolicy(keep=1), dry=False)
    assert len(registry.ls()) == 1
    assert {path.name for path in registry.models.iterdir()} == {registry.ls()[0].path.name}, "the next one finishes it"


def test_cleanup_removes_what_killed_processes_left(registry: Registry) -> None:
    old, new = registry.models / ".making-old", registry.models / ".making-new"
    work, lock = registry.home / "work" / "a", registry.home / "work" / "a.lock"
    for folder in (old, new, work):
        folder.mkdir(parents=True)
        (folder / "x").write_text("x")
    lock.write_text("")
    for path in (old / "x", old, work / "x", work, lock):
        os.utime(path, (0, 0))
    registry.gc(dry=False)
    assert not old.exists()
    assert not work.exists()
    assert not lock.exists()
    assert new.exists()


def _add_in_a_process(home: str, url: str | None, number: int, barrier: object) -> None:
    opened = Registry(home, url)
    barrier.wait(60)  # type: ignore[attr-defined]
    opened.add(make(opened.models, number))


def test_two_processes_add_the_same_checkpoint(registry: Registry) -> None:
    fork = multiprocessing.get_context("fork")  # the parent has imported everything already
    url = None if registry.db.dialect == "sqlite" else registry.db._url  # type: ignore[attr-defined]
    barrier = fork.Barrier(2)
    workers = [fork.Process(target=_add_in_a_process, args=(str(registry.home), url, 1, barrier)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len(registry.ls()) == 1
    registry.load(registry.ls()[0].digest)


@pytest.mark.parametrize("content", [b"", b"not a database", b"SQLite format 3\x00" + bytes(200)])
def test_a_foreign_or_damaged_registry_is_left_alone(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "registry.db"
    file.write_bytes(content)
    with pytest.raises(StoreError):
        Registry(tmp_path)
    assert file.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["registry.db"]


def test_the_store_setting_is_where_the_registry_is(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"postgresql://postgres@/postgres?host={postgres}"
    monkeypatch.setenv("AGENT_FORGE_STORE", url)
    opened = Registry(tmp_path)
    assert opened.db.dialect == "postgresql"
    with opened.db.write() as cursor:
        cursor.execute("DELETE FROM checkpoints")
    digest = added(opened, 5)
    assert not (tmp_path / "registry.db").exists()
    assert cli(["models", "ls", "--json", "--home", str(tmp_path)]) == 0
    assert [row["digest"] for row in json.loads(capsys.readouterr().out)] == [digest]
    opened.db.close()
    monkeypatch.setenv("AGENT_FORGE_STORE", "not a url")
    assert Registry(tmp_path).db.dialect == "sqlite"
