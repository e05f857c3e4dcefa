"""The objectives of reinforcement learning: log-probabilities, advantages, and the clipped loss.

    new = token_log_probs(model, tokens_BT, mask_BT)
    loss = policy_loss(new, old, advantages_BT, mask_BT, PolicySettings()).loss

GRPO (2402.03300) compares the answers to one prompt with each other; DAPO (2503.14476) clips further up than down and
averages over tokens, not over answers; PPO (1707.06347) learns a value for every token and spreads the rewards by
generalised advantage estimation (1506.02438).

Shapes: B rows, T tokens, N sampled tokens or rollouts, V vocabulary, D width, K steps. Everything [B, T] stands at the
token itself: the log-probability at column t is that of token t given those before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from agent_forge.errors import UsageError
from agent_forge.forge.training.objective import context_for, has_plain_head, hidden_and_head
from agent_forge.forge.training.settings import PolicySettings
from agent_forge.forge.training.shared_prompts import share_prompts, sheet_width

LOGITS = 1 << 25  # held at once: 128 MiB in float32, and in the backward pass a few times that
TINY = 1e-4  # added to a standard deviation, as TRL does


# ---------------------------------------------------------------------------------------------- log-probabilities


def token_log_probs(
    model: nn.Module,
    tokens_BT: Tensor,
    mask_BT: Tensor,
    *,
    temperature: float = 1.0,
    attention_BT: Tensor | None = None,
    allowed_BLV: Tensor | None = None,
) -> Tensor:
    """The log-probability of every token whose mask is 1, given those before it; 0 elsewhere and at the first token.

    Rows are padded on the right, or anywhere with `attention_BT` (1 for real tokens). `allowed_BLV` holds, for the
    L sampled tokens of each row, the tokens that a constraint allowed, packed into bits as `Samples.allowed` does:
    the log-probabilities are then those of the constrained distribution.
    """
    return log_probs_and_values(
        model, None, tokens_BT, mask_BT, temperature=temperature, attention_BT=attention_BT, allowed_BLV=allowed_BLV
    )[0]


def log_probs_and_values(
    model: nn.Module,
    value_head: nn.Module | None,
    tokens_BT: Tensor,
    mask_BT: Tensor,
    *,
    temperature: float = 1.0,
    attention_BT: Tensor | None = None,
    allowed_BLV: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`token_log_probs`, and the value head's estimate before each of these tokens from the same pass.

    Rows that begin with the same prompt read it once where that is cheaper (see `shared_prompts`)."""
    chosen_BT = mask_BT.bool().clone()
    chosen_BT[:, 0] = False  # nothing comes before it
    inputs: Any = _Padded(tokens_BT, attention_BT)
    place_BT = torch.arange(tokens_BT.numel(), device=tokens_BT.device).view(tokens_BT.shape)
    if attention_BT is None and (shared := share_prompts(tokens_BT, chosen_BT, sheet_width(model))):
        inputs, place_BT = shared
    before_N = place_BT[:, :-1][chosen_BT[:, 1:]]  # the positions that predict the chosen tokens
    if has_plain_head(model):
        hidden, weight = hidden_and_head(model, inputs)
        rows_ND = states_ND = hidden.flatten(0, 1)[before_N]
    else:
        named: Any = model
        out = named(input_ids=inputs.inputs, **context_for(model, inputs), use_cache=False, output_hidden_states=True)
        rows_ND, weight = out.logits.flatten(0, 1)[before_N], None
        states_ND = out.hidden_states[-1].flatten(0, 1)[before_N]
    targets_N = tokens_BT[chosen_BT]
    allowed_NV = None if allowed_BLV is None else _of_sampled(allowed_BLV, chosen_BT)
    log_probs_N = _in_chunks(rows_ND, weight, targets_N, temperature, allowed_NV)
    spread = torch.zeros(tokens_BT.shape, device=log_probs_N.device)
    values = None
    if value_head is not None:
        values = spread.masked_scatter(chosen_BT, value_head(states_ND)[:, 0].float())
    return spread.masked_scatter(chosen_BT, log_probs_N), values


@dataclass(frozen=True)
class _Padded:
    """What `hidden_and_head` reads of a batch."""

    inputs: Tensor
    attention: Tensor | None

    def context(self) -> dict[str, Tensor]:
        if self.attention is None:
            return {}
        positions = (self.attention.long().cumsum(-1) - 1).clamp_min(0)
        return {"attention_mask": self.attention, "position_ids": positions}


