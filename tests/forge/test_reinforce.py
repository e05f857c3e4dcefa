"""The loop of reinforcement learning: it learns what is known to be best, resumes exactly, and stops when it should."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests_policy_toys import tiny_llama
from torch.optim.optimizer import register_optimizer_step_pre_hook

from agent_forge.cli import run as run_command
from agent_forge.errors import UsageError
from agent_forge.forge.adapters import add_adapter, without_adapter
from agent_forge.forge.experts.svf import add_scales, set_learning
from agent_forge.forge.training import (
    Experience,
    HeldOutScore,
    PromptItem,
    ReinforceSettings,
    TrainingDiverged,
    experience_of,
    learn_policy,
    read_log,
)
from agent_forge.forge.training import settings as settings_module
from agent_forge.forge.training.checkpoint import weights_of
from agent_forge.forge.training.policy import token_log_probs
from agent_forge.forge.training.reinforce import PolicyRun, SampleCollector, reinforce
from agent_forge.forge.training.watch import PolicyWatch

FAST = ReinforceSettings(
    iterations=24, prompts=4, copies=8, max_tokens=1, learning_rate=1e-2, evaluate_every=0, micro_rows=64
)


def draw(number: int) -> list[PromptItem]:
    """Four prompts of one token, in another order each time; the right answer is the next token but four."""
    return [PromptItem([2 + (number + i) % 4], (number + i) % 4) for i in range(4)]


def reward(item: int, answer: list[int]) -> float:
    return float(answer[:1] == [6 + item])


def expected_reward(model: torch.nn.Module) -> float:
    """Over the prompts, the exact probability of the right answer: 1 is the optimum."""
    chances = model(torch.arange(2, 6)[:, None]).logits[:, -1].softmax(-1)
    return float(chances[torch.arange(4), torch.arange(6, 10)].detach().mean())


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_toy_with_a_known_optimum_is_learnt(algorithm):
    model = tiny_llama()
    assert expected_reward(model) < 0.2
    result = reinforce(model, draw, reward, replace(FAST, algorithm=algorithm, iterations=30), progress=None)
    assert result.iterations == 30
    assert result.stopped is None
    assert expected_reward(model) > 0.6


def test_with_shuffled_rewards_nothing_is_learnt():
    model, luck = tiny_llama(), random.Random(0)
    reinforce(model, draw, lambda *_: float(luck.random() < 0.125), FAST, progress=None)
    assert expected_reward(model) < 0.4


def learning_vectors(model: torch.nn.Module) -> None:
    add_scales(model)
    set_learning(model, True)


@pytest.mark.parametrize(
    ("algorithm", "prepare", "learns"),
    [("ppo", lambda _: None, ""), ("grpo", add_adapter, ".lora_"), ("grpo", learning_vectors, ".shift_R")],
    ids=["weights", "adapter", "vectors"],
)
def test_a_resumed_run_has_the_same_curve(tmp_path: Path, algorithm: str, prepare, learns: str):
    """Checkpoints hold what learns, and nothing of what is fixed."""
    settings = replace(
        FAST, algorithm=algorithm, iterations=4, epochs=2, minibatches=2, kl=0.01, save_every=2, evaluate_every=3,
        decay=0.5,
    )  # fmt: skip

    def run(folder: Path, until: int | None = None) -> torch.nn.Module:
        def stop(record):
            if record["iteration"] == until:
                raise KeyboardInterrupt

        model = tiny_llama()
        torch.manual_seed(3)
        prepare(model)
        judged = {"evaluate": lambda model: HeldOutScore(expected_reward(model), 0.1)}
        reinforce(model, draw, reward, settings, folder=folder, on_record=stop, progress=None, **judged)
        return model

    whole = run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", until=3)
    resumed = run(tmp_path / "broken")
    logs = [read_log(tmp_path / name / "log.jsonl") for name in ("whole", "broken")]
    whole_log, broken_log = ([{**record, "seconds": None} for record in log] for log in logs)
    assert whole_log == broken_log
    assert [record["iteration"] for record in logs[0] if "reward" in record] == [1, 2, 3, 4]
    for ours, theirs in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    saved = [load_file(file) for file in (tmp_path / "whole").glob("*/model.safetensors")]
    learning = {name for name, weight in whole.named_parameters() if weight.requires_grad and learns in name}
    assert len(saved) >= 2  # the last steps, and the best
    for file in saved:
        assert {name.removeprefix("policy.") for name in file if name.startswith("policy.")} == learning


def applied_rates(settings: ReinforceSettings, folder: Path | None = None, until: int | None = None) -> list[float]:
    """The learning rate of every optimiser step, as the optimiser had it."""
    rates: list[float] = []

    def stop(record):
        if record["iteration"] == until:
            raise KeyboardInterrupt

    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    try:
        with suppress(KeyboardInterrupt):
            reinforce(tiny_llama(), draw, reward, settings, folder=folder, on_record=stop, progress=None)
    finally:
        hook.remove()
    return rates


def test_the_learning_rate_falls_to_zero_over_the_last_updates(tmp_path: Path):
    """With KL in the loss every iteration has its two updates, even where no answer says anything."""
    settings = replace(
        FAST, iterations=5, minibatches=2, learning_rate=1e-3, kl=0.01, warmup=0, decay=0.5, save_every=1
    )
    falling = [1.0] * 6 + [0.8, 0.6, 0.4, 0.2]  # ten updates; zero would come after the last
    assert applied_rates(settings) == pytest.approx([1e-3 * factor for factor in falling])
    halves = applied_rates(settings, tmp_path, until=4) + applied_rates(settings, tmp_path)
    assert halves[:6] + halves[-4:] == pytest.approx([1e-3 * factor for factor in falling])
    warming = [0.25, 0.5, 0.75, *[1.0] * 7]
    assert applied_rates(replace(settings, decay=0.0, warmup=4)) == pytest.approx([1e-3 * each for each in warming])


@pytest.mark.parametrize("seed", range(4))
def test_one_update_by_luck_does_not_undo_what_a_policy_has_learnt(seed):
    """A fresh Adam moves every weight by the whole rate in its first step, also where the gradient is noise."""

    def lost(warmup: int | None) -> float:
        model, luck = tiny_llama(seed=seed), random.Random(seed)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(12):
            logits = model(torch.arange(2, 6)[:, None]).logits[:, -1]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(logits, torch.arange(6, 10)).backward()
            optimizer.step()
        before = expected_reward(model)
        settings = replace(FAST, iterations=32, warmup=warmup, update_kl=0.0, resample=0, seed=seed)
        one = iter([1])
        collect = SampleCollector(model, draw, lambda *_: float(luck.random() < 0.5), settings)
        learn_policy(model, lambda number: collect(number) if next(one, None) else None, settings, progress=None)
        return before - expected_reward(model)

    assert lost(warmup=None) < 0.03
    assert lost(warmup=0) > 0.1


@pytest.mark.parametrize("rate", [1e-3, 1e-2, 1e-1])
def test_an_update_moves_a_policy_no_further_than_its_limit(rate):
    """Whatever the rate; the divergence is computed exactly here, over all sixteen answers."""

    def log_chances(model: torch.nn.Module) -> torch.Tensor:
        return model(torch.arange(2, 6)[:, None]).logits[:, -1].log_softmax(-1).detach()

    moved, records = [], []
    for limit in (0.0, 0.02):
        model, luck = tiny_llama(), random.Random(1)
        settings = replace(FAST, iterations=1, copies=64, warmup=0, resample=0, learning_rate=rate, update_kl=limit)
        before = log_chances(model)
        lucky = lambda *_, luck=luck: float(luck.random() < 0.5)  # noqa: E731
        reinforce(model, draw, lucky, settings, on_record=records.append, progress=None)
        moved.append(float((before.exp() * (before - log_chances(model))).sum(-1).mean()))
    assert moved[1] < 3 * 0.02  # it is measured on an eighth of the answers
    if moved[0] < 0.01:
        assert moved[1] == moved[0]  # nothing was held back
    assert ("update_kl" in records[0], "update_kl" in records[1]) == (False, True)
    assert records[1]["update_kl"] == pytest.approx(moved[0], rel=0.5)  # told is how far it would have gone


def test_an_update_is_measured_from_what_its_own_losses_read():
    """That spares a pass. Where memory ran out, a step began again, and some rows were read twice."""
    model = tiny_llama()
    run = PolicyRun(model, replace(FAST, micro_rows=8, update_kl=0.1), None, None, None, None, None, None)
    objective, full, measured = run.train.objective, iter([False, True]), []
    run.divergence = lambda batch, before: float(measured.append((batch, before)) is not None)

    def flaky(*parts):
        if next(full, False):
            raise torch.OutOfMemoryError("full")
        return objective(*parts)

    with run.train.prepared():
        run.train.objective = flaky
        update = run.prepare(SampleCollector(model, draw, reward, run.settings)(0))
        expected = run.scored(update)[0]
        with run.held_back(update):
            run.train.learn(update)
        assert run.train.micro_rows == 4
        ((some, before),) = measured
    rows = [update.old.tolist().index(row) for row in some.old.tolist()]
    assert len(some) == 8
    torch.testing.assert_close(before, expected[rows])
    assert not torch.allclose(before, run.scored(some)[0])


def test_a_limit_keeps_a_high_rate_from_harm():
    """At this rate a policy forgets while it learns; held back it learns what there is to learn."""
    settings = replace(FAST, learning_rate=0.1, iterations=40)
    scores = {}
    for limit in (0.0, 0.1):
        model = tiny_llama()
        reinforce(model, draw, reward, replace(settings, update_kl=limit), progress=None)
        scores[limit] = expected_reward(model)
    assert scores[0.1] > 0.9 > scores[0.0]


# ---------------------------------------------------------------------------------------------- what is learnt from


def test_groups_without_signal_are_drawn_again_but_not_for_ever():
    drawn: list[int] = []

    def noted(number: int) -> list[PromptItem]:
        drawn.append(number)
        return draw(number)

    def only_threes(item: int, answer: list[int]) -> float:
        return float(answer[0] % 2) if item == 3 else 1.0

    collect = SampleCollector(tiny_llama(), noted, only_threes, replace(FAST, copies=16, prompts=3))
    experience = collect(0)
    assert drawn == [0, 1, 2]
    assert len(experience) == 32  # two groups, both of item 3, in draws number 1 and 2
    assert set(experience.tokens[:, 0].tolist()) == {5}
    assert experience.groups.tolist() == [experience.groups[0]] * 16 + [experience.groups[16]] * 16
    assert experience.groups[0] != experience.groups[16]
    assert len(experience.drawn) == 3 * 16
    assert float(experience.drawn.mean()) == 1.0  # what is reported is the first draw, not what was picked
    assert len(SampleCollector(tiny_llama(), draw, lambda *_: 1.0, FAST)(5)) == 0


def test_without_any_signal_the_policy_stays_as_it_is():
    model = tiny_llama()
    before = {name: weight.clone() for name, weight in weights_of(model).items()}
    records: list[dict] = []
    reinforce(model, draw, lambda *_: 1.0, replace(FAST, iterations=3), progress=None, on_record=records.append)
    assert all(torch.equal(weight, before[name]) for name, weight in weights_of(model).items())
    assert [record["step"] for record in records] == [1, 2, 3]


def test_rewards_of_single_tokens_become_advantages_of_single_tokens():
    """Each token is judged against the same token of the group's other answers."""
    model, settings = tiny_llama(), replace(FAST, max_tokens=3, discount=0.0, normalise=False)
    collect = SampleCollector(model, draw, lambda item, answer: [float(token % 2) for token in answer], settings)
    experience = collect(0)
    run = PolicyRun(model, settings, None, None, None, None, None, None)
    advantages = run.prepare(experience).advantages
    odd = (experience.tokens % 2).float()
    for group in range(4):
        rows = experience.groups == group
        torch.testing.assert_close(advantages[rows, 1:], (odd[rows] - odd[rows].mean(0))[:, 1:])
    with pytest.raises(UsageError, match="rewards for 3 tokens"):
        SampleCollector(model, draw, lambda *_: [1.0], settings)(0)


