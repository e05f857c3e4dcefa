"""Thoughts read in parallel equal thoughts read one by one, and one sequence with a dense mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests_forge_axes import AXES
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from agent_forge.errors import UsageError
from agent_forge.forge.models.aside import MOST_SCORES, Aside, register_with_transformers
from agent_forge.forge.models.cache import CognateCache, thinking_aside

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
}
POSITIONS = torch.tensor([[0, 3, 3, 10], [2, 1, 10, 7]])  # repeated, unordered, first and last
TEXT, STEPS = 11, 5


def llama(window: int | None = None) -> Any:
    if window is None:
        model = LlamaForCausalLM(LlamaConfig(**SHAPE))
    else:
        model = MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=window))
    return model.eval()


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    text = torch.randint(0, 64, (2, TEXT))
    return text, torch.randint(0, 64, (*POSITIONS.shape, STEPS))


def read(model: Any, text: torch.Tensor, thoughts: torch.Tensor, cuts: tuple[int, ...] = (STEPS,)) -> torch.Tensor:
    """The states of all thought tokens, [B, P, S, D], read `cuts` at a time."""
    aside = Aside()
    model.base_model(input_ids=text, aside=aside, use_cache=False)
    aside = aside.after(POSITIONS)
    states, first = [], 0
    for count in cuts:
        part = thoughts[:, :, first : first + count].flatten(1)
        positions = aside.position_ids(first, count)
        out = model.base_model(input_ids=part, position_ids=positions, aside=aside, use_cache=False)
        states.append(out.last_hidden_state.unflatten(1, (POSITIONS.shape[1], -1)))
        first += count
    return torch.cat(states, dim=2)


def with_asides(model: Any) -> Any:
    model.config._attn_implementation = register_with_transformers()
    return model


def dense(model: Any, text: torch.Tensor, thoughts: torch.Tensor, window: int | None) -> torch.Tensor:
    """One sequence, the text and then every thought, under a mask that says who sees whom."""
    rows, count = POSITIONS.shape
    behind = (POSITIONS[..., None] + 1 + torch.arange(STEPS)).flatten(1)
    where = torch.cat([torch.arange(TEXT).expand(rows, -1), behind], dim=1)
    owner = torch.cat([torch.full((TEXT,), -1), torch.arange(count).repeat_interleave(STEPS)])
    step = torch.cat([torch.arange(TEXT), torch.arange(STEPS).repeat(count)])
    mask = torch.zeros(rows, 1, len(owner), len(owner), dtype=torch.bool)
    for row in range(rows):
        for query in range(len(owner)):
            for key in range(len(owner)):
                if owner[query] == owner[key]:
                    seen = step[key] <= step[query]
                else:
                    seen = owner[key] == -1 and key <= POSITIONS[row, owner[query]]
                near = window is None or where[row, query] - where[row, key] < window
                mask[row, 0, query, key] = bool(seen and near)
    everything = torch.cat([text, thoughts.flatten(1)], dim=1)
    with torch.no_grad():
        out = model.model(input_ids=everything, attention_mask=mask, position_ids=where)
    return out.last_hidden_state[:, TEXT:].unflatten(1, (count, STEPS))


@pytest.mark.parametrize("window", [None, 6])
@torch.no_grad()
def test_llama_like_models_equal_a_dense_mask(window: int | None) -> None:
    model, (text, thoughts) = llama(window), tokens()
    expected = dense(model, text, thoughts, window)
    for cuts in ((STEPS,), (1, 3, 1), (1,) * STEPS):
        assert torch.allclose(read(with_asides(model), text, thoughts, cuts), expected, atol=1e-5)


@torch.no_grad()
def test_scores_in_parts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (text, thoughts) = with_asides(llama()), tokens()
    whole = read(model, text, thoughts)
    monkeypatch.setitem(MOST_SCORES, "cpu", 1)
    assert torch.allclose(read(model, text, thoughts), whole, atol=1e-6)


@pytest.mark.parametrize("axis", ["control", "memory", "momentum", "untied", "loops", "halting with latents"])
@torch.no_grad()
def test_cognate_equals_thoughts_read_one_by_one(tiny: Any, axis: str) -> None:
    """The reference reads every thought alone, after its text, by the cache: the memory is not written meanwhile."""
    model, (text, thoughts) = tiny(**AXES[axis]), tokens()
    states = read(model, text, thoughts, (2, 1, 2))
    for row in range(2):
        for number, position in enumerate(POSITIONS[row].tolist()):
            cache = CognateCache(model.config)
            model(text[row : row + 1, : position + 1], past_key_values=cache)
            with thinking_aside(cache):
                out = model.model(thoughts[row : row + 1, number], past_key_values=cache)
            assert torch.allclose(states[row, number], out.last_hidden_state[0], atol=1e-5)


@torch.no_grad()
def test_a_model_without_memory_equals_plain_sequences(tiny: Any) -> None:
    model, (text, thoughts) = tiny(memory_layers=[], sliding_window=8), tokens()
    states = read(model, text, thoughts)
    for row, number in ((0, 0), (0, 2), (1, 3)):
        whole = torch.cat([text[row, : POSITIONS[row, number] + 1], thoughts[row, number]])
        plain = model.model(whole[None], use_cache=False).last_hidden_state[0, -STEPS:]
        assert torch.allclose(states[row, number], plain, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "cognate"])
def test_gradients_equal_those_of_a_dense_mask(kind: str, tiny: Any) -> None:
    """Every parameter's gradient, through the text and through the thoughts."""
    model, (text, thoughts) = (llama() if kind == "llama" else tiny(memory_layers=[], sliding_window=64)), tokens()
    weights = torch.randn(2, 4, STEPS, 32)

    def gradients(states: torch.Tensor) -> list[torch.Tensor]:
        parameters = [parameter for name, parameter in model.base_model.named_parameters()]
        return list(torch.autograd.grad((states * weights).sum(), parameters))

    plain = []
    for row in range(2):
        for number in range(4):
            whole = torch.cat([text[row, : POSITIONS[row, number] + 1], thoughts[row, number]])
            plain.append(model.base_model(input_ids=whole[None], use_cache=False).last_hidden_state[0, -STEPS:])
    expected = gradients(torch.stack(plain).view(2, 4, STEPS, 32))
    for one, other in zip(gradients(read(with_asides(model), text, thoughts)), expected, strict=True):
        assert torch.allclose(one, other, atol=2e-5 + 1e-4 * float(other.abs().max()))


