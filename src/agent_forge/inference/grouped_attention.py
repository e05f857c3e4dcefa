"""Attention for one new token per row, where several heads share their keys and values.

With a mask, transformers copies the keys and values of the whole cache for every head that reads them, in every layer
at every step: two thirds of the time of a batch of SmolLM2 on a CPU. The heads that share them are read as several
queries instead, which is the same sum and copies nothing. Rows that share a prompt (`shared_rows`) are read in the same
way: as several queries to one copy of its keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

# the layers of a batch whose rows share prompts, and the mask of these
_reading: ContextVar[tuple[Sequence[Any], Tensor] | None] = ContextVar("reading", default=None)


def grouped_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **named: Any
) -> tuple[Tensor, None]:
    """As `sdpa` of transformers: query [N, H, T, D], key and value [N, H / G, S, D] -> [N, T, H, D]."""
    if (reading := _reading.get()) is not None:
        layers, mask_PT = reading
        layer = layers[module.layer_idx]
        out = attend_to_shared(
            query, layer.prompt_keys, layer.prompt_values, mask_PT, key, value, attention_mask, named.get("scaling")
        )
        return out, None
    rows, heads, length, _ = query.shape
    shared = key.shape[1]
    one_mask = attention_mask is None or attention_mask.shape[1] == 1
    plain = named.get("position_bias") is None and named.get("cache") is None and named.get("softcap") is None
    if length != 1 or shared == heads or not (one_mask and plain):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **named)
    queries = query.reshape(rows, shared, heads // shared, -1)  # the heads in the order in which they share
    mask = None if attention_mask is None else attention_mask[..., : key.shape[2]]
    out = torch.nn.functional.scaled_dot_product_attention(
        queries, key, value, attn_mask=mask, dropout_p=named.get("dropout") or 0.0, scale=named.get("scaling")
    )
    return out.reshape(rows, 1, heads, -1), None


@contextmanager
def shared_prompts(layers: Sequence[Any], mask_PT: Tensor) -> Iterator[None]:
    """Inside the block, rows also attend to the prompt that they share with others (see `shared_rows`)."""
    token = _reading.set((layers, mask_PT))
    try:
        yield
    finally:
        _reading.reset(token)


def attend_to_shared(
    query: Tensor,
    prompt_keys: Tensor,
    prompt_values: Tensor,
    prompt_mask: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scaling: float | None,
) -> Tensor:
    """Attention of one new token per row, [N, H G, 1, D], to the prompt that its row shares with its neighbours,
    [P, H, T, D] under a mask [P, 1, 1, T], and to its own tokens, [N, H, L, D] under [N, 1, 1, L]: [N, 1, H G, D]."""
    (rows, all_heads, _, width), (prompts, heads, columns, _) = query.shape, prompt_keys.shape
    copies, group = rows // prompts, all_heads // heads

    def jointly(own: Tensor) -> Tensor:
        """[N, H, G, X] as [P, H, C G, X]: all rows of a prompt as queries to one copy of its keys."""
        by_prompt = own.reshape(prompts, copies, heads, group, -1).transpose(1, 2)
        return by_prompt.reshape(prompts, heads, copies * group, -1)

    def each(joint: Tensor) -> Tensor:
        """[P, H, C G, X] as [N, H, G, X]."""
        by_row = joint.view(prompts, heads, copies, group, -1).transpose(1, 2)
        return by_row.reshape(rows, heads, group, -1)

    scaled = query * (width**-0.5 if scaling is None else scaling)
    own = scaled.reshape(rows, heads, group, width).to(keys.dtype)
    to_prompt = each((jointly(own) @ prompt_keys.mT).masked_fill(~prompt_mask, -math.inf))  # [N, H, G, T]
    to_own = own @ keys.mT  # [N, H, G, L]
    if mask is not None:
        to_own = to_own.masked_fill(~mask, -math.inf)
    weights = torch.cat([to_prompt, to_own], -1).softmax(-1)  # whose sums are float32
    read = each(jointly(weights[..., :columns]) @ prompt_values) + weights[..., columns:] @ values
    out: Tensor = read.reshape(rows, 1, all_heads, width)
    return out


def use_grouped_attention() -> None:
    """Lets every model of this process that attends by `sdpa` do so in this way."""
    AttentionInterface.register("sdpa", grouped_attention)
