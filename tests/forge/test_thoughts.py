"""Thinking models: mixing, sampling, the policy gradient, generation, and their files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests_forge_axes import tiny_config
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from agent_forge.errors import CheckpointError, UsageError
from agent_forge.forge.models import CognateForCausalLM
from agent_forge.forge.thoughts.folder import load_thinking, save_heads
from agent_forge.forge.thoughts.generation import generate
from agent_forge.forge.thoughts.judging import ThoughtJudgement, coherence_metrics, sample_rows, token_nats
from agent_forge.forge.thoughts.learning import (
    ThoughtLoss,
    advantages,
    chosen_positions,
    next_tokens,
    policy_loss,
)
from agent_forge.forge.thoughts.model import END, START, ThinkingModel, draw
from agent_forge.forge.training import HeldOut, train_tokenizer
from agent_forge.forge.training.evaluation import document_scores
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
    assert (
        thinking.sample(aside, positions[:, :2], 3, temperature=0)[0, 0].tolist()
        == thinking.sample(aside, positions[:, :1], 3, temperature=0)[0, 0].tolist()
    )


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
    for parameter, index in ((thinking.start, (3,)), (thinking.start, (7,)), (layer, (60, 5)), (layer, (9, 30))):
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


@pytest.mark.parametrize(
    "changes", [{}, {"arm": "pause"}, {"positions": 3}, {"average_decay": 0.9, "thoughts": 1, "positions": 3}]
)
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


def lively(thinking: ThinkingModel) -> ThinkingModel:
    """With a mixing head that is not zero."""
    torch.manual_seed(5)
    for name in ("start", "end"):
        torch.nn.init.normal_(getattr(thinking, name), std=0.1)
    torch.nn.init.normal_(thinking.mixer.layers[-1].weight, std=0.3)
    return thinking


@torch.no_grad()
def test_generation_equals_thinking_after_the_last_token(thinking: ThinkingModel) -> None:
    """Token by token with a cache that forgets, against the whole text read anew in parallel for every token."""
    thinking = lively(thinking)
    prompt = torch.randint(32, 300, (2, 9))
    out = generate(thinking, prompt, max_new_tokens=4, thought_tokens=3, show=True)
    tokens = prompt
    for number in range(4):
        states, aside = thinking.read(tokens)
        last = torch.full((2, 1), tokens.shape[1] - 1)
        thought = thinking.sample(aside, last, 3, temperature=0)
        _, after = thinking.follow(aside, last, thinking.embed(thought), thought[:, :, :0])
        mixed, weight = thinking.mix(states[:, -1], after[:, 0, 0])
        assert torch.equal(out.thoughts[number], thought[:, 0])
        assert torch.allclose(out.weights[number], weight[:, 0], atol=1e-4)
        tokens = torch.cat([tokens, thinking.logits(mixed).argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(out.tokens, tokens)


@torch.no_grad()
def test_generation_without_thoughts_is_the_models_own(thinking: ThinkingModel, tokenizer: Any) -> None:
    prompt = torch.tensor([tokenizer("the cat sees")["input_ids"]])
    plain = thinking.model.generate(prompt, max_new_tokens=5, do_sample=False, eos_token_id=None)
    assert torch.equal(generate(thinking, prompt, max_new_tokens=5, thought_tokens=0).tokens, plain)
    hidden = generate(lively(thinking), prompt, max_new_tokens=3, thought_tokens=2)
    assert (hidden.thoughts, hidden.tokens.shape) == ([], (1, prompt.shape[1] + 3))
    shown = generate(thinking, prompt, max_new_tokens=3, thought_tokens=2, show=True)
    assert torch.equal(shown.tokens, hidden.tokens)
    assert shown.shown(tokenizer).count("[") >= 3
    end = int(hidden.tokens[0, prompt.shape[1]])
    assert (
        generate(thinking, prompt, max_new_tokens=9, thought_tokens=2, eos=end).tokens.shape[1] == prompt.shape[1] + 1
    )
    drawn = [
        generate(thinking, prompt, max_new_tokens=6, thought_tokens=1, temperature=2.0, seed=s).tokens for s in (1, 1)
    ]
    assert torch.equal(*drawn)
    with pytest.raises(UsageError, match="at least one token"):
        generate(thinking, prompt[:, :0], max_new_tokens=1, thought_tokens=1)


def test_a_thinking_model_is_saved_and_loaded(thinking: ThinkingModel, tokenizer: Any, tmp_path: Path) -> None:
    thinking = lively(thinking)
    thinking.model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="has no thoughts"):
        load_thinking(tmp_path)
    save_heads(thinking, 3, tmp_path)
    again = load_thinking(tmp_path)
    assert again.thought_tokens == 3
    prompt = torch.tensor([tokenizer("the dog")["input_ids"]])
    texts = [generate(one, prompt, max_new_tokens=4, thought_tokens=3).tokens for one in (thinking, again.model)]
    assert torch.equal(*texts)
    assert torch.equal(again.model.mixer.layers[0].weight, thinking.mixer.layers[0].weight)
    file = tmp_path / "thoughts" / "heads.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_thinking(tmp_path)


def judgement(thoughts: float, shuffled: float = 0.0, seeds: int = 3, noise: float = 0.0) -> ThoughtJudgement:
    """2,000 tokens of 40 documents; `thoughts` and `shuffled` are by how much these lower the nats of hard tokens."""
    rng = np.random.default_rng(0)
    before = rng.exponential(2.0, 2000)
    hard = before >= np.quantile(before, 0.9)

    def arm(gain: float) -> list[np.ndarray]:
        each = [gain + noise * rng.normal() for _ in range(seeds)]
        return [before - one * hard + 0.01 * rng.normal(size=2000) for one in each]

    rest = {name: arm(0.0) for name in ("zero", "pause", "plain")}
    arms = {**rest, "shuffled": arm(shuffled), "thoughts": arm(thoughts)}
    return ThoughtJudgement(np.repeat(np.arange(40), 50), before, arms)


def test_the_gate_wants_more_than_every_control() -> None:
    good = judgement(0.5)
    assert good.gate().verdict == "passed"
    assert good.gate().before - good.gate().after == pytest.approx(0.5, abs=0.01)
    assert good.difference("zero", good.hard())[0] == pytest.approx(-0.5, abs=0.01)
    assert judgement(0.0).gate().verdict == "no gain"
    assert judgement(0.5, shuffled=0.5).gate().verdict == "no gain", "any thought would do: theatre"
    assert judgement(0.5, shuffled=0.4).gate().verdict == "passed"
    assert judgement(0.1, noise=0.5).gate().verdict == "no gain", "seeds differ more than the gain"
    for seeds in (1, 2):
        few = judgement(0.5, seeds=seeds).gate()
        assert (few.verdict, few.note) == ("no gain", f"no gain shown: {seeds} of 3 seeds")
    assert "note" not in good.gate().as_dict()
    metrics = good.metrics()
    assert metrics["nats, hardest tenth, thoughts minus pause"].value == pytest.approx(-0.5, abs=0.02)
    assert metrics["nats, all tokens, before"].n == 2000


@torch.no_grad()
def test_judged_nats_are_those_of_every_token(thinking: ThinkingModel, tokenizer: Any) -> None:
    held_out = HeldOut.of(tokenizer, TEXTS, 16)
    rows = sample_rows(held_out, 1000)
    figures = token_nats(lively(thinking), rows, "thoughts", 2, batch_rows=3, judge=thinking)
    documents = rows.documents[:, 1:][rows.documents[:, 1:] >= 0]
    assert {len(figure) for figure in figures.values()} == {len(documents)}
    nats = document_scores(thinking.model, HeldOut(rows, held_out.bytes_of))[0]
    plain = token_nats(thinking, rows, "plain")["zero"]
    assert np.bincount(documents, plain) == pytest.approx(nats, rel=1e-4)
    assert np.allclose(figures["zero"], plain, atol=1e-4)
    assert not np.allclose(figures["thoughts"], figures["shuffled"], atol=1e-3)
    assert set(coherence_metrics(figures)) == {"thought nats per token", "thought relevance", "weight of thoughts"}
    if thinking.attention is None:
        return  # Cognate's memory would be written by the row below
    # what the judge says of one thought, against the plain model on text and thought in one row
    batch = rows.take(slice(0, 1))
    _, aside = thinking.read(batch.inputs)
    thought = thinking.sample(aside, torch.tensor([[0]]), 2, temperature=0)[0, 0]
    whole = torch.cat([batch.inputs[0, :1], thought])
    chances = torch.log_softmax(thinking.model(whole[None], use_cache=False).logits[0].float(), -1)
    nats_of_thought = -(chances[0, thought[0]] + chances[1, thought[1]]) / 2
    assert figures["thoughts by the judge"][0] == pytest.approx(float(nats_of_thought), rel=1e-4)