def test_experience_from_elsewhere_has_its_own_advantages_and_masks():
    """Two turns in one row, with a tool's answer between them: only the policy's tokens learn, each with its own
    credit."""
    model, before = tiny_llama(), tiny_llama()
    tokens, mask = [[1, 5, 9, 9, 6], [1, 7, 9, 9, 8]], [[0, 1, 0, 0, 1], [0, 1, 0, 0, 1]]
    old = token_log_probs(model, torch.tensor(tokens), torch.tensor(mask)).tolist()
    credit = [[0.0, 1.0, 0.0, 0.0, -1.0], [0.0, -1.0, 0.0, 0.0, 1.0]]
    experience = experience_of(tokens, mask, old, [1.0, 0.0], [0, 0], credit)
    learn_policy(model, lambda _: experience, replace(FAST, iterations=3, learning_rate=1e-3), progress=None)
    change = [token_log_probs(m, torch.tensor(tokens), torch.tensor(mask)).detach() for m in (model, before)]
    assert torch.equal((change[0] - change[1]).sign()[:, [1, 4]], torch.tensor(credit)[:, [1, 4]])
    with pytest.raises(UsageError, match="every token"):
        experience_of(tokens, mask, old, [1.0, 0.0], [0, 0], [[1.0], [1.0]])


