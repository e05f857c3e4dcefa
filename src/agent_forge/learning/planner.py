"""Trains a planner: rows in, a model that plans with these tools out, judged on requests that it has not seen.

    agent-forge train planner --tools tools.py --out mine            # adapts the shipped planner on a CPU
    agent-forge train planner --base-model DIR --data rows.jsonl --out mine

The same as a phase of a pipeline: `phase: agent_forge.learning.planner`. What it writes is a folder that
`--planner DIR` plans with; in int8 it runs without torch.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from agent_forge.agents.planner.forged import CALIBRATION, SHIPPED, PlanModel
from agent_forge.agents.planner.script import request_text, tools_text
from agent_forge.config import build
from agent_forge.errors import UsageError
from agent_forge.files import file_digest
from agent_forge.forge.adapters import adapted_layers, add_adapter, merge_adapter, save_adapter
from agent_forge.forge.checkpoint import Metric, finish, staging
from agent_forge.forge.contracts import Contract, format_of
from agent_forge.forge.doors import TrainReport, run_into, settings_for
from agent_forge.forge.gates import GateResult, judge
from agent_forge.forge.merging.layout import LAYER
from agent_forge.forge.models import CognateForCausalLM
from agent_forge.forge.opening import ModelName, find_model
from agent_forge.forge.phases import Phase, PhaseOutcome, Work
from agent_forge.forge.phases.cognate import device
from agent_forge.forge.progress import Tell, silent
from agent_forge.forge.pruning import cut_embeddings, cut_tokenizer, kept_words
from agent_forge.forge.quantization.folder import copy_tokenizer
from agent_forge.forge.training import TrainSettings, train
from agent_forge.forge.training.reinforce import ReinforceResult, learn_policy
from agent_forge.forge.training.settings import ReinforceSettings
from agent_forge.inference.loading import load_model
from agent_forge.inference.packed import save_packed, unpack_model
from agent_forge.inference.torch_reader import reader_of
from agent_forge.learning.attempts import reference_of
from agent_forge.learning.frozen import below_computed_once
from agent_forge.learning.judging import PlannerFigures, by_model, calibration, controls, judge_planner
from agent_forge.learning.material import PlannerRows, gather, public_groups
from agent_forge.learning.plan_attempts import PlanCollector, PlanSampler
from agent_forge.learning.rows import PlanRow
from agent_forge.learning.settings import PlannerSettings
from agent_forge.learning.sheets import PlanSheets, encode_sheets, pack_sheets
from agent_forge.learning.supervised import adamw_settings

RIGHT = "fully right"
SEAM = 2  # tokens that a text may take more in parts than as a whole
VALIDATION = 64  # training rows that reinforcement keeps back, at most


def train_planner(
    base: ModelName | None,
    out: str | os.PathLike[str],
    settings: PlannerSettings | None = None,
    *,
    seed: int = 0,
    tell: Tell = silent,
    **fields: Any,
) -> TrainReport:
    """Trains `base`, any causal LM, or with None the planner that comes with the package, to plan; writes it to `out`.

    `accepted` says whether it is clearly better on held-out requests than before, and than every control; what was
    trained is in `out` either way. Raises ConfigError, DataError, UsageError.
    """
    config = settings_for(PlannerSettings, settings, fields, "train planner")
    return run_into(PHASE, config, [] if base is None else [find_model(base)], Path(out), seed, tell)


def run(work: Work) -> PhaseOutcome:
    config: PlannerSettings = work.config
    source = work.inputs[0].path if work.inputs else SHIPPED
    material = gather(config, work.seed)
    rows = material.held_out[: config.judged]
    torch.manual_seed(work.seed)
    model, words = prepare(source, config, material.train)
    folder = work.folder / "words"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(words, encoding="utf-8")
    work.tell(stage="judge the base")
    # what is packed is judged as it runs; a plain model in memory, before it learns
    packed = format_of(source) == "agent_forge_packed" and not config.vocabulary
    before = Judged.of(rows, PlanModel(source) if packed else PlanModel(folder, reader_of(model)))
    adapts = config.lora or not work.inputs
    if adapts:
        add_adapter(model, config.adapter)
    model.to(device())
    groups = public_groups(config, work.seed)
    trained = learn(work, model, words, material, groups) if config.epochs else None
    practised = practise(work, model, words, material, groups) if config.reinforce else None
    with staging(work.models) as place:
        if adapts:
            save_adapter(model, place / "adapter", base="" if not work.inputs else source)
            merge_adapter(model)
        write_planner(model.cpu(), place, words, source, config.output)
        work.tell(stage="judge the planner")
        after = Judged.of(rows, PlanModel(place))
        table = {"planner": after.figures, "before": before.figures}
        rivals = {name: Judged.of(rows, write=write) for name, write in controls(material.train).items()}
        table |= {name: rival.figures for name, rival in rivals.items()}
        (place / CALIBRATION).write_text(json.dumps(calibration(after.sure, after.right)), encoding="utf-8")
        metrics = {**figures_of(table), **counts_of(material, trained, practised)}
        checkpoint = finish(place, work.card(material.digests(), metrics), work.models)
    return PhaseOutcome(checkpoint, gate_of(before, after, rivals))


class Judged:
    """A planner's plans for the rows, each right or not, with how sure it was."""

    def __init__(self, figures: PlannerFigures, right: list[float], sure: list[float]) -> None:
        self.figures, self.right, self.sure = figures, right, sure

    @classmethod
    def of(cls, rows: Sequence[PlanRow], model: PlanModel | None = None, write: Any = None) -> Judged:
        plans = by_model(model) if model is not None else lambda row: (write(row), 1.0)
        written = [plans(row) for row in rows]
        right = [judge_planner([row], [calls]).right for row, (calls, _) in zip(rows, written, strict=True)]
        return cls(judge_planner(rows, [calls for calls, _ in written]), right, [sure for _, sure in written])


