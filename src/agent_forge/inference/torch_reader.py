"""A model of transformers behind the interface of `PackedModel`: histories that are read on and copied."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch


class TorchHistory:
    """The keys and values of the tokens that were read."""

    def __init__(self, cache: Any = None, length: int = 0) -> None:
        self.cache, self.length = cache, length

    def copy(self) -> TorchHistory:
        return TorchHistory(copy.deepcopy(self.cache), self.length)


class TorchReader:
    """Reads token ids and returns logits, for architectures that the packed decoder does not know."""

    def __init__(self, model: Any) -> None:
        self.model, self.generation_config = model.eval(), model.generation_config

    def history(self) -> TorchHistory:
        return TorchHistory()

    @torch.inference_mode()
    def read(self, history: TorchHistory, ids: Sequence[int]) -> Any:
        """Reads `ids` after what the history holds; the logits after the last, float32 [1, vocabulary]."""
        device = next(self.model.parameters()).device
        tokens = torch.tensor([list(ids)], device=device)
        output = self.model(input_ids=tokens, past_key_values=history.cache, use_cache=True)
        history.cache = output.past_key_values
        history.length += len(ids)
        return output.logits[0, -1:].float().cpu().numpy()


def reader_of(model: Any) -> Any:
    """The model as the compiled decoder runs it, else by torch."""
    from agent_forge.inference.packed.torch_model import from_torch, why_not

    return TorchReader(model) if why_not(model) is not None else from_torch(model)
