"""Packing: exact round trips on any shape, against counting in base 3 and against ggml's own bytes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_forge.errors import CheckpointError, UsageError
from agent_forge.inference.packed.layout import KINDS, LIMITS, MOST_COLUMNS, PackedShape, pack, unpack, unpack_rows

ALLOWED = {kind: tuple(range(low, high + 1)) for kind, (low, high) in LIMITS.items()} | {"4level": (-3, -1, 1, 3)}


def values_of(kind: str, rows: int, columns: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).choice(np.array(ALLOWED[kind]), (rows, columns)).astype(np.int8)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(KINDS), st.integers(1, 40), st.integers(1, 300), st.integers(1, 300), st.integers(0, 9))
def test_any_shape_and_group_comes_back(kind: str, rows: int, columns: int, group: int, seed: int) -> None:
    shape = PackedShape(kind, rows, columns, min(group, columns))
    values = values_of(kind, rows, columns, seed)
    packed = pack(values, shape)
    assert packed.size == shape.tiles * shape.chunks * 64
    assert np.array_equal(unpack(packed, shape), values)
    chosen = np.array([rows - 1, 0])
    assert np.array_equal(unpack_rows(packed, shape, chosen), values[chosen])


def test_every_byte_of_five_trits_is_the_fraction_that_ggml_writes() -> None:
    """All 243 fives: the byte is ceil(256 v / 243) of the base-3 number v, the definition of TQ1_0."""
    fives = np.array(list(itertools.product((-1, 0, 1), repeat=5)), dtype=np.int8)  # most significant first
    columns = np.zeros((243, 20), dtype=np.int8)
    columns[:, ::4] = fives  # digit d of byte 0 is column 4 d
    packed = pack(columns, PackedShape("1.6bit", 243, 20, 20)).transpose(0, 2, 1, 3).reshape(-1, 4)[:243, 0]
    numbers = [int("".join(str(int(trit) + 1) for trit in five), 3) for five in fives]
    assert packed.tolist() == [-(-256 * number // 243) for number in numbers]


def test_two_bit_codes_by_hand() -> None:
    packed = pack(np.array([[-1, 0, 1, 1] + [0] * 4 + [1] * 4 + [-1] * 4]), PackedShape("2bit", 1, 16, 16))
    # byte b holds columns b, 4 + b, 8 + b, 12 + b, the first in the low bits
    assert packed[0, 0, 0].tolist() == [0b00_10_01_00, 0b00_10_01_01, 0b00_10_01_10, 0b00_10_01_10]


def test_the_size_is_what_is_promised() -> None:
    assert pack(values_of("1.6bit", 160, 2000), PackedShape("1.6bit", 160, 2000, 2000)).size == 160 * 2000 * 1.6 / 8
    assert pack(values_of("2bit", 160, 2000), PackedShape("2bit", 160, 2000, 2000)).size == 160 * 2000 * 2 / 8


@pytest.mark.parametrize(("kind", "byte"), [("2bit", 0b11), ("1.6bit", 1), ("int8", 0)])
def test_a_byte_that_stands_for_nothing_is_refused(kind: str, byte: int) -> None:
    shape = PackedShape(kind, 16, 20, 20)
    packed = pack(values_of(kind, 16, 20), shape)
    packed[0, 0, 3, 2] = byte
    with pytest.raises(CheckpointError, match="packed weights hold"):
        unpack(packed, shape)
    with pytest.raises(CheckpointError, match="expected"):
        unpack(packed[:, :0], shape)


@pytest.mark.parametrize(
    "call",
    [
        lambda: PackedShape("3bit", 1, 1, 1),
        lambda: PackedShape("2bit", 1, MOST_COLUMNS + 1, 1),
        lambda: PackedShape("2bit", 1, 8, 9),
        lambda: pack(np.array([[2]]), PackedShape("2bit", 1, 1, 1)),
        lambda: pack(np.array([[0, 0]]), PackedShape("2bit", 1, 1, 1)),
    ],
)
def test_what_cannot_be_packed_is_refused(call: Any) -> None:
    with pytest.raises(UsageError):
        call()