def prepare(source: Path, config: PlannerSettings, rows: Sequence[PlanRow]) -> tuple[Any, str]:
    """The base as a plain model with float32 weights, and its tokenizer.json. Raises UsageError."""
    tokenizer_file = source / "tokenizer.json"
    if not tokenizer_file.is_file():
        raise UsageError(
            "the base has no tokenizer.json", where=str(source), fix="Save it with transformers 4 or later"
        )
    words = tokenizer_file.read_text(encoding="utf-8")
    model = plain_model(source)
    if isinstance(model, CognateForCausalLM):
        fix = "Start from a Llama-shaped model"
        raise UsageError("Cognate does not read sheets, where requests share a list of tools", fix=fix)
    if model.generation_config.eos_token_id is None:
        raise UsageError("the base has no token that ends a text", where=str(source))
    if config.vocabulary and config.vocabulary < model.config.vocab_size:
        kept = kept_words(words, [row.prompt + row.answer for row in rows], config.vocabulary)
        words = cut_tokenizer(words, kept)
        cut_embeddings(model, kept)
    return model, words


def plain_model(source: Path) -> Any:
    """The model in a folder with float32 weights, also if they are packed: a level times a scale is a float32."""
    model = load_model(source, dtype=torch.float32)
    return unpack_model(model) if format_of(source) == "agent_forge_packed" else model


