"""Thinking models: mixing, sampling, the policy gradient, generation, and their files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests_forge_axes import tiny_config
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from agent_forge.errors import UsageError
from agent_forge.forge.models import CognateForCausalLM
from agent_forge.forge.thoughts.learning import (
    ThoughtLoss,
    advantages,
    chosen_positions,
    next_tokens,
    policy_loss,
)
from agent_forge.forge.thoughts.model import END, START, ThinkingModel, draw
from agent_forge.forge.training import train_tokenizer
from agent_forge.forge.training.packing import IGNORE, Batch

SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
}
TEXTS = ["the cat sees a dog --- and the dog sees the cat", "one fox eats corn"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(TEXTS, 300)


def model(kind: str, size: int) -> Any:
    torch.manual_seed(1)
    if kind == "cognate":
        made = CognateForCausalLM(tiny_config(vocab_size=size))
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.dim() >= 2:
                    parameter.normal_(std=parameter.shape[-1] ** -0.5)
        return made.eval()
    return LlamaForCausalLM(LlamaConfig(vocab_size=size, **SHAPE)).eval()


@pytest.fixture(params=["cognate", "llama"])
def thinking(request: Any, tokenizer: Any) -> ThinkingModel:
    return ThinkingModel.of(model(request.param, len(tokenizer)), tokenizer).eval()


def batch(rows: int = 2, length: int = 12, size: int = 300) -> Batch:
    tokens = torch.randint(32, size, (rows, length + 1))
    return Batch(tokens[:, :-1], tokens[:, 1:].clone(), torch.zeros(rows, length, dtype=torch.long))


@torch.no_grad()
def test_without_mixing_it_is_the_base_model_exactly(thinking: ThinkingModel) -> None:
    """Bit for bit: the text is read as the model itself reads it, and a weight of 0 leaves the state as it is."""
    data = batch()
    expected = thinking.model(input_ids=data.inputs, use_cache=False).logits
    states, aside = thinking.read(data.inputs)
    positions = chosen_positions(data.targets, 0, 1)
    tokens, _, _ = next_tokens(data.targets, positions, 1)
    thoughts = thinking.embed(thinking.sample(aside, positions, 3))
    _, after = thinking.follow(aside, positions, thoughts, tokens[:, :, :-1])
    mixed, weight = thinking.mix(states, after[:, :, 0])
    assert not torch.equal(after[:, :, 0], states), "the thought itself does change the state"
    assert weight.abs().max() == 0
    assert torch.equal(thinking.logits(mixed), expected)


def test_a_model_that_cannot_think_is_refused(tokenizer: Any) -> None:
    capped = model("llama", len(tokenizer))
    capped.config.final_logit_softcapping = 30.0
    with pytest.raises(UsageError, match="more than a matrix"):
        ThinkingModel.of(capped, tokenizer)
    fixed = GPT2LMHeadModel(GPT2Config(vocab_size=300, n_embd=32, n_layer=1, n_head=2))
    fixed._supports_attention_backend = False
    with pytest.raises(UsageError, match="cannot be replaced"):
        ThinkingModel.of(fixed, tokenizer)


@torch.no_grad()
def test_start_and_end_have_embeddings_of_their_own(thinking: ThinkingModel, tokenizer: Any) -> None:
    ids = torch.tensor(tokenizer(f"the {START}cat{END}")["input_ids"])
    assert thinking.start_id in ids.tolist()
    thinking.start += 0.001
    rows, embedded = thinking.model.get_input_embeddings().weight, thinking.embed(ids)
    for number, vector in zip(ids.tolist(), embedded, strict=True):
        own = {thinking.start_id: thinking.vector("start"), thinking.end_id: thinking.vector("end")}
        assert torch.equal(vector, own.get(number, rows[number]))
    first = thinking.vector("end")
    moved = (thinking.vector("start") - first).abs()
    assert torch.allclose(moved, torch.full_like(moved, 0.01 * float(first.square().mean().sqrt())), atol=1e-6)
    outside = ThinkingModel(thinking.model, len(rows), len(rows) + 1, first)  # a vocabulary without the two tokens
    assert torch.allclose(outside.embed(torch.tensor([len(rows), 40])), torch.stack([first, rows[40]]), atol=1e-6)


@torch.no_grad()
def test_thoughts_are_drawn_from_the_model(thinking: ThinkingModel) -> None:
    """The first token of 4,000 thoughts after one position has the model's own frequencies; special tokens never."""
    _, aside = thinking.read(torch.randint(32, 300, (1, 5)))
    positions = torch.full((1, 4000), 4)
    first = thinking.sample(aside, positions, 1)[0, :, 0]
    state = thinking.think(aside.after(positions[:, :1]), thinking.vector("start").expand(1, 1, 1, -1))
    chances = torch.softmax(thinking.quiet(thinking.logits(state[0, 0, 0])), -1)
    counts = torch.bincount(first, minlength=300).double()
    likely = chances > 0.001
    spread = (4000 * chances * (1 - chances)).sqrt()
    assert ((counts - 4000 * chances).abs() < 5 * spread + 1)[likely].all()
    assert counts[list(thinking.silent)].sum() == 0
    assert thinking.sample(aside, positions[:, :2], 3, temperature=0)[0, 0].tolist() == thinking.sample(
        aside, positions[:, :1], 3, temperature=0
    )[0, 0].tolist()


