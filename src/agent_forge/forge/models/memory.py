"""Titans' neural memory (2501.00663) with a linear memory, read as a gate on attention (the MAG variant).

Every head holds a matrix M that is trained in the forward pass to map keys to values. For token t

    e_t = (M_{t-1} + S_{t-1}) k_t - v_t            the surprise: the gradient of |M k - v|^2 / 2 is e k^T
    B_t = S_{t-1} - theta_t e_t k_t^T              what is on its way into the memory, with the new write
    M_t = (1 - alpha_t) M_{t-1} + (1 - eta_t) B_t  forgetting, and the part that arrives now
    S_t = eta_t B_t                                momentum: the part that arrives later
    r_t = M_t q_t                                  the read

with theta, alpha, eta computed from the token. Without momentum eta is 0, S vanishes, and this is the gated delta rule.

Two things differ from the paper. Its momentum adds S itself to M and measures the surprise against M alone; with an
eta that changes from token to token, one write can then arrive many times over, and M grows without bound. Here a write
arrives exactly once, and the surprise counts what is on its way, so M + S follows the delta rule and stays bounded
whatever the gates do. And the paper takes the gradient at the start of each chunk, so that a chunk runs in parallel;
here it is the token's own, and the chunk still runs in parallel, because the surprises of a chunk solve one
unit-triangular system (the WY form of the delta rule, extended to momentum). So the chunk length only affects speed:
any split of a sequence, and any padding, gives the same numbers.

Shapes: B batch, H heads, T tokens, N chunks, C tokens per chunk, D key width, E value width, P parts of the state: M,
or M and S with momentum. The state is [B, H, E, P*D]. Inside a chunk the leading B, H, N are left out: [C, P*D].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_forge.forge.models.config import CognateConfig
from agent_forge.forge.models.norm import rms_norm, widened

if TYPE_CHECKING:
    from agent_forge.forge.models.recursion import Reading


class Writes(NamedTuple):
    """What a token does to the memory. Padding has a rate of 0 and decays of log 1: it changes nothing."""

    key: Tensor  # BHTD, unit length
    value: Tensor  # BHTE
    rate: Tensor  # BHT, theta
    log_decay: Tensor  # BHTP, log(1 - alpha) and, with momentum, log(eta)


class NeuralMemory(nn.Module):
    """The memory of one layer and its gate: y becomes norm(y) w_y * 2 sigmoid(norm(read) w_m)."""

    def __init__(self, config: CognateConfig) -> None:
        super().__init__()
        inner = config.memory_heads * config.memory_head_dim
        self.heads, self.width = config.memory_heads, config.memory_head_dim
        self.chunk, self.eps = config.memory_chunk, config.rms_norm_eps
        self.row_blocks = (inner, inner, inner)
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * inner, bias=False)
        self.rates = nn.Linear(config.hidden_size, (3 if config.memory_momentum else 2) * self.heads)
        self.out_proj = nn.Linear(inner, config.hidden_size, bias=False)
        self.attention_gain = nn.Parameter(torch.ones(config.hidden_size))
        self.memory_gain = nn.Parameter(torch.ones(config.hidden_size))

    def forward(self, x_BTD: Tensor, y_BTD: Tensor, reading: Reading, slot: int) -> Tensor:
        query, writes = self.propose(x_BTD, reading.valid)
        writes = Writes(*reading.keep(slot, "memory", writes))
        read_BHTE = self.advance(query, writes, reading, slot)
        read_BTD = self.out_proj(read_BHTE.transpose(1, 2).flatten(2).to(x_BTD.dtype))
        gate = 2 * torch.sigmoid(widened(rms_norm(read_BTD, self.eps)) * self.memory_gain)
        return (widened(rms_norm(y_BTD, self.eps)) * self.attention_gain * gate).to(y_BTD.dtype)

    def propose(self, x_BTD: Tensor, valid_BT: Tensor | None) -> tuple[Tensor, Writes]:
        """The queries BHTD, and what each token would write."""
        batch, length, _ = x_BTD.shape
        parts = widened(F.silu(self.qkv_proj(x_BTD))).view(batch, length, 3, self.heads, self.width)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)  # BHTD, BHTD, BHTE
        query, key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)
        theta, *decays = widened(self.rates(x_BTD)).view(batch, length, -1, self.heads).permute(2, 0, 3, 1).unbind(0)
        rate, log_decay = torch.sigmoid(theta), F.logsigmoid(-torch.stack(decays, dim=-1))
        if valid_BT is not None:
            real = valid_BT[:, None, :].to(rate.dtype)
            rate, log_decay = rate * real, log_decay * real[..., None]
        return query, Writes(key, value, rate, log_decay)

    def advance(self, query: Tensor, writes: Writes, reading: Reading, slot: int) -> Tensor:
        """Reads and writes, BHTE; the state continues from the cache if there is one, and is empty otherwise.

        Thoughts only read: after a position of a text that was read before, or after all that is in the cache.
        """
        if reading.aside is not None:
            if reading.aside.positions is not None:
                return reading.aside.recall(query, slot, self.chunk)
            reading.aside.writes[slot] = writes
        state = None if reading.cache is None else reading.cache.memory(slot)
        if reading.cache is not None and reading.cache.read_only:
            still = Writes(writes.key, writes.value, writes.rate * 0, writes.log_decay * 0)
            return chunked_memory(query, still, state, self.chunk)[0]
        read, state = chunked_memory(query, writes, state, self.chunk, reading.starts)
        if reading.cache is not None:
            reading.cache.set_memory(slot, state)
        return read


def chunked_memory(
    query: Tensor, writes: Writes, state: Tensor | None = None, chunk: int = 64, starts_BT: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The recurrence of the module's docstring, `chunk` tokens at a time: (reads BHTE, the state after the last token).

    `starts_BT` marks the first tokens of documents, where the memory is empty again.

    Under autocast the products inside a chunk run in low precision; the state from chunk to chunk does not.
    """
    batch, heads, length, _ = query.shape
    chunk = min(chunk, 1 << (length - 1).bit_length())  # a short sequence is one chunk of the next power of two
    query, *rest = (_in_chunks(x, chunk) for x in (query, *writes))
    segment = None if starts_BT is None else _in_chunks(starts_BT[:, None].int(), chunk).cumsum(-1)
    affine, shift, project, offset = _chunk_maps(query, Writes(*rest), segment)
    if state is None:
        state = query.new_zeros(batch, heads, writes.value.shape[-1], affine.shape[-1])
    before, now = _scan(affine, shift, state)
    read = project @ before.mT + offset  # [B, H, N, C, E]
    return read.flatten(2, 3)[:, :, :length], now


