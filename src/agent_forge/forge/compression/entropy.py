"""Entropy coding: integers in close to as few bytes as their distribution allows.

`pack_symbols` counts the symbols, separately in every context, and writes the table of frequencies
and an interleaved rANS stream (see rans.c); where that is not smaller than fixed-width bits, it
writes those. The C coder and the numpy coder write the same bytes.
"""

from __future__ import annotations

import ctypes
import struct
import zlib
from pathlib import Path

import numpy as np

from agent_forge.errors import CheckpointError
from agent_forge.native import load

SOURCE = Path(__file__).with_name("rans.c")
LOW = 1 << 16  # a lane's state is at least this between two symbols
MOST_SYMBOLS = 4096
SYMBOLS_PER_LANE = 8192  # a lane costs its 4-byte state: 0.004 bit per symbol
FIXED, RANS = 0, 1
HEAD = struct.Struct("<BBHIHI")  # kind, bits, alphabet, symbols, contexts, bytes of the table (rANS)


def pack_symbols(symbols: np.ndarray, contexts: np.ndarray | None = None, fixed: bool = False) -> bytes:
    """Bytes from which `unpack_symbols` restores exactly `symbols` (integers from 0 to 4095).

    `contexts` (0 to 255, one per symbol) selects the table that a symbol is coded with; the reader
    must know them too. `fixed` skips the entropy coder.

    >>> packed = pack_symbols(np.array([0, 0, 1, 0] * 500))
    >>> len(packed) < 250, unpack_symbols(packed)[:4].tolist()
    (True, [0, 0, 1, 0])
    """
    symbols = np.ascontiguousarray(symbols).reshape(-1)
    if symbols.size and not 0 <= int(symbols.min()) <= int(symbols.max()) < MOST_SYMBOLS:
        raise ValueError(f"symbols must be from 0 to {MOST_SYMBOLS - 1}")
    alphabet = int(symbols.max()) + 1 if symbols.size else 1
    if symbols.size < 64 or fixed:
        return _pack_fixed(symbols, alphabet)
    coded = _pack_rans(symbols.astype(np.uint16), _flat_contexts(contexts, symbols.size), alphabet)
    smaller = len(coded) <= HEAD.size + -(-_width(alphabet) * symbols.size // 8)
    return coded if smaller else _pack_fixed(symbols, alphabet)


def unpack_symbols(data: bytes, contexts: np.ndarray | None = None) -> np.ndarray:
    """The symbols as uint16. Raises CheckpointError for bytes that `pack_symbols` did not write."""
    try:
        kind, bits, alphabet, count, rows, table = HEAD.unpack_from(data)
        if kind == FIXED:
            return _unpack_fixed(data[HEAD.size :], bits, count)
        if kind != RANS or not 1 <= bits <= 16 or not 1 <= alphabet <= MOST_SYMBOLS:
            raise ValueError("it is not a stream of symbols")
        return _unpack_rans(data, _flat_contexts(contexts, count), (bits, alphabet, count, rows, table))
    except (struct.error, ValueError, zlib.error, IndexError) as error:
        raise CheckpointError(f"a coded stream is damaged: {error}") from error


def _flat_contexts(contexts: np.ndarray | None, count: int) -> np.ndarray:
    if contexts is None:
        return np.zeros(count, np.uint8)
    if contexts.size != count:
        raise ValueError(f"{count} symbols have {contexts.size} contexts")
    return np.ascontiguousarray(contexts, dtype=np.uint8).reshape(-1)


def _width(alphabet: int) -> int:
    return max(1, (alphabet - 1).bit_length())


def _pack_fixed(symbols: np.ndarray, alphabet: int) -> bytes:
    bits = _width(alphabet)
    spread = (symbols.astype(np.uint16)[:, None] >> np.arange(bits, dtype=np.uint16)) & 1
    head = HEAD.pack(FIXED, bits, alphabet, symbols.size, 0, 0)
    return head + np.packbits(spread.astype(np.uint8), axis=None, bitorder="little").tobytes()


def _unpack_fixed(data: bytes, bits: int, count: int) -> np.ndarray:
    if not 1 <= bits <= 16 or len(data) != -(-bits * count // 8):
        raise ValueError("its length is not that of its symbols")
    spread = np.unpackbits(np.frombuffer(data, np.uint8), count=bits * count, bitorder="little")
    weights = (1 << np.arange(bits)).astype(np.uint32)
    return (spread.reshape(count, bits) @ weights).astype(np.uint16)


def _pack_rans(symbols: np.ndarray, contexts: np.ndarray, alphabet: int) -> bytes:
    rows = int(contexts.max()) + 1
    counts = np.bincount(contexts.astype(np.int64) * alphabet + symbols, minlength=rows * alphabet)
    counts = counts.reshape(rows, alphabet)
    bits = 12 if int((counts > 0).sum(1).max()) <= 64 else 15
    frequency = np.stack([scaled_frequencies(row, bits) for row in counts])
    table = zlib.compress(frequency.astype("<u2").T.tobytes(), 9)
    states, words = _encode(symbols, contexts, _lanes(symbols.size), frequency, bits)
    head = HEAD.pack(RANS, bits, alphabet, symbols.size, rows, len(table))
    return head + table + states.astype("<u4").tobytes() + words.astype("<u2").tobytes()


def _unpack_rans(data: bytes, contexts: np.ndarray, head: tuple[int, int, int, int, int]) -> np.ndarray:
    bits, alphabet, count, rows, size = head
    at = HEAD.size
    table = zlib.decompressobj().decompress(data[at : at + size], 2 * rows * alphabet)
    frequency = np.frombuffer(table, "<u2").reshape(alphabet, rows).T.astype(np.uint32)
    sums = frequency.sum(1)
    if not ((sums == 1 << bits) | (sums == 0)).all() or (count and int(contexts.max()) >= rows):
        raise ValueError("its table of frequencies does not add up")
    at += size
    lanes = _lanes(count)
    states = np.frombuffer(data, "<u4", lanes, at).astype(np.uint32)
    words = np.frombuffer(data, "<u2", offset=at + 4 * lanes).astype(np.uint16)
    symbols, states, used = _decode(words, states, contexts, count, np.ascontiguousarray(frequency), bits)
    if used != len(words) or not (states == LOW).all():
        raise ValueError("it does not end where it began")
    return symbols


def _lanes(count: int) -> int:
    return max(1, min(4096, count // SYMBOLS_PER_LANE))


def scaled_frequencies(counts: np.ndarray, bits: int) -> np.ndarray:
    """Frequencies that sum to 2^bits, as close to the counts as possible; no symbol that occurs gets 0.

    >>> scaled_frequencies(np.array([1, 0, 999]), 8).tolist()
    [1, 0, 255]
    """
    whole, total = 1 << bits, int(counts.sum())
    if total == 0:
        return np.zeros(len(counts), np.uint32)
    scaled = np.maximum(counts * whole // total, counts > 0).astype(np.int64)
    excess = int(scaled.sum()) - whole
    while excess:  # the largest can give or take what is left over at the least cost
        largest = int(scaled.argmax())
        change = min(excess, scaled[largest] // 2) if excess > 0 else excess
        scaled[largest] -= change
        excess -= change
    return scaled.astype(np.uint32)


def _starts(frequency: np.ndarray) -> np.ndarray:
    """[contexts, alphabet]: the frequencies of the symbols before each."""
    return np.ascontiguousarray((np.cumsum(frequency, axis=1) - frequency).astype(np.uint32))


def _symbol_at(frequency: np.ndarray, bits: int) -> np.ndarray:
    """[contexts, 2^bits]: the symbol of each slot."""
    slots = np.zeros((len(frequency), 1 << bits), np.uint16)
    for row, frequencies in enumerate(frequency):
        if frequencies.any():
            slots[row] = np.repeat(np.arange(len(frequencies), dtype=np.uint16), frequencies)
    return slots


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _encode(
    symbols: np.ndarray, contexts: np.ndarray, lanes: int, frequency: np.ndarray, bits: int
) -> tuple[np.ndarray, np.ndarray]:
    """The lanes' last states, and the words, in the order in which they are read."""
    frequency, start = np.ascontiguousarray(frequency, dtype=np.uint32), _starts(frequency)
    library = load(SOURCE)
    if library is None:
        return encode_lanes(symbols, contexts, lanes, (frequency, start), bits)
    states, out = np.zeros(lanes, np.uint32), np.zeros(symbols.size, np.uint16)
    library.rans_encode.restype = ctypes.c_int64
    size, alphabet = ctypes.c_int64(symbols.size), ctypes.c_int64(frequency.shape[1])
    tables = (_pointer(frequency), _pointer(start), alphabet, ctypes.c_int(bits))
    at = library.rans_encode(_pointer(symbols), _pointer(contexts), size, ctypes.c_int64(lanes), *tables,
                             _pointer(states), _pointer(out), size)  # fmt: skip
    return states, out[at:]


def _decode(
    words: np.ndarray, states: np.ndarray, contexts: np.ndarray, count: int, frequency: np.ndarray, bits: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """The symbols, the lanes' states after them, and how many words were read."""
    start, symbol_at = _starts(frequency), _symbol_at(frequency, bits)
    library = load(SOURCE)
    if library is None:
        return decode_lanes(words, states, contexts, count, (frequency, start, symbol_at), bits)
    symbols = np.zeros(count, np.uint16)
    library.rans_decode.restype = ctypes.c_int64
    tables = (_pointer(frequency), _pointer(start), _pointer(symbol_at), ctypes.c_int64(frequency.shape[1]))
    sizes = (ctypes.c_int64(count), ctypes.c_int64(states.size))
    stream = (_pointer(words), ctypes.c_int64(words.size), _pointer(contexts), *sizes)
    used = library.rans_decode(*stream, *tables, ctypes.c_int(bits), _pointer(states), _pointer(symbols))
    return symbols, states, used


def encode_lanes(
    symbols: np.ndarray, contexts: np.ndarray, lanes: int, tables: tuple[np.ndarray, np.ndarray], bits: int
) -> tuple[np.ndarray, np.ndarray]:
    """`_encode` in numpy: one symbol of every lane at a time."""
    frequency, start = (table.astype(np.uint64) for table in tables)
    states = np.full(lanes, LOW, np.uint64)
    chunks: list[np.ndarray] = []
    for first in range((symbols.size - 1) // lanes * lanes, -1, -lanes):
        rows, columns = contexts[first : first + lanes], symbols[first : first + lanes]
        x = states[: len(columns)]
        f, c = frequency[rows, columns], start[rows, columns]
        full = x >= f << np.uint64(32 - bits)
        chunks.append((x[full] & np.uint64(0xFFFF)).astype(np.uint16))
        x = np.where(full, x >> np.uint64(16), x)
        states[: len(columns)] = ((x // f) << np.uint64(bits)) + x % f + c
    words = np.concatenate(chunks[::-1]) if chunks else np.zeros(0, np.uint16)
    return states.astype(np.uint32), words


def decode_lanes(
    words: np.ndarray,
    states: np.ndarray,
    contexts: np.ndarray,
    count: int,
    tables: tuple[np.ndarray, np.ndarray, np.ndarray],
    bits: int,
) -> tuple[np.ndarray, np.ndarray, int]:
    """`_decode` in numpy: one symbol of every lane at a time."""
    frequency, start = (table.astype(np.uint64) for table in tables[:2])
    symbol_at, lanes = tables[2], states.size
    symbols, state, used = np.zeros(count, np.uint16), states.astype(np.uint64), 0
    for first in range(0, count, lanes):
        rows = contexts[first : first + lanes]
        x = state[: len(rows)]
        slot = x & np.uint64((1 << bits) - 1)
        columns = symbol_at[rows, slot.astype(np.int64)]
        x = frequency[rows, columns] * (x >> np.uint64(bits)) + slot - start[rows, columns]
        empty = np.flatnonzero(x < LOW)
        if used + empty.size > words.size:
            raise ValueError("it ends too early")
        x[empty] = (x[empty] << np.uint64(16)) | words[used : used + empty.size]
        used += empty.size
        state[: len(rows)] = x
        symbols[first : first + lanes] = columns
    return symbols, state.astype(np.uint32), used
