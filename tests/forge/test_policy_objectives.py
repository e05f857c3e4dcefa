"""Objectives of reinforcement learning against closed forms, enumeration, brute force, and TRL."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests_forge_axes import tiny_config
from tests_policy_toys import OnlySome, all_answers, bits_of, tiny_llama

from agent_forge.errors import UsageError
from agent_forge.forge.models import CognateForCausalLM
from agent_forge.forge.training import PolicySettings, policy
from agent_forge.forge.training.policy import (
    generalised_advantages,
    group_advantages,
    log_probs_and_values,
    policy_loss,
    step_advantages,
    token_log_probs,
    whitened,
)

FREE = PolicySettings(clip_low=1.0, clip_high=100.0)


# ---------------------------------------------------------------------------------------------- log-probabilities


def test_log_probs_are_those_of_the_whole_softmax():
    model = tiny_llama(std=0.3)
    tokens = torch.randint(16, (3, 9))
    mask = (torch.rand(3, 9) < 0.6).float()
    logits = model(tokens).logits[:, :-1] / 0.7
    expected = logits.log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0] * mask[:, 1:]
    new = token_log_probs(model, tokens, mask, temperature=0.7)
    torch.testing.assert_close(new[:, 1:], expected)
    assert (new[:, 0] == 0).all()


def test_padding_on_the_left_needs_the_attention_mask_and_changes_nothing():
    model = tiny_llama(std=0.3)
    row = torch.randint(16, (1, 6))
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), row], 1)
    attention = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1]])
    mask = torch.tensor([[0.0, 0, 0, 0, 0, 1, 1, 1, 1]])
    left = token_log_probs(model, padded, mask, attention_BT=attention)
    torch.testing.assert_close(left[:, 3:], token_log_probs(model, row, mask[:, 3:]))


def test_many_tokens_go_through_the_head_in_chunks_with_the_same_gradient(monkeypatch):
    model, tokens = tiny_llama(std=0.3), torch.randint(16, (2, 9))

    def gradient() -> torch.Tensor:
        model.zero_grad()
        token_log_probs(model, tokens, torch.ones(2, 9)).square().sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    whole = gradient()
    monkeypatch.setattr(policy, "LOGITS", 3 * 16)  # three tokens at once
    torch.testing.assert_close(gradient(), whole, atol=1e-4, rtol=1e-5)


def test_a_model_whose_logits_are_capped_and_cognate_have_log_probs_too():
    capped = tiny_llama(std=0.3)
    capped.config.logit_scale = 2.0  # what `has_plain_head` looks for: then the model computes its logits itself
    cognate = CognateForCausalLM(tiny_config(vocab_size=16)).eval()
    tokens = torch.randint(16, (2, 6))
    for model in (capped, cognate):
        expected = model(tokens).logits[:, :-1].log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
        head = policy.ValueHead.for_model(model)
        new, values = log_probs_and_values(model, head, tokens, torch.ones(2, 6))
        torch.testing.assert_close(new[:, 1:], expected)
        assert values.shape == (2, 6)


# ---------------------------------------------------------------------------------------------- gradients


def test_gradient_of_the_two_token_problem_is_the_closed_form():
    """One parameter: p(1) = sigmoid(x). d/dx of -mean(A log p(token)) is -mean(A (token - p))."""
    x = torch.tensor(0.4, requires_grad=True)
    tokens = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    advantages = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.7, -1.0]])
    mask = torch.tensor([[1.0, 1, 1], [1, 1, 0]])
    new = torch.where(tokens == 1, torch.nn.functional.logsigmoid(x), torch.nn.functional.logsigmoid(-x))
    policy_loss(new, new.detach(), advantages, mask, PolicySettings()).loss.backward()
    p = 1 / (1 + math.exp(-0.4))
    expected = -float((advantages * (tokens - p) * mask).sum()) / 5
    assert float(x.grad) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("constrained", [False, True])
def test_gradient_is_that_of_the_expected_reward(constrained):
    """Over all answers of two tokens, weighted by their probability, the policy gradient is d E[reward]: with a
    constraint, of the reward of the constrained policy."""
    vocab, model = 3, tiny_llama(3, std=0.3)
    tokens, mask = all_answers([1, 2], vocab, 2)
    rewards = torch.randn(len(tokens))
    bits = None
    if constrained:
        walk = OnlySome({0, 2}, {1}, vocab=vocab)
        masks = [walk.allowed()]
        walk.advance(0)
        masks.append(walk.allowed())
        kept = [row for row, answer in enumerate(tokens[:, 2:].tolist()) if masks[0][answer[0]] and masks[1][answer[1]]]
        tokens, mask, rewards = tokens[kept], mask[kept], rewards[kept]
        bits = bits_of(masks).expand(len(kept), -1, -1)
    parameters = list(model.parameters())
    new = token_log_probs(model, tokens, mask, allowed_BLV=bits)
    chances = new.sum(1).exp()
    assert float(chances.detach().sum()) == pytest.approx(1.0, abs=1e-5)
    exact = torch.autograd.grad(-(chances * rewards).sum(), parameters, retain_graph=True)
    advantages = (mask.sum() * chances.detach() * rewards)[:, None] * mask
    loss = policy_loss(new, new.detach(), advantages, mask, PolicySettings()).loss
    for ours, theirs in zip(torch.autograd.grad(loss, parameters), exact, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
    if constrained:
        assert (new[:, 3] == 0).all()  # the second token was forced


def test_clip_is_asymmetric_and_only_ever_lowers_the_objective():
    settings = PolicySettings(clip_low=0.2, clip_high=0.28)
    for ratio in (0.5, 0.79, 0.81, 1.0, 1.27, 1.29, 3.0):
        for advantage in (1.0, -1.0):
            new = torch.tensor([[math.log(ratio)]], requires_grad=True)
            parts = policy_loss(new, torch.zeros(1, 1), torch.tensor([[advantage]]), torch.ones(1, 1), settings)
            bounded = min(max(ratio, 0.8), 1.28)
            assert float(parts.loss.detach()) == pytest.approx(-min(ratio * advantage, bounded * advantage), rel=1e-5)
            parts.loss.backward()
            cut = (advantage > 0 and ratio > 1.28) or (advantage < 0 and ratio < 0.8)
            assert float(parts.clipped) == cut
            assert float(new.grad) == pytest.approx(0.0 if cut else -ratio * advantage, rel=1e-5)


def test_tokens_that_are_too_stale_are_left_out_and_do_not_overflow():
    new = torch.tensor([[0.0, 5.0, -5.0, 500.0]], requires_grad=True)
    advantages, mask = torch.tensor([[1.0, -1.0, 1.0, -1.0]]), torch.ones(1, 4)
    parts = policy_loss(new, torch.zeros(1, 4), advantages, mask, PolicySettings(ratio_limit=10.0))
    parts.loss.backward()
    assert float(parts.stale) == 0.75
    assert float(parts.loss.detach()) == pytest.approx(-1 / 4)
    assert new.grad.tolist() == [[-0.25, 0.0, 0.0, 0.0]]


def test_kl_is_k3_and_pulls_towards_the_reference():
    new = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    reference = torch.tensor([[-1.5, -1.0]])
    zero, mask = torch.zeros(1, 2), torch.ones(1, 2)
    parts = policy_loss(new, new.detach(), zero, mask, PolicySettings(kl=0.1), reference)
    expected = sum(math.exp(d) - d - 1 for d in (-0.5, 1.0)) / 2
    assert float(parts.kl) == pytest.approx(expected)
    assert float(parts.loss.detach()) == pytest.approx(0.1 * expected)
    parts.loss.backward()
    assert new.grad[0].tolist() == pytest.approx([0.05 * (1 - math.exp(-0.5)), 0.05 * (1 - math.exp(1.0))])
    with pytest.raises(UsageError, match="reference"):
        policy_loss(new, new.detach(), zero, mask, PolicySettings(kl=0.1))
    with pytest.raises(UsageError, match="shapes"):
        policy_loss(new, new.detach(), torch.zeros(1), mask, PolicySettings())


def test_observation_tokens_have_no_part_in_the_loss():
    new = torch.randn(2, 5, requires_grad=True)
    mask = torch.tensor([[0.0, 1, 1, 0, 1], [0, 0, 1, 1, 0]])
    policy_loss(new, torch.randn(2, 5), torch.randn(2, 5), mask, FREE).loss.backward()
    assert (new.grad[mask == 0] == 0).all()
    assert (new.grad[mask == 1] != 0).any()


# ---------------------------------------------------------------------------------------------- advantages


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.integers(0, 3)), min_size=1, max_size=20))
def test_group_advantages_are_z_scores_within_groups(pairs):
    rewards, groups = torch.tensor([r for r, _ in pairs]), torch.tensor([g for _, g in pairs])
    scaled, centred = group_advantages(rewards, groups), group_advantages(rewards, groups, scale=False)
    for i, (reward, group) in enumerate(pairs):
        peers = np.array([r for r, g in pairs if g == group], dtype=np.float32).astype(float)
        if len(set(peers)) == 1:
            assert float(scaled[i]) == float(centred[i]) == 0.0
        else:
            assert float(centred[i]) == pytest.approx(reward - peers.mean(), abs=1e-5)
            assert float(scaled[i]) == pytest.approx((reward - peers.mean()) / (peers.std(ddof=1) + 1e-4), abs=1e-4)


@given(st.integers(0, 10_000))
def test_generalised_advantages_are_the_sum_of_discounted_errors(seed):
    """Brute force by the definition: A_i = sum_l (discount * trace)^l * error_{i + l} over the sampled tokens; a reward
    at another token belongs to the sampled one before it."""
    rng = random.Random(seed)
    width, discount, trace = rng.randint(1, 8), rng.random(), rng.random()
    mask = [rng.random() < 0.6 for _ in range(width)]
    rewards, values = [rng.gauss(0, 1) for _ in range(width)], [rng.gauss(0, 1) for _ in range(width)]
    steps = [t for t in range(width) if mask[t]]
    following = [*steps[1:], width][: len(steps)]
    earned = [sum(rewards[t:until]) for t, until in zip(steps, following, strict=True)]
    after = [values[t] if t < width else 0.0 for t in following]
    errors = [r + discount * v - values[t] for t, r, v in zip(steps, earned, after, strict=True)]
    expected = torch.zeros(width)
    for i, t in enumerate(steps):
        expected[t] = sum((discount * trace) ** (k - i) * errors[k] for k in range(i, len(steps)))
    tensors = [torch.tensor([each]) for each in (rewards, values)]
    advantages, returns = generalised_advantages(*tensors, torch.tensor([mask]).float(), discount, trace)
    torch.testing.assert_close(advantages[0], expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(returns[0], torch.where(torch.tensor(mask), expected + torch.tensor(values), 0.0))


@given(st.integers(0, 10_000))
def test_step_advantages_compare_what_followed_the_same_step(seed):
    rng = np.random.default_rng(seed)
    rewards, groups = rng.normal(size=(6, 4)), rng.integers(2, size=6)
    lengths, discount = rng.integers(1, 5, size=6), rng.random()
    mask = np.arange(4) < lengths[:, None]
    tensors = torch.tensor(rewards), torch.tensor(mask), torch.tensor(groups)
    advantages = step_advantages(*tensors, discount=discount, scale=False)
    after = [
        [sum(discount ** (j - k) * rewards[i, j] for j in range(k, lengths[i])) for k in range(4)] for i in range(6)
    ]
    for i in range(6):
        for k in range(4):
            peers = [after[j][k] for j in range(6) if groups[j] == groups[i] and mask[j, k]]
            expected = after[i][k] - np.mean(peers) if mask[i, k] and len(peers) > 1 else 0.0
            assert float(advantages[i, k]) == pytest.approx(expected, abs=1e-5)


def test_whitened_advantages_have_mean_0_and_deviation_1():
    mask = (torch.rand(4, 6) < 0.7).float()
    chosen = whitened(torch.randn(4, 6) * 3 + 2, mask)[mask == 1]
    assert float(chosen.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(chosen.std()) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_step_credit_learns_two_steps_in_fewer_samples(seed):
    """Two independent choices of one in eight, each with its own reward. With one number per rollout the first choice
    is also judged by the luck of the second, whose reward is larger."""

    def samples_needed(credit: bool) -> int:
        random_numbers = torch.Generator().manual_seed(seed)
        logits = torch.zeros(2, 8, requires_grad=True)
        right, step = torch.tensor([3, 5]), 0
        while float(logits.softmax(-1)[[0, 1], right].detach().min()) < 0.9:
            log_probs = logits.log_softmax(-1)
            choices = torch.multinomial(log_probs.detach().exp(), 8, replacement=True, generator=random_numbers).T
            new = log_probs[torch.arange(2), choices]  # [8 rollouts, 2 steps]
            rewards, groups = (choices == right) * torch.tensor([1.0, 4.0]), torch.zeros(8, dtype=torch.long)
            if credit:
                advantages = step_advantages(rewards, torch.ones(8, 2), groups, discount=0.0)
            else:
                advantages = group_advantages(rewards.sum(1), groups)[:, None].expand(8, 2)
            loss = policy_loss(new, new.detach(), advantages, torch.ones(8, 2), PolicySettings()).loss
            (slope,) = torch.autograd.grad(loss, logits)
            with torch.no_grad():
                logits -= 0.5 * slope
            step += 1
        return step * 8

    assert samples_needed(credit=True) * 1.5 < samples_needed(credit=False)  # measured: 1.8 to 2.2 times


# ---------------------------------------------------------------------------------------------- the peer


@pytest.mark.parametrize("kl", [0.0, 0.05])
def test_same_data_and_advantages_give_the_loss_of_trl(kl):
    """TRL 1.16's own `_compute_loss`, called with our numbers. It is not a dependency of the tests: importing it takes
    ten seconds."""
    trl = pytest.importorskip("trl.trainer.grpo_trainer", reason="TRL is not installed: parity is not checked here")
    torch.manual_seed(3)
    new, old, reference, advantages = (torch.randn(4, 7) * 0.3 for _ in range(4))
    mask = (torch.rand(4, 7) < 0.8).long()
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (new, torch.zeros(4, 7), None),
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        beta=kl,
        loss_type="dapo",
        epsilon_low=0.2,
        epsilon_high=0.28,
        aux_loss_enabled=False,
        use_vllm=False,
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, **_: x),
        model=SimpleNamespace(training=True),
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    inputs = {"prompt_ids": torch.zeros(4, 2), "prompt_mask": torch.ones(4, 2), "completion_ids": torch.zeros(4, 7)}
    inputs |= {"completion_mask": mask, "advantages": advantages, "old_per_token_logps": old}
    inputs |= {"ref_per_token_logps": reference, "num_items_in_batch": mask.sum()}
    theirs = trl.GRPOTrainer._compute_loss(trainer, None, inputs)
    ours = policy_loss(new, old, advantages, mask, PolicySettings(kl=kl), reference)
    assert float(ours.loss) == pytest.approx(float(theirs), rel=1e-5)
