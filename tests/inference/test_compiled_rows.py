"""Small float32 models are sampled by the compiled decoder: the logits and the answers are those of transformers."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from agent_forge import native  # noqa: E402
from agent_forge.forge.adapters import add_adapter  # noqa: E402
from agent_forge.forge.training import sample  # noqa: E402
from agent_forge.forge.training.settings import LoraSettings  # noqa: E402
from agent_forge.inference import torch_rows  # noqa: E402
from agent_forge.inference.packed import kernels  # noqa: E402
from agent_forge.inference.torch_rows import BufferRows, CompiledRows, sampling_rows  # noqa: E402

pytestmark = pytest.mark.skipif(kernels.decoder() is None, reason="there is no C compiler here")
OPTIONS: dict[str, Any] = {"copies": 3, "max_tokens": 12, "end": [3, 4], "seed": 1}


def random_llama(seed: int, **named: Any) -> Any:
    rng = random.Random(seed)
    groups, shared, width = rng.choice((1, 2, 3)), rng.choice((1, 2, 4)), rng.choice((4, 8, 20))
    hidden = groups * shared * rng.choice((3, 5, 8))  # not always a multiple of what a register holds
    sizes: dict[str, Any] = {"hidden_size": hidden, "intermediate_size": rng.randrange(9, 70)}
    torch.manual_seed(seed)
    config = LlamaConfig(
        **sizes,
        vocab_size=rng.randrange(31, 70),
        num_hidden_layers=rng.choice((1, 2, 3)),
        num_attention_heads=groups * shared,
        num_key_value_heads=groups,
        head_dim=width,
        tie_word_embeddings=rng.random() < 0.5,
        attention_bias=rng.random() < 0.5,
        mlp_bias=rng.random() < 0.5,
        initializer_range=0.3,
        **named,
    )
    model = LlamaForCausalLM(config)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


@pytest.mark.parametrize("seed", range(12))
@torch.inference_mode()
def test_the_logits_are_those_of_transformers(seed: int) -> None:
    """Prompts of all lengths, copies of them, and rows that leave, each against a forward pass of its whole text."""
    model, rng = random_llama(seed), random.Random(seed)
    prompts = [[rng.randrange(31) for _ in range(rng.randrange(1, 40))] for _ in range(3)]
    texts = [list(prompt) for prompt in prompts for _ in range(4)]
    rows = sampling_rows(model, len(texts))
    assert isinstance(rows, CompiledRows)
    logits = rows.add(prompts, 4)
    for step in range(8):
        expected = torch.stack([model(torch.tensor([text])).logits[0, -1] for text in texts])
        most = float(expected.abs().max())  # float32 rounds in proportion to it
        torch.testing.assert_close(logits, expected, atol=1e-4 * max(1.0, most), rtol=0)
        if step in (2, 5):
            leaving = rng.sample(range(len(texts)), 3)
            rows.leave(leaving)
            torch_rows.without(texts, leaving)
        for text in texts:
            text.append(rng.randrange(31))
        logits = rows.extend(torch.tensor([text[-1] for text in texts]))


@pytest.mark.parametrize("seed", range(4))
def test_a_seed_gives_the_answers_that_torch_gives(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = random_llama(seed), [[5, 6, 7], [8], [9, 10, 11, 12, 13], [1, 2]]
    compiled = sample(model, prompts, **OPTIONS)
    with monkeypatch.context() as patch:
        patch.setenv(native.SWITCH, "0")
        assert isinstance(sampling_rows(model, 12), BufferRows)
        plain = sample(model, prompts, **OPTIONS)
    assert torch.equal(compiled.tokens, plain.tokens)
    torch.testing.assert_close(compiled.log_probs, plain.log_probs, atol=2e-5, rtol=1e-4)
    with torch.no_grad():  # it reads the model's own memory, and so what was learnt since
        model.lm_head.weight.mul_(-1)
    assert not torch.equal(sample(model, prompts, **OPTIONS).tokens, compiled.tokens)


def hooked() -> Any:
    model = random_llama(1)
    model.model.layers[0].register_forward_hook(lambda *_: None)
    return model


def adapted() -> Any:
    model = random_llama(1)
    add_adapter(model, LoraSettings(rank=2))
    for name, weight in model.named_parameters():
        if name.endswith("lora_B"):
            torch.nn.init.normal_(weight)
    return model


class OtherLlama(LlamaForCausalLM):
    """What a subclass computes is not known."""


OTHERS = {
    "half precision": lambda: random_llama(1).to(torch.bfloat16),
    "changing positions": lambda: random_llama(
        1, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    ),
    "a hook": hooked,
    "an adapter": adapted,
    "a subclass": lambda: OtherLlama(random_llama(1).config),
    "another activation": lambda: random_llama(1, hidden_act="gelu"),
}


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_what_the_decoder_does_not_know_torch_computes(make: Any) -> None:
    model = make()
    assert isinstance(sampling_rows(model, 4), BufferRows)
    samples = sample(model, [[5, 6, 7], [8]], **{**OPTIONS, "temperature": 0.0})
    with torch.no_grad():
        for row, mask in zip(samples.tokens, samples.mask.bool(), strict=True):
            logits = model(row[: int(mask.nonzero().max())][None]).logits[0]
            best = logits.gather(1, row[1 : len(logits) + 1, None])[:, 0][mask[1 : len(logits) + 1]]
            most = logits.max(-1).values[mask[1 : len(logits) + 1]]
            torch.testing.assert_close(best, most, atol=2e-2 if model.dtype == torch.bfloat16 else 1e-5, rtol=1e-2)


def test_many_rows_large_models_and_autocast_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_llama(1)
    assert isinstance(sampling_rows(model, torch_rows.FEW + 1), BufferRows)
    with torch.autocast("cpu", torch.bfloat16):
        assert isinstance(sampling_rows(model, 4), BufferRows)
    monkeypatch.setattr(torch_rows, "SMALL", 100)
    assert isinstance(sampling_rows(model, 4), BufferRows)
