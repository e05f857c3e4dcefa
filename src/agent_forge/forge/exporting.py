"""Exports a checkpoint: a folder for transformers and vLLM, or a GGUF file for llama.cpp.

Either comes with a model card for people, written from `card.json`: where the model came from and what was measured on
it, beside the same figures of the models it was made from.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent_forge.config import option
from agent_forge.errors import CheckpointError, UsageError
from agent_forge.files import sync_folder
from agent_forge.forge.checkpoint import CARD, Card, Checkpoint, Metric, completed, files_of, staging
from agent_forge.forge.registry import Registry
from agent_forge.inference.loading import read_json

PACKED = "agent_forge"  # prefix of `quant_method` in config.json for our own formats (see models/packed)
OWN = ("cognate",)  # architectures that transformers knows only after `import agent_forge.forge`


@dataclass(frozen=True)
class ExportSettings:
    """The format of an export, and the types in a GGUF file."""

    format: Literal["hf", "gguf"] = option("hf", help="A Hugging Face folder, or a file for llama.cpp")
    dense: bool = option(False, help="Write packed weights as plain float16, for vLLM and others")
    ternary: Literal["TQ2_0", "TQ1_0"] = option("TQ2_0", help="GGUF type of ternary weights")
    others: Literal["F16", "F32", "Q8_0"] = option("F16", help="GGUF type of the other weights")
    pre: str | None = option(None, help="llama.cpp's name for the pre-tokenizer, where it cannot be recognised")


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote; `missing` are the digests of parents whose figures the README could not show."""

    path: Path
    format: str
    bytes: int
    missing: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {"path": str(self.path), "format": self.format, "bytes": self.bytes}


def export_model(
    checkpoint: Checkpoint, out: str | os.PathLike[str], settings: ExportSettings, registry: Registry
) -> ExportReport:
    """Exports a checkpoint; the README shows the figures of its parents where the registry has them."""
    controls, missing = list[Checkpoint](), list[str]()
    for parent in checkpoint.card.inputs:
        try:
            controls.append(registry.load(parent))
        except (UsageError, CheckpointError):
            missing.append(parent)
    if settings.format == "gguf":
        types = {"ternary": settings.ternary, "others": settings.others, "pre": settings.pre}
        path = export_to_gguf(checkpoint, out, controls=controls, **types)  # type: ignore[arg-type]
    else:
        path = export_checkpoint(checkpoint, out, dense=settings.dense, controls=controls)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return ExportReport(path, settings.format, size, tuple(missing))


