"""An evolution from its configuration to its verdict.

OUT/evaluations.jsonl   the ledger: every finished evaluation; a run that was killed goes on from here
OUT/events.jsonl        fitness and diversity, generation by generation
OUT/champion.yaml       the winning recipe, for `agent-forge merge`
OUT/champion/           the model that it makes, which is the one that was judged
OUT/report.json, report.md, fitness.svg
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from agent_forge.config import as_dict
from agent_forge.files import atomic_write
from agent_forge.forge import checkpoint as checkpoints
from agent_forge.forge.evolution.cma_search import polish
from agent_forge.forge.evolution.examiner import Examiner
from agent_forge.forge.evolution.fitness import Measured, Yardstick
from agent_forge.forge.evolution.genome import space_of
from agent_forge.forge.evolution.jury import Jury
from agent_forge.forge.evolution.ledger import Ledger
from agent_forge.forge.evolution.parents import Family, open_family
from agent_forge.forge.evolution.search import Evolution, Generation, History
from agent_forge.forge.evolution.settings import Evolve
from agent_forge.forge.evolution.tasks import digest_of, read_tasks
from agent_forge.forge.evolution.verdict import Verdict, reach_verdict

Tell = Callable[..., None]
PROJECTED = " (projected)"


@dataclass(frozen=True)
class Evolved:
    """What an evolution came to."""

    config: Evolve
    family: Family
    history: History
    recipe: str  # YAML
    champion: Path
    fitness: Mapping[str, float]  # on the selection data: the champion and every parent
    held_out: Mapping[str, Measured]
    yardstick: Yardstick  # of the held-out data
    verdict: Verdict
    seconds: Mapping[str, float]

    @property
    def goes_on(self) -> Path:
        """The model that goes on."""
        return self.champion if self.verdict.passed else self.best_parent

    @property
    def best_parent(self) -> Path:
        """The best parent, as it was given."""
        name = self.verdict.best_parent.removesuffix(PROJECTED)
        return {member.name: member.given.path for member in self.family.members}[name]


def evolve(config: Evolve, out: Path, tell: Tell = lambda **_: None, models: Path | None = None) -> Evolved:
    """Runs an evolution, or goes on with one, in the folder `out`. Projected parents go under `models`.

    Raises ConfigError, DataError, CheckpointError or HandoffError, before anything is evaluated, for what cannot work.
    """
    out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    models = models or out / "projected"
    examiner = open_examiner(config, models)
    jury = open_jury(config, out, examiner, models)
    opened = time.perf_counter()
    settings = config.search if examiner.family.varied else replace(config.search, generations=1, cma=0)
    search = Evolution(jury.space, jury, settings, config.seed, tell=lambda generation: _tell(tell, generation))
    try:
        history = search.run()
        if settings.cma:
            polish(search, settings.cma)
    finally:
        jury.close()
    searched = time.perf_counter()
    recipe, champion = write_champion(jury, history, out)
    verdict, held_out, yardstick = judge_champion(config, examiner, jury, champion)
    fitness = fitness_of_parents(jury)
    seconds = {
        "open": opened - started,
        "search": searched - opened,
        "merge": examiner.times.merge,
        "evaluate": examiner.times.evaluate,
        "judge": time.perf_counter() - searched,
    }
    fitness["champion"] = history.champion.fitness
    return Evolved(config, examiner.family, history, recipe, champion, fitness, held_out, yardstick, verdict, seconds)


def _tell(tell: Tell, generation: Generation) -> None:
    fields = asdict(generation)
    tell(step=fields.pop("number"), **fields)


def open_examiner(config: Evolve, models: Path) -> Examiner:
    """Opens parents and data, and checks that they go together."""
    parents = [checkpoints.load(Path(path).expanduser()) for path in config.parents]
    base = parents[0] if config.base is None else checkpoints.load(Path(config.base).expanduser())
    family = open_family(base, parents, names=None, project=config.project, models=models)
    tasks = read_tasks(config.data, config.held_out)
    from agent_forge.forge.phases.specialise import reading_tokenizer

    return Examiner(
        family,
        tasks,
        reading_tokenizer(base),
        length=config.length,
        most_tokens=config.most_tokens,
        rungs=config.search.rungs,
    )


def open_jury(config: Evolve, out: Path, examiner: Examiner, models: Path) -> Jury:
    family = examiner.family
    names = [parent.name for parent in family.parents]
    space = space_of(names, family.kinds, config.search.groups, config.search.weight_noise)
    return Jury(
        space,
        examiner,
        Ledger(out / "evaluations.jsonl"),
        config.weights,
        dtype=config.dtype,
        worst_loss=config.worst_loss,
        data_digest=digest_of(examiner.tasks),
        workers=config.search.workers,
        job={"config": as_dict(config), "models": str(models)},
    )


def write_champion(jury: Jury, history: History, out: Path) -> tuple[str, Path]:
    """Writes the winning recipe and carries it out, with the same engine as `agent-forge merge`."""
    from agent_forge.forge.merging import merge, parse_recipe, to_yaml

    recipe = parse_recipe(jury.stages(history.champion.genome, jury.family.paths()))
    text, file, folder = to_yaml(recipe), out / "champion.yaml", out / "champion"
    if not (file.is_file() and file.read_text(encoding="utf-8") == text and folder.is_dir()):
        shutil.rmtree(folder, ignore_errors=True)
        merge(recipe, folder)
        with atomic_write(file) as handle:
            handle.write(text)
    return text, folder


def fitness_of_parents(jury: Jury) -> dict[str, float]:
    """On the selection data. What was merged from is the projection, so a parent as it was given has no figure here."""
    return {
        f"{member.name}{PROJECTED if member.original is not None else ''}": jury.fitness_of_parent(member.name)
        for member in jury.family.members
    }


def contenders(family: Family) -> dict[str, Path]:
    """Everything that the champion has to beat: base and parents; a projected parent as it is, and as it was given."""
    found = {}
    for member in family.members:
        found[member.name] = member.given.path
        if member.original is not None:
            found[f"{member.name}{PROJECTED}"] = member.path
    return found


def judge_champion(
    config: Evolve, examiner: Examiner, jury: Jury, champion: Path
) -> tuple[Verdict, dict[str, Measured], Yardstick]:
    """Measures the champion and everything it has to beat on the held-out data, each as it is on disk."""
    examination = examiner.held_out()
    measured: dict[str, Measured] = {}
    own = {str(member.path) for member in examiner.family.members} | {str(champion)}
    for name, folder in {**contenders(examiner.family), "champion": champion}.items():
        model = examiner.model_at(folder)
        use = jury.use if str(folder) in own else examiner.use_of(model)
        measured[name] = Measured(examination.run(model)[0], use)
    yardstick = Yardstick(measured[examiner.family.base.name], examiner.kinds, config.weights)
    others = {name: found for name, found in measured.items() if name != "champion"}
    verdict = reach_verdict(yardstick, measured["champion"], others, config.worst_loss)
    return verdict, measured, yardstick
