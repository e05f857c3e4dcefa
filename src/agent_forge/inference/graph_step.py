"""A step of a batch with fixed shapes, which a GPU replays as one CUDA graph.

A token of a small model is some hundred kernels of a few microseconds each, and Python launches them more slowly than
the GPU runs them. Recorded once, the step is one launch. For that its shapes must not change: it reads all columns of
the buffers, of which the mask leaves those in use, and its rows are a power of two, so that a recording serves until
half of them have left.

Shapes: N rows, T columns of the buffers, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

CHANGING = ("dynamic", "longrope")  # positions whose frequencies depend on the longest row


def sees_all(config: Any) -> bool:
    """Whether every layer attends to all tokens that a mask allows, wherever they stand."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return kinds == {"full_attention"} and not (
        getattr(config, "sliding_window", None) or getattr(config, "alibi", None)
    )


def can_be_fixed(model: Any) -> bool:
    """Whether a step may be recorded: attention takes a mask of ours, and nothing that is launched depends on values,
    as the choice of experts does."""
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    experts = any("experts" in name and isinstance(count, int) for name, count in vars(config).items())
    changing = rope.get("rope_type", "default") in CHANGING
    return sees_all(config) and config._attn_implementation == "sdpa" and not (experts or changing)


class FixedStep:
    """The next token of the first `rows` rows of a buffer. `column` is where it is written."""

    def __init__(self, read: Any, cache: Any, rows: int, columns: int) -> None:
        self.read, self.cache, self.rows = read, cache, rows
        device = read.device
        self.tokens = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.positions = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.column = torch.zeros(1, dtype=torch.long, device=device)
        self.mask = torch.zeros(rows, 1, 1, columns, dtype=torch.bool, device=device)
        self._graph: Any = None
        self._logits: Tensor | None = None

    def place(self, first: Sequence[int], end: int) -> None:
        """Where the rows begin and end now. Rows that nobody uses begin at the end: what they compute is not read."""
        starts = torch.full((self.rows, 1), end)
        starts[: len(first), 0] = torch.tensor(first)
        columns = torch.arange(self.mask.shape[-1])
        self.mask.copy_(((columns >= starts) & (columns < end))[:, None, None])
        self.positions.copy_(end - starts)
        self.column.fill_(end)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Adds one token to each row that is in use; the next token's logits, [N, V], until the next call."""
        self.tokens[: len(tokens), 0] = tokens
        if self._graph is not None:
            self._graph.replay()
        elif self.tokens.is_cuda:
            self._record()
        else:
            self._logits = self._compute()
        self.positions += 1
        self.column += 1
        assert self._logits is not None
        return self._logits[: len(tokens)]

    def _compute(self) -> Tensor:
        self.mask.index_fill_(3, self.column, True)
        kind = self.tokens.device.type
        # Autocast keeps its copies of weights until its block ends, which a recording outlives: none are kept here.
        with torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), cache_enabled=False):
            out = self.read(
                self.tokens, past_key_values=self.cache, attention_mask=self.mask, position_ids=self.positions
            )
        logits: Tensor = out.logits[:, -1]
        return logits

    def _record(self) -> None:
        """Computes the step once, so that every kernel is loaded, and then as a recording. Doing it again changes
        nothing: the same column is written."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._logits = self._compute()
        graph.replay()
        self._graph = graph
