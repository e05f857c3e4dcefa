"""Do thoughts help? Phase 3 on a model, beside its controls, three seeds, within a time limit.

    python benchmarks/quietstar.py --model SMOLLM2 --seconds 500                # SmolLM2-135M-Instruct, one H200
    python benchmarks/quietstar.py --model SMALL_COGNATE --data TEXT --seconds 500
    python benchmarks/quietstar.py --quick                                      # a tiny model on a CPU: does it run?

A few steps of every arm are timed first, and the number of steps is what fits into the limit. Prints, after every seed,
the nats per token of thoughts and of every control on the hardest tenth of held-out tokens and on all of them, and the
gate's verdict, which fewer than three seeds cannot pass.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _seeds import elapsed, fast_folder, seeds_that_fit

from agent_forge import forge
from agent_forge.forge.checkpoint import Metric
from agent_forge.forge.corpus import Source
from agent_forge.forge.gates import GateResult
from agent_forge.forge.opening import find_model
from agent_forge.forge.phases import Work
from agent_forge.forge.phases.quietstar import ARMS, QuietStar, ThoughtStudy, learning_rows, study_of
from agent_forge.forge.phases.worker import quiet
from agent_forge.forge.thoughts.judging import CONTROLS, take_rows, token_nats

TINY: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 64, "embedding_rank": 16, "memory_layers": [1], "memory_heads": 1, "memory_head_dim": 8,
}  # fmt: skip
QUICK = QuietStar(
    thought_tokens=2, ahead=2, positions=4, head_steps=1, steps=1, batch_rows=2, length=32, seeds=2, most_judged=200
)
TIMED = 5  # steps of each arm
USED = 0.85  # of the limit is planned for; starting and saving take the rest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="model folder, or digest of a registered checkpoint")
    parser.add_argument("--data", action="append", default=[], help="text (repeatable) [bundled text]")
    parser.add_argument("--seconds", type=float, default=500.0, help="time limit for everything")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rlp", action="store_true", help="the cheaper form: one thought, over a moving average")
    parser.add_argument("--thought-tokens", type=int, default=8)
    parser.add_argument("--rows", type=int, default=32, help="rows per step")
    parser.add_argument("--judged", type=int, default=16_384, help="limit on the held-out tokens to judge on")
    parser.add_argument("--quick", action="store_true", help="a tiny model and one step of everything")
    parser.add_argument("--json", help="also write the figures to this file, after every seed")
    arguments = parser.parse_args()
    quiet()
    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
        place = Path(folder)
        model, config = arguments.model or tiny_model(place), settings(arguments)
        work = Work("quietstar", config, [find_model(model)], 0, place / "work", place)
        study, corpus = study_of(work)
        if not arguments.quick:
            config = fitted(study, arguments.seconds)
            work = replace(work, config=config)
            study = replace(study, work=work, data=learning_rows(work, study.tokenizer, corpus))
        for seeds in seeds_that_fit(config.seeds, arguments.seconds):
            judgement, metrics = study.judgement(seeds)
            show(str(arguments.model or "tiny"), config, seeds, judgement.gate(), metrics)
            if arguments.json:
                figures = {"seeds": seeds, "gate": judgement.gate().as_dict(), "seconds": elapsed()}
                figures |= {"head_steps": config.head_steps, "steps": config.steps, "rows": config.batch_rows}
                figures["metrics"] = {name: asdict(metric) for name, metric in metrics.items()}
                Path(arguments.json).write_text(json.dumps(figures, indent=1))


def tiny_model(place: Path) -> str:
    """A model of a few steps."""
    sources = {"stories": {"path": "stories"}}
    forge.train(None, place / "tiny", vocab_size=300, length=32, model=TINY, sources=sources,
                training={"steps": 2, "batch_rows": 2})  # fmt: skip
    return str(place / "tiny")


def settings(arguments: argparse.Namespace) -> QuietStar:
    sources = {path: Source(path) for path in arguments.data}
    if arguments.quick:
        config = QUICK
    else:
        config = QuietStar(
            thought_tokens=arguments.thought_tokens,
            positions=32,
            batch_rows=arguments.rows,
            seeds=arguments.seeds,
            most_judged=arguments.judged,
            training={"micro_rows": 32},
        )
    if arguments.rlp:
        config = replace(config, form="rlp", thoughts=1)
    return replace(config, sources=sources) if sources else config


def fitted(study: ThoughtStudy, seconds: float) -> QuietStar:
    """The settings with as many steps as fit: what a step of each arm takes, and judging, are measured."""
    config = study.config
    stamps: list[float] = []  # of every step

    def note(**record: Any) -> None:
        if "step" in record:
            stamps.append(time.perf_counter())

    short = replace(config, head_steps=0, steps=TIMED, training={**config.training, "log_every": 1})
    timing = replace(study, work=replace(study.work, config=short, folder=study.work.folder / "timing", tell=note))
    share = min(16, len(study.judged))
    rows = take_rows(study.judged, slice(0, share))
    per_step = per_seed = 0.0
    for arm in ARMS:
        stamps.clear()
        start = time.perf_counter()
        trained = timing.trained(arm, 0)
        spent, step = time.perf_counter() - start, float(np.median(np.diff(stamps)))
        start = time.perf_counter()
        token_nats(trained, rows, arm, config.thought_tokens)
        judging = (time.perf_counter() - start) * len(study.judged) / share
        other = max(0.0, spent - TIMED * step)  # loading, saving; once more for the steps of the heads
        per_step, per_seed = per_step + step, per_seed + other + judging
        print(f"{arm}: {step:.2f} s per step, {other:.1f} s beside, {judging:.1f} s of judging per seed", flush=True)
        shutil.rmtree(timing.work.folder, ignore_errors=True)
    left = USED * (seconds - elapsed()) - config.seeds * per_seed
    steps = max(4, int(left / (config.seeds * per_step)))
    print(f"{steps} steps; {elapsed():.0f} s so far", flush=True)
    return replace(config, head_steps=steps // 3, steps=steps - steps // 3)


def show(name: str, config: QuietStar, seeds: int, gate: GateResult, figures: Mapping[str, Metric]) -> None:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    steps = f"{config.head_steps} + {config.steps} steps of {config.batch_rows} rows"
    print(f"\n{name}, {device}, {seeds} seeds, {steps}, {elapsed():.0f} s")
    print(f"verdict: {gate.verdict}{f' ({gate.note})' if gate.note else ''}\n")
    print("| | hardest tenth | thoughts minus it | all tokens | thoughts minus it |")
    print("|---|---|---|---|---|")
    for control in ("thoughts", *CONTROLS):
        cells = [control]
        for tokens in ("hardest tenth", "all tokens"):
            cells.append(f"{figures[f'nats, {tokens}, {control}'].value:.4f}")
            difference = figures.get(f"nats, {tokens}, thoughts minus {control}")
            cells.append("" if difference is None else f"{difference.value:+.4f} ± {difference.stderr or 0:.4f}")
        print(f"| {' | '.join(cells)} |")
    for figure in ("weight of thoughts", "thought nats per token", "thought relevance"):
        print(f"{figure}: {figures[figure].value:.4f}", flush=True)


if __name__ == "__main__":
    main()
