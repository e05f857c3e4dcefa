"""A network as one compiled function: a single call goes through all layers.

In transformers a token costs about ten Python calls per layer, for a small model far more than its arithmetic. The
compiled decoder does the same computation (a test compares its logits with the model's own) on one core.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from agent_forge.errors import UsageError
from agent_forge.inference.packed import kernels
from agent_forge.inference.packed.history import History
from agent_forge.inference.packed.kernels import CMatrix
from agent_forge.inference.packed.layout import DIGITS, KINDS
from agent_forge.inference.packed.network import DecoderBlock, Network, WeightMatrix

TOGETHER = 32  # tokens that go through a layer at once
SCRATCH = 7  # as in decoder.c
WIDEST_HEAD = 256  # as in attention.c
FLOATS = len(KINDS)


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


def why_not_compiled(network: Network) -> str | None:
    """Why the compiled decoder cannot run this network, or None if it can."""
    if kernels.decoder() is None:
        return "there is no C compiler here"
    if network.head_width > WIDEST_HEAD or network.head_width % 4:
        return f"its heads are {network.head_width} wide"
    if any(matrix.layout is not None and (matrix.sub_norm or not matrix.rounds) for matrix in network.matrices):
        return "a layer does not round its input, or has a sub-norm"
    return None


class CompiledModel:
    """A network as C sees it: structures that point into its arrays."""

    together = TOGETHER

    def __init__(self, network: Network) -> None:
        self._library = kernels.decoder()
        self._network = network
        self._vocabulary = network.head.rows
        self._alive: list[Any] = []  # what C points to and nobody else holds
        self._positions: list[Any] = []  # cosines, sines and weights of attention, of the longest sequence so far
        self._lock = threading.Lock()  # the working memory is one
        self._shape = CModel()
        layers = self._layers()
        self._shape.layer, self._shape.layers = self._keep(layers), len(layers)
        self._fill(self._shape, network)
        self._allocate(layers)

    def read(self, histories: Sequence[History], ids: Any, each: int) -> Any:
        """Every history reads its row of ids [rows, tokens], rows * tokens <= TOGETHER, for which it has room. Returns
        the logits after the last `each` tokens of each, [rows, each, vocabulary]."""
        rows, tokens = ids.shape
        logits = np.empty((rows, each, self._vocabulary), dtype=np.float32)
        views = (CHistory * rows)(*(CHistory(*history.view) for history in histories))
        with self._lock:
            self._reach(max(history.room for history in histories))
            pointers = (ctypes.byref(self._shape), ctypes.byref(views), rows, tokens, ids.ctypes.data, each)
            if self._library.decoder_read(*pointers, logits.ctypes.data):
                raise UsageError(f"a token is not in 0..{self._network.table.rows - 1}", where="PackedModel.read")
        for history in histories:
            history.length += tokens
        return logits

    def _reach(self, length: int) -> None:
        """Prepares for sequences of up to `length` tokens."""
        if length > self._shape.reach:
            length = max(length, self._shape.reach * 2)
            self._positions = [*map(np.ascontiguousarray, self._network.angles(length)), np.empty(length, np.float32)]
            self._shape.cosines, self._shape.sines, self._shape.weights = (part.ctypes.data for part in self._positions)
            self._shape.reach = length

    def _keep(self, array: Any) -> int:
        """The address of an array, which is kept alive as long as the model."""
        self._alive.append(array)
        return ctypes.addressof(array) if isinstance(array, ctypes.Array) else int(array.ctypes.data)

    def _layers(self) -> Any:
        layers, memories = (CLayer * len(self._network.blocks))(), 0
        for layer, block in zip(layers, self._network.blocks, strict=True):
            self._fill(layer, block)
            layer.memory = -1
            if block.memory_qkv is not None:
                layer.memory, memories = memories, memories + 1
        return layers

    def _fill(self, structure: Any, source: Network | DecoderBlock) -> None:
        """Copies the fields of the same name: matrices, vectors and numbers."""
        for name, kind in structure._fields_:
            value = getattr(source, name, None)
            if isinstance(value, WeightMatrix):
                setattr(structure, name, self._matrix(value))
            elif isinstance(value, np.ndarray):
                setattr(structure, name, self._keep(value))
            elif value is not None and kind is not ctypes.c_void_p:
                setattr(structure, name, value)

    def _matrix(self, matrix: WeightMatrix) -> CMatrix:
        bias = None if matrix.bias is None else self._keep(matrix.bias)
        rows, columns, layout = matrix.rows, matrix.columns, matrix.layout
        values = self._keep(np.ascontiguousarray(matrix.values))
        if layout is None:
            return CMatrix(FLOATS, 0, rows, columns, columns, values, None, bias)
        scales = np.ascontiguousarray(matrix.scales)
        kind, half = KINDS.index(layout.kind), scales.dtype == np.float16
        return CMatrix(kind, half, rows, columns, layout.group, values, self._keep(scales), bias)

    def _allocate(self, layers: Any) -> None:
        """Working memory: the widest vector of any layer, and the longest line of quantised activations."""
        model = self._shape
        matrices = [model.table, model.embed_up, model.head_down]
        for layer in layers:
            matrices += [getattr(layer, field[0]) for field in CLayer._fields_ if field[1] is CMatrix]
        widest = max(*(m.rows for m in matrices[1:]), *(m.columns for m in matrices), model.width)
        line = max(_line(m) for m in (*matrices, model.head))
        model.most_tokens, model.widest = TOGETHER, widest
        model.scratch = self._keep(np.zeros(SCRATCH * TOGETHER * widest, dtype=np.float32))
        model.numbers_size = TOGETHER * line
        model.numbers = self._keep(np.zeros(TOGETHER * line, dtype=np.int8))


def _line(matrix: CMatrix) -> int:
    """Bytes that the quantised activations of one token take for this matrix."""
    if matrix.rows == 0 or matrix.kind == FLOATS:
        return 8
    chunk = 4 * list(DIGITS.values())[matrix.kind]
    groups = -(-matrix.columns // matrix.group)
    return groups * -(-matrix.group // chunk) * chunk + 4 * groups + 8
