"""Below about one bit a weight: a smaller model of the same kind, taught by the large one. This is distillation, not
compression, and is called that everywhere.

The student shares the teacher's tokenizer, so its predictions can be compared with the teacher's word by word.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from agent_forge.errors import UsageError
from agent_forge.forge.compression import folder as folders
from agent_forge.forge.quantization.distillation import distil
from agent_forge.forge.training import TrainSettings
from agent_forge.forge.training.packing import PackedRows

BITS = 2.0  # a student's weight is stored in, about: what its size is chosen by
SCALES = (0.75, 0.625, 0.5, 0.375, 0.3125, 0.25, 0.1875, 0.125, 0.0625)
WIDTHS = ("hidden_size", "intermediate_size", "embedding_rank")


def student_config(config: Any, weights: int) -> Any:
    """The configuration of the same kind with at most so many weights, the widths scaled alike. Raises UsageError."""
    for scale in SCALES:
        found = _scaled(config, scale)
        if _count(found) <= weights:
            return found
    raise UsageError(f"no smaller model of this kind has {weights:,} weights or fewer", fix="allow more bytes")


def _scaled(config: Any, scale: float) -> Any:
    found = copy.deepcopy(config)
    heads = config.num_attention_heads
    for name in WIDTHS:
        width = getattr(config, name, None)
        if width is not None:
            # embeddings shrink twice as fast: with 32,768 words they would be most of a small model
            factor = scale**2 if name == "embedding_rank" else scale
            setattr(found, name, max(2 * heads, round(width * factor / (2 * heads)) * 2 * heads))
    found.num_hidden_layers = max(2, round(config.num_hidden_layers * scale**0.5))
    for name in ("memory_layers",):
        if getattr(config, name, None):
            kept = [layer for layer in getattr(config, name) if layer < found.num_hidden_layers]
            setattr(found, name, kept)
    if getattr(found, "embedding_rank", None) is not None:
        found.embedding_rank = min(found.embedding_rank, found.hidden_size)
    if "head_dim" in found.to_dict():
        found.head_dim = found.hidden_size // heads
    return found


def _count(config: Any) -> int:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(weight.numel() for weight in model.parameters())


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
    tell: Callable[..., None] | None = None,
) -> int:
    """Makes a student of at most `weights` weights, teaches it for `steps` steps, and writes it as a Hugging Face
    folder with the teacher's tokenizer. Returns its number of weights."""
    config = student_config(teacher.config, weights)
    torch.manual_seed(seed)
    student: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    student.to(next(teacher.parameters()).device)
    settings = TrainSettings(
        steps=steps, batch_rows=batch_rows, micro_rows=batch_rows, optimizer="cognate", compile=False, seed=seed
    )
    distil(student, teacher, rows, steps, settings=settings, hard=0.1, tell=tell)
    folder.mkdir(parents=True, exist_ok=True)
    student.cpu().eval().save_pretrained(folder)
    for name in (*folders.KEPT, *folders.TOKENIZER_FILES):
        if (source / name).is_file() and not (folder / name).is_file():
            (folder / name).write_bytes((source / name).read_bytes())
    return sum(weight.numel() for weight in student.parameters())
