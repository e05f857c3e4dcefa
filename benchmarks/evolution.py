"""Is an evolved merge better than its parents, than their average, and than recipes drawn at random?

    PYTHONPATH=src python benchmarks/evolution.py --home DIR          the specialists that `forge run nano` left there
    PYTHONPATH=src python benchmarks/evolution.py --home DIR --small  those of `forge run small`, with AGENT_FORGE_DATA
    PYTHONPATH=src python benchmarks/evolution.py --quick             makes its own (a shortened `nano`), two seeds

The tasks are those of the preset's phase `evomerge`. Both searches evaluate the same number of recipes on the same rows
and start alike; other rows judge, and no parent has learnt from any of them. Fitness is relative to the base (1.0). The
error of a search is over seeds; that of the difference from the best parent is paired by item.

Results are printed at once, and written to $OUT where that is set, so that a run that is cut short loses nothing.
"""

from __future__ import annotations

import argparse
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
from agent_forge.forge.evolution.examiner import Examiner, as_lists, as_scores
from agent_forge.forge.evolution.fitness import (
    WITH_ACCURACY,
    ModelScores,
    Yardstick,
    accuracy,
    perplexity,
    reach_verdict,
)
from agent_forge.forge.evolution.genome import random_genome, start_genome
from agent_forge.forge.evolution.jury import EvaluationLog, Jury
from agent_forge.forge.evolution.report import write_report
from agent_forge.forge.evolution.run import AVERAGE, evolve, measure_controls
from agent_forge.forge.evolution.search import Evolution, Member
from agent_forge.forge.evolution.settings import Evolve
from agent_forge.forge.merging import parse_recipe, to_yaml
from agent_forge.forge.phases.worker import quiet
from agent_forge.forge.pipeline import read_pipeline

SPECIALISTS = ("reasoning", "memory", "adaptive")
RANDOM, EVOLVED = "random search", "evolution"


@dataclass
class Row:
    """A line of the table: held-out fitness (one figure per seed), and the difference from the best parent."""

    name: str
    fitness: list[float]
    gains: list[float]
    errors: list[float]
    verdicts: list[str]


@dataclass
class SearchResult:
    """The champion of one search: its recipe and its scores."""

    arm: str
    seed: int
    recipes: int
    selection: float  # fitness on the selection data
    seconds: float
    recipe: str
    technique: str
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
    """The newest base and specialists, including those that a phase passed over without gain."""
    from agent_forge.forge.registry import Registry

    registry = Registry(home)
    folders = {}
    for name in ("base", *SPECIALISTS):
        entries = registry.ls(name)
        if entries:
            folders[name] = Path(entries[0].path)
    if "base" not in folders or len(folders) < 3:
        raise SystemExit(
            f"no base with two specialists in {home}: run `agent-forge forge run nano --home {home}` first"
        )
    return folders


def settings(parents: dict[str, Path], preset: str, evaluations: int) -> Evolve:
    """The preset's own phase, with a budget of recipes in place of convergence."""
    phase = build(Evolve, read_pipeline(preset).phases["evomerge"].config, preset)
    search = replace(phase.search, generations=1000, evaluations=evaluations, converged=0.0, patience=1000)
    folders = tuple(str(path) for name, path in parents.items() if name != "base")
    return replace(phase, parents=folders, base=str(parents["base"]), search=search)


def jury_of(config: Evolve, examiner: Examiner, folder: Path) -> Jury:
    return Jury(config, examiner, EvaluationLog(folder / "evaluations.jsonl"), folder.parent / "projected")


def search(config: Evolve, arm: str, seed: int, examiner: Examiner, folder: Path) -> SearchResult:
    """Runs one search and measures its champion on the held-out data."""
    started = time.perf_counter()
    strategy = replace(config.search, strategy="random" if arm == RANDOM else "ga")
    jury = jury_of(config, examiner, folder / f"{arm}-{seed}")
    history = Evolution(jury.space, jury, strategy, seed).run()
    champion = history.champion
    scores = examiner.held_out.run(examiner.merged(jury.stages(champion.genome)))
    seconds = time.perf_counter() - started
    recipe = to_yaml(parse_recipe(jury.stages(champion.genome, jury.family.paths())))
    return SearchResult(
        arm, seed, len(history.members), champion.fitness, seconds, recipe, champion.genome.technique, as_lists(scores)
    )


