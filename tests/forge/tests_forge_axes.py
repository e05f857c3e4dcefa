"""The tiny configuration of the forge's tests, and one variant for every axis."""

from __future__ import annotations

from agent_forge.forge.models import CognateConfig

TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "embedding_rank": 16,
    "sliding_window": 8,
    "memory_layers": [1],
    "memory_heads": 2,
    "memory_head_dim": 8,
    "memory_chunk": 4,
}

AXES = {
    "control": {"memory_layers": []},
    "memory": {},
    "memory in every layer": {"memory_layers": [0, 1]},
    "momentum": {"memory_momentum": True},
    "wide window": {"sliding_window": 64},
    "no qk-norm": {"qk_norm": False},
    "all heads": {"num_key_value_heads": 4},
    "full embedding": {"embedding_rank": None},
    "untied": {"tie_word_embeddings": False},
    "loops": {"loops": 3},
    "loops without detaching": {"loops": 2, "detach_loops": False},
    "latent refinement": {"loops": 2, "latent_steps": 2, "cycles": 2},
    "halting": {"loops": 3, "halting": True, "halt_bias": 0.0},
    "halting with latents": {"loops": 3, "latent_steps": 1, "memory_momentum": True, "halting": True, "halt_bias": 0.0},
}


def tiny_config(**changes: object) -> CognateConfig:
    return CognateConfig(**{**TINY, **changes})
