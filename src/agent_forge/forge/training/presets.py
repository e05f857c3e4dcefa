"""Settings of MuGrokfast, phase by phase.

Phase 1 trains from nothing; the later phases move a model that is already good, with smaller steps. The published
presets (lr 1e-3 for Muon, three Newton-Schulz steps, a Grokfast coefficient of 0.05 to 2) are not used: see
docs/training.md.
"""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    "cognate": {"lr": 0.02, "embedding_lr": 0.004, "scalar_lr": 0.004, "weight_decay": 0.1},
    "specialise": {"lr": 0.005, "embedding_lr": 0.001, "scalar_lr": 0.001, "weight_decay": 0.1},
    "quietstar": {"lr": 0.001, "embedding_lr": 1e-4, "scalar_lr": 1e-4, "weight_decay": 0.0},
    "bitnet": {"lr": 0.005, "embedding_lr": 0.001, "scalar_lr": 0.001, "weight_decay": 0.0},
    "curriculum": {"lr": 0.002, "embedding_lr": 3e-4, "scalar_lr": 3e-4, "weight_decay": 0.0},
    "baking": {"lr": 0.002, "embedding_lr": 2e-4, "scalar_lr": 2e-4, "weight_decay": 0.0},
    "experts": {"lr": 0.002, "embedding_lr": 2e-4, "scalar_lr": 2e-3, "weight_decay": 0.0},
    "compression": {"lr": 0.002, "embedding_lr": 2e-4, "scalar_lr": 2e-4, "weight_decay": 0.0},
}
