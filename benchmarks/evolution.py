"""Is an evolved merge better than its parents, than their average, and than recipes drawn at random?

    PYTHONPATH=src python benchmarks/evolution.py --home DIR          the specialists that `forge run nano` left there
    PYTHONPATH=src python benchmarks/evolution.py --home DIR --small  those of `forge run small`, with AGENT_FORGE_DATA
    PYTHONPATH=src python benchmarks/evolution.py --quick             makes its own (a shortened `nano`), two seeds

The tasks are those of the preset's phase `evomerge`. Every search has the same number of recipes and of rungs, and
starts from the same eight combinations; selection and judging are on different rows, none of which a parent has learnt
from. Fitness is relative to the base (1.0). The error of a row is over seeds for a search, and of the difference from
the best parent, paired by item, in the last column.

What is finished is printed at once, and written to $OUT where that is set: a run that is cut short has lost nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agent_forge.config import build
from agent_forge.forge.evolution.cma_search import polish
from agent_forge.forge.evolution.examiner import Examiner, Times, as_lists, as_scores
from agent_forge.forge.evolution.fitness import WITH_ACCURACY, Measured, Yardstick, accuracy, perplexity
from agent_forge.forge.evolution.genome import first_generation, random_genome
from agent_forge.forge.evolution.report import write_report
from agent_forge.forge.evolution.run import contenders, evolve, open_examiner, open_jury
from agent_forge.forge.evolution.search import Evolution, Member
from agent_forge.forge.evolution.settings import Evolve
from agent_forge.forge.evolution.verdict import reach_verdict
from agent_forge.forge.phases.evomerge import EvoMerge
from agent_forge.forge.phases.worker import quiet
from agent_forge.forge.pipeline import read_pipeline

SPECIALISTS = ("reasoning", "memory", "adaptive")
RANDOM, EVOLVED, POLISHED = "random search", "evolution", "evolution, then CMA-ES"
AVERAGE = "uniform average"


@dataclass
class Row:
    """A line of the table: held-out fitness (one figure a seed), and the difference from the best parent."""

    name: str
    fitness: list[float]
    gains: list[float]
    errors: list[float]
    verdicts: list[str]


@dataclass
class Found:
    """What one search came to: its champion's recipe and what that scores."""

    arm: str
    seed: int
    recipes: int
    selection: float  # fitness on the data that it selected on
    seconds: float
    recipe: str
    combination: str
    scores: dict[str, Any]  # on the held-out data, as lists


def make_parents(home: Path) -> None:
    """A shortened `nano`, without its last phases."""
    from agent_forge.forge.registry import Registry
    from agent_forge.forge.session import ForgeSession
    from agent_forge.runtime.workers import Inline

    steps = {"base": 60, "reasoning": 25, "memory": 20, "adaptive": 20}
    sets = [f"phases.{name}.config.training.steps={count}" for name, count in steps.items()]
    pipeline = read_pipeline("nano", [*sets, "parallel=1"])
    pipeline = replace(pipeline, phases={name: step for name, step in pipeline.phases.items() if name in steps})
    ForgeSession(pipeline, Registry(home), workers=Inline()).run()


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


def settings(parents: dict[str, Path], preset: str, evaluations: int) -> Evolve:
    """The preset's own phase, with a budget of recipes in place of convergence."""
    phase = build(EvoMerge, read_pipeline(preset).phases["evomerge"].config, preset)
    search = replace(phase.search, generations=1000, evaluations=evaluations, converged=0.0, patience=1000)
    return Evolve(
        parents=tuple(str(path) for name, path in parents.items() if name != "base"),
        base=str(parents["base"]),
        data=phase.data,
        held_out=phase.held_out,
        project=phase.project,
        length=phase.length,
        most_tokens=phase.most_tokens,
        worst_loss=phase.worst_loss,
        weights=phase.weights,
        search=search,
    )


def arms(config: Evolve) -> dict[str, Evolve]:
    """The searches, each with as many recipes."""
    whole = config.search.evaluations or 0
    found = {RANDOM: replace(config, search=replace(config.search, strategy="random")), EVOLVED: config}
    if importlib.util.find_spec("cma"):
        numbers = whole // 2 // config.search.population * config.search.population
        half = replace(config.search, evaluations=whole - numbers, cma=numbers)
        found[POLISHED] = replace(config, search=half)
    return found


