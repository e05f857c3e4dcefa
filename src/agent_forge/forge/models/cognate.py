"""Cognate: a small causal language model, as a Hugging Face architecture.

    embedding (factorised, tied)  ->  [ attention x memory gate -> o_proj ; ReLU^2 MLP ] x layers, looped  ->  head

The parts are in `attention`, `memory`, `recursion` and `halting`; this file puts them together.

Shapes: B batch, T tokens, D width, R embedding rank, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.utils.generic import ModelOutput

from agent_forge.errors import UsageError
from agent_forge.forge.models.aside import Aside
from agent_forge.forge.models.attention import SlidingWindowAttention, attention_mask, rotary_angles
from agent_forge.forge.models.cache import CognateCache
from agent_forge.forge.models.config import CognateConfig
from agent_forge.forge.models.cross_entropy import IGNORE, chunked_cross_entropy
from agent_forge.forge.models.halting import HaltingHead, entropy, halting_distribution
from agent_forge.forge.models.memory import NeuralMemory, Writes
from agent_forge.forge.models.norm import rms_norm
from agent_forge.forge.models.recursion import Reading, Refined, refine, refine_adaptively


class CognateBlock(nn.Module):
    """Attention, gated by the memory in layers that have one, then the MLP; each with its residual."""

    def __init__(self, config: CognateConfig, layer: int) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        self.attention = SlidingWindowAttention(config)
        self.memory = NeuralMemory(config) if layer in config.memory_layers else None
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.o_proj.starts_at_zero = self.down_proj.starts_at_zero = True  # type: ignore[assignment]

    def forward(self, h_BTD: Tensor, reading: Reading, slot: int) -> Tensor:
        x = rms_norm(h_BTD, self.eps)
        y = self.attention(x, reading, slot)
        if self.memory is not None:
            y = self.memory(x, y, reading, slot)
        h_BTD = h_BTD + self.o_proj(y)
        return h_BTD + self.down_proj(self.up_proj(rms_norm(h_BTD, self.eps)).relu().square())


class CognatePreTrainedModel(PreTrainedModel):
    config: CognateConfig
    config_class = CognateConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["CognateBlock"]  # noqa: RUF012 (transformers' own form)
    _supports_sdpa = True
    _is_stateful = True  # the memory cannot be rolled back, so no assisted decoding

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initial weights; transformers calls this for every module with parameters of its own.

        | weight | start |
        |---|---|
        | embedding | normal, `initializer_range` (the input is normalised after it) |
        | matrices | uniform with standard deviation 1/sqrt(inputs) |
        | o_proj, down_proj | zero: every block starts as the identity |
        | memory rates | weights zero; theta 1/2, alpha 0.02, eta 1/2 |
        | gains | one |
        | halting | weights zero, `halt_bias` |
        """
        if isinstance(module, nn.Embedding):
            module.weight.normal_(std=self.config.initializer_range)
        elif isinstance(module, NeuralMemory):
            module.rates.weight.zero_()
            module.rates.bias.zero_()
            module.rates.bias[module.heads : 2 * module.heads].fill_(-4.0)  # alpha = sigmoid(-4) = 0.02
            module.attention_gain.fill_(1.0)
            module.memory_gain.fill_(1.0)
        elif isinstance(module, HaltingHead):
            module.weight.zero_()
            module.bias.fill_(self.config.halt_bias)
        elif getattr(module, "starts_at_zero", False):
            module.weight.zero_()  # type: ignore[operator]
        elif isinstance(module, nn.Linear):
            bound = (3 / module.in_features) ** 0.5  # uniform(-b, b) has the standard deviation b / sqrt(3)
            module.weight.uniform_(-bound, bound)


@dataclass
class CognateModelOutput(ModelOutput):
    """`answers` holds the normalised state after each loop; `last_hidden_state` is the one to predict from. All BTD.

    `hidden_states` are the input of the layers, then the state after every layer of every pass, the last one replaced
    by `last_hidden_state`. Attention weights are never available: the fast kernels do not return them.
    """

    last_hidden_state: Tensor | None = None
    past_key_values: CognateCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: None = None
    answers: tuple[Tensor, ...] | None = None
    halt_logits: tuple[Tensor, ...] | None = None
    depth: Tensor | None = None


