"""Real traffic: runs that a rollout routes, their exposures in the trace store, and what a step makes of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_forge.agents.policies import strategy_by_flag
from agent_forge.cli import run as cli
from agent_forge.rollout import Assignment, Guardrails, Rollouts, TraceReadings, bucket, expose, policy_for
from agent_forge.rollout.readings import exposure_name
from agent_forge.traces import Recorder, Store
from agent_forge.traces.scores import add_score


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    with Store.open(place) as opened:
        yield opened


def served(
    recorder: Recorder,
    assignment: Assignment,
    *,
    fails: bool = False,
    tool_fails: bool = False,
    cost: float | None = None,
) -> str:
    """A run that a rollout has routed, as `run` records it. Returns its trace."""
    root = recorder.start("request", "run")
    from agent_forge.traces import use_span

    with use_span(root):
        expose(recorder, assignment)
        if cost is not None:
            recorder.end(recorder.start("chat", "model", input_tokens=10, output_tokens=5, cost=cost))
        tool = recorder.start("search", "tool")
        recorder.end(tool, error="no" if tool_fails else None)
    recorder.end(root, error="it failed" if fails else None)
    return root.trace_id


def test_the_policy_of_a_unit_is_its_bucket(rollouts: Rollouts) -> None:
    assert policy_for("u", home=rollouts) == Assignment(None, "u")
    rollouts.create("r", candidate="forged", baseline="rules", stages=(0.3, 1.0))
    units = [f"user-{number}" for number in range(60)]

    def candidates() -> set[str]:
        return {unit for unit in units if policy_for(unit, home=rollouts).policy == "forged"}

    first = candidates()
    assert first == {unit for unit in units if bucket("r", unit) < 0.3}
    rollouts.create("next", candidate="graph", baseline="rules", stages=(0.6, 1.0))
    assert policy_for(units[0], home=rollouts).rollout == "next"  # the latest one decides, unless one is named
    assert policy_for(units[0], home=rollouts, rollout="r").rollout == "r"
    rollouts.promote("next")
    rollouts.promote("r")
    assert {policy_for(unit, home=rollouts).policy for unit in units} == {"forged"}
    rollouts.rollback("r")
    assert {policy_for(unit, home=rollouts).policy for unit in units} == {"rules"}


def test_what_traces_say_about_both_arms(place: str, rollouts: Rollouts, store: Store) -> None:
    rollout = rollouts.create("r", candidate="forged", baseline="rules")
    recorder = Recorder(store)
    arms = {arm: Assignment(arm, f"{arm}-user", "r", arm, 0, 0.1) for arm in ("candidate", "baseline")}
    for _ in range(3):  # one unit, whose three runs count once
        served(recorder, arms["candidate"], cost=0.5)
    for number in range(4):
        unit = Assignment("rules", f"u{number}", "r", "baseline", 0, 0.1)
        last = served(recorder, unit, fails=number == 0, tool_fails=number < 2)
    served(recorder, Assignment("rules", "late", "r", "baseline", 1, 0.5))
    served(recorder, Assignment("rules", "else", "other", "baseline", 0, 0.5))
    open_root = recorder.start("request", "run")  # exposed, and not ended: metrics that arrive late
    from agent_forge.traces import use_span

    with use_span(open_root):
        expose(recorder, Assignment("forged", "open", "r", "candidate", 0, 0.1))
    recorder.flush()
    add_score(store, store.trace(last), 0.75, components={"safety": 0.0})
    now_s = max(run.start_s for run in TraceReadings(store).exposed("r"))

    readings = TraceReadings(store)(rollout, now_s)
    first, second = readings.stages
    assert (first.units, second.units) == ((2, 4), (0, 1))
    assert first.moments["success"][0].n == 1  # the open one is a unit without a result
    assert first.moments["success"][1].mean == 0.75
    assert first.moments["tool_errors"][1].mean == 0.5
    assert first.moments["cost"][0].mean == 0.5
    assert first.moments["cost"][1].n == 0  # not measured is not zero
    assert first.moments["tokens"][0].mean == 15
    assert [moments.n for moments in first.moments["reward"]] == [0, 1]
    assert first.moments["reward"][1].mean == 0.75
    assert readings.safety == ((0, 2), (1, 5))
    assert readings.recent[1] == (1, 5)
    assert readings.last_s == now_s
    assert TraceReadings(store)(rollout, now_s - 3600).stages == ()  # nothing that was still to come

    (span,) = store.search(name=exposure_name("other"))
    assert span.policy == "rules"
    assert "else" not in json.dumps(span.attributes)  # a digest, not the name of a user
    assert store.trace(span.trace_id)[0].policy == "rules"
    recorder.close()


def test_requests_are_routed_and_a_step_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from agent_forge import run

    def command(*words: str) -> Any:
        assert cli(["rollout", *words, "--home", str(tmp_path), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    question = "Who is older, Manuel Antonio or Wilfred MacDonald?"
    created = command(
        "create", "r", "--candidate", "graph", "--baseline", "rules", "--stages", "50,100", "--min-units", "1"
    )
    assert {"name", "state", "stage", "share", "candidate", "baseline", "decisions"} <= created.keys()
    with Recorder(tmp_path) as recorder:
        for unit in ("a", "b", "c", "d"):
            assert run(question, unit=unit, home=tmp_path, recorder=recorder).answer == "Manuel Antonio"
    expected = sum(bucket("r", unit) < 0.5 for unit in "abcd")
    stepped = command("step", "r")
    assert stepped["decisions"][-1]["figures"]["units"] == {"candidate": expected, "baseline": 4 - expected}
    assert stepped["share"] == 0.5
    assert command("assign", "a")["bucket"] == bucket("r", "a")
    assert command("promote", "r", "--why", "seen enough")["state"] == "promoted"
    assert command("ls")["policies"]["current"] == "graph"
    assert run(question, unit="a", home=tmp_path, record=False).answer == "Manuel Antonio"
    assert command("rollback", "r", "--now", "2026-12-01")["decisions"][-1]["at"] == "2026-12-01T00:00:00Z"
    assert command("status", "r")["state"] == "rolled_back"
    assert cli(["rollout", "step", "r", "--now", "noon", "--home", str(tmp_path)]) == 2
    assert cli(["rollout", "status", "other", "--home", str(tmp_path)]) == 2
    for words in (["ls"], ["status", "r"], ["assign", "a"]):
        assert cli(["rollout", *words, "--home", str(tmp_path)]) == 0
    assert "rolled back" in capsys.readouterr().out


def test_a_policy_that_run_does_not_know_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, candidate, note in (
        ("a", "frged", "there is no policy 'frged'"),
        ("b", "react", "'react' needs a model"),
        ("c", "forged", None),
    ):
        assert cli(["rollout", "create", name, "--candidate", candidate, "--home", str(tmp_path)]) == 0
        err = capsys.readouterr().err
        assert note in err if note is not None else "note" not in err


def test_a_candidate_that_cannot_serve_leaves_it_to_the_baseline(tmp_path: Path) -> None:
    from agent_forge import run

    rollouts = Rollouts.open(tmp_path)
    rollouts.create("r", candidate="no-such-model", baseline="rules", stages=(0.999, 1.0))
    with Recorder(tmp_path) as recorder:
        question = "Who is older, Manuel Antonio or Wilfred MacDonald?"
        result = run(question, unit="a", home=tmp_path, recorder=recorder)
        assert result.answer == "Manuel Antonio"
        recorder.flush()
        (span,) = recorder.store.search(name=exposure_name("r"))
    assert span.policy == "rules"
    assert span.attributes["agent_forge.rollout.arm"] == "fallback"
    assert span.attributes["agent_forge.rollout.why"] == "there is no policy 'no-such-model'"


def test_a_model_that_changed_behind_its_name_does_not_serve(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    files = {
        "config.json": "{}",
        "card.json": '{"inputs": ["base-1"]}',
        "tokenizer.json": "{}",
        "chat_template.jinja": "{{ x }}",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    rollouts = Rollouts(":memory:")
    rollouts.create(
        "r",
        candidate="m1",
        baseline="rules",
        stages=(0.999, 1.0),
        folder_of=lambda name: folder if name == "m1" else None,
    )
    assert policy_for("a", home=rollouts).folder == str(folder)
    changed = {
        "tokenizer.json": ("[1]", "tokenizer"),
        "chat_template.jinja": ("{{ yy }}", "template"),
        "card.json": ('{"inputs": ["b2"]}', "base"),
    }
    for name, (text, part) in changed.items():
        (folder / name).write_text(text)
        assignment = policy_for("a", home=rollouts)
        assert assignment.policy == "rules"
        assert part in (assignment.why or "")
        (folder / name).write_text(files[name])
        os.utime(folder / name)
    assert policy_for("a", home=rollouts).policy == "m1"


@pytest.mark.parametrize(
    ("text", "has_model", "strategy"),
    [("true", False, "graph"), ("false", True, "react"), ("false", False, None), ("", True, None)],
)
def test_gap_enabled_chooses_the_strategy(
    text: str, has_model: bool, strategy: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAP_ENABLED", text)
    assert strategy_by_flag(tmp_path, None, has_model) == strategy
    (tmp_path / "flags.yaml").write_text("flags: [")  # requests go on
    assert strategy_by_flag(tmp_path, None, has_model) is None


def test_a_bad_candidate_is_pulled_back_by_real_spans(tmp_path: Path) -> None:
    rollouts = Rollouts.open(tmp_path)
    rollouts.create("r", candidate="bad", baseline="good", stages=(0.5, 1.0), guardrails=Guardrails(min_days=0))
    with Store.open(tmp_path) as store:
        recorder = Recorder(store)
        for number in range(80):
            assignment = policy_for(f"user-{number}", home=rollouts)
            served(recorder, assignment, fails=assignment.policy == "bad" and number % 4 > 0)
        recorder.close()
        assert rollouts.step("r", TraceReadings(store)).state == "rolled_back"
    assert rollouts.decisions("r")[-1].why.startswith("a burst of errors")
    assert policy_for("user-1", home=rollouts).policy == "good"


def test_the_demo_pulls_the_planted_candidate_back(tmp_path: Path) -> None:
    from rich.console import Console

    from agent_forge.cli._demo_rollout import show_rollouts

    (row,) = show_rollouts(str(tmp_path), Console(quiet=True), "planted")
    assert (row["state"], row["share"]) == ("rolled_back", 0.0)
    assert row["figures"]["success"]["candidate"] == 0
    assert row["figures"]["success"]["baseline"] == 1
    assert Rollouts.open(tmp_path).current() == "rules"