def export_checkpoint(
    checkpoint: Checkpoint,
    out: str | os.PathLike[str],
    *,
    dense: bool = False,
    controls: Sequence[Checkpoint] = (),
) -> Path:
    """Copies the checkpoint to the folder `out`, which must not exist; it appears complete or not at all.

    `dense` writes the weights of a packed or compressed checkpoint as plain float16, and its tokenizer as
    tokenizer.json, for programs that do not know our formats. `controls` are the checkpoints it was made from, whose
    figures the card also shows.
    """
    with appearing(Path(out)) as folder:
        for file in files_of(checkpoint.path):
            copy = folder / file.relative_to(checkpoint.path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
        if dense and is_packed(checkpoint.path):
            _unpack(checkpoint.path, folder)
        readme = model_card(checkpoint, controls, how_to_load(folder))
        (folder / "README.md").write_text(readme, encoding="utf-8")
    return Path(out)


def export_to_gguf(
    checkpoint: Checkpoint,
    out: str | os.PathLike[str],
    *,
    ternary: str = "TQ2_0",
    others: str = "F16",
    pre: str | None = None,
    controls: Sequence[Checkpoint] = (),
) -> Path:
    """Writes a GGUF file and the card into the folder `out`. Raises UsageError if the model is not Llama-shaped."""
    from agent_forge.forge.gguf_export import export_gguf

    with appearing(Path(out)) as folder:
        name = f"{checkpoint.name}.gguf"
        model, tokenizer = _load(checkpoint.path)
        types = export_gguf(model, tokenizer, folder / name, ternary=ternary, others=others, pre=pre)
        counts = {kind: list(types.values()).count(kind) for kind in sorted(set(types.values()))}
        content = ", ".join(f"{count} tensors in {kind}" for kind, count in counts.items())
        load = [
            "## Run it",
            "",
            f"`llama-cli -m {name}`, or any other program built on llama.cpp. It holds {content}.",
            "",
        ]
        if (checkpoint.path / CARD).is_file():
            shutil.copy(checkpoint.path / CARD, folder / CARD)
        (folder / "README.md").write_text(model_card(checkpoint, controls, load), encoding="utf-8")
    return Path(out)


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """A folder to fill, renamed to `target` if the block succeeds."""
    if target.exists():
        raise UsageError("the folder exists already", where=str(target), fix="Name one that does not")
    target.parent.mkdir(parents=True, exist_ok=True)
    with staging(target.parent) as folder:
        yield folder
        folder.chmod(0o755)
        folder.rename(target)
        sync_folder(target.parent)


def is_packed(folder: Path) -> bool:
    """Whether the weights are in a format of our own."""
    config = read_json(folder / "config.json")
    return str((config.get("quantization_config") or {}).get("quant_method", "")).startswith(PACKED)


def _load(folder: Path) -> tuple[Any, Any]:
    """(model, tokenizer or None), from safetensors alone."""
    from agent_forge.inference.loading import load_model, load_tokenizer

    has_tokenizer = any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json"))
    return load_model(folder), load_tokenizer(folder) if has_tokenizer else None


def _unpack(source: Path, folder: Path) -> None:
    """Replaces the packed weights in `folder`, a copy of `source`, by dense ones."""
    import torch

    from agent_forge.inference.packed import unpack_model

    for file in (*folder.glob("*.safetensors*"), folder / "config.json"):
        file.unlink()
    unpack_model(_load(source)[0], torch.float16).save_pretrained(folder)
    _unpack_tokenizer(folder)
    if (file := folder / CARD).is_file():  # it must describe the new files
        card = completed(folder, Card.from_json(file.read_text(encoding="utf-8"), str(file)))
        file.write_text(card.to_json(), encoding="utf-8")


def _unpack_tokenizer(folder: Path) -> None:
    """Writes the tokenizer of a compressed model as tokenizer.json."""
    from agent_forge.forge.compression.packed_tokenizer import FILE, unpack_tokenizer

    packed, config = folder / FILE, folder / "tokenizer_config.json"
    if not packed.is_file():
        return
    (folder / "tokenizer.json").write_text(unpack_tokenizer(packed.read_bytes(), str(packed)), encoding="utf-8")
    packed.unlink()
    settings = json.loads(config.read_text(encoding="utf-8"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    config.write_text(json.dumps(settings, indent=2, ensure_ascii=False), encoding="utf-8")


def how_to_load(folder: Path) -> list[str]:
    """Lines of the model card: which programs load the folder, and how."""
    config = read_json(folder / "config.json")
    own, packed = config.get("model_type") in OWN, is_packed(folder)
    imports = ["import agent_forge.forge  # registers the architecture with transformers"] if own or packed else []
    others = (
        "vLLM and other programs do not know the packed format: export with `--dense` for them."
        if packed
        else "The architecture is our own: vLLM and llama.cpp do not know it."
        if own
        else "vLLM loads the same folder: `vllm serve FOLDER`."
    )
    lines = [*imports, "from transformers import AutoModelForCausalLM", ""]
    return [
        "## Load it",
        "",
        "```python",
        *lines,
        'model = AutoModelForCausalLM.from_pretrained("FOLDER")',
        "```",
        "",
        others,
        "",
    ]


def model_card(checkpoint: Checkpoint, controls: Sequence[Checkpoint] = (), load: Sequence[str] | None = None) -> str:
    """The card in Markdown: what the model is, how to load it, where it came from and what was measured."""
    card = checkpoint.card
    load = how_to_load(checkpoint.path) if load is None else load
    heads = "".join(f" {control.name} |" for control in controls)
    rows = [
        f"| {name} | {metric.value:.6g} | {_error(metric)} | {'' if metric.n is None else metric.n} | {metric.how} |"
        + "".join(f" {_control(control.card.metrics.get(name))} |" for control in controls)
        for name, metric in card.metrics.items()
    ]
    return "\n".join(
        [
            f"# {checkpoint.name}",
            "",
            f"{card.architecture}, {card.parameters:,} parameters, made by {card.made_by} in phase"
            f" `{card.phase}` with seed {card.seed}.",
            *(["", card.notes] if card.notes else []),
            "",
            *load,
            "## Where it came from",
            "",
            f"- digest: `{checkpoint.digest}`",
            *[f"- made from: `{digest}`" for digest in card.inputs],
            *[f"- data `{name}`: `{digest}`" for name, digest in card.data.items()],
            "",
            "## What was measured",
            "",
            *(["The last columns show the same figures of the models it was made from.", ""] if controls else []),
            f"| measured | value | standard error | n | how |{heads}",
            "|---|---|---|---|---|" + "---|" * len(controls),
            *rows,
            "",
        ]
    )


def _error(metric: Metric) -> str:
    return "" if metric.stderr is None else f"{metric.stderr:.2g}"


def _control(metric: Metric | None) -> str:
    if metric is None:
        return "not measured"
    return f"{metric.value:.6g}" + (f" ± {_error(metric)}" if metric.stderr is not None else "")
