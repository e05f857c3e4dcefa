"""The front doors: one function for every algorithm.

Each takes its model or models, where to write, and its settings: an instance of its settings class, fields of it as
keywords, or both (the keywords change the instance). The same class makes the options of the command and is the
`config` of the phase in a pipeline file, so that one setting gives one result, whichever way it comes in.

A model is a folder, the digest of a registered checkpoint, or a Checkpoint. `tell(stage=…, done=…, total=…)` reports
progress (`agent_forge.forge.progress`). torch is imported when a door is used, not before.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agent_forge.config import as_dict, build
from agent_forge.errors import UsageError
from agent_forge.forge.checkpoint import Checkpoint
from agent_forge.forge.exporting import ExportReport, ExportSettings, export_model
from agent_forge.forge.opening import LoadSettings, ModelName, OpenedModel, find_model, load_model
from agent_forge.forge.progress import Tell, silent
from agent_forge.forge.registry import Registry
from agent_forge.runtime.jobs import Jobs, Place

if TYPE_CHECKING:
    from agent_forge.forge.compression.search import CompressionReport
    from agent_forge.forge.compression.settings import CompressSettings
    from agent_forge.forge.evaluation.settings import EvaluateSettings
    from agent_forge.forge.evaluation.suite import EvaluationReport
    from agent_forge.forge.evolution.job import EvolveReport
    from agent_forge.forge.evolution.settings import Evolve
    from agent_forge.forge.gates import GateResult
    from agent_forge.forge.merging.engine import MergeReport
    from agent_forge.forge.merging.settings import MergeSettings
    from agent_forge.forge.phases import Phase
    from agent_forge.forge.phases.cognate import Cognate
    from agent_forge.forge.phases.specialise import Specialise
    from agent_forge.forge.quantization.job import QuantizeReport
    from agent_forge.forge.quantization.settings import QuantizeSettings

T = TypeVar("T")
Folder = str | os.PathLike[str]


def settings_for(cls: type[T], settings: T | None, fields: dict[str, Any], door: str) -> T:
    """The settings with some fields changed, checked like a file: an unknown field names the nearest."""
    stated = {} if settings is None else as_dict(settings)
    return build(cls, {**stated, **as_dict(fields)}, door)


def train(
    base: ModelName | None,
    out: Folder,
    settings: Cognate | Specialise | None = None,
    *,
    seed: int = 0,
    tell: Tell = silent,
    **fields: Any,
) -> TrainReport:
    """Trains a specialist from `base` (Specialise) or, with None, a Cognate from text alone (Cognate) into `out`.

    `accepted` says whether it passed the gate: it must be clearly better on held-out text than its base, or than the
    byte frequencies of its text. What was trained is in `out` either way.
    """
    from agent_forge.forge.phases import cognate, specialise

    kind = cognate if base is None else specialise
    config: Any = settings_for(kind.PHASE.config, settings, fields, "train")
    return run_into(kind.PHASE, config, [] if base is None else [find_model(base)], Path(out), seed, tell)


def run_phase(
    name: str,
    models: Sequence[ModelName],
    out: Folder,
    settings: Any = None,
    *,
    seed: int = 0,
    tell: Tell = silent,
    **fields: Any,
) -> TrainReport:
    """Runs one phase by itself, on any checkpoints that it takes; what it made is in the new folder `out`.

    `accepted` says whether it passed its gate: in a pipeline the input would be handed on otherwise. A phase that makes
    nothing without gain leaves a copy of its input. Raises HandoffError for models that it does not take.

    >>> from agent_forge import forge
    >>> forge.run_phase("quietstar", ["models/mine"], "thinking", thought_tokens=4)  # doctest: +SKIP
    """
    from agent_forge.forge.phases import phase

    kind = phase(name)
    config = settings_for(kind.config, settings, fields, kind.name)
    kind.data(config)  # data that are missing are missed before the work
    return run_into(kind, config, [find_model(one) for one in models], Path(out), seed, tell, kind.name)


def run_into(
    kind: Phase, config: Any, inputs: Sequence[Checkpoint], out: Path, seed: int, tell: Tell, name: str = "train"
) -> TrainReport:
    """Runs a phase and puts what it made into the new folder `out`; `name` is the one on the card. A run that was
    interrupted or killed leaves its checkpoints beside `out`, and the same call continues from them."""
    from agent_forge.forge.handoff import handoff
    from agent_forge.forge.phases import Work
    from agent_forge.forge.phases.repack import run_phase_on
    from agent_forge.forge.phases.worker import locked
    from agent_forge.forge.pipeline import phase_key

    if out.exists():
        raise UsageError("the folder exists already", where=str(out), fix="Name one that does not")
    out.parent.mkdir(parents=True, exist_ok=True)
    place = out.parent / f".training-{phase_key(name, kind, config, inputs, seed)[:12]}"
    with locked(place):
        try:
            (place / "models").mkdir(parents=True, exist_ok=True)
            taken, _ = handoff(kind.takes, inputs, kind.name, place / "models")
            outcome = run_phase_on(kind, Work(name, config, taken, seed, place / "work", place / "models", tell))
            if outcome.checkpoint is None:
                shutil.copytree(inputs[outcome.passes_on].path, out)
            else:
                outcome.checkpoint.path.rename(out)
        except Exception:  # not KeyboardInterrupt: what failed would fail again
            shutil.rmtree(place, ignore_errors=True)
            raise
        shutil.rmtree(place, ignore_errors=True)
    made = find_model(out)
    return TrainReport(out, made.digest, outcome.gate, made)


@dataclass(frozen=True)
class TrainReport:
    """What a phase made, and its gate: held-out data before and after."""

    out: Path
    digest: str
    gate: GateResult
    checkpoint: Checkpoint

    @property
    def accepted(self) -> bool:
        return self.gate.passed

    def as_dict(self) -> dict[str, Any]:
        figures = {name: metric.value for name, metric in self.checkpoint.card.metrics.items()}
        gate = self.gate.as_dict()
        return {"out": str(self.out), "digest": self.digest, "accepted": self.accepted, "gate": gate, **figures}


def merge(
    models: Sequence[ModelName], out: Folder, settings: MergeSettings | None = None, **fields: Any
) -> MergeReport:
    """Merges by a recipe, in mergekit's configuration language, in which `models` are input1, input2 …

    >>> from agent_forge import forge
    >>> halves = [{"model": name, "parameters": {"weight": 0.5}} for name in ("input1", "input2")]
    >>> recipe = {"merge_method": "linear", "models": halves}
    >>> forge.merge(["models/a", "models/b"], "merged", recipe=recipe)  # doctest: +SKIP
    """
    from agent_forge.forge.merging.job import merge_models
    from agent_forge.forge.merging.settings import MergeSettings

    return merge_models(
        [find_model(one) for one in models], Path(out), settings_for(MergeSettings, settings, fields, "merge")
    )


def evolve(
    out: Folder,
    settings: Evolve | None = None,
    *,
    tell: Tell = silent,
    **fields: Any,
) -> EvolveReport:
    """Evolves merges of the settings' `parents`; the champion is in `out`/champion, and the report beside it.

    The same call continues an evolution that was stopped or killed.
    """
    from agent_forge.forge.evolution.job import evolve_models
    from agent_forge.forge.evolution.run import check_parents
    from agent_forge.forge.evolution.settings import Evolve

    config = settings_for(Evolve, settings, fields, "evolve")
    check_parents(config)
    parents = [find_model(parent) for parent in config.parents]
    base = parents[0] if config.base is None else find_model(config.base)
    return evolve_models(base, parents, Path(out), config, seed=config.seed, tell=tell)


def quantize(
    model: ModelName,
    out: Folder,
    settings: QuantizeSettings | None = None,
    *,
    dense: Folder | None = None,
    device: str | None = None,
    seed: int = 0,
    tell: Tell = silent,
    **fields: Any,
) -> QuantizeReport:
    """Trains a model for few levels and packs it into the new folder `out`; `dense` gets a de-quantised copy.

    If a demand is missed, `out` is the input unchanged and `accepted` is False.
    """
    from agent_forge.forge.quantization.job import quantise_folder
    from agent_forge.forge.quantization.settings import QuantizeSettings

    config = settings_for(QuantizeSettings, settings, fields, "quantize")
    copy = None if dense is None else Path(dense)
    return quantise_folder(find_model(model), Path(out), config, dense=copy, device=device, seed=seed, tell=tell)


def compress(
    model: ModelName,
    out: Folder,
    settings: CompressSettings | None = None,
    *,
    seed: int = 0,
    tell: Tell = silent,
    **fields: Any,
) -> CompressionReport:
    """The best model within a budget or, without one, the smallest within `max_increase` of perplexity.

    Where nothing passes, `accepted` is False, and `out` holds the smallest artefact that was good enough, or the input.
    """
    from agent_forge.forge.compression.job import compress_folder
    from agent_forge.forge.compression.settings import CompressSettings

    config = settings_for(CompressSettings, settings, fields, "compress")
    return compress_folder(find_model(model), Path(out), config, seed=seed, tell=tell)


def evaluate(
    model: ModelName,
    settings: EvaluateSettings | None = None,
    *,
    workers: Place = None,
    tell: Tell = silent,
    **fields: Any,
) -> EvaluationReport:
    """The tasks of the suite on a model folder or a registered checkpoint, packed ones too; or on an endpoint, by
    http://host:port/v1#name, for the tasks that need only its text. With `workers`, each task of the suite is a job of
    theirs, with the same scores."""
    from agent_forge.forge.evaluation.settings import EvaluateSettings
    from agent_forge.forge.evaluation.suite import EvaluationReport, evaluate_job, evaluate_suite, score_from

    config = settings_for(EvaluateSettings, settings, fields, "evaluate")
    data = config.data or os.environ.get("AGENT_FORGE_DATA")
    if data is None or not Path(data).expanduser().exists():
        what = "no questions are named" if data is None else f"there is no file or folder {data!r}"
        raise UsageError(what, fix="Set `data` to a file of questions, or to a folder with those of every task")
    place, name = Path(data).expanduser(), str(model.path if isinstance(model, Checkpoint) else model)
    remote = name.startswith(("http://", "https://"))
    if workers is not None and not remote:
        source = find_model(model)
        shared = {"model": str(source.path.absolute()), "digest": source.digest, "data": str(place.absolute())}
        jobs = [{**shared, "task": task, "most": config.most, "begin": config.begin} for task in config.suite]
        told = {"stage": "evaluate", "total": len(jobs)}
        with Jobs(workers) as pool:
            done = itertools.count(1)
            scores = pool.map(evaluate_job, jobs, on_result=lambda index, score: tell(done=next(done), **told))
        return EvaluationReport(name, [score_from(score) for score in scores])
    if remote:
        from agent_forge.inference import model as client

        subject, tokenizer = client(name), None
    else:
        loaded = load_model(model, LoadSettings())
        subject, tokenizer = loaded.model, loaded.tokenizer
        if tokenizer is None:
            raise UsageError("the model has no tokenizer to read questions with", where=name)
    return EvaluationReport(
        name, evaluate_suite(subject, tokenizer, place, config.suite, config.most, tell, config.begin)
    )


def export(model: ModelName, out: Folder, settings: ExportSettings | None = None, **fields: Any) -> ExportReport:
    """Verifies a model and writes it to the new folder `out`, with a README made from its card."""
    return export_model(find_model(model), out, settings_for(ExportSettings, settings, fields, "export"), Registry())


def load(model: ModelName, settings: LoadSettings | None = None, **fields: Any) -> OpenedModel:
    """The model with its tokenizer, in memory."""
    return load_model(model, settings_for(LoadSettings, settings, fields, "load"))
