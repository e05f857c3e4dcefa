"""Agents on checked exercises: evaluation, resume, collection, fixed scenarios, and an agent of one's own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agent_forge.agents.profiles import AgentProfile, choose_profile, roster
from agent_forge.cli._app import run_command
from agent_forge.errors import ConfigError, ModelError, SandboxError, UsageError
from agent_forge.inference import Completion, Request
from agent_forge.learning.exercises import Examinee, GivenAnswer, collect_exercises, evaluate_agents, exercises_for
from agent_forge.rewards import score_record, score_trace
from agent_forge.tasks import Draft, Verdict, family, task_family
from agent_forge.tasks.family import is_held_out
from agent_forge.tasks.fixed import PER_AGENT, draw_fixed, dump_exercises, fixed_exercises, load_exercises
from agent_forge.traces import Recorder, Store
from agent_forge.traces.collect import Target, attempts_in
from agent_forge.traces.lightning import agent_lightning
from agent_forge.traces.turns import CORRECT, turns
from agent_forge.traces.validate import validate_spans

GENESIS = roster("genesis")
CHEAP = ["analyst", "finance", "hr", "sales", "support"]


@pytest.mark.parametrize("agent", sorted(GENESIS))
def test_the_fixed_scenarios_are_those_of_their_seeds_and_held_out(agent: str) -> None:
    fixed = fixed_exercises(agent)
    again = draw_fixed(family(agent))
    assert dump_exercises(fixed) == dump_exercises(again)
    assert [json.loads(json.dumps(each.to_dict())) for each in again] == [each.to_dict() for each in fixed]
    assert len({exercise.prompt for exercise in fixed}) == PER_AGENT == 18
    assert Counter(exercise.level for exercise in fixed) == {0.2: 6, 0.5: 6, 0.8: 6}
    assert all(is_held_out(exercise.prompt) for exercise in fixed)  # so no seed draws them for training


def test_another_seed_gives_other_held_out_exercises() -> None:
    (profile,) = [GENESIS["finance"]]
    first, again, other = (exercises_for([profile], 6, seed) for seed in (7, 7, 8))
    assert first == again
    prompts = [{exercise.prompt for _, exercise in work} for work in (first, other, exercises_for([profile]))]
    assert not prompts[0] & prompts[1]
    assert not prompts[0] & prompts[2]
    assert all(is_held_out(prompt) for prompt in prompts[0] | prompts[1])
    assert len(exercises_for([profile], 5)) == 5
    with pytest.raises(UsageError, match="--seed"):
        exercises_for([profile], 19)


def test_eval_of_solvers_from_outside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    means = {}
    for model in ("reference", "random", "copy"):
        call = ["agents", "eval", "--agents", ",".join(CHEAP), "--model", model, "--per-agent", "3", "--json"]
        assert run_command([*call, "--home", str(tmp_path)]) == 0
        document = json.loads(capsys.readouterr().out)
        assert list(document["agents"]) == CHEAP
        assert all(one["n"] == 3 and one["stderr"] >= 0 for one in document["agents"].values())
        assert document["mean"] == pytest.approx(sum(one["mean"] for one in document["agents"].values()) / 5)
        means[model] = document["mean"]
    assert means["reference"] >= 0.95
    assert 0.2 < means["random"] < 0.65
    assert means["copy"] <= 0.1
    assert run_command(["agents", "eval", "--agents", "finance", "--model", "reference", "--per-agent", "2", "--home",
                        str(tmp_path)]) == 0  # fmt: skip
    assert capsys.readouterr().out.splitlines()[1].split() == ["finance", "1.000", "0.000", "1.000", "2"]
    with Store.open(tmp_path / "traces.db") as store:
        spans = [span for trace in store.each_trace() for span in trace]
        assert validate_spans([(n, span.to_dict()) for n, span in enumerate(spans)]) == []


def test_eval_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_FORGE_MODEL", raising=False)
    home = ["--home", str(tmp_path)]
    for call, words in (
        (["--agents", "finanse", "--model", "reference"], "Did you mean 'finance'"),
        (["--agents", "finance"], "there is no model"),
        (["--agents", "writer", "--roster", "default", "--model", "reference"], "has no task family"),
    ):
        assert run_command(["agents", "eval", *call, *home]) == 2
        assert words in capsys.readouterr().err


class Flaky(GivenAnswer):
    """A model that answers so many times, and then cannot be reached."""

    def __init__(self, answers: int) -> None:
        super().__init__("flaky", "{}")
        self.answers = answers

    async def answer(self, request: Request) -> Completion:
        if self.answers == 0:
            raise ModelError("connection refused")
        self.answers -= 1
        return await super().answer(request)


def test_a_stopped_evaluation_goes_on_and_a_complete_one_starts_anew(tmp_path: Path) -> None:
    work = exercises_for([GENESIS["finance"], GENESIS["hr"]], 5)
    with Recorder(tmp_path / "traces.db") as recorder:
        with pytest.raises(UsageError, match="connection refused"):
            evaluate_agents(work, Examinee(Flaky(4)), recorder, concurrency=1)
        rest = Flaky(100)
        scores = evaluate_agents(work, Examinee(rest), recorder, concurrency=1)
        # the four that were done are not done again, except one that the failure beside it may have cut off
        assert 100 - rest.answers in (6, 7)
        assert {name: one.n for name, one in scores.agents.items()} == {"finance": 5, "hr": 5}
        assert scores.errors == 0
        roots = list(attempts_in(recorder.store, scores.session))
        assert len(roots) == 10
        anew = evaluate_agents(work, Examinee(rest), recorder, concurrency=1)
        assert 100 - rest.answers in (16, 17)
        assert anew.session != scores.session
        assert anew.agents == scores.agents


def test_exercises_that_cannot_be_judged_are_in_no_mean(tmp_path: Path) -> None:
    def refuse(answer: Any, expected: Any) -> Verdict:
        raise SandboxError("there is no sandbox here")

    @task_family("unjudged", check=refuse, solve=lambda expected: "x")
    def unjudged(rng: Any, level: float) -> Draft:
        return Draft(f"Say {rng.random()}.", {})

    work = exercises_for([AgentProfile("judge", family="unjudged")], 2)
    with Recorder(tmp_path / "traces.db") as recorder:
        scores = evaluate_agents(work, Examinee("reference"), recorder)
    assert (scores.errors, scores.mean, scores.agents["judge"].n) == (2, None, 0)
    assert "no sandbox" in str(scores.error)


def test_with_more_turns_an_agent_may_call_its_tools(tmp_path: Path) -> None:
    offered = []

    class Curious(GivenAnswer):
        async def answer(self, request: Request) -> Completion:
            offered.append([tool["function"]["name"] for tool in request.tools])
            return await super().answer(request)

    work = exercises_for([GENESIS["finance"]], 1)
    with Recorder(tmp_path / "traces.db") as recorder:
        for turns_allowed in (1, 3):
            answer = json.dumps(work[0][1].solution())
            scores = evaluate_agents(work, Examinee(Curious("m", answer), turns_allowed), recorder)
            assert scores.mean == pytest.approx(1.0)
    assert offered == [[], ["calculator"]]


def test_collected_traces_are_balanced_valid_and_in_every_record(tmp_path: Path) -> None:
    profiles = [GENESIS[name] for name in CHEAP]
    attempts = [Examinee("reference"), Examinee("random")]
    with Recorder(tmp_path / "traces.db") as recorder:
        done = collect_exercises(profiles, attempts, Target(40), recorder, name="c")
        assert done.agents == dict.fromkeys(CHEAP, 8)
        again = collect_exercises(profiles, attempts, Target(40), recorder, name="c")
        assert (again.traces, again.added) == (40, 0)
        traces = list(recorder.store.each_trace())
    right = sum(bool(span.attributes.get(CORRECT)) for trace in traces for span in trace)
    assert 20 <= right <= 24  # a few of the drawn answers are right by chance
    prompts = Counter(record["turns"][0]["observation"] for record in turns(traces))
    assert set(prompts.values()) == {2}  # right and wrong at the same exercise: pairs to learn preferences from
    spans = [span for trace in traces for span in trace]
    assert validate_spans([(n, span.to_dict()) for n, span in enumerate(spans)]) == []
    records = [json.loads(json.dumps(record)) for record in turns(traces)]
    for trace, record in zip(traces, records, strict=True):
        stored = score_trace(trace)
        assert record["correct"] is stored.correct
        assert record["turns"][-1]["reward"] == record["reward"] == pytest.approx(stored.total, abs=1e-9)
        assert score_record(record).total == pytest.approx(stored.total)
        assert not any(is_held_out(turn["observation"]) for turn in record["turns"])
    calls = [line for line in agent_lightning(traces) if line["name"] == "openai.chat.completion"]
    assert len(calls) == 40
    assert all(line["attributes"]["gen_ai.completion.0.content"] for line in calls)


OWN_FAMILY = """
from agent_forge.tasks import Draft, Verdict, task_family

