"""What does a model lose by being made small? The whole suite on two model folders, side by side.

    python benchmarks/evaluation_suite.py ORIGINAL SMALL --data FOLDER [--tasks arc_easy piqa ...] [--most 200]

Every score has its standard error, the difference that of its pairs (the same item before and
after); multiple choice also what guessing gets. A row is printed as soon as its task is done. The
last line is the share of the accuracy above chance that is left, over the tasks on which the
original is clearly above it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
from transformers import AutoModelForCausalLM, AutoTokenizer

import agent_forge.forge  # noqa: F401  (our architectures and the packed format)
from agent_forge.forge.evaluation import TASKS, TaskScore, evaluate_suite, retention


def main() -> None:
    args = arguments()
    most = 20 if args.quick else args.most
    models = [(AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))
              for folder in (args.original, args.small)]  # fmt: skip
    print("| task | n | chance | before | after | difference | seconds |\n|---|---|---|---|---|---|---|", flush=True)
    pairs: list[tuple[TaskScore, TaskScore]] = []
    for task in args.tasks:
        start = time.perf_counter()
        before, after = (evaluate_suite(model, tokenizer, args.data, [task], most)[0] for model, tokenizer in models)
        pairs.append((before, after))
        print(row(before, after, time.perf_counter() - start), flush=True)
        if args.out:
            document = [{"before": one.as_dict(), "after": two.as_dict()} for one, two in pairs]
            args.out.write_text(json.dumps(document, indent=1), encoding="utf-8")
    print(retention_line(pairs))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("original", type=Path)
    parser.add_argument("small", type=Path)
    parser.add_argument("--data", type=Path, default=os.environ.get("AGENT_FORGE_DATA"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--most", type=int, default=200, help="items of each task")
    parser.add_argument("--out", type=Path, help="a JSON file, written after each task")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.data is None:
        parser.error("name the folder with the question sets: --data, or AGENT_FORGE_DATA")
    args.data = Path(args.data)
    return args


def row(before: TaskScore, after: TaskScore, seconds: float) -> str:
    change = np.array(after.points) - np.array(before.points)
    error = float(change.std(ddof=1) / len(change) ** 0.5) if len(change) > 1 else float("nan")
    figures = [f"{score.value:.3f} ± {score.stderr or 0:.3f}" for score in (before, after)]
    chance = f"{before.chance:.3f}" if before.chance else "0"
    cells = [before.task, before.n, chance, *figures, f"{change.mean():+.3f} ± {error:.3f}", f"{seconds:.0f}"]
    return f"| {' | '.join(map(str, cells))} |"


def retention_line(pairs: list[tuple[TaskScore, TaskScore]]) -> str:
    left = retention([before for before, _ in pairs], [after for _, after in pairs])
    if left is None:
        return "\nthe original is not clearly above chance on any of these: there is nothing to keep"
    error = "" if left.stderr is None else f" ± {left.stderr:.3f}"
    return f"\naccuracy above chance kept: {left.share:.3f}{error} ({', '.join(left.tasks)})"


if __name__ == "__main__":
    main()
