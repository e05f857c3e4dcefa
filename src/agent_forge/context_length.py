"""How many tokens a model can read at once."""

from __future__ import annotations

from typing import Any

NAMES = ("max_position_embeddings", "max_seq_len")  # the second is MPT's


def context_length(config: Any) -> int | None:
    """The context length in a transformers configuration; None where it sets no limit.

    >>> from types import SimpleNamespace
    >>> context_length(SimpleNamespace(max_position_embeddings=2048)), context_length(SimpleNamespace())
    (2048, None)
    """
    limits = (getattr(config, name, None) for name in NAMES)
    return next((limit for limit in limits if isinstance(limit, int) and limit > 1), None)
