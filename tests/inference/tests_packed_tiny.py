"""Tiny models for the tests of the packed format."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from agent_forge.forge.models import CognateConfig, CognateForCausalLM
from agent_forge.inference.packed import TernaryWeight

COGNATE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 64,
    "embedding_rank": 16,
    "memory_layers": [1],
    "memory_heads": 2,
    "memory_head_dim": 8,
    "sliding_window": 12,
}
LLAMA = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "initializer_range": 0.2,
}


def llama(seed: int = 0, **changes: Any) -> Any:
    torch.manual_seed(seed)
    return _alive(LlamaForCausalLM(LlamaConfig(**LLAMA | changes)))


def cognate(**changes: Any) -> Any:
    torch.manual_seed(0)
    return _alive(CognateForCausalLM(CognateConfig(**COGNATE | changes)))


def _alive(model: Any) -> Any:
    """What starts at zero (projections, biases) gets values: a zero proves nothing."""
    for weight in model.parameters():
        if not weight.any():
            nn.init.normal_(weight, std=0.2)
    return model.eval()


def ternarised(model: Any, group: int | None = None, half: bool = False, **options: Any) -> dict[str, TernaryWeight]:
    """Every linear layer but the head, by absmean."""
    weights = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module is not model.get_output_embeddings():
            weight = module.weight.detach()
            parts = weight.split(group or weight.shape[1], dim=1)
            scales = torch.cat([part.abs().mean(1, keepdim=True) for part in parts], 1).clamp_min(1e-5)
            spread = scales.repeat_interleave(group or weight.shape[1], 1)[:, : weight.shape[1]]
            trits = (weight / spread).round().clamp(-1, 1)
            weights[name] = TernaryWeight(trits, scales.half() if half else scales, group, **options)
    return weights