class CognateModel(CognatePreTrainedModel):
    """Tokens in, states out."""

    def __init__(self, config: CognateConfig) -> None:
        super().__init__(config)
        rank, width = config.rank, config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, rank)
        self.embed_up = nn.Linear(rank, width, bias=False) if rank < width else nn.Identity()
        self.layers = nn.ModuleList(CognateBlock(config, layer) for layer in range(config.num_hidden_layers))
        self.halting = HaltingHead(config) if config.halting and config.loops > 1 else None
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def set_input_embeddings(self, value: Any) -> None:
        self.embed_tokens = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: CognateCache | None = None,
        inputs_embeds: Tensor | None = None,
        document_ids: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        aside: Aside | None = None,
        **_: Any,
    ) -> CognateModelOutput:
        """With `aside`, without a cache: reads a text, or thoughts after some positions of one (see `Aside`)."""
        if (input_ids is None) == (inputs_embeds is None):
            raise UsageError("give either input_ids or inputs_embeds", where="CognateModel.forward")
        embedded = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds  # BTR
        cache = self._cache(past_key_values, use_cache, document_ids)
        reading = self._reading(embedded, attention_mask, position_ids, cache, document_ids, aside)
        x = rms_norm(self.embed_up(embedded), self.config.rms_norm_eps)  # BTD
        collect = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        reading.states = [x] if collect else None
        refined = self.refine(x, reading)
        last = refined.answers[-1]
        return CognateModelOutput(
            last_hidden_state=last,
            past_key_values=cache,
            hidden_states=None if reading.states is None else (*reading.states[:-1], last),
            answers=tuple(refined.answers),
            halt_logits=tuple(refined.halt_logits) or None,
            depth=refined.depth,
        )

    def _cache(self, past: Any, use_cache: bool | None, document_ids: Tensor | None) -> CognateCache | None:
        if past is None:
            use_cache = self.config.use_cache if use_cache is None else use_cache
            return CognateCache(self.config) if use_cache and not self.training and document_ids is None else None
        if not isinstance(past, CognateCache):
            fix = "Use CognateCache(config)"
            raise UsageError(f"past_key_values is a {type(past).__name__}", where="CognateModel", fix=fix)
        if document_ids is not None:
            raise UsageError("packed documents cannot be used with a cache", where="CognateModel.forward")
        return past

    def _reading(
        self,
        embedded: Tensor,
        padding: Tensor | None,
        positions: Tensor | None,
        cache: Any,
        documents: Tensor | None,
        aside: Aside | None,
    ) -> Reading:
        """Positions, masks and cache of one forward call, for all layers and passes."""
        length, device, config = embedded.shape[1], embedded.device, self.config
        seen = 0 if cache is None else cache.get_seq_length()
        if padding is not None and bool(padding.all()):
            padding = None
        if positions is None:
            positions = torch.arange(seen, seen + length, device=device)[None]
        cos, sin = rotary_angles(positions, config.head_dim, config.rope_theta, embedded.dtype)
        mask = None
        if aside is None or aside.positions is None:  # thoughts have no mask: their attention knows who sees what
            mask = attention_mask(length, seen, config.sliding_window, device, padding, documents)
        valid = None if padding is None else padding[:, -length:].bool()  # BT
        starts = None
        if documents is not None:  # BT: True at the first token of every document
            first = torch.ones_like(documents[:, :1], dtype=torch.bool)
            starts = torch.cat([first, documents[:, 1:] != documents[:, :-1]], dim=1)
        slots = config.num_hidden_layers * config.passes_per_loop
        return Reading(cos, sin, mask, valid, starts, cache, aside, slots)

    def refine(self, x: Tensor, reading: Reading) -> Refined:
        """Everything expensive (and worth compiling): the layers, looped."""
        if self.halting is None or self.training:
            return refine(self._layers, x, reading, self.config, self.halting)
        refined = refine_adaptively(self._layers, x, reading, self.config, self.halting)
        if reading.cache is not None or reading.aside is not None:
            self._fill_skipped_loops(reading, refined.loops)
        return refined

    def _layers(self, h: Tensor, reading: Reading, number: int) -> Tensor:
        """Pass `number` through all layers, BTD -> BTD."""
        for layer, block in enumerate(self.layers):
            slot = number * len(self.layers) + layer
            if self.gradient_checkpointing and self.training:
                h = self._gradient_checkpointing_func(block.__call__, h, reading, slot)
            else:
                h = block(h, reading, slot)
            if reading.states is not None:
                reading.states.append(h)
        return rms_norm(h, self.config.rms_norm_eps)

    def _fill_skipped_loops(self, reading: Reading, done: int) -> None:
        """If all tokens stop early, their last writes fill the slots of the skipped loops: a later token may go deeper
        and must find them there."""
        cache: Any = reading.aside if reading.cache is None else reading.cache
        written, width = reading.written, reading.slots_per_loop
        assert cache is not None
        assert written is not None
        for slot in range(done * width, self.config.slots):
            source = (done - 1) * width + slot % width
            key, value = written[source, "attention"]
            cache.update(key, value, slot)
            memory = self.layers[slot % len(self.layers)].memory
            if isinstance(memory, NeuralMemory):
                writes = Writes(*written[source, "memory"])
                memory.advance(writes.key, writes, reading, slot)


