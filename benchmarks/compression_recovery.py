"""What do many tokens of distillation bring to a compressed model, and what is a student of its size worth?

    python benchmarks/compression_recovery.py MODEL --tokens FILE [--artefacts FOLDER ...] [--students 2MB] --out OUT

MODEL is the original's folder, an artefact one that `agent-forge compress` made of it; its codes are trained on from
where they are, within the bytes that it has. A student is a smaller model of the same kind, taught by the original and
then compressed. FILE (see _token_file.py) holds the text: rows, and held-out documents called "frontier". Every row is
printed and saved as it comes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import _token_file
import torch
from compression import Frontier, size
from safetensors.numpy import load_file

from agent_forge.forge.compression.container import Encoded, pack, unpack
from agent_forge.forge.compression.folder import WEIGHTS
from agent_forge.forge.compression.search import PRICE, Search, Settings
from agent_forge.forge.compression.student import BITS, teach_student
from agent_forge.forge.compression.text import Text
from agent_forge.forge.corpus import mixed
from agent_forge.forge.training.packing import PackedRows

SHARES = {"text_openstax": 5.0, "text_books": 3.0, "text_fairytales": 0.5, "text_childrens": 0.25, "gsm8k": 0.75}


def main() -> None:
    given = arguments()
    begun = time.perf_counter()
    text = text_of(given.tokens, given.rows)
    settings = Settings(
        recovery_steps=given.steps, recovery_lr=given.lr, batch_rows=given.batch, calibration_rows=given.calibration,
        gradient_rows=given.calibration // 4, trial_tokens=2048, length=text.rows.length, questions=given.questions,
    )  # fmt: skip
    prices = json.loads(given.prices.read_text()) if given.prices else {}
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        search = Search(given.model, text, settings, tell)
        frontier = Frontier(search, work, False, given.out, "")
        frontier.add("original", given.model)
        for folder in given.artefacts:
            trained_on(frontier, folder, prices.get(folder.name, given.price), given)
        for asked in given.students:
            student(frontier, text, size(asked), given, settings)
        print(f"{time.perf_counter() - begun:.0f} s in all", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--artefacts", type=Path, nargs="*", default=[])
    parser.add_argument("--prices", type=Path, help="JSON: nats a byte was worth, by the artefact's name")
    parser.add_argument("--price", type=float, default=0.0)
    parser.add_argument("--students", nargs="*", default=[])
    parser.add_argument("--student-steps", type=int, default=1200)
    parser.add_argument("--student-batch", type=int, default=32)
    parser.add_argument("--fixed", type=int, default=105_000, help="bytes of a student's folder beside its matrices")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rows", type=int, default=20_000, help="rows drawn from the sources by weight")
    parser.add_argument("--calibration", type=int, default=64)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def text_of(path: Path, count: int) -> Text:
    """The rows by weight in a drawn order, and the documents that all artefacts are judged on."""
    known = _token_file.read(path)
    rows = mixed(dict(known.rows), {name: SHARES.get(name, 1.0) for name in known.rows}, count, 0)
    drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).numpy()
    return Text(PackedRows(rows.tokens[drawn], rows.documents[drawn]), known.held_out["frontier"], known.samples)


def trained_on(frontier: Frontier, folder: Path, price: float, given: argparse.Namespace) -> None:
    """An artefact as it is, and after recovery within its bytes."""
    search = frontier.search
    frontier.add(f"codecs, {folder.name}", folder)
    tensors = tensors_of(folder, search)
    start = time.perf_counter()
    room = sum(len(pack(encoded)) for encoded in tensors.values())
    found = search.recovered(tensors, PRICE * price, room)
    place = frontier.work / f"recovered-{folder.name}"
    search.write(place, found)
    tokens, seconds = given.batch * search.text.rows.length, time.perf_counter() - start
    took = f"{given.steps} steps of {tokens:,} tokens, {seconds:.0f} s"
    frontier.add(f"recovered, {folder.name} ({took})", place)
    keep(place, given.out)


def tensors_of(folder: Path, search: Search) -> dict[str, Encoded]:
    stored = load_file(folder / WEIGHTS)
    return {name: unpack(stored[name].tobytes(), name) for name, _ in search.model.named_parameters() if name in stored}


def student(frontier: Frontier, text: Text, total: int, given: argparse.Namespace, settings: Settings) -> None:
    """A smaller model taught by the original, then compressed to the budget: distillation, and called that."""
    search, start = frontier.search, time.perf_counter()
    folder, most = frontier.work / f"taught-{total}", int(8 * (total - given.fixed) / BITS)
    weights = teach_student(
        search.model, search.source, folder, text.rows, most, given.student_steps, batch_rows=given.student_batch,
        tell=tell,
    )  # fmt: skip
    took = f"{given.student_steps} steps of {given.student_batch * text.rows.length:,} tokens"
    frontier.add(f"student of {weights / 1e6:.2f} M, not compressed ({took})", folder, weights)
    small = Search(folder, text, replace(settings, questions=0), original=search.model)
    small.calibrate()
    print(f"student calibrated after {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    (frontier.work / f"empty-{total}").mkdir()
    fixed = small.overhead(frontier.work / f"empty-{total}")
    allocation = small.allocated(total - fixed)
    if allocation is None:
        print(f"the student of {weights:,} weights does not fit in {total:,} bytes", flush=True)
        return
    tensors = small.encoded(allocation)
    place = frontier.work / f"student-codecs-{total}"
    small.write(place, tensors)
    frontier.add(f"student, codecs, {total / 1e6:g} MB", place, weights)
    room = total - fixed + sum(len(pack(encoded)) for encoded in small.plain.values())
    place = frontier.work / f"student-{total}"
    small.write(place, small.recovered(tensors, PRICE * allocation.price, room))
    took = f"{time.perf_counter() - start:.0f} s"
    frontier.add(f"distilled into a student of {weights / 1e6:.2f} M, {total / 1e6:g} MB ({took})", place, weights)
    keep(place, given.out)


def keep(folder: Path, out: Path) -> None:
    shutil.make_archive(str(out / folder.name), "tar", folder)


def tell(**said: Any) -> None:
    shown = {key: said[key] for key in ("stage", "step", "of", "loss", "tokens_per_s") if key in said}
    if said.get("step", 0) % 50 == 0:
        print(shown, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
