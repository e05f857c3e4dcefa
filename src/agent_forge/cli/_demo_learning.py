"""`agent-forge demo --learning`: a small policy learns a toy of known optimum, beside one with shuffled rewards."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def show_learning(console: Console, iterations: int = 24) -> list[dict[str, Any]]:
    """Four prompts, sixteen possible answers, one right each: chance is 0.06, the optimum 1."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from agent_forge.forge.training import PromptItem, ReinforceSettings
    from agent_forge.forge.training.reinforce import reinforce

    def draw(_: int) -> list[Any]:
        return [PromptItem([2 + i], i) for i in range(4)]

    def right(item: int, answer: list[int]) -> float:
        return float(answer == [6 + item])

    make: Any = LlamaForCausalLM
    luck = random.Random(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    rewards: dict[str, tuple[str, Callable[[int, list[int]], float]]] = {
        "GRPO": ("grpo", right),
        "PPO": ("ppo", right),
        "GRPO, rewards shuffled": ("grpo", lambda *_: float(luck.random() < 1 / 16)),
    }
    rows = []
    console.print(f"{iterations} iterations of 32 answers, scored and learnt from; optimum 1.00:")
    for name, (algorithm, reward) in rewards.items():
        torch.manual_seed(0)
        model = make(LlamaConfig(vocab_size=16, max_position_embeddings=64, **shape))  # type: ignore[arg-type]

        def expected(model: Any = model) -> float:
            with torch.no_grad():
                chances = model(torch.arange(2, 6)[:, None]).logits[:, -1].softmax(-1)  # [4 prompts, 16 answers]
            return float(chances[torch.arange(4), torch.arange(6, 10)].mean())

        before = expected()
        settings = ReinforceSettings(
            algorithm=algorithm,  # type: ignore[arg-type]
            iterations=iterations,
            prompts=4,
            max_tokens=1,
            learning_rate=1e-2,
            evaluate_every=0,
        )
        reinforce(model, draw, reward, settings, progress=None)
        rows.append({"name": name, "before": before, "after": expected(), "optimum": 1.0})
        console.print(f"  {name:24} {before:.2f} -> {rows[-1]['after']:.2f}")
    return rows
