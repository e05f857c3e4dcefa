"""A text, and thoughts after some of its positions, read in parallel (Quiet-STaR, 2403.09629, section 4.2).

A thought token attends to the text up to the thought's position and to its own thought, never to another one. As one
sequence with a dense mask that costs T x (T J) scores at once; here the attention to the text and that to the thought
are computed apart and merged by their log-sum-exp, and the scores are computed again in the backward pass. What stays
in memory is T J: the queries, keys and values of the thoughts.

First the text is read with an empty Aside, which keeps its keys and values. Then `after(positions)` is the Aside of
thoughts after these positions; each call reads the next L tokens of every thought, as one sequence of P * L tokens.

Cognate's memory is read only: a thought after t reads M_t, and writes nothing.

Shapes: B rows, T text tokens, P thoughts of a row, L new tokens of each, S tokens of each so far, H query heads, G
key/value heads, R = H / G, K head width; D and E are the memory's (see `memory`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from agent_forge.forge.models.memory import Writes, memory_reads

MOST_SCORES = {"cuda": 1 << 28, "cpu": 1 << 22}  # held at once
FAR = -1e30  # the score of a hidden key: finite, so that a query without any visible text key has a gradient


class Aside:
    """The keys and values of a text, and of thoughts after some of its positions, by slot (a layer of a pass)."""

    def __init__(self, positions: Tensor | None = None) -> None:
        self.positions = positions  # BP: each thought follows this token of the text; None while the text is read
        self.text: dict[int, tuple[Tensor, Tensor]] = {}  # BGTK
        self.own: dict[int, tuple[Tensor, Tensor]] = {}  # BGPSK
        self.writes: dict[int, Writes] = {}  # of the text, into Cognate's memory
        self.places: tuple[Tensor, int] | None = None

    def after(self, positions: Tensor) -> Aside:
        """New thoughts after these positions BP, which may repeat: several thoughts after one token."""
        aside = Aside(positions)
        aside.text, aside.writes = self.text, self.writes
        return aside

    def position_ids(self, first: int, count: int) -> Tensor:
        """The positions of tokens `first` … `first + count` of every thought, [B, P * L]."""
        assert self.positions is not None
        steps = torch.arange(first + 1, first + count + 1, device=self.positions.device)
        return (self.positions[..., None] + steps).flatten(1)

    def update(self, k: Tensor, v: Tensor, slot: int) -> None:
        """Keeps the new keys and values, BGTK of a text or BG(P*L)K of thoughts."""
        if self.positions is None:
            self.text[slot] = (k, v)
            return
        new = tuple(part.unflatten(2, (self.positions.shape[1], -1)) for part in (k, v))
        old = self.own.get(slot)
        self.own[slot] = new if old is None else tuple(torch.cat(pair, dim=3) for pair in zip(old, new, strict=True))  # type: ignore[assignment]

    def attend(self, q: Tensor, slot: int, scale: float, window: int | None = None) -> Tensor:
        """The attention of the newest tokens, BH(P*L)K; their keys and values are in `own` already."""
        assert self.positions is not None
        (text_k, text_v), (own_k, own_v) = self.text[slot], self.own[slot]
        q = q.unflatten(2, (self.positions.shape[1], -1))  # BHPLK
        count, first = q.shape[3], own_k.shape[3] - q.shape[3]
        at_once = max(1, MOST_SCORES[q.device.type] // (q[:, :, :, 0, 0].numel() * text_k.shape[2]))
        outputs = []
        for start in range(0, count, at_once):
            part = q[:, :, :, start : start + at_once]
            last = first + start + part.shape[3]
            more = (text_k, text_v, own_k[:, :, :, :last], own_v[:, :, :, :last], self.positions, scale, window)
            if torch.is_grad_enabled():
                outputs.append(checkpoint(_attend_to_both, part, *more, use_reentrant=False, preserve_rng_state=False))
            else:
                outputs.append(_attend_to_both(part, *more))
        return torch.cat(outputs, dim=3).flatten(2, 3)

    def recall(self, query: Tensor, slot: int, chunk: int) -> Tensor:
        """What the newest tokens read from Cognate's memory as it was after their position, BH(P*L)D -> BH(P*L)E."""
        assert self.positions is not None
        writes = self.writes[slot]
        length = writes.key.shape[2]
        if self.places is None:  # a place for each thought among those of its token: [B, P] in [T * M]
            same = self.positions[:, :, None] == self.positions[:, None, :]
            rank = same.tril(-1).sum(-1)
            most = int(rank.max()) + 1
            self.places = (self.positions * most + rank, most)
        places, most = self.places
        batch, heads, _, width = query.shape
        count = self.positions.shape[1]
        query = query.unflatten(2, (count, -1)).flatten(3)  # [B, H, P, L*D]
        index = places[:, None, :, None].expand(-1, heads, -1, query.shape[-1])
        grid = query.new_zeros(batch, heads, length * most, query.shape[-1]).scatter(2, index, query)
        grid = grid.view(batch, heads, length, -1, width)  # [B, H, T, M*L, D]
        read = memory_reads(grid, writes, chunk).reshape(batch, heads, length * most, -1)  # [B, H, T*M, L*E]
        index = places[:, None, :, None].expand(-1, heads, -1, read.shape[-1])
        return read.gather(2, index).unflatten(3, (-1, writes.value.shape[-1])).flatten(2, 3)


