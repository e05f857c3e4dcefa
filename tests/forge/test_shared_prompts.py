"""Answers that share the reading of their prompt: log-probabilities, values and gradients as of each row alone."""

from __future__ import annotations

import random

import pytest
import torch
from tests_forge_axes import tiny_config
from tests_policy_toys import tiny_llama
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from agent_forge.forge.models import CognateForCausalLM
from agent_forge.forge.training import ReinforceSettings
from agent_forge.forge.training.experience import experience_of
from agent_forge.forge.training.policy import ValueHead, log_probs_and_values
from agent_forge.forge.training.reinforce import learn_policy
from agent_forge.forge.training.shared_prompts import share_prompts, sheet_width, sheets_of_rows


def drawn_rows(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of three prompts, one of which begins another; answers with and without turns of tools, also none at all."""
    rng = random.Random(seed)
    prompts = [[1, 2, 3, 4, 5, 6], [1, 2, 3], [7, 8, 9, 9, 9]]
    tokens, mask = torch.zeros(9, 16, dtype=torch.long), torch.zeros(9, 16)
    for row in range(9):
        prompt = rng.choice(prompts)
        turns = rng.choice([[], [1], [1] * rng.randint(2, 8), [1, 1, 0, 0, 1], [1, 0, 0, 1, 1, 1, 0]])
        answer = [rng.randrange(16) for _ in turns]
        tokens[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        mask[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(turns, dtype=torch.float)
    return tokens, mask


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("head", ["plain", "capped"])
def test_log_probs_values_and_gradients_are_those_of_each_row_alone(seed, head):
    model = tiny_llama(std=0.3)
    if head == "capped":
        model.config.logit_scale = 2.0  # then the model computes its logits itself
    value = ValueHead.for_model(model)
    torch.nn.init.normal_(value.weight)
    tokens, mask = drawn_rows(seed)
    bits = torch.randint(1, 256, (9, 16, 2), dtype=torch.uint8) if seed % 2 else None
    weights = torch.randn(2, 9, 16)
    assert share_prompts(tokens, mask, sheet_width(model)) is not None

    def read(rows: list[slice]) -> list[torch.Tensor]:
        model.zero_grad(), value.zero_grad()
        parts = [
            log_probs_and_values(model, value, tokens[at], mask[at], allowed_BLV=None if bits is None else bits[at])
            for at in rows
        ]
        new, values = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
        new = new.clamp_min(-50)  # a token that the bits forbid has no probability
        ((new * weights[0] + values * weights[1]).sum() / mask.sum()).backward()
        return [new, values, *(p.grad for p in [*model.parameters(), *value.parameters()])]

    together, alone = read([slice(0, 9)]), read([slice(row, row + 1) for row in range(9)])
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_a_group_is_read_as_one_row_and_every_last_token_is_left_out():
    tokens = torch.tensor([[1, 2, 3, 4, 9, 9], [1, 2, 3, 5, 6, 9], [1, 2, 7, 0, 0, 0]])
    mask = torch.tensor([[0.0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1], [0, 0, 1, 0, 0, 0]])
    batch, place = share_prompts(tokens, mask, 32)
    assert batch.inputs.tolist() == [[1, 2, 3, 5, 6, 4], [1, 2, 0, 0, 0, 0]]
    assert batch.positions.tolist() == [[0, 1, 2, 3, 4, 3], [0, 1, 0, 0, 0, 0]]
    assert place[:, :5].tolist() == [[0, 1, 2, 5, 0], [0, 1, 2, 3, 4], [6, 7, 0, 0, 0]]
    sees = batch.context()["attention_mask"][0, 0].int().tolist()
    assert sees[4:] == [[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 1]]


def test_long_answers_to_a_short_prompt_stay_apart_and_many_copies_take_several_sheets():
    def sheets(prompt: int, answer: int, copies: int) -> list[int]:
        tokens = torch.ones(copies, prompt + answer, dtype=torch.long)
        mask = torch.cat([torch.zeros(copies, prompt), torch.ones(copies, answer)], 1)
        return [len(rows) for rows in sheets_of_rows(tokens, mask, 32)]

    assert sheets(20, 10, 8) == [8]
    assert sheets(1, 60, 4) == [1, 1, 1, 1]
    assert sheets(2, 1, 150) == [63, 63, 24]  # PARTS - 1 parts at most
    assert sheets(30, 20, 9) == [5, 4]  # six would fit, but 6 and 3 would be padded to two of six


def test_models_that_do_not_see_all_tokens_or_take_no_mask_read_every_row():
    shape = {"vocab_size": 16, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    windowed = MistralForCausalLM(MistralConfig(**shape, num_attention_heads=2, num_key_value_heads=2))
    learned = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_embd=32, n_layer=1, n_head=2))
    for model in (windowed, learned, CognateForCausalLM(tiny_config(vocab_size=16))):
        assert sheet_width(model) is None
    assert sheet_width(tiny_llama()) == 32
    tokens, mask = drawn_rows(0)
    assert share_prompts(tokens, mask, None) is None


def test_an_update_is_the_same_as_from_rows_read_one_at_a_time():
    tokens, mask = drawn_rows(1)
    lists = [each.tolist() for each in (tokens, mask, -torch.rand(9, 16) * mask, torch.randn(9, 16) * mask)]
    experience = experience_of(lists[0], lists[1], lists[2], [0.0] * 9, [0] * 9, advantages=lists[3])
    after = []
    for rows in (9, 1):
        model = tiny_llama(std=0.3)
        settings = ReinforceSettings(iterations=1, evaluate_every=0, micro_rows=rows, learning_rate=1e-2, clip=0.0)
        learn_policy(model, lambda _: experience, settings, progress=None)
        after.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*after, atol=1e-4, rtol=1e-4)


def test_attention_written_out_sees_the_same_as_the_fused_one():
    tokens, mask = drawn_rows(2)
    fused, written_out = tiny_llama(std=0.3), tiny_llama(std=0.3, attn_implementation="eager")
    assert written_out.config._attn_implementation == "eager"
    new, same = (log_probs_and_values(model, None, tokens, mask)[0] for model in (fused, written_out))
    torch.testing.assert_close(new, same, atol=1e-5, rtol=1e-5)
