"""The chunked memory is the token-by-token recurrence of Titans."""

from __future__ import annotations

import pytest
import torch

from agent_forge.forge.models.memory import UnitLowerInverse, Writes, chunked_memory

B, H, T, D, E = 2, 3, 21, 5, 7


def random_writes(momentum: bool, length: int = T) -> tuple[torch.Tensor, Writes]:
    def unit() -> torch.Tensor:
        return torch.nn.functional.normalize(torch.randn(B, H, length, D, dtype=torch.float64), dim=-1)

    rate = torch.rand(B, H, length, dtype=torch.float64)
    value = torch.randn(B, H, length, E, dtype=torch.float64)
    return unit(), Writes(unit(), value, rate, torch.rand(B, H, length, 1 + momentum, dtype=torch.float64).log())


def token_by_token(query, writes, starts=None):
    """The recurrence as the module states it, one token, one row and one head at a time."""
    length, momentum = query.shape[2], writes.log_decay.shape[-1] == 2
    memory, flight = torch.zeros(B, H, E, D).double(), torch.zeros(B, H, E, D).double()
    reads = torch.zeros(B, H, length, E).double()
    for b in range(B):
        for h in range(H):
            for t in range(length):
                if starts is not None and starts[b, t]:
                    memory[b, h], flight[b, h] = 0, 0
                key, value = writes.key[b, h, t], writes.value[b, h, t]
                keep = writes.log_decay[b, h, t, 0].exp()
                eta = writes.log_decay[b, h, t, 1].exp() if momentum else 0.0
                error = (memory[b, h] + flight[b, h]) @ key - value
                pending = flight[b, h] - writes.rate[b, h, t] * torch.outer(error, key)
                memory[b, h] = keep * memory[b, h] + (1 - eta) * pending
                flight[b, h] = eta * pending
                reads[b, h, t] = memory[b, h] @ query[b, h, t]
    return reads, torch.cat([memory, flight], -1) if momentum else memory


def cut(writes: Writes, part: slice) -> Writes:
    return Writes(*(w[:, :, part] for w in writes))


@pytest.mark.parametrize("momentum", [True, False])
@pytest.mark.parametrize("chunk", [1, 4, 7, 64])
def test_chunked_equals_the_recurrence(chunk, momentum):
    query, writes = random_writes(momentum)
    expected, last = token_by_token(query, writes)
    reads, state = chunked_memory(query, writes, None, chunk)
    torch.testing.assert_close(reads, expected)
    torch.testing.assert_close(state, last)


@pytest.mark.parametrize("momentum", [True, False])
def test_it_goes_on_from_a_state(momentum):
    query, writes = random_writes(momentum)
    expected, last = chunked_memory(query, writes, None, 4)
    _, middle = chunked_memory(query[:, :, :10], cut(writes, slice(10)), None, 4)
    reads, state = chunked_memory(query[:, :, 10:], cut(writes, slice(10, None)), middle, 5)
    torch.testing.assert_close(reads, expected[:, :, 10:])
    torch.testing.assert_close(state, last)


@pytest.mark.parametrize("momentum", [True, False])
def test_documents_start_with_an_empty_memory(momentum):
    query, writes = random_writes(momentum)
    starts = torch.zeros(B, T, dtype=torch.bool)
    starts[0, [0, 3, 9]] = True
    starts[1, [0, 14]] = True
    expected, last = token_by_token(query, writes, starts)
    reads, state = chunked_memory(query, writes, None, 4, starts)
    torch.testing.assert_close(reads, expected)
    torch.testing.assert_close(state, last)


@pytest.mark.parametrize("momentum", [True, False])
def test_padding_changes_nothing(momentum):
    """With the padding taken out, the reads of the real tokens are the same."""
    query, writes = random_writes(momentum)
    real = torch.rand(T) < 0.6
    masked = writes._replace(rate=writes.rate * real, log_decay=writes.log_decay * real[:, None])
    reads, state = chunked_memory(query, masked, None, 4)
    expected, last = chunked_memory(query[:, :, real], Writes(*(w[:, :, real] for w in writes)), None, 4)
    torch.testing.assert_close(reads[:, :, real], expected)
    torch.testing.assert_close(state, last)


def test_a_key_written_at_full_rate_is_read_back():
    """theta = 1, no forgetting, no momentum: the delta rule stores a value and overwrites it."""
    key = torch.nn.functional.normalize(torch.randn(1, 1, 1, D), dim=-1).expand(1, 1, 3, D)
    value = torch.randn(1, 1, 3, E)
    reads, _ = chunked_memory(key, Writes(key, value, torch.ones(1, 1, 3), torch.zeros(1, 1, 3, 1)), None, 2)
    torch.testing.assert_close(reads, value)


@pytest.mark.parametrize("momentum", [True, False])
def test_it_has_gradients_that_agree_with_finite_differences(momentum):
    query, writes = random_writes(momentum, length=5)
    inputs = [x[:1, :1].clone().requires_grad_() for x in (query, *writes)]
    assert torch.autograd.gradcheck(lambda query, *parts: chunked_memory(query, Writes(*parts), None, 2)[0], inputs)


@pytest.mark.parametrize("repeated", [True, False], ids=["one key", "many keys"])
@pytest.mark.parametrize("momentum", [True, False])
def test_it_stays_bounded_whatever_the_gates_do(momentum, repeated):
    """Gates that jump between 0 and 1 made a memory with plain momentum grow until it overflowed."""
    length = 3000
    key = torch.nn.functional.normalize(torch.randn(4, 1, 1 if repeated else length, D), dim=-1).expand(4, 1, length, D)
    value = torch.randn(4, 1, length, E)
    rate = torch.rand(4, 1, length).round()
    decay = torch.stack([torch.full((4, 1, length), 0.999), torch.rand(4, 1, length).round().clamp(1e-4, 0.9999)], -1)
    writes = Writes(key, value, rate, decay[..., : 1 + momentum].log())
    reads, state = chunked_memory(key, writes, None, 64)
    assert reads.abs().max() < 40
    assert state.abs().max() < 40


@pytest.mark.parametrize("size", [1, 2, 8, 16, 37, 64])
def test_the_inverse_by_blocks(size):
    lower = torch.randn(3, 2, size, size, dtype=torch.float64).tril(-1) * 0.5
    expected = torch.linalg.inv(torch.eye(size, dtype=torch.float64) + lower)
    torch.testing.assert_close(UnitLowerInverse.apply(lower), expected)
    if size == 8:
        inputs = [lower.clone().requires_grad_()]
        assert torch.autograd.gradcheck(lambda x: UnitLowerInverse.apply(x.tril(-1)), inputs)