def check(answer, expected):
    return Verdict.of(answer["sum"] == expected["sum"], f"{answer['sum']} is not the sum")

SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}

@task_family("sums", check=check, solve=lambda expected: expected, schema=SCHEMA)
def sums(rng, level):
    numbers = [rng.randrange(10 + round(1000 * level)) for _ in range(3)]
    return Draft(f"What is {' + '.join(map(str, numbers))}?", {"sum": sum(numbers)})
"""


def test_an_agent_of_ones_own_is_one_file_and_one_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "my_tasks.py").write_text(OWN_FAMILY, encoding="utf-8")
    (folder / "adder.yaml").write_text("name: adder\nfamily: my_tasks.py:sums\n", encoding="utf-8")
    call = ["agents", "eval", "--profiles", str(folder), "--model", "reference", "--per-agent", "3", "--json"]
    assert run_command([*call, "--home", str(tmp_path / "home")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["agents"]["adder"] == {"mean": 1.0, "stderr": 0.0, "n": 3, "correct": 1.0}
    assert choose_profile(folder / "adder.yaml").answer_schema["required"] == ["sum"]
    own = tmp_path / "own.yaml"
    own.write_text("exercises:\n- {agent: adder, family: sums, prompt: What is 2 + 2?, expected: {sum: 4}}\n")
    assert run_command([*call, "--scenarios", str(own), "--home", str(tmp_path / "home")]) == 0
    assert json.loads(capsys.readouterr().out)["agents"]["adder"]["n"] == 1


@pytest.mark.parametrize(
    "text",
    ["exercises: []", "exercises: 3", "x", "exercises:\n- {family: finance}", "exercises:\n- {colour: red}", "{"],
)
def test_files_that_are_no_exercises_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        load_exercises(tmp_path / "own.yaml")


def test_requests_in_a_file_are_still_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "requests.yaml"
    path.write_text("scenarios:\n- request: Who is older, Manuel Antonio or Wilfred MacDonald?\n  answer: Manuel\n")
    assert run_command(["agents", "eval", "--scenarios", str(path), "--home", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"] == 1


def test_a_stored_trace_is_scored_by_its_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Recorder(tmp_path / "traces.db") as recorder:
        work: Any = exercises_for([GENESIS["finance"]], 1)
        evaluate_agents(work, Examinee("reference"), recorder)
        (trace,) = recorder.store.each_trace()
    call = ["traces", "reward", trace[0].trace_id, "--home", str(tmp_path), "--json"]
    assert run_command([*call, "--profile", "finance"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["judge"], document["value"]) == ("reward finance", pytest.approx(1.0))
    assert document["scores"][0]["components"]["cap"] == 1.0
    assert run_command(call) == 2
    assert run_command([*call, "0.5", "--profile", "finance"]) == 2


@pytest.mark.parametrize(("model", "correctness"), [("reference", "1"), ("copy", "-0.5")])
def test_totals_that_may_be_negative_are_moved_onto_the_scale_of_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, correctness: str
) -> None:
    with Recorder(tmp_path / "traces.db") as recorder:
        work: Any = exercises_for([GENESIS["finance"]], 1)
        evaluate_agents(work, Examinee(model), recorder)
        (trace,) = recorder.store.each_trace()
    call = ["traces", "reward", trace[0].trace_id, "--home", str(tmp_path), "--json", "--profile", "plus-minus-one"]
    assert run_command(call) == 0
    document = json.loads(capsys.readouterr().out)
    (given,) = document["scores"]
    assert document["judge"] == "reward plus-minus-one"
    total = score_trace(trace, "plus-minus-one").total
    assert total == 1 if model == "reference" else -0.5 <= total < 0
    assert given["value"] == pytest.approx((total + 1) / 2)
    assert f"{total:g} on the scale from -1 to 1: correctness {correctness}, " in given["comment"]
