"""The chunked memory is the token-by-token recurrence of Titans."""

from __future__ import annotations

import pytest
import torch

from agent_forge.forge.models.memory import Writes, chunked_memory

B, H, T, D, E = 2, 3, 21, 5, 7


def random_writes(length: int = T) -> tuple[torch.Tensor, Writes]:
    def unit() -> torch.Tensor:
        return torch.nn.functional.normalize(torch.randn(B, H, length, D, dtype=torch.float64), dim=-1)

    def log_share() -> torch.Tensor:
        return torch.rand(B, H, length, dtype=torch.float64).log()

    rate = torch.rand(B, H, length, dtype=torch.float64)
    value = torch.randn(B, H, length, E, dtype=torch.float64)
    return unit(), Writes(unit(), value, rate, log_share(), log_share(), torch.ones_like(rate))


def token_by_token(query, writes, momentum=True, starts=None, state=None):
    """The recurrence as the paper writes it, one token, one row and one head at a time."""
    length = query.shape[2]
    memory, surprise = torch.zeros(B, H, E, D).double(), torch.zeros(B, H, E, D).double()
    if state is not None:
        memory, surprise = state[..., :D].clone(), state[..., D:].clone() if momentum else surprise
    reads = torch.zeros(B, H, length, E).double()
    for b in range(B):
        for h in range(H):
            for t in range(length):
                if starts is not None and starts[b, t]:
                    memory[b, h], surprise[b, h] = 0, 0
                if writes.active[b, h, t]:
                    key, value = writes.key[b, h, t], writes.value[b, h, t]
                    error = memory[b, h] @ key - value
                    eta = writes.log_carry[b, h, t].exp() if momentum else 0.0
                    surprise[b, h] = eta * surprise[b, h] - writes.rate[b, h, t] * torch.outer(error, key)
                    memory[b, h] = writes.log_keep[b, h, t].exp() * memory[b, h] + surprise[b, h]
                reads[b, h, t] = memory[b, h] @ query[b, h, t]
    return reads, torch.cat([memory, surprise], -1) if momentum else memory


@pytest.mark.parametrize("momentum", [True, False])
@pytest.mark.parametrize("chunk", [1, 4, 7, 64])
def test_chunked_equals_the_recurrence(chunk, momentum):
    query, writes = random_writes()
    expected, last = token_by_token(query, writes, momentum)
    reads, state = chunked_memory(query, writes, None, chunk, momentum)
    torch.testing.assert_close(reads, expected)
    torch.testing.assert_close(state, last)


@pytest.mark.parametrize("momentum", [True, False])
def test_it_goes_on_from_a_state(momentum):
    query, writes = random_writes()
    whole, last = chunked_memory(query, writes, None, 4, momentum)
    cut = 10
    _, middle = chunked_memory(query[:, :, :cut], Writes(*(w[:, :, :cut] for w in writes)), None, 4, momentum)
    reads, state = chunked_memory(query[:, :, cut:], Writes(*(w[:, :, cut:] for w in writes)), middle, 5, momentum)
    torch.testing.assert_close(reads, whole[:, :, cut:])
    torch.testing.assert_close(state, last)


@pytest.mark.parametrize("momentum", [True, False])
def test_documents_start_with_an_empty_memory(momentum):
    query, writes = random_writes()
    starts = torch.zeros(B, T, dtype=torch.bool)
    starts[0, [0, 3, 9]] = True
    starts[1, [0, 14]] = True
    expected, last = token_by_token(query, writes, momentum, starts)
    reads, state = chunked_memory(query, writes, None, 4, momentum, starts)
    torch.testing.assert_close(reads, expected)
    torch.testing.assert_close(state, last)


def test_padding_changes_nothing():
    query, writes = random_writes()
    active = (torch.rand(B, 1, T) < 0.6).double().expand(B, H, T)
    masked = Writes(
        writes.key, writes.value, writes.rate * active, writes.log_keep * active, writes.log_carry * active, active
    )
    expected, last = token_by_token(query, masked)
    reads, state = chunked_memory(query, masked, None, 4)
    torch.testing.assert_close(reads, expected)
    torch.testing.assert_close(state, last)


def test_a_key_written_at_full_rate_is_read_back():
    """theta = 1, no forgetting, no momentum: the delta rule stores a value and overwrites it."""
    key = torch.nn.functional.normalize(torch.randn(1, 1, 1, D), dim=-1).expand(1, 1, 3, D)
    value = torch.randn(1, 1, 3, E)
    ones, zeros = torch.ones(1, 1, 3), torch.zeros(1, 1, 3)
    reads, _ = chunked_memory(key, Writes(key, value, ones, zeros, zeros, ones), None, 2, momentum=False)
    torch.testing.assert_close(reads, value)


def test_it_has_gradients_that_agree_with_finite_differences():
    query, writes = random_writes(length=5)
    query, tensors = query[:1, :1], [w[:1, :1].clone() for w in writes[:5]]

    def run(query, *tensors):
        return chunked_memory(query, Writes(*tensors, torch.ones_like(tensors[2])), None, 2)[0]

    inputs = [x.requires_grad_() for x in (query, *tensors)]
    assert torch.autograd.gradcheck(run, inputs)


def test_long_repetition_stays_finite():
    """The same key 4,000 times is the worst case of a memory that takes its gradient at the start of a chunk."""
    length = 4000
    key = torch.nn.functional.normalize(torch.randn(1, 1, 1, D), dim=-1).expand(1, 1, length, D)
    value = torch.randn(1, 1, length, E)
    eta = torch.full((1, 1, length), 0.9)
    writes = Writes(key, value, 1 - eta, torch.full_like(eta, -1e-3), eta.log(), torch.ones_like(eta))
    reads, state = chunked_memory(key, writes, None, 64)
    assert reads.abs().max() < 20
    assert state.isfinite().all()
