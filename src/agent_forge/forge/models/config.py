"""The configuration of Cognate. The defaults are the control: one loop, no memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PretrainedConfig

from agent_forge.errors import ConfigError
from agent_forge.inference.packed.network import softmax_scale


class CognateConfig(PretrainedConfig):
    """A causal language model of about 25 million parameters.

    The axes, and how to switch each of them off:

    | axis | fields | off |
    |---|---|---|
    | attention | `sliding_window`, `num_key_value_heads`, `qk_norm` | window >= length; as many as heads; False |
    | embedding | `embedding_rank`, `tie_word_embeddings` | rank = `hidden_size`; False |
    | memory (Titans, as a gate) | `memory_layers`, `memory_heads`, `memory_momentum` | `memory_layers=()` |
    | recursion (TRM) | `loops`, `latent_steps`, `cycles`, `detach_loops` | `loops=1, latent_steps=0, cycles=1` |
    | halting (ACT) | `halting`, `halt_threshold`, `halt_bias`, `halt_entropy` | `halting=False` or `loops=1` |

    >>> CognateConfig(loops=3, halting=True).slots
    18
    """

    model_type = "cognate"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 (transformers' own form)

    vocab_size: int = 32768
    hidden_size: int = 512
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    intermediate_size: int = 1792
    embedding_rank: int | None = 256  # None: hidden_size
    max_position_embeddings: int = 4096
    sliding_window: int = 1024
    rope_theta: float = 10000.0
    qk_norm: bool = True
    attention_scale: float | None = None  # None: see softmax_scale
    rms_norm_eps: float = 1e-6
    initializer_range: float = 0.02
    memory_layers: Sequence[int] = ()
    memory_heads: int = 4
    memory_head_dim: int = 64
    memory_chunk: int = 64
    memory_momentum: bool = False
    loops: int = 1
    latent_steps: int = 0
    cycles: int = 1
    detach_loops: bool = True
    halting: bool = False
    halt_threshold: float = 0.9
    halt_bias: float = -3.0
    halt_entropy: float = 0.05
    use_cache: bool = True

    def __init__(self, **kwargs: Any) -> None:
        for name in _OWN:
            setattr(self, name, kwargs.pop(name, getattr(type(self), name)))
        if isinstance(self.memory_layers, Sequence):
            self.memory_layers = list(self.memory_layers)
        if self.embedding_rank is None:
            self.embedding_rank = self.hidden_size
        _check(self)
        super().__init__(
            **{"tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, **kwargs}
        )

    @property
    def rank(self) -> int:
        """The width of the embedding."""
        return self.hidden_size if self.embedding_rank is None else self.embedding_rank

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def passes_per_loop(self) -> int:
        """Passes through the layers per loop: (latent refinements + one answer) x cycles."""
        return self.cycles * (self.latent_steps + 1)

    @property
    def slots(self) -> int:
        """Slots of the cache: one per layer and pass."""
        return self.num_hidden_layers * self.passes_per_loop * self.loops

    @property
    def softmax_scale(self) -> float:
        """The factor on q.k."""
        return softmax_scale(self.attention_scale, self.qk_norm, self.head_dim)


_OWN: dict[str, str] = {name: kind for name, kind in CognateConfig.__annotations__.items() if name != "model_type"}
TYPES: dict[str, Any] = {"int": int, "float": (int, float), "bool": bool}
COUNTS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "max_position_embeddings", "memory_heads", "memory_head_dim", "memory_chunk"),
    *("loops", "cycles"),
)


def _check(config: CognateConfig) -> None:
    """Raises ConfigError for what cannot be built, naming the fields and their values."""
    faults = [
        f"{name} is {getattr(config, name)!r}, not {kind.removeprefix('Sequence')}"
        for name, kind in _OWN.items()
        if not _is(getattr(config, name), kind)
    ]
    faults = faults or [f"{name} {getattr(config, name)} is below 1" for name in COUNTS if getattr(config, name) < 1]
    faults = faults or [message for holds, message in _rules(config) if not holds]
    if faults:
        raise ConfigError("; ".join(faults), where="CognateConfig")


def _is(value: Any, kind: str) -> bool:
    """Whether the value has the type of the field's annotation; `True` does not count as a number."""
    if kind.endswith(" | None"):
        return value is None or _is(value, kind.removesuffix(" | None"))
    if kind == "Sequence[int]":
        return isinstance(value, list) and all(_is(item, "int") for item in value)
    return isinstance(value, TYPES[kind]) and isinstance(value, bool) == (kind == "bool")


def _rules(c: CognateConfig) -> list[tuple[bool, str]]:
    heads, groups = c.num_attention_heads, c.num_key_value_heads
    return [
        (c.hidden_size % (2 * heads) == 0, f"hidden_size {c.hidden_size} is not an even multiple of {heads} heads"),
        (heads % groups == 0, f"num_attention_heads {heads} is not a multiple of num_key_value_heads {groups}"),
        (1 <= c.rank <= c.hidden_size, f"embedding_rank {c.rank} is not in 1..{c.hidden_size}"),
        (c.sliding_window >= 2, f"sliding_window {c.sliding_window} is below 2"),
        (c.rope_theta > 0, f"rope_theta {c.rope_theta} is not above 0"),
        (c.latent_steps >= 0, f"latent_steps {c.latent_steps} is negative"),
        (0.0 < c.halt_threshold <= 1.0, f"halt_threshold {c.halt_threshold} is not in (0, 1]"),
        (
            all(0 <= layer < c.num_hidden_layers for layer in c.memory_layers),
            f"memory_layers {c.memory_layers} are not all in 0..{c.num_hidden_layers - 1}",
        ),
    ]
