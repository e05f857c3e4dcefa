"""Models whose every weight counts."""

from __future__ import annotations

import torch


def lively(model: torch.nn.Module, std: float = 0.1) -> torch.nn.Module:
    """Random weights everywhere: the zeros that a model starts with would hide faults."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                scale = 1.0 if "halting" in name else std if "embed_tokens" in name else parameter.shape[-1] ** -0.5
                parameter.normal_(std=scale)
    return model