def test_memory_grows_with_the_text_times_the_thought() -> None:
    """What the backward pass needs: four times as much for twice the text and twice the thought, where scores kept for
    it would take eight times."""

    def saved(length: int, steps: int) -> int:
        sizes: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        aside = Aside()
        aside.update(torch.randn(1, 1, length, 2), torch.randn(1, 1, length, 2), 0)
        aside = aside.after(torch.arange(length)[None])
        q, k, v = (torch.randn(1, 1, length * steps, 2, requires_grad=True) for _ in range(3))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            aside.update(k, v, 0)
            aside.attend(q, 0, 1.0)
        return sum(sizes.values())

    assert saved(128, 16) < 4.5 * saved(64, 8)
    assert saved(128, 16) < 128 * 128 * 16  # bytes: less than a quarter of the scores


@pytest.mark.parametrize("axis", ["memory", "momentum", "loops", "halting"])
@torch.no_grad()
def test_a_cache_forgets_a_thought(tiny: Any, axis: str) -> None:
    """After a thought longer than the window, what follows is bit for bit what it would have been."""
    model = tiny(**AXES[axis])
    text, thought, rest = (torch.randint(0, 64, (2, length)) for length in (9, 12, 4))
    plain, thinking = CognateCache(model.config), CognateCache(model.config)
    for cache in (plain, thinking):
        model(text, past_key_values=cache)
    with thinking_aside(thinking):
        model(thought, past_key_values=thinking)
        assert thinking.get_seq_length() == 21
    assert thinking.get_seq_length() == 9
    after = [model(rest, past_key_values=cache).logits for cache in (plain, thinking)]
    assert torch.equal(*after)
    with pytest.raises(UsageError, match="thinking_aside"):
        plain.crop(3)
