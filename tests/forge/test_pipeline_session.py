"""A pipeline runs each phase once, goes on after kill -9, and passes on what brought no gain."""

from __future__ import annotations

import fcntl
import io
import json
import multiprocessing
import os
import random
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agent_forge.cli import run as cli
from agent_forge.cli.forge import event_display
from agent_forge.errors import AgentForgeError, ConfigError, DataError, UsageError
from agent_forge.forge.events import Bus, PhaseEvent, read_events
from agent_forge.forge.phases.worker import locked
from agent_forge.forge.pipeline import read_pipeline
from agent_forge.forge.registry import Registry
from agent_forge.forge.session import ForgeSession
from agent_forge.runtime.workers import Inline
from agent_forge.terminal import ProgressDisplay
from agent_forge.traces import Recorder, Store

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _toys_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(HERE), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.syspath_prepend(str(HERE))


def pipeline_file(folder: Path, phases: dict[str, dict[str, object]], **more: object) -> str:
    named = {name: {"phase": f"toys.{'add' if step.get('after') else 'make'}", **step} for name, step in phases.items()}
    path = folder / "pipeline.yaml"
    path.write_text(json.dumps({"name": "toy", "phases": named} | more))  # JSON is YAML
    return str(path)


def run(path: str, home: Path, **options: object) -> object:
    return ForgeSession(read_pipeline(path), Registry(home), workers=Inline(), **options).run()


def states(report: object) -> dict[str, str]:
    return {phase.name: phase.state for phase in report.phases}


TRACKS = {
    "base": {},
    "left": {"after": ["base"], "config": {"number": 2}},
    "right": {"after": ["base"], "config": {"number": 3}},
    "join": {"after": ["left", "right"], "config": {"number": 1}},
}


def test_the_spans_of_phases_are_of_their_kind_and_carry_their_names(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "home")
    report = run(pipeline_file(tmp_path, TRACKS), tmp_path / "home", recorder=recorder)
    recorder.close()
    spans = [span for span in Store.open(tmp_path / "home").trace(report.trace) if span.kind != "run"]
    assert {span.name: (span.kind, span.attributes["phase"]) for span in spans} == {
        name: ("phase", "toys.add" if "after" in step else "toys.make") for name, step in TRACKS.items()
    }


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "process"])
def test_a_phase_that_fails_keeps_its_traceback(tmp_path: Path, inline: bool, capsys) -> None:
    path = pipeline_file(tmp_path, {"base": {"config": {"fail": True}}})
    if inline:
        failed = run(path, tmp_path / "home").phases[0]
        file, session = Path(failed.traceback), Path(failed.traceback).parent.name
    else:
        assert cli(["forge", "run", path, "--home", str(tmp_path / "home")]) == 1
        shown = capsys.readouterr().out
        file = Path(shown.partition("Where base failed: ")[2].split("\n")[0])
        session = file.parent.name
    trace = file.read_text()
    assert "ValueError: it was told to fail" in trace
    assert 'phases.py", line' in trace  # where it was raised, in whichever process
    assert cli(["forge", "show", session, "--home", str(tmp_path / "home")]) == 0
    assert str(file) in capsys.readouterr().out
    event = read_events(file.parent / "events.jsonl")[-1]
    assert (event.kind, event.fields["traceback"]) == ("failed", str(file))


def test_parallel_tracks_meet_and_a_second_run_skips_everything(tmp_path: Path) -> None:
    path = pipeline_file(tmp_path, TRACKS, parallel=2)
    events: list[PhaseEvent] = []
    report = run(path, tmp_path / "home", bus=Bus(events.append))
    assert report.state == "completed"
    assert states(report) == dict.fromkeys(TRACKS, "completed")
    registry = Registry(tmp_path / "home")
    join = next(phase for phase in report.phases if phase.name == "join")
    assert join.gate == {"metric": "number", "before": 7.0, "after": 8.0, "stderr": 0.1, "verdict": "passed"}
    assert {entry.phase for entry in registry.ls()} == set(TRACKS)
    parents = registry.find(join.checkpoint).parents
    assert {registry.find(parent).phase for parent in parents} == {"left", "right"}
    assert [event.phase for event in events if event.kind == "finished"][-1] == "join"
    again = run(path, tmp_path / "home")
    assert states(again) == dict.fromkeys(TRACKS, "skipped")
    assert [phase.checkpoint for phase in again.phases] == [phase.checkpoint for phase in report.phases]
    assert [session["state"] for session in registry.sessions()] == ["completed", "completed"]


