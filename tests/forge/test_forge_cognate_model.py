"""Size, layout on disk, the Auto classes, the recursion and the halting head."""

from __future__ import annotations

import math

import pytest
import torch
from tests_forge_axes import AXES, tiny_config
from transformers import AutoConfig, AutoModelForCausalLM, pipeline

from agent_forge.errors import ConfigError
from agent_forge.forge.models import CognateConfig, CognateForCausalLM, parameter_table
from agent_forge.forge.models.halting import entropy, halting_distribution


def tokens(rows: int = 2, length: int = 17) -> torch.Tensor:
    return torch.randint(3, 64, (rows, length))


def test_the_default_has_about_25_million_parameters():
    config = CognateConfig()
    model = CognateForCausalLM(config)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert 22_500_000 <= counted <= 27_500_000
    assert parameter_table(config)["total"] == counted
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (32768, 512, 6)


@pytest.mark.parametrize("name", list(AXES))
def test_the_parameter_table_counts_every_axis(name):
    config = tiny_config(**AXES[name])
    model = CognateForCausalLM(config)
    assert parameter_table(config)["total"] == sum(p.numel() for p in model.parameters())


def test_what_is_saved_is_loaded_by_the_auto_classes(axis_model, tmp_path):
    axis_model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=False).eval()
    assert type(loaded) is CognateForCausalLM
    saved, ours = AutoConfig.from_pretrained(tmp_path).to_dict(), axis_model.config.to_dict()
    assert {**saved, "_name_or_path": ""} == {**ours, "_name_or_path": ""}
    text = tokens()
    with torch.no_grad():
        assert torch.equal(loaded(text).logits, axis_model(text).logits)
    tied = loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()
    assert tied == axis_model.config.tie_word_embeddings


def test_loading_in_bf16_keeps_the_positions_exact(tiny, tmp_path):
    tiny().save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    generated = model.generate(tokens(rows=1), max_new_tokens=3, do_sample=False, eos_token_id=None)
    assert model.dtype == torch.bfloat16
    assert generated.shape == (1, 20)


def test_a_text_generation_pipeline_runs_it(tiny, tmp_path):
    from agent_forge.forge.training import train_tokenizer

    tokenizer = train_tokenizer(["the cat sat on the mat. " * 20], vocab_size=320)
    model = tiny(vocab_size=320, bos_token_id=tokenizer.bos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    generated = pipeline("text-generation", model=str(tmp_path), device="cpu")(
        "the cat", max_new_tokens=5, do_sample=False
    )
    assert generated[0]["generated_text"].startswith("the cat")


def test_one_loop_without_memory_is_a_plain_transformer(tiny):
    """The control, written again from the definitions."""
    model = tiny(memory_layers=[], embedding_rank=None, num_key_value_heads=4, sliding_window=64)
    text = tokens()

    def norm(x):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6)

    def turn(x, theta=10000.0):
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[-2])[:, None] * theta ** -(torch.arange(half) / half)
        turned = torch.view_as_complex(torch.stack([x[..., :half], x[..., half:]], -1)) * torch.polar(
            torch.ones_like(angle), angle
        )
        return torch.cat([turned.real, turned.imag], -1)

    with torch.no_grad():
        h = norm(model.model.embed_tokens(text))
        for block in model.model.layers:
            q, k, v = (
                p.view(2, 17, 4, 8).transpose(1, 2) for p in (norm(h) @ block.attention.qkv_proj.weight.T).chunk(3, -1)
            )
            scores = turn(norm(q)) @ turn(norm(k)).transpose(-1, -2) * 1.44 / 8**0.5
            scores = scores.masked_fill(torch.ones(17, 17).triu(1).bool(), -torch.inf)
            h = h + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2) @ block.o_proj.weight.T
            h = h + (norm(h) @ block.up_proj.weight.T).relu() ** 2 @ block.down_proj.weight.T
        expected = norm(h) @ model.lm_head.weight.T
        torch.testing.assert_close(model(text).logits, expected, atol=1e-5, rtol=1e-4)


def test_what_a_new_model_starts_with():
    """A halting head that starts at 0 instead of `halt_bias` stops after two loops, for good."""
    model = CognateForCausalLM(tiny_config(loops=2, halting=True, halt_bias=-3.0))
    memory = model.model.layers[1].memory
    for block in model.model.layers:
        assert not block.o_proj.weight.any()
        assert not block.down_proj.weight.any()
        assert block.up_proj.weight.std().item() == pytest.approx(32**-0.5, rel=0.1)
    assert model.model.halting.bias.item() == -3.0
    assert not model.model.halting.weight.any()
    assert model.model.embed_tokens.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert memory.rates.bias.tolist() == [0.0, 0.0, -4.0, -4.0]
    assert memory.memory_gain.tolist() == [1.0] * 32


