"""What does a model lose by being made small? The whole suite on two model folders, side by side.

    python benchmarks/evaluation_suite.py ORIGINAL SMALL --data FOLDER [--tasks arc_easy piqa gsm8k ...] [--most 200]

Every score has its standard error; multiple choice also what guessing gets. The last line is the share of the accuracy
above chance that is kept, over the tasks on which the original is clearly above it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer

import agent_forge.forge  # noqa: F401  (our architectures and the packed format)
from agent_forge.forge.evaluation import TASKS, evaluate_suite, retention, score_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("original", type=Path)
    parser.add_argument("small", type=Path)
    parser.add_argument("--data", type=Path, default=os.environ.get("AGENT_FORGE_DATA"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--most", type=int, default=200, help="items of each task")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    most = 20 if args.quick else args.most
    if args.data is None:
        parser.error("name the folder with the question sets: --data, or AGENT_FORGE_DATA")
    before, after = (scores(folder, args.data, args.tasks, most) for folder in (args.original, args.small))
    print(score_table(before, after))
    kept = retention(before, after)
    if kept is None:
        print("\nthe original is not clearly above chance on any of these: there is nothing to keep")
    else:
        error = "" if kept.stderr is None else f" ± {kept.stderr:.3f}"
        print(f"\naccuracy above chance kept: {kept.share:.3f}{error} ({', '.join(kept.tasks)})")


def scores(folder: Path, data: Path, tasks: list[str], most: int) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder)
    return evaluate_suite(model, AutoTokenizer.from_pretrained(folder), data, tasks, most)


if __name__ == "__main__":
    main()
