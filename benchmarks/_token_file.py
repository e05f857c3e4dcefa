"""Tokenised text in one file, for machines where reading and tokenising takes longer than training.

Training rows by source, held-out documents by name, and questions: an .npz inside .xz, two bytes per token.
"""

from __future__ import annotations

import io
import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from agent_forge.forge.evaluation.choices import ChoiceQuestion
from agent_forge.forge.training import HeldOut, PackedRows


@dataclass(frozen=True)
class TokenFile:
    """The content of such a file; `samples` are a few plain texts to check a tokenizer with."""

    rows: Mapping[str, PackedRows]
    held_out: Mapping[str, HeldOut]
    questions: Mapping[str, Sequence[ChoiceQuestion]] = field(default_factory=dict)
    samples: Sequence[str] = ()


def write(path: Path, tokens: TokenFile) -> None:
    arrays: dict[str, np.ndarray] = {}
    for name, rows in tokens.rows.items():
        arrays.update(_arrays(f"rows/{name}", rows))
    for name, held in tokens.held_out.items():
        arrays.update(_arrays(f"held/{name}", held.rows))
        arrays[f"held/{name}/bytes"] = np.array(held.bytes_of, np.int64)
    words = {"questions": {task: [asdict(q) for q in questions] for task, questions in tokens.questions.items()},
             "samples": list(tokens.samples)}  # fmt: skip
    arrays["words"] = np.frombuffer(json.dumps(words).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    path.write_bytes(lzma.compress(buffer.getvalue(), preset=6))


def read(path: Path) -> TokenFile:
    arrays = np.load(io.BytesIO(lzma.decompress(path.read_bytes())))
    names = {kind: sorted({key.split("/")[1] for key in arrays if key.startswith(kind)}) for kind in ("rows/", "held/")}
    rows = {name: _rows(arrays, f"rows/{name}") for name in names["rows/"]}
    held = {
        name: HeldOut(_rows(arrays, f"held/{name}"), tuple(int(size) for size in arrays[f"held/{name}/bytes"]))
        for name in names["held/"]
    }
    words = json.loads(arrays["words"].tobytes())
    questions = {task: [_question(q) for q in rows] for task, rows in words["questions"].items()}
    return TokenFile(rows, held, questions, words["samples"])


def _arrays(name: str, rows: PackedRows) -> dict[str, np.ndarray]:
    assert rows.tokens.max() < 1 << 16
    return {f"{name}/tokens": rows.tokens.astype(np.uint16), f"{name}/documents": rows.documents}


def _rows(arrays: Mapping[str, np.ndarray], name: str) -> PackedRows:
    return PackedRows(arrays[f"{name}/tokens"].astype(np.int32), arrays[f"{name}/documents"].astype(np.int32))


def _question(fields: dict[str, list[int]]) -> ChoiceQuestion:
    prompt, answers, sizes, right = (fields[name] for name in ("prompt", "answers", "sizes", "right"))
    return ChoiceQuestion(tuple(prompt), tuple(tuple(a) for a in answers), tuple(sizes), right)  # type: ignore[arg-type]
