"""Titans' neural memory (2501.00663) with a linear memory, read as a gate on attention (the MAG variant).

Every head holds a matrix M that is trained in the forward pass to map keys to values. For token t

    e_t = M_{t-1} k_t - v_t                        the surprise: the gradient of |M k - v|^2 / 2 is e k^T
    S_t = eta_t S_{t-1} - theta_t e_t k_t^T        momentum of the surprise
    M_t = (1 - alpha_t) M_{t-1} + S_t              forgetting
    r_t = M_t q_t                                  the read

with eta, theta, alpha computed from the token. The paper takes the gradient at the start of each chunk so that a
chunk runs in parallel; here the gradient is the token's own, and the chunk still runs in parallel, because the
surprises of a chunk solve one unit-triangular system (the WY form of the delta rule, extended to momentum). So the
chunk length is a matter of speed alone: any split of a sequence, any padding, gives the same numbers.

Shapes: B batch, H heads, T tokens, N chunks, C tokens of a chunk, D key width, E value width.
The state is [M | S], [B, H, E, 2D] (or M alone, [B, H, E, D], without momentum).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_forge.forge.models.config import CognateConfig
from agent_forge.forge.models.norm import rms_norm

if TYPE_CHECKING:
    from agent_forge.forge.models.recursion import Reading


class Writes(NamedTuple):
    """What a token does to the memory."""

    key: Tensor  # BHTD, unit length
    value: Tensor  # BHTE
    rate: Tensor  # BHT, theta
    log_keep: Tensor  # BHT, log(1 - alpha)
    log_carry: Tensor  # BHT, log(eta)
    active: Tensor  # BHT, 1 for a real token and 0 for padding, which must change nothing


class NeuralMemory(nn.Module):
    """The memory of one layer and its gate: y becomes norm(y) w_y * 2 sigmoid(norm(read) w_m)."""

    def __init__(self, config: CognateConfig) -> None:
        super().__init__()
        inner = config.memory_heads * config.memory_head_dim
        self.heads, self.width = config.memory_heads, config.memory_head_dim
        self.chunk, self.momentum, self.eps = config.memory_chunk, config.memory_momentum, config.rms_norm_eps
        self.row_blocks = (inner, inner, inner)
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * inner, bias=False)
        self.rates = nn.Linear(config.hidden_size, 3 * self.heads)
        self.out_proj = nn.Linear(inner, config.hidden_size, bias=False)
        self.attention_gain = nn.Parameter(torch.ones(config.hidden_size))
        self.memory_gain = nn.Parameter(torch.ones(config.hidden_size))

    def forward(self, x_BTD: Tensor, y_BTD: Tensor, reading: Reading, slot: int) -> Tensor:
        query, writes = self.propose(x_BTD, reading.valid)
        writes = Writes(*reading.keep(slot, "memory", writes))
        read_BHTE = self.advance(query, writes, reading, slot)
        read_BTD = self.out_proj(read_BHTE.transpose(1, 2).flatten(2).to(x_BTD.dtype))
        gate = 2 * torch.sigmoid(rms_norm(read_BTD, self.eps).float() * self.memory_gain)
        return (rms_norm(y_BTD, self.eps).float() * self.attention_gain * gate).to(y_BTD.dtype)

    def propose(self, x_BTD: Tensor, valid_BT: Tensor | None) -> tuple[Tensor, Writes]:
        """Queries, and what each token would write."""
        batch, length, _ = x_BTD.shape
        parts = F.silu(self.qkv_proj(x_BTD)).float().view(batch, length, 3, self.heads, self.width)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        query, key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)
        theta, alpha, eta = self.rates(x_BTD).float().view(batch, length, 3, self.heads).permute(2, 0, 3, 1).unbind(0)
        rate, log_keep, log_carry = torch.sigmoid(theta), F.logsigmoid(-alpha), F.logsigmoid(eta)
        if self.momentum:  # a token's writes, summed over the time its momentum lasts, stay below 1: no overshoot
            rate = rate * (1 - log_carry.exp())
        active = torch.ones_like(rate)
        if valid_BT is not None:
            active = valid_BT[:, None, :].to(rate.dtype).expand_as(rate)
            rate, log_keep, log_carry = rate * active, log_keep * active, log_carry * active
        return query, Writes(key, value, rate, log_keep, log_carry, active)

    def advance(self, query: Tensor, writes: Writes, reading: Reading, slot: int) -> Tensor:
        """Reads while writing; the state goes on in the cache if there is one, and starts from nothing if not."""
        state = None if reading.cache is None else reading.cache.memory(slot)
        read, state = chunked_memory(query, writes, state, self.chunk, self.momentum, reading.starts)
        if reading.cache is not None:
            reading.cache.set_memory(slot, state)
        return read


def chunked_memory(
    query: Tensor,
    writes: Writes,
    state: Tensor | None = None,
    chunk: int = 64,
    momentum: bool = True,
    starts_BT: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The recurrence of the module's docstring, `chunk` tokens at a time: (reads BHTE, the state after the last token).

    `starts_BT` marks the first tokens of documents: there the memory is empty again.

    Under autocast the products inside a chunk are taken in the low precision; what goes from chunk to chunk is not.
    """
    batch, heads, length, _ = query.shape
    chunk = min(chunk, 1 << (length - 1).bit_length())
    query, *rest = (_in_chunks(x, chunk) for x in (query, *writes))
    segment = None if starts_BT is None else _in_chunks(starts_BT[:, None].int(), chunk).cumsum(-1)
    affine, shift, project, offset = _chunk_maps(query, Writes(*rest), momentum, segment)
    if state is None:
        state = query.new_zeros(batch, heads, writes.value.shape[-1], affine.shape[-1])
    befores = []
    with torch.autocast(query.device.type, enabled=False):
        for factor, term in zip(affine.float().unbind(2), shift.float().unbind(2), strict=True):
            befores.append(state)
            state = state @ factor + term
    read = project @ torch.stack(befores, dim=2).transpose(-1, -2) + offset
    return read.flatten(2, 3)[:, :, :length], state


