"""Cached generation is recomputation, whatever the split, the padding or the batch."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from agent_forge.errors import UsageError
from agent_forge.forge.models import CognateCache

LENGTH = 23


def tokens(rows: int = 2, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, 64, (rows, length))


@torch.no_grad()
def test_any_split_of_the_text_gives_the_same_logits(axis_model):
    text = tokens()
    expected = axis_model(text, use_cache=False).logits
    for splits in ([1] * 13, [7, 13, 1, 2], [9, 14]):  # past the window of 8, and within chunks of 4 and across them
        cache, length = CognateCache(axis_model.config), sum(splits)
        parts = [axis_model(part, past_key_values=cache).logits for part in text[:, :length].split(splits, dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), expected[:, :length], atol=1e-5, rtol=1e-5)
        assert cache.get_seq_length() == length


@torch.no_grad()
def test_in_float64_nothing_is_rounded_to_less(axis_model):
    model, text = axis_model.double(), tokens()
    expected = model(text, use_cache=False).logits
    cache = CognateCache(model.config)
    parts = [model(part, past_key_values=cache).logits for part in text.split([5, 1, 17], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, atol=1e-11, rtol=1e-11)


@torch.no_grad()
def test_packed_documents_are_read_as_each_alone(axis_model):
    model, sizes = axis_model.double(), [1, 6, 1, 9, 1]
    for row in (sizes, [1]):  # a row may hold a single token
        documents = [tokens(1, size) for size in row]
        numbers = torch.cat([torch.full_like(text, number) for number, text in enumerate(documents)], dim=1)
        packed = model(torch.cat(documents, dim=1), document_ids=numbers, use_cache=False).logits
        alone = torch.cat([model(text, use_cache=False).logits for text in documents], dim=1)
        torch.testing.assert_close(packed, alone, atol=1e-11, rtol=1e-11)


@torch.no_grad()
def test_the_cache_keeps_a_window_and_no_more(tiny):
    model = tiny(sliding_window=8)
    cache = model(tokens()).past_key_values
    assert {layer.keys.shape[-2] for layer in cache.layers} == {7}
    assert cache.get_mask_sizes(1, 0) == (8, LENGTH - 7)


@torch.no_grad()
def test_generate_equals_recomputing_everything_for_each_token(axis_model):
    text = tokens()
    generated = axis_model.generate(text, max_new_tokens=4, do_sample=False, eos_token_id=None)
    for _ in range(4):
        logits = axis_model(text, use_cache=False).logits
        text = torch.cat([text, logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(generated, text)


@torch.no_grad()
def test_left_padding_changes_nothing(axis_model):
    short, long = tokens(rows=1, length=9), tokens(rows=1, length=14)
    alone = axis_model.generate(short, max_new_tokens=3, do_sample=False, eos_token_id=None)
    batch = torch.cat([torch.nn.functional.pad(short, (5, 0), value=2), long])
    mask = torch.ones_like(batch)
    mask[0, :5] = 0
    logits = axis_model(batch, attention_mask=mask, use_cache=False).logits
    torch.testing.assert_close(logits[:1, 5:], axis_model(short, use_cache=False).logits, atol=1e-5, rtol=1e-5)
    together = axis_model.generate(batch, attention_mask=mask, max_new_tokens=3, do_sample=False, eos_token_id=None)
    assert torch.equal(together[0, 5:], alone[0])


@torch.no_grad()
def test_beams_reorder_the_memory_with_the_keys(tiny):
    model, text = tiny(), tokens(rows=2, length=6)
    generated = model.generate(text, max_new_tokens=5, num_beams=3, do_sample=False, eos_token_id=None)
    again = model.generate(text, max_new_tokens=5, num_beams=3, do_sample=False, eos_token_id=None, use_cache=False)
    assert torch.equal(generated, again)


@torch.no_grad()
def test_a_cache_can_be_repeated_selected_and_reset(tiny):
    model, text = tiny(), tokens(rows=1, length=6)
    cache = model(text).past_key_values
    cache.batch_repeat_interleave(3)
    cache.batch_select_indices(torch.tensor([0, 2]))
    follow = tokens(rows=1, length=4).expand(2, -1)
    logits = model(follow, past_key_values=cache).logits
    expected = model(torch.cat([text, follow[:1]], dim=1), use_cache=False).logits[:, 6:]
    torch.testing.assert_close(logits, expected.expand(2, -1, -1), atol=1e-5, rtol=1e-5)
    cache.reset()
    assert cache.get_seq_length() == 0
    torch.testing.assert_close(model(text, past_key_values=cache).logits, model(text, use_cache=False).logits)


@torch.no_grad()
def test_what_cannot_be_done_with_a_cache_is_refused(tiny):
    model, text = tiny(), tokens()
    with pytest.raises(UsageError, match="CognateCache"):
        model(text, past_key_values=DynamicCache())
    with pytest.raises(UsageError, match="packed documents"):
        model(text, past_key_values=CognateCache(model.config), document_ids=torch.zeros_like(text))
    with pytest.raises(UsageError, match="cropped"):
        model(text).past_key_values.crop(3)
    with pytest.raises(UsageError, match="input_ids or inputs_embeds"):
        model()


@torch.no_grad()
def test_the_states_of_the_layers_are_given_to_who_asks(axis_model):
    text = tokens()
    out = axis_model(text, output_hidden_states=True)
    passes, rest = divmod(len(out.hidden_states) - 1, axis_model.config.num_hidden_layers)
    assert rest == 0
    assert 1 <= passes <= axis_model.config.passes_per_loop * axis_model.config.loops
    torch.testing.assert_close(axis_model.lm_head(axis_model.head_down(out.hidden_states[-1])), out.logits)
    assert axis_model(text).hidden_states is None
    generated = axis_model.generate(text, max_new_tokens=2, return_dict_in_generate=True, output_hidden_states=True)
    assert [step[-1].shape[1] for step in generated.hidden_states] == [LENGTH, 1]


@torch.no_grad()
def test_embeddings_may_be_given_instead_of_tokens(tiny):
    model, text = tiny(), tokens()
    embedded = model.get_input_embeddings()(text)
    torch.testing.assert_close(model(inputs_embeds=embedded).logits, model(text).logits)
