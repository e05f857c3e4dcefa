"""Below about one bit per weight: a smaller model of the same kind, taught by the large one, then compressed.

This is distillation, not compression, and is called that everywhere. The student shares the
teacher's tokenizer, so its predictions can be compared with the teacher's token by token.
"""

from __future__ import annotations

import copy
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from agent_forge.errors import UsageError
from agent_forge.forge.compression.container import Encoded
from agent_forge.forge.compression.folder import COPIED, TOKENIZER_FILES
from agent_forge.forge.compression.search import Compressor
from agent_forge.forge.compression.settings import CompressSettings
from agent_forge.forge.progress import Tell, silent
from agent_forge.forge.quantization.distillation import distil
from agent_forge.forge.training import TrainSettings
from agent_forge.forge.training.packing import PackedRows

BITS = 2.0  # per weight of a compressed student, about: its size is chosen by that
SCALES = (0.75, 0.625, 0.5, 0.375, 0.3125, 0.25, 0.1875, 0.125, 0.0625)
WIDTHS = ("hidden_size", "intermediate_size", "embedding_rank")
HARD = 0.1  # share of the plain cross-entropy in the student's loss


def student_config(config: Any, weights: int) -> Any:
    """The configuration of the same kind with at most `weights` weights, all widths scaled alike.
    Raises UsageError."""
    for scale in SCALES:
        scaled = _scaled(config, scale)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(scaled)
        if sum(weight.numel() for weight in model.parameters()) <= weights:
            return scaled
    raise UsageError(f"no smaller model of this kind has {weights:,} weights or fewer", fix="Allow more bytes")


def _scaled(config: Any, scale: float) -> Any:
    scaled = copy.deepcopy(config)
    heads = config.num_attention_heads
    for name in WIDTHS:
        width = getattr(config, name, None)
        if width is not None:
            # embeddings shrink twice as fast: with 32,768 tokens they would be most of a small
            # model
            factor = scale**2 if name == "embedding_rank" else scale
            setattr(scaled, name, max(2 * heads, round(width * factor / (2 * heads)) * 2 * heads))
    scaled.num_hidden_layers = max(2, round(config.num_hidden_layers * scale**0.5))
    if getattr(config, "memory_layers", None):
        scaled.memory_layers = [layer for layer in config.memory_layers if layer < scaled.num_hidden_layers]
    if getattr(scaled, "embedding_rank", None) is not None:
        scaled.embedding_rank = min(scaled.embedding_rank, scaled.hidden_size)
    if "head_dim" in scaled.to_dict():
        scaled.head_dim = scaled.hidden_size // heads
    return scaled


def teach_student(
    teacher: Any,
    source: Path,
    folder: Path,
    rows: PackedRows,
    weights: int,
    steps: int,
    *,
    batch_rows: int = 16,
    seed: int = 0,
    tell: Tell = silent,
) -> int:
    """Makes a student of at most `weights` weights, teaches it for `steps` steps, and writes it as
    a Hugging Face folder with the teacher's tokenizer. Returns its number of weights."""
    config = student_config(teacher.config, weights)
    torch.manual_seed(seed)
    student: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    student.to(next(teacher.parameters()).device)
    settings = TrainSettings(
        steps=steps, batch_rows=batch_rows, micro_rows=batch_rows, optimizer="cognate", compile=False, seed=seed
    )
    distil(student, teacher, rows, steps, settings=settings, hard=HARD, stage="student", tell=tell)
    folder.mkdir(parents=True, exist_ok=True)
    student.cpu().eval().save_pretrained(folder)
    for name in (*COPIED, *TOKENIZER_FILES):
        if (source / name).is_file() and not (folder / name).is_file():
            shutil.copyfile(source / name, folder / name)
    return sum(weight.numel() for weight in student.parameters())


@dataclass(frozen=True)
class CompressedStudent:
    """A student within a budget, as it came from the codecs and after recovery, and what writes it
    as a folder."""

    weights: int
    compressor: Compressor
    codecs: dict[str, Encoded]
    recovered: dict[str, Encoded]


def compress_student(
    teacher: Compressor,
    budget: int,
    folder: Path,
    settings: CompressSettings,
    *,
    overhead: int,
    steps: int,
    batch_rows: int = 16,
) -> CompressedStudent:
    """A student of `teacher.model` that takes at most `budget` bytes: taught in `folder`,
    compressed, recovered.

    `overhead` is about what its folder takes beside the matrices; the number of weights follows
    from the rest. Raises UsageError if no student fits.
    """
    rows, most = teacher.text.rows, int(8 * (budget - overhead) / BITS)
    weights = teach_student(
        teacher.model, teacher.source, folder, rows, most, steps, batch_rows=batch_rows, seed=teacher.seed,
        tell=teacher.tell,
    )  # fmt: skip
    small = Compressor(folder, teacher.text, settings, teacher.tell, original=teacher.model, seed=teacher.seed)
    small.calibrate()
    room = budget - small.overhead()
    allocation = small.allocated(room)
    if allocation is None:
        raise UsageError(f"the student of {weights:,} weights does not fit in {budget:,} bytes", fix="Allow more bytes")
    tensors = small.encoded(allocation)
    recovered = small.recovered(tensors, allocation.price, room + small.plain_bytes())
    return CompressedStudent(weights, small, tensors, recovered)
