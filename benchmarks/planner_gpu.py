"""The forged planner on one GPU: training and shrinking against the clock (docs/results/forged-planner.md).

The steps themselves are the package's (`agent_forge.learning.planner` and `.shrink`, which `agent-forge forge run
planner` puts together); here are the time limits, a student to go on from, blocks that are compared, and the files.

python benchmarks/planner_gpu.py speed
python benchmarks/planner_gpu.py train --weights DIR --data DIR --steps N --out DIR
python benchmarks/planner_gpu.py shrink --teacher DIR --data DIR --steps N --out DIR
"""

from __future__ import annotations

import argparse
import copy
import gzip
import itertools
import json
import multiprocessing
import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

LENGTH = 1536  # eight long tools, several requests: those of SGD have 1,020 tokens and more


class TimeIsUpError(Exception):
    """The seconds that a step was given are over: what was learnt so far is kept."""


def make_sheets(job: tuple[Path, Path | None, int, int, str, int]) -> Any:
    """One process's share of the training sheets, packed."""
    folder, tools, seed, count, tokenizer_json, end = job
    from _planner_tests import held_out_fields, held_out_ids
    from tokenizers import Tokenizer

    from agent_forge.learning.mixture import Mixture
    from agent_forge.learning.sheets import encode_sheets, pack_sheets

    more = json.loads(gzip.decompress(tools.read_bytes())) if tools else ()
    held_out = {"held_out": held_out_ids(folder), "held_out_fields": held_out_fields(folder)}
    mixture = Mixture(folder, seed, **held_out, more=more)
    groups = list(itertools.islice(mixture.groups(), count))
    sheets = encode_sheets(groups, Tokenizer.from_str(tokenizer_json), LENGTH, end)
    return pack_sheets(sheets, LENGTH)


def all_sheets(options: argparse.Namespace, tokenizer_json: str, end: int) -> Any:
    import numpy as np

    from agent_forge.learning.sheets import PlanSheets

    first, count = options.seed * 1000, options.sheets // options.workers
    jobs = [
        (options.data, options.tools, first + number, count, tokenizer_json, end) for number in range(options.workers)
    ]
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        parts = pool.map(make_sheets, jobs)
    arrays = [
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("tokens", "documents", "positions", "learnt")
    ]
    return PlanSheets(*arrays)


def write_sheets(options: argparse.Namespace) -> None:
    """Makes training rows and keeps them as one file."""
    import numpy as np

    words = (options.weights / "tokenizer.json").read_text()
    end = json.loads((options.weights / "kept.json").read_text()).index(2)
    data = all_sheets(options, words, end)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        options.out,
        tokens=data.tokens.astype(np.uint16),
        documents=data.documents,
        positions=data.positions,
        learnt=data.learnt,
    )
    print(
        f"{len(data):,} rows of {LENGTH}, {data.used:.3f} used, {data.learnt.mean():.3f} learnt",
        flush=True,
    )


def read_sheets(paths: list[Path]) -> Any:
    import numpy as np

    from agent_forge.learning.sheets import PlanSheets

    names = ("tokens", "documents", "positions", "learnt")
    files = [np.load(path) for path in paths if path.exists()]
    tokens, *rest = [np.concatenate([file[name] for file in files]) for name in names]
    return PlanSheets(tokens.astype(np.int32), *rest)


def timed_train(
    model: Any,
    data: Any,
    options: argparse.Namespace,
    loss: Any = None,
    on_record: Any = None,
    change: Any = lambda settings: settings,
    **more: Any,
) -> None:
    """A warm-up at a constant rate that measures the speed, then as many steps as fit into the time that is left."""
    from agent_forge.forge.training import train

    begun, stamps = time.perf_counter(), []

    def note(record: dict[str, Any]) -> None:
        if "loss" in record:
            stamps.append((record["step"], time.perf_counter()))
            if record["step"] % 100 == 0 or record["step"] <= 60:
                print(record["step"], round(record["mean_loss"], 4), f"{time.perf_counter() - begun:.0f} s", flush=True)
        if on_record is not None:
            on_record(record)
        if options.steps and time.perf_counter() - begun > options.seconds > 0:
            raise TimeIsUpError

    def learn(steps: int, **more: Any) -> None:
        chosen = change(settings(steps, options.rows, options.micro[0], options.lr, options.seed, **more))
        train(model, data, chosen, loss=loss, on_record=note, progress=None)

    if options.steps is None:
        learn(60, **{**more, "schedule": "wsd", "decay": 0.0})
        pace = (stamps[-1][1] - stamps[0][1]) / (stamps[-1][0] - stamps[0][0])
        left = 0.94 * (options.seconds - (time.perf_counter() - begun))  # others may use the GPU too
        options.steps = int(left / pace)
        print(
            f"{pace:.3f} s per step, {options.rows * LENGTH / pace:,.0f} tokens/s; {options.steps} steps",
            flush=True,
        )
    with suppress(TimeIsUpError):
        learn(options.steps, **more)


