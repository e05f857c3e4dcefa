"""A network with numpy alone, for machines without a C compiler: the same arithmetic, some ten times slower.

Packed matrices are unpacked at first use and kept as floats, so this takes the memory of the plain model. Activations
are rounded to int8 as in products.c, and the sums are exact integers: the products have the same bits.

Shapes: T tokens, D width, H heads, G groups, W head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from agent_forge.inference.packed.history import LANES, History
from agent_forge.inference.packed.layout import LIMITS, unpack, unpack_rows
from agent_forge.inference.packed.network import DecoderBlock, Network, WeightMatrix

EXACT = 1 << 24  # integers below are exact in float32


class PlainModel:
    """What `CompiledModel` does, in numpy."""

    together = 256  # tokens that go through a layer at once

    def __init__(self, network: Network) -> None:
        self._network = network
        self._unpacked: dict[int, Any] = {}
        self._angles = network.angles(0)

    def read(self, histories: Sequence[History], ids: Any, each: int) -> Any:
        """See CompiledModel.read."""
        return np.stack([self._read(history, row, each) for history, row in zip(histories, ids, strict=True)])

    def _read(self, history: History, ids: Any, each: int) -> Any:
        network, memory = self._network, 0
        h = self._embed(ids)  # [T, D]
        for number, block in enumerate(network.blocks):
            x = _norm(h, block.norm_in, network.eps)
            y = self._attention(history, number, block, x)
            if block.memory_qkv is not None:
                y = self._memory(history.state[memory], block, x, y)
                memory += 1
            h = h + self._multiply(block.o, y)
            h = h + self._mlp(block, _norm(h, block.norm_mid, network.eps))
        history.length += len(ids)
        last = _norm(h[len(ids) - each :], network.norm_out, network.eps)
        if network.head_down is not None:
            last = self._multiply(network.head_down, last)
        return self._multiply(network.head, last)

    def _embed(self, ids: Any) -> Any:
        network = self._network
        table, layout = network.table, network.table.layout
        if layout is None:
            h = table.values[ids]
        else:
            scales = table.scales[:, ids].T.astype(np.float32)  # [T, groups]
            h = unpack_rows(table.values, layout, ids) * np.repeat(scales, layout.group, 1)[:, : table.columns]
        if network.embed_up is not None:
            h = self._multiply(network.embed_up, h)
        return _norm(h, None, network.eps) if network.norm_embedding else h

    def _multiply(self, matrix: WeightMatrix, x: Any) -> Any:
        """x [T, columns] -> [T, rows]."""
        layout = matrix.layout
        if layout is None:
            y = x @ matrix.values.T
            return y if matrix.bias is None else y + matrix.bias
        if matrix.sub_norm:
            x = _norm(x, None, 1e-6)
        exact = np.float32 if 127 * -LIMITS[layout.kind][0] * layout.group < EXACT else np.float64
        if id(matrix) not in self._unpacked:
            self._unpacked[id(matrix)] = unpack(matrix.values, layout).astype(exact)
        values, scales = self._unpacked[id(matrix)], matrix.scales[:, : matrix.rows].astype(np.float32)
        numbers, unit = round_activations(x) if matrix.rounds else (x, np.float32(1))
        numbers = numbers.astype(exact)
        y = np.zeros((len(x), matrix.rows), np.float32)
        for g in range(layout.groups):
            part = slice(g * layout.group, (g + 1) * layout.group)
            y += (numbers[:, part] @ values[:, part].T).astype(np.float32) * scales[g]
        y *= unit
        return y if matrix.bias is None else y + matrix.bias

    def _attention(self, history: History, layer: int, block: DecoderBlock, x: Any) -> Any:
        network = self._network
        heads, groups, width = network.heads, network.groups, network.head_width
        if block.k is None or block.v is None:
            whole = self._multiply(block.q, x)
            q, k, v = np.split(whole, [heads * width, (heads + groups) * width], axis=1)
        else:
            q, k, v = (self._multiply(matrix, x) for matrix in (block.q, block.k, block.v))
        places = np.arange(history.length, history.length + len(x))
        q, k = (self._placed(part.reshape(len(x), -1, width), places) for part in (q, k))
        v = v.reshape(len(x), groups, width)
        history.keys[layer, :, places // LANES, :, places % LANES] = k
        history.values[layer][:, places] = v.transpose(1, 0, 2)
        return self._attend(history, layer, q, places)

    def _placed(self, x: Any, places: Any) -> Any:
        """Normalised and rotated by position, x [T, heads, W]."""
        network, last = self._network, int(places[-1])
        if last >= len(self._angles[0]):
            self._angles = network.angles(2 * (last + 1))
        if network.qk_norm:
            x = _norm(x, None, network.eps)
        first, second = np.split(x, 2, axis=-1)
        cosines, sines = (part[places][:, None] for part in self._angles)
        return np.concatenate([first * cosines - second * sines, first * sines + second * cosines], axis=-1)

    def _attend(self, history: History, layer: int, q: Any, places: Any) -> Any:
        network, tokens, end = self._network, len(places), int(places[-1]) + 1
        shared, width = network.heads // network.groups, network.head_width
        seen = np.arange(end)[None] <= places[:, None]  # [T, end]
        if network.window:
            seen &= np.arange(end)[None] > places[:, None] - network.window
        out = np.empty((tokens, network.heads, width), np.float32)
        for g in range(network.groups):
            some = slice(g * shared, (g + 1) * shared)
            keys = history.keys[layer, g, : -(-end // LANES)].transpose(1, 0, 2).reshape(width, -1)[:, :end]
            scores = np.where(seen[:, None], (q[:, some] @ keys) * np.float32(network.scale), -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            out[:, some] = weights @ history.values[layer, g, :end]
        return out.reshape(tokens, -1)

    def _mlp(self, block: DecoderBlock, x: Any) -> Any:
        up = self._multiply(block.up, x)
        if block.gate is None:
            up = np.square(np.maximum(up, 0))
        else:
            gate = self._multiply(block.gate, x)
            up = up * gate * _sigmoid(gate)
        return self._multiply(block.down, up)

    def _memory(self, state: Any, block: DecoderBlock, x: Any, y: Any) -> Any:
        """The memory's read gates attention: M = keep M + rate (v - M k) k^T, read M q (see memory.py of the forge)."""
        assert block.memory_qkv is not None
        assert block.memory_rates is not None
        assert block.memory_out is not None
        heads, width, eps = self._network.memory_heads, self._network.memory_width, self._network.eps
        qkv = self._multiply(block.memory_qkv, x)
        qkv = (qkv * _sigmoid(qkv)).reshape(len(x), 3, heads, width)
        qkv[:, :2] /= np.maximum(np.linalg.norm(qkv[:, :2], axis=-1, keepdims=True), 1e-12)
        rates = self._multiply(block.memory_rates, x)
        rate, keep = _sigmoid(rates[:, :heads]), _sigmoid(-rates[:, heads : 2 * heads])
        reads = np.empty((len(x), heads, width), np.float32)
        for t, (q, k, v) in enumerate(qkv):
            surprise = rate[t][:, None] * (v - np.einsum("hij,hj->hi", state, k))
            state *= keep[t][:, None, None]
            state += surprise[:, :, None] * k[:, None]
            reads[t] = np.einsum("hij,hj->hi", state, q)
        gate = _norm(self._multiply(block.memory_out, reads.reshape(len(x), -1)), block.memory_gain, eps)
        return _norm(y, block.attention_gain, eps) * (2 * _sigmoid(gate))


def round_activations(x: Any) -> tuple[Any, Any]:
    """x [T, columns] -> (integers -127..127 as float32, unit [T, 1]), as products.c rounds them.

    >>> numbers, unit = round_activations(np.array([[0.5, -1.0, 0.25]], np.float32))
    >>> numbers.tolist(), round(float(unit[0, 0]), 4)
    ([[64.0, -127.0, 32.0]], 0.0079)
    """
    most = np.abs(x).max(-1, keepdims=True)
    finite = np.isfinite(most)
    unit = np.maximum(np.where(finite, most, 1), np.float32(1e-5)) / np.float32(127)
    with np.errstate(invalid="ignore"):
        return np.where(finite, np.rint(x / unit), 0), np.where(finite, unit, np.float32(np.nan))


def _norm(x: Any, gain: Any, eps: float) -> Any:
    y = x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps))
    return y if gain is None else y * gain


def _sigmoid(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))