def test_no_gain_passes_the_input_on_and_strict_stops(tmp_path: Path) -> None:
    phases = {"base": {}, "worse": {"after": ["base"], "config": {"number": -1}}, "next": {"after": ["worse"]}}
    path = pipeline_file(tmp_path, phases)
    report = run(path, tmp_path / "home")
    base, worse, after = report.phases
    assert (worse.state, worse.gate["verdict"], worse.checkpoint) == ("no gain", "no gain", base.checkpoint)
    assert after.gate["before"] == 1.0, "the next phase got the input of the one without gain"
    strict = run(path, tmp_path / "strict", strict=True)
    assert strict.state == "failed"
    assert states(strict) == {"base": "completed", "worse": "failed", "next": "not run"}
    assert "no gain" in strict.phases[1].error
    again = run(path, tmp_path / "strict", strict=True)
    assert states(again) == {"base": "skipped", "worse": "failed", "next": "not run"}, (
        "nor does it pass the second time"
    )


def test_a_failing_phase_leaves_the_other_track_alone(tmp_path: Path) -> None:
    phases = {"base": {}, "bad": {"after": ["base"], "config": {"fail": True}}, "good": {"after": ["base"]}}
    phases["behind"] = {"after": ["bad"]}
    report = run(pipeline_file(tmp_path, phases), tmp_path / "home")
    assert report.state == "failed"
    assert states(report) == {"base": "completed", "bad": "failed", "good": "completed", "behind": "not run"}
    assert "it was told to fail" in report.phases[1].error
    assert Registry(tmp_path / "home").sessions()[0]["state"] == "failed"


def test_a_changed_configuration_runs_again_and_only_what_depends_on_it(tmp_path: Path) -> None:
    run(pipeline_file(tmp_path, TRACKS), tmp_path / "home")
    changed = {**TRACKS, "left": {"after": ["base"], "config": {"number": 5}}}
    report = run(pipeline_file(tmp_path, changed), tmp_path / "home")
    assert states(report) == {"base": "skipped", "left": "completed", "right": "skipped", "join": "completed"}


