"""The shipped planner on rows it never saw, as a user gets it, on one core (docs/results/forged-planner.md).

python benchmarks/planner_forged.py --data DIR [--per-set 100] [--kinds bfcl] [--out FILE.jsonl] [--seconds 1800]
python benchmarks/planner_forged.py --data DIR --planners rules --per-set 1000

Each row is planned by the forged planner alone, by the default planner (the forged one with the rules behind it) and by
the rules; what counts is what `agent-forge plan --rows` writes. Rows already in --out are not planned again, and the
sets take turns, so that a run that was stopped can be summed up and continued.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

PLANNERS = ("forged", "default", "rules")


class Remembered:
    """A forged planner that gives its last plan again for the same request: the default planner asks it too."""

    def __init__(self, planner: Any) -> None:
        self.planner, self.last = planner, (None, None)
        self.is_sure = planner.is_sure

    def plan_now(self, request: str, *, tools: Sequence[Any] = ()) -> Any:
        if self.last[0] != (request, tuple(tools)):
            self.last = ((request, tuple(tools)), self.planner.plan_now(request, tools=tools))
        return self.last[1]

    async def plan(self, request: str, *, tools: Sequence[Any] = ()) -> Any:
        return self.plan_now(request, tools=tools)


def planners(names: Iterable[str], folder: Path | None) -> dict[str, Any]:
    from agent_forge.agents.planner import DefaultPlanner, ForgedPlanner, RulePlanner

    names = list(names)
    if names == ["rules"]:
        return {"rules": RulePlanner()}
    forged = Remembered(ForgedPlanner(folder))
    default = DefaultPlanner()
    default.forged = forged  # type: ignore[assignment]
    return {name: {"forged": forged, "default": default, "rules": RulePlanner()}[name] for name in names}


def judged(each: Any, name: str, planner: Any) -> dict[str, Any]:
    """What a planner writes for a row, with its figures."""
    from agent_forge.agents.planner.batch import SchemaTool, plan_row

    tools = [SchemaTool.of(tool) for tool in each.row.tools]
    begun = time.process_time()
    answer = asyncio.run(plan_row(planner, {"id": each.row.id, "request": each.row.request, "tools": tools}))
    seconds = time.process_time() - begun
    figures = each.judge(answer["calls"])
    figures |= {"none": float("none" in answer), "asks": float("missing" in answer)}
    return {"kind": each.kind, "planner": name, **answer, "figures": figures, "seconds": round(seconds, 3)}


def in_turn(rows: Iterable[Any]) -> list[Any]:
    """The rows of all sets, one of each in turn."""
    by_kind: dict[str, list[Any]] = {}
    for each in rows:
        by_kind.setdefault(each.kind, []).append(each)
    longest = max(map(len, by_kind.values()), default=0)
    return [kind[place] for place in range(longest) for kind in by_kind.values() if place < len(kind)]


def report(lines: Sequence[dict[str, Any]]) -> None:
    """The mean of each figure with its standard error, by set and planner."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        cells.setdefault((line["kind"], line["planner"]), []).append(line)
    for (kind, planner), group in sorted(cells.items()):
        parts = []
        for name in group[0]["figures"]:
            values = [line["figures"][name] for line in group]
            mean = sum(values) / len(values)
            spread = math.sqrt(sum((value - mean) ** 2 for value in values)) / max(1, len(values))
            parts.append(f"{name} {mean:.3f} ±{spread:.3f}")
        seconds = sum(line["seconds"] for line in group) / len(group)
        print(f"{kind:22} {planner:8} n {len(group):4}  {'  '.join(parts)}  {seconds:.2f} s")


def main() -> None:
    from _planner_tests import judged_rows

    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path, help="another planner's weights")
    parser.add_argument("--planners", default=",".join(PLANNERS))
    parser.add_argument("--per-set", type=int, default=100)
    parser.add_argument("--kinds", default="", help="how the names of the sets begin, several with a comma between")
    parser.add_argument("--tuning", action="store_true", help="rows to tune decoding on: none is a test")
    parser.add_argument("--seconds", type=float, default=math.inf, help="plan no further row after so long")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.data is None:
        print("nothing to judge: name the folder of the public sets with --data")
        return
    begun, lines = time.perf_counter(), []
    if options.out and options.out.exists():
        lines = [json.loads(line) for line in options.out.read_text().splitlines()]
    done = {(line["kind"], line["id"], line["planner"]) for line in lines}
    arms = planners(options.planners.split(","), options.folder)
    kinds = tuple(options.kinds.split(","))
    rows = judged_rows(options.data, options.per_set, tuning=options.tuning)
    file = options.out.open("a") if options.out else None
    for each in in_turn(row for row in rows if row.kind.startswith(kinds)):
        if time.perf_counter() - begun > options.seconds:
            break
        for name, planner in arms.items():
            if (each.kind, each.row.id, name) not in done:
                lines.append(judged(each, name, planner))
                if file:
                    file.write(json.dumps(lines[-1], ensure_ascii=False) + "\n")
                    file.flush()
    report(lines)


if __name__ == "__main__":
    main()
