"""The shipped planner on rows it never saw, by the product's own code on one core (docs/results/forged-planner.md).

python benchmarks/planner_forged.py --data DIR [--folder DIR] [--per-set 100] [--kinds bfcl] [--ask 0.5]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))


def by_rules(row: Any) -> Any:
    """The calls of the rules, in the form of a writer."""
    from agent_forge.agents.planner import PlanningFailed, RulePlanner
    from agent_forge.agents.planner.batch import SchemaTool, calls_of

    try:
        calls = calls_of(RulePlanner().plan_now(row.request, tools=[SchemaTool.of(each) for each in row.tools]))
    except PlanningFailed:
        calls = []
    return SimpleNamespace(calls=calls, none_probability=None, confidences=[])


def main() -> None:
    from _planner_tests import judged_rows, keep_written, summary

    from agent_forge.agents.planner.forged import SHIPPED, PlanModel

    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path, default=SHIPPED)
    parser.add_argument("--per-set", type=int, default=100)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--ask", type=float, default=0.5)
    parser.add_argument("--rules", action="store_true", help="the rules on the same rows, as a control")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.data is None:
        print("nothing to judge: name the folder of the public sets with --data")
        return
    model = None if options.rules else PlanModel(options.folder)
    rows = [each for each in judged_rows(options.data, options.per_set) if each.kind.startswith(options.kinds)]
    begun, cpu = time.perf_counter(), time.process_time()
    writers = []
    for each in rows:
        if model is None:
            writers.append(by_rules(each.row))
        else:
            writers.append(model.write(each.row.request, each.row.tools, ask_weight=options.ask))
        if len(writers) % 50 == 0:
            print(len(writers), f"{time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    if options.out:
        keep_written(options.out, rows, writers)
    seconds = time.process_time() - cpu
    print(json.dumps(summary(rows, writers), indent=1))
    print(f"{seconds / len(rows):.2f} s of processor time per request, {len(rows)} requests")


if __name__ == "__main__":
    main()