def test_a_damaged_checkpoint_is_made_again(tmp_path: Path) -> None:
    path = pipeline_file(tmp_path, {"base": {}})
    models = Registry(tmp_path / "home").home / "models"
    first = run(path, tmp_path / "home")
    weights = next(models.glob("base-*/model.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    assert cli(["models", "verify", first.phases[0].checkpoint, "--home", str(tmp_path / "home")]) == 1
    with pytest.raises(AgentForgeError, match="do not match"):
        Registry(tmp_path / "home").load(first.phases[0].checkpoint)
    again = run(path, tmp_path / "home")
    assert states(again) == {"base": "completed"}
    assert again.phases[0].checkpoint == first.phases[0].checkpoint
    assert Registry(tmp_path / "home").load(first.phases[0].checkpoint).path.parent == models.resolve()
    card = next(models.glob("base-*/card.json"))
    card.write_text(card.read_text().replace('"notes": ""', '"notes": "changed"'))
    assert states(run(path, tmp_path / "home")) == {"base": "completed"}
    assert states(run(path, tmp_path / "home")) == {"base": "skipped"}


def test_two_phases_alike_are_done_once_even_side_by_side(tmp_path: Path) -> None:
    counted = tmp_path / "runs"
    same = {"after": ["base"], "config": {"number": 2, "runs": str(counted)}}
    report = run(pipeline_file(tmp_path, {"base": {}, "left": same, "right": same}, parallel=2), tmp_path / "home")
    assert report.state == "completed"
    assert sorted(states(report).values()) == ["completed", "completed", "skipped"]
    assert len(counted.read_text().split()) == 1
    assert report.phases[1].checkpoint == report.phases[2].checkpoint
    assert list((tmp_path / "home" / "work").iterdir()) == [], "no locks are left"


def test_a_lock_that_was_removed_is_nobodys(tmp_path: Path) -> None:
    """Between opening the file and locking it, its last holder may remove it."""
    folder, turns = tmp_path / "work", []

    def take() -> None:
        for _ in range(30):
            with locked(folder, wait=True):
                turns.append("in")
                time.sleep(0.001)
                turns.append("out")

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert turns == ["in", "out"] * 120


def test_a_broken_promise_fails_the_phase(tmp_path: Path) -> None:
    report = run(pipeline_file(tmp_path, {"base": {"phase": "toys.liar"}}), tmp_path / "home")
    assert report.state == "failed"
    assert "broke its promise: architecture: Other, found Toy" in report.phases[0].error
    assert Registry(tmp_path / "home").ls() == []


def test_a_handoff_is_adapted_and_both_models_are_registered(tmp_path: Path) -> None:
    first = run(pipeline_file(tmp_path, {"base": {"config": {"number": 4}}}), tmp_path / "one")
    folder = Registry(tmp_path / "one").find(first.phases[0].checkpoint).path
    path = pipeline_file(tmp_path, {"half": {"phase": "toys.picky"}}, start=[str(folder)])
    report = run(path, tmp_path / "two")
    assert report.phases[0].gate["before"] == 4.0
    registry = Registry(tmp_path / "two")
    adapted = registry.find(registry.find(report.phases[0].checkpoint).parents[0])
    assert adapted.phase == "adapter"
    assert adapted.parents == (first.phases[0].checkpoint,)
    assert registry.load(first.phases[0].checkpoint).path == folder, "the original is known where it lies"
    assert [row["verdict"] for row in registry.handoffs()] == ["adapted"]


def test_a_handoff_that_cannot_be_adapted_is_recorded_as_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    first = run(pipeline_file(tmp_path, {"base": {}}), tmp_path / "one")
    shutil.copytree(Registry(tmp_path / "one").find(first.phases[0].checkpoint).path, folder)
    (folder / "card.json").unlink()
    (folder / "config.json").write_text('{"architectures": ["Else"]}')
    report = run(pipeline_file(tmp_path, {"half": {"phase": "toys.picky"}}, start=[str(folder)]), tmp_path / "two")
    assert "unmet: architecture: Toy, found Else" in report.phases[0].error
    assert [row["verdict"] for row in Registry(tmp_path / "two").handoffs()] == ["refused"]


def test_a_start_that_is_not_there_or_was_changed_stops_it_before_anything_is_done(tmp_path: Path) -> None:
    missing = pipeline_file(tmp_path, {"more": {"phase": "toys.add"}}, start=["0123abcd"])
    with pytest.raises(UsageError, match="there is no checkpoint '0123abcd'"):
        run(missing, tmp_path / "home")
    first = run(pipeline_file(tmp_path, {"base": {}}), tmp_path / "home")
    folder = Registry(tmp_path / "home").find(first.phases[0].checkpoint).path
    card = folder / "card.json"
    card.write_text(card.read_text().replace('"seed": 0', '"seed": 43'))
    with pytest.raises(AgentForgeError, match="the card was changed"):
        run(pipeline_file(tmp_path, {"more": {"phase": "toys.add"}}, start=[str(folder)]), tmp_path / "home")
    assert len(Registry(tmp_path / "home").sessions()) == 1


def test_a_start_is_for_the_phases_that_take_one(tmp_path: Path) -> None:
    first = run(pipeline_file(tmp_path, {"base": {"config": {"number": 4}}}), tmp_path / "home")
    phases = {"new": {"config": {"number": 9}}, "more": {"phase": "toys.add"}}
    report = run(pipeline_file(tmp_path, phases, start=[first.phases[0].checkpoint[:16]]), tmp_path / "home")
    assert [phase.gate["before"] for phase in report.phases] == [0.0, 4.0]


def test_an_interrupt_pauses_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("toys.phases.value_of", interrupt)
    path = pipeline_file(tmp_path, {"base": {}, "more": {"after": ["base"]}})
    with pytest.raises(KeyboardInterrupt):
        run(path, tmp_path / "home")
    assert Registry(tmp_path / "home").sessions()[0]["state"] == "paused"
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(HERE))
    assert states(run(path, tmp_path / "home")) == {"base": "skipped", "more": "completed"}


FORK = multiprocessing.get_context("fork")  # a real process, without seconds of imports


def session(path: str, home: Path, ready: Any, out: Path) -> None:
    registry = Registry(home)
    ready.set()
    report = ForgeSession(read_pipeline(path), registry, workers=Inline()).run()
    out.write_text(json.dumps(report.as_dict()))


def test_kill_9_at_any_moment_and_it_goes_on(tmp_path: Path) -> None:
    """Killed over and over, the pipeline goes on from the last finished phase and ends with the undisturbed result."""
    counted = tmp_path / "runs"
    phases = {
        name: {**step, "config": {**step.get("config", {}), "slow_s": 0.2, "runs": str(counted)}}
        for name, step in TRACKS.items()
    }
    path = pipeline_file(tmp_path, phases)
    rng = random.Random(1)
    for wait_s in (rng.uniform(0.1, 0.6), rng.uniform(0.1, 0.6), None):
        ready = FORK.Event()
        process = FORK.Process(target=session, args=(path, tmp_path / "home", ready, tmp_path / "report.json"))
        process.start()
        assert ready.wait(60)
        if wait_s is not None:
            time.sleep(wait_s)
            process.kill()
        process.join(240)
    assert process.exitcode == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["state"] == "completed"
    ran = counted.read_text().split()
    undisturbed = run(path, tmp_path / "other")
    assert [phase["checkpoint"] for phase in report["phases"]] == [phase.checkpoint for phase in undisturbed.phases]
    assert len(ran) <= len(TRACKS) + 2, "at most the phase that was running is done again after each kill"
    registry = Registry(tmp_path / "home")
    assert "running" not in {session["state"] for session in registry.sessions()}
    for entry in registry.ls():
        registry.load(entry.digest)


def test_two_processes_do_not_do_the_same_phase(tmp_path: Path) -> None:
    with locked(tmp_path / "work"), open((tmp_path / "work").with_suffix(".lock"), "a") as other:
        with pytest.raises(OSError, match="unavailable"):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(UsageError, match="another process runs this phase"), locked(tmp_path / "work"):
            pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phases": {"a": {"phase": "congate"}}}, "Did you mean 'cognate'?"),
        ({"phases": {"a": {"phase": "no.such.module"}}}, "cannot be loaded"),
        ({"phases": {"a": {"config": {"nubmer": 1}}}}, "unknown key 'nubmer'; did you mean 'number'?"),
        ({"phases": {"a": {"phase": "..x"}}}, "cannot be loaded"),
        ({"phases": {}}, "the plan has no task"),
        ({"phases": {"a": {}, "b": {"after": ["c"]}}}, "there is no such task"),
        ({"phases": {"a": {"after": ["b"]}, "b": {"after": ["a"]}}}, "tasks wait for each other"),
        ({"phases": {"a": {}}, "start": ["x"]}, "start: no phase takes these"),
        ({"phases": {"a": {"phase": "toys.add"}}}, "takes 1 to 3 checkpoints, and is given 0"),
        ({"phases": {"../a": {}}}, "'../a' cannot be part of a folder's name"),
        ({"phases": {"a": {}}, "name": "x/y"}, "'x/y' cannot be part of a folder's name"),
        (
            {"phases": {"a": {"phase": "toys.liar"}, "b": {"phase": "toys.picky", "after": ["a"]}}},
            "phases.b: takes Toy, and 'a' promises Other",
        ),
        ({"phases": {"a": {}}, "prallel": 2}, "unknown key 'prallel'; did you mean 'parallel'?"),
    ],
)
def test_a_pipeline_that_cannot_work_is_refused_before_anything_is_done(
    change: dict[str, dict[str, dict[str, object]]], message: str, tmp_path: Path
) -> None:
    path = pipeline_file(tmp_path, **change)
    with pytest.raises(UsageError) as caught:  # the call was wrong: exit code 2
        read_pipeline(path)
    assert message in str(caught.value)


