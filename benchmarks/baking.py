"""How much of a prompt's effect can a model keep without the prompt, and what does it forget?

    python benchmarks/baking.py --model DIR --seconds 540       (a GPU; SmolLM2-135M-Instruct as a Hugging Face folder)
    python benchmarks/baking.py --quick                         (a toy that greets like a pirate; seconds on one core)

Runs the phase `baking` with one seed, then two, then three, as far as the time allows; the steps of a bake are what
fits, 150 at most, after a short bake was timed. Each has a control: as many steps of supervised training on the same
answers. Prints, on held-out questions and without any prompt, the score, the
share of the prompted gain that is kept, the fraction of KL(prompted || plain) that is closed, and the increase of
perplexity on unrelated text. --data names a folder of bfcl cases for the tool cycle, --demonstrations the solved
requests in the tool prompt: where the prompt does not move the model, there is nothing to bake, and the table says so.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # answers differ in length: compiling would not pay

from _baking_toys import ALSO_PIRATE, PIRATE, toy
from _seeds import elapsed, fast_folder, seeds_that_fit

from agent_forge.config import build
from agent_forge.forge.baking import Baking, BakingPrompt, bake
from agent_forge.forge.baking.behaviours import FORMS, THINGS
from agent_forge.forge.checkpoint import Metric, load
from agent_forge.forge.phases import Work, baking
from agent_forge.forge.phases.baking import BakingStudy
from agent_forge.forge.phases.specialise import reading_tokenizer

QUICK = {
    "cycles": ["persona"], "persona": PIRATE, "paraphrases": list(ALSO_PIRATE), "questions": 16, "watched": 6,
    "judged": 12, "classifier_questions": 12, "variants": 1, "turns": 2, "seeds": 2, "documents": 4,
    "bake": {"samples": 2, "answer_tokens": 3, "steps": 20, "batch_rows": 16, "lr": 0.01, "lora": {"rank": 4}},
}  # fmt: skip
FULL = {
    "questions": 96, "watched": 32, "judged": 64, "classifier_questions": 48, "turns": 2, "documents": 64,
    "bake": {"samples": 4, "steps": 150, "batch_rows": 32, "lr": 5e-4, "write_rows": 256},
}  # fmt: skip

TIMED = 8  # steps
TRAINING = 0.5  # of the time; writing, choosing and judging take the rest


def table(study: BakingStudy, config: Baking) -> None:
    metrics = study.metrics()

    def show(name: str) -> str:
        metric: Metric | None = metrics.get(name)
        return "-" if metric is None else f"{metric.value:.3f}" + (f" ± {metric.stderr:.3f}" if metric.stderr else "")

    for cycle in config.cycles:
        before = f"plain {show(f'{cycle}_score_plain')}, prompted {show(f'{cycle}_score_prompted')}"
        print(f"{cycle}: score {before}; KL(prompted || plain) {show(f'{cycle}_kl')}")
        for arm in ("baked", "control"):
            cells = (show(f"{cycle}_{what}_{arm}") for what in ("score", "kept", "kl_closed"))
            print("  {:8s} score {:18s} gain kept {:18s} KL closed {}".format(arm, *cells))
    print(f"perplexity of unrelated text: baked {show('forgotten_baked')}, control {show('forgotten_control')}")
    print(f"gate: {json.dumps(study.gate().as_dict())}", flush=True)


def fitted(config: Baking, model: Path, place: Path, seconds: float, seeds: int) -> Baking:
    """The settings with as many steps as fit, but no more than they have: a step is timed in a short bake."""
    stamps: list[tuple[int, float]] = []

    def note(**record: Any) -> None:
        if "step" in record:
            stamps.append((record["step"], elapsed()))

    base = load(model)
    questions = [form.format(thing) for form in FORMS for thing in THINGS][: config.bake.batch_rows]
    short = replace(config.bake, steps=TIMED, samples=1)
    prompt = BakingPrompt(config.persona)
    bake(baking.begin(base), reading_tokenizer(base), prompt, questions, questions[:4], short, place, tell=note)
    (first, begun), (last, ended) = stamps[1], stamps[-1]
    each = (ended - begun) / (last - first)
    bakes = 2 * seeds * config.turns  # with the controls
    steps = min(config.bake.steps, max(20, int(TRAINING * (seconds - elapsed()) / (bakes * each))))
    print(f"{each:.3f} s per step: {steps} steps per bake; {elapsed():.0f} s so far", flush=True)
    return replace(config, bake=replace(config.bake, steps=steps))


def tell(**fields: Any) -> None:
    """A line for every stage, and for the first and last record of a bake."""
    step = fields.get("step")
    if step is None or step == fields.get("steps"):
        figures = " ".join(f"{name} {value:.3f}" for name, value in fields.items() if isinstance(value, float))
        print(f"{elapsed():6.0f} s  {fields.get('stage') or fields.get('cycle', '')} {figures}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="/tmp/smol", help="Model folder")
    parser.add_argument("--quick", action="store_true", help="A toy, on the CPU")
    parser.add_argument("--seconds", type=float, default=540.0, help="Time limit for everything")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", help="Folder of bfcl cases (default: requests from the task family tool_calls)")
    parser.add_argument("--demonstrations", type=int, default=15)
    parser.add_argument("--set", action="append", default=[], help="A setting of the phase, e.g. turns=4", dest="sets")
    parser.add_argument("--out", type=Path, help="File for the report (JSON), written after every seed")
    options = parser.parse_args()
    settings: dict[str, Any] = {**(QUICK if options.quick else FULL), "data": options.data}
    if not options.quick:
        settings["demonstrations"] = options.demonstrations
    for text in options.sets:
        key, _, value = text.partition("=")
        *groups, name = key.split(".")
        group = settings
        for each in groups:
            group = group.setdefault(each, {})
        group[name] = json.loads(value)
    config = build(Baking, settings, "baking")
    with tempfile.TemporaryDirectory(prefix="baking-", dir=fast_folder()) as temporary:
        place, model = Path(temporary), Path(options.model)
        if options.quick:
            model = place / "toy"
            network, tokenizer = toy("greeter")
            network.save_pretrained(model)
            tokenizer.save_pretrained(model)
        else:
            config = fitted(config, model, place / "timing", options.seconds, options.seeds)
        study = BakingStudy.of(Work("baking", config, [load(model)], 0, place / "work", place, tell))
        for seeds in seeds_that_fit(2 if options.quick else options.seeds, options.seconds):
            study.add_seed(seeds - 1)
            print(f"== {seeds} seeds, {config.bake.steps} steps per bake, {elapsed():.0f} s")
            table(study, config)
            if options.out:
                figures = {"number_of_seeds": seeds, **study.report(), "steps": config.bake.steps}
                metrics = {name: asdict(metric) for name, metric in study.metrics().items()}
                options.out.write_text(json.dumps({**figures, "metrics": metrics, "seconds": elapsed()}, indent=1))
            if not study.cycles.baselines:
                break


if __name__ == "__main__":
    main()
