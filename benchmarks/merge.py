"""How fast are merges, compared with mergekit and with the limit (reading all inputs, writing the output)?

    python benchmarks/merge.py [--quick] [--dtype bfloat16 float32] [--mergekit PYTHON | --no-mergekit]
    python benchmarks/merge.py --essential     the methods with a goal, in less than four minutes
    python benchmarks/merge.py --torch         with and without the compiled kernel, in turns
    python benchmarks/merge.py --growth        three sizes of model

Llama checkpoints of 134 M parameters (`--quick`: 29 M), one thread, warm page cache, after imports, without syncing;
ours and the limit take turns, and the fastest of each counts. There are two limits, both reading every byte of the
inputs and writing one output: with the safetensors library, and with bare system calls (mmap and pwrite).
mergekit 0.1.5 is installed once, into an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from agent_forge.forge.merging import MergeSettings, merge, parse_recipe, prepare

Shapes = dict[str, tuple[int, ...]]
PEER = Path(tempfile.gettempdir()) / "agent-forge-mergekit"


def llama(layers: int, width: int, inner: int, vocabulary: int) -> tuple[dict[str, Any], Shapes]:
    """The config.json and the tensors of a Llama."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": width // 64, "num_key_value_heads": width // 64,
        "vocab_size": vocabulary, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    shapes: Shapes = {"model.embed_tokens.weight": (vocabulary, width)}
    for layer in range(layers):
        before = f"model.layers.{layer}."
        shapes |= {f"{before}self_attn.{name}_proj.weight": (width, width) for name in "qkvo"}
        shapes |= {f"{before}mlp.{name}_proj.weight": (inner, width) for name in ("up", "gate")}
        shapes[f"{before}mlp.down_proj.weight"] = (width, inner)
        shapes |= {f"{before}{name}_layernorm.weight": (width,) for name in ("input", "post_attention")}
    return config, shapes | {"model.norm.weight": (width,), "lm_head.weight": (vocabulary, width)}