def _of_sampled(allowed_BLV: Tensor, chosen_BT: Tensor) -> Tensor:
    """The bits of the chosen tokens, [N, V / 8], in the order in which a mask picks them."""
    columns = torch.arange(allowed_BLV.shape[1], device=allowed_BLV.device)
    return allowed_BLV[columns < chosen_BT.sum(1, keepdim=True)]


def _in_chunks(
    rows: Tensor, weight: Tensor | None, targets: Tensor, temperature: float, allowed: Tensor | None
) -> Tensor:
    """Log-probabilities [N]. Of many tokens, the logits are computed again for the gradient rather than kept."""

    def work(rows: Tensor, weight: Tensor | None, targets: Tensor, allowed: Tensor | None) -> Tensor:
        logits = (rows if weight is None else F.linear(rows, weight.to(rows.dtype))).float()
        if temperature != 1:
            logits = logits / temperature
        if allowed is not None:
            logits = logits.masked_fill(~unpacked(allowed, logits.shape[-1]), -math.inf)
        return logits.gather(1, targets[:, None])[:, 0] - logits.logsumexp(-1)

    chunk = max(1, LOGITS // (rows if weight is None else weight.T).shape[1])
    if len(targets) <= chunk:
        return work(rows, weight, targets, allowed)
    parts = []
    for start in range(0, len(targets), chunk):
        part = slice(start, start + chunk)
        more = rows[part], weight, targets[part], None if allowed is None else allowed[part]
        parts.append(checkpoint(work, *more, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(parts)


def unpacked(bits_N8: Tensor, size: int) -> Tensor:
    """Masks [N, V] from bits [N, ceil(V / 8)], the lowest bit first; what lies beyond the bits is not allowed.

    >>> unpacked(torch.tensor([[5]], dtype=torch.uint8), 4).tolist()
    [[True, False, True, False]]
    """
    places = torch.arange(8, device=bits_N8.device, dtype=torch.uint8)
    masks = ((bits_N8[..., None] >> places) & 1).bool().flatten(1)
    return F.pad(masks, (0, max(0, size - masks.shape[1])))[:, :size]


# ---------------------------------------------------------------------------------------------- advantages


def group_advantages(rewards_N: Tensor, groups_N: Tensor, *, scale: bool = True) -> Tensor:
    """GRPO: each rollout's reward minus the mean of its group, over the group's standard deviation with `scale`.

    A group whose rewards are all equal, or of one rollout, gets 0: it says nothing.

    >>> group_advantages(torch.tensor([1.0, 3.0, 5.0, 5.0]), torch.tensor([0, 0, 1, 1]), scale=False).tolist()
    [-1.0, 1.0, 0.0, 0.0]
    """
    rewards = rewards_N.double()
    _, group, sizes = groups_N.unique(return_inverse=True, return_counts=True)
    mean = torch.zeros(len(sizes), dtype=torch.double, device=rewards.device).index_add(0, group, rewards) / sizes
    centred = rewards - mean[group]
    # compared with each other, not with the mean, which may round
    highest = mean.scatter_reduce(0, group, rewards, "amax", include_self=False)
    lowest = mean.scatter_reduce(0, group, rewards, "amin", include_self=False)
    if scale:
        squares = torch.zeros_like(mean).index_add(0, group, centred**2)
        centred = centred / ((squares / (sizes - 1).clamp_min(1)).sqrt() + TINY)[group]
    return torch.where((highest > lowest)[group], centred, 0.0).float()


def step_advantages(
    rewards_NK: Tensor, mask_NK: Tensor, groups_N: Tensor, *, discount: float = 1.0, scale: bool = True
) -> Tensor:
    """Advantages of single steps (turns, tool calls or tokens): what followed a step, compared with what followed the
    same step of the group's other rollouts.

    With a discount of 1 a step is judged by all rewards from it on, with 0 by its own alone: right where the rewards
    are credits, which say already who earned what. Steps that a rollout does not have (mask 0) get 0.
    """
    mask = mask_NK.bool()
    returns = torch.zeros_like(rewards_NK, dtype=torch.double)
    later = torch.zeros(len(rewards_NK), dtype=torch.double, device=rewards_NK.device)
    advantages = torch.zeros_like(rewards_NK, dtype=torch.float)
    for k in reversed(range(rewards_NK.shape[1])):
        later = rewards_NK[:, k].double() * mask[:, k] + discount * later
        returns[:, k] = later
        here = mask[:, k]
        if here.any():
            advantages[here, k] = group_advantages(returns[here, k], groups_N[here], scale=scale)
    return advantages


def generalised_advantages(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, discount: float = 1.0, trace: float = 0.95
) -> tuple[Tensor, Tensor]:
    """GAE (1506.02438, eq. 16) over the tokens whose mask is 1, and the returns that the value head learns.

    Tokens between them (a tool's answer) are no steps: the state after a sampled token is that of the next sampled one,
    and a reward that stands at such a token belongs to the sampled token before it.
    """
    mask = mask_BT.bool()
    advantages = torch.zeros_like(values_BT)
    reward = torch.zeros_like(values_BT[:, 0])
    next_value, next_advantage = torch.zeros_like(reward), torch.zeros_like(reward)
    for t in reversed(range(values_BT.shape[1])):
        here = mask[:, t]
        reward = reward + rewards_BT[:, t]
        error = reward + discount * next_value - values_BT[:, t]
        advantage = error + discount * trace * next_advantage
        advantages[:, t] = torch.where(here, advantage, 0.0)
        next_advantage = torch.where(here, advantage, next_advantage)
        next_value = torch.where(here, values_BT[:, t], next_value)
        reward = torch.where(here, 0.0, reward)
    return advantages, torch.where(mask, advantages + values_BT, 0.0)


def whitened(advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 over the tokens whose mask is 1."""
    chosen = advantages_BT[mask_BT.bool()]
    if len(chosen) < 2:
        return advantages_BT
    return (advantages_BT - chosen.mean()) / (chosen.std() + TINY) * mask_BT


# ---------------------------------------------------------------------------------------------- losses


@dataclass(frozen=True)
class PolicyLoss:
    """A loss to minimise, and what it says about the update (detached): shares of the tokens, and a mean per token."""

    loss: Tensor
    clipped: Tensor  # share of tokens whose gradient the clip cut off
    stale: Tensor  # share of tokens left out by `ratio_limit`
    kl: Tensor  # nats per token: from the reference, or else from the policy that sampled


def policy_loss(
    new_BT: Tensor,
    old_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    settings: PolicySettings,
    reference_BT: Tensor | None = None,
) -> PolicyLoss:
    """The clipped objective of PPO and GRPO: the mean over all tokens whose mask is 1.

    `old_BT` are the log-probabilities under the policy that sampled, however old it is. Its age is bounded twice: the
    clip ends the gradient in the direction of the advantage, and tokens whose probability has changed by more than
    `ratio_limit` in either direction are left out. The KL is Schulman's k3: exp(d) - d - 1 with d = reference - new.
    """
    if new_BT.shape != mask_BT.shape or advantages_BT.shape != mask_BT.shape:
        shapes = f"{tuple(new_BT.shape)}, {tuple(advantages_BT.shape)} and {tuple(mask_BT.shape)}"
        raise UsageError(f"log-probabilities, advantages and mask have the shapes {shapes}: they must be equal")
    if settings.kl and reference_BT is None:
        raise UsageError("a KL term needs the reference's log-probabilities", fix="Pass reference_BT")
    mask = mask_BT.to(new_BT.dtype)
    tokens = mask.sum().clamp_min(1)
    log_ratio = (new_BT - old_BT) * mask
    limit = math.log(settings.ratio_limit)
    fresh = (log_ratio.detach().abs() <= limit).to(new_BT.dtype)
    ratio = log_ratio.clamp(-limit, limit).exp()  # what lies outside has no gradient, and no overflow
    plain = ratio * advantages_BT
    clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high) * advantages_BT
    per_token = -torch.minimum(plain, clipped) * fresh
    away = ((old_BT.detach() if reference_BT is None else reference_BT) - new_BT) * mask
    kl = away.clamp(max=20.0).exp() - away - 1
    if settings.kl:
        per_token = per_token + settings.kl * kl

    def mean(values: Tensor) -> Tensor:
        return (values * mask).sum() / tokens

    cut = (clipped < plain).to(new_BT.dtype).detach()
    return PolicyLoss(mean(per_token), mean(cut), mean(1 - fresh), mean(kl.detach()))


def value_loss(values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Half the mean squared error over the tokens whose mask is 1."""
    return 0.5 * ((values_BT - returns_BT) ** 2 * mask_BT).sum() / mask_BT.sum().clamp_min(1)


class ValueHead(nn.Linear):
    """The expected return from a hidden state [.., D] on, [.., 1]. It starts at 0."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    @classmethod
    def for_model(cls, model: Any) -> ValueHead:
        """A value head for a model's states, on its device."""
        width = model.config.get_text_config().hidden_size
        embedding = model.get_output_embeddings()
        if has_plain_head(model):
            width = embedding.weight.shape[1]  # of what enters the head: Cognate narrows it
        return cls(width).to(model.device)
