"""A packed model as one compiled function: a single call goes through all layers.

In transformers a token costs about ten Python calls per layer, for a small model far more than its
arithmetic. The compiled model does the same computation (a test compares its logits with the
model's own) for Llama-shaped models and for Cognate with one loop, on one core.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agent_forge import native
from agent_forge.errors import UsageError
from agent_forge.inference.packed.modules import PackedHead, PackedTable
from agent_forge.inference.packed.products import CMatrix, describe
from agent_forge.inference.packed.trits import DIGITS, KINDS

SOURCE = Path(__file__).with_name("decoder.c")
TOGETHER = 32  # tokens that go through a layer at once
SCRATCH = 7  # as in decoder.c
WIDEST_HEAD, LANES = 256, 16  # as in attention.c: a history holds whole blocks of 16 tokens
FLOATS = len(KINDS)
Angles = Callable[[int], tuple[Tensor, Tensor]]  # length -> cosines and sines [length, head width / 2]
FIXED_ANGLES = ("default", "linear", "llama3", "yarn")  # rotary positions whose angles do not depend on the length


class CLayer(ctypes.Structure):
    """`Layer` of decoder.c."""

    _fields_ = (
        ("norm_in", ctypes.c_void_p),
        ("norm_mid", ctypes.c_void_p),
        *((name, CMatrix) for name in ("q", "k", "v", "o", "gate", "up", "down")),
        *((name, CMatrix) for name in ("memory_qkv", "memory_rates", "memory_out")),
        *((name, ctypes.c_void_p) for name in ("attention_gain", "memory_gain")),
        ("memory", ctypes.c_int64),
    )


class CHistory(ctypes.Structure):
    """`History` of decoder.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("keys", "values", "state")),
        *((name, ctypes.c_int64) for name in ("length", "read")),
    )