def test_a_pipeline_among_several_processes_of_a_launcher_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="starts its own processes"):
        run(pipeline_file(tmp_path, {"base": {}}), tmp_path / "home")


def test_missing_data_stops_it_before_anything_is_done(tmp_path: Path) -> None:
    last = {"phase": "specialise", "after": ["base"], "config": {"sources": {"text": {"path": "not/there"}}}}
    with pytest.raises(DataError, match="there is no text"):
        run(pipeline_file(tmp_path, {"base": {}, "last": last}), tmp_path / "home")
    assert Registry(tmp_path / "home").sessions() == []


def test_presets_are_sound_and_unknown_ones_named() -> None:
    for name in ("nano", "small", "full"):
        assert {"base", "reasoning", "memory", "adaptive", "evomerge"} <= set(read_pipeline(name).plan().tasks)
    assert set(read_pipeline("planner").phases) == {"supervised", "small"}
    assert read_pipeline("nano", ["seed=7", "phases.base.config.length=64"]).seed == 7
    with pytest.raises(UsageError, match="Did you mean 'nano'"):
        read_pipeline("nanno")
    with pytest.raises(ConfigError):
        read_pipeline("nano", ["phases.base.config.lenght=64"])


def test_a_pipeline_may_start_from_a_model_folder(tmp_path: Path) -> None:
    first = run(pipeline_file(tmp_path, {"base": {"config": {"number": 4}}}), tmp_path / "home")
    folder = Registry(tmp_path / "home").find(first.phases[0].checkpoint).path
    path = pipeline_file(tmp_path, {"more": {"phase": "toys.add"}}, start=[str(folder)])
    report = run(path, tmp_path / "other")
    assert report.phases[0].gate["before"] == 4.0


