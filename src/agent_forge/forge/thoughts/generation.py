"""Generation with thoughts: before every token the model thinks, aside of the text, and the thought is forgotten."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from agent_forge.errors import UsageError
from agent_forge.forge.models import CognateForCausalLM
from agent_forge.forge.models.cache import CognateCache, thinking_aside
from agent_forge.forge.thoughts.model import ThinkingModel, draw


@dataclass(frozen=True)
class Thoughtful:
    """Generated tokens, without thoughts; and, if asked for, the thought before each of them and its weight."""

    tokens: Tensor  # [B, T]: the prompt and what follows
    thoughts: list[Tensor] = field(default_factory=list)  # of each new token, [B, J]
    weights: list[Tensor] = field(default_factory=list)  # [B]

    def shown(self, tokenizer: Any, row: int = 0) -> str:
        """The new text of a row with every thought in brackets before the token that it was for."""
        first = self.tokens.shape[1] - len(self.thoughts)
        pieces = []
        for number, thought in enumerate(self.thoughts):
            inner = tokenizer.decode(thought[row]).strip()
            pieces.append(f"[{inner}]{tokenizer.decode(self.tokens[row, first + number])}")
        return "".join(pieces)


@torch.no_grad()
def generate(
    model: ThinkingModel,
    input_ids: Tensor,
    *,
    max_new_tokens: int,
    thought_tokens: int,
    temperature: float = 0.0,
    eos: int | None = None,
    seed: int | None = None,
    show: bool = False,
) -> Thoughtful:
    """Continues prompts of equal length [B, T], with `thought_tokens` of thought before each token (0: without).

    Thoughts are the likeliest ones, as in the phase's figures; `temperature` is that of the text. A row that has met
    `eos` goes on with it. With `show` the result has the thoughts too.
    """
    if input_ids.dim() != 2 or not input_ids.numel():
        raise UsageError("a prompt is a row of at least one token", where="generate")
    if seed is not None:
        torch.manual_seed(seed)
    model.eval()
    cognate = isinstance(model.model, CognateForCausalLM)
    cache: Any = CognateCache(model.model.config) if cognate else DynamicCache(config=model.model.config)
    result, new = Thoughtful(input_ids), input_ids
    done = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
    tokens = input_ids
    for _ in range(max_new_tokens):
        state = _next_state(model, model.embed(new), cache)  # BD
        if thought_tokens:
            thought, after = _think(model, cache, len(tokens), thought_tokens)
            state, weight = model.mix(state, after)
            if show:
                result.thoughts.append(thought)
                result.weights.append(weight[:, 0])
        new = draw(model.logits(state), temperature)[:, None]
        if eos is not None:
            new = torch.where(done[:, None], eos, new)
            done = done | (new[:, 0] == eos)
        tokens = torch.cat([tokens, new], dim=1)
        if eos is not None and bool(done.all()):
            break
    return Thoughtful(tokens, result.thoughts, result.weights)


def _next_state(model: ThinkingModel, embedded: Tensor, cache: Any) -> Tensor:
    out = model.model.base_model(inputs_embeds=embedded, past_key_values=cache, use_cache=True)
    state: Tensor = out.last_hidden_state[:, -1]
    return state


def _think(model: ThinkingModel, cache: Any, rows: int, count: int) -> tuple[Tensor, Tensor]:
    """The likeliest thought after what is in the cache, [B, J], and the state after it, BD. The cache stays."""
    thought = []
    with thinking_aside(cache):
        embedded = model.vector("start").expand(rows, 1, -1)
        for _ in range(count):
            logits = model.logits(_next_state(model, embedded, cache))
            thought.append(draw(model.quiet(logits), 0))
            embedded = model.embed(thought[-1])[:, None]
        _next_state(model, embedded, cache)
        state = _next_state(model, model.vector("end").expand(rows, 1, -1), cache)
    return torch.stack(thought, dim=1), state
