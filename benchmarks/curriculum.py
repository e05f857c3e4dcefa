"""What does a curriculum gain over uniform sampling with as many answers, and what does it forget?

    python benchmarks/curriculum.py FOLDER --seconds 540     (a causal LM, e.g. SmolLM2-135M-Instruct; one GPU)
    python benchmarks/curriculum.py --quick                  (a toy on the CPU, under a minute)

Everything is the curriculum phase (docs/curriculum.md): assessment, three seeds of the course and of its control,
three kinds of replay, held-out exercises at the target level, and earlier text. With FOLDER, the rounds per level are
what fits into `--seconds`, after a few rounds were timed, and the exercises are continuations of text, since a model of
135 M solves no task of `arithmetic` (`--set '{"families": ["arithmetic"], "continuations": false, "target": 0.2}'`
shows how far hints help there). The figures are printed and written after every seed; the other kinds of replay come
last. With `--work` the work is kept there, and the same command goes on with what an earlier one did not finish.

The toy is a model of 2 layers that has learnt to count the ones among one to three letters, and is to count them among
eight. There exercises of all levels are also learnt by GRPO (`forge.training.reinforce`), with as many answers and
steps as the control, to compare ways of learning.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # answers differ in length: compiling would not pay

import numpy as np
import torch
from _seeds import elapsed, fast_folder, seeds_that_fit

from agent_forge.config import build
from agent_forge.forge.checkpoint import load
from agent_forge.forge.corpus import Source, read_corpus
from agent_forge.forge.curriculum.course import ladder
from agent_forge.forge.curriculum.job import (
    COURSE,
    Arm,
    CourseRun,
    CurriculumOutcome,
    School,
    practise_curriculum,
)
from agent_forge.forge.curriculum.lesson import LessonLoss, lesson
from agent_forge.forge.curriculum.report import document_of, markdown_of
from agent_forge.forge.curriculum.settings import CurriculumSettings
from agent_forge.forge.phases.cognate import device
from agent_forge.forge.phases.specialise import reading_tokenizer
from agent_forge.forge.practice.measuring import kept
from agent_forge.forge.training.checkpoint import restore_weights, weights_of
from agent_forge.forge.training.optimizer import MuGrokfast
from agent_forge.forge.training.reinforce import reinforce
from agent_forge.forge.training.settings import ReinforceSettings
from agent_forge.inference.loading import load_model
from agent_forge.tasks import Draft, Verdict, family, task_family

RATES = ("lr", "embedding_lr", "scalar_lr")
FULL: dict[str, Any] = {
    "families": [], "continuations": True, "sources": {name: {"path": name} for name in ("stories", "problems")},
    "assessed": 128, "exercises": 32, "recent": 32, "rows": 128, "replay_rows": 32, "judged": 500, "max_tokens": 32,
    "save_every": 1000,
    "training": {"optimizer": "reinforce", "micro_rows": 128, "optimizer_changes": dict.fromkeys(RATES, 5e-5)},
}  # fmt: skip
QUICK: dict[str, Any] = {
    "families": ["toy-ones"], "levels": 10, "rounds": 2, "exercises": 16, "recent": 16, "rows": 128,
    "replay_rows": 4, "judged": 200, "most_judged": 40, "length": 32, "max_tokens": 2,
    "assessed": 64, "most_forgetting": 0.1,
    "training": {"optimizer": "reinforce", "optimizer_changes": dict.fromkeys(RATES, 1e-3)},
}  # fmt: skip
STORIES = {"stories": Source("stories", most_mb=0.05)}


def check_digit(answer: int, expected: Mapping[str, Any]) -> Verdict:
    return Verdict.of(answer == expected["right"], f"{answer} instead of {expected['right']}")


@task_family("toy-ones", check=check_digit, solve=lambda e: e["right"], schema={"enum": list(range(10))})
def ones(rng: random.Random, level: float) -> Draft:
    digits = [rng.choice("abcd1111") for _ in range(1 + round(7 * level))]
    return Draft("".join(digits), {"right": digits.count("1")})


def toy() -> tuple[Any, Any]:
    """A model of 2 layers with a tokenizer of bytes, which has seen exercises of the lowest levels and some text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bare = Tokenizer(models.BPE({token: n for n, token in enumerate(["<s>", "</s>", *letters])}, []))
    bare.pre_tokenizer, bare.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bare, **names)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=260, bos_token_id=0, eos_token_id=1, **sizes))
    school = toy_school(model, tokenizer, Path())
    rows = school.replay("text")
    assert rows is not None
    rates = dict.fromkeys(RATES, 2e-3)
    optimizer = MuGrokfast.for_phase(model, "reinforce", **rates)
    for step in range(200):
        pairs = []
        for number in range(32):
            exercise = family("toy-ones").make(-1 - step * 32 - number, (number % 3) / 7)
            answer = tokenizer(str(exercise.expected["right"]))["input_ids"]
            pairs.append((list(school.respondent.question(exercise).prompt), [*answer, 1]))
        batch = lesson(pairs, rows.batch(step, 4, 0), 1.0)
        assert batch is not None
        real = int((batch.targets >= 0).sum())
        for part in batch.split(64):
            (LessonLoss()(model, part) * int((part.targets >= 0).sum()) / real).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval(), tokenizer


