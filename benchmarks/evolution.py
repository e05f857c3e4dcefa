"""Is an evolved merge better than its parents, than their average, and than recipes drawn at random?

    PYTHONPATH=src python benchmarks/evolution.py --home DIR          the specialists that `forge run nano` left there
    PYTHONPATH=src python benchmarks/evolution.py --home DIR --small  those of `forge run small`, with AGENT_FORGE_DATA
    PYTHONPATH=src python benchmarks/evolution.py --quick             makes its own (a shortened `nano`), two seeds

Every search has the same number of recipes and of rungs, and starts from the same eight combinations; selection and
judging are on different rows, none of which a parent has learnt from. Fitness is relative to the base (1.0). The error
of a row is over seeds for a search, and of the difference from the best parent, paired by item, in the last column.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agent_forge.forge.evolution.cma_search import polish
from agent_forge.forge.evolution.examiner import Examiner, Times
from agent_forge.forge.evolution.fitness import Measured, Yardstick, perplexity
from agent_forge.forge.evolution.genome import first_generation
from agent_forge.forge.evolution.run import contenders, open_examiner, open_jury
from agent_forge.forge.evolution.search import Evolution, Member
from agent_forge.forge.evolution.settings import Evolve, Search, TaskSource
from agent_forge.forge.evolution.verdict import reach_verdict
from agent_forge.forge.phases.worker import quiet

SPECIALISTS = ("reasoning", "memory", "adaptive")
SMALL = {
    "openstax": TaskSource("${AGENT_FORGE_DATA}/text_openstax"),
    "books": TaskSource("${AGENT_FORGE_DATA}/text_books"),
    "gsm8k": TaskSource("${AGENT_FORGE_DATA}/gsm8k"),
}
NANO = {"stories": TaskSource("stories"), "problems": TaskSource("problems")}


@dataclass
class Row:
    """A line of the table: held-out fitness (one figure a seed), and the difference from the best parent."""

    name: str
    fitness: list[float]
    gains: list[float]
    errors: list[float]
    verdicts: list[str]


def make_parents(home: Path) -> None:
    """A shortened `nano`, without its last phase."""
    from agent_forge.forge.pipeline import read_pipeline
    from agent_forge.forge.registry import Registry
    from agent_forge.forge.session import Session
    from agent_forge.runtime.workers import Inline

    steps = {"base": 60, "reasoning": 25, "memory": 20, "adaptive": 20}
    sets = [f"phases.{name}.config.training.steps={count}" for name, count in steps.items()]
    pipeline = read_pipeline("nano", [*sets, "parallel=1"])
    pipeline = replace(pipeline, phases={name: step for name, step in pipeline.phases.items() if name in steps})
    Session(pipeline, Registry(home), workers=Inline()).run()


def parents_in(home: Path) -> dict[str, Path]:
    """The newest base and specialists; those that a phase passed over, without gain, are parents all the same."""
    from agent_forge.forge.registry import Registry

    registry = Registry(home)
    found = {}
    for name in ("base", *SPECIALISTS):
        entries = registry.ls(name)
        if entries:
            found[name] = Path(entries[0].path)
    if "base" not in found or len(found) < 3:
        raise SystemExit(
            f"no base with two specialists in {home}: run `agent-forge forge run nano --home {home}` first"
        )
    return found


def settings(parents: dict[str, Path], small: bool, evaluations: int) -> Evolve:
    search = Search(generations=1000, evaluations=evaluations, converged=0.0, patience=1000, groups=4 if small else 3)
    return Evolve(
        parents=tuple(str(path) for name, path in parents.items() if name != "base"),
        base=str(parents["base"]),
        data=SMALL if small else NANO,
        held_out=0.02 if small else 0.05,
        length=1024 if small else 128,
        most_tokens=4096 if small else 512,
        project=True,
        search=search,
    )


def arms(config: Evolve) -> dict[str, Evolve]:
    """The searches, each with as many recipes."""
    whole = config.search.evaluations or 0
    found = {
        "random search": replace(config, search=replace(config.search, strategy="random")),
        "evolution": config,
    }
    if importlib.util.find_spec("cma"):
        numbers = whole // 2 // config.search.population * config.search.population
        half = replace(config.search, evaluations=whole - numbers, cma=numbers)
        found["evolution, then CMA-ES"] = replace(config, search=half)
    return found


def search(config: Evolve, seed: int, examiner: Examiner, out: Path) -> tuple[Member, Any, int]:
    """Runs one search; its champion, its jury, and how many recipes it looked at."""
    jury = open_jury(config, out, examiner, out / "projected")
    evolution = Evolution(jury.space, jury, config.search, seed)
    history = evolution.run()
    if config.search.cma:
        polish(evolution, config.search.cma)
    return history.champion, jury, len(history.members)


def one_generation(config: Evolve, examiner: Examiner, out: Path) -> dict[str, float]:
    """The eight combinations, each on all of the selection data: where the time goes."""
    whole = replace(config, search=replace(config.search, halving=False))
    alone = Examiner(
        examiner.family, examiner.tasks, examiner.tokenizer, length=config.length, most_tokens=config.most_tokens
    )
    jury = open_jury(whole, out, alone, out / "projected")
    members = [Member(genome, jury.key(genome)) for genome in first_generation(jury.space)]
    alone.times = Times()
    started = time.perf_counter()
    jury.evaluate(members, 0)
    wall = time.perf_counter() - started
    return {"wall": wall, "merge": alone.times.merge, "evaluate": alone.times.evaluate, "tokens": tokens_of(alone)}


def tokens_of(examiner: Examiner) -> float:
    return float(sum((batch.targets >= 0).sum().item() for batch in examiner.rung(0).batches))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="where `agent-forge forge run` left its models")
    parser.add_argument("--small", action="store_true", help="the data and lengths of the `small` preset")
    parser.add_argument("--quick", action="store_true", help="makes its own parents; few recipes, two seeds")
    parser.add_argument("--evaluations", type=int, default=64, help="recipes of each search")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        home = options.home or Path(folder) / "home"
        if options.home is None:
            make_parents(home)
        count, seeds = (16, 2) if options.quick else (options.evaluations, options.seeds)
        config = settings(parents_in(home), options.small, count)
        report(config, seeds, Path(folder))


def report(config: Evolve, seeds: int, folder: Path) -> None:
    examiner = open_examiner(config, folder / "projected")
    generation = one_generation(config, examiner, folder / "generation")
    show_generation(generation, config)
    measured, yardstick = judged(config, examiner, folder)
    parents = {name: found for name, found in measured.items() if name != "uniform average"}
    rows = [row_of(name, [found], yardstick, parents, config) for name, found in measured.items()]
    show_row(rows)
    seconds: dict[str, float] = {}
    for arm, changed in arms(config).items():
        found = []
        started = time.perf_counter()
        for seed in range(seeds):
            champion, jury, looked_at = search(changed, seed, examiner, folder / f"{arm}-{seed}")
            found.append(held_out(examiner, jury, examiner.merged(jury.stages(champion.genome))))
            print(f"<!-- {arm}, seed {seed}: {looked_at} recipes, selection fitness {champion.fitness:.4f}, "
                  f"held out {yardstick.fitness(found[-1]):.4f} -->", flush=True)  # fmt: skip
        seconds[arm] = (time.perf_counter() - started) / seeds
        rows.append(row_of(arm, found, yardstick, parents, config))
        show_row(rows[-1:])
        for seed, result in enumerate(found):
            measured[f"{arm}, seed {seed}"] = result
    for arm, wall in seconds.items():
        print(f"\n{arm}: {wall:.1f} s a search", end="")
    show_tasks(measured)
    if place := os.environ.get("OUT"):
        document = {"rows": [vars(row) for row in rows], "generation": generation, "seconds": seconds}
        Path(place, "evolution.json").write_text(json.dumps(document, indent=2))


def held_out(examiner: Examiner, jury: Any, model: Any) -> Measured:
    return Measured(examiner.held_out().run(model)[0], jury.use)


def judged(config: Evolve, examiner: Examiner, folder: Path) -> tuple[dict[str, Measured], Yardstick]:
    """Parents and their uniform average on the held-out data."""
    jury = open_jury(config, folder / "judged", examiner, folder / "projected")
    shape = {str(member.path) for member in examiner.family.members}
    measured = {}
    for name, path in contenders(examiner.family).items():
        model = examiner.model_at(path)
        use = jury.use if str(path) in shape else examiner.use_of(model)
        measured[name] = Measured(examiner.held_out().run(model)[0], use)
    models = [{"model": parent.name, "parameters": {"weight": 1.0}} for parent in examiner.family.parents]
    average = [{"merge_method": "linear", "models": models, "dtype": "float32"}]
    measured["uniform average"] = held_out(examiner, jury, examiner.merged(average))
    return measured, Yardstick(measured[examiner.family.base.name], examiner.kinds, config.weights)


def row_of(name: str, found: list[Measured], yardstick: Yardstick, parents: dict[str, Measured], config: Evolve) -> Row:
    verdicts = [reach_verdict(yardstick, one, parents, config.worst_loss) for one in found]
    best = parents[verdicts[0].best_parent]
    pairs = [yardstick.difference(one, best) for one in found]
    return Row(
        name,
        [yardstick.fitness(one) for one in found],
        [gain for gain, _ in pairs],
        [error for _, error in pairs],
        ["" if name in parents else verdict.gate.verdict for verdict in verdicts],
    )


def show_generation(generation: dict[str, float], config: Evolve) -> None:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    rest = generation["wall"] - generation["evaluate"]
    parts = {name: f"{generation[name]:.2f} s" for name in ("wall", "evaluate", "merge")}
    print(f"{device}; one generation of 8 recipes on {generation['tokens']:,.0f} tokens each: {parts['wall']}")
    print(f"of it {parts['evaluate']} running models, {parts['merge']} merging; "
          f"{rest / generation['wall']:.1%} is not model evaluation")  # fmt: skip
    print(f"\n{config.search.evaluations} recipes a search; held-out fitness, the base is 1.0\n")
    print("| model | fitness | over the best parent | of it | verdict by seed |\n|---|---|---|---|---|", flush=True)


def show_row(rows: list[Row]) -> None:
    """Printed as soon as they are there: a run that is cut short has shown what it had."""
    for row in rows:
        fitness, gain = float(np.mean(row.fitness)), float(np.mean(row.gains))
        spread = f" ± {np.std(row.fitness, ddof=1) / len(row.fitness) ** 0.5:.4f}" if len(row.fitness) > 1 else ""
        verdicts = ", ".join(verdict for verdict in row.verdicts if verdict)
        print(f"| {row.name} | {fitness:.4f}{spread} | {gain:+.4f} ± {np.mean(row.errors):.4f} "
              f"| {gain / (fitness - gain):+.1%} | {verdicts} |", flush=True)  # fmt: skip


def show_tasks(measured: dict[str, Measured]) -> None:
    tasks = list(next(iter(measured.values())).scores)
    print("\n\nheld-out perplexity\n\n| model | " + " | ".join(tasks) + " |\n|---|" + "---|" * len(tasks))
    for name, found in measured.items():
        print(f"| {name} | " + " | ".join(f"{perplexity(found.scores[task]) or 0:.3f}" for task in tasks) + " |")


if __name__ == "__main__":
    main()
