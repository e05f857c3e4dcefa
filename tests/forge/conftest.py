"""Tiny models, one thread, no luck: what the forge's tests share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from tests_forge_axes import AXES, tiny_config

from agent_forge.forge.models import CognateForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1] / "inference"))


@pytest.fixture(autouse=True)
def _one_thread_and_seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def lively(model: torch.nn.Module, std: float = 0.1) -> torch.nn.Module:
    """Random weights everywhere: the zeros that a model starts with would hide faults."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                scale = 1.0 if "halting" in name else std if "embed_tokens" in name else parameter.shape[-1] ** -0.5
                parameter.normal_(std=scale)
    return model


@pytest.fixture
def tiny():
    """Makes a tiny model: tiny(loops=2) and so on."""
    return lambda **changes: lively(CognateForCausalLM(tiny_config(**changes))).eval()


@pytest.fixture(params=list(AXES), ids=[name.replace(" ", "-") for name in AXES])
def axis_model(request, tiny):
    """One tiny model for every configuration axis."""
    return tiny(**AXES[request.param])
