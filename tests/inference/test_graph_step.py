import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MixtralConfig  # noqa: E402

from agent_forge.inference import torch_rows  # noqa: E402
from agent_forge.inference.graph_step import can_be_fixed  # noqa: E402
from agent_forge.inference.torch_rows import BufferRows, Reader  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # on a GPU the step is recorded and replayed


def llama() -> Any:
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=50, num_key_value_heads=2, **shape))


def gpt2() -> Any:
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=100))


@pytest.mark.parametrize("make", [llama, gpt2])
@torch.inference_mode()
def test_a_fixed_step_computes_what_a_plain_one_does(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of all lengths, some of which leave: the same logits, and the same again when the buffers grew."""
    monkeypatch.setattr(torch_rows, "STRIDE", 8)
    torch.manual_seed(0)
    model, rng = make().to(DEVICE).eval(), random.Random(0)
    plain, fixed = BufferRows(Reader(model)), BufferRows(Reader(model))
    prompts = [[rng.randrange(50) for _ in range(rng.randrange(1, 30))] for _ in range(5)]
    torch.testing.assert_close(plain.add(prompts, 2), fixed.add(prompts, 2))
    for step in range(40):
        tokens = torch.tensor([rng.randrange(50) for _ in range(plain.count)], device=DEVICE)
        torch.testing.assert_close(plain.extend(tokens), fixed.extend_fixed(tokens), atol=1e-5, rtol=1e-5)
        if step in (3, 4, 20, 30):
            leaving = rng.sample(range(plain.count), 2)
            plain.leave(leaving)
            fixed.leave(leaving)
    assert plain.extent.first == fixed.extent.first


@pytest.mark.parametrize("config", [MistralConfig(sliding_window=16), MixtralConfig(sliding_window=None)])
def test_a_window_or_a_choice_of_experts_cannot_be_recorded(config: Any) -> None:
    config._attn_implementation = "sdpa"
    assert not can_be_fixed(type("Model", (), {"config": config}))
    assert can_be_fixed(llama())
