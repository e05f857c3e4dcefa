"""Adapting the shipped planner to one's own tools on a CPU (docs/results/forged-planner.md).

python benchmarks/planner_own_tools.py generated [--rows 200]     rows generated from eight tools' schemas alone
python benchmarks/planner_own_tools.py traces --data DIR          200 scored runs over services of SGD never trained on

Each is judged before and after, beside a control: the same number of rows from another catalogue.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))


def judged(rows: Sequence[Any], folder: Path) -> dict[str, Any]:
    """The figures of a planner on rows."""
    from agent_forge.agents.planner.forged import PlanModel
    from agent_forge.learning.judging import by_model, judge_planner

    write = by_model(PlanModel(folder))
    return judge_planner(rows, [write(row)[0] for row in rows]).as_dict()


def trained(place: Path, name: str, seed: int, **settings: Any) -> tuple[Path, float]:
    """A planner trained from the shipped one, and the seconds of processor time it took, judging included."""
    from agent_forge.learning.planner import train_planner

    begun = time.process_time()

    def tell(**fields: Any) -> None:
        if "loss" in fields:
            print(
                f"  {time.process_time():.0f} s {name} {fields['step']}/{fields['steps']} loss {fields['loss']:.3f}",
                file=sys.stderr,
                flush=True,
            )

    train_planner(None, place / name, seed=seed, tell=tell, **settings)
    return place / name, time.process_time() - begun


def how(options: argparse.Namespace) -> dict[str, Any]:
    """The settings of training that the command names."""
    names = {"epochs": "epochs", "lr": "lr", "batch": "batch_rows", "length": "length"}
    return {**{there: getattr(options, here) for here, there in names.items()}, "adapter": {"last": options.last}}


def report(arms: Mapping[str, Mapping[str, Any]], tests: Mapping[str, Sequence[Any]], options: Any) -> None:
    """Trains an arm at a time (no settings: the shipped planner) and prints its figures on every test."""
    from agent_forge.agents.planner.forged import SHIPPED
    from agent_forge.learning.judging import by_rules, judge_planner

    place = Path(tempfile.mkdtemp())
    for test, rows in tests.items():
        figures = judge_planner(rows, [by_rules(row) for row in rows]).as_dict()
        print(json.dumps({"test": test, "planner": "rules", **figures}), flush=True)
    for name, settings in arms.items():
        folder, seconds = SHIPPED, 0.0
        if settings:
            folder, seconds = trained(place, name, options.seed, judged=2, **settings, **how(options))
        for test, rows in tests.items():
            line = {"test": test, "planner": name, **judged(rows, folder), "train_cpu_s": round(seconds)}
            print(json.dumps(line), flush=True)


def generated(options: argparse.Namespace) -> None:
    from _own_tools import OTHERS, TOOLS, WRITTEN

    from agent_forge.learning.material import generated as rows_for
    from agent_forge.learning.rows import PlanRow

    arms = {"shipped": {}, "own tools": schemas(TOOLS, options.rows), "other tools": schemas(OTHERS, options.rows)}
    tests = {
        "written by hand": [
            PlanRow(str(n), text, tuple(TOOLS), tuple(calls)) for n, (text, calls) in enumerate(WRITTEN)
        ],
        "generated in other wordings": rows_for(TOOLS, options.tests, options.seed + 9, held_out=True),
    }
    report(arms, tests, options)


def schemas(tools: Sequence[Any], rows: int) -> dict[str, Any]:
    """The settings for rows that are generated from these tools alone."""
    path = Path(tempfile.mkdtemp()) / "tools.json"
    path.write_text(json.dumps(tools))
    return {"tools": str(path), "generated": rows}


class Right:
    """A planner that knows the right plan: the person or the large model whose runs are recorded."""

    name = "right"

    def __init__(self, row: Any) -> None:
        self.row = row

    async def plan(self, request: str, *, tools: Any = ()) -> Any:
        from agent_forge.agents.planner.forged import tasks_of
        from agent_forge.plans import Plan

        return Plan(tasks_of(self.row.calls, request))


def simulated(function: Mapping[str, Any]) -> Any:
    """A tool that takes the arguments and returns something for every field of its result."""
    from agent_forge.agents.tools import Tool

    @dataclass(frozen=True, repr=False)
    class SimulatedTool(Tool):
        returns: Any = None

    fields = list(function.get("returns") or ())
    about = (function["name"], function["description"], function["parameters"])
    return SimulatedTool(*about, lambda **_: dict.fromkeys(fields, "x"), returns=fields)


def record_runs(rows: Sequence[Any], most: int, functions: Sequence[Any], home: Path) -> int:
    """Runs requests with their right plans, scored 1, until there are so many. Returns their number."""
    from agent_forge import run
    from agent_forge.errors import PlanError
    from agent_forge.settings import trace_store
    from agent_forge.traces import Store
    from agent_forge.traces.scores import add_score

    tools = [simulated(each) for each in functions]
    results, refused = [], 0
    for row in rows:
        if len(results) < most:
            try:
                results.append(run(row.request, tools=tools, planner=Right(row), home=home, approve="all"))
            except PlanError:  # the runtime refuses a value that the request does not hold
                refused += 1
    print(f"{len(results)} runs scored, {refused} requests refused", flush=True)
    with Store.open(trace_store(home)) as store:
        for result in results:
            add_score(store, store.trace(str(result.trace_id)), 1.0, by="benchmark")
    return len(results)


def services(rows: Sequence[Any], names: Sequence[str], rng: random.Random) -> tuple[list[Any], list[Any]]:
    """The rows over these services alone, each shown all of their tools, shuffled; and the tools."""
    mine = [row for row in rows if set(row.meta["services"]) <= set(names)]
    functions = list({tool["name"]: tool for row in mine for tool in row.tools}.values())
    mine = [replace(row, tools=tuple(functions)) for row in mine]
    return rng.sample(mine, len(mine)), functions


def traces(options: argparse.Namespace) -> None:
    from agent_forge.learning.datasets import read_sgd
    from agent_forge.learning.rows import write_plan_rows

    rng, place = random.Random(options.seed), Path(tempfile.mkdtemp())
    known = [row for row in read_sgd(options.data, "train") if not row.faults()]
    new = [row for row in read_sgd(options.data, "dev") if not row.faults()]
    rows, functions = services(new, ("Flights_3", "Banks_2", "Movies_2", "Media_2"), rng)
    assert not {"Flights_3", "Banks_2", "Movies_2", "Media_2"} & {s for row in known for s in row.meta["services"]}
    others, _ = services(known, ("Flights_1", "Banks_1", "Movies_1", "Music_1"), rng)
    held = rows[: options.tests]
    runs = record_runs(rows[options.tests :], options.rows, functions, place / "home")
    write_plan_rows(others[:runs], place / "others.jsonl")
    arms: dict[str, dict[str, Any]] = {
        "shipped": {},
        "own traces": {"traces": str(place / "home"), "held_out": 0.02},
        "other rows": {"data": (str(place / "others.jsonl"),), "held_out": 0.02},
        "generated from own tools": schemas(functions, options.rows // 2),
    }
    report(arms, {f"people's requests over {len(functions)} tools": held}, options)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", choices=("generated", "traces"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--tests", type=int, default=40)
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--last", type=int, default=12, help="layers that are adapted")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.what is None:
        print("nothing to do: name `generated` or `traces`")
        return
    if options.what == "traces" and options.data is None:
        print("nothing to judge: name the folder of the public sets with --data")
        return
    {"generated": generated, "traces": traces}[options.what](options)


if __name__ == "__main__":
    main()
