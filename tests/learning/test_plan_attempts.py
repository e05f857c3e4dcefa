"""Plans sampled for reinforcement: under the planner's own grammar, learnt by the distribution they were drawn from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from click.testing import CliRunner  # noqa: E402
from test_sheets import byte_level, tiny_llama  # noqa: E402

from agent_forge.agents.planner.writer import PlanWriter  # noqa: E402
from agent_forge.cli._app import app  # noqa: E402
from agent_forge.errors import ConfigError, DataError  # noqa: E402
from agent_forge.forge import checkpoint as checkpoints  # noqa: E402
from agent_forge.forge.training import ReinforceSettings, learn_policy  # noqa: E402
from agent_forge.forge.training.policy import group_advantages, token_log_probs, unpacked  # noqa: E402
from agent_forge.learning.plan_attempts import PlanCollector, PlanSampler  # noqa: E402
from agent_forge.learning.plan_reward import plan_reward  # noqa: E402
from agent_forge.learning.planner import train_planner  # noqa: E402
from agent_forge.learning.rows import PlanRow, write_plan_rows  # noqa: E402
from agent_forge.learning.settings import PlannerSettings  # noqa: E402
from agent_forge.learning.shrink import ShrinkSettings  # noqa: E402


def tool(name: str, *parameters: str) -> Any:
    properties = {each: {"type": "string"} for each in parameters}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"name": name, "parameters": schema, "returns": ["x"]}


TOOLS = (tool("get", "q"), tool("put", "q"), tool("end"))
ROWS = [
    PlanRow(f"{verb} {place}", f"{verb} {place}", TOOLS, ({"tool": verb, "args": {"q": place}},))
    for verb in ("get", "put")
    for place in ("oslo", "rome", "bonn", "kyiv", "lima")
] + [PlanRow(f"end {n}", f"end {n}", TOOLS, ({"tool": "end", "args": {}},)) for n in range(5)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_level([row.prompt + row.answer for row in ROWS], 300)


@pytest.fixture
def sampler(tokenizer: Any) -> PlanSampler:
    return PlanSampler(tiny_llama(tokenizer.get_vocab_size(), layers=1), tokenizer, 0)


def test_samples_are_drawn_from_the_distribution_that_is_learnt(sampler: PlanSampler) -> None:
    samples, writers = sampler.write(ROWS[:4], max_tokens=60, copies=3, temperature=1.0, seed=1)
    assert samples.allowed is not None
    again = token_log_probs(sampler.policy.model, samples.tokens, samples.mask, allowed_BLV=samples.allowed)
    torch.testing.assert_close(again, samples.log_probs, atol=1e-4, rtol=1e-4)
    for n, writer in enumerate(writers):
        chosen = samples.mask[n].bool()
        masks = unpacked(samples.allowed[n, : int(chosen.sum())], sampler.vocabulary.size)
        tokens = samples.tokens[n][chosen]
        assert masks[torch.arange(len(tokens)), tokens].all()
        forced = masks.sum(1) == 1
        assert forced.any()
        assert (samples.log_probs[n][chosen][forced].abs() < 1e-6).all()  # no choice, nothing to learn
        # what was drawn is what the planner of use reads: the same tokens give the same calls
        replayed = PlanWriter(sampler.vocabulary, TOOLS, ROWS[n // 3].request)
        for token in tokens.tolist()[: -1 if samples.ended[n] else None]:
            assert replayed.allowed()[token]
            replayed.advance(token)
        assert replayed.calls == writer.calls
        if samples.ended[n]:
            assert replayed.allowed()[0]


def test_without_its_weights_the_planner_chooses_what_the_constraint_allows(sampler: PlanSampler) -> None:
    rng = np.random.default_rng(3)
    for row in ROWS[:6]:
        free = PlanWriter(sampler.vocabulary, TOOLS, row.request)
        planner = PlanWriter(sampler.vocabulary, TOOLS, row.request, refuse_above=0.5, ask_weight=1.0)
        for _ in range(40):
            logits = rng.normal(size=sampler.vocabulary.size) * 3
            token = planner.choose(logits)
            if planner.ended:
                break
            assert token == int(np.where(free.allowed(), logits, -math.inf).argmax())
            free.advance(token)
        assert free.calls == planner.calls[: len(free.calls)]


def test_rewards_are_those_of_the_calls_and_plans_cut_off_earn_nothing(sampler: PlanSampler) -> None:
    samples, writers = sampler.write(ROWS, max_tokens=40, copies=2, temperature=1.0)
    rewards = sampler.rewards(ROWS, samples, writers)
    for n, writer in enumerate(writers):
        assert rewards[n] == (plan_reward(ROWS[n // 2], writer.calls) if samples.ended[n] else 0.0)
    assert any(rewards)
    short, writers = sampler.write(ROWS[-2:], max_tokens=1, temperature=1.0)
    assert not short.ended.any()
    assert sampler.rewards(ROWS[-2:], short, writers) == [0.0, 0.0]


def test_an_update_makes_plans_that_earn_more_than_their_group_likelier(sampler: PlanSampler) -> None:
    settings = ReinforceSettings(
        iterations=1, prompts=6, copies=6, max_tokens=40, learning_rate=1e-3, resample=0, evaluate_every=0
    )
    experience, model = PlanCollector(sampler, ROWS, settings)(0), sampler.policy.model
    assert len(experience) > 0  # only groups that differ
    weight = group_advantages(experience.rewards, experience.groups)[:, None] * experience.mask

    @torch.no_grad()
    def objective() -> float:
        found = token_log_probs(model, experience.tokens, experience.mask, allowed_BLV=experience.allowed)
        return float((found * weight).sum() / experience.mask.sum())

    before = objective()
    learn_policy(model, lambda _: experience, settings, progress=None)
    assert objective() > before + 1e-3


def test_rows_of_several_calls_are_drawn_more_often_and_plans_in_words_never(sampler: PlanSampler) -> None:
    double = PlanRow("2", "get oslo, put rome", TOOLS, (ROWS[0].calls[0], ROWS[6].calls[0]) * 2)
    words = PlanRow("3", "think", steps=("think",))
    settings = ReinforceSettings(prompts=500, seed=3)
    collector = PlanCollector(sampler, [ROWS[0], double, words], settings)
    drawn = [row.id for row in collector.draw(0)]
    assert drawn == [row.id for row in collector.draw(0)]
    assert drawn.count("3") == 0
    assert 350 < drawn.count("2") < 450  # four of five
    with pytest.raises(DataError, match="no plans of calls"):
        PlanCollector(sampler, [words], settings)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    folder = tmp_path_factory.mktemp("base")
    model = tiny_llama(tokenizer.get_vocab_size(), layers=1)
    model.generation_config.eos_token_id = model.config.eos_token_id = 0
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_plan_rows(ROWS, folder / "rows.jsonl")
    return folder


LOOP = {"prompts": 2, "copies": 4, "max_tokens": 20, "save_every": 1, "evaluate_every": 2, "resample": 0}


def test_the_command_reinforces_and_an_interrupted_run_ends_with_the_same_weights(base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    rows, iterations = str(base / "rows.jsonl"), list[int]()
    loop = [word for name, value in LOOP.items() for word in ("--set", f"reinforcement.{name}={value}")]
    options = [
        "--lora",
        "--epochs",
        "0.1",
        "--judged",
        "2",
        "--reinforce",
        "2",
        *loop,
        "--out",
        str(tmp_path / "whole"),
    ]
    command = ["train", "planner", "--base-model", str(base), "--data", rows, *options]
    result = CliRunner().invoke(app, command, standalone_mode=False)
    assert result.exception is None, result.output
    metrics = checkpoints.load(tmp_path / "whole").card.metrics
    report = {name: metric.value for name, metric in metrics.items()}
    assert f"{report['fully right, planner']:.2f}" in result.stdout
    assert f"{report['training rows']:.0f} training rows, " in result.stdout
    assert report["steps"] == 1
    assert report["reinforcement iterations"] == 2
    assert report["plan reward, after reinforcement"] >= report["plan reward, before reinforcement"] >= 0

    def tell(**record: Any) -> None:
        if "reward" in record:
            iterations.append(record["iteration"])
            if iterations == [1, 2]:
                raise KeyboardInterrupt

    fields = {"data": (rows,), "epochs": 0.1, "lora": True, "judged": 2, "reinforce": 2, "reinforcement": LOOP}
    with pytest.raises(KeyboardInterrupt):
        train_planner(base, tmp_path / "parts", tell=tell, **fields)
    train_planner(base, tmp_path / "parts", tell=tell, **fields)
    assert iterations == [1, 2, 2]  # the second was not saved when it was interrupted
    whole, parts = (load_file(tmp_path / name / "adapter" / "adapter_model.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert any(weight.any() for name, weight in whole.items() if "lora_B" in name)
    for name, weight in whole.items():
        torch.testing.assert_close(parts[name], weight)


def test_settings_without_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="no steps"):
        PlannerSettings(data=("rows.jsonl",), epochs=0.0)
    with pytest.raises(ConfigError, match="supervised steps alone"):
        ShrinkSettings(data=("rows.jsonl",), reinforce=1)
