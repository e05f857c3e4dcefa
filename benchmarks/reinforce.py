"""Reinforcement learning: does it learn what is known to be best, how fast beside TRL, and what does it take on a GPU?

    PYTHONPATH=src python benchmarks/reinforce.py                      the toys, and TRL if it can be imported
    PYTHONPATH=src python benchmarks/reinforce.py --quick              anywhere: a check that it runs
    PYTHONPATH=src python benchmarks/reinforce.py --gpu --model DIR    on a GPU: SmolLM2-135M and 3 B random weights
    … --gpu --model DIR --only race --peer PEERS --answers 128 512     TRL with equal batches, within --seconds

TRL is no dependency: `pip install --no-deps --target PEERS trl==1.16.* datasets dill multiprocess xxhash pandas
python-dateutil pytz tzdata six`, then `--peer PEERS`. Seconds are CPU seconds on a CPU, wall seconds on a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agent_forge.forge.adapters import add_adapter
from agent_forge.forge.training import PromptItem, ReinforceSettings, policy
from agent_forge.forge.training.reinforce import SampleCollector, reinforce
from agent_forge.forge.training.settings import LoraSettings
from agent_forge.forge.training.shared_prompts import sheet_width

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
    return float(SampleCollector(model, draw_toy, per_answer, settings)(0).drawn.mean())


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
        warmup=0,  # random weights have nothing to lose
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


class Laps:
    """The steps of one side of a race, printed as they come. The first of every round warms up."""

    def __init__(self, name: str, answers: int, device: str) -> None:
        self.name, self.answers, self.device = name, answers, device
        self.rounds: list[list[float]] = []  # seconds
        self.tokens: list[float] = []  # of an answer
        self.seconds: Counter[str] = Counter()  # by what they were spent on, where that is known
        self.phases = {"generate": 0.0, "learn": 0.0}  # GiB at their peaks
        self.GiB = 0.0

    def begin(self) -> None:
        self.rounds.append([])
        if self.device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        self.last = self._now()

    def step(self, *_: Any) -> None:
        now = self._now()
        self.rounds[-1].append(now - self.last)
        self.last = now
        self.peak("learn")
        step = {"step": self.name, "answers": self.answers, "seconds": round(self.rounds[-1][-1], 4)}
        print(json.dumps({**step, "round": len(self.rounds), "GiB": round(self.GiB, 2)}), file=sys.stderr, flush=True)

    def peak(self, phase: str) -> None:
        """Notes the peak since the last call (of TRL's steps there is one phase)."""
        if self.device == "cuda":
            self.phases[phase] = max(self.phases[phase], torch.cuda.max_memory_allocated() / 2**30)
            self.GiB = max(self.phases.values())
            torch.cuda.reset_peak_memory_stats()

    def _now(self) -> float:
        if self.device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def figures(self) -> dict[str, Any]:
        """Seconds of the median step, steps per second after warming up and with it, and what a step is."""
        warm = sorted(each for steps in self.rounds for each in steps[1:])
        every = [each for steps in self.rounds for each in steps]
        return {
            "steps": len(warm),
            "median_s": warm[len(warm) // 2] if warm else None,
            "steps_per_s": len(warm) / sum(warm) if warm else None,
            "steps_per_s_with_warm_up": len(every) / sum(every) if every else None,
            "tokens_per_answer": sum(self.tokens) / len(self.tokens) if self.tokens else None,
            "GiB": self.GiB or None,
        }


@dataclass(frozen=True)
class Course:
    """What both sides of a race run on: the same prompts, answers, lengths and updates. Every answer has all its
    tokens: which ones end early is luck, and would be work that one side does not have."""

    make: Callable[[], Any]  # a model
    tokenizer: Any
    texts: Sequence[str]
    prompts: int = 1
    copies: int = 8
    tokens: int = 32
    steps: int = 5
    most: int = 128  # rows that learn at once
    update_kl: float = 0.0  # no limit on updates, which TRL does not have

    @property
    def rows(self) -> int:
        return self.prompts * self.copies


def vowels(_: Any, answer: str) -> float:
    return sum(letter in "aeiou" for letter in answer) / max(1, len(answer))  # random weights write some of these


def our_steps(course: Course, laps: Laps) -> None:
    settings = ReinforceSettings(
        iterations=course.steps,
        prompts=course.prompts,
        copies=course.copies,
        max_tokens=course.tokens,
        learning_rate=1e-6,
        evaluate_every=0,
        resample=0,
        micro_rows=min(course.most, course.rows),
        update_kl=course.update_kl,
    )

    def draw(number: int) -> list[PromptItem]:
        chosen = [course.texts[(number * course.prompts + i) % len(course.texts)] for i in range(course.prompts)]
        return [PromptItem(course.tokenizer(text)["input_ids"]) for text in chosen]

    def note(record: dict[str, Any]) -> None:
        laps.step()
        seen.clear()
        laps.tokens.append(record.get("tokens", 0) / max(1, record.get("rows", 0)))
        for phase, spent in record["seconds"].items():
            laps.seconds[phase] += spent

    def reward(item: Any, answer: str) -> float:
        if not seen:  # sampling is over
            seen.append(True)
            laps.peak("generate")
        return vowels(item, answer)

    seen: list[bool] = []
    model = course.make()
    laps.begin()
    reinforce(model, draw, reward, settings, on_record=note, tokenizer=course.tokenizer, progress=None)


def trl_steps(course: Course, laps: Laps) -> None:
    """TRL's steps, or nothing where it cannot be imported."""
    try:
        from datasets import Dataset
        from transformers import AttentionInterface, TrainerCallback
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
        from trl import GRPOConfig, GRPOTrainer
    except (ImportError, RuntimeError) as error:
        print(f"\nTRL is not here ({str(error).splitlines()[-1]}): no comparison", file=sys.stderr)
        return

    class Stamps(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            laps.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            laps.step()

    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=min(course.most, course.rows),
        gradient_accumulation_steps=max(1, course.rows // course.most),
        num_generations=course.copies,
        max_completion_length=course.tokens,
        generation_kwargs={"min_new_tokens": course.tokens},
        max_steps=course.steps,
        learning_rate=1e-6,
        beta=0.0,
        bf16=laps.device != "cpu",
        use_cpu=laps.device == "cpu",
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        gradient_checkpointing=False,
    )

    def scores(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        laps.tokens += map(len, completion_ids)
        return [vowels(None, each) for each in completions]

    AttentionInterface.register("sdpa", sdpa_attention_forward)  # ours, which sampling registers, is not TRL's
    data = Dataset.from_dict({"prompt": list(course.texts)})
    tools = {"processing_class": course.tokenizer, "callbacks": [Stamps()]}
    GRPOTrainer(course.make(), scores, config, data, **tools).train()


def race(quick: bool, words: int = 12) -> None:
    """One optimiser step on 8 answers of 32 tokens to one prompt, on a CPU beside TRL."""
    from agent_forge.forge.training import train_tokenizer

    rounds = 1 if quick else 3  # alternating, as the machine may not be quiet
    tokenizer = train_tokenizer([WORDS] * 20, 512)
    size = {"tokens": 8 if quick else 32, "steps": 3 if quick else 5}
    course = Course(lambda: race_model(len(tokenizer), quick), tokenizer, some_texts(words), **size)
    ours, bounded, theirs = (Laps(name, course.rows, "cpu") for name in ("ours", "bounded", "TRL"))
    for _ in range(rounds):
        our_steps(course, ours)
        our_steps(replace(course, update_kl=ReinforceSettings().update_kl), bounded)
        trl_steps(course, theirs)
    print(f"\nto {words} words, {torch.get_num_threads()} thread(s), CPU seconds", end="")
    result(course, ours, theirs)
    cost = bounded.figures()["median_s"] / ours.figures()["median_s"]
    print(f"with a limit on how far an update moves the policy, as by default: {cost:.2f} x the time")


WORDS = "the cat sat on the mat and the dog ran off with a bone while it rained all day long in the old town"


def some_texts(words: int) -> list[str]:
    many = WORDS.split() * (2 + words // 12)
    return [" ".join(many[i % 7 : i % 7 + words]) for i in range(64)]


def result(course: Course, ours: Laps, theirs: Laps) -> None:
    """Prints both sides, as far as they have come, and their ratios."""
    print(f"\nGRPO steps, {course.prompts} x {course.copies} answers of {course.tokens} tokens")
    heads = ("steps", "median s", "steps/s", "with warm-up", "tokens", "GiB")
    print(f"{'':8}" + "".join(f"{head:>14}" for head in heads))
    sides = [laps.figures() for laps in (ours, theirs)]
    for laps, side in zip((ours, theirs), sides, strict=True):
        print(
            f"{laps.name:8}" + "".join(f"{'-' if each is None else format(each, '.4g'):>14}" for each in side.values())
        )
    ratios = {
        name: sides[0][name] / sides[1][name]
        for name in ("steps_per_s", "steps_per_s_with_warm_up", "GiB")
        if sides[0][name] and sides[1][name]
    }
    if sides[0]["median_s"] and sides[1]["median_s"]:
        ratios["median"] = sides[1]["median_s"] / sides[0]["median_s"]
    print("ours / TRL: " + ", ".join(f"{name} {ratio:.2f} x" for name, ratio in ratios.items()))
    print(json.dumps({"answers": course.rows, "ours": sides[0], "TRL": sides[1], "ratios": ratios}), flush=True)


# ---------------------------------------------------------------------------------------------- a GPU


def shares(name: str, model: Any, tokenizer: Any, settings: ReinforceSettings, device: str) -> None:
    """A few iterations on a text task, and where the time went. The first warms up and is not counted."""
    prompt = tokenizer("Write a short story about a dog, a boat and seven numbers.\n")["input_ids"]
    records: list[dict[str, Any]] = []
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()

    def draw(number: int) -> list[PromptItem]:
        return [PromptItem(prompt[: len(prompt) - i % 3]) for i in range(settings.prompts)]

    options = {"end": tokenizer.eos_token_id, "tokenizer": tokenizer, "progress": None}
    reinforce(model, draw, vowels, settings, on_record=records.append, **options)
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


def smol(folder: Path | None, device: str) -> tuple[Any, Callable[[], Any]]:
    """A tokenizer, and what makes the model: SmolLM2 from its folder in float32, or a tiny one."""
    from agent_forge.forge.training import train_tokenizer
    from agent_forge.inference.loading import load_model, load_tokenizer

    tokenizer = load_tokenizer(folder) if folder else train_tokenizer([WORDS] * 5, 512)

    def make() -> Any:
        model = load_model(folder, dtype=torch.float32) if folder else race_model(len(tokenizer), True)
        return model.to(device)

    return tokenizer, make


def large(quick: bool, device: str) -> Any:
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


def gpu(folder: Path | None, quick: bool, device: str) -> None:
    tokenizer, make_smol = smol(folder, device)
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
        ("SmolLM2-135M, LoRA 16", make_smol, settings, True),
        ("SmolLM2-135M, in full", make_smol, settings, False),
        ("3 B random, LoRA 16, ckpt", lambda: large(quick, device), saving, True),
    ):
        model = make()
        if adapter:
            add_adapter(model, LoraSettings(rank=16))
        shares(name, model, tokenizer, chosen, device)
        del model
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


def gpu_race(folder: Path | None, quick: bool, device: str, answers: Sequence[int], seconds: float) -> None:
    """TRL beside us with equal batches of each size, in rounds. The process ends after `seconds` with what it has."""
    import psutil

    tokenizer, make = smol(folder, device)
    size = {"copies": 4, "tokens": 8, "steps": 2, "most": 8} if quick else {"copies": 16, "tokens": 128, "steps": 4}
    courses = [Course(make, tokenizer, some_texts(12), each // size["copies"], **size) for each in answers]
    sides = [(course, *(Laps(name, course.rows, device) for name in ("ours", "TRL"))) for course in courses]

    def finish() -> None:
        for course, ours, theirs in sides:
            result(course, ours, theirs)

    def give_up() -> None:
        print("\nthe time is up", flush=True)
        finish()
        os._exit(0)  # whatever the main thread is doing

    spent = time.time() - psutil.Process().create_time()  # importing counts too
    clock = threading.Timer(max(0.0, seconds - spent), give_up)
    clock.daemon = True
    clock.start()
    for _ in range(1 if quick else 3):
        for course, ours, theirs in sides:
            for work, laps in ((our_steps, ours), (explain, ours), (trl_steps, theirs)):
                if work is explain and (len(ours.rounds) > 1 or course is not courses[0]):
                    continue
                try:
                    work(course, laps)
                except Exception:  # one side without memory is not the end of the other
                    traceback.print_exc()
    clock.cancel()
    finish()


def explain(course: Course, laps: Laps) -> None:
    """What a learning pass keeps for its gradient and which attention it takes, by prompts read once and by rows."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counts = {} if dynamo is None else {name: dict(each) for name, each in dynamo.counters.items() if each}
    print(json.dumps({"dynamo": counts, "our GiB": laps.phases, "our seconds": laps.seconds}), flush=True)
    model, rows = course.make(), min(course.most, course.rows)
    prompt = len(course.tokenizer(course.texts[0])["input_ids"])
    tokens = torch.randint(5, len(course.tokenizer), (rows, prompt + course.tokens), device=laps.device)
    tokens[:, :prompt] = tokens[:: course.copies, :prompt].repeat_interleave(course.copies, 0)[:rows]
    mask = torch.ones(tokens.shape, device=laps.device)
    mask[:, :prompt] = 0
    widths = (sheet_width(model), 2 * (sheet_width(model) or 0), None)  # a wider model would share more
    for name, width in zip(("as it is", "prompts read once", "a row per answer"), widths, strict=True):
        with patch.object(policy, "sheet_width", lambda _, width=width: width):
            figures = [learning_pass(model, tokens, mask, laps.device) for _ in range(2)][-1]  # the first warms up
            figures |= what_is_kept(model, tokens, mask, laps.device)
        print(json.dumps({"learning pass": name, "rows": rows, "prompt": prompt, **figures}), flush=True)


def learning_pass(model: Any, tokens: torch.Tensor, mask: torch.Tensor, device: str) -> dict[str, Any]:
    """GiB held between forward and backward, GiB at the peak, and seconds."""
    cuda, start = device == "cuda", time.perf_counter()
    model.zero_grad()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else 0
    with torch.autocast(device, torch.bfloat16):
        loss = policy.token_log_probs(model, tokens, mask).sum()
    between = torch.cuda.memory_allocated() if cuda else 0
    loss.backward()
    peak = torch.cuda.max_memory_allocated() if cuda else 0
    return {
        "held_GiB": round((between - before) / 2**30, 3),
        "peak_GiB": round((peak - before) / 2**30, 3),
        "loss": float(loss.detach()),  # waits
        "seconds": round(time.perf_counter() - start, 3),
    }


def what_is_kept(model: Any, tokens: torch.Tensor, mask: torch.Tensor, device: str) -> dict[str, Any]:
    """The operations of attention, and the largest kinds of tensors that autograd keeps, in GiB."""
    kept: dict[int, tuple[torch.UntypedStorage, str]] = {}  # held, or an address could be used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept.setdefault(storage.data_ptr(), (storage, f"{str(tensor.dtype)[6:]} {list(tensor.shape)}"))
        return tensor

    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast(device, torch.bfloat16),
    ):
        policy.token_log_probs(model, tokens, mask)
    calls = {each.key: each.count for each in profile.key_averages() if "attention" in each.key}
    sizes: Counter[str] = Counter()
    for storage, kind in kept.values():
        sizes[kind] += storage.nbytes()
    total = round(sum(sizes.values()) / 2**30, 3)
    largest = {kind: round(size / 2**30, 3) for kind, size in sizes.most_common(10)}
    return {"attention": calls, "kept_GiB": total, "largest": largest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny: only a check that it runs")
    parser.add_argument("--gpu", action="store_true", help="the figures of a GPU instead of the toys")
    parser.add_argument("--model", type=Path, help="SmolLM2-135M-Instruct as a folder of Hugging Face's")
    parser.add_argument("--peer", type=Path, help="a folder with TRL and what it needs")
    parser.add_argument("--only", choices=("toys", "credit", "race"), help="one part of the CPU's figures")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--answers", type=int, nargs="+", default=[128, 512], help="answers per step of the GPU's race")
    parser.add_argument("--seconds", type=float, default=100, help="the process of a GPU's race ends after this time")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.peer:
        sys.path.append(str(chosen.peer))
    if chosen.gpu:
        device = "cuda" if torch.cuda.is_available() and not chosen.quick else "cpu"
        if chosen.only != "race":
            gpu(chosen.model, chosen.quick, device)
        gpu_race(chosen.model, chosen.quick, device, chosen.answers, chosen.seconds)
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
