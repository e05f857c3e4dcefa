"""In a process of its own, with AddressSanitizer loaded: the package's C, compiled with sanitizers, on random and
damaged inputs, through its own callers. Prints how many inputs there were; a report of a sanitizer ends the process."""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from agent_forge import native
from agent_forge.errors import AgentForgeError

SANITIZERS = (
    "-O1",
    "-g1",
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize-recover=all",
)  # the last -O counts
native.FLAGS = (*native.FLAGS, *SANITIZERS)

PLANTED = """#include <stdint.h>
int beyond(uint8_t *x, int64_t n) { x[n] = 1; return 0; }
int overflow(uint8_t *x, int64_t n) { return INT32_MAX - x[0] + (int)n; }
int shift(uint8_t *x, int64_t n) { return 1 << (n + x[0]); }
"""


def planted(function: str) -> None:
    """The control: each of these faults ends the process."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "planted.c").write_text(PLANTED)
        library = native.load(Path(folder) / "planted.c")
        assert library is not None
        data = np.zeros(4096, np.uint8)
        getattr(library, function)(ctypes.c_void_p(data.ctypes.data), ctypes.c_int64(data.size))


def damage(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        changed[draw.randrange(len(changed))] = draw.choice([0, 1, 127, 128, 255, draw.randrange(256)])
    return bytes(changed[: draw.randint(1, len(changed))] if draw.random() < 0.3 else changed)


def entropy(draw: random.Random) -> None:
    """rans.c: symbols come back, and damaged streams are refused or give other symbols."""
    from agent_forge.forge.compression.entropy import pack_symbols, unpack_symbols

    numbers = np.random.default_rng(draw.randrange(1 << 30))
    count = draw.choice([0, 1, 63, 64, 65, 1000])
    symbols = numbers.integers(0, draw.choice([1, 2, 300, 4096]), count)
    contexts = numbers.integers(0, 3, count).astype(np.uint8) if draw.random() < 0.5 else None
    packed = pack_symbols(symbols, contexts)
    assert (unpack_symbols(packed, contexts) == symbols).all()
    with suppress(AgentForgeError):
        unpack_symbols(damage(packed, draw), contexts)


def decoder(draw: random.Random) -> None:
    """decoder.c, attention.c and products.c: a folder with random shapes, random bits as weights, absurd settings."""
    from packed_folders import random_folder

    from agent_forge.inference.packed.model import PackedModel

    with tempfile.TemporaryDirectory() as name:
        folder = random_folder(Path(name), draw.randrange(1 << 30))
        config = json.loads((folder / "config.json").read_text())
        packing = config["quantization_config"]
        if draw.random() < 0.4:
            part = draw.choice([config, packing, *packing["matrices"].values()])
            part[draw.choice(sorted(part))] = draw.choice(
                [0, 1, -1, 3, 7, 64, 1 << 20, 1 << 40, 1.5, None, "x", [], {}]
            )
        weights = folder / "model.safetensors"
        data = weights.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        if draw.random() < 0.5:  # other weights, NaN and codes that are none among them; the header is scenario 6's
            data = data[:start] + draw.randbytes(len(data) - start)
            weights.write_bytes(data)
            packing["files"] = {weights.name: hashlib.sha256(data).hexdigest()}
        (folder / "config.json").write_text(json.dumps(config))
        with suppress(AgentForgeError):
            model = PackedModel.load(folder)
            history = model.history()
            for _ in range(2):
                ids = [draw.randrange(model.network.table.rows) for _ in range(draw.randint(1, 40))]
                model.read(history, ids, each=draw.randint(0, len(ids)))
            model.step([history, model.history()], [0, 1])


def products(draw: random.Random) -> None:
    """products.c on all its paths: random shapes, and packed bytes that may be anything."""
    from agent_forge.inference.packed.kernels import CMatrix, kernel
    from agent_forge.inference.packed.layout import KINDS, ROWS, PackedShape

    rows, columns, tokens = draw.randint(1, 70), draw.randint(1, 700), draw.randint(1, 6)
    kind = draw.choice(KINDS)
    shape = PackedShape(kind, rows, columns, min(columns, draw.choice([7, 16, 128, columns])))
    numbers = np.random.default_rng(draw.randrange(1 << 30))
    half = draw.random() < 0.5
    packed = numbers.integers(0, 256, shape.packed).astype(np.uint8)
    scales = numbers.normal(size=(shape.groups, shape.tiles * ROWS)).astype(np.float16 if half else np.float32)
    x, y = numbers.normal(size=(tokens, columns)).astype(np.float32), np.empty((tokens, rows), np.float32)
    matrix = CMatrix(KINDS.index(kind), half, rows, columns, shape.group, packed.ctypes.data, scales.ctypes.data)
    for flags in ((), ("-mno-avx512f",), ("-DPLAIN",)):
        library = kernel(*flags)
        assert library is not None
        assert library.products_linear(ctypes.byref(matrix), tokens, x.ctypes.data, y.ctypes.data) == 0


def merging(draw: random.Random) -> None:
    """kernel.c and couples.c: every method on random shapes and types, with numbers that are none."""
    import torch

    from agent_forge.forge.merging import merge_tensors, parse_recipe
    from agent_forge.forge.merging.settings import METHODS

    class Model(dict[str, Any]):
        config = {"model_type": "llama"}  # noqa: RUF012

    shape = draw.choice([(1,), (draw.randint(1, 5000),), (draw.randint(1, 40), draw.randint(1, 300)), (3, 7, 11)])
    dtype = draw.choice([torch.bfloat16, torch.float32, torch.float16, torch.float64])
    generator = torch.Generator().manual_seed(draw.randrange(1 << 30))

    def tensor() -> Any:
        made = torch.randn(shape, generator=generator) ** draw.choice([1, 9])
        if draw.random() < 0.2:
            made.view(-1)[draw.randrange(made.numel())] = draw.choice([float("nan"), float("inf"), -0.0])
        return (made * (torch.rand(shape, generator=generator) < draw.random())).to(dtype)

    sources = {name: Model({"x.weight": tensor()}) for name in ("base", "a", "b")}
    own = {"weight": draw.uniform(-1, 2), "density": draw.random(), "gamma": draw.random() / 2, "epsilon": 0.1}
    models = [{"model": name, "parameters": own} for name in "ab"]
    document = {"merge_method": draw.choice(sorted(METHODS)), "base_model": "base", "models": models}
    document["parameters"] = {"select_topk": draw.random(), "t": draw.random(), "normalize": draw.random() < 0.5}
    with suppress(AgentForgeError):
        merge_tensors(parse_recipe(document), sources=sources)


TARGETS: dict[str, Callable[[random.Random], None]] = {
    "entropy": entropy, "decoder": decoder, "products": products, "merging": merging
}  # fmt: skip

if __name__ == "__main__":
    name, count, tests = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    sys.path.append(tests)
    if name not in TARGETS:
        planted(name)
    for seed in range(count):
        print(f"{name} {seed}", file=sys.stderr)  # the last line names the input that a report is about
        TARGETS[name](random.Random(f"{name} {seed}"))
    print(count)
