"""Learning from pairs: the losses of packed sheets are those of single texts, and DPO's is its closed form."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_sheets import tiny_llama  # noqa: E402

from agent_forge.forge.training.objective import objective  # noqa: E402
from agent_forge.forge.training.settings import LoraSettings  # noqa: E402
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


def test_pairs_are_learnt_and_a_stopped_run_goes_on(tmp_path: Any) -> None:
    from agent_forge.forge.adapters import add_adapter
    from agent_forge.forge.training.checkpoint import weights_of

    pairs = [(prompt, answer) for prompt, answer, _ in PAIRS]

    def learn(folder: Any, stop_at: int | None = None) -> Any:
        model = tiny_llama(20)
        add_adapter(model, LoraSettings(rank=4))

        def stop(record: dict[str, Any]) -> None:
            if record["step"] == stop_at:
                raise KeyboardInterrupt

        keep = {"save_every": 2, "log_every": 1}
        learn_pairs(model, pairs, 6, 0.05, folder, epochs=12, training=keep, on_record=stop)
        return model

    whole = learn(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "parts", stop_at=5)
    resumed = learn(tmp_path / "parts")
    for name, weight in weights_of(whole).items():
        assert torch.equal(weight, weights_of(resumed)[name]), name
    assert log_prob(whole, *pairs[0]) > log_prob(tiny_llama(20), *pairs[0]) + 1