def _in_chunks(x: Tensor, chunk: int) -> Tensor:
    """[B, H, T, ...] -> [B, H, N, C, ...], the end filled with zeros (a write of zeros, inactive, changes nothing)."""
    missing = -x.shape[2] % chunk
    if missing:
        x = torch.cat([x, x.new_zeros(*x.shape[:2], missing, *x.shape[3:])], dim=2)
    return x.unflatten(2, (-1, chunk))


def _chunk_maps(
    query: Tensor, writes: Writes, momentum: bool, segment: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For every chunk at once, what it does to any state it may start from.

    state' = state @ affine + shift,   reads = project @ state^T + offset.
    """
    key, value, rate = writes.key, writes.value, writes.rate
    carried, start = _decays(writes, momentum, segment)  # NCC weights of write i in M_t; [C, 1 or 2] weights of M, S
    before = F.pad(carried[..., :-1, :], (0, 0, 1, 0))  # the same for M_{t-1}, which the surprise is taken at
    start_before = F.pad(start[..., :-1, :], (0, 0, 1, 0))
    start_before[..., 0, 0] = 1.0
    if segment is not None:
        before = before * (segment[..., :, None] == segment[..., None, :])
        start_before = start_before * (segment == 0)[..., None]

    system = torch.tril(before * rate[..., None, :] * (key @ key.transpose(-1, -2)), diagonal=-1)
    known = torch.cat([_spread(start_before, key), value], dim=-1)
    with torch.autocast(query.device.type, enabled=False):
        inverse = UnitLowerInverse.apply(system)
    solved = inverse @ known
    on_state, own = solved.split([known.shape[-1] - value.shape[-1], value.shape[-1]], dim=-1)

    mixed = carried * rate[..., None, :] * (query @ key.transpose(-1, -2))
    project = _spread(start, query) - mixed @ on_state
    last = _last_weights(writes, carried, momentum, segment)  # [C, 1 or 2] weights of write i in M' and S'
    written = _spread(last * rate[..., None], key)
    affine = _diagonal(start, writes, momentum, segment, key.shape[-1]) - on_state.transpose(-1, -2) @ written
    return affine, own.transpose(-1, -2) @ written, project, mixed @ own


class UnitLowerInverse(torch.autograd.Function):
    """(I + L)^-1 for strictly lower triangular L, [..., C, C], by matrix products alone.

    A batched triangular solve is one slow kernel on a GPU. Here blocks of 8 on the diagonal are inverted by the finite
    series (I - L)(I + L^2)(I + L^4), and neighbours are joined until the whole is done:
    [[A, 0], [B, D]]^-1 = [[A', 0], [-D' B A', D']].
    """

    @staticmethod
    def forward(ctx: Any, lower: Tensor) -> Tensor:
        size = 1 << (lower.shape[-1] - 1).bit_length()
        missing = size - lower.shape[-1]
        padded = F.pad(lower, (0, missing, 0, missing))
        block = min(8, size)
        inverse = _series_inverse(_diagonal_blocks(padded, block))
        while block < size:
            inverse = _join(inverse, _diagonal_blocks(padded, 2 * block)[..., block:, :block])
            block *= 2
        inverse = inverse[..., 0, : lower.shape[-1], : lower.shape[-1]]
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        (slope,) = outer
        (inverse,) = ctx.saved_tensors
        return -torch.tril(inverse.mT @ slope @ inverse.mT, diagonal=-1)


def _diagonal_blocks(x: Tensor, size: int) -> Tensor:
    """[..., C, C] -> [..., C/size, size, size]"""
    count = x.shape[-1] // size
    return x.unflatten(-1, (count, size)).unflatten(-3, (count, size)).diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def _series_inverse(lower: Tensor) -> Tensor:
    eye = torch.eye(lower.shape[-1], device=lower.device, dtype=lower.dtype)
    power, total = lower @ lower, eye - lower
    for _ in range(2):
        total = total @ (eye + power)
        power = power @ power
    return total


def _join(inverse: Tensor, below: Tensor) -> Tensor:
    """Pairs of inverted blocks [..., 2n, s, s] and what is below them [..., n, s, s] -> [..., n, 2s, 2s]"""
    first, second = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
    corner = -(second @ below @ first)
    return torch.cat(
        [torch.cat([first, torch.zeros_like(corner)], dim=-1), torch.cat([corner, second], dim=-1)], dim=-2
    )


def _spread(weights: Tensor, vectors: Tensor) -> Tensor:
    """[C, S] weights and [C, D] vectors -> [C, S*D]: the vectors once for each part of the state."""
    return (weights[..., :, None] * vectors[..., None, :]).flatten(-2)


def _products(log_factor: Tensor, segment: Tensor | None) -> Tensor:
    """[..., C] logs -> [..., C, C]: at (t, s) the product of the factors after s up to t, 0 where s > t."""
    total = log_factor.cumsum(-1)
    gap = total[..., :, None] - total[..., None, :]
    allowed = torch.ones(gap.shape[-2:], dtype=torch.bool, device=gap.device).tril()
    if segment is not None:
        allowed = allowed & (segment[..., :, None] == segment[..., None, :])
    return gap.masked_fill(~allowed, -torch.inf).exp()


def _from_start(log_factor: Tensor, segment: Tensor | None) -> Tensor:
    """[..., C]: the product of all factors up to t; 0 once a new document has begun."""
    product = log_factor.cumsum(-1).exp()
    return product if segment is None else product * (segment == 0)


def _decays(writes: Writes, momentum: bool, segment: Tensor | None) -> tuple[Tensor, Tensor]:
    """How much of write i, and of the state at the chunk's start, is in M_t."""
    kept = _products(writes.log_keep, segment)
    from_memory = _from_start(writes.log_keep, segment)
    flow = kept * writes.active[..., None, :]  # S flows into M at real tokens alone
    if not momentum:
        return flow, from_memory[..., None]
    carried = flow @ _products(writes.log_carry, segment)
    from_momentum = flow @ _from_start(writes.log_carry, segment)[..., None]
    return carried, torch.cat([from_memory[..., None], from_momentum], dim=-1)


def _last_weights(writes: Writes, carried: Tensor, momentum: bool, segment: Tensor | None) -> Tensor:
    """How much of write i is in M and in S after the chunk's last token."""
    in_memory = carried[..., -1, :, None]
    if not momentum:
        return in_memory
    total = writes.log_carry.cumsum(-1)
    in_momentum = (total[..., -1:] - total).exp()
    if segment is not None:
        in_momentum = in_momentum * (segment == segment[..., -1:])
    return torch.cat([in_memory, in_momentum[..., None]], dim=-1)


def _diagonal(start: Tensor, writes: Writes, momentum: bool, segment: Tensor | None, width: int) -> Tensor:
    """What the decays alone do to [M | S] over the chunk."""
    eye = torch.eye(width, device=start.device, dtype=start.dtype)
    memory = start[..., -1, 0, None, None] * eye
    if not momentum:
        return memory
    momentum_left = _from_start(writes.log_carry, segment)[..., -1, None, None] * eye
    top = torch.cat([memory, torch.zeros_like(memory)], dim=-1)
    bottom = torch.cat([start[..., -1, 1, None, None] * eye, momentum_left], dim=-1)
    return torch.cat([top, bottom], dim=-2)