def search(config: Evolve, arm: str, seed: int, examiner: Examiner, folder: Path) -> Found:
    """Runs one search and measures its champion on the held-out data."""
    from agent_forge.forge.merging import parse_recipe, to_yaml

    started = time.perf_counter()
    jury = open_jury(config, folder / f"{arm}-{seed}", examiner, folder / "projected")
    evolution = Evolution(jury.space, jury, config.search, seed)
    history = evolution.run()
    if config.search.cma:
        polish(evolution, config.search.cma)
    champion = history.champion
    scores = examiner.held_out().run(examiner.merged(jury.stages(champion.genome)))[0]
    seconds = time.perf_counter() - started
    recipe = to_yaml(parse_recipe(jury.stages(champion.genome, jury.family.paths())))
    return Found(
        arm, seed, len(history.members), champion.fitness, seconds, recipe, champion.genome.bits, as_lists(scores)
    )


_EXAMINER: list[Examiner] = []  # of this process


def search_apart(config: Evolve, arm: str, seed: int, folder: Path) -> Found:
    """The same in a process of its own, which opens parents and data once."""
    if not _EXAMINER:
        quiet()
        _EXAMINER.append(open_examiner(config, folder / "projected"))
    return search(config, arm, seed, _EXAMINER[0], folder)


def searches(config: Evolve, seeds: int, examiner: Examiner, folder: Path, processes: int) -> Iterator[Found]:
    """Every arm with every seed, one after the other or side by side."""
    jobs = [(changed, arm, seed) for arm, changed in arms(config).items() for seed in range(seeds)]
    if processes <= 1:
        yield from (search(*job, examiner, folder) for job in jobs)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(search_apart, *job, folder) for job in jobs]):
            yield done.result()


def generations(config: Evolve, examiner: Examiner, out: Path) -> dict[str, dict[str, float]]:
    """Where the time of eight recipes goes, each on all of the selection data: of the eight combinations, then of eight
    drawn at random. On a GPU the first generation also loads every kernel."""
    whole = replace(config, search=replace(config.search, halving=False))
    alone = Examiner(
        examiner.family, examiner.tasks, examiner.tokenizer, length=config.length, most_tokens=config.most_tokens
    )
    jury = open_jury(whole, out, alone, out / "projected")
    rng = np.random.default_rng(0)
    found = {}
    for name, genomes in (
        ("first", first_generation(jury.space)),
        ("later", [random_genome(jury.space, rng) for _ in range(8)]),
    ):
        members = [Member(genome, jury.key(genome)) for genome in genomes]
        alone.times = Times()
        started = time.perf_counter()
        jury.evaluate(members, 0)
        wall = time.perf_counter() - started
        found[name] = {"wall": wall, **asdict(alone.times), "tokens": tokens_of(alone)}
    return found


def tokens_of(examiner: Examiner) -> float:
    return float(sum(batch.inputs.numel() for batch in examiner.rung(0).batches))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="where `agent-forge forge run` left its models")
    parser.add_argument("--small", action="store_true", help="the data and lengths of the `small` preset")
    parser.add_argument("--quick", action="store_true", help="makes its own parents; few recipes, two seeds")
    parser.add_argument("--evaluations", type=int, default=64, help="recipes of each search")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1, help="searches side by side; the generation is timed alone")
    options = parser.parse_args()
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        home = options.home or Path(folder) / "home"
        if options.home is None:
            make_parents(home)
        count, seeds = (16, 2) if options.quick else (options.evaluations, options.seeds)
        config = settings(parents_in(home), "small" if options.small else "nano", count)
        report(config, seeds, Path(folder), options.processes)


