"""An evolution from its configuration to its verdict.

OUT/evaluations.jsonl   every finished evaluation; a killed run resumes from here
OUT/events.jsonl        fitness and diversity per generation
OUT/champion.yaml       the winning recipe, for `agent-forge merge`
OUT/champion/           the model that it makes, which is the one that was judged
OUT/report.json, report.md
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from agent_forge.config import as_dict
from agent_forge.errors import ConfigError
from agent_forge.files import atomic_write
from agent_forge.forge.checkpoint import CARD, Card, Metric, completed
from agent_forge.forge.evolution.examiner import Examiner
from agent_forge.forge.evolution.fitness import GateVerdict, ModelScores, Yardstick, reach_verdict
from agent_forge.forge.evolution.genome import start_genome
from agent_forge.forge.evolution.jury import EvaluationLog, Jury
from agent_forge.forge.evolution.parents import Parents
from agent_forge.forge.evolution.search import Evolution, Generation, Member, SearchHistory
from agent_forge.forge.evolution.settings import Evolve
from agent_forge.forge.merging import merge, parse_recipe, to_yaml
from agent_forge.forge.merging.engine import RECIPE
from agent_forge.runtime.jobs import Place

PROJECTED = " (projected)"
AVERAGE = "uniform average"


@dataclass(frozen=True)
class Evolved:
    """The result of an evolution."""

    config: Evolve
    family: Parents
    history: SearchHistory
    recipe: str  # YAML
    champion: Path
    fitness: Mapping[str, float]  # on the selection data: parents, uniform average, champion
    held_out: Mapping[str, ModelScores]  # of the same, and of parents before their projection
    yardstick: Yardstick  # of the held-out data
    verdict: GateVerdict
    seconds: Mapping[str, float]

    def settle(self, phase: str, inputs: tuple[str, ...], data: Mapping[str, str], notes: str) -> Card:
        """Makes the champion's folder a checkpoint: its card, and a recipe without this machine's paths, so that the
        same evolution gives the same digest anywhere."""
        paths = [path for one in self.family.members for path in (one.path, one.original_path)]
        folders = {f"{path.parent}{os.sep}" for path in paths if path.parent != Path()}

        def without_paths(text: str) -> str:
            for folder in sorted(folders, key=len, reverse=True):
                text = text.replace(folder, "")
            return text

        recipe = self.champion / RECIPE
        recipe.write_text(without_paths(recipe.read_text(encoding="utf-8")), encoding="utf-8")
        how = "relative to the base; the error is of the difference from the best parent, paired by item"
        metrics = {
            "fitness": Metric(self.yardstick.fitness(self.held_out["champion"]), self.verdict.gate.stderr, how=how),
            "recipes_evaluated": Metric(float(len(self.history.members))),
        }
        config = as_dict(replace(self.config, parents=(), base=None))  # `inputs` are their digests
        card = Card(phase, config, inputs, data, self.config.seed, metrics=metrics, notes=without_paths(notes))
        card = completed(self.champion, card)
        (self.champion / CARD).write_text(card.to_json(), encoding="utf-8")
        return card

    @property
    def goes_on(self) -> Path:
        """The better model: the champion if it passed, else the best parent."""
        return self.champion if self.verdict.passed else self.best_parent

    @property
    def best_parent(self) -> Path:
        """The folder of the best parent, before projection."""
        name = self.verdict.best_parent.removesuffix(PROJECTED)
        return {member.name: member.original_path for member in self.family.members}[name]


def evolve(
    config: Evolve,
    out: Path,
    tell: Callable[..., None] = lambda **_: None,
    models: Path | None = None,
    workers: Place = None,
) -> Evolved:
    """Runs or resumes an evolution in the folder `out`. Projected parents are written under `models`; `workers` come
    before those of the settings.

    Raises ConfigError, DataError, CheckpointError or HandoffError for what cannot work, before anything is evaluated.
    """
    check_parents(config)
    out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    models = models or out / "projected"
    examiner = Examiner.open(config, models)
    jury = Jury(config, examiner, EvaluationLog(out / "evaluations.jsonl"), models, workers)
    opened = time.perf_counter()

    def tell_generation(generation: Generation) -> None:
        fields = asdict(generation)
        tell(step=fields.pop("number"), **fields)

    try:
        settings = config.search if examiner.family.varied else replace(config.search, generations=1)
        history = Evolution(jury.space, jury, settings, config.seed, tell_generation).run()
    finally:
        jury.close()
    searched = time.perf_counter()
    recipe, champion = _write_champion(jury, history, out)
    held_out = measure_controls(jury)
    parents = {name: measurement for name, measurement in held_out.items() if name != AVERAGE}
    held_out["champion"] = ModelScores(examiner.held_out.run(examiner.model_at(champion)), jury.cost)
    yardstick = Yardstick(held_out[examiner.family.base.name], examiner.kinds, config.weights)
    verdict = reach_verdict(yardstick, held_out["champion"], parents, config.worst_loss)
    fitness = _selection_fitness(jury)
    fitness["champion"] = history.champion.fitness
    records = [jury.log.records[key] for key in history.members]
    seconds = {
        "open": opened - started,
        "search": searched - opened,
        "merge": sum(record["seconds"]["merge"] for record in records),
        "evaluate": sum(record["seconds"]["evaluate"] for record in records),
        "judge": time.perf_counter() - searched,
    }
    return Evolved(config, examiner.family, history, recipe, champion, fitness, held_out, yardstick, verdict, seconds)


def check_parents(config: Evolve) -> None:
    if len(config.parents) < 2:
        raise ConfigError("name at least two parents", where="parents")
    folders = [os.path.normpath(parent) for parent in config.parents]
    if twice := next((folder for folder in folders if folders.count(folder) > 1), None):
        raise ConfigError(f"{twice!r} occurs twice", where="parents")


def _write_champion(jury: Jury, history: SearchHistory, out: Path) -> tuple[str, Path]:
    """Writes the winning recipe and merges it with the same engine as `agent-forge merge`."""
    recipe = parse_recipe(jury.stages(history.champion.genome, jury.family.paths()))
    text, file, folder = to_yaml(recipe), out / "champion.yaml", out / "champion"
    if not (file.is_file() and file.read_text(encoding="utf-8") == text and folder.is_dir()):
        shutil.rmtree(folder, ignore_errors=True)
        merge(recipe, folder)
        with atomic_write(file) as handle:
            handle.write(text)
    return text, folder


def rivals(family: Parents) -> dict[str, Path]:
    """What the champion has to beat: base and parents; a projected parent also as it was."""
    folders = {}
    for member in family.members:
        folders[member.name] = member.original_path
        if member.original is not None:
            folders[f"{member.name}{PROJECTED}"] = member.path
    return folders


def measure_controls(jury: Jury) -> dict[str, ModelScores]:
    """The rivals as they are on disk, and the uniform average of the parents, on the held-out data."""
    examiner, measurements = jury.examiner, {}
    base_shape = {str(member.path) for member in examiner.family.members}
    for name, folder in rivals(examiner.family).items():
        model = examiner.model_at(folder)
        cost = jury.cost if str(folder) in base_shape else examiner.cost_of(model, jury.cost)
        measurements[name] = ModelScores(examiner.held_out.run(model), cost)
    mean = examiner.merged(jury.stages(start_genome(jury.space, "linear")))
    measurements[AVERAGE] = ModelScores(examiner.held_out.run(mean), jury.cost)
    return measurements


def _selection_fitness(jury: Jury) -> dict[str, float]:
    """On the selection data, where a projected parent is known by its projection only."""
    fitness = {
        f"{member.name}{PROJECTED if member.original is not None else ''}": jury.parents[member.name]
        for member in jury.family.members
    }
    genome = start_genome(jury.space, "linear")
    mean = Member(genome, jury.key(genome))
    jury.evaluate([mean])  # in the log since the first generation
    return {**fitness, AVERAGE: mean.fitness}
