"""A base and specialists of it, small enough for tests: words from one list, sentences of two kinds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from tests_forge_axes import tiny_config

from agent_forge.forge.models import CognateConfig, CognateForCausalLM
from agent_forge.forge.training import encode, pack, train_tokenizer
from agent_forge.forge.training.objective import objective

ANIMALS, THINGS = ["cat", "dog", "hen", "fox", "owl", "bee"], ["fish", "bone", "corn", "moon", "leaf", "rain"]


def stories(count: int, seed: int) -> list[str]:
    """Sentences with a rule: what an animal likes depends on the animal."""
    rng = np.random.default_rng(seed)
    sentences = []
    for _ in range(count):
        picked = rng.integers(len(ANIMALS), size=4)
        sentences.append(" ".join(f"the {ANIMALS[i]} likes the {THINGS[i]} and" for i in picked) + " sleeps.")
    return sentences


def sums(count: int, seed: int) -> list[tuple[str, str]]:
    rng = np.random.default_rng(seed)
    pairs = rng.integers(5, size=(count, 2))
    return [(f"{a} plus {b} and {n % 97}?", f"{a + b}") for n, (a, b) in enumerate(pairs.tolist())]


def write_rows(folder: Path, seed: int = 1, count: int = 32) -> dict[str, str]:
    """Two tasks as JSONL files: a text, and questions with answers."""
    files = {"stories": folder / "stories.jsonl", "sums": folder / "sums.jsonl"}
    files["stories"].write_text("".join(json.dumps({"text": text}) + "\n" for text in stories(count, seed)))
    files["sums"].write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in sums(count * 2, seed)))
    return {name: str(path) for name, path in files.items()}


def config(words: int, **changes: object) -> CognateConfig:
    shape = tiny_config(num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, sliding_window=32).to_dict()
    return CognateConfig(**{**shape, "vocab_size": words, "memory_chunk": 16, **changes})


def learn(model: torch.nn.Module, tokenizer: object, texts: list[str], steps: int, lr: float) -> None:
    data = pack(encode(tokenizer, texts), 32, tokenizer.bos_token_id)  # type: ignore[attr-defined]
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model.train()
    for step in range(steps):
        loss = objective(model, data.batch(step, 8, 0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def make_family(folder: Path, *, steps: int = 60) -> dict[str, Path]:
    """base, two specialists of the same shape, and `adaptive`, which has a second loop and a halting head."""
    texts, questions = stories(80, 11), [f"Question: {q}\nAnswer: {a}" for q, a in sums(120, 12)]
    tokenizer = train_tokenizer([*texts, *questions], 300)
    torch.manual_seed(0)
    base = CognateForCausalLM(config(len(tokenizer)))
    learn(base, tokenizer, [*texts[:20], *questions[:30]], steps + 20, 3e-3)
    folders = {}
    for name, rows, changes in (
        ("base", None, {}),
        ("tales", texts, {}),
        ("maths", questions, {}),
        ("adaptive", [*texts, *questions], {"loops": 2, "halting": True}),
    ):
        torch.manual_seed(1)
        model = CognateForCausalLM(config(len(tokenizer), **changes))
        model.load_state_dict(base.state_dict(), strict=False)
        if rows is not None:
            learn(model, tokenizer, rows, steps if name != "adaptive" else 3, 1.5e-3)
        folders[name] = folder / name
        model.save_pretrained(folders[name])
        tokenizer.save_pretrained(folders[name])
    return folders