@dataclass
class CognateOutput(ModelOutput):
    """`loss` is the training objective; `logits` are None while training with labels (they would not fit)."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: CognateCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: None = None
    depth: Tensor | None = None


class CognateForCausalLM(CognatePreTrainedModel, GenerationMixin):
    """Cognate with its head.

    >>> config = CognateConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
    ...                        num_key_value_heads=1, intermediate_size=64, embedding_rank=16, memory_layers=[1],
    ...                        memory_heads=1, memory_head_dim=8)
    >>> model = CognateForCausalLM(config).eval()
    >>> model.generate(torch.tensor([[0, 5, 7]]), max_new_tokens=4, do_sample=False, eos_token_id=None).shape
    torch.Size([1, 7])
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012 (transformers' own form)

    def __init__(self, config: CognateConfig) -> None:
        super().__init__(config)
        rank, width = config.rank, config.hidden_size
        self.model = CognateModel(config)
        self.head_down = nn.Linear(width, rank, bias=False) if rank < width else nn.Identity()
        self.lm_head = nn.Linear(rank, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: Any) -> None:
        self.lm_head = new_embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: CognateCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        shift_labels: Tensor | None = None,
        document_ids: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_hidden_states: bool | None = None,
        **_: Any,
    ) -> CognateOutput:
        """`labels` are the inputs themselves (-100: ignored), `shift_labels` the targets already shifted by one."""
        states = self.model(
            *(input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, document_ids, use_cache),
            output_hidden_states=output_hidden_states,
        )
        if labels is not None:
            shift_labels = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE)
        loss = None if shift_labels is None else self._objective(states, shift_labels)
        logits = None
        if loss is None or not self.training:
            keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.lm_head(self.head_down(states.last_hidden_state[:, keep]))  # BTV
        return CognateOutput(loss, logits, states.past_key_values, states.hidden_states, depth=states.depth)

    def _objective(self, states: CognateModelOutput, targets_BT: Tensor) -> Tensor:
        """The mean over targets of sum_s p(s) CE_s + beta (log S - H(p)); p is uniform without halting, 1 for one loop.

        log S, the entropy of S equally likely loops, is a constant without gradient. It keeps the objective from
        falling below the cross-entropy, so that a log never seems to show more learning than is possible.
        """
        targets = targets_BT.reshape(-1)
        real = targets != IGNORE
        answers = states.answers or ()
        if states.halt_logits is not None:
            shares = halting_distribution([logit.reshape(-1) for logit in states.halt_logits])  # [loops, B * T]
            total = self.config.halt_entropy * ((math.log(len(answers)) - entropy(shares)) * real).sum()
        else:
            shares = torch.full((len(answers), targets.numel()), 1 / len(answers), device=targets.device)
            total = torch.zeros((), device=targets.device)
        for answer, share in zip(answers, shares, strict=True):
            hidden = self.head_down(answer).reshape(targets.numel(), -1)
            total = total + chunked_cross_entropy(hidden, self.lm_head.weight, targets, share)
        return total / real.sum().clamp_min(1)

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: Any, *rest: Any, **named: Any) -> Any:
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = CognateCache(self.config)
        parent: Any = super()
        return parent._prepare_cache_for_generation(generation_config, model_kwargs, *rest, **named)
