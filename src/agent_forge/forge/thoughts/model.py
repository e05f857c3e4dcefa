"""A causal language model that thinks before its tokens (Quiet-STaR, 2403.09629).

After a position of a text a thought is sampled: <|startofthought|>, J tokens, <|endofthought|>. The state after it is
mixed with the state without it, by a weight that a small head computes from both:

    h = (1 - w) h_base + w h_thought,   w = MLP([h_base; h_thought]),   and w = 0 before any training

The head of the model is linear, so mixing its inputs is mixing the logits. Start and end have embeddings of their own,
as steps from where they began times `scale`, so that they learn faster than anything else. A tokenizer that has no
tokens for them needs none: the model's vocabulary stays as it is.

Shapes: B rows, T text tokens, P thoughts of a row, J tokens of a thought, L tokens read at once, D width, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from agent_forge.errors import UsageError
from agent_forge.forge.models import CognateForCausalLM
from agent_forge.forge.models.aside import Aside, register_with_transformers
from agent_forge.forge.training.objective import has_plain_head

START, END = "<|startofthought|>", "<|endofthought|>"
FIRST = "---"  # what start and end begin as: a break in the text, as in the paper
RELATIVE_STEP = 10.0  # a step of 0.001 moves an embedding by a hundredth of its size
ROWS = {"cuda": 8192, "cpu": 1024}  # states that go through the head at once


class MixingHead(nn.Module):
    """The weight of the thought, [..., 1], from both states: three layers, the last of which starts at zero."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2 * width, inner), nn.ReLU(), nn.Linear(inner, inner), nn.ReLU(), nn.Linear(inner, 1)
        )
        for parameter in self.layers[-1].parameters():
            nn.init.zeros_(parameter)

    def forward(self, base: Tensor, thought: Tensor) -> Tensor:
        weight: Tensor = self.layers(torch.cat([base, thought], dim=-1))
        return weight


