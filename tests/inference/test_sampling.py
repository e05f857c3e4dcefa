"""The next token: seeds, probabilities, top-p and masks, against their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agent_forge.inference.sampling import Sampling, choose


def logits(rows: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(0, 2, (rows, 1000)).astype(np.float32)


def softmax(row: Any) -> Any:
    weights = np.exp(row.astype(np.float64))
    return weights / weights.sum()


def test_a_seed_gives_the_same_tokens_whoever_is_beside() -> None:
    one = logits(1)
    crowd = np.concatenate([logits(3, seed=5), one])
    settings = {"temperature": 0.9, "top_p": 0.8}
    alone, beside = Sampling(**settings, seed=7), Sampling(**settings, seed=7)
    others = [Sampling(temperature=1.0, seed=n) for n in range(3)]
    for _ in range(50):
        first = choose(one, [alone])[0]
        last = choose(crowd, [*others, beside], [None] * 4)[-1]
        assert first == last


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_probabilities(temperature: float) -> None:
    wanted = np.array([0.5, 0.3, 0.15, 0.05])
    rows = np.tile(np.log(wanted), (4000, 1)).astype(np.float32)
    drawn = choose(rows, [Sampling(temperature, seed=n) for n in range(4000)])
    counts = np.bincount([one.id for one in drawn], minlength=4) / 4000
    heated = wanted ** (1 / temperature)
    np.testing.assert_allclose(counts, heated / heated.sum(), atol=0.04)


@pytest.mark.parametrize("size", [4, 2000])
def test_top_p_keeps_the_likeliest_and_no_others(size: int) -> None:
    """Against the definition: the shortest list of likeliest tokens that holds p."""
    row = np.random.default_rng(size).normal(0, 0.1 if size > 1000 else 2, (1, size)).astype(np.float32)
    probabilities = softmax(row[0])
    order = np.argsort(-probabilities)
    for p in (0.3, 0.6, 0.95):
        number = int((np.cumsum(probabilities[order]) < p).sum()) + 1
        allowed = set(order[:number].tolist())
        drawn = {choose(row, [Sampling(top_p=p, seed=n)])[0].id for n in range(200)}
        assert drawn <= allowed
        assert len(drawn) > min(number, 30) / 4


def test_heat_zero_and_nothing_allowed_are_the_likeliest() -> None:
    row = logits(1)
    best = int(row.argmax())
    assert choose(row, [Sampling(temperature=0)])[0].id == best
    assert choose(row, [Sampling(top_p=0.0)])[0].id == best


def test_a_mask_is_obeyed_and_log_probabilities_are_the_models_own() -> None:
    row = logits(1)
    mask = np.zeros(1024, dtype=bool)  # longer than the vocabulary
    mask[[3, 17]] = True
    own = np.log(softmax(row[0]))
    for how in ({"masks": [mask]}, {"allowed": np.where(mask[:1000], row, -np.inf)}):
        chosen = choose(row, [Sampling(seed=1, top_logprobs=5)], **how)[0]
        assert chosen.id in (3, 17)
        assert chosen.logprob == pytest.approx(own[chosen.id], abs=1e-5)
        assert [token for token, _ in chosen.top] == np.argsort(-own)[:5].tolist()
