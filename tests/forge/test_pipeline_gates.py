"""No gain, no change: against a direct statement of the rule, and against chance."""

from __future__ import annotations

import json
import math
import random
import warnings
from pathlib import Path

import pytest

from agent_forge.errors import MissingExtraError
from agent_forge.forge.events import Bus, PhaseEvent, Tail, jsonl_sink, read_events, tensorboard_sink, wandb_sink
from agent_forge.forge.gates import judge


@pytest.mark.parametrize("lower", [True, False])
def test_a_gate_passes_only_beyond_the_error(lower: bool) -> None:
    rng = random.Random(0)
    for _ in range(500):
        before, change, error, least = rng.uniform(0, 3), rng.gauss(0, 1), rng.uniform(0, 0.5), rng.choice([0, 0.1])
        gate = judge("x", before, before + change, error, lower_is_better=lower, least_gain=least)
        gain = before - gate.after if lower else gate.after - before
        assert gate.passed == (gain > least + 2 * error)
        assert gate.verdict in ("passed", "no gain")
        assert gate.as_dict() == {
            "metric": "x", "before": before, "after": before + change, "stderr": error, "verdict": gate.verdict,
            **({"least_gain": least} if least else {}),
        }  # fmt: skip


def test_chance_seldom_passes() -> None:
    """Two equal models: the difference of two means of 50 draws, at two standard errors, passes in about 2.3 %."""
    rng = random.Random(1)
    passed = 0
    for _ in range(2000):
        a, b = ([rng.gauss(0, 1) for _ in range(50)] for _ in range(2))
        differences = [y - x for x, y in zip(a, b, strict=True)]
        mean = sum(differences) / 50
        error = math.sqrt(sum((d - mean) ** 2 for d in differences) / 49 / 50)
        passed += judge("x", sum(a) / 50, sum(b) / 50, error).passed
    assert 0.01 < passed / 2000 < 0.045


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("figure", [None, math.nan, math.inf, -math.inf])
def test_what_was_not_measured_never_passes(place: int, figure: float | None) -> None:
    figures: list[float | None] = [2.0, 1.0, 0.1]
    figures[place] = figure
    gate = judge("x", *figures)
    assert (gate.verdict, gate.passed) == ("not measured", False)
    assert [gate.before, gate.after, gate.stderr][place] is None
    assert judge("x", 2.0, 1.0, -0.1).verdict == "not measured"


def test_events_survive_a_torn_line_and_what_json_lacks(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "events.jsonl"
    tail = Tail(path)
    assert (tail.read(), read_events(path)) == ([], [])
    jsonl_sink(path)(PhaseEvent("progress", "a", {"loss": math.nan, "step": 1, "where": Path("x"), "kind": "not this"}))
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    assert [(e.kind, e.phase, e.fields) for e in tail.read()] == [
        ("progress", "a", {"loss": None, "step": 1, "where": "x"})
    ]
    with open(path, "ab") as file:
        file.write(b'{"kind": "progress", "pha')  # killed here
    assert tail.read() == []
    with open(path, "ab") as file:
        file.write(b"\n5\n[]\n{}\n")
    jsonl_sink(path)(PhaseEvent("finished", "a"))
    assert [event.kind for event in tail.read()] == ["finished"]
    with open(path, "ab") as file:
        file.write(b'{"kind": "prog')
    jsonl_sink(path)(PhaseEvent("failed", "b"))  # a new writer does not continue the torn line
    assert [event.kind for event in read_events(path)] == ["progress", "finished", "failed"]


def test_a_failing_sink_is_left_out_and_the_others_go_on() -> None:
    kinds: list[str] = []

    def broken(event: PhaseEvent) -> None:
        raise OSError("the disk is full")

    bus = Bus(broken, lambda event: kinds.append(event.kind))
    with pytest.warns(RuntimeWarning, match="the disk is full"):
        bus.tell("started", "a")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bus.tell("finished", "a")
    assert kinds == ["started", "finished"]


def test_tensorboard_has_the_numbers_of_progress(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = tensorboard_sink(tmp_path)
    sink(PhaseEvent("progress", "base", {"step": 3, "steps": 9, "loss": 1.5, "text": "x", "flag": True}))
    sink(PhaseEvent("progress", "base", {"step": 3, "steps": 9, "evaluation": {"bits_per_byte": 2.5}}))
    sink(PhaseEvent("finished", "base"))
    log = EventAccumulator(str(tmp_path)).Reload()
    assert log.Tags()["scalars"] == ["base/loss", "base/evaluation/bits_per_byte"]
    assert [(scalar.step, scalar.value) for scalar in log.Scalars("base/loss")] == [(3, 1.5)]


def test_what_is_not_installed_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(MissingExtraError, match="pip install wandb"):
        wandb_sink(tmp_path, "s")
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match="pip install tensorboard"):
        tensorboard_sink(tmp_path)


def test_wandb_stays_offline_and_gets_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in at the edge of the process: the package itself is not needed to know what it is told."""
    import sys
    import types

    calls: list[object] = []
    run = types.SimpleNamespace(log=calls.append)
    module = types.ModuleType("wandb")
    module.init = lambda **options: (calls.append(options), run)[1]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    sink = wandb_sink(tmp_path, "nano-1")
    sink(PhaseEvent("progress", "base", {"step": 3, "loss": 1.5, "note": "x"}))
    sink(PhaseEvent("started", "base"))
    assert calls == [
        {"project": "agent-forge", "name": "nano-1", "dir": str(tmp_path), "mode": "offline"},
        {"base/loss": 1.5, "base/step": 3},
    ]