def test_events_are_kept_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    report = run(pipeline_file(tmp_path, {"base": {}}), tmp_path / "home")
    log = tmp_path / "home" / "sessions" / report.session / "events.jsonl"
    assert [event.kind for event in read_events(log)] == ["started", "progress", "finished"]
    with open(log, "a") as file:
        file.write('{"kind": "progr')
    assert len(read_events(log)) == 3
    with pytest.raises(ValueError, match="not a kind"):
        Bus().tell("nonsense", "base")


def test_the_events_of_a_session_are_shown() -> None:
    stream = io.StringIO()
    display = ProgressDisplay(stream, every_s=0.0)
    figures = {"step": 30, "steps": 90, "loss": 2.5, "tokens_per_s": 1000.0, "mfu": 0.25, "tokens": 30_000}
    gate = {"metric": "m", "before": 2, "after": 1, "stderr": 0.1, "verdict": ""}
    for event in (
        PhaseEvent("progress", "base", figures),
        PhaseEvent("progress", "small", {"done": 2, "total": 8, "stage": "trials"}),
        PhaseEvent("progress", "base", {"step": 3, "loss": 1.0}),
        PhaseEvent("finished", "base", {"gate": gate}),
        PhaseEvent("finished", "base", {"gate": gate | {"stderr": None}}),
        PhaseEvent("no gain", "base", {"gate": gate | {"before": None, "after": None, "verdict": "no gain"}}),
    ):
        event_display(display)(event)
    assert stream.getvalue().splitlines() == [
        "base: 30/90 steps, loss 2.500, 1,000 tokens/s, MFU 25.0%",
        "small: 2/8, trials",
        "base: 3 steps, loss 1.000",
        "base: finished (m 2 → 1 ± 0.1)",
        "base: finished (m 2 → 1)",
        "base: no gain (m: no gain)",
    ]


