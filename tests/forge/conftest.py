"""Tiny models, one thread, no luck: what the forge's tests share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from tests_forge_axes import AXES, tiny_config
from tests_lively import lively

from agent_forge.forge.models import CognateForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1] / "inference"))


@pytest.fixture(autouse=True)
def _one_thread_and_seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def tiny():
    """Makes a tiny model: tiny(loops=2) and so on."""
    return lambda **changes: lively(CognateForCausalLM(tiny_config(**changes))).eval()


@pytest.fixture(params=list(AXES), ids=[name.replace(" ", "-") for name in AXES])
def axis_model(request, tiny):
    """One tiny model for every configuration axis."""
    return tiny(**AXES[request.param])
