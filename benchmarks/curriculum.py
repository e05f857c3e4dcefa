"""What does a curriculum gain over uniform sampling with as many answers, and what does it forget?

    python benchmarks/curriculum.py FOLDER --seconds 540     (a causal LM, e.g. SmolLM2-135M-Instruct; one GPU)
    python benchmarks/curriculum.py --quick                  (a toy on the CPU, under a minute)

Everything is the curriculum phase (docs/curriculum.md): assessment, three seeds of the course and of its control,
three kinds of replay, held-out exercises at the target level, and earlier text. With FOLDER, the rounds per level are
what fits into `--seconds`, after two rounds were timed, and the exercises are continuations of text, since a model of
135 M solves no task of `arithmetic` (`--set '{"families": ["arithmetic"], "continuations": false, "target": 0.2}'`
shows how far hints help there). With `--work` the work is kept there, and the same command goes
on with what an earlier one did not finish.

The toy is a model of 2 layers that has learnt to count the ones among one to three letters, and is to count them among
eight. There exercises of all levels are also learnt by GRPO (`forge.training.reinforce`), with as many answers and
steps as the control, to compare ways of learning.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agent_forge.config import build
from agent_forge.forge.checkpoint import load
from agent_forge.forge.corpus import Source, read_corpus
from agent_forge.forge.curriculum.course import ladder
from agent_forge.forge.curriculum.job import COURSE, Arm, CourseRun, School, practise_curriculum
from agent_forge.forge.curriculum.lesson import LessonLoss, lesson
from agent_forge.forge.curriculum.report import document_of, markdown_of
from agent_forge.forge.curriculum.settings import CurriculumSettings
from agent_forge.forge.experts.job import kept
from agent_forge.forge.phases.cognate import device
from agent_forge.forge.phases.specialise import reading_tokenizer
from agent_forge.forge.training.optimizer import MuGrokfast
from agent_forge.forge.training.reinforce import reinforce
from agent_forge.forge.training.settings import ReinforceSettings
from agent_forge.inference.loading import load_model
from agent_forge.tasks import Draft, Verdict, family, task_family

RATES = ("lr", "embedding_lr", "scalar_lr")
FULL: dict[str, Any] = {
    "families": [], "continuations": True, "sources": {name: {"path": name} for name in ("stories", "problems")},
    "assessed": 128, "exercises": 32, "recent": 32, "rows": 128, "replay_rows": 32, "judged": 500, "max_tokens": 32,
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
    start = time.perf_counter()
    starts = {name: min(school.assessment(name).level, 0.99 * s.target) for name in school.families}
    school.measured("base")
    judged = time.perf_counter() - start
    CourseRun(school, Arm(COURSE, "dream", 0), starts, 1, school.folder / "timing").run()  # warm-up, and the dreams
    start = time.perf_counter()
    CourseRun(school, Arm(COURSE, "dream", 0), starts, 2, school.folder / "timing2").run()
    each = (time.perf_counter() - start) / 2
    for name, weight in school.model.named_parameters():
        weight.data.copy_(school.start[name])
    arms = 2 * s.seeds + 2 * s.compare_replay
    print(
        f"{each:.2f} s per round of {s.exercises * s.attempts} answers, {judged:.0f} s to assess and judge", flush=True
    )
    total = int((seconds - arms * judged / 2 - 30) / (each * arms))
    return {"rounds": max(1, total // s.levels), "levels": max(2, min(s.levels, total))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--set", default="{}", help="settings to change, as JSON")
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    begun, work = time.perf_counter(), options.work or Path(tempfile.mkdtemp())
    changes = json.loads(options.set)
    if options.quick or options.folder is None:
        torch.set_num_threads(1)
        model, tokenizer = toy()
        settings, corpus = build(CurriculumSettings, {**QUICK, **changes}), read_corpus(STORIES, 0.1)
    else:
        base = load(options.folder)
        model, tokenizer = load_model(base.path, dtype=torch.float32).eval().to(device()), reading_tokenizer(base)
        settings = build(CurriculumSettings, {**FULL, **changes})
        corpus = read_corpus(settings.sources, settings.held_out)
        school = School(model, tokenizer, corpus, settings, 0, work, lambda **_: None)
        left = options.seconds - (time.perf_counter() - begun)
        settings = replace(settings, **kept(work / "fitting.json", lambda: fitting(school, left)))
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    outcome = practise_curriculum(model, tokenizer, corpus, settings, 0, work)
    print(markdown_of(outcome))
    print(f"Rounds by seed: {[arm.rounds for arm in outcome.ours]}, at most {settings.rounds} per level.")
    if options.folder is None and outcome.ours:
        model.load_state_dict(start)
        level = next(iter(outcome.assessments.values())).level
        rounds = round(float(np.mean([arm.rounds for arm in outcome.ours])))
        accuracies = with_grpo(model, tokenizer, level, rounds, settings.seeds, work)
        print(f"GRPO, uniform levels, {rounds} rounds: {np.mean(accuracies):.3f} {np.round(accuracies, 3)}")
    if options.json:
        options.json.write_text(json.dumps(document_of(outcome), indent=1))
    print(f"{time.perf_counter() - begun:.0f} s in all")


if __name__ == "__main__":
    main()
