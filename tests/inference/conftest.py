"""Helpers from the other rooms' tests, and one thread for torch where it is installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))
if find_spec("torch") is None:  # `make test` runs the others in an environment without it
    collect_ignore = [f"test_packed_{name}.py" for name in ("arm", "decoder", "models", "products", "trits")]
    collect_ignore += ["test_batched.py", "test_local_model.py"]


@pytest.fixture(autouse=True)
def _one_thread_and_seed() -> None:
    if find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