def test_a_run_ends_where_nothing_more_is_collected():
    model = tiny_llama()
    mask = [[0, 0, 1, 1]]
    row = experience_of([[5, 6, 7, 8]], mask, [[0.0, 0.0, -1.0, -1.0]], [1.0], [0], mask)
    result = learn_policy(
        model, lambda iteration: row if iteration < 2 else None, replace(FAST, iterations=9), progress=None
    )
    assert (result.iterations, result.stopped, len(result.rewards)) == (2, None, 2)


def test_neither_micro_batches_nor_gradient_checkpointing_change_an_update():
    weights = []
    for changes in ({}, {"micro_rows": 3}, {"gradient_checkpointing": True}):
        model = tiny_llama()
        reinforce(model, draw, reward, replace(FAST, iterations=2, max_tokens=3, **changes), progress=None, end=4)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(weights[1], weights[0], atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(weights[2], weights[0], atol=1e-4, rtol=1e-3)


def test_an_adapter_learns_against_its_own_base():
    model, base = tiny_llama(), tiny_llama()
    add_adapter(model, settings_module.LoraSettings(rank=4))
    records: list[dict] = []
    settings = replace(FAST, iterations=12, kl=0.01, gradient_checkpointing=True)
    reinforce(model, draw, reward, settings, progress=None, on_record=records.append)
    assert records[0]["kl"] == pytest.approx(0.0, abs=1e-6)
    assert records[-1]["kl"] > 1e-4
    row = torch.tensor([[1, 2, 3]])
    with without_adapter(model):
        torch.testing.assert_close(model(row).logits, base(row).logits)
    assert not torch.allclose(model(row).logits, base(row).logits)


# ---------------------------------------------------------------------------------------------- stopping


def test_a_reward_that_pays_for_length_is_caught_by_the_held_out_score():
    """The planted fault: answers are wanted short (their true score is the chance to end at once), and the reward pays
    for every token."""
    model = tiny_llama()

    def true_score(model: torch.nn.Module) -> HeldOutScore:
        chances = model(torch.arange(2, 6)[:, None]).logits[:, -1].softmax(-1)[:, :8].sum(-1)  # tokens 0 to 7 end it
        return HeldOutScore(float(chances.detach().mean()), 0.01, 8)

    start = true_score(model)
    settings = replace(FAST, iterations=60, max_tokens=6, evaluate_every=10)
    result = reinforce(
        model, draw, lambda _, answer: len(answer) / 6, settings, end=range(8), evaluate=true_score, progress=None
    )
    assert result.stopped is not None
    assert "look for a fault in the reward" in result.stopped
    assert result.iterations < 60
    assert result.rewards[-1] > result.rewards[0]  # the training reward rose all the while
    assert result.after.mean < start.mean - 0.03
    assert true_score(model).mean == pytest.approx(result.best.mean)  # the best policy is back
    assert result.best.mean >= start.mean


@pytest.mark.parametrize(("later", "why"), [(0.934, "did not rise"), (0.99, "look for a fault in the reward")])
def test_a_reward_is_suspected_only_where_it_clearly_rose(later, why):
    watch = PolicyWatch(FAST)
    watch.judge(HeldOutScore(0.954, 0.003), 0)
    for mean in (0.926, later, later, later):
        right = round(512 * mean)
        assert watch.iteration(torch.tensor([1.0] * right + [0.0] * (512 - right)), None) is False
    watch = PolicyWatch.from_notes(FAST, json.loads(json.dumps(watch.notes())))  # as after a break
    watch.judge(HeldOutScore(0.809, 0.009), 4)
    assert watch.stopped is not None
    assert why in watch.stopped


def test_an_evaluation_that_does_not_improve_stops_the_run(tmp_path: Path):
    model = tiny_llama()
    settings = replace(FAST, iterations=30, evaluate_every=2, patience=2)
    scores = iter([0.1, 0.5, 0.5, 0.45, 0.9])
    options = {"folder": tmp_path, "progress": None}
    result = reinforce(model, draw, reward, settings, evaluate=lambda _: HeldOutScore(next(scores), 0.2), **options)
    assert result.stopped == "the held-out score has not improved for 2 evaluations"
    assert (result.iterations, result.before.mean, result.best.mean) == (6, 0.1, 0.5)
    assert (tmp_path / "best" / "state.json").read_text().startswith('{\n "step": 2')


def test_a_loss_that_is_not_finite_stops_with_the_last_good_policy():
    def broken(model: torch.nn.Module, at: int):
        collect = SampleCollector(model, draw, reward, FAST)

        def experience(iteration: int) -> Experience:
            good = collect(iteration)
            return replace(good, log_probs=good.log_probs * torch.nan) if iteration == at else good

        return experience

    model = tiny_llama()
    settings = replace(FAST, iterations=6, evaluate_every=1, patience=0)
    judge = {"evaluate": lambda model: HeldOutScore(expected_reward(model), 1.0)}
    result = learn_policy(model, broken(model, 3), settings, progress=None, **judge)
    assert "the loss is nan" in result.stopped
    assert result.iterations == 4
    assert expected_reward(model) == pytest.approx(result.best.mean)
    other = tiny_llama()
    with pytest.raises(TrainingDiverged):
        learn_policy(other, broken(other, 0), replace(FAST, iterations=2), progress=None)


def test_a_policy_that_runs_away_from_its_reference_is_stopped():
    settings = replace(FAST, kl=1e-6, kl_limit=0.5)  # learning the toy takes it further than that
    result = reinforce(tiny_llama(), draw, reward, settings, progress=None)
    assert "KL from the reference" in result.stopped
    assert result.iterations < 24


def test_the_watch_notices_a_collapse_and_not_noise():
    settings = ReinforceSettings(window=3)

    def run(levels: list[float], spread: float, low: float = 0.0) -> str | None:
        watch = PolicyWatch(settings)
        for level in levels:
            if watch.stopped is None:
                watch.iteration(torch.tensor([low, level - spread, level + spread]).repeat(20), None)
        return watch.stopped

    assert "the reward collapsed" in run([0.5, 0.7, 0.9, 0.9, 0.9, 0.1, 0.1, 0.1], 0.1)
    assert run([0.5, 0.7, 0.9, 0.9, 0.9, 0.7, 0.7, 0.7], 0.1) is None  # lost less than half
    assert run([0.02, 0.03, 0.02, 0.0, 0.01, 0.0], 0.5, low=-0.5) is None  # within its noise
    assert "the reward collapsed" in run([-1.0, -1.0, -1.0, -3.0, -3.0, -3.0], 0.1, low=-4.0)  # negative rewards too


def test_what_the_watch_knows_survives_a_checkpoint():
    watch = PolicyWatch(ReinforceSettings(window=2))
    for level in (0.2, 0.4, 0.3):
        watch.iteration(torch.tensor([level, level + 0.1]), 0.1)
    watch.judge(HeldOutScore(0.5, 0.1, 4), 2)
    watch.judge(HeldOutScore(0.4, 0.1, 4), 3)
    again = PolicyWatch.from_notes(watch.settings, watch.notes())
    assert vars(again) == vars(watch)


def test_the_demo_shows_policies_that_learn_and_one_that_cannot(capsys):
    assert run_command(["demo", "--learning", "--json"]) == 0
    grpo, ppo, control = json.loads(capsys.readouterr().out)["policies"]
    assert min(grpo["after"], ppo["after"]) > 0.4
    assert max(control["after"], control["before"], grpo["before"]) < 0.3
