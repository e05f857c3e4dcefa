"""How much faster is a packed ternary product than cuBLAS in bfloat16 on one GPU, at batch 1 to 16?

    PYTHONPATH=src python3 benchmarks/ternary_gpu.py [--quick]

Checks the Triton kernel against torch on the CPU first, for every kind, odd sizes, groups and
batches, and stops if it is wrong. Times are of CUDA graphs that go through more matrices than the
L2 cache holds (cold, as in a model), product by product; "limit" is the time to read the packed
bytes once at the bandwidth measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch

from agent_forge.inference.packed import PackedMatrix, gpu
from agent_forge.inference.packed.layout import KINDS, LIMITS
from agent_forge.inference.packed.products import torch_product

SWEEP_BYTES = 256 << 20


def matrix(kind: str, rows: int, columns: int, group: int | None = None, seed: int = 0) -> PackedMatrix:
    draw = torch.Generator().manual_seed(seed)
    low, high = LIMITS[kind]
    values = torch.randint(low, high + 1, (rows, columns), generator=draw, dtype=torch.int16).to(torch.int8)
    if kind == "4level":
        values = torch.randint(0, 4, (rows, columns), generator=draw, dtype=torch.int8) * 2 - 3
    groups = -(-columns // min(group or columns, columns))
    return PackedMatrix.of(values, torch.rand(rows, groups, generator=draw) + 0.1, kind, group)


def on_gpu(packed: PackedMatrix) -> PackedMatrix:
    return PackedMatrix(packed.shape, packed.packed.cuda(), packed.scales.cuda())


def check(batches: tuple[int, ...] = (1, 2, 3, 5, 16)) -> None:
    """Every kind against torch on the CPU. Without groups the sums are whole numbers: equal to the last bits."""
    worst = 0.0
    for kind in KINDS:
        for rows, columns, group in ((16, 64, None), (37, 300, None), (100, 1000, 128), (64, 2048, 128), (1, 1, None)):
            packed = matrix(kind, rows, columns, group)
            there = on_gpu(packed)
            for tokens in batches:
                x, bias = torch.randn(tokens, columns), torch.randn(rows)
                expected = torch_product(x, packed, bias)
                actual = gpu.product(x.cuda(), there, bias.cuda()).cpu()
                error = float((actual - expected).abs().max() / expected.abs().max())
                worst = max(worst, error)
                assert error < 1e-5, f"{kind} {rows} x {columns} group {group}, {tokens} tokens: error {error:.2g}"
    bad = torch.randn(4, 64)
    bad[0, 3], bad[1, 5] = torch.nan, torch.inf
    finite = gpu.product(bad.cuda(), on_gpu(matrix("2bit", 16, 64))).isfinite().all(1)
    assert finite.tolist() == [False, False, True, True], "a product with NaN or infinity must be NaN"
    sizes = ", ".join(map(str, batches))
    print(
        f"correct: {len(KINDS)} kinds, odd sizes, groups, batches of {sizes}; largest relative difference {worst:.1g}"
    )


def bandwidth() -> float:
    """Bytes per second of reading (the faster of a sum and a copy, whose writes count too)."""
    source, target = torch.ones(1 << 28, device="cuda"), torch.empty(1 << 28, device="cuda")
    copy = 2 * source.nbytes / seconds(lambda: target.copy_(source), 1)
    return max(copy, source.nbytes / seconds(lambda: source.sum(), 1))


def seconds(work: Any, products: int, repeats: int = 20) -> float:
    """The time of one of `products` in `work`, by CUDA events around a replayed graph: the best of several."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    best = float("inf")
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3)
    return best / products


def sweep(size: int, kind: str) -> list[PackedMatrix]:
    first = on_gpu(matrix(kind, size, size))
    count = max(4, SWEEP_BYTES // first.packed.nbytes)
    return [PackedMatrix(first.shape, first.packed.clone(), first.scales.clone()) for _ in range(count)]


def packed_seconds(matrices: list[PackedMatrix], tokens: int) -> tuple[float, float]:
    """(with the activations quantised for every product, the product alone)"""
    x = torch.randn(tokens, matrices[0].shape.columns, device="cuda", dtype=torch.bfloat16)
    both = seconds(lambda: [gpu.product(x, each) for each in matrices], len(matrices))
    if tokens >= gpu.TENSOR_CORES:
        planes = gpu.quantize_planes(x, matrices[0])
        return both, seconds(lambda: [gpu.multiply_batch(*planes, each) for each in matrices], len(matrices))
    numbers, units = gpu.quantize(x, matrices[0])
    return both, seconds(lambda: [gpu.multiply(numbers, units, each) for each in matrices], len(matrices))


def dense_seconds(size: int, tokens: int) -> float:
    count = max(4, SWEEP_BYTES // (2 * size * size))
    weights = [torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    x = torch.randn(tokens, size, device="cuda", dtype=torch.bfloat16)
    return seconds(lambda: [torch.nn.functional.linear(x, each) for each in weights], count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one size, two batches")
    parser.add_argument("--brief", action="store_true", help="check three batch sizes, not five: compiling takes long")
    args = parser.parse_args()
    quick = args.quick
    if not gpu.available():
        raise SystemExit("this benchmark needs a CUDA device and Triton")
    torch.manual_seed(0)
    check((1, 3, 16) if args.brief else (1, 2, 3, 5, 16))
    limit = bandwidth()
    print(f"{torch.cuda.get_device_name()}: {limit / 1e12:.2f} TB/s read; microseconds per product, cold sweep")
    print("  size    kind batch     bf16   packed    alone   limit  ratio of limit")
    rows: list[dict[str, Any]] = []
    for size in (4096,) if quick else (2048, 4096, 8192):
        dense = {tokens: dense_seconds(size, tokens) for tokens in ((1, 16) if quick else (1, 2, 4, 8, 16))}
        for kind in ("2bit", "1.6bit"):
            matrices = sweep(size, kind)
            floor = (matrices[0].packed.nbytes + matrices[0].scales.nbytes) / limit
            for tokens, bf16 in dense.items():
                both, alone = packed_seconds(matrices, tokens)
                row = {"size": size, "kind": kind, "batch": tokens, "bf16": bf16, "packed": both, "alone": alone}
                rows.append(row | {"limit": floor, "ratio": bf16 / both, "ratio_alone": bf16 / alone})
                print(
                    f"{size:6} {kind:>7} {tokens:5} {bf16 * 1e6:8.2f} {both * 1e6:8.2f} {alone * 1e6:8.2f}"
                    f" {floor * 1e6:7.2f} {bf16 / both:6.2f} {floor / alone:8.0%}",
                    flush=True,
                )
            del matrices
            torch.cuda.empty_cache()
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], "ternary_gpu.json").write_text(json.dumps({"read_bytes_per_s": limit, "rows": rows}))


if __name__ == "__main__":
    main()
