"""A/B experiments: effects and intervals against simulation, covariates, mismatched shares, guardrails, the command."""

from __future__ import annotations

import json
import random
import xml.etree.ElementTree as ET
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from agent_forge.cli import run as cli
from agent_forge.errors import StoreError, UsageError
from agent_forge.rollout import Experiment, Rollouts, analyse, expose, policy_for
from agent_forge.rollout.experiments import create_experiment, experiments, picture
from agent_forge.rollout.readings import Exposed
from agent_forge.traces import Recorder


def runs(
    rng: random.Random, experiment: Experiment, n: int, effects: dict[str, float], noise: float = 1.0
) -> list[Exposed]:
    """Units whose reward is what they earned before, plus noise, plus the effect of their variant."""
    made = []
    for number in range(n):
        variant, past = experiment.variant(f"user-{number}"), rng.gauss(0, 1)
        reward = past + rng.gauss(0, noise) + effects.get(variant, 0.0)
        values = {"reward": reward, "latency": rng.lognormvariate(0, 0.2), "cost": 1.0 + (variant == "dear")}
        made.append(Exposed(f"u{number}", variant, 0, float(number), values, covariate=past))
    return made


AB = Experiment("ab", {"old": 1, "new": 1}, "reward", ("latency", "cost"))


def test_an_effect_is_found_with_its_size_and_the_past_narrows_it() -> None:
    made = runs(random.Random(1), AB, 4_000, {"new": 0.2})
    report = analyse(AB, made)
    (effect,) = [each for each in report.effects if each.metric == "reward"]
    assert report.verdict == "new is better on reward"
    assert effect.lower < 0.2 < effect.upper
    assert effect.cuped == pytest.approx(0.5, abs=0.05)  # half of the variance is the past
    by_hand = {arm: mean(run.values["reward"] for run in made if run.arm == arm) for arm in AB.variants}
    assert effect.mean - effect.control == pytest.approx(by_hand["new"] - by_hand["old"])
    without = [Exposed(run.unit, run.arm, 0, run.start_s, run.values) for run in made]
    (plain,) = [each for each in analyse(AB, without).effects if each.metric == "reward"]
    assert plain.cuped is None
    assert plain.difference == pytest.approx(by_hand["new"] - by_hand["old"])
    assert (effect.upper - effect.lower) / (plain.upper - plain.lower) == pytest.approx(0.5**0.5, abs=0.03)
    assert plain.size == pytest.approx(plain.difference / 2**0.5, rel=0.05)


@pytest.mark.untraced
def test_an_interval_read_every_day_is_wrong_as_rarely_as_it_says() -> None:
    rng, wrong = random.Random(4), 0
    for _ in range(15):
        made = runs(rng, AB, 400, {})
        looks = (analyse(AB, made[:n]).effects for n in range(80, 401, 80))
        wrong += any(effect.metric == "reward" and effect.verdict != "open" for look in looks for effect in look)
    assert wrong <= 1


def test_three_variants_share_alpha_and_a_harmed_guardrail_wins_nothing() -> None:
    three = Experiment("three", {"old": 2, "dear": 1, "worse": 1}, "reward", ("cost",))
    report = analyse(three, runs(random.Random(2), three, 4_000, {"dear": 0.5, "worse": -0.5}))
    verdicts = {(effect.variant, effect.metric): effect.verdict for effect in report.effects}
    assert verdicts == {
        ("dear", "reward"): "better",
        ("worse", "reward"): "worse",
        ("dear", "cost"): "worse",
        ("worse", "cost"): "open",
    }
    assert report.verdict == "worse is worse on reward; dear harms cost"
    drawn = ET.fromstring(picture(report))
    assert len(drawn.findall("{http://www.w3.org/2000/svg}circle")) == len(report.effects)


def test_shares_that_do_not_fit_invalidate_it_and_mixed_units_do_not_count() -> None:
    made = runs(random.Random(3), AB, 2_000, {"new": 0.5})
    filtered = [run for number, run in enumerate(made) if run.arm == "old" or number % 5]
    assert analyse(AB, filtered).verdict.startswith("invalid: the variants do not get their shares")
    twice = [*made, *(Exposed(run.unit, "new", 0, 0.0, {"reward": 99.0}) for run in made[:50] if run.arm == "old")]
    report = analyse(AB, twice)
    assert report.mixed == sum(run.arm == "old" for run in made[:50])
    assert sum(report.units.values()) == 2_000 - report.mixed
    assert analyse(AB, made[:20]).verdict.startswith("open: ")
    assert analyse(AB, []).effects == ()


def test_an_experiment_is_stored_served_reported_and_stopped(
    rollouts: Rollouts, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*words: str) -> Any:
        assert cli(["rollout", "experiment", *words, "--home", place, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    made = command("create", "e", "--variants", "rules=1,forged=3", "--guardrails", "latency")
    assert made["variants"] == {"rules": 1.0, "forged": 3.0}
    with Recorder(place) as recorder:
        for number in range(40):
            assignment = policy_for(f"user-{number}", rollout="e", home=rollouts)
            assert assignment.policy == assignment.arm
            with recorder.span("request", "run"):
                expose(recorder, assignment, covariate=float(number))
    report = command("report", "e", "--svg", str(tmp_path / "e.svg"))
    assert sum(report["units"].values()) == 40
    assert report["units"]["forged"] > report["units"]["rules"]
    assert report["verdict"].startswith("open: ")
    ET.parse(tmp_path / "e.svg")
    assert [row["name"] for row in command("ls")["experiments"]] == ["e"]
    assert command("stop", "e")["state"] == "stopped"
    assert policy_for("user-1", rollout="e", home=rollouts).rollout is None
    for words in (["report", "e"], ["ls"]):
        assert cli(["rollout", "experiment", *words, "--home", place]) == 0
    for words in (
        ["report", "x"],
        ["stop", "x"],
        ["create", "e", "--variants", "a,b"],
        ["create", "f", "--variants", "a"],
    ):
        assert cli(["rollout", "experiment", *words, "--home", place]) == 2


def test_what_cannot_be_used_is_refused(rollouts: Rollouts) -> None:
    for arguments in (
        {"variants": {"a": 1}}, {"variants": {"a": 1, "b": 0}}, {"variants": {"a": 1, "b": 1}, "metric": "speed"},
        {"variants": {"a": 1, "b": 1}, "alpha": 0.7}, {"name": "a b", "variants": {"a": 1, "b": 1}},
    ):  # fmt: skip
        with pytest.raises(UsageError):
            Experiment(**{"name": "e", **arguments})
    create_experiment(rollouts, AB)
    with pytest.raises(UsageError, match="is taken"):
        create_experiment(rollouts, AB)
    with rollouts.db.write() as cursor:
        cursor.execute("UPDATE experiments SET document = '{}'")
    with pytest.raises(StoreError, match="damaged"):
        experiments(rollouts)