_EXAMINER: list[Examiner] = []  # of this process


def search_in_process(config: Evolve, arm: str, seed: int, folder: Path) -> SearchResult:
    """One search in a process of its own, which opens parents and data once."""
    if not _EXAMINER:
        quiet()
        _EXAMINER.append(Examiner.open(config, folder / "projected"))
    return search(config, arm, seed, _EXAMINER[0], folder)


def searches(config: Evolve, seeds: int, examiner: Examiner, folder: Path, processes: int) -> Iterator[SearchResult]:
    """Both searches with every seed, one after the other or in parallel."""
    jobs = [(config, arm, seed) for arm in (RANDOM, EVOLVED) for seed in range(seeds)]
    if processes <= 1:
        yield from (search(*job, examiner, folder) for job in jobs)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(search_in_process, *job, folder) for job in jobs]):
            yield done.result()


def generations(config: Evolve, examiner: Examiner, out: Path) -> dict[str, dict[str, float]]:
    """Where the time goes: of each technique's first recipe, then of eight random ones. On a GPU the first recipes also
    load every kernel."""
    jury = jury_of(config, examiner, out)
    rng = np.random.default_rng(0)
    tokens = float(sum(batch.inputs.numel() for batch in examiner.selection.batches))
    timed = {}
    for name, genomes in (
        ("techniques", [start_genome(jury.space, technique) for technique in jury.space.techniques]),
        ("random", [random_genome(jury.space, rng) for _ in range(8)]),
    ):
        members = [Member(genome, jury.key(genome)) for genome in genomes]
        started = time.perf_counter()
        jury.evaluate(members)
        wall = time.perf_counter() - started
        spent = [jury.log.records[member.key]["seconds"] for member in members]
        timed[name] = {"wall": wall, "tokens": tokens, "recipes": float(len(members))}
        timed[name] |= {part: sum(seconds[part] for seconds in spent) for part in ("merge", "evaluate")}
    return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="where `agent-forge forge run` left its models")
    parser.add_argument("--small", action="store_true", help="the data and lengths of the `small` preset")
    parser.add_argument("--quick", action="store_true", help="make the parents first; few recipes, two seeds")
    parser.add_argument("--evaluations", type=int, default=64, help="recipes per search")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1, help="parallel searches; the generation is timed alone")
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
    examiner = Examiner.open(config, folder / "projected")
    counts = ", ".join(f"{task.name} {len(task.select)} and {len(task.judge)}" for task in examiner.tasks)
    print(f"<!-- opened in {time.perf_counter() - started:.1f} s; items for selection and for the gate: {counts} -->")
    timed = generations(config, examiner, folder / "generation")
    show_generations(timed, config)
    controls = measure_controls(jury_of(config, examiner, folder / "controls"))
    yardstick = Yardstick(controls[examiner.family.base.name], examiner.kinds, config.weights)
    parents = {name: measurement for name, measurement in controls.items() if name != AVERAGE}
    show_rows([row_of(name, [one], yardstick, parents, config) for name, one in controls.items()])
    show_tasks(controls, yardstick.kinds)
    note({"generations": timed, "parents": {name: as_lists(one.scores) for name, one in controls.items()}})
    cost = controls[AVERAGE].cost
    by_arm: dict[str, list[SearchResult]] = {}
    for result in searches(config, seeds, examiner, folder, processes):
        by_arm.setdefault(result.arm, []).append(result)
        note(asdict(result))
        fitness = yardstick.fitness(ModelScores(as_scores(result.scores), cost))
        print(f"<!-- {result.arm}, seed {result.seed}: {result.recipes} recipes, {result.seconds:.1f} s, technique "
              f"{result.technique}, selection fitness {result.selection:.4f}, held out {fitness:.4f} -->",
              flush=True)  # fmt: skip
        if len(by_arm[result.arm]) == seeds:
            ordered = sorted(by_arm[result.arm], key=lambda one: one.seed)
            champions = {f"{one.arm}, seed {one.seed}": ModelScores(as_scores(one.scores), cost) for one in ordered}
            show_rows([row_of(result.arm, [*champions.values()], yardstick, parents, config)])
            show_tasks(champions, yardstick.kinds)
    write_first_report(config, folder)


