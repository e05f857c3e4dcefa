"""Layers below an adapter are computed once: the adapter learns the same, and the model is whole again afterwards."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from plan_sets import CATALOGUE  # noqa: E402
from test_sheets import byte_level, tiny_llama  # noqa: E402

from agent_forge.forge.adapters import adapted_layers, add_adapter  # noqa: E402
from agent_forge.forge.training.objective import objective  # noqa: E402
from agent_forge.forge.training.settings import LoraSettings  # noqa: E402
from agent_forge.learning.frozen import below_computed_once, layers_below  # noqa: E402
from agent_forge.learning.generate import Generator  # noqa: E402
from agent_forge.learning.sheets import PlanSheets, encode_sheets, pack_sheets  # noqa: E402


@pytest.fixture(scope="module")
def data() -> PlanSheets:
    generator = Generator(CATALOGUE, seed=1, shown=(2, 3))
    groups = [generator.sheet(3) for _ in range(2)]
    tokenizer = byte_level([row.prompt + row.answer for group in groups for row in group], 500)
    return pack_sheets(encode_sheets(groups, tokenizer, 400, 0), 400)


def adapted(last: int) -> Any:
    model = tiny_llama(500, layers=4)
    torch.manual_seed(1)
    add_adapter(model, LoraSettings(rank=4, last=last))
    for _, layer in adapted_layers(model):
        torch.nn.init.normal_(layer.lora_B, std=0.1)  # at zero, the other factor would get no gradient
    return model


@pytest.mark.parametrize("last", [1, 3])
def test_the_adapter_learns_the_same(data: PlanSheets, last: int) -> None:
    model = adapted(last)
    plain = learnt(model, data)
    with below_computed_once(model, data) as known:
        assert sum(1 for _ in model.base_model.layers.parameters()) == (7 * 3 + 2) * last  # nothing below is read
        once = learnt(model, known)
    assert len(once) == len(plain) == 14 * last  # seven matrices in a layer, two factors of each
    for one, other in zip(plain, once, strict=True):
        assert float(one.abs().max()) > 0
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-7)


def learnt(model: Any, data: PlanSheets) -> list[Any]:
    """The gradients of the adapter on rows in any order."""
    model.zero_grad()
    objective(model, data.take([1, 0])).backward()
    return [each for _, layer in adapted_layers(model) for each in (layer.lora_A.grad, layer.lora_B.grad)]


def test_the_model_is_whole_again_after_a_fault(data: PlanSheets) -> None:
    model = adapted(2)
    names, before = list(model.state_dict()), model(torch.arange(9)[None]).logits
    with pytest.raises(ZeroDivisionError), below_computed_once(model, data):
        raise ZeroDivisionError
    assert list(model.state_dict()) == names
    assert torch.equal(model(torch.arange(9)[None]).logits, before)


def test_without_layers_below_the_rows_are_as_they_were(data: PlanSheets, monkeypatch: pytest.MonkeyPatch) -> None:
    model = adapted(0)
    with below_computed_once(model, data) as known:
        assert known is data
    monkeypatch.setattr("agent_forge.learning.frozen.MOST_NUMBERS", 100)
    with below_computed_once(adapted(1), data) as known:
        assert known is data
    other = adapted(1)
    other.config.model_type = "gemma"  # scales what it embeds
    assert layers_below(other) == 0