def checkpoint(folder: Path, config: dict[str, Any], shapes: Shapes, dtype: str, seed: int) -> None:
    """A base (seed 0), or an expert beside it, of random numbers."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": dtype}))
    width, code = (2, "BF16") if dtype == "bfloat16" else (4, "F32")
    entries, at = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape)) * width
        entries[name] = {"dtype": code, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for number, shape in enumerate(shapes.values()):
            x = np.random.default_rng(number).standard_normal(shape, np.float32) * np.float32(0.02)
            if seed:
                x += np.random.default_rng([seed, number]).standard_normal(shape, np.float32) * np.float32(0.004)
            file.write((x.view(np.uint32) >> 16).astype(np.uint16).tobytes() if width == 2 else x.tobytes())


def recipes(folder: Path, dtype: str) -> dict[str, dict[str, Any]]:
    base, experts = str(folder / "base"), [str(folder / name) for name in "ab"]

    def experts_with(**values: float) -> list[dict[str, Any]]:
        return [{"model": expert, "parameters": values} for expert in experts]

    task = {"base_model": base, "dtype": dtype}
    half = {"weight": 0.5, "density": 0.5}
    return {
        "linear": {"merge_method": "linear", "models": experts_with(weight=0.5), "dtype": dtype},
        "slerp": {
            "merge_method": "slerp", "base_model": experts[0], "models": [{"model": expert} for expert in experts],
            "parameters": {"t": 0.4}, "dtype": dtype,
        },
        "task_arithmetic": {"merge_method": "task_arithmetic", "models": experts_with(weight=0.5), **task},
        "dare_ties": {"merge_method": "dare_ties", "models": experts_with(**half), **task},
        "ties": {"merge_method": "ties", "models": experts_with(**half), **task},
        "ties .6 .3": {
            "merge_method": "ties", **task,
            "models": [
                {"model": expert, "parameters": {"weight": weight, "density": 0.5}}
                for expert, weight in zip(experts, (0.6, 0.3), strict=True)
            ],
        },
        "breadcrumbs": {"merge_method": "breadcrumbs", "models": experts_with(**half), **task},
        "della": {"merge_method": "della", "models": experts_with(**half, epsilon=0.15), **task},
        "model_stock": {"merge_method": "model_stock", "models": [{"model": expert} for expert in experts], **task},
    }  # fmt: skip


def limit(inputs: list[Path], out: Path) -> None:
    """Reads every byte of the inputs and writes the first one, with the safetensors library."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    first = {}
    for number, file in enumerate(inputs):
        with safe_open(str(file), "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (not a mapping)
                tensor = opened.get_tensor(name)
                tensor.view(torch.int64).max()
                if number == 0:
                    first[name] = tensor
    save_file(first, str(out))


def floor(inputs: list[Path], out: Path) -> None:
    """The limit with bare system calls: sums the mapped inputs, and writes the first one straight from its map."""
    for number, file in enumerate(inputs):
        with open(file, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            data = np.frombuffer(mapped, np.uint64, count=len(mapped) // 8)
            for start in range(0, len(data), 1 << 17):
                data[start : start + (1 << 17)].sum()
            if number == 0:
                with open(out, "wb") as target, memoryview(mapped) as view:
                    for start in range(0, len(mapped), 1 << 19):
                        os.pwrite(target.fileno(), view[start : start + (1 << 19)], start)
            del data


def bandwidth() -> str:
    """The memory bandwidth of one core, in GB/s; the best of five."""
    data = np.ones(1 << 25, np.uint64)
    copy = np.empty_like(data)
    read = min(timed(data.sum)[1] for _ in range(5))
    copied = min(timed(lambda: np.copyto(copy, data))[1] for _ in range(5))
    size = data.nbytes / 1e9
    return f"memory, one core: {size / read:.1f} GB/s read by a sum, {2 * size / copied:.1f} read and written by a copy"


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def ours(recipe: dict[str, Any], out: Path) -> tuple[float, float]:
    parsed = parse_recipe(recipe)
    shutil.rmtree(out, ignore_errors=True)
    return timed(lambda: merge(parsed, out, MergeSettings(threads=1, sync=False)))


PEER_SCRIPT = """
import json, sys, time, torch
torch.set_num_threads(1)
from mergekit.config import MergeConfiguration
from mergekit.merge import run_merge
from mergekit.options import MergeOptions
imported = time.process_time()
request = json.load(sys.stdin)
wall, cpu = time.perf_counter(), time.process_time()
options = MergeOptions(copy_tokenizer=False, write_model_card=False, quiet=True)
run_merge(MergeConfiguration.model_validate(request["recipe"]), request["out"], options)
took = time.perf_counter() - wall, time.process_time() - cpu
print(json.dumps([*took, imported]))
"""


def mergekit(python: Path, recipe: dict[str, Any], out: Path) -> tuple[float, float, float]:
    """Wall and CPU seconds of the merge itself, and the CPU seconds before it."""
    shutil.rmtree(out, ignore_errors=True)
    request = json.dumps({"recipe": recipe, "out": str(out)})
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [str(python), "-c", PEER_SCRIPT], input=request, capture_output=True, text=True, check=False, env=environment
    )
    if ran.returncode:
        raise SystemExit(f"mergekit failed:\n{ran.stderr[-2000:]}")
    wall, cpu, before = json.loads(ran.stdout.splitlines()[-1])
    return wall, cpu, before


def peer() -> Path:
    python = PEER / "bin" / "python"
    if not (PEER / "ready").exists():
        print(f"installing mergekit 0.1.5 into {PEER} …", file=sys.stderr)
        venv.create(PEER, with_pip=True)
        import importlib.metadata

        torch = importlib.metadata.version("torch").split("+")[0]
        subprocess.run([str(python), "-m", "pip", "install", "-q", "mergekit==0.1.5", f"torch=={torch}"], check=True)
        (PEER / "ready").touch()
    return python


def anonymous_megabytes(recipe: dict[str, Any], folder: Path) -> float:
    """The peak of anonymous memory (not mapped from files) of `agent-forge merge`, sampled every 5 ms."""
    config, out = folder / "memory.yaml", folder / "memory-out"
    config.write_text(json.dumps(recipe))
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "agent_forge", "merge", str(config), str(out), "--threads", "1", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    most = 0
    while process.poll() is None:
        try:
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
            most = max(most, next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Anonymous:")))
        except (OSError, StopIteration):
            pass
        time.sleep(0.005)
    return most / 1024


def least(took: list[tuple[float, float]]) -> tuple[float, float]:
    return min(wall for wall, _ in took), min(cpu for _, cpu in took)


def measure(folder: Path, cases: dict[str, Any], rounds: int) -> tuple[dict[Any, Any], dict[Any, Any], dict[str, Any]]:
    """The limits (library, bare) by the number of inputs, and ours by name: wall and CPU seconds, in turns."""
    inputs = [folder / name / "model.safetensors" for name in ("a", "b", "base")]
    library: dict[int, list[tuple[float, float]]] = {2: [], 3: []}
    bare: dict[int, list[tuple[float, float]]] = {2: [], 3: []}
    best: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    out = folder / "limit"
    for _ in range(rounds):
        limit(inputs, out)  # not counted: the first write after a merge takes up to twice as long
        for count in (2, 3):
            for took, work in ((library[count], limit), (bare[count], floor)):
                out.unlink(missing_ok=True)
                took.append(timed(lambda work=work, count=count: work(inputs[:count], out)))
        for name, recipe in cases.items():
            best[name].append(ours(recipe, folder / "out"))
    return (
        {count: least(took) for count, took in library.items()},
        {count: least(took) for count, took in bare.items()},
        {name: least(took) for name, took in best.items()},
    )


def compare(folder: Path, dtype: str, python: Path | None, rounds: int, names: list[str], peers: list[str]) -> None:
    cases = {name: recipe for name, recipe in recipes(folder, dtype).items() if name in names}
    library, bare, best = measure(folder, cases, rounds)
    for count in (2, 3):
        print(
            f"{dtype}: limit for {count} inputs, wall and CPU s: safetensors library {library[count][0]:.3f}, "
            f"{library[count][1]:.3f}; bare system calls {bare[count][0]:.3f}, {bare[count][1]:.3f}"
        )
    head = f"{'':16s}{'':8s}{'x limit (wall)':>16s}{'':8s}{'x limit (CPU)':>16s}\n"
    head += f"{'method':16s}{'wall s':>8s}{'library':>8s}{'bare':>8s}{'CPU s':>8s}{'library':>8s}{'bare':>8s}"
    print(head + (f"{'mergekit wall':>15s}{'x library':>10s}{'CPU s':>8s}{'CPU ratio':>11s}" if peers else ""))
    before = 0.0
    for name, recipe in cases.items():
        count = 2 if recipe["merge_method"] in ("linear", "slerp") else 3
        (lib_wall, lib_cpu), (bare_wall, bare_cpu), (wall, cpu) = library[count], bare[count], best[name]
        line = f"{name:16s}{wall:8.3f}{wall / lib_wall:8.2f}{wall / bare_wall:8.2f}"
        line += f"{cpu:8.3f}{cpu / lib_cpu:8.2f}{cpu / bare_cpu:8.2f}"
        if python and name in peers:
            peer_wall, peer_cpu, before = mergekit(python, recipe, folder / "peer")
            line += f"{peer_wall:15.2f}{peer_wall / lib_wall:10.1f}{peer_cpu:8.2f}{peer_cpu / cpu:11.1f}"
        print(line, flush=True)
    if before:
        print(f"mergekit uses {before:.1f} CPU s before it starts")


SIZES = {"29 M": (4, 512, 1376, 16000), "134 M": (12, 768, 2048, 32000), "267 M": (24, 896, 2432, 32000)}


def growth(root: Path, dtype: str, rounds: int, names: list[str]) -> None:
    """CPU seconds per million parameters, at three sizes."""
    print(f"{dtype}: CPU s, and ms per million parameters\n{'method':16s}" + "".join(f"{size:>18s}" for size in SIZES))
    lines = {name: f"{name:16s}" for name in names}
    for size, shape in SIZES.items():
        config, shapes = llama(*shape)
        folder = root / f"size-{size.replace(' ', '')}-{dtype}"
        make_family(folder, config, shapes, dtype)
        millions = sum(int(np.prod(shape)) for shape in shapes.values()) / 1e6
        for name in names:
            cpu = min(ours(recipes(folder, dtype)[name], folder / "out")[1] for _ in range(rounds))
            lines[name] += f"{cpu:10.3f}{1000 * cpu / millions:8.2f}"
        shutil.rmtree(folder)
    print("\n".join(lines.values()), flush=True)


def make_family(folder: Path, config: dict[str, Any], shapes: Shapes, dtype: str) -> None:
    for seed, name in enumerate(("base", "a", "b")):
        if not (folder / name).exists():
            checkpoint(folder / name, config, shapes, dtype, seed)


ESSENTIAL = ["linear", "slerp", "dare_ties", "ties", "della"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="29 M parameters")
    parser.add_argument("--essential", action="store_true", help="the methods with a goal; mergekit for TIES only")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--mergekit", type=Path, help="a Python with mergekit")
    parser.add_argument("--mergekit-methods", nargs="+", help="methods that mergekit runs, once each")
    parser.add_argument("--no-mergekit", action="store_true")
    parser.add_argument("--torch", action="store_true", help="with and without the compiled kernel, CPU time")
    parser.add_argument("--growth", action="store_true", help="three sizes of model only")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--folder", type=Path, help="where the checkpoints are written, and left")
    return parser.parse_args()


def compare_engines(folder: Path, dtype: str, rounds: int, names: list[str]) -> None:
    """CPU seconds with the compiled kernel and with torch alone, in turns."""
    import torch

    torch.set_num_threads(1)
    print(f"{dtype}: CPU s\n{'method':16s}{'kernel':>8s}{'torch':>8s}{'ratio':>8s}")
    for name in names:
        took: dict[str, list[float]] = {"1": [], "0": []}
        for _ in range(rounds):
            for switch, times in took.items():
                os.environ["AGENT_FORGE_NATIVE"] = switch
                times.append(ours(recipes(folder, dtype)[name], folder / "out")[1])
        kernel, plain = min(took["1"]), min(took["0"])
        print(f"{name:16s}{kernel:8.3f}{plain:8.3f}{plain / kernel:8.1f}", flush=True)


def main() -> None:
    options = arguments()
    alone = options.no_mergekit or options.torch or options.growth
    python = None if alone else options.mergekit or peer()
    config, shapes = llama(*SIZES["29 M" if options.quick else "134 M"])
    rounds = options.rounds or (3 if options.quick or options.torch else 5)
    with tempfile.TemporaryDirectory() as temporary:
        root = options.folder or Path(temporary)
        for dtype in options.dtype:
            if options.growth:
                growth(root, dtype, rounds, options.methods or ["linear", "ties", "della"])
                continue
            folder = root / f"{'small' if options.quick else 'large'}-{dtype}"
            make_family(folder, config, shapes, dtype)
            names = options.methods or (ESSENTIAL if options.essential else list(recipes(folder, dtype)))
            if options.torch:
                compare_engines(folder, dtype, rounds, names)
                continue
            peers = options.mergekit_methods or (["ties"] if options.essential else names)
            compare(folder, dtype, python, rounds, names, peers if python else [])
            memory_and_check(folder, dtype)
        print(bandwidth())


def memory_and_check(folder: Path, dtype: str) -> None:
    for name in ("linear", "ties", "della"):
        memory = anonymous_megabytes(recipes(folder, dtype)[name], folder)
        print(f"anonymous memory, {name}: {memory:.0f} MB")
    parsed = parse_recipe(recipes(folder, dtype)["ties"])
    checks = [timed(lambda: prepare(parsed))[0] for _ in range(3)]
    print(f"configuration checked in {min(checks):.3f} s", flush=True)


if __name__ == "__main__":
    main()