def memory_reads(queries: Tensor, writes: Writes, chunk: int = 64) -> Tensor:
    """What Q queries after each token read, [B, H, T, Q, D] -> [B, H, T, Q, E]: M_t q, and nothing is written.

    The chunks' maps are computed once for all queries: only their last two terms depend on them.
    """
    batch, heads, length, *_ = queries.shape
    chunk = min(chunk, 1 << (length - 1).bit_length())
    query = _in_chunks(queries, chunk).movedim(-2, -3)  # [B, H, N, Q, C, D]
    rest = [_in_chunks(x, chunk).unsqueeze(3) for x in writes]  # [B, H, N, 1, C, ...]
    affine, shift, project, offset = _chunk_maps(query, Writes(*rest), None)
    state = query.new_zeros(batch, heads, writes.value.shape[-1], affine.shape[-1])
    before, _ = _scan(affine.squeeze(3), shift.squeeze(3), state)
    read = project @ before.unsqueeze(3).mT + offset  # [B, H, N, Q, C, E]
    return read.movedim(-3, -2).flatten(2, 3)[:, :, :length]


def _scan(affine: Tensor, shift: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The state before each chunk [B, H, N, E, P*D], and after the last one [B, H, E, P*D]."""
    befores, now = [], state.flatten(0, 1)  # now: [B*H, E, P*D]
    with torch.autocast(state.device.type, enabled=False):
        factors, terms = affine.to(now.dtype).flatten(0, 1), shift.to(now.dtype).flatten(0, 1)
        for factor, term in zip(factors.unbind(1), terms.unbind(1), strict=True):
            befores.append(now)
            now = torch.baddbmm(term, now, factor)
    shape = state.shape[:2]
    return torch.stack(befores, dim=1).unflatten(0, shape), now.unflatten(0, shape)


def _in_chunks(x: Tensor, chunk: int) -> Tensor:
    """[B, H, T, ...] -> [B, H, N, C, ...], padded with zeros at the end, which change nothing."""
    missing = -x.shape[2] % chunk
    if missing:
        x = torch.cat([x, x.new_zeros(*x.shape[:2], missing, *x.shape[3:])], dim=2)
    return x.unflatten(2, (-1, chunk))


def _chunk_maps(query: Tensor, writes: Writes, segment: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For every chunk at once, what it does to any state it may start from.

    state' = state @ affine + shift,   reads = project @ state^T + offset.
    """
    key, value, rate = writes.key, writes.value, writes.rate
    in_memory, in_flight, start, last = _weights(writes.log_decay, segment)
    # The surprise is measured against M + S one token earlier: [C, C] of each write, [C, P] of the first state.
    write_before = F.pad((in_memory + in_flight)[..., :-1, :], (0, 0, 1, 0))
    total = start.sum(-2)
    start_before = torch.cat([torch.ones_like(total[..., :1, :]), total[..., :-1, :]], dim=-2)
    if segment is not None:
        start_before = start_before * (segment == 0)[..., None]
    system = torch.tril(write_before * rate[..., None, :] * (key @ key.mT), diagonal=-1)  # [C, C]
    if segment is not None:
        system = system * (segment[..., :, None] == segment[..., None, :])
    with torch.autocast(query.device.type, enabled=False):
        inverse = UnitLowerInverse.apply(system)
    solved = inverse @ torch.cat([_spread(start_before, key), value], dim=-1)  # [C, P*D + E]
    on_state, own = solved.split([solved.shape[-1] - value.shape[-1], value.shape[-1]], dim=-1)

    mixed = in_memory * rate[..., None, :] * (query @ key.mT)  # [C, C]
    project = _spread(start[..., 0, :], query) - mixed @ on_state
    written = _spread(last * rate[..., None], key)  # [C, P*D]: what each surprise leaves in M' and S'
    affine = _grow(start[..., -1, :, :], key.shape[-1]) - on_state.mT @ written
    return affine, own.mT @ written, project, mixed @ own


def _weights(log_decay: Tensor, segment: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """How much of each earlier write, and of the chunk's first state, is where.

    in_memory, in_flight [C, C]: of write i in M_t and in S_t. start [C, P, P]: at (t, m, n), of part n of the first
    state in part m at t. last [C, P]: of write i in each part after the last token.
    """
    total = log_decay[..., 0].cumsum(-1)
    keep = _masked_exp(total[..., :, None] - total[..., None, :], segment)  # product of the decays after s up to t
    from_memory = _from_start(log_decay[..., 0], segment)
    if log_decay.shape[-1] == 1:
        return keep, torch.zeros_like(keep), from_memory[..., None, None], keep[..., -1, :, None]
    carry = log_decay[..., 1]
    earlier = carry.cumsum(-1) - carry  # up to the token before
    arriving = keep * -torch.expm1(carry)[..., None, :]
    waiting = _masked_exp(earlier[..., :, None] - earlier[..., None, :], segment)  # of write i in B_t
    waiting_start = _cut(earlier.exp(), segment)
    in_memory = arriving @ waiting
    in_flight = carry.exp()[..., None] * waiting
    flight_start = _from_start(carry, segment)
    memory_start = (arriving @ waiting_start[..., None])[..., 0]
    nothing = torch.zeros_like(from_memory)
    rows = [torch.stack([from_memory, memory_start], -1), torch.stack([nothing, flight_start], -1)]
    last = torch.stack([in_memory[..., -1, :], in_flight[..., -1, :]], dim=-1)
    return in_memory, in_flight, torch.stack(rows, dim=-2), last


def _masked_exp(gap: Tensor, segment: Tensor | None) -> Tensor:
    """exp of [C, C], but 0 above the diagonal and between documents."""
    allowed = torch.ones(gap.shape[-2:], dtype=torch.bool, device=gap.device).tril()
    if segment is not None:
        allowed = allowed & (segment[..., :, None] == segment[..., None, :])
    return gap.masked_fill(~allowed, -torch.inf).exp()


def _from_start(log_factor: Tensor, segment: Tensor | None) -> Tensor:
    """[..., C]: the product of all factors up to t; 0 once a new document has begun."""
    return _cut(log_factor.cumsum(-1).exp(), segment)


def _cut(x: Tensor, segment: Tensor | None) -> Tensor:
    """x [C], but 0 once a new document has begun."""
    return x if segment is None else x * (segment == 0)


def _spread(weights: Tensor, vectors: Tensor) -> Tensor:
    """[C, P] weights and [C, D] vectors -> [C, P*D]: the vectors once for each part of the state."""
    return (weights[..., :, None] * vectors[..., None, :]).flatten(-2)


def _grow(parts: Tensor, width: int) -> Tensor:
    """[P, P] at (m, n) -> [P*D, P*D], which takes part n of a state to part m when multiplied from the right."""
    eye = torch.eye(width, device=parts.device, dtype=parts.dtype)
    return (parts.mT[..., :, None, :, None] * eye[:, None, :]).flatten(-4, -3).flatten(-2)


class UnitLowerInverse(torch.autograd.Function):
    """(I + L)^-1 for strictly lower triangular L, [..., C, C], by matrix products alone.

    A batched triangular solve is one slow kernel on a GPU. Here blocks of 8 on the diagonal are inverted by the finite
    series (I - L)(I + L^2)(I + L^4), and neighbours are joined until one block is left:
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
    """(I + L)^-1 of blocks of at most 8, where L^8 = 0."""
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
