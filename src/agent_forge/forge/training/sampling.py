"""Answers sampled from a torch model in batches, with the log-probabilities that reinforcement learning needs.

The batch is that of the serving engine (`inference.torch_rows`), but tokens are drawn on the model's device. A prompt
is read once for all its copies; rows that have ended leave the batch.

**The draw of a row depends on its own logits and on its own random numbers**, so neither the batch size nor when other
rows end changes an answer (up to the rounding of the logits).

**With a constraint, log-probabilities are those of the constrained distribution** p(t) / p(allowed), since that is the
policy that acts: only then does the mean of advantage times score function have the gradient of the expected reward.
The plain ones would add advantage * grad log p(allowed), which teaches the model about tokens that it never had the
choice of. A token that the constraint forces has probability 1 and no gradient. The price is a mask per token, kept as
bits (a vocabulary of 49,152 takes 6 KB).

Shapes: N samples, T tokens, L sampled tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_forge.errors import UsageError
from agent_forge.inference.rows import rows_for, without
from agent_forge.inference.shared_rows import can_share
from agent_forge.inference.torch_rows import TorchRows, sampling_rows

CACHE = 1 << 30  # bytes of keys and values at once in main memory: a process that takes too much there is killed
BLOCK = 256  # tokens whose probabilities are summed together before they are drawn from
BELOW = 1 - 2.0**-50
LEAVE = 8  # ended rows are taken out of the batch when they are one in so many: moving the others costs too


class Walk(Protocol):
    """The state of one constrained answer, such as `inference.grammar.GrammarWalk`."""

    def allowed(self) -> Any:
        """The tokens that may come next, [V]."""

    def advance(self, token: int) -> None:
        """Goes on by one of them."""


Constraint = Callable[[int], "Walk | None"]  # from the number of a prompt to the start of one answer; None: free


@dataclass(frozen=True)
class Samples:
    """`copies` answers to each prompt, one after the other. Rows are prompt, answer, then zeros."""

    tokens: Tensor  # [N, T]
    mask: Tensor  # [N, T], 1 for sampled tokens, with the end token
    log_probs: Tensor  # [N, T], of the distribution that was sampled from; 0 where the mask is 0
    prompt_of: Tensor  # [N]
    ended: Tensor  # [N], whether the answer ended by itself
    allowed: Tensor | None = None  # [N, L, V / 8], with a constraint: bits of the allowed tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def answers(self) -> list[list[int]]:
        """The sampled tokens of each row, without the end token."""
        return [
            row[chosen.bool()].tolist()[: -1 if ended else None]
            for row, chosen, ended in zip(self.tokens, self.mask, self.ended.tolist(), strict=True)
        ]


def sample(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    *,
    copies: int = 1,
    max_tokens: int,
    temperature: float = 1.0,
    end: int | Sequence[int] | None = None,
    seed: int = 0,
    constraint: Constraint | None = None,
    batch: int | None = None,
) -> Samples:
    """`copies` answers to each prompt, `batch` rows at a time (by default all, or in main memory as many as `CACHE` has
    room for; fewer when a GPU's memory runs out).

    An answer ends with a token of `end` or after `max_tokens`. Temperature 0 takes the likeliest token; its
    log-probabilities are those at temperature 1. Raises UsageError.
    """
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise UsageError("every prompt needs at least one token")
    ends = [] if end is None else [end] if isinstance(end, int) else list(end)
    rows, every = rows_for(model), len(prompts) * copies
    answers = _Answers(model, every, max_tokens, ends, temperature, seed)
    lone = getattr(rows, "most", None) == 1  # an unknown kind of cache: one row at a time
    times, size = (copies, 1) if lone else (1, copies)
    owners = [i for i in range(len(prompts)) for _ in range(times)]
    if batch is None and not answers.tokens.is_cuda:
        longest = max(map(len, prompts))
        shared = copies > 1 and can_share(model, rows)
        cells = (
            rows.cells(1, longest) + rows.cells(size, max_tokens) if shared else rows.cells(size, longest + max_tokens)
        )
        batch = min(every, CACHE * size // max(1, cells))
    each = 1 if lone else max(1, (every if batch is None else batch) // copies)
    done = 0
    with evaluating(model), torch.inference_mode():
        while done < len(owners):
            part = owners[done : done + each]
            walks = None if constraint is None else [constraint(i) for i in part for _ in range(size)]
            try:
                _write(model, [prompts[i] for i in part], size, answers, done * size, walks)
            except torch.OutOfMemoryError:
                if each == 1:
                    fix = "Sample fewer or shorter answers"
                    raise UsageError("the answers to one prompt do not fit into memory", fix=fix) from None
                each = (each + 1) // 2
                torch.cuda.empty_cache()
                continue
            done += len(part)
    return answers.samples([prompt for prompt in prompts for _ in range(copies)], copies)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside the block the model is in evaluation mode."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


class _Answers:
    """What has been written so far."""

    def __init__(self, model: Any, count: int, max_tokens: int, ends: list[int], temperature: float, seed: int) -> None:
        device = model.device
        random = torch.Generator().manual_seed(seed)
        # One number per token of every answer, from the CPU: the same on every device.
        self.draws = torch.rand(count, max_tokens, generator=random, dtype=torch.double).to(device)  # [N, L]
        self.tokens = torch.zeros(count, max_tokens, dtype=torch.long, device=device)
        self.log_probs = torch.zeros(count, max_tokens, device=device)
        self.lengths = torch.zeros(count, dtype=torch.long, device=device)
        self.ended = torch.zeros(count, dtype=torch.bool, device=device)
        self.ends = torch.tensor(ends, dtype=torch.long, device=device)
        self.bits: list[list[Any]] = [[] for _ in range(count)]
        self.max_tokens, self.temperature = max_tokens, temperature

    def clear(self, numbers: range) -> None:
        """Forgets what was written of some answers when memory ran out."""
        these = slice(numbers.start, numbers.stop)
        self.lengths[these], self.ended[these] = 0, False
        self.bits[these] = [[] for _ in numbers]

    def note(self, walks: list[Walk | None], order: list[int], first: int, logits: Tensor) -> Tensor:
        """What the constraints of the batch's rows allow, [n, V]; kept as bits for the answers that are not over."""
        masks = np.ones((len(order), logits.shape[-1]), dtype=bool)
        over = self.ended[first : first + len(walks)].tolist()
        for place, number in enumerate(order):
            walk = walks[number]
            if walk is None or over[number]:
                continue
            allowed = np.asarray(walk.allowed())[: logits.shape[-1]]
            masks[place, : len(allowed)], masks[place, len(allowed) :] = allowed, False
            if not allowed.any():
                raise UsageError("the constraint allows no token", where=f"answer {first + number}")
            self.bits[first + number].append(np.packbits(masks[place], bitorder="little"))
        return torch.from_numpy(masks).to(logits.device)

    def write(self, logits: Tensor, rows: Tensor, at: int, allowed: Tensor | None) -> tuple[Tensor, Tensor]:
        """Draws token number `at` of the answers `rows`: the tokens, and which answers have ended by now, both [n].
        Answers that ended earlier keep what they have."""
        tokens, log_probs = draw(logits, self.draws[rows, at], self.temperature, allowed)
        running = ~self.ended[rows]
        self.tokens[rows, at] = tokens * running
        self.log_probs[rows, at] = log_probs * running
        self.lengths[rows] += running
        self.ended[rows] |= torch.isin(tokens, self.ends) & running
        return tokens, self.ended[rows]

    def samples(self, prompts: Sequence[Sequence[int]], copies: int) -> Samples:
        """The rows with their prompts in front, in main memory."""
        tokens, log_probs, lengths = self.tokens.cpu(), self.log_probs.cpu(), self.lengths.tolist()
        width = max(len(prompt) + length for prompt, length in zip(prompts, lengths, strict=True))
        rows = torch.zeros(len(prompts), width, dtype=torch.long)
        mask, spread = torch.zeros(len(prompts), width), torch.zeros(len(prompts), width)
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
            answer = slice(len(prompt), len(prompt) + length)
            rows[i, : len(prompt)] = torch.tensor(prompt)
            rows[i, answer], mask[i, answer], spread[i, answer] = tokens[i, :length], 1.0, log_probs[i, :length]
        owners = torch.arange(len(prompts)) // copies
        return Samples(rows, mask, spread, owners, self.ended.cpu(), self._packed(max(lengths)))

    def _packed(self, longest: int) -> Tensor | None:
        width = max((len(bits) for row in self.bits for bits in row), default=0)
        if not width:
            return None
        packed = np.full((len(self.bits), longest, width), 255, dtype=np.uint8)  # free rows: all tokens
        for row, masks in enumerate(self.bits):
            if masks:
                packed[row, : len(masks)] = masks
        return torch.from_numpy(packed)


def _write(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    copies: int,
    answers: _Answers,
    first: int,
    walks: list[Walk | None] | None,
) -> None:
    """Writes the answers to these prompts, whose numbers begin with `first`."""
    order = list(range(len(prompts) * copies))  # the answer that each row of the batch writes
    rows = sampling_rows(model, len(order), copies)
    if not isinstance(rows, TorchRows):
        raise UsageError("a packed model cannot be sampled for training", fix="Use the model it was packed from")
    answers.clear(range(first, first + len(order)))
    logits = rows.add(prompts, copies)
    for at in range(answers.max_tokens):
        numbers = torch.tensor(order, device=logits.device) + first
        masks = None if walks is None else answers.note(walks, order, first, logits)
        tokens, ended = answers.write(logits, numbers, at, masks)
        places = ended.tolist()
        if walks is not None:
            for place, token in enumerate(tokens.tolist()):
                if not places[place] and (walk := walks[order[place]]) is not None:
                    walk.advance(token)
        if all(places) or at + 1 == answers.max_tokens:
            break
        leaving = [place for place, gone in enumerate(places) if gone]
        if len(leaving) * LEAVE >= len(order):
            staying = list(range(len(order)))
            without(staying, leaving)
            rows.leave(leaving)
            order = [order[place] for place in staying]
            tokens = tokens[torch.tensor(staying, device=tokens.device)]
        logits = rows.extend(tokens)
    rows.leave(range(len(order)))


def draw(logits_NV: Tensor, points_N: Tensor, temperature: float, allowed_NV: Tensor | None) -> tuple[Tensor, Tensor]:
    """Tokens [N] by inverse transform, with their log-probabilities: the first token whose cumulative probability
    exceeds its point in [0, 1). A token of probability 0 is never drawn.

    The sums are float64, first over blocks of tokens and then in the one that has the point: a float64 sum over a whole
    vocabulary would take as long as all layers of a small model."""
    logits = logits_NV.float()
    if temperature not in (0.0, 1.0):
        logits = logits / temperature
    if allowed_NV is not None:
        logits = logits.masked_fill(~allowed_NV, -math.inf)
    chances = logits.softmax(-1)
    if temperature == 0.0:
        tokens = logits.argmax(-1)
    else:
        blocks = F.pad(chances, (0, -chances.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
        which, rest = find(blocks.sum(-1), points_N)
        within = blocks[torch.arange(len(which), device=which.device), which]
        tokens = which * BLOCK + find(within, rest)[0]
    return tokens, chances.gather(1, tokens[:, None])[:, 0].log()


def find(chances_NK: Tensor, points_N: Tensor) -> tuple[Tensor, Tensor]:
    """The first place whose cumulative share exceeds the point in [0, 1), and where in it the point is, in [0, 1)."""
    total = chances_NK.double().cumsum(-1)  # [N, K]
    points = points_N.double() * total[:, -1]
    points = points.minimum(total[:, -1] * BELOW)  # rounding must not reach the end
    places = torch.searchsorted(total, points[:, None], right=True)
    share = chances_NK.double().gather(1, places)
    rest = (points[:, None] - (total.gather(1, places) - share)) / share
    return places[:, 0], rest[:, 0].clamp(0.0, BELOW)
