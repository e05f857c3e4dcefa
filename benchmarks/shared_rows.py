"""What does a token of many answers cost when the answers to a prompt share its keys and values?

    PYTHONPATH=src python benchmarks/shared_rows.py            SmolLM2-135M's shape: in bf16 on a GPU, or one thread
    PYTHONPATH=src python benchmarks/shared_rows.py --quick    a check that it runs

Beside it the same batch with a copy for every answer, which is how answers to different prompts are written. Random
weights and prompts of 150 to 800 tokens; seconds to read the prompts, milliseconds per token of all answers (after the
first, in which a GPU records the step), and on a GPU the memory that it takes.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agent_forge.inference.shared_rows import SharedRows
from agent_forge.inference.torch_rows import BufferRows, Reader

SMOL = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3}  # fmt: skip
TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
WORDS = 49_152


def measured(kind: Any, model: Any, prompts: list[list[int]], copies: int, steps: int) -> tuple[float, float, str]:
    """Seconds to read, milliseconds per token, and a GPU's memory."""
    gpu = model.device.type == "cuda"

    def now() -> float:
        if gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    tokens = torch.randint(model.config.vocab_size, (len(prompts) * copies,), device=model.device)
    rows = kind(Reader(model))
    rows.steady = True
    with torch.inference_mode():
        start = now()
        rows.add(prompts, copies)
        read = now() - start
        rows.extend(tokens)
        start = now()
        for _ in range(steps):
            rows.extend(tokens)
        step = (now() - start) / steps
    return read, step * 1e3, f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if gpu else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    gpu, drawn = torch.cuda.is_available(), random.Random(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(vocab_size=512 if options.quick else WORDS, max_position_embeddings=2048,
                         **(TINY if options.quick else SMOL))  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    if gpu:
        model = model.to("cuda", torch.bfloat16)
    sizes = ((16, 8), (128, 16), (512, 8)) if gpu else ((2, 2),) if options.quick else ((8, 4), (4, 8), (2, 16))
    for count, copies in sizes:
        lengths = [drawn.randrange(150, 800) for _ in range(count)]
        prompts = [[drawn.randrange(config.vocab_size) for _ in range(length)] for length in lengths]
        steps = {}
        for kind in (SharedRows, BufferRows):
            name = "shared" if kind is SharedRows else "a copy each"
            try:
                read, steps[name], memory = measured(kind, model, prompts, copies, 2 if options.quick else 8)
                print(f"{count:4} prompts × {copies:2}, {name:12} read {read:6.2f} s, {steps[name]:7.1f} ms", memory)
            except torch.OutOfMemoryError:
                print(f"{count:4} prompts × {copies:2}, {name:12} out of memory")
        if len(steps) == 2:
            print(f"                    a copy each / shared: {steps['a copy each'] / steps['shared']:.2f} × per token")


if __name__ == "__main__":
    main()
