"""What an error in each weight costs, from calibration text: second moments of inputs, and Fisher information.

For a matrix the loss grows by about 1/2 sum_ij g_i (dW H dW^T)_ii: H the second moments of its
inputs, g the Fisher information of its outputs. H comes from a forward pass, g from the squares of
gradients with labels drawn from the model's own predictions (the true Fisher information, not the
empirical one).

An embedding table is read as well as multiplied, often both: its columns' metric comes from its
gradients, in which all uses of it are summed. With the second moments of the head alone, feedback
would move the errors of a tied table to where the head does not see them and the first layer does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_forge.bf16 import faster_products
from agent_forge.forge.compression.feedback import Cost
from agent_forge.forge.progress import Tell, silent, track
from agent_forge.forge.training.packing import PackedRows

FLOOR = 0.02  # of the mean: outputs that the calibration text never used still matter a little
UNSEEN = 3.0  # occurrences credited to every token of the vocabulary


def matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights that codecs work on, each once (tied ones under their first name)."""
    return {name: weight for name, weight in model.named_parameters() if weight.dim() == 2 and weight.numel() >= 1024}


def measure_costs(
    model: Any,
    rows: PackedRows,
    batch_rows: int = 4,
    seed: int = 0,
    more: PackedRows | None = None,
    gradient_rows: int | None = None,
    tell: Tell = silent,
) -> dict[str, Cost]:
    """The cost of errors in every matrix, on the model's device. The model is left as it was.

    `rows` are read forward, for the inputs' moments; the first `gradient_rows` of them (default:
    all) backward as well, which takes three times as long and needs fewer. `more` rows are only
    counted: how often a token occurs is what an error in its row of a table costs, and calibration
    rows lack most of a vocabulary.
    """
    was_training = model.training
    model.eval()
    moments = _moments(model, rows, batch_rows, tell)
    fisher, tables, drawn = _information(model, rows, batch_rows, seed, gradient_rows or len(rows), tell)
    model.train(was_training)
    hessians = {name: _shrunk(moment, len(rows) * rows.length) for name, moment in moments.items()}
    hessians.update({name: _shrunk(moment, drawn) for name, moment in tables.items()})
    vocabulary, counted = model.get_input_embeddings().weight, rows if more is None else more
    costs = {}
    for name, weight in matrices(model).items():
        mean = fisher[name].mean()
        importance: Tensor | None = None
        if name not in tables and torch.isfinite(mean) and mean > 0:
            importance = fisher[name] + FLOOR * mean
        elif name in tables and weight is vocabulary:  # rows of other tables, of positions say, matter alike
            importance = _occurrences(counted, len(weight)).to(mean.device)
        costs[name] = Cost(hessians.get(name), importance)
    return costs


@torch.no_grad()
def _moments(model: Any, rows: PackedRows, batch_rows: int, tell: Tell) -> dict[str, Tensor]:
    """Second moments [C, C] of the inputs of every linear layer, by the name of its weight."""
    device = next(model.parameters()).device
    names = {id(weight): name for name, weight in matrices(model).items()}
    layers = [
        (names[id(module.weight)], module)
        for module in model.modules()
        if isinstance(module, nn.Linear) and id(module.weight) in names
    ]
    with input_means(layers, lambda x: x.T @ x) as moments, faster_products(model):
        for start in track(range(0, len(rows), batch_rows), "moments", tell):
            batch = rows.take(slice(start, start + batch_rows)).to(device)
            model(input_ids=batch.inputs, use_cache=False)
    return moments


@contextmanager
def input_means(layers: Iterable[tuple[str, nn.Module]], of: Callable[[Tensor], Tensor]) -> Iterator[dict[str, Tensor]]:
    """The mean over tokens of a sum `of` the inputs [tokens, C] of each layer, while the block runs."""
    means: dict[str, Tensor] = {}
    counts: dict[str, int] = {}

    def collect(name: str, x: Tensor) -> None:
        flat = x.detach().reshape(-1, x.shape[-1]).float()
        seen = counts.get(name, 0)
        counts[name] = seen + len(flat)
        with torch.autocast(flat.device.type, enabled=False):  # moments rounded to bfloat16 have no Cholesky factor
            means[name] = means.get(name, 0.0) * (seen / counts[name]) + of(flat) / counts[name]

    hooks = [
        module.register_forward_pre_hook(lambda _, inputs, name=name: collect(name, inputs[0]))
        for name, module in layers
    ]
    try:
        yield means
    finally:
        for hook in hooks:
            hook.remove()


def _information(
    model: Any, rows: PackedRows, batch_rows: int, seed: int, count: int, tell: Tell
) -> tuple[dict[str, Tensor], dict[str, Tensor], int]:
    """Fisher information [R] of the rows of every matrix, second moments [C, C] of the gradients of
    tables, and the number of tokens."""
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    weights = matrices(model)
    fisher = {name: torch.zeros(len(weight), device=device) for name, weight in weights.items()}
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    tables: dict[str, Tensor] = {}
    tokens = 0
    for start in track(range(0, min(count, len(rows)), batch_rows), "gradients", tell):
        batch = rows.take(slice(start, start + batch_rows)).to(device)
        model.zero_grad(set_to_none=True)
        with faster_products(model):
            logits = model(input_ids=batch.inputs, use_cache=False).logits.flatten(0, 1)
        logits = logits.float()
        drawn = torch.multinomial(logits.detach().softmax(-1), 1, generator=generator)[:, 0]
        F.cross_entropy(logits, drawn, reduction="sum").backward()
        tokens += len(drawn)
        for name, weight in weights.items():
            if weight.grad is not None:
                gradient = weight.grad.float()
                fisher[name] += gradient.square().mean(1)
                if id(weight) in embeddings:
                    tables[name] = tables.get(name, 0.0) + gradient.T @ gradient
    model.zero_grad(set_to_none=True)
    return {name: sums / max(1, tokens) for name, sums in fisher.items()}, tables, tokens


def _occurrences(rows: PackedRows, vocabulary: int) -> Tensor:
    tokens = torch.from_numpy(rows.tokens[rows.documents >= 0]).long()
    return torch.bincount(tokens, minlength=vocabulary).float() + UNSEEN


def _shrunk(moments: Tensor, tokens: int) -> Tensor:
    """Towards the diagonal, the more the fewer tokens the moments are made of: otherwise feedback
    would move the errors to directions that only these few tokens lack."""
    share = len(moments) / (len(moments) + tokens)
    return (1 - share) * moments + share * torch.diag(moments.diagonal())
