"""Ternary weights as tensors. How bytes are packed is tested in test_packed_layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agent_forge.errors import CheckpointError, UsageError
from agent_forge.inference.packed import PackedMatrix, PackedShape, TernaryWeight, layout, pack, unpack
from agent_forge.inference.packed.layout import KINDS
from agent_forge.inference.packed.trits import unpack_rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [None, 7, 64])
def test_tensors_are_packed_as_arrays_are(kind: str, group: int | None) -> None:
    shape = PackedShape(kind, 37, 150, group or 150)
    choices = (-3, -1, 1, 3) if kind == "4level" else range(layout.LIMITS[kind][0], layout.LIMITS[kind][1] + 1)
    values = np.random.default_rng(0).choice(np.array(choices), (37, 150)).astype(np.int8)
    packed = pack(torch.from_numpy(values), shape)
    assert np.array_equal(packed.numpy(), layout.pack(values, shape))
    assert np.array_equal(unpack(packed, shape).numpy(), values)
    rows = torch.tensor([36, 0, 16])
    assert np.array_equal(unpack_rows(packed, shape, rows).numpy(), values[rows])
    if kind in ("2bit", "1.6bit"):
        packed[0, 0, 3, 2] = 255 if kind == "2bit" else 1
        with pytest.raises(CheckpointError, match="packed weights hold"):
            unpack(packed, shape)
    with pytest.raises(CheckpointError, match="expected"):
        unpack(packed.int(), shape)


@pytest.mark.parametrize(
    "call",
    [
        lambda: TernaryWeight(torch.tensor([[2, 0]]), torch.ones(1)),
        lambda: TernaryWeight(torch.tensor([[1, 0, 3]]), torch.ones(1)),
        lambda: TernaryWeight(torch.zeros(2, 300), torch.ones(2, 7)),
        lambda: TernaryWeight(torch.zeros(2, 300), torch.ones(2, 3), group=10),
        lambda: PackedMatrix.of(torch.zeros(2, 4, dtype=torch.int8), torch.ones(2, 3), "2bit"),
    ],
)
def test_what_cannot_be_packed_is_refused(call: object) -> None:
    with pytest.raises(UsageError):
        call()  # type: ignore[operator]


def test_scales_may_be_given_in_every_way_that_makes_sense() -> None:
    trits = torch.randint(-1, 2, (3, 300))
    assert TernaryWeight(trits, torch.tensor(0.5)).scales.tolist() == [[0.5]] * 3
    assert TernaryWeight(trits, torch.ones(3)).group == 300
    assert TernaryWeight(trits, torch.ones(1, 3)).group == 128  # 128, 128, 44
    assert TernaryWeight(trits, torch.ones(3, 5)).group == 60
    assert TernaryWeight(trits, torch.ones(3, 6), group=50).scales.shape == (3, 6)
    assert TernaryWeight(trits, torch.ones(3).double()).scales.dtype == torch.float32
    assert TernaryWeight(trits, torch.ones(3).half()).scales.dtype == torch.float16
    four = TernaryWeight(torch.tensor([[-3, -1, 1, 3]]), torch.tensor(0.5))
    assert not four.is_ternary
    assert four.dense().tolist() == [[-1.5, -0.5, 0.5, 1.5]]


def test_dense_is_what_float64_says() -> None:
    trits, scales = torch.randint(-1, 2, (5, 300)), torch.rand(5, 3)
    expected = [[float(trits[r, c]) * float(scales[r, c // 128]) for c in range(300)] for r in range(5)]
    assert torch.equal(TernaryWeight(trits, scales).dense().double(), torch.tensor(expected, dtype=torch.float64))
