"""How fast is a packed ternary product on this CPU, against fp32, ggml's TQ2_0 and TQ1_0, and the memory's own speed?

    OMP_NUM_THREADS=1 python benchmarks/ternary_kernels.py [--quick]

One thread, batch 1. "Cold" goes through more matrices than the caches hold, as a model does; "warm"
repeats one. The activations are quantised in every product, ours and ggml's. All in one run, the
contenders taking turns. A sweep is timed in stretches of about a millisecond and the best stretch
counts, because on a busy machine the others contain somebody else's work too. ggml comes from
llama-cpp-python and is left out where that is missing.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from agent_forge import native
from agent_forge.inference.packed import PackedMatrix
from agent_forge.inference.packed.products import CMatrix, describe, kernel

TYPES = {"TQ1_0": 34, "TQ2_0": 35}
Q8_K_BYTES = 292  # of 256 activations
SWEEP = 192 << 20  # bytes of packed matrices in a cold sweep
Stretch = Callable[[int, int], Any]  # (first matrix, how many)
LOOPS = native.load(Path(__file__).with_name("_ternary_peers.c"))


class TypeTraits(ctypes.Structure):
    """ggml_type_traits_cpu"""

    _fields_ = (
        ("from_float", ctypes.c_void_p),
        ("vec_dot", ctypes.c_void_p),
        ("type", ctypes.c_int),
        ("rows", ctypes.c_int64),
    )


def buffer(size: int) -> np.ndarray[Any, Any]:
    """Bytes at a multiple of 64, written once so that they are in memory (numpy requests huge pages)."""
    raw = np.ones(size + 64, dtype=np.uint8)
    at = -raw.ctypes.data % 64
    return raw[at : at + size]


def address(array: np.ndarray[Any, Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def ours(size: int, kind: str, copies: int, library: Any, x: Any, y: Any) -> Stretch:
    """A sweep over `copies` of a random matrix."""
    trits = torch.randint(-1, 2, (size, size), dtype=torch.int8)
    matrix = PackedMatrix.of(trits, torch.rand(size, 1), kind)
    memory = buffer(matrix.packed.nbytes * copies)
    memory.reshape(copies, -1)[:] = matrix.packed.flatten().numpy()
    descriptions = (CMatrix * copies)()
    for i in range(copies):
        descriptions[i] = describe(matrix)
        descriptions[i].packed = memory.ctypes.data + i * matrix.packed.nbytes
    stride = ctypes.sizeof(CMatrix)
    linear = ctypes.cast(library.products_linear, ctypes.c_void_p)

    def stretch(first: int, count: int, kept: Any = (matrix, memory)) -> None:
        at = ctypes.byref(descriptions, first * stride)
        LOOPS.sweep_ours(linear, at, ctypes.c_int64(stride), ctypes.c_int64(count), address(x), address(y))

    return stretch


def ggml() -> tuple[Any, Any] | None:
    try:
        import llama_cpp
    except ImportError:
        return None
    folder = Path(llama_cpp.__file__).parent / "lib"
    plain, cpu = ctypes.CDLL(str(folder / "libggml-base.so")), ctypes.CDLL(str(folder / "libggml-cpu.so"))
    cpu.ggml_cpu_init()
    cpu.ggml_get_type_traits_cpu.restype = ctypes.POINTER(TypeTraits)
    plain.ggml_row_size.restype = ctypes.c_size_t
    plain.ggml_row_size.argtypes = (ctypes.c_int, ctypes.c_int64)
    plain.ggml_quantize_chunk.restype = ctypes.c_size_t
    return plain, cpu


def theirs(size: int, name: str, copies: int, libraries: Any, x: Any, y: Any) -> Stretch:
    plain, cpu = libraries
    traits = cpu.ggml_get_type_traits_cpu(TYPES[name]).contents
    to_q8 = cpu.ggml_get_type_traits_cpu(traits.type).contents.from_float
    row = plain.ggml_row_size(TYPES[name], size)
    weights = np.random.default_rng(0).integers(-1, 2, (size, size)).astype(np.float32)
    one = buffer(row * size)
    i64 = ctypes.c_int64
    plain.ggml_quantize_chunk(TYPES[name], address(weights), address(one), i64(0), i64(size), i64(size), None)
    memory = buffer(row * size * copies)
    memory.reshape(copies, -1)[:] = one
    activations = buffer(size // 256 * Q8_K_BYTES)
    dot, quantise = ctypes.c_void_p(traits.vec_dot), ctypes.c_void_p(to_q8)
    shape = i64(row), i64(size), i64(size)

    def stretch(first: int, count: int) -> None:
        at = address(memory[first * row * size :])
        LOOPS.sweep_ggml(dot, quantise, at, *shape, i64(count), address(x), address(activations), address(y))

    return stretch


def fp32(size: int, copies: int, x: Any) -> Stretch:
    memory = buffer(copies * size * size * 4).view(np.float32)  # in the same kind of memory as the others
    weights, vector = torch.from_numpy(memory).view(copies, size, size), torch.from_numpy(x)

    def stretch(first: int, count: int) -> None:
        for weight in weights[first : first + count]:
            torch.mv(weight, vector)

    return stretch


def reading(memory: np.ndarray[Any, Any]) -> Stretch:
    """A "product" is a megabyte."""
    LOOPS.read_all.restype = ctypes.c_int64
    return lambda first, count: LOOPS.read_all(address(memory[first << 20 :]), ctypes.c_int64(count << 17))


@dataclass
class Contender:
    """One implementation: `step` of `copies` matrices at a time, or (warm) the first one `step` times."""

    stretch: Stretch
    copies: int
    step: int
    best: float = float("inf")

    def round(self) -> None:
        for first in range(0, self.copies - self.step + 1, self.step):
            start = time.perf_counter()
            self.stretch(first, self.step)
            self.best = min(self.best, (time.perf_counter() - start) / self.step)

    def repeat(self) -> None:
        for _ in range(max(3, 40 // self.step)):
            start = time.perf_counter()
            for _ in range(self.step):
                self.stretch(0, 1)
            self.best = min(self.best, (time.perf_counter() - start) / self.step)


def contenders_of(size: int, warm: bool, libraries: Any) -> dict[str, Contender]:
    x, y = np.random.default_rng(1).standard_normal(size).astype(np.float32), np.empty(size, dtype=np.float32)
    packed = 1 if warm else max(2, SWEEP // (size * size // 4))
    step = 8 if size <= 2048 else 2
    contenders: dict[str, Contender] = {}
    for path, flags in (("", ()), (" avx2", ("-mno-avx512f",))):
        for kind in ("2bit", "1.6bit"):
            contenders[kind + path] = Contender(ours(size, kind, packed, kernel(*flags), x, y), packed, step)
    for name in TYPES if libraries else ():
        contenders[name] = Contender(theirs(size, name, packed, libraries, x, y), packed, step)
    dense = 1 if warm else max(2, SWEEP // (size * size * 4))
    contenders["fp32"] = Contender(fp32(size, dense, x), dense, 1)
    if not warm:
        contenders["read"] = Contender(reading(buffer(SWEEP)), SWEEP >> 20, 8)
    return contenders


def measure(size: int, warm: bool, rounds: int, libraries: Any) -> dict[str, float]:
    """Seconds of one product, the contenders taking turns."""
    contenders = contenders_of(size, warm, libraries)
    for _ in range(rounds):
        for contender in contenders.values():
            contender.repeat() if warm else contender.round()
    return {name: contender.best for name, contender in contenders.items()}


def report(size: int, temperature: str, times: dict[str, float], read: float) -> None:
    print(f"\n{size} x {size}, {temperature}")
    bytes_of = {"2bit": size * size / 4, "1.6bit": size * -(-size // 20) * 4, "fp32": size * size * 4}
    for name, seconds in times.items():
        if name == "read":
            print(f"  {name:12} {(1 << 20) / seconds / 1e9:8.1f} GB/s")
            continue
        moved = bytes_of.get(name.split()[0])
        speed = f"{moved / seconds / 1e9:6.1f} GB/s {moved / seconds / read:5.0%} of read" if moved else ""
        peer = {"2bit": "TQ2_0", "1.6bit": "TQ1_0"}.get(name.split()[0])
        ratio = f"{times[peer] / seconds:5.2f} x {peer}" if peer in times else " " * 13
        against = f"{times['fp32'] / seconds:6.1f} x fp32" if name != "fp32" else ""
        print(f"  {name:12} {seconds * 1e6:8.1f} us  {ratio:15} {against:12} {speed}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 3 if parser.parse_args().quick else 9
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if LOOPS is None or kernel() is None:
        raise SystemExit("this benchmark needs a C compiler")
    libraries = ggml()
    print(f"kernel: {kernel().products_path().decode()}; ggml: {'llama-cpp-python' if libraries else 'not installed'}")
    for size in (2048, 4096):
        cold = measure(size, False, rounds, libraries)
        read = (1 << 20) / cold["read"]
        report(size, "cold", cold, read)
        report(size, "warm", measure(size, True, rounds, libraries), read)


if __name__ == "__main__":
    main()
