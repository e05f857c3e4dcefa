"""`agent-forge quantize`: a Hugging Face folder in, a packed folder out, and a report measured on that."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_forge.context_length import context_length
from agent_forge.errors import UsageError
from agent_forge.forge.checkpoint import TOKENIZERS, count_parameters, load, staging
from agent_forge.forge.compression.folder import copy_model, folder_bytes
from agent_forge.forge.evaluation.choices import ChoiceQuestion, continuations
from agent_forge.forge.evaluation.scores import retention
from agent_forge.forge.evaluation.text import Divergence, refuse_unsound
from agent_forge.forge.progress import Tell, silent
from agent_forge.forge.quantization.bitlinear import to_dense
from agent_forge.forge.quantization.folder import float32_bytes, write_dense, write_packed
from agent_forge.forge.quantization.gate import DemandCheck
from agent_forge.forge.quantization.material import MaterialSize, gather
from agent_forge.forge.quantization.quantise import Measurement, Quantisation
from agent_forge.forge.quantization.settings import QuantizeSettings

# Floating-point operations spent on judging: they bound the held-out text and the questions of a
# large model on a CPU.
JUDGING = {"cpu": 1e12, "cuda": 1e16}
MOST_JUDGED = {"cpu": 16_384, "cuda": 131_072}  # tokens
FEWEST_JUDGED = 4_096
MOST_ROWS = 20_000


def quantise_folder(
    source: Path,
    out: Path,
    settings: QuantizeSettings | None = None,
    *,
    data: Sequence[str] = (),
    questions: Mapping[str, Sequence[ChoiceQuestion]] | None = None,
    dense: Path | None = None,
    judged: int | None = None,
    device: str | None = None,
    seed: int = 0,
    tell: Tell = silent,
) -> dict[str, Any]:
    """Quantises the model in `source` into the new folder `out` and returns the report.

    `data` is text of your own; `questions` are asked beside those made from the held-out text;
    `dense` is where a de-quantised copy goes; `judged` the number of held-out tokens, by default
    what takes about a minute.

    Every figure on the result was measured on `out` itself, loaded anew. If a demand is not met,
    `out` is the input unchanged and `accepted` is False. Raises UsageError if `out` exists or the
    model cannot be quantised.
    """
    settings = settings or QuantizeSettings()
    _refuse_outputs(out, dense, settings)
    load(source)  # refuses a folder that is not a sound model
    # the working folders come first: if OUT cannot be written, say so before the work
    with staging(out.parent) as place, staging((dense or out).parent) as beside:
        work = prepare(source, settings, data, questions or {}, judged, device, seed, tell)
        work.run()
        packed = place / "packed"
        size = write_packed(work.student, source, packed, settings.layout)
        measurement, divergence = work.measure_folder(packed)
        checks = work.checks(measurement, float32_bytes(source) / size)
        accepted = all(check.met for check in checks)
        work.note("packed", measurement, bytes=size, **divergence.as_dict())
        if not accepted:
            shutil.rmtree(packed)
            copy_model(source, packed)
            measurement, divergence = work.original, Divergence(0.0, 0.0, 1.0, 0.0)
        packed.rename(out)
        if accepted and dense is not None:
            write_dense(to_dense(work.student), source, beside / "dense")
            (beside / "dense").rename(dense)
    return report(work, source, out, measurement, divergence, checks)


def _refuse_outputs(out: Path, dense: Path | None, settings: QuantizeSettings) -> None:
    for place in (out, dense):
        if place is not None and place.exists():
            raise UsageError("it exists already", where=str(place), fix="Name a folder that does not exist")
    if dense is not None and dense.resolve() == out.resolve():
        raise UsageError("the de-quantised model needs a folder of its own", where=str(out))
    if dense is not None and settings.format.sub_norm:
        raise UsageError("layers with a sub-norm have no plain form", where=str(dense), fix="Leave out one of the two")


def prepare(
    source: Path,
    settings: QuantizeSettings,
    data: Sequence[str],
    questions: Mapping[str, Sequence[ChoiceQuestion]],
    judged: int | None,
    device: str | None,
    seed: int,
    tell: Tell,
) -> Quantisation:
    """Loads the model, gathers what it is trained and judged on, and puts the levels in place."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in JUDGING or (device == "cuda" and not torch.cuda.is_available()):
        raise UsageError(f"there is no device {device!r} here", fix="Use cpu, or cuda where there is a GPU")
    teacher: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval().to(device)
    if getattr(teacher, "hf_quantizer", None) is not None:
        raise UsageError("the model is quantised already", where=str(source), fix="Start from its full-precision form")
    refuse_unsound(teacher, str(source))
    has_tokenizer = any((source / name).is_file() for name in TOKENIZERS)
    tokenizer: Any = AutoTokenizer.from_pretrained(source) if has_tokenizer else None
    recipe = settings.recipe
    steps = recipe.steps_for(teacher, device)
    judged = judged or judged_tokens(teacher, device)
    length = min(recipe.length, context_length(teacher.config) or recipe.length)
    tell(stage="text", steps=steps)
    size = MaterialSize(min(steps * recipe.batch_rows, MOST_ROWS), length, judged, seed=seed)
    material = gather(teacher, tokenizer, data, size, tell)
    own = {"continuation": continuations(material.judged, max(64, judged // 64))}
    return Quantisation(teacher, material, settings, {**own, **questions}, seed, tell=tell)


def judged_tokens(model: Any, device: str) -> int:
    """As many as the budget allows: 2 operations per weight and token."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    return int(min(MOST_JUDGED[device], max(FEWEST_JUDGED, JUDGING[device] / (2 * weights))))


def report(
    work: Quantisation,
    source: Path,
    out: Path,
    measurement: Measurement,
    divergence: Divergence,
    checks: Sequence[DemandCheck],
) -> dict[str, Any]:
    """The document that `--json` prints."""
    before, size, whole = folder_bytes(source), folder_bytes(out), float32_bytes(source)
    weights = sum(file.stat().st_size for file in out.glob("*.safetensors"))
    text, left = measurement.text, retention(work.original.scores, measurement.scores)
    return {
        "bytes_before": before,
        "bytes": size,
        "ratio": before / size,
        "bytes_float32": whole,
        "ratio_float32": whole / size,
        "bits_per_weight": 8 * weights / count_parameters(source),
        "ppl_before": work.original.text.perplexity,
        "ppl": text.perplexity,
        "ppl_stderr": text.perplexity_stderr,
        "bits_per_byte_before": work.original.text.bits_per_byte,
        "bits_per_byte": text.bits_per_byte,
        "bits_per_byte_stderr": text.bits_per_byte_stderr,
        **divergence.as_dict(),
        "accuracy_kept": None if left is None else left.share,
        "accuracy_kept_stderr": None if left is None else left.stderr,
        "accepted": all(check.met for check in checks),
        "gate": [check.as_dict() for check in checks],
        "judged_on": f"{work.material.about}: {int(text.tokens.sum())} tokens, {len(text.tokens)} documents",
        "layers": len(work.names),
        "stages": work.stages,
    }