def toy_school(model: Any, tokenizer: Any, work: Path, **changes: Any) -> School:
    settings = build(CurriculumSettings, {**QUICK, **changes})
    return School(model, tokenizer, read_corpus(STORIES, 0.1), settings, 0, work, lambda **_: None)


def with_grpo(model: Any, tokenizer: Any, start: float, rounds: int, seeds: int, work: Path) -> list[float]:
    """Held-out accuracy after GRPO on exercises drawn uniformly from the levels, by seed; as many answers per round.
    Of the learning rates 1e-3, 3e-4 and 1e-4 the best; at 1e-3 answers soon are all alike, and nothing is learnt."""
    found = []
    for seed in range(seeds):
        school = toy_school(model, tokenizer, work / "grpo")
        s = school.settings
        levels = ladder(start, s.target, s.levels)

        def draw(step: int, seed: int = seed, levels: list[float] = levels, school: School = school) -> list[Any]:
            rng, count = random.Random(f"{seed}/{step}"), school.settings.exercises
            first = 10**6 * seed + step * count
            made = [family("toy-ones").make(first + number, rng.choice(levels)) for number in range(count)]
            return [school.respondent.question(exercise) for exercise in made]

        settings = ReinforceSettings(
            iterations=rounds, prompts=s.exercises, copies=s.attempts, max_tokens=s.max_tokens, resample=0,
            learning_rate=1e-4, evaluate_every=0, collapse=1.0, kl_limit=1e9, seed=seed,
        )  # fmt: skip
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        result = reinforce(
            model, draw, lambda exercise, text: exercise.check(text).score, settings, end=school.respondent.ends,
            tokenizer=tokenizer, constraint=school.respondent.walk, progress=None,
        )  # fmt: skip
        if result.stopped:
            print(f"GRPO, seed {seed}: stopped after {result.iterations} rounds: {result.stopped}")
        found.append(float(school.respondent.right(school.exam).mean()))
        model.load_state_dict(weights)
    return found


