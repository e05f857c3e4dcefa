"""A tiny model that has really learnt something, for the tests of compression."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from agent_forge.forge.corpus import Source, read_corpus
from agent_forge.forge.models import CognateConfig, CognateForCausalLM
from agent_forge.forge.training import TrainSettings, encode, pack, train
from agent_forge.forge.training.tokenizer import train_tokenizer

SHAPE: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 96,
    "embedding_rank": 32,
    "sliding_window": 32,
    "memory_layers": (),
}


def texts() -> tuple[list[str], list[str]]:
    corpus = read_corpus({"stories": Source("stories", most_mb=0.15)}, 0.2)
    return list(corpus.train["stories"]), list(corpus.held_out["stories"])


def make_tiny(folder: Path) -> Path:
    """290 words, 25 k weights, two seconds."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train_texts, _ = texts()
    tokenizer = train_tokenizer(train_texts, 290)
    model = CognateForCausalLM(CognateConfig(vocab_size=len(tokenizer), **SHAPE))
    rows = pack(encode(tokenizer, train_texts), 48, tokenizer.bos_token_id, tokenizer.pad_token_id)
    train(model, rows, TrainSettings(steps=40, batch_rows=8, micro_rows=8, warmup=5), progress=None)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
