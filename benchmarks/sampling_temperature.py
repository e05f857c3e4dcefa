"""At which temperature should reinforcement sample, for a policy that acts greedily?

    PYTHONPATH=src python benchmarks/sampling_temperature.py             five seeds, about 8 minutes on one core
    PYTHONPATH=src python benchmarks/sampling_temperature.py --quick     a check that it runs

A model of 84,000 parameters learns running sums modulo ten, twelve digits long, from references until half of its
greedy digits are right. From there reinforcement goes on at each temperature, with the same prompts and as many
updates; the reward is the share of right digits. The control makes as many further supervised steps. What is compared
is the greedy score on held-out prompts before and after. The limit is 1.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from agent_forge.forge.training import PromptItem, ReinforceSettings, sample
from agent_forge.forge.training.reinforce import reinforce

LENGTH, ASK, END = 12, 10, 11  # digits; the tokens behind the question and behind the answer
TEMPERATURES = (1.0, 0.7, 0.5, 0.3)
ROOM = 1_000_000  # problems per seed
LEARN, REINFORCE, CONTROL, HELD_OUT = (number * 10_000_000 for number in range(1, 5))  # numbers of problems


def problem(number: int) -> tuple[list[int], list[int]]:
    """Digits, and their running sums."""
    drawn = random.Random(number)
    digits = [drawn.randrange(10) for _ in range(LENGTH)]
    return digits, [sum(digits[: place + 1]) % 10 for place in range(LENGTH)]


def share_right(sums: list[int], answer: list[int]) -> float:
    return sum(map(int.__eq__, sums, answer)) / LENGTH if len(answer) == LENGTH else 0.0


def score(model: LlamaForCausalLM, temperature: float, count: int) -> float:
    problems = [problem(HELD_OUT + number) for number in range(count)]
    prompts = [[*digits, ASK] for digits, _ in problems]
    answers = sample(model, prompts, max_tokens=LENGTH + 2, temperature=temperature, end=END, seed=5).answers()
    return fmean(share_right(sums, answer) for (_, sums), answer in zip(problems, answers, strict=True))


def supervised(model: LlamaForCausalLM, first: int, rate: float, steps: int) -> Iterator[int]:
    """Steps on 64 references each; the rate rises over eight and then falls to zero."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / 8) * (1 - step / steps)
        rows = [problem(first + step * 64 + number) for number in range(64)]
        tokens = torch.tensor([[*digits, ASK, *sums, END] for digits, sums in rows])
        logits = model(tokens[:, :-1]).logits[:, LENGTH:]
        optimiser.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), tokens[:, LENGTH + 1 :].flatten()).backward()
        optimiser.step()
        yield step


def learnt_model(seed: int, count: int, enough: float) -> LlamaForCausalLM:
    """A policy that gets a share of `enough` of the greedy digits right."""
    torch.manual_seed(seed)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=12, max_position_embeddings=64, **shape))
    for step in supervised(model, LEARN + seed * ROOM, 2e-3, 2000):
        if step % 20 == 19 and score(model, 0.0, count) >= enough:
            break
    return model


def reinforced(model: LlamaForCausalLM, seed: int, iterations: int, **changes: Any) -> None:
    """Improves a policy by its own scored answers, 32 × 8 in an iteration."""

    def draw(number: int) -> list[PromptItem]:
        problems = [problem(REINFORCE + seed * ROOM + number * 32 + place) for place in range(32)]
        return [PromptItem([*digits, ASK], sums) for digits, sums in problems]

    settings = ReinforceSettings(
        iterations=iterations, prompts=32, copies=8, max_tokens=LENGTH + 2, decay=0.5, normalise=False, resample=0,
        evaluate_every=0, micro_rows=256, seed=seed, **changes,
    )  # fmt: skip
    reinforce(model, draw, share_right, settings, end=END, progress=None)


def gains(
    seed: int, iterations: int, count: int, enough: float, ways: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """The greedy score before, and its gain by each way and by as many supervised steps."""
    model = learnt_model(seed, count, enough)
    learnt = {name: weight.clone() for name, weight in model.state_dict().items()}
    before = score(model, 0.0, count)
    scores = {"before": before, "before, sampled at 1": score(model, 1.0, count)}
    for name, changes in ways.items():
        model.load_state_dict(learnt)
        reinforced(model, seed, iterations, **changes)
        scores[name] = score(model, 0.0, count) - before
    model.load_state_dict(learnt)
    for _ in supervised(model, CONTROL + seed * ROOM, 1e-3, iterations):
        pass
    scores["control"] = score(model, 0.0, count) - before
    return scores


def show(seeds: Sequence[Mapping[str, float]]) -> None:
    """A line per way: the mean of the seeds with its error, and each of them."""
    for name in seeds[0]:
        values = [scores[name] for scores in seeds]
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        print(f"{name:22} {fmean(values):+.3f} ± {error:.3f}  ", *(f"{value:+.3f}" for value in values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = (2, 8, 0.0) if options.quick else (80, 1000, 0.5)
    ways = {f"temperature {each}": {"temperature": each, "learning_rate": 1e-4} for each in TEMPERATURES}
    seeds = [gains(seed, *size, ways) for seed in range(1 if options.quick else options.seeds)]
    show(seeds)
    best = max(TEMPERATURES, key=lambda each: fmean(scores[f"temperature {each}"] for scores in seeds))
    print(f"greedy after reinforcement: temperature {best} against 1.0:",
          f"{fmean(s[f'temperature {best}'] - s['temperature 1.0'] for s in seeds):+.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
