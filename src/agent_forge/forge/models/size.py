"""The number of parameters of a configuration, part by part."""

from __future__ import annotations

import torch

from agent_forge.forge.models.cognate import CognateForCausalLM
from agent_forge.forge.models.config import CognateConfig

PARTS = {  # by part: what the names of its parameters contain
    "embedding": ("embed_tokens", "lm_head"),
    "embedding projections": ("embed_up", "head_down"),
    "memory": (".memory.",),
    "attention": (".attention.", ".o_proj."),
    "mlp": (".up_proj.", ".down_proj."),
    "halting": (".halting.",),
}


def parameter_table(config: CognateConfig) -> dict[str, int]:
    """Parameters by part and in total; shared weights count once. Nothing is allocated.

    >>> table = parameter_table(CognateConfig())
    >>> 22_500_000 <= table["total"] <= 27_500_000
    True
    """
    with torch.device("meta"):
        model = CognateForCausalLM(config)
    model.tie_weights()
    table = dict.fromkeys(PARTS, 0)
    for name, parameter in model.named_parameters():
        part = next(part for part, marks in PARTS.items() if any(mark in f".{name}" for mark in marks))
        table[part] += parameter.numel()
    table["total"] = sum(table.values())
    return table