def test_every_parameter_gets_a_gradient(axis_model):
    axis_model.train()
    text = tokens()
    axis_model(text, labels=text).loss.backward()
    without = [name for name, p in axis_model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert without == []


def test_checkpointing_changes_no_gradient(tiny):
    model, text = tiny(loops=2).train(), tokens()
    model(text, labels=text).loss.backward()
    plain = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(text, labels=text).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, plain[name])


def test_loops_are_detached_from_each_other(tiny):
    """With detaching, the first loop learns from its own loss alone."""
    text = tokens()
    for detach, leaks in ((True, False), (False, True)):
        model = tiny(loops=2, detach_loops=detach).train()
        answers = model.model(text).answers
        (slope,) = torch.autograd.grad(answers[1].sum(), answers[0], allow_unused=True)
        assert (slope is not None) == leaks


def test_more_loops_share_the_same_weights(tiny):
    assert tiny(loops=1).num_parameters() == tiny(loops=3, latent_steps=2).num_parameters()


def test_the_objective_is_the_expected_loss_and_the_missing_entropy(tiny):
    model, text = tiny(loops=3, halting=True, halt_entropy=0.1).train(), tokens()
    out = model.model(text)
    shares = halting_distribution([logit[:, :-1] for logit in out.halt_logits])
    losses = torch.stack(
        [
            torch.nn.functional.cross_entropy(
                model.lm_head(model.head_down(a))[:, :-1].transpose(1, 2), text[:, 1:], reduction="none"
            )
            for a in out.answers
        ]
    )
    expected = (shares * losses).sum(0) + 0.1 * (math.log(3) - entropy(shares))
    torch.testing.assert_close(model(text, labels=text).loss, expected.mean())
    assert (expected >= (shares * losses).sum(0) - 1e-6).all()


def test_labels_of_minus_100_are_left_out(tiny):
    model, text = tiny(), tokens()
    labels = text.clone()
    labels[:, :9] = -100
    logits = model(text).logits
    expected = torch.nn.functional.cross_entropy(logits[:, 8:-1].flatten(0, 1), text[:, 9:].flatten())
    out = model(text, labels=labels)
    torch.testing.assert_close(out.loss, expected)
    assert out.logits is not None
    assert model.train()(text, labels=labels).logits is None


class TestHalting:
    def test_probabilities_sum_to_one_and_fall_geometrically(self):
        logits = [torch.randn(5) for _ in range(4)]
        shares = halting_distribution(logits)
        torch.testing.assert_close(shares.sum(0), torch.ones(5))
        torch.testing.assert_close(shares[1], (1 - logits[0].sigmoid()) * logits[1].sigmoid())

    def test_the_head_learns(self, tiny):
        model, text = tiny(loops=3, halting=True).train(), tokens()
        model(text, labels=text).loss.backward()
        assert model.model.halting.weight.grad.abs().sum() > 0

    @torch.no_grad()
    def test_a_higher_threshold_means_more_loops(self, tiny):
        model, text = tiny(loops=4, halting=True, halt_bias=-1.0), tokens(rows=4)
        model.model.halting.weight.mul_(0.3)
        depths = []
        for threshold in (0.05, 0.3, 0.6, 0.9, 1.0):
            model.config.halt_threshold = threshold
            depths.append(model(text).depth.float().mean().item())
        assert depths == sorted(depths)
        assert 1.0 <= depths[0] < depths[2] < depths[-1] == 4.0

    @torch.no_grad()
    def test_stopping_early_saves_passes(self, tiny):
        model, text = tiny(loops=4, halting=True), tokens()
        calls = []
        model.model.layers[0].register_forward_hook(lambda *_: calls.append(1))
        for bias, expected in ((20.0, 1), (-20.0, 4)):
            model.model.halting.weight.zero_()
            model.model.halting.bias.fill_(bias)
            calls.clear()
            model(text)
            assert len(calls) == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_attention_heads": 3}, "hidden_size 32"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"memory_layers": [2]}, r"memory_layers \[2\]"),
        ({"loops": 0}, "loops 0"),
        ({"halt_threshold": 0.0}, "halt_threshold"),
        ({"embedding_rank": 64}, "embedding_rank 64"),
    ],
)
def test_what_cannot_be_built_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        tiny_config(**changes)
