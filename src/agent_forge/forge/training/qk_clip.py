"""QK-Clip (Kimi K2, 2507.20534): after a step, heads whose attention logits grew too large are scaled back.

With QK-norm the logits are bounded already and this never fires; it is for models built without it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from agent_forge.errors import UsageError
from agent_forge.forge.models.attention import SlidingWindowAttention


@torch.no_grad()
def largest_logits(model: nn.Module, input_ids: Tensor) -> dict[str, Tensor]:
    """The largest attention logit of each head [H] on a probe batch, by the name of the attention module.

    Raises UsageError for a model without Cognate's attention.
    """
    attentions = {name: m for name, m in model.named_modules() if isinstance(m, SlidingWindowAttention)}
    if not attentions:
        raise UsageError(f"a {type(model).__name__} has no heads to clip", fix="Leave qk_clip at 0: it is for Cognate")
    for module in attentions.values():
        module.probing = True
    try:
        model(input_ids)
        return {name: module.probed for name, module in attentions.items() if module.probed is not None}
    finally:
        for module in attentions.values():
            module.probing, module.probed = False, None


@torch.no_grad()
def clip_heads(model: nn.Module, logits: dict[str, Tensor], limit: float = 100.0) -> int:
    """Scales every head whose largest logit S is above `limit` by gamma = limit / S; returns how many were scaled.

    A head with its own keys gets sqrt(gamma) on its query rows and on its key rows. Heads that share keys (grouped
    queries) get all of gamma on the query rows, so that their neighbours are not touched.
    """
    clipped = 0
    modules: dict[str, Any] = dict(model.named_modules())
    for name, largest in logits.items():
        attention: SlidingWindowAttention = modules[name]
        gamma = limit / largest.clamp(min=limit)  # [H], 1 below the limit and where every logit is negative
        clipped += int((gamma < 1).sum())
        query, key, _ = attention.qkv_proj.weight.split(attention.row_blocks)
        if attention.groups == attention.heads:
            _scale(query, gamma.sqrt())
            _scale(key, gamma.sqrt())
        else:
            _scale(query, gamma)
    return clipped


def _scale(rows: Tensor, factors: Tensor) -> None:
    """Multiplies each head's rows, [H * K, D], by its factor, [H]."""
    rows.view(factors.numel(), -1).mul_(factors[:, None].to(rows.dtype))
