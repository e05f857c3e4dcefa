"""Direct preference optimisation (2305.18290): a right answer becomes likelier than a wrong one to the same prompt.

    loss = -log sigmoid(beta ((log p(right) - log p0(right)) - (log p(wrong) - log p0(wrong))))

with p0 the model before. A pair is a sheet: the prompt is read once, and both answers see it but not each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_forge.forge.training.objective import context_for, has_plain_head, hidden_and_head
from agent_forge.forge.training.packing import IGNORE, PARTS, Batch
from agent_forge.learning.sheets import PlanSheets, Sheet, pack_sheets

Preference = tuple[Sequence[int], Sequence[int], Sequence[int]]  # the tokens of a prompt, a right and a wrong answer
RIGHT, WRONG = 1, 2  # parts of a sheet


def pack_preferences(pairs: Sequence[Preference], length: int) -> PlanSheets:
    """The pairs as packed sheets of about `length` tokens, longer if a pair is."""
    # the first token of an answer is predicted from the last of the prompt, so each part has that one
    sheets = [
        Sheet.of(prompt[:-1], [(prompt[-1:], right), (prompt[-1:], wrong)], len(prompt) + len(right) + len(wrong) + 1)
        for prompt, right, wrong in pairs
    ]
    return pack_sheets(sheets, max([length, *(len(sheet.tokens) - 1 for sheet in sheets)]))


def margins(model: Any, batch: Batch, pairs: int) -> Tensor:
    """log p(right) - log p(wrong) of each pair, [pairs]; 0 for one that is not in the batch."""
    learnt = batch.targets != IGNORE  # [B, T]
    hidden, head = hidden_and_head(model, batch) if has_plain_head(model) else (None, None)
    if hidden is not None and head is not None:
        logits = hidden[learnt] @ head.to(hidden.dtype).T  # [N, V]
    else:
        logits = model(input_ids=batch.inputs, **context_for(model, batch), use_cache=False).logits[learnt]
    chosen = logits.float().log_softmax(-1).gather(1, batch.targets[learnt][:, None])[:, 0]
    documents = batch.documents[learnt]
    sign = torch.where(documents % PARTS == RIGHT, 1.0, -1.0)
    return chosen.new_zeros(pairs).index_add(0, documents // PARTS, sign * chosen)


@dataclass
class PreferenceLoss:
    """The loss of a batch, for `train(loss=…)`; `reference` are the margins of the model before, [pairs]."""

    reference: Tensor
    beta: float = 0.1

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        present = torch.unique(batch.documents[batch.documents >= 0] // PARTS)
        gain = margins(model, batch, len(self.reference)) - self.reference.to(batch.inputs.device)
        return -F.logsigmoid(self.beta * gain[present]).mean()


@torch.no_grad()
def reference_margins(model: nn.Module, data: PlanSheets, pairs: int, rows: int = 4) -> Tensor:
    """The margins of a model before it learns, [pairs]."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    total = torch.zeros(pairs)
    for start in range(0, len(data), rows):
        total += margins(model, data.take(slice(start, start + rows)).to(device), pairs).cpu()
    model.train(was_training)
    return total
