"""`agent-forge quantize`: a Hugging Face folder in, a packed folder out, and a report measured on that."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_forge.errors import UsageError
from agent_forge.forge.checkpoint import TOKENIZERS, count_parameters, load, staging
from agent_forge.forge.evaluation.choices import Question, continuations
from agent_forge.forge.evaluation.scores import retention
from agent_forge.forge.evaluation.text import positions_of, refuse_unsound
from agent_forge.forge.quantization.bitlinear import INSIDE_BLOCKS, to_dense
from agent_forge.forge.quantization.folder import copy_model, float32_bytes, folder_bytes, write_dense, write_packed
from agent_forge.forge.quantization.gate import Clause, Demands
from agent_forge.forge.quantization.levels import Format
from agent_forge.forge.quantization.material import Wanted, gather
from agent_forge.forge.quantization.quantise import Measured, Quantisation, Tell, measure_folder
from agent_forge.forge.quantization.recipe import Recipe

# Floating-point operations spent on judging: they bound the held-out text and the questions of a large model on a CPU.
JUDGING = {"cpu": 1e12, "cuda": 1e16}
MOST_JUDGED = {"cpu": 16_384, "cuda": 131_072}  # tokens
FEWEST_JUDGED = 4_096


@dataclass(frozen=True)
class Job:
    """What to do to a model folder. `questions` are asked beside those made from the held-out text."""

    format: Format = field(default_factory=Format)
    recipe: Recipe = field(default_factory=Recipe)
    demands: Demands = field(default_factory=Demands)
    layers: str = INSIDE_BLOCKS
    layout: str = "1.6bit"
    data: Sequence[str] = ()
    questions: Mapping[str, Sequence[Question]] = field(default_factory=dict)
    dense: Path | None = None  # where the de-quantised copy goes
    judged: int | None = None  # held-out tokens; by default what takes a minute or so
    device: str | None = None
    seed: int = 0


def quantise_folder(source: Path, out: Path, job: Job, tell: Tell = lambda **_: None) -> dict[str, Any]:
    """Quantises the model in `source` into the new folder `out` and returns the report.

    Every figure on the result was measured on `out` itself, loaded anew. If a demand is not met, `out` is the input
    unchanged and `accepted` is False. Raises UsageError if `out` exists or the model cannot be quantised.
    """
    for place in (out, job.dense):
        if place is not None and place.exists():
            raise UsageError("it exists already", where=str(place), fix="name a folder that does not")
    if job.dense is not None and job.dense.resolve() == out.resolve():
        raise UsageError("the de-quantised model needs a folder of its own", where=str(out))
    if job.dense is not None and job.format.sub_norm:
        raise UsageError("layers with a sub-norm have no plain form", where=str(job.dense), fix="leave out one of both")
    load(source)  # refuses what is not a sound model folder
    with staging(out.parent) as place, staging((job.dense or out).parent) as beside:  # before the work: can it be kept?
        work = prepare(source, job, tell)
        work.run()
        packed = place / "packed"
        size = write_packed(work.student, source, packed, job.layout)
        found, divergence = measure_folder(work, packed)
        clauses = work.clauses(found, float32_bytes(source) / size)
        accepted = all(clause.met for clause in clauses)
        work.note("packed", found, bytes=size, **divergence)
        if not accepted:
            shutil.rmtree(packed)
            copy_model(source, packed)
            found, divergence = work.original, {"kl": 0.0, "kl_stderr": 0.0, "agreement": 1.0, "agreement_stderr": 0.0}
        packed.rename(out)
        if accepted and job.dense is not None:
            write_dense(to_dense(work.student), source, beside / "dense")
            (beside / "dense").rename(job.dense)
    return report(work, source, out, found, divergence, clauses, accepted)


def prepare(source: Path, job: Job, tell: Tell) -> Quantisation:
    """Loads the model, gathers what it is trained and judged on, and puts the levels in place."""
    device = job.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in JUDGING or (device == "cuda" and not torch.cuda.is_available()):
        raise UsageError(f"there is no device {device!r} here", fix="use cpu, or cuda where there is a GPU")
    teacher: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval().to(device)
    if getattr(teacher, "hf_quantizer", None) is not None:
        raise UsageError("the model is quantised already", where=str(source), fix="start from its full-precision form")
    refuse_unsound(teacher, str(source))
    tokenizer = read_tokenizer(source)
    steps = job.recipe.steps_for(teacher, device)
    judged = job.judged or judged_tokens(teacher, device)
    length = min(job.recipe.length, positions_of(teacher.config) or job.recipe.length)
    wanted = Wanted(min(steps * job.recipe.batch_rows, 20_000), length, judged, seed=job.seed)
    tell(stage="text", steps=steps)
    material = gather(teacher, tokenizer, job.data, wanted)
    asked = {"continuation": continuations(material.judged, max(64, judged // 64))}
    return Quantisation(
        teacher,
        material,
        job.format,
        job.recipe,
        job.demands,
        job.layers,
        {**asked, **job.questions},
        job.seed,
        tell=tell,
    )


def judged_tokens(model: Any, device: str) -> int:
    """As many as the budget allows: 2 operations for each weight and token."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    return int(min(MOST_JUDGED[device], max(FEWEST_JUDGED, JUDGING[device] / (2 * weights))))


def read_tokenizer(source: Path) -> Any | None:
    """The folder's tokenizer, or None where there is none."""
    if not any((source / name).is_file() for name in TOKENIZERS):
        return None
    return AutoTokenizer.from_pretrained(source)


def report(
    work: Quantisation,
    source: Path,
    out: Path,
    found: Measured,
    divergence: Mapping[str, Any],
    clauses: Sequence[Clause],
    accepted: bool,
) -> dict[str, Any]:
    """The document that `--json` prints."""
    before, size, whole = folder_bytes(source), folder_bytes(out), float32_bytes(source)
    weights = sum(file.stat().st_size for file in out.glob("*.safetensors"))
    kept = retention(work.original.scores, found.scores)
    judged = f"{int(found.text.tokens.sum())} tokens, {len(found.text.tokens)} documents"
    return {
        "bytes_before": before,
        "bytes": size,
        "ratio": before / size,
        "bytes_float32": whole,
        "ratio_float32": whole / size,
        "bits_per_weight": 8 * weights / count_parameters(source),
        "ppl_before": work.original.text.perplexity,
        "ppl": found.text.perplexity,
        "ppl_stderr": found.text.perplexity_stderr,
        "bits_per_byte_before": work.original.text.bits_per_byte,
        "bits_per_byte": found.text.bits_per_byte,
        "bits_per_byte_stderr": found.text.bits_per_byte_stderr,
        **divergence,
        "accuracy_kept": None if kept is None else kept.share,
        "accuracy_kept_stderr": None if kept is None else kept.stderr,
        "accepted": accepted,
        "gate": [clause.as_dict() for clause in clauses],
        "judged_on": f"{work.material.about}: {judged}",
        "layers": len(work.names),
        "stages": work.stages,
    }