def fitting(school: School, seconds: float) -> dict[str, int]:
    """The rounds per level that fit, for all arms, from the time of two rounds and of one judgement; where not even
    one does, the levels."""
    s = school.settings
    starts = {name: min(school.assessment(name).level, 0.99 * s.target) for name in school.families}
    start = time.perf_counter()
    school.measured("base")
    judged = time.perf_counter() - start
    CourseRun(school, Arm(COURSE, s.replay, 0), starts, 1, school.folder / "timing").run()  # warm-up, and the dreams
    start = time.perf_counter()
    CourseRun(school, Arm(COURSE, s.replay, 0), starts, 3, school.folder / "timing2").run()
    each = (time.perf_counter() - start) / 3
    restore_weights(school.model, school.start)
    shutil.rmtree(school.folder / "timing")
    shutil.rmtree(school.folder / "timing2")
    arms = (2 + s.compare_self_modelling) * s.seeds + 2 * s.compare_replay
    count = s.exercises * s.attempts
    print(f"{each:.2f} s per round of {count} answers, {judged:.1f} s to judge; {elapsed():.0f} s so far", flush=True)
    total = int((0.85 * (seconds - elapsed()) - arms * judged) / (each * arms))
    return {"rounds": max(1, total // s.levels), "levels": max(2, min(s.levels, total))}


def outcomes(
    model: Any, tokenizer: Any, corpus: Any, settings: CurriculumSettings, work: Path, seconds: float
) -> Iterator[CurriculumOutcome]:
    """The phase with one seed, then with more, then with the other kinds of replay, as far as the time allows."""
    start = {name: weight.clone() for name, weight in weights_of(model).items()}

    def outcome(chosen: CurriculumSettings) -> CurriculumOutcome:
        restore_weights(model, start)
        return practise_curriculum(model, tokenizer, corpus, chosen, 0, work, tell)

    seeds, lasted = 0, 0.0
    for seeds in seeds_that_fit(settings.seeds, seconds):
        begun = elapsed()
        found = outcome(replace(settings, seeds=seeds, compare_replay=False))
        lasted = elapsed() - begun
        yield found
    if settings.compare_replay and found.ours:
        if elapsed() + lasted < seconds:  # two courses, as in a seed
            yield outcome(replace(settings, seeds=seeds))
        else:
            print("no time for the other kinds of replay", flush=True)
    restore_weights(model, start)


def tell(**fields: Any) -> None:
    """A line for everything but rounds, and for every tenth of these."""
    if fields.get("step", 0) % 10 == 0:
        figures = " ".join(f"{name} {value:.2f}" for name, value in fields.items() if isinstance(value, float))
        print(f"{elapsed():6.0f} s  {fields.get('stage', '')} {fields.get('step', '')} {figures}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--set", default="{}", help="settings to change, as JSON")
    parser.add_argument("--json", type=Path, help="write all figures there, after every seed")
    options = parser.parse_args()
    changes, toys = json.loads(options.set), options.quick or options.folder is None
    if toys:
        torch.set_num_threads(1)
        model, tokenizer = toy()
        settings, corpus = build(CurriculumSettings, {**QUICK, **changes}), read_corpus(STORIES, 0.1)
    else:
        base = load(options.folder)
        model, tokenizer = load_model(base.path, dtype=torch.float32).eval().to(device()), reading_tokenizer(base)
        settings = build(CurriculumSettings, {**FULL, **changes})
        corpus = read_corpus(settings.sources, settings.held_out)
    with tempfile.TemporaryDirectory(dir=fast_folder()) as temporary:
        work = options.work or Path(temporary)
        if not toys:
            school = School(model, tokenizer, corpus, settings, 0, work, tell)
            if not {"rounds", "levels"} <= changes.keys():
                settings = replace(settings, **kept(work / "fitting.json", lambda: fitting(school, options.seconds)))
            print(f"{settings.levels} levels of at most {settings.rounds} rounds", flush=True)
        for outcome in outcomes(model, tokenizer, corpus, settings, work, options.seconds):
            print(f"\n== {len(outcome.ours)} seeds, {elapsed():.0f} s\n\n{markdown_of(outcome)}")
            print(f"Rounds by seed: {[arm.rounds for arm in outcome.ours]}", flush=True)
            if options.json:
                figures = {"seeds": len(outcome.ours), **document_of(outcome), "seconds": elapsed()}
                options.json.write_text(json.dumps(figures, indent=1))
        if toys and outcome.ours:
            level = next(iter(outcome.assessments.values())).level
            rounds = round(float(np.mean([arm.rounds for arm in outcome.ours])))
            accuracies = with_grpo(model, tokenizer, level, rounds, len(outcome.ours), work)
            print(f"GRPO, uniform levels, {rounds} rounds: {np.mean(accuracies):.3f} {np.round(accuracies, 3)}")
    print(f"{elapsed():.0f} s in all")


if __name__ == "__main__":
    main()
