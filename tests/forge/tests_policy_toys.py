"""Policies so small that everything about them can be enumerated."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM


def tiny_llama(vocab: int = 16, seed: int = 0, std: float | None = None, **changes: object) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=vocab, num_key_value_heads=2, max_position_embeddings=64, **{**shape, **changes})
    model = LlamaForCausalLM(config)
    if std is not None:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=std)
    return model.eval()


def all_answers(prompt: list[int], vocab: int, length: int) -> tuple[Tensor, Tensor]:
    """Every answer of `length` tokens behind a prompt, and the mask of the answers."""
    tokens = torch.tensor([[*prompt, *answer] for answer in itertools.product(range(vocab), repeat=length)])
    mask = torch.zeros(tokens.shape)
    mask[:, len(prompt) :] = 1.0
    return tokens, mask


class OnlySome:
    """A constraint: the tokens of one set first, then those of the next."""

    def __init__(self, *sets: set[int], vocab: int) -> None:
        self.sets, self.vocab, self.at = sets, vocab, 0

    def allowed(self) -> np.ndarray:
        return np.isin(np.arange(self.vocab), list(self.sets[min(self.at, len(self.sets) - 1)]))

    def advance(self, token: int) -> None:
        assert self.allowed()[token]
        self.at += 1


def bits_of(masks: list[np.ndarray]) -> Tensor:
    """[1, L, V / 8], as `Samples.allowed`."""
    return torch.from_numpy(np.stack([np.packbits(mask, bitorder="little") for mask in masks]))[None]