def test_the_policy_gradient_is_that_of_the_expected_reward(tokenizer: Any) -> None:
    """All 25 thoughts of two tokens over five letters, each weighted by its probability: no sampling, no noise. The
    gradient of the loss is minus the slope of the expected reward, by finite differences in float64."""
    thinking = ThinkingModel.of(model("cognate", 300), tokenizer).double()
    thinking.silent = tuple(range(5, 300))
    text, rewards = torch.randint(0, 300, (1, 4)), torch.randn(1, 25, dtype=torch.float64)
    thoughts = torch.cartesian_prod(torch.arange(5), torch.arange(5))[None]  # [1, 25, 2]
    positions = torch.full((1, 25), 3)

    def log_probs() -> torch.Tensor:
        _, aside = thinking.read(text)
        inner, _ = thinking.follow(aside, positions, thinking.embed(thoughts), thoughts[:, :, :0])
        return thinking.log_probs(inner, thoughts, 1.0).sum(-1)

    def expected() -> float:
        with torch.no_grad():
            chances = log_probs().exp()
            assert chances.sum() == pytest.approx(1.0)
            return float((chances * rewards).sum())

    ours = log_probs()
    policy_loss(ours, rewards - 0.7, ours.detach().exp()).backward()  # a baseline changes nothing
    layer = thinking.model.model.layers[1].attention.qkv_proj.weight
    for parameter, index in ((thinking.start, (3,)), (thinking.start, (17,)), (layer, (60, 5)), (layer, (9, 30))):
        with torch.no_grad():
            value, step = float(parameter[index]), 1e-4
            parameter[index] = value + step
            high = expected()
            parameter[index] = value - step
            slope = (high - expected()) / (2 * step)
            parameter[index] = value
        assert parameter.grad is not None
        assert -float(parameter.grad[index]) == pytest.approx(slope, rel=1e-4, abs=1e-9)


def test_advantages() -> None:
    rewards = torch.tensor([[[1.0, 3.0], [0.0, 0.0]]])
    real = torch.tensor([[[True, True], [True, False]]])
    assert advantages(rewards, real).tolist() == [[[0.0, pytest.approx(3**0.5)], [0.0, 0.0]]]
    signed = advantages(rewards, real, clamp=False)[0, 0]
    assert signed.tolist() == pytest.approx([-(1.5**0.5), 1.5**0.5])
    alone = torch.tensor([[[2.0], [-2.0]]])
    assert advantages(alone, torch.ones(1, 2, 1), clamp=False).flatten().tolist() == [1.0, -1.0]


def test_the_tokens_after_a_position_end_with_the_document() -> None:
    targets = torch.tensor([[5, 6, IGNORE, 8, 9]])
    tokens, real, where = next_tokens(targets, torch.tensor([[0, 1, 3, 4]]), 3)
    assert tokens.tolist() == [[[5, 6, 0], [6, 0, 0], [8, 9, 0], [9, 0, 0]]]
    assert real.sum(-1).tolist() == [[2, 1, 2, 1]]
    assert where.tolist() == [[[0, 1, 2], [1, 2, 3], [3, 4, 4], [4, 4, 4]]]
    for _ in range(20):
        assert 2 not in chosen_positions(targets, 4, 2).flatten().tolist()


def test_draw_at_temperature_zero_is_the_likeliest() -> None:
    logits = torch.randn(50, 7)
    assert torch.equal(draw(logits, 0), logits.argmax(-1))
    assert (draw(logits * 1000, 1.0) == logits.argmax(-1)).all()


def test_the_loss_is_what_it_says(thinking: ThinkingModel) -> None:
    """Before any training the mixed loss is that of the text, and the rewards are 0: twice the loss, and no policy."""
    data = batch()
    plain = ThoughtLoss("plain")(thinking, data)
    logits = thinking.model(input_ids=data.inputs, use_cache=False).logits
    text = torch.nn.functional.cross_entropy(logits.flatten(0, 1), data.targets.flatten())
    assert plain.item() == pytest.approx(text.item(), rel=1e-5)
    loss = ThoughtLoss(thought_tokens=2, ahead=1)
    assert loss(thinking, data).item() == pytest.approx(2 * plain.item(), rel=1e-5)
    assert loss.figures["reward"] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("changes", [{}, {"arm": "pause"}, {"positions": 3}, {"average_decay": 0.9, "thoughts": 1, "positions": 3}])
def test_every_part_learns(thinking: ThinkingModel, changes: dict[str, Any]) -> None:
    """With a mixing head that is not zero, every parameter that a form uses gets a gradient."""
    torch.nn.init.normal_(thinking.mixer.layers[-1].weight, std=0.1)
    if changes.get("average_decay"):
        thinking.keep_average()
    replace(ThoughtLoss(thought_tokens=2, ahead=2), **changes)(thinking, batch()).backward()
    unused = {"pause"} if changes.get("arm") != "pause" else set()
    for name, parameter in thinking.named_parameters():
        silent = name in unused or "halting" in name
        assert (parameter.grad is None or not parameter.grad.any()) == silent, name


@torch.no_grad()
def test_the_average_follows_the_weights(thinking: ThinkingModel) -> None:
    thinking.keep_average()
    data = batch()
    states, _ = thinking.read(data.inputs)
    before = thinking.log_probs(states, data.targets)
    assert torch.equal(thinking.average_log_probs(data.inputs, data.targets), before)
    for parameter in thinking.model.parameters():
        parameter.mul_(1.5)
    assert torch.equal(thinking.average_log_probs(data.inputs, data.targets), before)
    thinking.update_average(0.0)
    states, _ = thinking.read(data.inputs)
    after = thinking.log_probs(states, data.targets)
    assert torch.allclose(thinking.average_log_probs(data.inputs, data.targets), after, atol=1e-5)
    assert sum(name.startswith("average.") for name, _ in thinking.named_parameters()) == 0
