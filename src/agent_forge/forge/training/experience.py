"""What a policy is learnt from: sampled rows with their rewards, from single answers or from an agent's turns.

Shapes: N rows, T tokens, L sampled tokens, V vocabulary; what stands at a token is [N, T].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from agent_forge.errors import UsageError


@dataclass(frozen=True)
class Experience:
    """Rows to learn from. Of `advantages`, `token_rewards` and `rewards` the first that is there counts:

    | given | advantages |
    |---|---|
    | advantages [N, T] | as they are: the credit was assigned elsewhere |
    | token_rewards [N, T] | GRPO: `step_advantages` over the tokens; PPO: generalised advantage estimation |
    | rewards [N] | GRPO: `group_advantages`; PPO: as a reward at the last sampled token |
    """

    tokens: Tensor  # [N, T], padded on the right
    mask: Tensor  # [N, T], 1 for what the policy sampled: not prompts, nor what tools wrote
    log_probs: Tensor  # [N, T], under the policy that sampled
    rewards: Tensor  # [N]
    groups: Tensor  # [N], rollouts that are compared with each other
    token_rewards: Tensor | None = None
    advantages: Tensor | None = None
    allowed: Tensor | None = None  # [N, L, V / 8], see `Samples`
    drawn: Tensor | None = None  # rewards of all rollouts, also of those left out; default: `rewards`
    seconds: dict[str, float] = field(default_factory=dict)  # by what they were spent on

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: Tensor) -> Experience:
        """Some of the rows."""
        names = ("tokens", "mask", "log_probs", "rewards", "groups", "token_rewards", "advantages", "allowed")
        chosen: dict[str, Any] = {}
        for name in names:
            value = getattr(self, name)
            chosen[name] = None if value is None else value[rows]
        return replace(self, **chosen)

    @staticmethod
    def joined(parts: Sequence[Experience]) -> Experience:
        """One from several, each with its own groups."""
        first, groups = parts[0], list[Tensor]()
        above = 0
        for part in parts:
            groups.append(part.groups + above)
            above += int(part.groups.max()) + 1 if len(part) else 0
        wide: dict[str, Any] = {name: _stacked([getattr(part, name) for part in parts]) for name in _WIDE}
        return replace(first, **wide, rewards=torch.cat([p.rewards for p in parts]), groups=torch.cat(groups))


_WIDE = ("tokens", "mask", "log_probs", "token_rewards", "advantages", "allowed")


def _stacked(parts: list[Tensor | None]) -> Tensor | None:
    """Rows of several tensors [N, T, ...], the shorter ones padded with zeros."""
    tensors = [part for part in parts if part is not None]
    if len(tensors) < len(parts):
        return None
    width = max(part.shape[1] for part in tensors)
    padding = [(0, 0) * (part.dim() - 2) + (0, width - part.shape[1]) for part in tensors]
    return torch.cat([nn.functional.pad(part, pad) for part, pad in zip(tensors, padding, strict=True)])


def experience_of(
    tokens: Sequence[Sequence[int]],
    mask: Sequence[Sequence[int]],
    log_probs: Sequence[Sequence[float]],
    rewards: Sequence[float],
    groups: Sequence[int],
    advantages: Sequence[Sequence[float]] | None = None,
) -> Experience:
    """Experience from rows as lists, one for every model call or conversation; each list is as long as its tokens."""

    def rows(lists: Sequence[Sequence[float]], kind: torch.dtype) -> Tensor:
        if [len(row) for row in lists] != [len(row) for row in tokens]:
            raise UsageError("every token needs its own mask, log-probability and advantage")
        if not lists:
            return torch.zeros(0, 0, dtype=kind)
        return nn.utils.rnn.pad_sequence([torch.tensor(row, dtype=kind) for row in lists], batch_first=True)

    return Experience(
        rows(tokens, torch.long),
        rows(mask, torch.float),
        rows(log_probs, torch.float),
        torch.tensor(rewards, dtype=torch.float),
        torch.tensor(groups, dtype=torch.long),
        advantages=None if advantages is None else rows(advantages, torch.float),
    )


def with_signal(experience: Experience) -> Tensor:
    """Which rows [N] are in a group whose rollouts differ; of rows that have advantages, those with one."""
    if experience.advantages is not None:
        return (experience.advantages != 0).any(1)
    rewards = experience.rewards[:, None] if experience.token_rewards is None else experience.token_rewards
    keep = torch.zeros(len(experience), dtype=torch.bool)
    for group in experience.groups.unique():
        rows = experience.groups == group
        keep[rows] = bool((rewards[rows] != rewards[rows][:1]).any())
    return keep


def row_lengths(mask: Tensor) -> Tensor:
    """Columns up to the last one whose mask is 1, [N]."""
    return ((mask > 0) * torch.arange(1, mask.shape[1] + 1)).amax(1)


def reward_at_the_end(experience: Experience) -> Tensor:
    """The reward of each rollout at its last sampled token, [N, T]."""
    rewards = torch.zeros_like(experience.mask)
    last = row_lengths(experience.mask) - 1
    rewards[torch.arange(len(experience)), last.clamp_min(0)] = experience.rewards
    return rewards * experience.mask
