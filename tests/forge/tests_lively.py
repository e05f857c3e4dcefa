"""Models whose every weight counts."""

from __future__ import annotations

from typing import Any

import torch


def lively(model: torch.nn.Module, std: float = 0.1) -> torch.nn.Module:
    """Random weights everywhere: the zeros that a model starts with would hide faults."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                scale = 1.0 if "halting" in name else std if "embed_tokens" in name else parameter.shape[-1] ** -0.5
                parameter.normal_(std=scale)
    return model


def byte_tokenizer() -> Any:
    """A token for every byte, and two special ones."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: n for n, token in enumerate(["<s>", "</s>", *letters])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
