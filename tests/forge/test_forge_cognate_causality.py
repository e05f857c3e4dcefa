"""A causal language model does not know the future, its neighbours, or what it read before."""

from __future__ import annotations

import math

import pytest
import torch

LENGTH = 19


def tokens(rows: int = 2, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, 64, (rows, length))


@torch.no_grad()
def test_editing_a_token_changes_no_logits_before_it(axis_model):
    text = tokens()
    before = axis_model(text, use_cache=False).logits
    for position in (0, 7, LENGTH - 1):
        edited = text.clone()
        edited[:, position] = (edited[:, position] + 1) % 64
        after = axis_model(edited, use_cache=False).logits
        assert torch.equal(before[:, :position], after[:, :position])
        assert not torch.equal(before[:, position], after[:, position])


@torch.no_grad()
def test_training_mode_is_causal_too(axis_model):
    axis_model.train()
    text = tokens()
    edited = text.clone()
    edited[:, 11] = (edited[:, 11] + 1) % 64
    before, after = axis_model.model(text), axis_model.model(edited)
    for old, new in zip(before.answers, after.answers, strict=True):
        assert torch.equal(old[:, :11], new[:, :11])
        assert not torch.equal(old[:, 11:], new[:, 11:])


@torch.no_grad()
def test_rows_of_a_batch_do_not_see_each_other(axis_model):
    text = tokens(rows=3)
    together = axis_model(text, use_cache=False).logits
    changed = text.clone()
    changed[1] = tokens(rows=1)[0]
    beside_another = axis_model(changed, use_cache=False).logits
    assert torch.equal(together[[0, 2]], beside_another[[0, 2]])


@torch.no_grad()
def test_the_same_input_twice_gives_the_same_output(axis_model):
    text = tokens()
    first = axis_model(text).logits
    axis_model(tokens())
    assert torch.equal(first, axis_model(text).logits)


@pytest.mark.parametrize("changes", [{}, {"memory_layers": []}, {"loops": 2}], ids=["memory", "control", "loops"])
def test_packed_documents_do_not_see_each_other(tiny, changes):
    model = tiny(**changes)
    text = tokens(rows=1)
    documents = torch.tensor([[0] * 6 + [1] * 7 + [2] * 6])
    with torch.no_grad():
        before = model(text, document_ids=documents, use_cache=False).logits
        text[0, 2] = (text[0, 2] + 1) % 64
        after = model(text, document_ids=documents, use_cache=False).logits
    # the memory's decays are sums of logarithms over the whole chunk, so a boundary inside one shows up as rounding
    torch.testing.assert_close(before[:, 6:], after[:, 6:], atol=1e-6, rtol=0)
    assert (before[:, 2:6] - after[:, 2:6]).abs().max() > 1e-2


@pytest.mark.untraced
def test_random_tokens_cannot_be_learnt_below_their_entropy(tiny):
    """A model that sees the future gets near zero here. Fresh tokens each step: nothing can be memorised."""
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    model = tiny(vocab_size=16, **special, loops=2, halting=True, halt_entropy=0.2).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
    losses = []
    for _ in range(60):
        batch = torch.randint(0, 16, (16, 12))
        loss = model(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    floor = math.log(16)
    tail = torch.tensor(losses[-20:])
    assert tail.mean() > floor - 0.02  # 20 x 176 tokens: the standard error is far smaller
    assert tail.mean() < floor + 0.3
