"""Every codec decodes to what it encoded and beats round-to-nearest at equal bits on a trained matrix."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from agent_forge.errors import CheckpointError
from agent_forge.forge.compression.codecs import CODECS, REMOVED, decode, encode, encode_all, grid
from agent_forge.forge.compression.container import Encoded, pack, unpack
from agent_forge.forge.compression.feedback import BLOCK, Cost, distortion, order_of, rounded_with_feedback
from agent_forge.forge.compression.settings import OPTIONS

SETTINGS = {
    "grid": {"step": 0.7},
    "integer": {"bits": 4, "group": 32},
    "raw": {},
    "rtn": {"bits": 3, "group": 32},
    "ternary": {"group": 32},
}


@pytest.fixture(scope="module")
def trained() -> tuple[torch.Tensor, Cost]:
    """A matrix that gradient descent made, and the second moments of its inputs: the middle layer of a small network
    that has learned a teacher's function of correlated inputs."""
    torch.manual_seed(0)
    mix = torch.randn(96, 96) / 96**0.5 * torch.exp(0.5 * torch.randn(96))[:, None]
    teacher = torch.randn(96, 24)
    student = torch.nn.Sequential(torch.nn.Linear(96, 96), torch.nn.GELU(), torch.nn.Linear(96, 192), torch.nn.GELU())
    head = torch.nn.Linear(192, 24)
    optimizer = torch.optim.Adam([*student.parameters(), *head.parameters()], 3e-3)
    for _ in range(150):
        x = torch.randn(256, 96) @ mix
        loss = F.mse_loss(head(student(x)), torch.tanh(x @ teacher))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        inputs = student[:2](torch.randn(4096, 96) @ mix)
    return student[2].weight.detach().clone(), Cost(inputs.T @ inputs / len(inputs))


def control(weight: torch.Tensor, cost: Cost, bits: float) -> float:
    """The distortion of plain round-to-nearest at any number of bits, between its whole widths on the log scale."""
    points = []
    for width in (1, 2, 3, 4, 5, 6):
        encoded = encode("rtn", weight, bits=width, group=96)
        points.append((8 * encoded.size() / weight.numel(), distortion(weight, decode(encoded), cost)))
    for (low, worse), (high, better) in itertools.pairwise(points):
        if low <= bits <= high:
            share = (bits - low) / (high - low)
            return math.exp((1 - share) * math.log(worse) + share * math.log(better))
    raise AssertionError(f"{bits} bits are outside {points}")


@pytest.mark.parametrize(
    ("codec", "settings"),
    [
        ("grid", {"step": 0.5}),
        ("grid", {"step": 1.0}),
        ("grid", {"step": 1.6}),
        ("integer", {"bits": 4, "group": 48}),
        ("integer", {"bits": 3, "group": 48}),
        ("ternary", {"group": 96}),
    ],
    ids=str,
)
def test_beats_round_to_nearest_at_equal_bits(codec, settings, trained) -> None:
    weight, cost = trained
    encoded = encode(codec, weight, cost, **settings)
    bits = 8 * len(pack(encoded)) / weight.numel()
    assert distortion(weight, decode(encoded), cost) < control(weight, cost, bits)


