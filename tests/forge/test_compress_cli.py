"""`agent-forge compress` and the phase, as a user meets them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests_compress_tiny import make_tiny, texts

from agent_forge.cli import run
from agent_forge.forge import checkpoint
from agent_forge.forge.phases import Work, phase

WORK = [
    *("--length", "48", "--calibration-rows", "8", "--trial-tokens", "96", "--questions", "12", "--tries", "3"),
    *("--steps", "0", "--codecs", "integer,ternary"),
]
JUDGED = ["--eval-tokens", "1200"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    train, held_out = texts()
    rows = [json.dumps({"text": text}) for text in (*train, *held_out)]
    (folder / "text.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return make_tiny(folder / "tiny")


def command(tiny: Path, out: Path, *more: str) -> list[str]:
    return ["compress", str(tiny), str(out), "--data", str(tiny.parent / "text.jsonl"), *more]


def test_compress_prints_what_was_measured(tiny, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    picture = tmp_path / "stages.svg"
    code = run(command(tiny, out, "--max-size", "60kB", "--json", "--svg", str(picture), *WORK, *JUDGED))
    report = json.loads(capsys.readouterr().out)
    assert code == 0
    needed = {"bytes_before", "bytes", "ratio", "bits_per_weight", "ppl_before", "ppl", "kl", "accepted", "stages"}
    assert needed <= report.keys()
    assert report["accepted"] is True
    assert report["bytes"] == sum(file.stat().st_size for file in out.iterdir()) <= 60_000
    assert picture.read_text().startswith("<svg")


def test_a_failed_gate_is_exit_1_under_strict_only(tiny, tmp_path, capsys) -> None:
    ask = ["--max-size", "3kB", "--json", *WORK]
    assert run(command(tiny, tmp_path / "a", *ask, "--strict", *JUDGED)) == 1
    strict = json.loads(capsys.readouterr().out)
    assert strict["accepted"] is False
    assert strict["ppl"] <= 1.3 * strict["ppl_before"]
    assert run(command(tiny, tmp_path / "b", *ask, "--judged", "25")) == 0  # as it was called before: in rows of 48
    again = json.loads(capsys.readouterr().out)
    assert again["accepted"] is False
    assert again["ppl_before"] == strict["ppl_before"]


def test_a_person_gets_a_table(tiny, tmp_path, capsys) -> None:
    assert run(command(tiny, tmp_path / "out", "--max-ppl-increase", "20%", *WORK, *JUDGED)) == 0
    shown = capsys.readouterr()
    assert "bits per weight" in shown.out.replace("\n", " ")
    assert "perplexity" in shown.err


def test_a_wrong_call_is_exit_2(tiny, tmp_path, capsys) -> None:
    assert run(["compress", str(tiny), str(tmp_path / "out")]) == 2
    assert "--max-size" in capsys.readouterr().err
    assert run(["compress", str(tiny), str(tmp_path / "out"), "--max-size", "six"]) == 2
    assert run(command(tiny, tmp_path / "out", "--max-size", "6MB", "--codecs", "zip", *WORK[:-2])) == 2
    for wrong in (["--max-size", ""], ["--max-ppl-increase", ""], ["--max-ppl-increase", "5"]):
        assert run(command(tiny, tmp_path / "out", *wrong, *WORK)) == 2
    for name, value in (
        ("--length", "0"),
        ("--calibration-rows", "0"),
        ("--eval-tokens", "0"),
        ("--judged", "0"),
        ("--batch", "0"),
        ("--seed", "-1"),
    ):
        assert run(command(tiny, tmp_path / "out", "--max-size", "6MB", name, value)) == 2
    capsys.readouterr()
    assert run(command(tiny, tiny / "config.json" / "out", "--max-size", "6MB", *WORK)) == 1
    assert "bytes, perplexity" not in capsys.readouterr().err  # said before the work, not after it
    assert not list(tmp_path.iterdir())


def test_the_phase_makes_a_checkpoint_and_says_no_gain_when_the_budget_cannot_be_met(tiny, tmp_path) -> None:
    from agent_forge.config import build
    from agent_forge.errors import ConfigError

    kind = phase("compression")
    sources = {"stories": {"path": "stories", "most_mb": 0.15}}
    little_work = {"recovery_steps": 0, "rows": 8, "length": 48, "trial_tokens": 96, "tries": 2}
    little_work |= {"questions": 12, "judged": 25}
    fields = {"sources": sources, **little_work, "codecs": ["integer", "ternary"], "held_out": 0.2}
    for budget, verdict in ((0.06, "passed"), (0.003, "no gain")):
        config = build(kind.config, {**fields, "budget_mb": budget})
        folder = tmp_path / f"{budget}"
        work = Work("final", config, [checkpoint.load(tiny)], 0, folder, folder / "models")
        outcome = kind.run(work)
        assert outcome.gate.verdict == verdict
        if outcome.checkpoint is None:
            assert verdict == "no gain"
            continue
        again = checkpoint.load(outcome.checkpoint.path, outcome.checkpoint.digest)
        files = sum(file.stat().st_size for file in outcome.checkpoint.path.iterdir())
        assert again.card.metrics["bytes"].value == files == outcome.gate.after  # all of it, the card too
        assert again.card.metrics["bytes"].value <= 60_000
        assert again.card.metrics["perplexity_ratio"].value <= 1.1
    with pytest.raises(ConfigError, match="no codec"):
        build(kind.config, {**fields, "codecs": ["zip"]})
    assert kind.data(config).keys() == {"stories"}


def test_the_gate_of_the_phase_judges_by_questions_and_by_the_suite_too(tiny, tmp_path, monkeypatch) -> None:
    """A model that keeps its perplexity but not its answers is not passed; one that had none says nothing."""
    from agent_forge.config import build
    from agent_forge.errors import ConfigError
    from agent_forge.forge.evaluation.scores import TaskScore
    from agent_forge.forge.phases import compression

    kind = phase("compression")
    little_work = {"recovery_steps": 0, "rows": 16, "length": 48, "trial_tokens": 96, "tries": 1, "questions": 0}
    sources = {"stories": {"path": "stories", "most_mb": 0.15}}
    fields = {"sources": sources, **little_work, "codecs": ["integer"], "held_out": 0.2, "budget_mb": 0.06}
    config = build(kind.config, {**fields, "evaluation": {"suite": ["arc_easy"], "data": str(tmp_path)}})
    able, lost = (TaskScore("arc_easy", (1.0,) * n + (0.0,) * (40 - n), 0.25) for n in (36, 20))
    scores = iter([[able], [lost]])
    monkeypatch.setattr(compression, "suite_scores", lambda *_: next(scores))
    outcome = kind.run(Work("final", config, [checkpoint.load(tiny)], 0, tmp_path / "work", tmp_path / "models"))
    assert outcome.gate.verdict == "no gain"
    card = outcome.checkpoint.card
    assert card.metrics["suite_kept"].value == pytest.approx((0.5 - 0.25) / (0.9 - 0.25))
    files = sum(file.stat().st_size for file in outcome.checkpoint.path.iterdir())
    assert card.metrics["bytes"].value == files == outcome.gate.after <= 60_000
    assert "suite_kept" not in compression.suite_metrics([replace(able, points=(1.0, 0.0, 0.0, 0.0))], [lost])
    monkeypatch.delenv("AGENT_FORGE_DATA", raising=False)
    with pytest.raises(ConfigError, match="no questions for the suite"):
        kind.data(build(kind.config, {**fields, "evaluation": {"suite": ["arc_easy"]}}))