def sheets_of(rows: Sequence[PlanRow], words: str, length: int, end: int, groups: Sequence[Any] = ()) -> PlanSheets:
    """The rows as packed sheets, those over the same tools on one. Where a row needs more than `length` tokens, all
    are as long as it needs; of the `groups`, which there are plenty of, it is left out."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(words)
    by_tools: dict[str, list[PlanRow]] = defaultdict(list)
    for row in rows:
        by_tools[tools_text(row.tools) if row.steps is None else ""].append(row)
    for tools, group in by_tools.items():
        texts = [tools, *(f"{request_text(row.request)}{row.answer}" for row in group)]
        shared, *own = (len(each.ids) for each in tokenizer.encode_batch(texts, add_special_tokens=False))
        length = max(length, shared + max(own) + SEAM)
    sheets = encode_sheets([*by_tools.values(), *groups], tokenizer, length, end)
    return pack_sheets(sheets, length)


def end_of(model: Any) -> int:
    """The token that ends a plan."""
    ends = model.generation_config.eos_token_id
    return int(ends[0] if isinstance(ends, list) else ends)


def learn(work: Work, model: Any, words: str, material: PlannerRows, groups: Sequence[Sequence[PlanRow]]) -> Any:
    """Trains the model on the rows, on answers alone, through the training core."""
    config: PlannerSettings = work.config
    data = sheets_of(material.train, words, config.length, end_of(model), groups)
    settings = training_settings(config, len(data), work.seed)
    with below_computed_once(model, data) if config.epochs > 1 else nullcontext(data) as rows:
        return train(
            model,
            rows,
            settings,
            work.folder / "training",
            on_record=lambda record: work.tell(**record, steps=settings.steps),
            progress=None,
        )


def practise(
    work: Work, model: Any, words: str, material: PlannerRows, groups: Sequence[Sequence[PlanRow]]
) -> ReinforceResult:
    """Reinforcement: plans are sampled for the rows and learnt from by what they earn (`plan_reward`). Some rows are
    kept back to tell when to stop; what the planner is judged on is for the report alone."""
    from tokenizers import Tokenizer

    config: PlannerSettings = work.config
    rows = [row for row in (*material.train, *(row for group in groups for row in group)) if row.steps is None]
    random.Random(work.seed).shuffle(rows)
    cut = min(VALIDATION, len(rows) // 5)
    adapted = next(adapted_layers(model), None) is not None
    settings = reinforce_settings(config, adapted, work.seed)
    sampler = PlanSampler(model, Tokenizer.from_str(words), end_of(model))
    return learn_policy(
        model,
        PlanCollector(sampler, rows[cut:], settings),
        settings,
        folder=work.folder / "reinforcement",
        reference=reference_of(model) if adapted or settings.kl else None,
        evaluate=(lambda _: sampler.judge(rows[:cut], settings.max_tokens)) if cut else None,
        on_record=lambda record: work.tell(**record, iterations=settings.iterations),
        progress=None,
    )


def reinforce_settings(config: PlannerSettings, adapted: bool, seed: int) -> ReinforceSettings:
    """The settings of the reinforcement loop. Raises ConfigError."""
    fields: dict[str, Any] = {"iterations": config.reinforce, "max_tokens": 256, "save_every": 10, "seed": seed}
    fields |= {"learning_rate": 1e-4 if adapted else 1e-5}
    return build(ReinforceSettings, {**fields, **config.reinforcement}, "reinforcement")


def training_settings(config: PlannerSettings, rows: int, seed: int) -> TrainSettings:
    """Settings of the core for so many packed rows."""
    steps = max(1, math.ceil(config.epochs * rows / config.batch_rows))
    return adamw_settings(steps, config.batch_rows, config.lr, config.training, seed)


def write_planner(model: Any, folder: Path, words: str, source: Path, output: str) -> None:
    """Writes a plain model as a folder to plan with."""
    layers = [name for name, each in model.named_modules() if isinstance(each, nn.Linear)]
    layers = [name for name in layers if LAYER.fullmatch(f"{name}.weight")]
    if output == "int8":
        # the shipped planner's embedding is on sixteen levels already, and stays there
        embedding = "int4" if source == SHIPPED else "int8"
        save_packed(model, folder, ternary={}, int8=layers, embedding=embedding, rest="fp16")
    else:
        model.save_pretrained(folder)
    copy_tokenizer(source, folder)
    (folder / "tokenizer.json").write_text(words, encoding="utf-8")


def figures_of(table: Mapping[str, PlannerFigures]) -> dict[str, Metric]:
    """The table of figures for a card: "fully right, rules" and so on."""
    labels = {
        "right": RIGHT,
        "grounded": "grounded arguments",
        "node": "node F1",
        "edge": "edge F1",
        "regret": "regret",
    }
    return {
        f"{label}, {planner}": Metric(value, n=figures.n)
        for planner, figures in table.items()
        for name, label in labels.items()
        if (value := getattr(figures, name)) is not None
    }


def counts_of(material: PlannerRows, trained: Any, practised: ReinforceResult | None = None) -> dict[str, Metric]:
    """How much was learnt from, what was dropped, and what reinforcement gained on rows kept back for that."""
    counts = {"training rows": len(material.train), "held-out rows": len(material.held_out)}
    counts |= {f"dropped, {reason}": count for reason, count in material.dropped.items()}
    counts |= {"steps": trained.steps, "training tokens": trained.tokens} if trained is not None else {"steps": 0}
    metrics = {name: Metric(float(count)) for name, count in counts.items()}
    if practised is not None:
        metrics["reinforcement iterations"] = Metric(float(practised.iterations))
        scores = {"before": practised.before, "after": practised.best}
        metrics |= {
            f"plan reward, {stage} reinforcement": Metric(score.mean, n=score.n)
            for stage, score in scores.items()
            if score is not None
        }
    return metrics


def gate_of(before: Judged, after: Judged, rivals: Mapping[str, Judged]) -> GateResult:
    """Clearly more plans fully right than before, and than the best control, on the same rows."""
    best = max(rivals.values(), key=lambda rival: rival.figures.right)
    gate, against = (
        judge(RIGHT, other.figures.right, after.figures.right, paired_error(other.right, after.right),
              lower_is_better=False)
        for other in (before, best)
    )  # fmt: skip
    return replace(gate, control=best.figures.right, verdict=gate.verdict if against.passed else against.verdict)


def paired_error(first: Sequence[float], second: Sequence[float]) -> float:
    """The standard error of the mean difference."""
    differences = [b - a for a, b in zip(first, second, strict=True)]
    mean = sum(differences) / len(differences)
    variance = sum((each - mean) ** 2 for each in differences) / max(1, len(differences) - 1)
    return math.sqrt(variance / len(differences))


def data_digests(config: PlannerSettings) -> dict[str, str]:
    """What the rows depend on, for the phase's key: the files' digests, and the places of traces and tools."""
    digests = {path: file_digest(Path(path)) for path in config.data if Path(path).is_file()}
    for name in (config.tools, config.traces, config.public):
        if name is not None:
            place = Path(name)
            digests[name] = file_digest(place) if place.is_file() else hashlib.sha256(name.encode()).hexdigest()
    return digests


PHASE = Phase(
    name="planner",
    version=1,
    about="Train a planner on requests with their plans",
    config=PlannerSettings,
    takes=Contract(checkpoints=(0, 1), tokenizer=True),
    promises=Contract(tokenizer=True),
    run=run,
    data=data_digests,
)
