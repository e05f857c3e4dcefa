"""What agents practise: the prompts of `agents eval`, exercises that are never held out, and rewards in parallel."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from turning import PROFILE

from agent_forge.agents.front import blocking
from agent_forge.agents.profiles import roster
from agent_forge.config import dump
from agent_forge.errors import ConfigError, UsageError
from agent_forge.inference import ChatClient, Completion, Request
from agent_forge.learning.exercises import Examinee, exercises_for
from agent_forge.learning.practice import Practice, WrittenAnswer, judging, own_rewarder, paired, reward_of, score_of
from agent_forge.learning.recorded import attempts_of, records_of
from agent_forge.learning.settings import AgentTraining
from agent_forge.learning.trainer_file import read_trainer_file
from agent_forge.tasks.family import is_held_out
from agent_forge.traces import Recorder, Store
from agent_forge.traces.turns import EXERCISE

GENESIS = roster("genesis")


class Listener(ChatClient):
    """Remembers what it was asked."""

    name, provider = "listener", "test"

    async def answer(self, request: Request) -> Completion:
        self.request = request
        return Completion("{}", self.name, "stop")

    async def pieces(self, request: Request) -> AsyncIterator[str | Completion]:
        yield await self.answer(request)


@pytest.mark.parametrize("agent", ["qa", "seo", "support"])
def test_the_prompts_are_those_of_agents_eval(agent: str) -> None:
    profile, listener = GENESIS[agent], Listener()
    (_, exercise), *_ = exercises_for([profile], 1)

    async def ask() -> None:
        with Recorder(Store.open(":memory:")) as recorder, recorder.span("root"):
            await Examinee(listener).attempt(profile, exercise, recorder)

    blocking(ask())
    practice = Practice(profile, None, [0])
    assert practice.messages(exercise) == list(listener.request.messages)
    assert listener.request.tools == ()
    assert practice.schema == listener.request.answer_schema


def test_nothing_that_is_learnt_is_held_out() -> None:
    practice, other = (Practice(GENESIS["finance"], None, [0], seed) for seed in (3, 4))
    learnt = {practice.exercise(number).prompt for number in range(120)}
    assert len(learnt) == 120
    assert not any(map(is_held_out, learnt))
    assert not learnt & {exercise.prompt for exercise in practice.validation(30)}
    assert not learnt & {exercise.prompt for _, exercise in exercises_for([GENESIS["finance"]])}
    assert not learnt & {other.exercise(number).prompt for number in range(120)}
    assert {practice.exercise(number).level for number in range(3)} == {0.2, 0.5, 0.8}


def test_answers_are_judged_in_order_and_repeated_ones_once(tmp_path: Path) -> None:
    practice = Practice(PROFILE, None, [0])
    exercises = [practice.exercise(number) for number in range(6)]
    right = [WrittenAnswer(exercise, practice.solution(exercise), 20) for exercise in exercises]
    wrong = [WrittenAnswer(exercise, '{"go": "nowhere"}', 20) for exercise in exercises]
    mixed = [answer for pair in zip(right, wrong, strict=True) for answer in pair]
    with judging(PROFILE, 1) as judges:
        rewards = judges(mixed * 2)
    assert [correct for _, correct in rewards] == [True, False] * 12
    assert rewards[0][0] == reward_of(PROFILE, right[0]).total > 0.9
    assert rewards[1][0] < 0.3
    file = tmp_path / "mine.py"
    file.write_text("seen = []\ndef length(answer):\n    return float(len(answer.text))\n")
    with judging(PROFILE, 1, f"{file}:length") as judges:  # a reward of one's own: what is right stays right
        assert judges(mixed[:2]) == [(float(len(right[0].text)), True), (17.0, False)]
    for name, why in (("length", "FILE.py:NAME"), (f"{file}:width", "width"), ("no.such:f", "imported")):
        with pytest.raises(UsageError, match=why):
            own_rewarder(name)


def test_figures_have_standard_errors() -> None:
    before, after = [(0.0, False), (0.2, False), (0.4, True)], [(0.5, True), (0.5, True), (0.5, True)]
    assert score_of(before).mean == pytest.approx(0.2)
    assert score_of(before).stderr == pytest.approx(0.2 / 3**0.5)
    assert score_of(before).correct == pytest.approx(1 / 3)
    gain, error = paired(before, after)
    assert gain == pytest.approx(0.3)
    assert error == pytest.approx(0.2 / 3**0.5)


def test_what_must_not_be_learnt_from_traces_is_dropped_and_counted(tmp_path: Path) -> None:
    practice = Practice(PROFILE, None, [0])
    one, two, three = (practice.exercise(number) for number in range(3))
    secret = practice.tasks.make(0, 0.5, held_out=True)

    def record(exercise: object, text: object, correct: bool = True, agent: str = "turner") -> dict[str, object]:
        named = {} if exercise is None else {EXERCISE: exercise.to_dict()}  # type: ignore[attr-defined]
        return {"agent": agent, "turns": [], "final_result": text, "correct": correct, **named}

    good, bad = json.loads(practice.solution(one)), {"go": "nowhere"}
    rows = [
        record(one, good), record(one, json.dumps(good)), record(one, "nonsense", False), record(one, bad, False),
        record(two, practice.solution(two)), record(two, "not of the form"), record(secret, practice.solution(secret)),
        record(None, "x"), record(one, good, agent="other"), record(three, practice.solution(three)),
    ]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    attempts = attempts_of(records_of(str(tmp_path)), practice, [three])
    assert [(each.exercise, each.correct) for each in attempts.kept] == [
        (one, True),
        (one, False),
        (one, False),
        (two, True),
    ]
    assert attempts.counts() == {
        "right": 2, "wrong": 2, "dropped, answer of the wrong form": 1, "dropped, duplicate": 1, "dropped, held out": 2,
        "dropped, names no exercise": 1,
    }  # fmt: skip
    ((right, wrong),) = attempts.pairs()
    assert (right.exercise, right.correct, wrong.exercise, wrong.correct) == (one, True, one, False)


SEEDS_FILE = """\
trainer:
  type: "ppo"  # Proximal Policy Optimization
  learning_rate: 0.0001
  batch_size: 32
  epochs: 10

