"""The training objective of any causal language model, in memory that does not grow with the vocabulary.

Shapes: B rows, T tokens, D width, V vocabulary; a batch's inputs and targets are [B, T].
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_forge.forge.models import CognateForCausalLM
from agent_forge.forge.models.cross_entropy import IGNORE, chunked_cross_entropy, compute_type, token_losses
from agent_forge.forge.training.packing import Batch

SAME_SHAPE = 4096  # tokens


def objective(model: nn.Module, batch: Batch, document_mask: bool = False) -> Tensor:
    """The mean next-token loss over the batch's targets (Cognate: with its deep supervision and halting terms)."""
    if isinstance(model, CognateForCausalLM):
        documents = batch.documents if document_mask else None
        loss: Tensor = model(batch.inputs, shift_labels=batch.targets, document_ids=documents, use_cache=False).loss
        return loss
    real = (batch.targets != IGNORE).sum().clamp_min(1)
    if not has_plain_head(model):
        return F.cross_entropy(_logits(model, batch), batch.targets.flatten(), reduction="sum") / real
    hidden, head = hidden_and_head(model, batch)  # [B, T, D], [V, D]
    hidden, targets = only_targets(hidden, batch)
    return chunked_cross_entropy(hidden, head, targets) / real


@torch.no_grad()
def losses_and_hits(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """For evaluation, [B, T]: the loss of every target in nats, and whether the likeliest token was right."""
    targets = batch.targets.flatten()
    if has_plain_head(model):
        hidden, head = hidden_and_head(model, batch)
        losses, hits = token_losses(hidden.flatten(0, 1), head, targets)
    else:
        logits = _logits(model, batch)
        losses, hits = F.cross_entropy(logits, targets, reduction="none"), logits.argmax(-1) == targets
    return losses.view_as(batch.targets), hits.view_as(batch.targets)


def has_plain_head(model: Any) -> bool:
    """Whether logits = hidden @ head^T and nothing more: no bias, no capped or scaled logits."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is None or getattr(head, "bias", None) is not None:
        return False
    changes = ("final_logit_softcapping", "logit_scale", "logits_scaling")
    return all(getattr(model.config, name, None) in (None, 1.0) for name in changes)


def only_targets(hidden: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """What goes through the head, [N, D] and [N]: all tokens, or those of a sheet that are learnt (one in four)."""
    targets = batch.targets.flatten()
    if batch.positions is None:
        return hidden.flatten(0, 1), targets
    learnt = (targets != IGNORE).nonzero()[:, 0]
    if hidden.is_cuda:  # filled up with ignored tokens: a compiled loss compiles anew for every other number of them
        ignored = (targets == IGNORE).nonzero()[: -len(learnt) % SAME_SHAPE, 0]
        learnt = torch.cat([learnt, ignored])
    return hidden.flatten(0, 1)[learnt], targets[learnt]


def hidden_and_head(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """The input of the head [B, T, D] and its matrix [V, D]."""
    state = model.base_model(input_ids=batch.inputs, **context_for(model, batch), use_cache=False).last_hidden_state
    if isinstance(model, CognateForCausalLM):
        state = model.head_down(state)
    return state, model.get_output_embeddings().weight


def context_for(model: Any, batch: Any) -> dict[str, Tensor]:
    """`batch.context()`, with the mask of sheets as numbers to add to the scores. Of a mask of bools each layer would
    make and keep its own such numbers, and attention that is not fused would add 1 for True."""
    context: dict[str, Tensor] = batch.context()
    mask = context.get("attention_mask")
    if mask is not None and mask.dim() == 4:  # [B, 1, T, T]; that of padded rows is [B, T]
        weight = next(each for each in model.parameters() if each.is_floating_point())
        scores = torch.zeros(mask.shape, dtype=compute_type(weight), device=mask.device)
        context["attention_mask"] = scores.masked_fill_(~mask, -math.inf)
    return context


def _logits(model: Any, batch: Batch) -> Tensor:
    logits: Tensor = model(input_ids=batch.inputs, **context_for(model, batch), use_cache=False).logits
    return logits.flatten(0, 1).float()  # [B * T, V]
