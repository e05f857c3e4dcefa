"""What an error in each weight costs, from calibration text: second moments of inputs, and Fisher information.

For a matrix the loss grows by about 1/2 sum_ij g_i (dW H dW^T)_ii: H the second moments of its inputs, g the Fisher
information of its outputs. H comes from a forward pass, g from the squares of gradients with labels drawn from the
model's own predictions (the true Fisher information, not the empirical one).

An embedding table is read as well as multiplied, often both: its columns' metric comes from its gradients, in which all
uses of it are summed. With the second moments of the head alone, feedback would move the errors of a tied table to
where the head does not see them and the first layer does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_forge.forge.compression.feedback import Cost
from agent_forge.forge.compression.precision import halved
from agent_forge.forge.training.packing import PackedRows

FLOOR = 0.02  # of the mean: outputs that the calibration text never used still matter a little
UNSEEN = 3.0  # occurrences that a word has before any is counted


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
) -> dict[str, Cost]:
    """The cost of errors in every matrix, on the model's device. The model is left as it was.

    `rows` are read forward, for the inputs' moments; the first `gradient_rows` of them (all) backward as well, which
    takes three times as long and needs fewer. `more` rows are only counted: how often a word occurs is what an error in
    its row of a table costs, and the tokens that a model is calibrated on do not have most words of a vocabulary.
    """
    was_training = model.training
    model.eval()
    moments, tokens = _moments(model, rows, batch_rows)
    fisher, tables, drawn = _information(model, rows, batch_rows, seed, gradient_rows or len(rows))
    model.train(was_training)
    known = {name: _shrunk(found, tokens) for name, found in moments.items()}
    known.update({name: _shrunk(found, drawn) for name, found in tables.items()})
    weights = {name: _floored(found) for name, found in fisher.items()}
    counted, words = rows if more is None else more, model.get_input_embeddings().weight
    for name in tables:
        found = fisher[name]
        if matrices(model)[name] is words:
            weights[name] = _occurrences(counted, len(found)).to(found.device)
        else:  # of positions, say: later ones are not in the calibration text, and matter as much
            weights[name] = None
    return {name: Cost(known.get(name), weights[name]) for name in fisher}


@torch.no_grad()
def _moments(model: Any, rows: PackedRows, batch_rows: int) -> tuple[dict[str, Tensor], int]:
    """Second moments of the inputs of every linear layer, and the number of tokens."""
    device = next(model.parameters()).device
    with _second_moments(model) as found, halved(model):
        for start in range(0, len(rows), batch_rows):
            batch = rows.take(slice(start, start + batch_rows)).to(device)
            model(input_ids=batch.inputs, use_cache=False)
    return dict(found), len(rows) * rows.length


def _information(
    model: Any, rows: PackedRows, batch_rows: int, seed: int, count: int
) -> tuple[dict[str, Tensor], dict[str, Tensor], int]:
    """Fisher information of the rows of every matrix, second moments of the gradients of tables, and the number of
    tokens."""
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    fisher = {name: torch.zeros(len(weight), device=device) for name, weight in matrices(model).items()}
    tables: dict[str, Tensor] = {}
    owned, tokens = _tables(model), 0
    for start in range(0, min(count, len(rows)), batch_rows):
        batch = rows.take(slice(start, start + batch_rows)).to(device)
        model.zero_grad(set_to_none=True)
        with halved(model):
            logits = model(input_ids=batch.inputs, use_cache=False).logits.flatten(0, 1)
        logits = logits.float()
        drawn = torch.multinomial(logits.detach().softmax(-1), 1, generator=generator)[:, 0]
        F.cross_entropy(logits, drawn, reduction="sum").backward()
        tokens += len(drawn)
        for name, weight in matrices(model).items():
            if weight.grad is not None:
                gradient = weight.grad.float()
                fisher[name] += gradient.square().mean(1)
                if name in owned:
                    tables[name] = tables.get(name, 0.0) + gradient.T @ gradient
    model.zero_grad(set_to_none=True)
    return {name: found / max(1, tokens) for name, found in fisher.items()}, tables, tokens


def _occurrences(rows: PackedRows, words: int) -> Tensor:
    return torch.bincount(torch.from_numpy(rows.tokens[rows.documents >= 0]).long(), minlength=words).float() + UNSEEN


def _shrunk(moments: Tensor, tokens: int) -> Tensor:
    """Towards its diagonal, the more the fewer tokens it is made of: feedback would else move the errors to where
    these few tokens, and no others, have nothing."""
    share = len(moments) / (len(moments) + tokens)
    return (1 - share) * moments + share * torch.diag(moments.diagonal())


def _tables(model: nn.Module) -> set[str]:
    owned = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    return {name for name, weight in matrices(model).items() if id(weight) in owned}


def _floored(rows: Tensor) -> Tensor | None:
    mean = rows.mean()
    return None if not torch.isfinite(mean) or mean <= 0 else rows + FLOOR * mean


@contextmanager
def _second_moments(model: nn.Module) -> Iterator[Mapping[str, Tensor]]:
    """Collects x x^T of what goes into every linear layer, by the name of its weight."""
    names = {id(weight): name for name, weight in matrices(model).items()}
    found: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    hooks = []

    def collect(name: str, x: Tensor) -> None:
        flat = x.detach().reshape(-1, x.shape[-1]).float()
        seen = counts.get(name, 0)
        counts[name] = seen + len(flat)
        share = seen / counts[name]
        with torch.autocast(flat.device.type, enabled=False):  # moments rounded to bfloat16 have no Cholesky factor
            found[name] = found.get(name, 0.0) * share + flat.T @ flat / counts[name]

    for module in model.modules():
        if isinstance(module, nn.Linear) and id(module.weight) in names:
            name = names[id(module.weight)]
            hooks.append(module.register_forward_pre_hook(lambda _, args, name=name: collect(name, args[0])))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