def report(config: Evolve, seeds: int, folder: Path, processes: int) -> None:
    started = time.perf_counter()
    examiner = open_examiner(config, folder / "projected")
    counts = ", ".join(f"{task.name} {len(task.select)} and {len(task.judge)}" for task in examiner.tasks)
    print(f"<!-- opened in {time.perf_counter() - started:.1f} s; items to select on and to judge by: {counts} -->")
    timed = generations(config, examiner, folder / "generation")
    show_generations(timed, config)
    measured, yardstick = judged(config, examiner, folder)
    parents = {name: found for name, found in measured.items() if name != AVERAGE}
    rows = [row_of(name, [found], yardstick, parents, config) for name, found in measured.items()]
    show_row(rows)
    show_tasks(measured, yardstick.kinds)
    note({"generations": timed, "parents": {name: as_lists(one.scores) for name, one in measured.items()}})
    use = measured[AVERAGE].use
    by_arm: dict[str, list[Found]] = {}
    for found in searches(config, seeds, examiner, folder, processes):
        by_arm.setdefault(found.arm, []).append(found)
        note(asdict(found))
        fitness = yardstick.fitness(Measured(as_scores(found.scores), use))
        told = f"{found.recipes} recipes, {found.seconds:.1f} s, combination {found.combination}"
        print(f"<!-- {found.arm}, seed {found.seed}: {told}, selection fitness {found.selection:.4f}, "
              f"held out {fitness:.4f} -->", flush=True)  # fmt: skip
        if len(by_arm[found.arm]) == seeds:
            ordered = sorted(by_arm[found.arm], key=lambda one: one.seed)
            champions = [Measured(as_scores(one.scores), use) for one in ordered]
            show_row([row_of(found.arm, champions, yardstick, parents, config)])
            show_tasks(
                {f"{found.arm}, seed {one.seed}": m for one, m in zip(ordered, champions, strict=True)}, yardstick.kinds
            )
    keep_report(config, folder)


def note(document: dict[str, Any]) -> None:
    """A line for $OUT/evolution.jsonl, on disk before anything else is done."""
    if place := os.environ.get("OUT"):
        with open(Path(place, "evolution.jsonl"), "a") as file:
            file.write(json.dumps(document) + "\n")
            file.flush()
            os.fsync(file.fileno())


def keep_report(config: Evolve, folder: Path) -> None:
    """The phase's own report on the first seed of the evolution, whose evaluations are in its ledger already."""
    out = folder / f"{EVOLVED}-0"
    write_report(evolve(config, out), out)
    if place := os.environ.get("OUT"):
        for name in ("report.md", "fitness.svg"):
            shutil.copy(out / name, Path(place, name))


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
    measured[AVERAGE] = Measured(examiner.held_out().run(examiner.merged(average))[0], jury.use)
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


def show_generations(timed: dict[str, dict[str, float]], config: Evolve) -> None:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    print(f"{device}; one generation of 8 recipes on {timed['first']['tokens']:,.0f} tokens each\n")
    print("| generation | wall | running models | merging | not model evaluation |\n|---|---|---|---|---|")
    for name, spent in timed.items():
        share = 1 - spent["evaluate"] / spent["wall"]
        print(f"| {name} | {spent['wall']:.2f} s | {spent['evaluate']:.2f} s | {spent['merge']:.2f} s | {share:.1%} |")
    print(f"\n{config.search.evaluations} recipes a search; held-out fitness, the base is 1.0\n")
    print("| model | fitness | over the best parent | of it | verdict by seed |\n|---|---|---|---|---|", flush=True)


def show_row(rows: list[Row]) -> None:
    for row in rows:
        fitness, gain = float(np.mean(row.fitness)), float(np.mean(row.gains))
        spread = f" ± {np.std(row.fitness, ddof=1) / len(row.fitness) ** 0.5:.4f}" if len(row.fitness) > 1 else ""
        verdicts = ", ".join(verdict for verdict in row.verdicts if verdict)
        print(f"| {row.name} | {fitness:.4f}{spread} | {gain:+.4f} ± {np.mean(row.errors):.4f} "
              f"| {gain / (fitness - gain):+.1%} | {verdicts} |", flush=True)  # fmt: skip


def show_tasks(measured: dict[str, Measured], kinds: dict[str, str]) -> None:
    """Perplexity on the held-out rows, and accuracy where there are answers."""
    print("\n| held out | " + " | ".join(kinds) + " |\n|---|" + "---|" * len(kinds))
    for name, found in measured.items():
        print(f"| {name} | " + " | ".join(_cell(found.scores[task], kind) for task, kind in kinds.items()) + " |")
    print(flush=True)


def _cell(rows: np.ndarray, kind: str) -> str:
    hits = f"{accuracy(rows)[0]:.3f}" if kind in WITH_ACCURACY else ""
    figure = "" if kind == "choices" else f"{perplexity(rows) or 0:.3f}"
    return f"{figure} ({hits})" if figure and hits else figure or hits


if __name__ == "__main__":
    main()