@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize("shape", [(64, 96), (33, 50), (1, 1), (5, 129)], ids=str)
def test_the_container_holds_every_bit(codec: str, shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    weight = torch.randn(shape) * 0.1
    moments = torch.randn(64, shape[1])
    for cost in (Cost(), Cost(moments.T @ moments, torch.rand(shape[0]))):
        encoded = encode(codec, weight, cost, **SETTINGS[codec])
        data = pack(encoded)
        again = unpack(data)
        assert (again.codec, again.shape) == (encoded.codec, encoded.shape)
        assert all(np.array_equal(again.parts[name], part) for name, part in encoded.parts.items())
        assert torch.equal(decode(again), decode(encoded))
        assert decode(again).shape == weight.shape
        assert pack(again) == data


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_encoding_is_deterministic(codec: str) -> None:
    weight = torch.randn(32, 48, generator=torch.Generator().manual_seed(3))
    settings = SETTINGS[codec]
    assert pack(encode(codec, weight, **settings)) == pack(encode(codec, weight, **settings))


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_all_zeros_stay_zeros(codec: str) -> None:
    assert decode(encode(codec, torch.zeros(16, 32), **SETTINGS[codec])).abs().max() < 1e-6


def test_a_ternary_matrix_is_kept_exactly() -> None:
    torch.manual_seed(2)
    scale = torch.rand(16, 3) + 0.1
    weight = (torch.randint(-1, 2, (16, 96)).view(16, 3, 32) * scale[..., None]).reshape(16, 96)
    moments = torch.randn(64, 96)
    assert torch.equal(decode(encode("ternary", weight, Cost(moments.T @ moments), group=32)), weight)


def test_the_grid_is_near_shannons_bound() -> None:
    """Normal weights: at most 0.3 bit above D = 2^-2R, everything counted."""
    weight = torch.randn(512, 512, generator=torch.Generator().manual_seed(4))
    for step in (0.5, 1.0, 1.5):
        encoded = encode("grid", weight, step=step)
        least = -0.5 * math.log2(distortion(weight, decode(encoded)))
        assert least < 8 * encoded.size() / weight.numel() < least + 0.3


def test_feedback_is_exact_second_order_rounding() -> None:
    """Against brute force: the last column's error is all that cannot be made good, if the others are not rounded."""
    torch.manual_seed(5)
    moments = torch.randn(64, 6, dtype=torch.double)
    hessian = moments.T @ moments
    weight = torch.randn(3, 6, dtype=torch.double)
    order = order_of(hessian, sort=False, damping=0.0)

    def only_first(piece: torch.Tensor, at: int) -> torch.Tensor:
        return torch.round(piece) if at == 0 else piece

    rounded = rounded_with_feedback(weight, order.upper, only_first)
    first = torch.round(weight[:, 0])
    rest = weight[:, 1:] + torch.linalg.solve(hessian[1:, 1:], hessian[1:, :1] @ (weight[:, :1] - first[:, None]).T).T
    assert torch.allclose(rounded, torch.cat([first[:, None], rest], 1))


def rounded_in_place(weight: torch.Tensor, upper: torch.Tensor, quantise) -> torch.Tensor:
    """One matrix, one column after the other, where it stands: the reference for `rounded_with_feedback`."""
    work, decoded = weight.clone(), torch.empty_like(weight)
    for first in range(0, work.shape[1], BLOCK):
        last = min(first + BLOCK, work.shape[1])
        errors = work.new_zeros(len(work), last - first)
        for at in range(first, last):
            decoded[:, at : at + 1] = quantise(work[:, at : at + 1], at)
            errors[:, [at - first]] = error = (work[:, at : at + 1] - decoded[:, at : at + 1]) / upper[at, at]
            work[:, at + 1 : last] -= error @ upper[at : at + 1, at + 1 : last]
        work[:, last:] -= errors @ upper[first:last, last:]
    return decoded


@pytest.mark.parametrize("parts", [1, 3])
def test_feedback_rounds_as_it_does_in_place_to_the_bit(parts: int) -> None:
    torch.manual_seed(6)
    inputs = torch.randn(600, 2 * BLOCK + 9) @ torch.randn(2 * BLOCK + 9, 2 * BLOCK + 9)
    upper = order_of(inputs.T @ inputs).upper.float()
    matrices = [torch.randn(37, len(upper)) for _ in range(parts)]
    steps = [0.3 + 0.2 * number for number in range(parts)]

    def to(step: torch.Tensor):
        return lambda column, _: torch.round(column / step) * step

    wide = torch.tensor(steps).repeat_interleave(37)[:, None]
    together = rounded_with_feedback(torch.cat(matrices), upper, to(wide), parts)
    alone = [rounded_in_place(matrix, upper, to(step)) for matrix, step in zip(matrices, wide[::37], strict=True)]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("at_once", [2 * 192 * 96, 1 << 20])
def test_all_settings_at_once_are_stored_as_one_by_one(trained, monkeypatch, at_once: int) -> None:
    weight, cost = trained
    monkeypatch.setattr(grid, "AT_ONCE", (at_once, at_once))
    costly = replace(cost, rows=torch.rand(len(weight)))
    for codec, options in {**OPTIONS, "grid": OPTIONS["grid"][1::2]}.items():
        together = [pack(encoded) for encoded in encode_all(codec, weight, costly, options)]
        assert together == [pack(encode(codec, weight, costly, **settings)) for settings in options]


def test_a_changed_or_cut_container_is_refused() -> None:
    data = bytearray(pack(encode("grid", torch.randn(32, 32))))
    for place in (0, 5, 20, len(data) // 2, len(data) - 1):
        changed = bytes(data[:place]) + bytes([data[place] ^ 1]) + bytes(data[place + 1 :])
        with pytest.raises(CheckpointError):
            unpack(changed)
    with pytest.raises(CheckpointError, match="checksum"):
        unpack(bytes(data[:-1]))


@pytest.mark.parametrize("codec", REMOVED)
def test_a_weight_stored_with_a_removed_codec_is_refused_by_name(codec: str) -> None:
    stored = unpack(pack(Encoded(codec, (1,), {})))  # the container itself is sound
    with pytest.raises(CheckpointError, match=f"{codec!r}, which was removed. Compress the original"):
        decode(stored)


def test_a_codec_of_the_future_is_refused() -> None:
    with pytest.raises(CheckpointError, match="'wavelet', which this version does not know"):
        decode(Encoded("wavelet", (1,), {}))
