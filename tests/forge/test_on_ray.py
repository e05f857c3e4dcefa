"""Evaluation, evolution, agents' exercises and forge phases on workers: the same results as here, on a real Ray cluster
where Ray is installed, and when a worker is killed in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests_forge_family import make_family, write_rows

from agent_forge import forge
from agent_forge.agents.profiles import roster
from agent_forge.forge.evolution.examiner import Examiner
from agent_forge.forge.evolution.genome import start_genome
from agent_forge.forge.evolution.jury import EvaluationLog, Jury
from agent_forge.forge.evolution.search import Member
from agent_forge.forge.evolution.settings import TECHNIQUES, Evolve, TaskSource
from agent_forge.forge.pipeline import read_pipeline
from agent_forge.forge.registry import Registry
from agent_forge.forge.session import ForgeSession
from agent_forge.forge.training import PromptItem, ReinforceSettings
from agent_forge.forge.training.reinforce import SampleCollector
from agent_forge.learning.exercises import Examinee, evaluate_agents, exercises_for
from agent_forge.runtime import Inline
from agent_forge.runtime.jobs import Jobs
from agent_forge.traces import Recorder, Store

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "runtime")]  # for the workers, too

PLACES = ["here", "ray"]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """One cluster for all: starting it takes seconds."""
    pytest.importorskip("ray", reason="ray is not installed: the extra `ray` brings it")
    from agent_forge.runtime.ray_workers import Ray

    cluster = Ray(cpus=2)
    yield cluster
    asyncio.run(cluster.close())


@pytest.fixture(params=PLACES)
def workers(request: pytest.FixtureRequest) -> Any:
    return Inline() if request.param == "here" else request.getfixturevalue("ray")


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("family")
    rows = {f"{name} rows": Path(path) for name, path in write_rows(folder, count=8).items()}
    return {**make_family(folder, steps=1), **rows}


def test_jobs_on_ray_lose_nothing(ray: Any, tmp_path: Path) -> None:
    from test_runtime_jobs import jobs_for, square

    with Jobs(ray) as jobs:
        work = [*jobs_for(tmp_path / "a", [5], dies=2), *jobs_for(tmp_path / "a", list(range(6, 30)))]
        assert jobs.map(square, work, resources={"cpus": 1}) == [n * n for n in range(5, 30)]
    assert (tmp_path / "a" / "5").stat().st_size == 3


def test_the_suite_scores_the_same(workers: Any, family: dict[str, Path], tmp_path: Path) -> None:
    rows = [{"question": f"the cat likes {n}", "choices": ["the fish", "the moon"], "answer": n % 2} for n in range(9)]
    for task in ("arc_easy", "piqa"):
        (tmp_path / f"{task}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options: dict[str, Any] = {"data": str(tmp_path / "arc_easy.jsonl"), "suite": ("arc_easy", "piqa")}
    here, told = forge.evaluate(family["tales"], **options), []
    there = forge.evaluate(family["tales"], workers=workers, tell=lambda **fields: told.append(fields), **options)
    assert there.scores == here.scores
    assert [fields["done"] for fields in told] == [1, 2]


def near_to(item: int, answer: list[int]) -> float:
    return 1.0 / (1 + abs(answer[0] - item))


def test_rewards_are_the_same(workers: Any) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    settings = ReinforceSettings(iterations=1, prompts=2, copies=3, max_tokens=1)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, **shape)).eval()
    drawn = [PromptItem([3], 7), PromptItem([4], 9)]
    with Jobs(workers) as jobs:
        here, there = (
            SampleCollector(model, lambda number: drawn, near_to, settings, jobs=place).answers(drawn, 0)
            for place in (None, jobs)
        )
    assert here.rewards.tolist() == there.rewards.tolist()
    assert len(set(here.rewards.tolist())) > 1


def test_candidates_score_the_same(workers: Any, family: dict[str, Path], tmp_path: Path) -> None:
    config = Evolve(
        data={name: TaskSource(str(family[f"{name} rows"])) for name in ("stories", "sums")},
        parents=(str(family["tales"]), str(family["maths"])),
        base=str(family["base"]),
        length=64,
    )
    examiner = Examiner.open(config, tmp_path / "projected")
    figures = []
    for place in (None, workers):
        log = EvaluationLog(tmp_path / f"{place is None}.jsonl")
        jury = Jury(config, examiner, log, tmp_path / "projected", place)
        members = [Member(start_genome(jury.space, name), "") for name in TECHNIQUES[:2]]
        members = [replace(member, key=jury.key(member.genome)) for member in members]
        jury.evaluate(members)
        jury.close()
        assert {member.key for member in members} <= EvaluationLog(log.path).records.keys(), "and all is in the log"
        figures.append([(member.key, member.fitness) for member in members])
    assert figures[0] == figures[1]


def test_agents_score_the_same(workers: Any, tmp_path: Path) -> None:
    profiles = [roster("genesis")[name] for name in ("analyst", "qa")]
    work, scores = exercises_for(profiles, 3, seed=5), []
    for place in (None, workers):
        with Store.open(tmp_path / f"{place is None}.db") as store, Recorder.from_settings(store) as recorder:
            scores.append(evaluate_agents(work, Examinee("random"), recorder, concurrency=2, workers=place).to_dict())
    assert scores[0] == scores[1]
    assert [score["n"] for score in scores[1]["agents"].values()] == [3, 3]


def test_phases_make_the_same_models_and_survive_their_workers(
    workers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AGENT_FORGE_STORE", raising=False)
    phases = {
        "base": {"phase": "toys.make", "resources": {"cpus": 1}},
        "left": {"phase": "toys.add", "after": ["base"], "config": {"number": 2}},
        "right": {"phase": "toys.add", "after": ["base"], "config": {"number": 3}},
        "join": {"phase": "toys.add", "after": ["left", "right"]},
    }
    file = tmp_path / "pipeline.yaml"
    digests = []
    for place in (Inline(), workers):
        if not isinstance(place, Inline):
            phases["left"]["config"]["dies_at"] = str(tmp_path / "died")  # its worker dies the first time
        file.write_text(json.dumps({"name": "toy", "parallel": 2, "phases": phases}))
        registry = Registry(tmp_path / f"home-{len(digests)}")
        report = ForgeSession(read_pipeline(str(file)), registry, workers=_Shared(place)).run()
        assert report.state == "completed"
        digests.append([phase.checkpoint for phase in report.phases])
        registry.db.close()
    assert digests[0] == digests[1]
    assert (tmp_path / "died").exists() == (not isinstance(workers, Inline))


class _Shared:
    """Workers that a session does not close."""

    def __init__(self, workers: Any) -> None:
        self.call = workers.call

    async def close(self) -> None:
        """They are the module's."""