trace_store:
  path: "data/lightning_traces"
  format: "jsonl"

rewards:
  function: "GenesisRewardFunction"
  normalize: true
  discount_factor: 0.99

training:
  max_steps: 10000
  checkpoint_every: 1000
  eval_every: 500
  early_stopping: true

agents_to_optimize:
  - "analyst_agent"  # Start with highest-value agent
  - "support_agent"
"""


def test_the_trainer_file_of_the_original_is_accepted_as_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "lightning_trainer.yaml"
    file.write_text(SEEDS_FILE)
    agents, settings = read_trainer_file(file)
    assert agents == ["analyst", "support"]
    assert (settings.algorithm, settings.learning_rate, settings.batch_size) == ("ppo", 1e-4, 32)
    assert (settings.iterations, settings.checkpoint_every, settings.evaluate_every) == (10_000, 1000, 500)
    assert (settings.normalise, settings.discount, settings.patience) == (True, 0.99, AgentTraining.patience)
    assert settings.reward is None  # each agent's own profile
    assert settings.traces is None  # PPO makes its own attempts; sft and dpo read the store
    file.write_text(SEEDS_FILE.replace('"ppo"', "dpo").replace("early_stopping: true", "early_stopping: false"))
    _, settings = read_trainer_file(file)
    assert (settings.traces, settings.patience, settings.epochs) == ("data/lightning_traces", 0, 10)
    file.write_text(SEEDS_FILE.replace("batch_size", "batchsize"))
    with pytest.raises(ConfigError, match=r"batchsize.*batch_size"):
        read_trainer_file(file)
    assert "batch_size: 32" in dump(settings)


def test_settings_that_contradict_each_other_are_refused() -> None:
    for fields, why in (
        ({"algorithm": "dpo"}, "traces"),
        ({"batch_size": 12, "group": 8}, "groups of 8"),
        ({"algorithm": "ppo", "turns": 2}, "single answers"),
        ({"turns": 2, "temperature": 0.5}, "temperature 1"),
        ({"turns": 2, "by_parts": True}, "single answers"),
        ({"algorithm": "ppo", "by_parts": True}, "single answers"),
    ):
        with pytest.raises(ConfigError, match=why):
            AgentTraining(**fields)  # type: ignore[arg-type]
    assert AgentTraining(iterations=7).warmup_steps == 7
    assert AgentTraining(iterations=7, warmup=0).warmup_steps == 0
    temperatures = [AgentTraining(**fields).sampling_temperature for fields in ({}, {"turns": 2}, {"temperature": 0.8})]
    assert temperatures == [0.5, 1.0, 0.8]