def note(document: dict[str, Any]) -> None:
    """A line for $OUT/evolution.jsonl, on disk before anything else is done."""
    if place := os.environ.get("OUT"):
        with open(Path(place, "evolution.jsonl"), "a") as file:
            file.write(json.dumps(document) + "\n")
            file.flush()
            os.fsync(file.fileno())


def write_first_report(config: Evolve, folder: Path) -> None:
    """The phase's own report on the first seed of the evolution, whose evaluations are in its log already."""
    out = folder / f"{EVOLVED}-0"
    write_report(evolve(config, out), out)
    if place := os.environ.get("OUT"):
        shutil.copy(out / "report.md", place)


def row_of(
    name: str, models: list[ModelScores], yardstick: Yardstick, parents: dict[str, ModelScores], config: Evolve
) -> Row:
    verdicts = [reach_verdict(yardstick, one, parents, config.worst_loss) for one in models]
    best = parents[verdicts[0].best_parent]
    pairs = [yardstick.difference(one, best) for one in models]
    return Row(
        name,
        [yardstick.fitness(one) for one in models],
        [gain for gain, _ in pairs],
        [error for _, error in pairs],
        ["" if name in parents else verdict.gate.verdict for verdict in verdicts],
    )


def show_generations(timed: dict[str, dict[str, float]], config: Evolve) -> None:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    print(f"{device}; one generation on {timed['random']['tokens']:,.0f} tokens per recipe\n")
    print(
        "| generation | recipes | wall | running models | merging | not model evaluation |\n|---|---|---|---|---|---|"
    )
    for name, spent in timed.items():
        share = 1 - spent["evaluate"] / spent["wall"]
        print(f"| {name} | {spent['recipes']:.0f} | {spent['wall']:.2f} s | {spent['evaluate']:.2f} s "
              f"| {spent['merge']:.2f} s | {share:.1%} |")  # fmt: skip
    print(f"\n{config.search.evaluations} recipes per search; held-out fitness, the base is 1.0\n")
    print("| model | fitness | over the best parent | of it | verdict by seed |\n|---|---|---|---|---|", flush=True)


def show_rows(rows: list[Row]) -> None:
    for row in rows:
        fitness, gain = float(np.mean(row.fitness)), float(np.mean(row.gains))
        spread = f" ± {np.std(row.fitness, ddof=1) / len(row.fitness) ** 0.5:.4f}" if len(row.fitness) > 1 else ""
        verdicts = ", ".join(verdict for verdict in row.verdicts if verdict)
        print(f"| {row.name} | {fitness:.4f}{spread} | {gain:+.4f} ± {np.mean(row.errors):.4f} "
              f"| {gain / (fitness - gain):+.1%} | {verdicts} |", flush=True)  # fmt: skip


def show_tasks(models: dict[str, ModelScores], kinds: dict[str, str]) -> None:
    """Perplexity on the held-out rows, and accuracy where there are answers."""
    print("\n| held out | " + " | ".join(kinds) + " |\n|---|" + "---|" * len(kinds))
    for name, one in models.items():
        print(f"| {name} | " + " | ".join(_cell(one.scores[task], kind) for task, kind in kinds.items()) + " |")
    print(flush=True)


def _cell(rows: np.ndarray, kind: str) -> str:
    hits = f"{accuracy(rows)[0]:.3f}" if kind in WITH_ACCURACY else ""
    figure = "" if kind == "choices" else f"{perplexity(rows) or 0:.3f}"
    return f"{figure} ({hits})" if figure and hits else figure or hits


if __name__ == "__main__":
    main()