def test_a_machine_that_sees_neither_home_nor_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another home folder, and the session's out of sight: inputs and results travel through the model store."""
    monkeypatch.delenv("AGENT_FORGE_STORE", raising=False)
    monkeypatch.setenv("AGENT_FORGE_MODELS", f"file://{tmp_path}/share")

    class Away(Inline):
        async def call(self, handler: Any, task: Any, inputs: Any) -> Any:
            home.rename(hidden / "here")
            (hidden / "there").rename(there)
            monkeypatch.setenv("AGENT_FORGE_HOME", str(there))
            try:
                return await super().call(handler, task, inputs)
            finally:
                there.rename(hidden / "there")
                (hidden / "here").rename(home)

    home, there, hidden = (tmp_path / name for name in ("here", "there", "hidden"))
    (hidden / "there").mkdir(parents=True)
    steps = {"base": {"phase": "toys.make"}, "more": {"phase": "toys.add", "after": ["base"]}}
    (tmp_path / "pipeline.yaml").write_text(json.dumps({"name": "toy", "phases": steps}))
    registry = Registry(home)
    report = ForgeSession(read_pipeline(str(tmp_path / "pipeline.yaml")), registry, workers=Away()).run()
    assert [phase.state for phase in report.phases] == ["completed", "completed"], report
    for phase in report.phases:
        assert registry.load(str(phase.checkpoint)).path.parent == registry.models
    assert len(os.listdir(hidden / "there" / "models")) >= 2
    registry.db.close()
