"""Attention over sheets on a GPU: FlexAttention computes the blocks that a sheet reaches into, and no others.

Under a mask [B, 1, T, T] the fused kernels compute every pair of tokens, half of which lie in the future and some in
other sheets. The layers must be compiled: uncompiled, FlexAttention is slower than any mask.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

NAME = "agent_forge_blocks"


def use_blocks(model: Any) -> None:
    """Lets a model of transformers attend by blocks wherever it is given them (`Batch.blocks`), else as before."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, block_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)


def takes_blocks(model: Any) -> bool:
    return getattr(getattr(model, "config", None), "_attn_implementation", None) == NAME


def block_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, None]:
    """Heads [B, H, T, K] attend to keys and values [B, G, T, K] of groups; the result is [B, T, H, K]."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if not isinstance(attention_mask, BlockMask):
        result: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return result
    # Under autocast the rotation leaves queries and keys in float32.
    query, key = query.to(value.dtype), key.to(value.dtype)
    heads = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(heads, 1), value.repeat_interleave(heads, 1)
    out: Any = flex_attention(query, key, value, block_mask=attention_mask, scale=options.get("scaling"))
    return out.transpose(1, 2).contiguous(), None
