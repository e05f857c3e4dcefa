"""Reinforcement learning: does it learn what is known to be best, how fast beside TRL, and what does it take on a GPU?

    PYTHONPATH=src python benchmarks/reinforce.py                      the toys, and TRL if it can be imported
    PYTHONPATH=src python benchmarks/reinforce.py --quick              anywhere: a check that it runs
    PYTHONPATH=src python benchmarks/reinforce.py --gpu --model DIR    on a GPU: SmolLM2-135M and 3 B random weights

TRL is no dependency: `pip install --no-deps --target PEERS trl==1.16.* datasets dill multiprocess xxhash pandas
python-dateutil pytz tzdata six`, then `--peer PEERS`. Seconds are CPU seconds on a CPU, wall seconds on a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agent_forge.forge.adapters import add_adapter
from agent_forge.forge.training import PromptItem, ReinforceSettings
from agent_forge.forge.training.reinforce import Collector, reinforce
from agent_forge.forge.training.settings import LoraSettings

TOKENS, LENGTH, FIRST = 16, 4, 4  # of the toy: kinds of tokens, length of an answer, number of the first of them


# ---------------------------------------------------------------------------------------------- the toy


def toy_model(seed: int, quick: bool) -> LlamaForCausalLM:
    """0.94 M parameters, random."""
    torch.manual_seed(seed)
    full = {"hidden_size": 160, "intermediate_size": 432, "num_hidden_layers": 3, "num_attention_heads": 4}
    tiny = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape = tiny if quick else full
    config = LlamaConfig(vocab_size=TOKENS + FIRST, num_key_value_heads=4, max_position_embeddings=64, **shape)
    return LlamaForCausalLM(config)


def draw_toy(number: int) -> list[PromptItem]:
    """Sixteen prompts of one token each; the answer counts on from it."""
    return [PromptItem([FIRST + a], a) for a in range(TOKENS)]


def right(item: int) -> list[int]:
    return [FIRST + (item + 1 + i) % TOKENS for i in range(LENGTH)]


def per_token(item: int, answer: list[int]) -> list[float]:
    """Each token's own credit."""
    return [float(a == b) / LENGTH for a, b in zip(answer, right(item), strict=True)]


def per_answer(item: int, answer: list[int]) -> float:
    return sum(per_token(item, answer))


@torch.no_grad()
def expected(model: torch.nn.Module) -> float:
    """The expected share of right tokens of the policy, from its own answers (64 per prompt). The optimum is 1."""
    settings = ReinforceSettings(copies=64, prompts=TOKENS, max_tokens=LENGTH, resample=0, seed=12345)
    model.eval()
    return float(Collector(model, draw_toy, per_answer, settings)(0).drawn.mean())


def toys(quick: bool) -> None:
    iterations = 3 if quick else 200
    base = ReinforceSettings(
        iterations=iterations,
        prompts=TOKENS,
        copies=16,
        max_tokens=LENGTH,
        learning_rate=5e-4,
        evaluate_every=0,
        micro_rows=256,
        resample=0,
    )
    luck = random.Random(0)
    rows: list[tuple[str, ReinforceSettings, Callable[..., Any]]] = [
        ("GRPO, one number per answer", base, per_answer),
        ("GRPO, credit per token", replace(base, discount=0.0), per_token),
        ("PPO, credit per token", replace(base, algorithm="ppo"), per_token),
        ("control: shuffled rewards", base, lambda *_: luck.randrange(5) / 4),
    ]
    size = sum(p.numel() for p in toy_model(0, quick).parameters())
    print(f"\ntoy: {size:,} parameters, {16 * TOKENS} answers per iteration, {iterations} iterations; optimum 1.000")
    print(f"{'':34}{'before':>8}{'after':>8}{'seconds':>9}")
    for name, settings, reward in rows:
        model = toy_model(0, quick)
        before, start = expected(model), time.process_time()
        reinforce(model, draw_toy, reward, settings, progress=None)
        print(f"{name:34}{before:8.3f}{expected(model):8.3f}{time.process_time() - start:9.1f}", flush=True)


def credit(quick: bool) -> None:
    """Answers until the reward of an iteration first exceeds 0.9: three seeds, with and without credit per token."""
    print("\nanswers until the mean reward exceeds 0.9 (three seeds)")
    for name, reward, discount in (("one number per answer", per_answer, 1.0), ("credit per token", per_token, 0.0)):
        needed = []
        for seed in range(3):
            reached: list[int] = []

            def note(record: dict[str, Any], reached: list[int] = reached) -> None:
                if record.get("reward", 0.0) > 0.9:
                    reached.append(record["iteration"])
                    raise StopIteration

            settings = ReinforceSettings(
                iterations=2 if quick else 150,
                prompts=TOKENS,
                copies=8,
                max_tokens=LENGTH,
                learning_rate=2e-3,
                evaluate_every=0,
                micro_rows=256,
                resample=0,
                discount=discount,
                seed=seed,
            )
            with suppress(StopIteration):
                reinforce(toy_model(seed, True), draw_toy, reward, settings, progress=None, on_record=note)
            needed.append(reached[0] * 8 * TOKENS if reached else None)
        print(f"{name:34}" + "".join(f"{'never' if n is None else format(n, ','):>10}" for n in needed), flush=True)


