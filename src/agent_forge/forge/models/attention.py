"""Sliding-window attention with rotary positions, QK-norm and grouped queries.

Shapes: B batch, T queries, S keys, D width, H query heads, G key/value heads, K head width.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_forge.forge.models.config import CognateConfig
from agent_forge.forge.models.norm import rms_norm, widened

if TYPE_CHECKING:
    from agent_forge.forge.models.recursion import Reading


class SlidingWindowAttention(nn.Module):
    """Every token attends to itself and to the `sliding_window - 1` tokens before it.

    The three projections are one matrix, `qkv_proj`; `row_blocks` gives the rows of each (an optimiser that
    orthogonalises must treat the blocks separately).
    """

    def __init__(self, config: CognateConfig) -> None:
        super().__init__()
        heads, groups, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.heads, self.groups, self.width = heads, groups, width
        self.scale, self.qk_norm, self.eps = config.softmax_scale, config.qk_norm, config.rms_norm_eps
        self.window = config.sliding_window
        self.row_blocks = (heads * width, groups * width, groups * width)
        self.qkv_proj = nn.Linear(config.hidden_size, sum(self.row_blocks), bias=False)
        self.probed: Tensor | None = None  # [H] largest logits, filled while `probing` (see training/qk_clip)
        self.probing = False

    def forward(self, x_BTD: Tensor, reading: Reading, slot: int) -> Tensor:
        batch, length, _ = x_BTD.shape
        parts = self.qkv_proj(x_BTD).split(self.row_blocks, dim=-1)
        q, k, v = (part.view(batch, length, -1, self.width).transpose(1, 2) for part in parts)  # BHTK, BGTK, BGTK
        if self.qk_norm:
            q, k = rms_norm(q, self.eps), rms_norm(k, self.eps)
        q, k = rotate(q, reading.cos, reading.sin), rotate(k, reading.cos, reading.sin)
        k, v = reading.keep(slot, "attention", (k, v))
        if reading.aside is not None:
            reading.aside.update(k, v, slot)
            if reading.aside.positions is not None:
                return reading.aside.attend(q, slot, self.scale, self.window).transpose(1, 2).flatten(2)
        if reading.cache is not None:
            k, v = reading.cache.update(k, v, slot)  # BGSK: what is cached, then the new ones
        if self.probing:  # the same heads run in every pass of a model with loops
            logits_H = _largest_logits(q, k, reading.mask, self.scale)
            self.probed = logits_H if self.probed is None else torch.maximum(self.probed, logits_H)
        y_BHTK = attend(q, k, v, reading.mask, self.scale)
        return y_BHTK.transpose(1, 2).reshape(batch, length, -1)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: float) -> Tensor:
    """softmax(scale q k^T) v, BHTK. `mask` is None (plainly causal), a boolean tensor, or a FlexAttention mask."""
    if mask is not None and not isinstance(mask, Tensor):
        from torch.nn.attention.flex_attention import flex_attention

        out: Any = flex_attention(q, k, v, block_mask=mask, scale=scale, enable_gqa=True)
        return out
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def rotary_angles(
    positions_BT: Tensor, width: int, theta: float, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """cos and sin, [B, 1, T, K/2], in float32 at least (computed, never stored: a checkpoint has no buffer to lose)."""
    kind = torch.promote_types(dtype, torch.float32)
    exponents = torch.arange(0, width, 2, device=positions_BT.device, dtype=kind) / width  # [K/2]
    angles = positions_BT.to(kind)[:, None, :, None] * theta**-exponents
    return angles.cos(), angles.sin()


def rotate(x_BHTK: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (RoFormer, 2104.09864) on the two halves of each head."""
    first, second = widened(x_BHTK).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x_BHTK.dtype)


def attention_mask(
    length: int,
    seen: int,
    window: int,
    device: torch.device,
    padding: Tensor | None = None,
    documents: Tensor | None = None,
) -> Any:
    """Which keys each of `length` new queries may attend to, after `seen` tokens: [T, S] or [B, 1, T, S].

    None means "plainly causal", which the fast kernels implement themselves. `padding` [B, seen + length] marks the
    real tokens; `documents` [B, length] numbers the documents packed into a row. A padding query attends to itself, so
    that no row of the softmax is empty.
    """
    if seen == 0 and length <= window and padding is None and documents is None:
        return None
    if device.type == "cuda" and seen == 0 and padding is None and length >= 128:
        return _window_blocks(length, window, device) if documents is None else _blocks(length, window, documents)
    cached = min(seen, window - 1)
    queries = torch.arange(seen, seen + length, device=device)
    keys = torch.arange(seen - cached, seen + length, device=device)
    distance = queries[:, None] - keys[None, :]  # [T, S]
    mask = (distance >= 0) & (distance < window)
    if padding is not None:
        mask = (mask & padding[:, None, None, -keys.numel() :].bool()) | (distance == 0)
    if documents is not None:
        mask = mask & (documents[:, None, :, None] == documents[:, None, None, :])
    return mask


def _blocks(length: int, window: int, documents: Tensor | None, device: torch.device | None = None) -> Any:
    """A block mask for FlexAttention, which skips the blocks outside of the window."""
    from torch.nn.attention.flex_attention import create_block_mask

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        inside = (query >= key) & (query - key < window)
        return inside if documents is None else inside & (documents[batch, query] == documents[batch, key])

    rows = None if documents is None else documents.shape[0]
    where = documents.device if documents is not None else device
    return create_block_mask(visible, rows, None, length, length, device=str(where))


@lru_cache(maxsize=8)
def _window_blocks(length: int, window: int, device: torch.device) -> Any:
    """The block mask of the window alone, which is the same for every batch of that length."""
    return _blocks(length, window, None, device)


def _largest_logits(q: Tensor, k: Tensor, mask: Any, scale: float) -> Tensor:
    """The largest attention logit of each query head over everything it may attend to, [H]."""
    shared = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)  # BHSK
    logits = (q.float() @ shared.float().transpose(-1, -2)) * scale  # BHTS
    if mask is None:
        mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).tril()
    elif not isinstance(mask, Tensor):
        from torch.nn.attention.flex_attention import create_mask

        mask = create_mask(mask.mask_mod, mask.shape[0], None, q.shape[2], k.shape[2], str(q.device))
    return logits.masked_fill(~mask, -torch.inf).amax(dim=(0, 2, 3))
