"""Text as tokens in one file, for machines where reading and tokenising it would take longer than using it.

Rows to learn from (by source), held-out documents (by name) and questions; an .npz inside .xz, tokens in two bytes.
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
    """What such a file holds; `samples` are a few texts as they are, to check a tokenizer with."""

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
    words = {"questions": {task: [asdict(q) for q in asked] for task, asked in tokens.questions.items()},
             "samples": list(tokens.samples)}  # fmt: skip
    arrays["words"] = np.frombuffer(json.dumps(words).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    path.write_bytes(lzma.compress(buffer.getvalue(), preset=6))


def read(path: Path) -> TokenFile:
    found = np.load(io.BytesIO(lzma.decompress(path.read_bytes())))
    names = {kind: sorted({key.split("/")[1] for key in found if key.startswith(kind)}) for kind in ("rows/", "held/")}
    rows = {name: _rows(found, f"rows/{name}") for name in names["rows/"]}
    held = {
        name: HeldOut(_rows(found, f"held/{name}"), tuple(int(size) for size in found[f"held/{name}/bytes"]))
        for name in names["held/"]
    }
    words = json.loads(found["words"].tobytes())
    questions = {task: [_question(q) for q in asked] for task, asked in words["questions"].items()}
    return TokenFile(rows, held, questions, words["samples"])


def _arrays(name: str, rows: PackedRows) -> dict[str, np.ndarray]:
    assert rows.tokens.max() < 1 << 16
    return {f"{name}/tokens": rows.tokens.astype(np.uint16), f"{name}/documents": rows.documents}


def _rows(found: Mapping[str, np.ndarray], name: str) -> PackedRows:
    return PackedRows(found[f"{name}/tokens"].astype(np.int32), found[f"{name}/documents"].astype(np.int32))


def _question(fields: dict[str, list[int]]) -> ChoiceQuestion:
    prompt, answers, sizes, right = (fields[name] for name in ("prompt", "answers", "sizes", "right"))
    return ChoiceQuestion(tuple(prompt), tuple(tuple(a) for a in answers), tuple(sizes), right)  # type: ignore[arg-type]