def _attend_to_both(
    q_BHPLK: Tensor,
    text_k: Tensor,
    text_v: Tensor,
    own_k: Tensor,
    own_v: Tensor,
    positions: Tensor,
    scale: float,
    window: int | None,
) -> Tensor:
    """The text up to each position, and the own thought up to each token, merged: BHPLK."""
    device, groups = q_BHPLK.device, text_k.shape[1]
    q = q_BHPLK.unflatten(1, (groups, -1))  # BGRPLK
    count, length, so_far = q.shape[4], text_k.shape[2], own_k.shape[3]
    steps = torch.arange(so_far - count, so_far, device=device)  # of the queries within the thought
    keys = torch.arange(length, device=device)
    visible = (keys <= positions[..., None])[:, :, None].expand(-1, -1, count, -1)  # BPLT
    own = torch.arange(so_far, device=device) <= steps[:, None]  # LS
    if window is not None:
        at = positions[..., None] + 1 + steps  # BPL
        visible = visible & (at[..., None] - keys < window)
        own = own & (steps[:, None] - torch.arange(so_far, device=device) < window)
    to_text = (q.flatten(2, 4) @ text_k.mT).unflatten(2, q.shape[2:5])  # BGRPLT
    to_own = q @ own_k.unsqueeze(2).mT  # BGRPLS
    text_weights, text_total = _weights(to_text, visible[:, None, None], scale)
    own_weights, own_total = _weights(to_own, own, scale)
    total = torch.logaddexp(text_total, own_total)
    y_text = (text_weights.to(text_v.dtype).flatten(2, 4) @ text_v).unflatten(2, q.shape[2:5])
    y_own = own_weights.to(own_v.dtype) @ own_v.unsqueeze(2)
    merged = (text_total - total).exp() * y_text + (own_total - total).exp() * y_own
    return merged.to(q.dtype).flatten(1, 2)


def _weights(scores: Tensor, visible: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The softmax over the visible keys, and its log-sum-exp [..., 1], in float32 at least."""
    scores = torch.where(visible, scores.to(torch.promote_types(scores.dtype, torch.float32)) * scale, FAR)
    total = scores.logsumexp(-1, keepdim=True)
    return (scores - total).exp(), total


def register_with_transformers(name: str = "agent_forge_aside") -> str:
    """Registers attention with thoughts with transformers, under this name; an `aside` reaches it as a keyword."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def forward(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, *, aside: Aside | None = None, **more: Any
    ) -> tuple[Tensor, None]:
        if aside is not None:
            aside.update(key, value, module.layer_idx)
            if aside.positions is not None:
                scale = more.get("scaling") or query.shape[-1] ** -0.5
                out = aside.attend(query, module.layer_idx, scale, more.get("sliding_window"))
                return out.transpose(1, 2).contiguous(), None
            window, length = more.get("sliding_window"), query.shape[2]
            if mask is None and window is not None and length > window:  # transformers makes no mask for our attention
                near = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
                mask = near.triu(1 - window)[None, None]
        return sdpa_attention_forward(module, query, key, value, mask, **more)

    AttentionInterface.register(name, forward)
    return name
