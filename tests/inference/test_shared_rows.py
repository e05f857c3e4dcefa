"""Rows that share prompts compute what rows with a copy each do."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import (  # noqa: E402
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agent_forge.inference import shared_rows  # noqa: E402
from agent_forge.inference.rows import rows_for  # noqa: E402
from agent_forge.inference.shared_rows import SharedRows, can_share  # noqa: E402
from agent_forge.inference.torch_rows import BufferRows, Reader  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # on a GPU the step is recorded and replayed
SHAPE: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
}  # fmt: skip


def llama(heads: int = 2) -> Any:
    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=heads, **SHAPE))


def qwen3() -> Any:
    return Qwen3ForCausalLM(Qwen3Config(num_key_value_heads=1, head_dim=16, **SHAPE))


def gpt2() -> Any:
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=200))


@pytest.mark.parametrize("make", [llama, lambda: llama(4), qwen3, gpt2])
@pytest.mark.parametrize("seed", range(3))
@torch.inference_mode()
def test_rows_that_share_prompts_compute_the_same(make: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of all lengths, read in several parts; rows leave until few are left, and the buffers grow."""
    monkeypatch.setattr(shared_rows, "AT_ONCE", 3)
    monkeypatch.setattr(shared_rows, "COLUMNS", 8)
    torch.manual_seed(seed)
    model, rng = make().to(DEVICE).eval(), random.Random(seed)
    plain, shared = BufferRows(Reader(model)), SharedRows(Reader(model))
    assert can_share(model, plain)
    prompts = [[rng.randrange(50) for _ in range(rng.randrange(1, 30))] for _ in range(7)]
    torch.testing.assert_close(plain.add(prompts, 4), shared.add(prompts, 4), atol=1e-5, rtol=1e-5)
    grids = set()
    for step in range(60):
        tokens = torch.tensor([rng.randrange(50) for _ in range(plain.count)], device=DEVICE)
        torch.testing.assert_close(plain.extend(tokens), shared.extend(tokens), atol=1e-5, rtol=1e-5)
        grids.add(len(shared._lengths) * shared._copies)
        if step % 4 == 3 and plain.count > 3:
            leaving = rng.sample(range(plain.count), rng.randrange(1, 4))
            plain.leave(leaving)
            shared.leave(leaving)
        assert shared.count == plain.count
    assert max(grids) == 28
    assert len(grids) >= 3, "the grid never became smaller"
    shared.leave(range(shared.count))
    assert shared.count == 0


def test_what_attends_in_another_way_does_not_share() -> None:
    """A logit cap, attention of another kind, or attention that transformers does not let us replace."""
    capped, eager, own = llama(), llama(), llama()
    capped.config.attn_logit_softcapping = 50.0
    eager.config._attn_implementation = "eager"
    own._supports_attention_backend = False
    for model in (capped, eager, own):
        assert not can_share(model, rows_for(model))
    assert can_share(llama(), rows_for(llama()))