# ---------------------------------------------------------------------------------------------- beside TRL


def race_model(vocab: int, quick: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    full = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 4}
    tiny = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape = tiny if quick else full
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocab, num_key_value_heads=4, max_position_embeddings=512, **shape))


def race(quick: bool, device: str = "cpu", model: Any = None, tokenizer: Any = None, **sizes: int) -> None:
    """Steps of GRPO: one optimiser step on 8 answers of 32 tokens to one prompt of 12 words (or `sizes`)."""
    from agent_forge.forge.training import train_tokenizer

    steps, rounds = (3, 1) if quick else (6, 3)  # alternating, as the machine may not be quiet
    size = {"prompts": 1, "copies": 8, "tokens": 8 if quick else 32, "words": 12, **sizes}
    words = "the cat sat on the mat and the dog ran off with a bone while it rained all day long in the old town"
    tokenizer = tokenizer or train_tokenizer([words] * 20, 512)
    make = model or (lambda: race_model(len(tokenizer), quick).to(device))
    many = words.split() * (2 + size["words"] // 12)
    texts = [" ".join(many[i % 7 : i % 7 + size["words"]]) for i in range(64)]
    clock = time.process_time if device == "cpu" else time.perf_counter

    def reward(_: Any, answer: str) -> float:
        return sum(letter in "aeiou" for letter in answer) / max(1, len(answer))

    settings = ReinforceSettings(
        iterations=steps,
        prompts=size["prompts"],
        copies=size["copies"],
        max_tokens=size["tokens"],
        learning_rate=1e-6,
        evaluate_every=0,
        resample=0,
        micro_rows=size["prompts"] * size["copies"],
    )

    def draw(number: int) -> list[PromptItem]:
        chosen = [texts[(number * size["prompts"] + i) % len(texts)] for i in range(size["prompts"])]
        return [PromptItem(tokenizer(text)["input_ids"]) for text in chosen]

    options = {"end": tokenizer.eos_token_id, "tokenizer": tokenizer, "progress": None}
    ours, theirs = list[float](), list[float]()
    for _ in range(rounds):
        stamps: list[float] = []
        reinforce(make(), draw, reward, settings, on_record=lambda _, to=stamps: to.append(clock()), **options)
        ours += [b - a for a, b in pairwise(stamps[1:])]
        theirs += trl_steps(make(), tokenizer, texts, reward, steps, size, clock, device)
        so_far = {"ours": ours, "theirs": theirs}  # a run that is cut short has these
        print(json.dumps({name: [round(each, 3) for each in times] for name, times in so_far.items()}), file=sys.stderr)
    ours.sort()
    median = ours[len(ours) // 2]
    where = f"{size['prompts']} x {size['copies']} answers of {size['tokens']} tokens"
    where += f" to {size['words']} words, {torch.get_num_threads()} thread(s)"
    print(f"\nGRPO steps, {where}, median of {len(ours)}")
    print(f"{'ours':34}{median:9.3f} s")
    if theirs:
        other = sorted(theirs)[len(theirs) // 2]
        print(f"{'TRL':34}{other:9.3f} s   {other / median:.2f} x ours", flush=True)


def trl_steps(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    reward: Callable[..., float],
    steps: int,
    size: dict[str, int],
    clock: Callable[[], float],
    device: str,
) -> list[float]:
    """Seconds of each of TRL's steps after the first, or nothing where it cannot be imported."""
    try:
        from datasets import Dataset
        from transformers import TrainerCallback
        from trl import GRPOConfig, GRPOTrainer
    except (ImportError, RuntimeError) as error:
        print(f"\nTRL is not here ({str(error).splitlines()[-1]}): no comparison", file=sys.stderr)
        return []
    stamps: list[float] = []

    class Stamps(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            stamps.append(clock())

    rows = size["prompts"] * size["copies"]
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=rows,
        num_generations=size["copies"],
        max_completion_length=size["tokens"],
        max_steps=steps,
        learning_rate=1e-6,
        beta=0.0,
        bf16=device != "cpu",
        use_cpu=device == "cpu",
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        gradient_checkpointing=False,
    )

    def scores(completions: list[str], **_: Any) -> list[float]:
        return [reward(None, each) for each in completions]

    data = Dataset.from_dict({"prompt": list(texts)})
    trainer = GRPOTrainer(model, scores, config, data, processing_class=tokenizer, callbacks=[Stamps()])
    trainer.train()
    return [b - a for a, b in pairwise(stamps[1:])]


# ---------------------------------------------------------------------------------------------- a GPU


def shares(name: str, model: Any, tokenizer: Any, settings: ReinforceSettings, device: str) -> None:
    """A few iterations on a text task, and where the time went. The first warms up and is not counted."""
    prompt = tokenizer("Write a short story about a dog, a boat and seven numbers.\n")["input_ids"]
    records: list[dict[str, Any]] = []
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()

    def reward(_: Any, answer: str) -> float:
        return sum(letter in "aeiou" for letter in answer) / max(1, len(answer))  # random weights write some of these

    def draw(number: int) -> list[PromptItem]:
        return [PromptItem(prompt[: len(prompt) - i % 3]) for i in range(settings.prompts)]

    options = {"end": tokenizer.eos_token_id, "tokenizer": tokenizer, "progress": None}
    reinforce(model, draw, reward, settings, on_record=records.append, **options)
    rows = [record for record in records if "tokens" in record][1:]
    seconds = {part: sum(record["seconds"][part] for record in rows) for part in ("generate", "score", "learn")}
    total, tokens = sum(seconds.values()), sum(record["tokens"] for record in rows)
    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else float("nan")
    figures = {
        "tokens_per_s": tokens / seconds["generate"],
        "steps_per_s": len(rows) / total,
        **{part: spent / total for part, spent in seconds.items()},
        "GiB": memory,
    }
    print(f"{name:30}" + "".join(f"{figures[key]:12,.3g}" for key in figures), flush=True)
    print(json.dumps({"name": name, **{key: round(value, 4) for key, value in figures.items()}}), file=sys.stderr)


def gpu(folder: Path | None, quick: bool, device: str) -> None:
    from agent_forge.forge.training import train_tokenizer
    from agent_forge.inference.loading import load_model, load_tokenizer

    tokenizer = load_tokenizer(folder) if folder else train_tokenizer(["a dog 1 2 3"] * 5, 512)

    def smol() -> Any:
        model = load_model(folder, dtype=torch.float32) if folder else race_model(len(tokenizer), True)
        return model.to(device)

    def large() -> Any:
        """The shape of Llama 3.2 3B: 3.2 B parameters, random, bf16."""
        shape = {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24}
        if quick:
            shape = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        more = {"num_key_value_heads": 4 if quick else 8, "vocab_size": 512 if quick else 128256}
        with torch.device(device):
            before = torch.get_default_dtype()
            torch.set_default_dtype(torch.bfloat16)
            try:
                return LlamaForCausalLM(LlamaConfig(**shape, **more, tie_word_embeddings=True))
            finally:
                torch.set_default_dtype(before)

    settings = ReinforceSettings(
        iterations=2 if quick else 6,
        prompts=2 if quick else 32,
        copies=4 if quick else 16,
        max_tokens=6 if quick else 128,
        micro_rows=4 if quick else 128,
        learning_rate=1e-6,
        evaluate_every=0,
        resample=0,
        precision="bf16",
    )
    heads = ("tokens/s", "steps/s", "generate", "score", "learn", "GiB")
    print(f"\n{settings.prompts} x {settings.copies} answers of {settings.max_tokens} tokens; shares of the time")
    print(f"{'':30}" + "".join(f"{head:>12}" for head in heads))
    few = replace(settings, prompts=max(2, settings.prompts // 4), iterations=max(2, settings.iterations // 2))
    saving = replace(few, gradient_checkpointing=True, micro_rows=max(2, settings.micro_rows // 4))
    for name, make, chosen, adapter in (
        ("SmolLM2-135M, LoRA 16", smol, settings, True),
        ("SmolLM2-135M, in full", smol, settings, False),
        ("3 B random, LoRA 16, ckpt", large, saving, True),
    ):
        model = make()
        if adapter:
            add_adapter(model, LoraSettings(rank=16))
        shares(name, model, tokenizer, chosen, device)
        del model
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    sizes = {"prompts": few.prompts, "copies": few.copies, "tokens": few.max_tokens}
    race(quick, device, smol, tokenizer, **sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny: only a check that it runs")
    parser.add_argument("--gpu", action="store_true", help="the figures of a GPU instead of the toys")
    parser.add_argument("--model", type=Path, help="SmolLM2-135M-Instruct as a folder of Hugging Face's")
    parser.add_argument("--peer", type=Path, help="a folder with TRL and what it needs")
    parser.add_argument("--only", choices=("toys", "credit", "race"), help="one part of the CPU's figures")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.peer:
        sys.path.append(str(chosen.peer))
    if chosen.gpu:
        gpu(chosen.model, chosen.quick, "cuda" if torch.cuda.is_available() and not chosen.quick else "cpu")
        return
    for part in (toys, credit, race):
        if chosen.only in (None, part.__name__):
            part(chosen.quick)
    if chosen.only in (None, "race"):  # an agent's prompt is longer than its answer
        race(chosen.quick, words=20 if chosen.quick else 200)
    if chosen.quick and chosen.only is None:
        gpu(None, True, "cpu")


if __name__ == "__main__":
    main()
