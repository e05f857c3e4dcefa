"""Attention by blocks says what attention under a mask says. (On a CPU FlexAttention has no gradient.)"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from agent_forge.forge.training.block_attention import use_blocks  # noqa: E402
from agent_forge.forge.training.objective import hidden_and_head  # noqa: E402
from agent_forge.forge.training.packing import Batch  # noqa: E402
from agent_forge.learning.sheets import fill_sheets, pack_sheets  # noqa: E402


@pytest.fixture
def batch() -> Batch:
    """Rows of 256 tokens: sheets of random sizes, some of which begin and end within a block."""
    rng = np.random.default_rng(0)
    sheets: list[Any] = []
    for size in rng.integers(20, 120, 12):
        pairs = [(rng.integers(1, 60, 7).tolist(), rng.integers(1, 60, 5).tolist()) for _ in range(3)]
        sheets += fill_sheets(rng.integers(1, 60, size).tolist(), pairs, 256)
    rows = pack_sheets(sheets, 256)
    return rows.take(np.arange(len(rows)))


def test_the_blocks_hold_every_pair_that_the_mask_lets_see(batch: Batch) -> None:
    from torch.nn.attention.flex_attention import create_mask

    mask, blocks = batch.context()["attention_mask"], batch.blocks()
    assert torch.equal(create_mask(blocks.mask_mod, len(batch), None, 256, 256, "cpu"), mask)
    needed = mask.view(len(batch), 1, 2, 128, 2, 128).any(3).any(-1)
    assert (blocks.to_dense().bool() | ~needed).all()


@pytest.mark.parametrize("low", [False, True])
def test_blocks_and_masks_give_the_same_states(batch: Batch, low: bool) -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 6, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(vocab_size=64, num_hidden_layers=2, **shape)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=low):
        masked = hidden_and_head(model, batch)[0]
        use_blocks(model)
        by_blocks = hidden_and_head(model, batch)[0]
        plain = model(batch.inputs).logits  # without blocks it attends as before
    real = batch.documents >= 0
    assert (by_blocks - masked)[real].abs().max() < (0.05 if low else 1e-5)
    assert plain.shape == (*batch.inputs.shape, 64)
