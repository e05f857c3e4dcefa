"""Learning from pairs: the losses of packed sheets are those of single texts, and DPO's is its closed form."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_sheets import tiny_llama  # noqa: E402

from agent_forge.forge.training.objective import objective  # noqa: E402
from agent_forge.learning import supervised  # noqa: E402
from agent_forge.learning.preferences import PreferenceLoss, pack_preferences, reference_margins  # noqa: E402
from agent_forge.learning.supervised import common_start, learn_pairs, pack_pairs  # noqa: E402

PAIRS = [
    ([5, 6, 7, 8], [9, 10, 0], [11, 0]),
    ([5, 6, 12], [13, 0], [14, 15, 16, 0]),
    ([5, 6, 7, 9, 3], [17, 0], [18, 0]),
]


def log_prob(model: Any, prompt: list[int], answer: list[int]) -> float:
    """Of the answer alone, read by itself."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].double()
    return float(logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None]).sum())


def test_the_loss_of_dpo_is_its_closed_form() -> None:
    model, before = tiny_llama(20), tiny_llama(20)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    data = pack_preferences(PAIRS, 24)
    assert len(data) < len(PAIRS)  # several on a row
    reference = reference_margins(before, data, len(PAIRS), rows=1)
    loss = PreferenceLoss(reference, beta=0.5)(model, data.take(slice(None)))
    expected = 0.0
    for prompt, right, wrong in PAIRS:
        gain = log_prob(model, prompt, right) - log_prob(before, prompt, right)
        gain -= log_prob(model, prompt, wrong) - log_prob(before, prompt, wrong)
        expected += math.log1p(math.exp(-0.5 * gain)) / len(PAIRS)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    same = PreferenceLoss(reference_margins(model, data, len(PAIRS)))(model, data.take(slice(None)))
    assert same.item() == pytest.approx(math.log(2), rel=1e-6)


def test_only_answers_are_learnt_and_each_as_if_it_stood_alone() -> None:
    model = tiny_llama(20)
    pairs = [(prompt, answer) for prompt, answer, _ in PAIRS]
    assert common_start([prompt[:-1] for prompt, _ in pairs]) == [5, 6]
    data = pack_pairs(pairs, 16)
    tokens = sum(len(answer) for _, answer in pairs)
    expected = -sum(log_prob(model, prompt, answer) for prompt, answer in pairs) / tokens
    assert objective(model, data.take(slice(None))).item() == pytest.approx(expected, rel=1e-5)


def test_a_step_in_parts_is_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """In main memory few rows go through the model at once: what is learnt does not depend on how many."""
    pairs = [([1, 2, 3 + n], [n % 5 + 4] * (1 + n % 3) + [0]) for n in range(24)]
    weights = []
    for tokens, at_once in ((16, 1), (48, 3), (10_000, 8)):
        monkeypatch.setattr(supervised, "_TOKENS", tokens)
        model = tiny_llama(40, 16, 1)
        result = learn_pairs(model, pairs, 2, 1e-2, length=16, epochs=2.0)
        assert result.micro_rows == at_once
        weights.append(torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    for other in weights[1:]:
        torch.testing.assert_close(other, weights[0], atol=2e-4, rtol=0)
