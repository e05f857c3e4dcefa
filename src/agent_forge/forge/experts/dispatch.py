"""Which expert answers a prompt: the model is asked, a classifier reads its states, or a few solved items decide."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_forge.errors import CheckpointError
from agent_forge.forge.evaluation.choices import MultipleChoice, questions_of, score_rows
from agent_forge.forge.evaluation.generation import beginning
from agent_forge.forge.evaluation.logistic import fit_logistic
from agent_forge.forge.evaluation.text import device_of

OTHER = "other"
MOST_WEIGHT = 1.5


def ask_for_domain(model: Any, tokenizer: Any, prompts: Sequence[str], domains: Sequence[str]) -> list[str | None]:
    """The domain whose name the model finds likeliest after the task, or None for "other". The model is the base."""
    names = [*domains, OTHER]
    kinds = [name.rpartition(":")[2].replace("_", " ") for name in names]
    choices = tuple(f" {kind}" for kind in kinds)
    texts = [f"{prompt}\n\nWhich kind of task is this: {', '.join(kinds)}?\nKind:" for prompt in prompts]
    questions = questions_of(
        [MultipleChoice(text, choices, 0) for text in texts], tokenizer, beginning(model, tokenizer, None)
    )
    losses, _ = score_rows(model, [(one.prompt, answer) for one in questions for answer in one.answers])
    per_character = losses.reshape(len(prompts), len(names)) / np.array([len(kind) for kind in kinds])
    return [None if names[place] == OTHER else names[place] for place in per_character.argmin(1)]


@torch.no_grad()
def prompt_states(model: Any, prompts: Sequence[Sequence[int]], rows: int = 32) -> Tensor:
    """The mean over a prompt's tokens of the last hidden state, [prompts, hidden], in float64 on the CPU."""
    states = []
    for start in range(0, len(prompts), rows):
        part = prompts[start : start + rows]
        width = max(map(len, part))
        tokens = torch.zeros(len(part), width, dtype=torch.long)
        mask = torch.zeros(len(part), width)
        for row, prompt in enumerate(part):  # padded on the right: in a causal model, nothing before it changes
            tokens[row, : len(prompt)] = torch.tensor(prompt)
            mask[row, : len(prompt)] = 1
        hidden_BTD = model.base_model(input_ids=tokens.to(device_of(model)), use_cache=False)[0].double().cpu()
        states.append((hidden_BTD * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
    return torch.cat(states)


@dataclass(frozen=True)
class DomainClassifier:
    """Multinomial logistic regression on the base's states of a prompt: a few thousand numbers."""

    mean: Tensor  # [D]
    scale: Tensor  # [D]
    weight: Tensor  # [K, D]
    bias: Tensor  # [K]

    @classmethod
    def fit(cls, states: Tensor, labels: Sequence[int], decay: float = 1e-2) -> DomainClassifier:
        """`states` [N, D]; labels from 0."""
        mean, scale = states.mean(0), states.std(0).clamp_min(1e-6)
        return cls(mean, scale, *fit_logistic((states - mean) / scale, labels, decay))

    def write(self, file: Path, domains: Sequence[str]) -> None:
        """Writes it with the names of its labels."""
        from safetensors.torch import save_file

        file.parent.mkdir(parents=True, exist_ok=True)
        tensors = {name: getattr(self, name).float().contiguous() for name in ("mean", "scale", "weight", "bias")}
        save_file(tensors, file, {"domains": json.dumps(list(domains))})

    @classmethod
    def read(cls, file: Path) -> tuple[DomainClassifier, list[str]]:
        """A classifier and the domains that its labels stand for. Raises CheckpointError."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, "pt") as handle:
                parts = [handle.get_tensor(name).double() for name in ("mean", "scale", "weight", "bias")]
                return cls(*parts), list(json.loads(handle.metadata()["domains"]))
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"the classifier cannot be read: {error}", where=str(file)) from error

    def pick(self, states: Tensor) -> list[int]:
        """The likeliest label of each row."""
        return ((states - self.mean) / self.scale @ self.weight.T + self.bias).argmax(1).tolist()


def search_mixture(
    fitness: Callable[[np.ndarray], np.ndarray],
    experts: int,
    *,
    population: int = 32,
    elite: float = 0.2,
    generations: int = 5,
    seed: int = 0,
) -> tuple[np.ndarray, float]:
    """The cross-entropy method over mixture weights: draw, keep the best, narrow down to them.

    `fitness` takes mixtures [P, K] and gives [P], for example the score on a few labelled items. The base and each
    expert alone are in the first generation. Of equals, the one nearest to the base is taken. Returns the best weights
    that were seen and their fitness.
    """
    rng = np.random.default_rng(seed)
    mean, deviation = np.full(experts, 1 / experts), np.full(experts, 0.5)
    best, best_fitness = np.zeros(experts), -np.inf
    for generation in range(generations):
        mixtures = np.clip(rng.normal(mean, deviation, (population, experts)), 0, MOST_WEIGHT)
        if generation == 0:
            corners = np.vstack([np.zeros(experts), np.eye(experts)])[:population]
            mixtures[: len(corners)] = corners
        values = fitness(mixtures)
        order = np.lexsort((np.linalg.norm(mixtures, axis=1), -values))
        if values[order[0]] > best_fitness:
            best, best_fitness = mixtures[order[0]], float(values[order[0]])
        chosen = mixtures[order[: max(2, round(elite * population))]]
        mean, deviation = chosen.mean(0), chosen.std(0) + 0.02  # a floor, so that it does not stop at once
    return best, best_fitness
