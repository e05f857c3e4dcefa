"""The NEON products give the same bits as torch: cross-compiled, and run in an emulator.

Where there is no compiler for ARM or no emulator (`apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross
qemu-user`) these are skipped; the program that they run is then tried with this machine's own compiler alone.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from agent_forge import native
from agent_forge.inference.packed import PackedMatrix
from agent_forge.inference.packed.kernels import PRODUCTS
from agent_forge.inference.packed.layout import KINDS, LIMITS, MOST_COLUMNS
from agent_forge.inference.packed.products import torch_product

DRIVER = Path(__file__).with_name("packed_driver.c")
ARM, HERE = ("aarch64-linux-gnu-gcc", "qemu-aarch64"), ("cc",)
BUILDS = {  # tools, flags, the path that must be taken
    "neon": (ARM, ("-march=armv8-a", "-static"), "neon"),
    "neon with dot products": (ARM, ("-march=armv8.2-a+dotprod", "-static"), "neon dotprod"),
    "plain on arm": (ARM, ("-march=armv8-a", "-static", "-DPLAIN"), "plain"),
    "plain here": (HERE, ("-DPLAIN", "-O1"), "plain"),
}
SHAPES = [(1, 1, None), (33, 70, None), (48, 576, 128), (20, 333, 7), (16, 1000, None)]

Case = tuple[PackedMatrix, torch.Tensor, torch.Tensor | None]


def cases() -> list[Case]:
    """Every kind in odd sizes, in batches up to 5, and the largest numbers there are in the widest rows."""
    cases: list[Case] = []
    draw = np.random.default_rng(7)
    for number, kind in enumerate(KINDS):
        low, high = LIMITS[kind]
        for at, (rows, columns, group) in enumerate(SHAPES):
            values = 2 * draw.integers(0, 4, (rows, columns)) - 3
            if kind != "4level":
                values = draw.integers(low, high + 1, (rows, columns))
            groups = -(-columns // min(group or columns, columns))
            scales = draw.uniform(0.01, 2, (rows, groups)).astype(np.float16 if at % 2 else np.float32)
            packed = PackedMatrix.of(torch.from_numpy(values.astype(np.int8)), torch.from_numpy(scales), kind, group)
            tokens = 1 + (number + at) % 5
            for n in (1, tokens):
                x = torch.from_numpy(draw.standard_normal((n, columns)).astype(np.float32))
                bias = torch.from_numpy(draw.standard_normal(rows).astype(np.float32)) if n > 1 else None
                cases.append((packed, x, bias))
        for value in (low, high):
            packed = PackedMatrix.of(torch.full((16, MOST_COLUMNS), value, dtype=torch.int8), torch.ones(16, 1), kind)
            cases += [(packed, torch.full((n, MOST_COLUMNS), sign), None) for n, sign in ((1, 1.0), (3, -1.0))]
    return cases


def wire(packed: PackedMatrix, x: torch.Tensor, bias: torch.Tensor | None) -> bytes:
    shape, half, biased = packed.shape, packed.scales.dtype == torch.float16, bias is not None
    head = [KINDS.index(shape.kind), half, shape.rows, shape.columns, shape.group, x.shape[0], biased]
    parts = [torch.tensor(head, dtype=torch.int64), packed.packed, packed.scales, *(() if bias is None else (bias,)), x]
    return b"".join(part.contiguous().numpy().tobytes() for part in parts)


@pytest.fixture(scope="module")
def inputs() -> tuple[bytes, list[torch.Tensor]]:
    every = cases()
    return b"".join(wire(*case) for case in every), [torch_product(x, packed, bias) for packed, x, bias in every]


@pytest.mark.parametrize("build", BUILDS)
def test_the_products_of_other_processors_are_the_same_bits(
    build: str, inputs: tuple[bytes, list[torch.Tensor]], tmp_path: Path
) -> None:
    tools, flags, path = BUILDS[build]
    if absent := [tool for tool in tools if shutil.which(tool) is None]:
        pytest.skip(f"{' and '.join(absent)} not installed: this path was not tried")
    program = tmp_path / "driver"
    plain = [flag for flag in native.FLAGS if flag not in ("-shared", "-fPIC")]
    command = [tools[0], *plain, *flags, "-Wall", "-Wextra", "-Werror", f"-I{PRODUCTS.parent}", "-o", program]
    subprocess.run([*command, DRIVER, "-lm"], check=True, timeout=120)
    emulator = [tools[1], "-cpu", "max"] if len(tools) > 1 else []
    ran = subprocess.run([*emulator, program], input=inputs[0], capture_output=True, check=True, timeout=120)
    assert ran.stderr.decode() == path
    actual = torch.from_numpy(np.frombuffer(ran.stdout, dtype=np.float32).copy())
    assert torch.equal(actual, torch.cat([expected.flatten() for expected in inputs[1]]))


def test_the_decoder_compiles_for_arm() -> None:
    """It has no instructions of its own beside those of the products."""
    if shutil.which(ARM[0]) is None:
        pytest.skip(f"{ARM[0]} not installed: not tried")
    command = [ARM[0], *native.FLAGS, "-march=armv8-a", "-fopenmp-simd", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    subprocess.run([*command, PRODUCTS.with_name("decoder.c")], check=True, timeout=120)