def settings(steps: int, rows: int, micro: int, lr: float, seed: int = 0, **more: Any) -> Any:
    from agent_forge.learning.supervised import adamw_settings

    fixed = {"micro_rows": micro, "warmup": max(10, steps // 50), "log_every": 20, **more}
    chosen = adamw_settings(steps, rows, lr, fixed, seed)
    return replace(chosen, optimizer_changes={**chosen.optimizer_changes, "weight_decay": 0.01})


def shape(layers: int = 30, words: int = 16384) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=words,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=8192,
        rope_theta=100000.0,
        tie_word_embeddings=True,
    )


def speed(options: argparse.Namespace) -> None:
    """Tokens per second of training and of distilling onto ternary weights, with random weights and made-up rows."""
    import numpy as np
    import torch
    from transformers import LlamaForCausalLM

    from agent_forge.forge.quantization import Distillation, to_bitlinear
    from agent_forge.forge.quantization.bitlinear import set_strength
    from agent_forge.forge.quantization.levels import Format
    from agent_forge.forge.training import train
    from agent_forge.learning.sheets import PlanSheets

    device = "cuda" if torch.cuda.is_available() else "cpu"
    rng = np.random.default_rng(0)
    n, length = (512, LENGTH) if device == "cuda" else (8, 64)
    tokens = rng.integers(0, 16000, (n, length + 1)).astype(np.int32)
    parts = np.minimum(np.arange(length + 1) * 8 // length, 7)
    documents = np.broadcast_to(parts, tokens.shape).astype(np.int32).copy()
    positions = np.broadcast_to(np.arange(length + 1) % 600, tokens.shape).astype(np.int16)
    data = PlanSheets(
        tokens, documents, positions, np.broadcast_to(np.arange(length + 1) % 4 == 0, tokens.shape).copy()
    )
    for micro in options.micro:
        for kind in ("train", "distil"):
            model = LlamaForCausalLM(shape() if device == "cuda" else shape(2)).to(device)
            loss = None
            if kind == "distil":
                teacher = copy.deepcopy(model).to(torch.bfloat16 if device == "cuda" else torch.float32).eval()
                to_bitlinear(model, Format(embedding="int4"))
                set_strength(model, 1.0)
                loss = Distillation(teacher, hard=0.3)
            steps = options.steps or 40
            begun = time.perf_counter()
            stamps: list[tuple[int, float]] = []

            def note(record: dict[str, Any], stamps: list[tuple[int, float]] = stamps) -> None:
                stamps.append((record["step"], time.perf_counter()))

            train(model, data, settings(steps, 128, micro, 1e-4), loss=loss, on_record=note, progress=None)
            rate = (
                (stamps[-1][0] - stamps[0][0]) * 128 * length / (stamps[-1][1] - stamps[0][1])
                if len(stamps) > 1
                else None
            )
            peak = torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else None
            print(
                json.dumps(
                    {
                        "kind": kind,
                        "micro": micro,
                        "tokens_per_s": rate,
                        "seconds": time.perf_counter() - begun,
                        "gb": peak,
                    }
                ),
                flush=True,
            )
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()


def prepare(options: argparse.Namespace) -> tuple[Any, str, int]:
    """The base model with the cut vocabulary: model, tokenizer.json, the token that ends an answer."""
    from agent_forge.forge.pruning import cut_embeddings
    from agent_forge.learning.planner import plain_model

    kept = json.loads((options.weights / "kept.json").read_text())
    words = (options.weights / "tokenizer.json").read_text()
    model = plain_model(options.weights / "model")
    if model.config.vocab_size != len(kept):
        cut_embeddings(model, kept)
    return model, words, kept.index(2)


def base(options: argparse.Namespace) -> None:
    """SmolLM2 from its GGUF file as a Hugging Face folder."""
    from agent_forge.inference.llama_gguf import load_gguf

    model, _ = load_gguf(options.weights / "smollm2.gguf")
    model.save_pretrained(options.weights / "model")


def judge(model: Any, words: str, end: int, data: Path, per_set: int | None, out: Path | None = None) -> dict[str, Any]:
    import torch
    from _planner_tests import judged_rows, keep_written, summary, write_plans
    from tokenizers import Tokenizer

    from agent_forge.inference.grammar import GrammarVocabulary

    begun = time.perf_counter()
    rows = judged_rows(data, per_set)
    vocabulary = GrammarVocabulary(Tokenizer.from_str(words), ends=[end])
    device = next(model.parameters()).device
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        writers = write_plans(
            model.eval(),
            Tokenizer.from_str(words),
            vocabulary,
            [each.row for each in rows],
            batch=192 if device.type == "cuda" else 8,
        )
    figures = summary(rows, writers)
    if out is not None:
        keep_written(out / "written.jsonl", rows, writers)
    print(json.dumps(figures), f"{time.perf_counter() - begun:.0f} s", flush=True)
    return figures


def train_planner(options: argparse.Namespace) -> None:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    options.out.mkdir(parents=True, exist_ok=True)
    model, words, _ = prepare(options)
    timed_train(model.to(device), read_sheets(options.sheets_file), options)
    model.save_pretrained(options.out / "model")
    (options.out / "tokenizer.json").write_text(words)
    (options.out / "kept.json").write_text((options.weights / "kept.json").read_text())


def judge_folder(options: argparse.Namespace) -> None:
    """The figures of a trained or packed model."""
    import torch

    from agent_forge.learning.planner import plain_model

    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    packed = options.teacher / "packed"
    model = plain_model(packed if packed.exists() else options.teacher / "model")
    words = (options.teacher / "tokenizer.json").read_text()
    end = json.loads((options.teacher / "kept.json").read_text()).index(2)
    figures = judge(model.to(device), words, end, options.data, options.per_set, options.teacher)
    (options.teacher / "figures.json").write_text(json.dumps(figures, indent=1))


def unpack(options: argparse.Namespace) -> None:
    """A packed model as a plain folder, to be trained on or taught from."""
    from agent_forge.learning.planner import plain_model

    plain_model(options.teacher).save_pretrained(options.out / "model")


def keep_int8(options: argparse.Namespace) -> None:
    """The uncompressed model in bytes, small enough to carry home and be judged there."""
    from agent_forge.learning.planner import plain_model, write_planner

    words, source = (options.teacher / "tokenizer.json").read_text(), options.teacher / "model"
    write_planner(plain_model(source), options.out, words, source, "int8")
    print("int8", (options.out / "model.safetensors").stat().st_size, flush=True)


def student_of(teacher: Any, data: Any, options: argparse.Namespace) -> tuple[Any, list[int]]:
    """What is distilled, and which of the teacher's layers it has: cut out of the teacher and rounded with error
    feedback, or a packed model whose levels are where the shadow weights begin."""
    import torch

    from agent_forge.forge.quantization import to_bitlinear
    from agent_forge.forge.quantization.levels import Format
    from agent_forge.learning.planner import plain_model
    from agent_forge.learning.shrink import smaller

    format = Format(levels=options.levels, embedding="int4")
    if not options.start:
        return smaller(teacher, data, options.layers or 0, format)
    student = plain_model(options.start).to(teacher.device)
    for name in to_bitlinear(student, format):
        layer = student.get_submodule(name)
        with torch.no_grad():  # what was packed is on four levels exactly, the smaller at half a scale
            layer.scales.copy_(2 * layer.weight.abs().amin(1, keepdim=True))
    return student, options.kept


def pairs_of(kept: list[int], layers: int, taps: int) -> list[tuple[int, int]]:
    """Blocks of the student, evenly spread, each with the teacher's last block before the student's next one."""
    ends = [number - 1 for number in kept[1:]] + [layers - 1]
    mine = [round((tap + 1) * len(kept) / taps) - 1 for tap in range(taps)]
    return [(number, ends[number]) for number in mine]


def compile_layers(model: Any, but: set[int]) -> None:
    """All layers but those that are watched."""
    for number, layer in enumerate(model.model.layers):
        if number not in but:
            layer.compile(dynamic=False)


def shrink(options: argparse.Namespace) -> None:
    """Distils the teacher onto few levels and packs it."""
    import torch

    from agent_forge.forge.quantization import Distillation, write_packed
    from agent_forge.forge.quantization.bitlinear import set_strength
    from agent_forge.learning.planner import plain_model
    from agent_forge.learning.shrink import for_few_levels, strength

    device = "cuda" if torch.cuda.is_available() else "cpu"
    options.out.mkdir(parents=True, exist_ok=True)
    teacher = plain_model(options.teacher / "model").to(device)
    data = read_sheets(options.sheets_file)
    student, kept = student_of(teacher, data, options)
    print("kept layers", kept, flush=True)
    pairs = pairs_of(kept, teacher.config.num_hidden_layers, options.taps) if options.hidden else []
    goal = teacher.to(torch.bfloat16).eval() if device == "cuda" else teacher.eval()
    if device == "cuda":
        compile_layers(student, {number for number, _ in pairs})
        compile_layers(goal, {number for _, number in pairs})
    if (options.out / "state.pt").exists():
        student.load_state_dict(torch.load(options.out / "state.pt", map_location=device, weights_only=True))
    begun = time.perf_counter()
    loss = Distillation(goal, hard=options.hard, hidden=options.hidden, blocks=pairs)

    def note(record: dict[str, Any]) -> None:
        """The levels take hold, or hold from the start in a student that has them; the states count less and less."""
        past = (time.perf_counter() - begun) / options.seconds
        set_strength(student, 1.0 if options.start else strength(past))
        loss.hidden = options.hidden * max(0.0, 1 - past / 0.7) ** 2

    set_strength(student, 1.0 if options.start else strength(0.0))
    more = {"compile": False, "schedule": options.schedule, "decay": options.decay}
    timed_train(student, data, options, loss, note, lambda settings: for_few_levels(settings, options.lr), **more)
    set_strength(student, 1.0)
    torch.save(student.state_dict(), options.out / "state.pt")
    size = write_packed(student, options.teacher / "model", options.out / "packed", options.layout)
    print("packed", size, flush=True)
    for folder in (options.out, options.out / "packed"):
        (folder / "tokenizer.json").write_text((options.teacher / "tokenizer.json").read_text())
    (options.out / "kept.json").write_text((options.teacher / "kept.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "what", nargs="?", choices=("speed", "sheets", "base", "train", "judge", "int8", "unpack", "shrink")
    )
    for name in ("weights", "data", "out", "teacher"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--tools", type=Path, help="more tools to generate requests for (`planner_widen.py tools`)")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--sheets-file", type=Path, nargs="+")
    parser.add_argument("--sheets", type=int, default=4000)
    parser.add_argument("--rows", type=int, default=84)
    parser.add_argument("--micro", type=int, nargs="+", default=[42])
    parser.add_argument("--lr", type=float, default=4e-4)
    parser.add_argument("--hard", type=float, default=0.3)
    parser.add_argument("--levels", type=str, default="ternary")
    parser.add_argument("--layout", default="1.6bit")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--start", type=Path, help="a packed student to go on from")
    parser.add_argument("--kept", type=int, nargs="+", help="the teacher's layers that it has")
    parser.add_argument("--hidden", type=float, default=0.0, help="weight of the blocks' outputs at the beginning")
    parser.add_argument("--taps", type=int, default=4, help="blocks whose outputs are compared")
    parser.add_argument("--schedule", default="cosine")
    parser.add_argument("--decay", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--per-set", type=int)
    options = parser.parse_args()
    if options.what is None:
        print("nothing to do: name a step, on a machine with a GPU")
        return
    {
        "speed": speed,
        "sheets": write_sheets,
        "base": base,
        "train": train_planner,
        "judge": judge_folder,
        "int8": keep_int8,
        "unpack": unpack,
        "shrink": shrink,
    }[options.what](options)


if __name__ == "__main__":
    main()