class ThinkingModel(nn.Module):
    """A model with start, end, pause (for the control) and the mixing head.

    `start_id` and `end_id` stand for the two tokens in a text; where the vocabulary has none they are beyond it.
    `silent` tokens never occur in thoughts.
    """

    def __init__(self, model: Any, start_id: int, end_id: int, first: Tensor, silent: tuple[int, ...] = ()) -> None:
        super().__init__()
        if not has_plain_head(model):
            raise UsageError(f"the head of {type(model).__name__} is more than a matrix: it cannot think")
        cognate = isinstance(model, CognateForCausalLM)
        if not cognate and not getattr(model, "_supports_attention_backend", False):
            raise UsageError(f"the attention of {type(model).__name__} cannot be replaced: it cannot think in parallel")
        self.model, self.config = model, model.config
        self.attention = None if cognate else register_with_transformers()
        self.start_id, self.end_id, self.silent = start_id, end_id, silent
        self.scale: Tensor
        self.register_buffer("scale", RELATIVE_STEP * first.square().mean().sqrt().clamp_min(1e-6).reshape(()))
        self.start, self.end, self.pause = (nn.Parameter(first.detach() / self.scale) for _ in range(3))
        width = int(model.config.hidden_size)
        self.mixer = MixingHead(width, min(width, 512)).to(first)
        self.average: Any = None

    @staticmethod
    def of(model: Any, tokenizer: Any) -> ThinkingModel:
        """The model with new heads, which change nothing yet. Raises UsageError for one that cannot think."""
        vocabulary, rows = tokenizer.get_vocab(), model.get_input_embeddings().weight
        start, end = vocabulary.get(START, len(rows)), vocabulary.get(END, len(rows) + 1)
        first = rows[tokenizer(FIRST, add_special_tokens=False)["input_ids"]].detach().mean(0)
        silent = {start, end, *tokenizer.all_special_ids}
        return ThinkingModel(model, start, end, first, tuple(sorted(id for id in silent if id < len(rows))))

    def heads(self) -> dict[str, Tensor]:
        """What is beside the model, for its file."""
        names = ("scale", "start", "end", "pause", "mixer.")
        return {name: value for name, value in self.state_dict().items() if name.startswith(names)}

    def get_output_embeddings(self) -> Any:
        return self.model.get_output_embeddings()

    def forward(self, input_ids: Tensor) -> Tensor:
        """The states of a text without thoughts, BTD."""
        return self.read(input_ids)[0]

    # ------------------------------------------------------------------------------------------------ reading

    def vector(self, name: str) -> Tensor:
        """The embedding of `start`, `end` or `pause`."""
        embedding: Tensor = getattr(self, name) * self.scale
        return embedding

    def embed(self, ids: Tensor) -> Tensor:
        """The embeddings of tokens, with our own for start and end."""
        rows = self.model.get_input_embeddings()
        embedded: Tensor = rows(ids.clamp(max=rows.weight.shape[0] - 1))
        for number, name in ((self.start_id, "start"), (self.end_id, "end")):
            embedded = torch.where((ids == number)[..., None], self.vector(name).to(embedded), embedded)
        return embedded

    def read(self, ids: Tensor) -> tuple[Tensor, Aside]:
        """The states of a text BTD, and what thoughts after it need."""
        aside = Aside()
        return self._states(self.embed(ids), aside), aside

    def think(self, aside: Aside, embedded: Tensor, first: int = 0) -> Tensor:
        """The states of tokens `first` … of every thought, from their embeddings: [B, P, L, *] -> [B, P, L, D]."""
        positions = aside.position_ids(first, embedded.shape[2])
        return self._states(embedded.flatten(1, 2), aside, positions).unflatten(1, embedded.shape[1:3])

    def _states(self, embedded: Tensor, aside: Aside, positions: Tensor | None = None) -> Tensor:
        with self._our_attention():
            out = self.model.base_model(inputs_embeds=embedded, position_ids=positions, aside=aside, use_cache=False)
        states: Tensor = out.last_hidden_state
        return states

    @contextmanager
    def _our_attention(self) -> Iterator[None]:
        before = self.config._attn_implementation
        if self.attention is not None:
            self.config._attn_implementation = self.attention
        try:
            yield
        finally:
            self.config._attn_implementation = before

    # ------------------------------------------------------------------------------------------------ thoughts

    @torch.no_grad()
    def sample(self, aside: Aside, positions: Tensor, count: int, temperature: float = 1.0) -> Tensor:
        """Thoughts of `count` tokens after the positions, [B, P, J]; with temperature 0 the likeliest tokens."""
        aside, thoughts = aside.after(positions), []
        embedded = self.vector("start").expand(*positions.shape, 1, -1)
        for step in range(count):
            logits = self.logits(self.think(aside, embedded, step)[:, :, -1])
            thoughts.append(draw(self.quiet(logits), temperature))
            embedded = self.embed(thoughts[-1])[:, :, None]
        return torch.stack(thoughts, dim=-1)

    def follow(self, aside: Aside, positions: Tensor, thoughts: Tensor, ahead: Tensor) -> tuple[Tensor, Tensor]:
        """Reads thoughts (as embeddings [B, P, J, *]) and the tokens that follow each, [B, P, n - 1], as they are.

        Returns the states that predict the tokens of the thought, [B, P, J, D], and those that predict the n tokens
        after it, [B, P, n, D].
        """
        begin, finish = (self.vector(name).to(thoughts).expand(*positions.shape, 1, -1) for name in ("start", "end"))
        whole = torch.cat([begin, thoughts, finish, self.embed(ahead)], dim=2)
        states = self.think(aside.after(positions), whole)
        return states[:, :, : thoughts.shape[2]], states[:, :, thoughts.shape[2] + 1 :]

    def mix(self, base: Tensor, thought: Tensor) -> tuple[Tensor, Tensor]:
        """The mixed state, and the weight of the thought."""
        weight = self.mixer(base, thought)
        return (1 - weight) * base + weight * thought, weight

    # ------------------------------------------------------------------------------------------------ the head

    def logits(self, states: Tensor) -> Tensor:
        if isinstance(self.model, CognateForCausalLM):
            states = self.model.head_down(states)
        logits: Tensor = self.get_output_embeddings()(states)
        return logits

    def quiet(self, logits: Tensor) -> Tensor:
        """The logits of a thought's tokens: special ones do not occur."""
        return logits.index_fill(-1, torch.tensor(self.silent, dtype=torch.long, device=logits.device), -torch.inf)

    def log_probs(self, states: Tensor, tokens: Tensor, temperature: float | None = None) -> Tensor:
        """The log-probability of each token given the state before it, [...]; with a temperature, as in a thought.

        The logits are never held for all of them, and are computed again in the backward pass.
        """

        def of(states: Tensor, tokens: Tensor) -> Tensor:
            logits = self.logits(states)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            if temperature is not None:
                logits = self.quiet(logits) / temperature
            return -nn.functional.cross_entropy(logits, tokens, reduction="none")

        flat, wanted = states.reshape(-1, states.shape[-1]), tokens.reshape(-1)
        parts = []
        for one, two in zip(flat.split(ROWS[flat.device.type]), wanted.split(ROWS[flat.device.type]), strict=True):
            parts.append(checkpoint(of, one, two, use_reentrant=False) if torch.is_grad_enabled() else of(one, two))
        return torch.cat(parts).view(tokens.shape)

    # ------------------------------------------------------------------------------------------------ its average

    def keep_average(self) -> None:
        """Begins a moving average of the model's weights, kept as buffers: they do not learn, and are saved."""
        self.average = copy.deepcopy(self.model)
        for module in self.average.modules():
            for name, weight in list(module._parameters.items()):
                if weight is not None:
                    delattr(module, name)
                    module.register_buffer(name, weight.detach().clone())

    @torch.no_grad()
    def update_average(self, decay: float) -> None:
        ours, weights = dict(self.model.named_parameters(remove_duplicate=False)), self.average.named_buffers()
        for name, mean in weights:
            if name in ours:
                mean.lerp_(ours[name].to(mean), 1 - decay)

    @torch.no_grad()
    def average_log_probs(self, ids: Tensor, tokens: Tensor) -> Tensor:
        """The log-probability of each token BT by the average, without thoughts."""
        other = copy.copy(self)
        other._modules = {**self._modules, "model": self.average}
        return other.log_probs(other.read(ids)[0], tokens)


def draw(logits: Tensor, temperature: float) -> Tensor:
    """A token of each distribution [..., V] (by the Gumbel-max trick), or the likeliest at temperature 0."""
    if temperature == 0:
        return logits.argmax(-1)
    noise = torch.empty_like(logits, dtype=torch.float32).exponential_().log()
    return (logits.float() / temperature - noise).argmax(-1)
