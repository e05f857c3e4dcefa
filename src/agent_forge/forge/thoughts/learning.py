"""How thoughts are learnt: from what they do for the likelihood of the tokens that really follow.

    loss = NLL(text) + NLL(next n tokens, mixed) - weight * A log p(thought)

The reward of a thought is by how much it raises the log-likelihood of the next n true tokens; its advantage A is the
reward over the mean of the thoughts after the same token, no less than 0 (Quiet-STaR, 2403.09629, section 4.4). In the
cheaper form, after RLP (2510.01265), there is one thought at a few tokens, and its reward is over what a moving average
of the model gives the same tokens: the average stands where the mean of several thoughts stood.

Shapes: B rows, T tokens, P thoughts of a row (N after each of P / N positions), J tokens of a thought, n tokens ahead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from agent_forge.forge.thoughts.model import ThinkingModel
from agent_forge.forge.training.packing import IGNORE, Batch

Arm = Literal["thoughts", "pause", "plain"]


def chosen_positions(targets: Tensor, count: int, copies: int) -> Tensor:
    """Positions to think after, each `copies` times in a row, [B, P]: all, or `count` of those with a target."""
    rows, length = targets.shape
    if count == 0 or count >= length:
        chosen = torch.arange(length, device=targets.device).expand(rows, -1)
    else:
        noise = torch.rand(targets.shape, device=targets.device) + (targets != IGNORE)
        chosen = noise.topk(count, dim=1).indices
    return chosen.repeat_interleave(copies, dim=1)


def next_tokens(targets: Tensor, positions: Tensor, ahead: int) -> tuple[Tensor, Tensor, Tensor]:
    """The n targets after each position [B, P, n] (0 where there is none), whether there is one, and where each is.

    After the end of a document nothing counts, also where another one follows in the row.
    """
    where = positions[..., None] + torch.arange(ahead, device=positions.device)
    inside = where < targets.shape[1]
    where = where.clamp(max=targets.shape[1] - 1)
    tokens = targets.gather(1, where.flatten(1)).view_as(where)
    real = (inside & (tokens != IGNORE)).long().cumprod(-1).bool()
    return torch.where(real, tokens, 0), real, where


def advantages(rewards: Tensor, real: Tensor, clamp: bool = True) -> Tensor:
    """Rewards [B, P / N, N] over the mean of each group, at least 0 with `clamp`, by their spread in the batch."""
    over = rewards - rewards.mean(-1, keepdim=True) if rewards.shape[-1] > 1 else rewards
    over = over.clamp_min(0) if clamp else over
    over = over * real
    spread = (over.square().sum() / real.sum().clamp_min(1)).sqrt()
    return over / spread.clamp_min(1e-8)


def policy_loss(log_probs: Tensor, advantage: Tensor, weights: Tensor) -> Tensor:
    """REINFORCE: its gradient is minus that of the expected reward, if thoughts are drawn from `log_probs`.

    All have the same shape; `log_probs` are of whole thoughts.
    """
    return -(weights * advantage.detach() * log_probs).sum() / weights.sum().clamp_min(1e-8)


@dataclass
class ThoughtLoss:
    """The loss of one arm, for `train`: thoughts, or a control. `pause` has learned fillers in place of thoughts, and
    `plain` learns from the text alone. `figures` are those of the last batch."""

    arm: Arm = "thoughts"
    thought_tokens: int = 8
    thoughts: int = 2
    ahead: int = 4
    positions: int = 0
    temperature: float = 1.0
    policy_weight: float = 1.0
    average_decay: float = 0.0  # above 0: the form with a moving average
    figures: dict[str, float] = field(default_factory=dict)

    def __call__(self, model: Any, batch: Batch) -> Tensor:
        assert isinstance(model, ThinkingModel)
        states, aside = model.read(batch.inputs)
        real = (batch.targets != IGNORE) & (batch.targets != model.start_id) & (batch.targets != model.end_id)
        known = torch.where(real, batch.targets, 0)
        text = -model.log_probs(states, known)  # BT
        loss = (text * real).sum() / real.sum().clamp_min(1)
        if self.arm == "plain":
            return loss
        copies = self.thoughts if self.arm == "thoughts" else 1
        positions = chosen_positions(batch.targets, self.positions, copies)
        tokens, counts, where = next_tokens(batch.targets, positions, self.ahead)
        sampled = None
        if self.arm == "thoughts":
            sampled = model.sample(aside, positions, self.thought_tokens)
            thoughts = model.embed(sampled)
        else:
            thoughts = model.vector("pause").expand(*positions.shape, self.thought_tokens, -1)
        inner, after = model.follow(aside, positions, thoughts, tokens[:, :, :-1])
        base = states.gather(1, where.flatten(1)[..., None].expand(-1, -1, states.shape[-1])).view(after.shape)
        mixed, weight = model.mix(base, after)
        nll = -model.log_probs(mixed, tokens) * counts  # [B, P, n]
        loss = loss + nll.sum() / counts.sum().clamp_min(1)
        self.figures = {"weight of thoughts": float(weight.detach().mean())}
        if sampled is not None:
            loss = loss + self._policy(model, batch, text, nll, inner, sampled, counts, where)
        return loss

    def _policy(
        self,
        model: ThinkingModel,
        batch: Batch,
        text: Tensor,
        nll: Tensor,
        inner: Tensor,
        sampled: Tensor,
        counts: Tensor,
        where: Tensor,
    ) -> Tensor:
        """REINFORCE on the gain over the text without thoughts or, with an average, over that of the average."""
        known = torch.where(batch.targets != IGNORE, batch.targets, 0)
        reference = text.detach()
        if self.average_decay:
            reference = -model.average_log_probs(batch.inputs, known)
            model.update_average(self.average_decay)
        without = reference.gather(1, where.flatten(1)).view_as(nll) * counts
        rewards = (without - nll.detach()).sum(-1)  # BP
        log_probs = model.log_probs(inner, sampled, self.temperature).sum(-1)  # BP
        groups = (*rewards.shape[:1], -1, self.thoughts)
        real = counts[..., 0].view(groups)
        advantage = advantages(rewards.view(groups), real, clamp=not self.average_decay)
        self.figures["reward"] = float((rewards.view(groups) * real).sum() / real.sum().clamp_min(1))
        self.figures["thought nats"] = -float(log_probs.detach().mean()) / self.thought_tokens
        return self.policy_weight * policy_loss(log_probs.view(groups), advantage, real.to(log_probs))
