"""The parts of a decoder as numpy arrays: what the compiled and the plain path both run.

A network is made from arrays by name and a config.json, whether they come from a file or are views of torch tensors.
Two architectures are known: Llama, and Cognate with one loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agent_forge.errors import CheckpointError, UsageError
from agent_forge.inference.packed.layout import ROWS, PackedShape
from agent_forge.inference.packed.rotary import FIXED_ANGLES, angles, rope_of

METHOD, FORMAT = "agent_forge_packed", 1
SCALES = {"float32": np.float32, "float16": np.float16}
FIT = "config.json does not fit the weights"


@dataclass(frozen=True, eq=False)
class WeightMatrix:
    """A matrix [rows, columns]: packed bytes with scales [groups, rows rounded up to 16], or float32."""

    rows: int
    columns: int
    values: Any
    layout: PackedShape | None = None
    scales: Any = None
    bias: Any = None
    rounds: bool = False  # whether its input is rounded to int8
    sub_norm: bool = False


@dataclass(frozen=True, eq=False)
class DecoderBlock:
    """One layer. Without `k` and `v`, `q` holds all three; without `gate` the MLP is relu squared. Norms without gain
    are None."""

    q: WeightMatrix
    o: WeightMatrix
    up: WeightMatrix
    down: WeightMatrix
    k: WeightMatrix | None = None
    v: WeightMatrix | None = None
    gate: WeightMatrix | None = None
    memory_qkv: WeightMatrix | None = None
    memory_rates: WeightMatrix | None = None
    memory_out: WeightMatrix | None = None
    norm_in: Any = None
    norm_mid: Any = None
    attention_gain: Any = None
    memory_gain: Any = None


@dataclass(frozen=True, eq=False)
class Network:
    """A decoder: its sizes, and its weights."""

    width: int
    heads: int
    groups: int
    head_width: int
    eps: float
    scale: float  # of the scores of attention
    table: WeightMatrix
    head: WeightMatrix
    blocks: Sequence[DecoderBlock]
    angles: Callable[[int], tuple[Any, Any]]  # length -> cosines and sines, [length, head width / 2]
    norm_out: Any = None
    embed_up: WeightMatrix | None = None
    head_down: WeightMatrix | None = None
    window: int = 0  # tokens that a token sees; 0: all
    qk_norm: bool = False
    norm_embedding: bool = False
    memory_heads: int = 0
    memory_width: int = 0
    memories: int = field(init=False, default=0)  # layers with a neural memory

    def __post_init__(self) -> None:
        object.__setattr__(self, "memories", sum(block.memory_qkv is not None for block in self.blocks))
        _check(self)

    @property
    def matrices(self) -> list[WeightMatrix]:
        """All of them; a shared table once."""
        parts = [getattr(block, name) for block in self.blocks for name in DecoderBlock.__dataclass_fields__]
        whole = [self.table, self.embed_up, self.head_down, self.head, *parts]
        return list({id(part.values): part for part in whole if isinstance(part, WeightMatrix)}.values())

    @property
    def vectors(self) -> list[Any]:
        """Gains of norms, and biases."""
        parts = [getattr(block, name) for block in self.blocks for name in DecoderBlock.__dataclass_fields__]
        return [part for part in (self.norm_out, *parts) if isinstance(part, np.ndarray)]


class NamedWeights:
    """The arrays of a model by name, with the layouts in its `quantization_config`."""

    def __init__(self, arrays: Mapping[str, Any], packing: Mapping[str, Any]) -> None:
        self._arrays = arrays
        self._packing = packing
        self._entries: dict[str, Mapping[str, Any]] = {
            **packing.get("matrices", {}),
            **packing.get("embeddings", {}),
        }

    def __contains__(self, name: str) -> bool:
        return name in self._entries or name in self._packing.get("heads", {}) or f"{name}.weight" in self._arrays

    def vector(self, name: str) -> Any:
        return floats(self._arrays[name])

    def matrix(self, name: str, *, head: bool = False) -> WeightMatrix:
        source = self._packing.get("heads", {}).get(name, name)
        bias = self._arrays.get(f"{name}.bias")
        bias = None if bias is None else floats(bias)
        entry = self._entries.get(source)
        if entry is None:
            weight = floats(self._arrays[f"{source}.weight"])
            rows, columns = weight.shape
            return WeightMatrix(rows, columns, weight, bias=bias)
        rounds = self._packing.get("head_activations" if head else "activations", "int8") == "int8"
        shape = PackedShape(entry["kind"], entry["rows"], entry["columns"], entry["group"])
        scales = self._arrays[f"{source}.scales"].view(SCALES[entry["scales"]])
        packed, sub_norm = self._arrays[f"{source}.packed"], bool(entry.get("sub_norm"))
        return WeightMatrix(shape.rows, shape.columns, packed, shape, scales, bias, rounds, sub_norm)


def floats(array: Any) -> Any:
    return np.ascontiguousarray(array, dtype=np.float32)


def why_no_network(config: Mapping[str, Any]) -> str | None:
    """Why a model with this config.json is not one of those known here, or None."""
    kind = config.get("model_type")
    if kind not in ("llama", "cognate"):
        return f"its architecture is {kind}, not llama or cognate"
    if kind == "llama" and config.get("hidden_act", "silu") != "silu":
        return f"its activation is {config['hidden_act']}"
    if (rope := rope_of(config)["rope_type"]) not in FIXED_ANGLES:
        return f"its rotary positions are of type {rope}"
    loops = [
        config.get(name, default) != default for name, default in (("loops", 1), ("cycles", 1), ("latent_steps", 0))
    ]
    if kind == "cognate" and (any(loops) or config.get("memory_momentum")):
        return "it has loops or a memory with momentum"
    return None


def network_of(config: Mapping[str, Any], arrays: Mapping[str, Any]) -> Network:
    """The network of a model that `why_no_network` does not refuse. Raises CheckpointError where the arrays are not
    those that config.json describes."""
    try:
        weights = NamedWeights(arrays, config.get("quantization_config") or {})
        network = (_llama if config["model_type"] == "llama" else _cognate)(config, weights)
        network.angles(1)  # settings of the rotary positions that are missing show here
        return network
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, UsageError) as error:
        raise CheckpointError(f"{FIT}: {error!r}", fix="The folder is damaged") from error


def _llama(config: Mapping[str, Any], weights: NamedWeights) -> Network:
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    rope = rope_of(config)

    def block(number: int) -> DecoderBlock:
        at = f"model.layers.{number}."
        parts = {part: weights.matrix(f"{at}self_attn.{part}_proj") for part in ("q", "k", "v", "o")}
        parts |= {part: weights.matrix(f"{at}mlp.{part}_proj") for part in ("gate", "up", "down")}
        norms = (weights.vector(f"{at}{name}.weight") for name in ("input_layernorm", "post_attention_layernorm"))
        return DecoderBlock(**parts, norm_in=next(norms), norm_mid=next(norms))

    table = weights.matrix("model.embed_tokens")
    return Network(
        width=config["hidden_size"],
        heads=heads,
        groups=config.get("num_key_value_heads") or heads,
        head_width=width,
        eps=config["rms_norm_eps"],
        scale=width**-0.5,
        table=table,
        head=weights.matrix("lm_head", head=True) if "lm_head" in weights else table,
        blocks=[block(number) for number in range(config["num_hidden_layers"])],
        angles=lambda length: angles(rope, width, length),
        norm_out=weights.vector("model.norm.weight"),
    )


def softmax_scale(attention_scale: float | None, qk_norm: bool, head_width: int) -> float:
    """Cognate's factor on q.k. With QK-norm |q.k| <= head width, and the usual 1/sqrt(head width) leaves attention too
    flat: nanochat settled on 1.44/sqrt(head width)."""
    return attention_scale if attention_scale is not None else (1.44 if qk_norm else 1.0) * head_width**-0.5


def _cognate(config: Mapping[str, Any], weights: NamedWeights) -> Network:
    heads = config["num_attention_heads"]
    width = config["hidden_size"] // heads
    rope = rope_of({"rope_theta": config["rope_theta"]})

    def block(number: int) -> DecoderBlock:
        at = f"model.layers.{number}."
        names = {"q": "attention.qkv_proj", "o": "o_proj", "up": "up_proj", "down": "down_proj"}
        gains: dict[str, Any] = {}
        if number in config["memory_layers"]:
            names |= {f"memory_{part}": f"memory.{part}_proj" for part in ("qkv", "out")} | {
                "memory_rates": "memory.rates"
            }
            gains = {f"{part}_gain": weights.vector(f"{at}memory.{part}_gain") for part in ("attention", "memory")}
        return DecoderBlock(**{part: weights.matrix(at + name) for part, name in names.items()}, **gains)

    table, ranked = weights.matrix("model.embed_tokens"), "model.embed_up" in weights
    return Network(
        width=config["hidden_size"],
        heads=heads,
        groups=config["num_key_value_heads"],
        head_width=width,
        eps=config["rms_norm_eps"],
        scale=softmax_scale(config.get("attention_scale"), config["qk_norm"], width),
        table=table,
        head=weights.matrix("lm_head", head=True) if "lm_head" in weights else table,
        blocks=[block(number) for number in range(config["num_hidden_layers"])],
        angles=lambda length: angles(rope, width, length),
        embed_up=weights.matrix("model.embed_up") if ranked else None,
        head_down=weights.matrix("head_down") if ranked else None,
        window=config["sliding_window"],
        qk_norm=config["qk_norm"],
        norm_embedding=True,
        memory_heads=config["memory_heads"],
        memory_width=config["memory_head_dim"],
    )


def _check(network: Network) -> None:
    """Raises CheckpointError unless all sizes agree: C trusts them."""
    width, inner = network.width, network.heads * network.head_width
    shared = network.groups * network.head_width
    memory = network.memory_heads * network.memory_width
    rank = network.table.columns if network.embed_up is not None else width
    expected = [
        (network.table, None, rank), (network.embed_up, width, rank), (network.head_down, rank, width),
        (network.head, None, rank), (network.norm_out, width, None),
    ]  # fmt: skip
    for block in network.blocks:
        hidden = block.up.rows
        whole = inner if block.k is not None else inner + 2 * shared
        expected += [
            (block.q, whole, width), (block.k, shared, width), (block.v, shared, width), (block.o, width, inner),
            (block.gate, hidden, width), (block.up, hidden, width), (block.down, width, hidden),
            (block.memory_qkv, 3 * memory, width), (block.memory_rates, 2 * network.memory_heads, width),
            (block.memory_out, width, memory),
        ]  # fmt: skip
        gains = (block.norm_in, block.norm_mid, block.attention_gain, block.memory_gain)
        expected += [(gain, width, None) for gain in gains]
        if (block.k is None) != (block.v is None) or (block.memory_qkv is not None and inner != width):
            raise CheckpointError(FIT, fix="The folder is damaged")
    sizes = (width, network.heads, network.groups, network.head_width // 2)
    if min(sizes) < 1 or network.head_width % 2 or network.heads % network.groups or network.window < 0:
        raise CheckpointError(f"{FIT}: {network.heads} heads, {network.groups} groups, {network.head_width} wide")
    for part, rows, columns in expected:
        _check_part(part, rows, columns)


def _check_part(part: Any, rows: int | None, columns: int | None) -> None:
    if part is None:
        return
    shape = (part.rows, part.columns) if isinstance(part, WeightMatrix) else (*part.shape, None)
    fits = len(shape) == 2 and shape[0] == (rows if rows is not None else shape[0]) and shape[1] == columns
    if isinstance(part, WeightMatrix):
        fits = fits and _fits(part)
    if not fits:
        raise CheckpointError(f"{FIT}: a matrix of {shape}, expected {(rows, columns)}", fix="The folder is damaged")


def _fits(matrix: WeightMatrix) -> bool:
    """Whether the arrays have the sizes that the layout needs."""
    if matrix.bias is not None and matrix.bias.shape != (matrix.rows,):
        return False
    layout = matrix.layout
    if layout is None:
        return tuple(matrix.values.shape) == (matrix.rows, matrix.columns)
    scales = (layout.groups, layout.tiles * ROWS)
    return (
        matrix.values.dtype == np.uint8
        and tuple(matrix.values.shape) == layout.packed
        and tuple(matrix.scales.shape) == scales
    )
