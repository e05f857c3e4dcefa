"""Tiny random models of several architectures, and a way to ask an engine without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import torch

VOCABULARY = 257
torch.set_num_threads(1)  # such small models only lose by more


def cognate() -> Any:
    from agent_forge.forge.models import CognateConfig, CognateForCausalLM

    torch.manual_seed(0)
    model = CognateForCausalLM(
        CognateConfig(
            vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            intermediate_size=64, embedding_rank=16, memory_layers=[1], memory_heads=1, memory_head_dim=8,
            sliding_window=16,
        )
    ).eval()  # fmt: skip
    return livened(model)


def livened(model: Any) -> Any:
    """Random weights large enough that no two tokens are nearly as likely."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    return model


def llama() -> Any:
    from agents_tiny_model import tiny_model

    return tiny_model()


def sliding() -> Any:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=12, initializer_range=0.3, pad_token_id=None,
    )  # fmt: skip
    return MistralForCausalLM(config).eval()


def positions() -> Any:
    """GPT-2: learned positions, which a padded row must not shift."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=256, initializer_range=0.3,
        bos_token_id=256, eos_token_id=256,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def stateful() -> Any:
    """Mamba: a state that is no list of keys and values."""
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    config = MambaConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, state_size=4, initializer_range=0.3
    )
    return MambaForCausalLM(config).eval()


def alone(model: Any, prompt: Sequence[int], most: int) -> list[int]:
    """What `generate` writes."""
    made = model.generate(
        torch.tensor([list(prompt)]), max_new_tokens=most, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    found: list[int] = made[0, len(prompt) :].tolist()
    return found


def job(tokenizer: Any, prompt: Sequence[int], most: int, **options: Any) -> Any:
    """A job on the running loop; greedy unless `sampling` says otherwise."""
    from agent_forge.inference.job import DecodeJob
    from agent_forge.inference.sampling import Sampling
    from agent_forge.inference.text import TextWriter

    sampling = options.pop("sampling", None) or Sampling(temperature=0)
    ends = options.pop("ends", frozenset())
    stop = options.pop("stop", ())
    writer = TextWriter(tokenizer, stop)
    return DecodeJob(prompt, most, sampling, writer, ends, asyncio.Queue(), asyncio.get_running_loop(), **options)


async def finished(one: Any) -> list[int]:
    """The tokens of a job that was submitted."""
    tokens: list[int] = []
    while True:
        _, piece = await asyncio.wait_for(one.outbox.get(), 60)
        if piece.error is not None:
            raise piece.error
        tokens.append(piece.token.id)
        if piece.finish is not None:
            return tokens
