"""How good is the base of `small` against a plain Llama of the same size, text, tokenizer, steps and optimiser?

    AGENT_FORGE_DATA=… python benchmarks/small_control.py            (a GPU; minutes)
    python benchmarks/small_control.py --quick                       (the nano preset's size, on the bundled text)

Both are trained by the same loop on the same rows. Prints bits per byte on held-out documents and the standard error of
the paired difference.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agent_forge.config import build
from agent_forge.forge.corpus import read_corpus
from agent_forge.forge.evaluation.text import measure_text
from agent_forge.forge.models import CognateConfig, CognateForCausalLM
from agent_forge.forge.phases import Work, phase
from agent_forge.forge.phases.cognate import learn, settings_of
from agent_forge.forge.phases.measure import compare
from agent_forge.forge.pipeline import read_pipeline
from agent_forge.forge.training import train_tokenizer
from agent_forge.forge.training.evaluation import HeldOut

LLAMA = {
    "small": {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
              "intermediate_size": 1024},
    "nano": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 256},
}  # fmt: skip


def models(preset: str, config: Any, vocabulary: int) -> dict[str, Any]:
    common = {"vocab_size": vocabulary, "bos_token_id": 0, "eos_token_id": 1}
    llama = LlamaConfig(**LLAMA[preset], **common, tie_word_embeddings=True, max_position_embeddings=4096)
    return {
        "llama": lambda: LlamaForCausalLM(llama),
        "cognate": lambda: CognateForCausalLM(CognateConfig(**{**config.model, **common})),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="The nano preset, 20 steps")
    parser.add_argument("--only", choices=["llama", "cognate"], help="Train only one of the two")
    options = parser.parse_args()
    preset = "nano" if options.quick else "small"
    pipeline = read_pipeline(preset, ["phases.base.config.training.steps=20"] if options.quick else [])
    config = build(phase("cognate").config, pipeline.phases["base"].config, "base")
    corpus = read_corpus(config.sources, config.held_out)
    tokenizer = train_tokenizer((text for texts in corpus.train.values() for text in texts), config.vocab_size)
    judged = HeldOut.of(tokenizer, [t for texts in corpus.held_out.values() for t in texts], config.length)
    bits = {}
    for name, make in models(preset, config, len(tokenizer)).items():
        if options.only not in (None, name):
            continue
        torch.manual_seed(pipeline.seed)
        model = make()
        folder = Path(tempfile.mkdtemp())
        started = time.perf_counter()
        result = learn(
            Work(name, config, [], pipeline.seed, folder, folder), model, tokenizer, corpus,
            settings_of(config.training, pipeline.seed), config.length,
        )  # fmt: skip
        bits[name] = measure_text(model, judged).bits
        size = sum(parameter.numel() for parameter in model.parameters())
        value = bits[name].sum() / sum(judged.bytes_of)
        rate = f"{result.tokens_per_s:,.0f}" if result.tokens_per_s else "-"
        seconds = time.perf_counter() - started
        print(
            f"{name:8s} {size:>12,} parameters  {value:.4f} bits per byte  {rate} tokens/s  {seconds:.0f} s", flush=True
        )
    if len(bits) == 2:
        gate = compare(bits["llama"], bits["cognate"], judged.bytes_of)
        print(f"cognate − llama: {gate.after - gate.before:+.4f} ± {gate.stderr:.4f} bits per byte: {gate.verdict}")


if __name__ == "__main__":
    main()