def test_a_handoff_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digest = run(pipeline_file(tmp_path, {"base": {}}), tmp_path / "home").phases[0].checkpoint
    command = ["forge", "handoff", "--home", str(tmp_path / "home"), "--source", digest]
    assert cli([*command, "--target", "toys.picky", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == digest
    assert cli([*command, "--source", digest, "--target", "toys.add", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == [digest, digest]
    assert cli([*command, "--target", "specialise"]) == 1
    assert cli([*command, "--target", "cognate"]) == 1
    assert "✗ checkpoints: exactly 0 checkpoints, found 1" in capsys.readouterr().out


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    home = ["--home", str(tmp_path / "home")]
    path = pipeline_file(tmp_path, {"base": {}, "more": {"after": ["base"]}})
    assert cli(["forge", "run", path, *home, "--mask", "pii", "--sample", "1"]) == 0  # the only worker processes here
    out = capsys.readouterr()
    assert "completed" in out.out
    assert "base: finished (number 0 → 1 ± 0.1)" in out.err
    assert cli(["forge", "run", path, *home, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {"name", "state", "gate", "checkpoint"} <= report["phases"][0].keys()
    assert [phase["state"] for phase in report["phases"]] == ["skipped", "skipped"]
    digest = report["phases"][1]["checkpoint"]
    assert cli(["models", "ls", *home, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"digest", "path", "phase", "parameters", "bytes", "parents"} <= rows[0].keys()
    assert rows[0]["parents"] == [report["phases"][0]["checkpoint"]]
    for call in (["ls"], ["show", digest[:8]], ["verify", digest], ["gc"]):
        assert cli(["models", *call, *home, "--json"]) == 0
        assert cli(["models", *call, *home]) == 0
    assert "would remove 0 sessions and 0 checkpoints" in capsys.readouterr().out
    capsys.readouterr()
    for listing, phases in ((["ls"], ["show"]), (["status"], ["status"])):  # now, and as they were called before
        assert cli(["forge", *listing, *home]) == 0
        assert cli(["forge", *phases, report["session"], *home, "--json"]) == 0
        assert cli(["forge", *phases, "nothing", *home]) == 2
        out = capsys.readouterr().out
        assert report["session"] in out
        assert json.loads(out[out.index("[") :])[0]["name"] == "base"
    assert cli(["models", "ls", "--phase", "cognate", *home]) == 0
    assert "there is no checkpoint of a phase named 'cognate'" in capsys.readouterr().err
    assert cli(["forge", "phases", "--json"]) == 0
    assert cli(["forge", "phases"]) == 0
    assert cli(["forge", "export", digest, str(tmp_path / "out"), *home]) == 0
    assert "number" in (tmp_path / "out" / "README.md").read_text()
    assert cli(["forge", "export", digest, str(tmp_path / "out"), *home]) == 2
    assert cli(["models", "show", "0000", *home]) == 2
    for option in ("wandb", "tensorboard"):
        monkeypatch.setitem(sys.modules, {"tensorboard": "torch.utils.tensorboard"}.get(option, option), None)
        assert cli(["forge", "run", path, f"--{option}", *home]) == 2
        assert f"pip install {option}" in capsys.readouterr().err
    registry = Registry(tmp_path / "home")
    weights = registry.find(digest).path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    assert cli(["models", "verify", digest, *home, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False
    with registry.db.write() as cursor:
        cursor.execute("UPDATE sessions SET ended_s = 0")
        cursor.execute("UPDATE checkpoints SET created_s = 0")
    assert cli(["models", "gc", "--keep", "0", *home]) == 0
    assert "`agent-forge models gc --apply` removes them" in capsys.readouterr().err
    assert cli(["models", "gc", "--keep", "0", "--apply", "--json", *home]) == 0
    assert len(json.loads(capsys.readouterr().out)["checkpoints"]) == 2
    assert cli(["models", "ls", *home]) == 0
    assert cli(["forge", "ls", *home]) == 0
    err = capsys.readouterr().err
    assert "no checkpoints yet" in err
    assert "no sessions yet" in err