class CModel(ctypes.Structure):
    """`Model` of decoder.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("layers", "width", "heads", "groups", "head_width", "window")),
        *((name, ctypes.c_int64) for name in ("memory_heads", "memory_width", "most_tokens")),
        *((name, ctypes.c_int64) for name in ("qk_norm", "norm_embedding")),
        *((name, ctypes.c_float) for name in ("eps", "scale")),
        *((name, ctypes.c_void_p) for name in ("cosines", "sines", "weights")),
        ("reach", ctypes.c_int64),
        ("norm_out", ctypes.c_void_p),
        *((name, CMatrix) for name in ("table", "embed_up", "head_down", "head")),
        ("layer", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("widest", ctypes.c_int64),
        ("numbers", ctypes.c_void_p),
        ("numbers_size", ctypes.c_int64),
    )


@cache
def library() -> Any:
    """The compiled decoder, or None where it cannot be built."""
    decoder = native.load(SOURCE, "-fopenmp-simd")
    if decoder is not None:
        i64, pointer = ctypes.c_int64, ctypes.c_void_p
        decoder.decoder_read.argtypes = (pointer, pointer, i64, i64, pointer, i64, pointer)
    return decoder


class CompiledModel:
    """The weights of a model as C sees them. Raises UsageError for a model it cannot run (see `why_not`)."""

    def __init__(self, model: Any) -> None:
        reason = why_not(model)
        if reason is not None:
            raise UsageError(f"the compiled decoder does not run this model: {reason}", fix="Use model.generate()")
        self.vocabulary: int = model.config.vocab_size
        self.memories = 0
        self._alive: list[Any] = []  # everything that C points to
        self._positions: list[Any] = []  # cosines, sines and weights of attention, of the longest sequence so far
        self._angles = _llama_angles(model) if model.config.model_type == "llama" else _cognate_angles(model)
        gather_weights(model)
        self.shape = _llama(self, model) if model.config.model_type == "llama" else _cognate(self, model)
        self._allocate()
        self._library = library()

    def reach(self, length: int) -> None:
        """Prepares for sequences of up to `length` tokens."""
        if length > self.shape.reach:
            length = max(length, self.shape.reach * 2)
            cosines, sines = (part.float().contiguous() for part in self._angles(length))
            self._positions = [cosines, sines, np.empty(length, dtype=np.float32)]
            self.shape.cosines, self.shape.sines = cosines.data_ptr(), sines.data_ptr()
            self.shape.weights, self.shape.reach = self._positions[2].ctypes.data, length

    def read(self, rows: Any, ids: Any, logits: Any, each: int) -> None:
        """Rows of CHistory read ids [rows, tokens]; the logits after the last `each` tokens of each
        go to `logits`."""
        arguments = (*ids.shape, ids.ctypes.data, each, logits.ctypes.data)
        if self._library.decoder_read(ctypes.byref(self.shape), ctypes.byref(rows), *arguments):
            raise UsageError(f"a token is not in 0..{self.vocabulary - 1}", where="CompiledModel.read")

    def keep(self, array: Any) -> int:
        """The address of an array or tensor, which is kept alive as long as the model."""
        self._alive.append(array)
        if isinstance(array, ctypes.Array):
            return ctypes.addressof(array)
        return int(array.data_ptr() if isinstance(array, Tensor) else array.ctypes.data)

    def floats(self, tensor: Tensor) -> int:
        return self.keep(tensor.detach().float().contiguous())

    def matrix(self, module: Any) -> CMatrix:
        """A linear layer or a table, as C sees it."""
        if isinstance(module, PackedHead):
            return self._packed(module.table, module.bias)
        if isinstance(module, PackedTable):
            return self._packed(module, getattr(module, "bias", None))
        rows, columns = module.weight.shape
        bias = getattr(module, "bias", None)
        at = None if bias is None else self.floats(bias)
        return CMatrix(FLOATS, 0, rows, columns, columns, self.floats(module.weight), None, at)

    def _packed(self, table: PackedTable, bias: Tensor | None) -> CMatrix:
        floats = None if bias is None else bias.detach().float().contiguous()
        self._alive += [table.packed, table.scales, floats]
        return describe(table.matrix, floats)

    def _allocate(self) -> None:
        """Working memory: the widest vector of any layer, and the longest line of quantised activations."""
        model = self.shape
        layers = ctypes.cast(model.layer, ctypes.POINTER(CLayer))
        matrices = [model.table, model.embed_up, model.head_down]
        for i in range(model.layers):
            matrices += [getattr(layers[i], field[0]) for field in CLayer._fields_ if field[1] is CMatrix]
        widest = max(*(m.rows for m in matrices[1:]), *(m.columns for m in matrices), model.width)
        line = max(_line(m) for m in (*matrices, model.head))
        model.most_tokens, model.widest = TOGETHER, widest
        model.scratch = self.keep(np.zeros(SCRATCH * TOGETHER * widest, dtype=np.float32))
        model.numbers_size = TOGETHER * line
        model.numbers = self.keep(np.zeros(TOGETHER * line, dtype=np.int8))


def _line(matrix: CMatrix) -> int:
    """Bytes that the quantised activations of one token take for this matrix."""
    if matrix.rows == 0 or matrix.kind == FLOATS:
        return 8
    chunk = 4 * list(DIGITS.values())[matrix.kind]
    groups = -(-matrix.columns // matrix.group)
    return groups * -(-matrix.group // chunk) * chunk + 4 * groups + 8


def why_not(model: Any) -> str | None:
    """Why the decoder cannot run this model, or None if it can."""
    config = model.config
    if library() is None:
        return "there is no C compiler here"
    if config.model_type not in ("llama", "cognate"):
        return f"its architecture is {config.model_type}, not llama or cognate"
    if config.model_type == "llama" and config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in FIXED_ANGLES:
        return f"its rotary positions are of type {rope}"
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if width > WIDEST_HEAD or width % 4:
        return f"its heads are {width} wide"
    if config.model_type == "cognate" and (config.slots != config.num_hidden_layers or config.memory_momentum):
        return "it has loops or a memory with momentum"
    for name, module in model.named_modules():
        if getattr(module, "activations", "int8") != "int8" or getattr(module, "sub_norm", False):
            return f"{name} does not round its input, or has a sub-norm"
        if isinstance(module, nn.Linear | nn.Embedding | PackedTable):
            weight = module.packed if isinstance(module, PackedTable) else module.weight
            if weight.device.type != "cpu":
                return "its weights are not in main memory"
    return None


def gather_weights(model: Any) -> None:
    """Moves the packed bytes into one piece of memory on huge pages (numpy requests them), which is
    read faster."""
    tables = [module for module in model.modules() if isinstance(module, PackedTable)]
    total = sum(-(-table.packed.numel() // 64) * 64 for table in tables)
    memory = np.empty(total + 64, dtype=np.uint8)
    at = -memory.ctypes.data % 64
    for table in tables:
        size = table.packed.numel()
        place = torch.from_numpy(memory[at : at + size]).view(table.packed.shape)
        place.copy_(table.packed)
        table.packed = place
        at += -(-size // 64) * 64


def _shape(config: Any) -> CModel:
    shape = CModel()
    shape.layers, shape.width, shape.eps = config.num_hidden_layers, config.hidden_size, config.rms_norm_eps
    shape.heads, shape.groups = config.num_attention_heads, config.num_key_value_heads
    shape.head_width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return shape


def _llama_angles(whole: Any) -> Angles:
    rotary = whole.model.rotary_emb

    def angles(length: int) -> tuple[Tensor, Tensor]:
        cosines, sines = rotary(torch.zeros(1, 1), torch.arange(length)[None])  # [1, T, head width], both halves alike
        half = cosines.shape[-1] // 2
        return cosines[0, :, :half], sines[0, :, :half]

    return angles


def _llama(compiled: CompiledModel, whole: Any) -> CModel:
    shape, inner = _shape(whole.config), whole.model
    shape.scale = shape.head_width**-0.5
    shape.norm_out = compiled.floats(inner.norm.weight)
    shape.table, shape.head = compiled.matrix(inner.embed_tokens), compiled.matrix(whole.lm_head)
    layers = (CLayer * shape.layers)()
    for layer, block in zip(layers, inner.layers, strict=True):
        layer.norm_in = compiled.floats(block.input_layernorm.weight)
        layer.norm_mid = compiled.floats(block.post_attention_layernorm.weight)
        layer.memory = -1
        for part in ("q", "k", "v", "o"):
            setattr(layer, part, compiled.matrix(getattr(block.self_attn, f"{part}_proj")))
        for part in ("gate", "up", "down"):
            setattr(layer, part, compiled.matrix(getattr(block.mlp, f"{part}_proj")))
    shape.layer = compiled.keep(layers)
    return shape


def _cognate_angles(whole: Any) -> Angles:
    from agent_forge.forge.models.attention import rotary_angles

    config = whole.config

    def angles(length: int) -> tuple[Tensor, Tensor]:
        cosines, sines = rotary_angles(torch.arange(length)[None], config.head_dim, config.rope_theta)
        return cosines[0, 0], sines[0, 0]

    return angles


def _cognate(compiled: CompiledModel, whole: Any) -> CModel:
    config, inner = whole.config, whole.model
    shape = _shape(config)
    shape.scale, shape.qk_norm, shape.norm_embedding = config.softmax_scale, config.qk_norm, 1
    shape.window = config.sliding_window
    shape.memory_heads, shape.memory_width = config.memory_heads, config.memory_head_dim
    shape.table, shape.head = compiled.matrix(inner.embed_tokens), compiled.matrix(whole.lm_head)
    if not isinstance(inner.embed_up, nn.Identity):
        shape.embed_up, shape.head_down = compiled.matrix(inner.embed_up), compiled.matrix(whole.head_down)
    layers = (CLayer * shape.layers)()
    for layer, block in zip(layers, inner.layers, strict=True):
        layer.q, layer.o = compiled.matrix(block.attention.qkv_proj), compiled.matrix(block.o_proj)
        layer.up, layer.down = compiled.matrix(block.up_proj), compiled.matrix(block.down_proj)
        layer.memory = -1
        if block.memory is not None:
            _memory(compiled, layer, block.memory)
    shape.layer = compiled.keep(layers)
    return shape


def _memory(compiled: CompiledModel, layer: Any, memory: Any) -> None:
    layer.memory, compiled.memories = compiled.memories, compiled.memories + 1
    layer.memory_qkv, layer.memory_out = compiled.matrix(memory.qkv_proj), compiled.matrix(memory.out_proj)
    layer.memory_rates = compiled.matrix(memory.rates)
    layer.attention_gain = compiled.floats(memory.attention_gain)
    layer.memory_gain = compiled.floats(memory.memory_gain)
