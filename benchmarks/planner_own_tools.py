"""Adapting the shipped planner to one's own tools on a CPU (docs/results/forged-planner.md).

python benchmarks/planner_own_tools.py generated [--rows 200]     rows generated from eight tools' schemas alone
python benchmarks/planner_own_tools.py traces --data DIR          200 scored runs over services of SGD never trained on
python benchmarks/planner_own_tools.py baking                     the tools' part of the prompt, baked into the weights

The first two are judged before and after, beside a control: the same number of rows from another catalogue. Baking is
judged beside the planner that reads the tools, the one that does not, and training on the same plans without the KL.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import comb
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))


def judged(rows: Sequence[Any], folder: Path) -> dict[str, Any]:
    """The figures of a planner on rows."""
    from agent_forge.agents.planner.forged import PlanModel
    from agent_forge.learning.judging import by_model, judge_planner

    write = by_model(PlanModel(folder))
    return judge_planner(rows, [write(row)[0] for row in rows]).as_dict()


def trained(place: Path, name: str, seed: int, **settings: Any) -> Path:
    """A planner trained from the shipped one; the last line says how long it took, its own judging included."""
    from agent_forge.learning.planner import train_planner

    if (place / name / "config.json").is_file():
        return place / name
    begun = time.process_time()

    def tell(**fields: Any) -> None:
        if "loss" in fields:
            print(
                f"  {time.process_time():.0f} s {name} {fields['step']}/{fields['steps']} loss {fields['loss']:.3f}",
                file=sys.stderr,
                flush=True,
            )

    train_planner(None, place / name, seed=seed, tell=tell, **settings)
    print(json.dumps({"trained": name, "cpu_s": round(time.process_time() - begun)}), flush=True)
    return place / name


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
        folder = trained(place, name, options.seed, judged=2, **settings, **how(options)) if settings else SHIPPED
        for test, rows in tests.items():
            print(json.dumps({"test": test, "planner": name, **judged(rows, folder)}), flush=True)


def generated(options: argparse.Namespace) -> None:
    from _own_tools import OTHERS, TOOLS

    arms = {"shipped": {}, "own tools": schemas(TOOLS, options.rows), "other tools": schemas(OTHERS, options.rows)}
    report(arms, workshop(options), options)


def workshop(options: argparse.Namespace) -> dict[str, list[Any]]:
    """Requests over the eight tools of the workshop to be judged on."""
    from _own_tools import TOOLS, WRITTEN

    from agent_forge.learning.material import generated as rows_for
    from agent_forge.learning.rows import PlanRow

    written = [PlanRow(str(n), text, tuple(TOOLS), tuple(calls)) for n, (text, calls) in enumerate(WRITTEN)]
    others = rows_for(TOOLS, options.tests, options.seed + 9, held_out=True)
    return {"written by hand": written, "generated in other wordings": others}


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


def plans(rows: Sequence[Any], folder: Callable[[], Path], file: Path) -> list[Any]:
    """What a planner writes for the rows, kept in a file line by line: a run that was stopped goes on."""
    from agent_forge.agents.planner.forged import PlanModel
    from agent_forge.learning.judging import by_model

    lines = file.read_text().splitlines() if file.is_file() else []
    done = {line["id"]: line["calls"] for line in map(json.loads, lines)}
    missing = [row for row in rows if row.id not in done]
    write = by_model(PlanModel(folder())) if missing else None
    for row in missing:
        done[row.id] = write(row)[0] if write else []
        with file.open("a") as out:
            out.write(json.dumps({"id": row.id, "calls": done[row.id]}) + "\n")
    return [done[row.id] for row in rows]


def paired(first: Sequence[float], second: Sequence[float]) -> dict[str, Any]:
    """The difference of two arms on the same requests, with its error and McNemar's exact test."""
    from agent_forge.learning.planner import paired_error

    won = sum(b > a for a, b in zip(first, second, strict=True))
    lost = sum(b < a for a, b in zip(first, second, strict=True))
    chance = min(1.0, 2 * sum(comb(won + lost, n) for n in range(min(won, lost) + 1)) / 2 ** (won + lost))
    error = round(paired_error(first, second), 3)
    return {
        "gain": round((won - lost) / len(first), 3),
        "error": error,
        "won": won,
        "lost": lost,
        "p": round(chance, 4),
    }


OWN = ("Flights_3", "Banks_2", "Media_2", "Services_4")  # eight tools of services that training never saw
OTHER = ("Homes_1", "Events_1", "Buses_1", "Restaurants_2")  # eight others, with as long a prompt
FOLDS = 5  # four of them give 200 runs; each request is judged once, by a planner that did not see it


def traces(options: argparse.Namespace) -> None:
    from agent_forge.agents.planner.forged import SHIPPED
    from agent_forge.learning.datasets import read_sgd
    from agent_forge.learning.judging import by_rules, judge_planner
    from agent_forge.learning.rows import write_plan_rows

    rng, place = random.Random(options.seed), options.place or Path(tempfile.mkdtemp())
    place.mkdir(parents=True, exist_ok=True)
    known = {service for row in read_sgd(options.data, "train") for service in row.meta["services"]}
    assert not known & set(OWN)
    new = [row for row in read_sgd(options.data, "dev") if not row.faults()]
    rows, functions = services(new, OWN, rng)
    others, _ = services(new, OTHER, rng)
    write_plan_rows(others[: options.rows], place / "others.jsonl")
    settings = {"held_out": 0.01, "judged": 2, **how(options)}

    def own(fold: int) -> Path:
        home = place / f"home-{fold}"
        record_runs([row for n, row in enumerate(rows) if n % FOLDS != fold], options.rows, functions, home)
        return trained(place, f"own-{fold}", options.seed, traces=str(home), **settings)

    def other() -> Path:
        return trained(place, "other", options.seed, data=(str(place / "others.jsonl"),), **settings)

    numbers = [n for n in range(len(rows)) if n % FOLDS < options.folds]
    judged_rows = [rows[n] for n in numbers]
    arms = {"rules": [by_rules(row) for row in judged_rows]}
    arms["shipped"] = plans(judged_rows, lambda: SHIPPED, place / "shipped.jsonl")
    if not options.base:
        folds = [plans(rows[n::FOLDS], partial(own, n), place / f"own-{n}.jsonl") for n in range(options.folds)]
        arms["own traces"] = [folds[n % FOLDS][n // FOLDS] for n in numbers]
        arms["other rows"] = plans(judged_rows, other, place / "other.jsonl")
    right = {
        name: [judge_planner([row], [each]).right for row, each in zip(judged_rows, calls, strict=True)]
        for name, calls in arms.items()
    }
    for name, calls in arms.items():
        against = {f"over {rival}": paired(right[rival], right[name]) for rival in right if rival != name}
        print(json.dumps({"planner": name, **judge_planner(judged_rows, calls).as_dict(), **against}), flush=True)


def baking(options: argparse.Namespace) -> None:
    """The planner reads the workshop's tools, does not, or has them baked into its weights."""
    from _own_tools import TOOLS

    from agent_forge.agents.planner.forged import SHIPPED
    from agent_forge.learning.judging import judge_planner

    place = options.place or Path(tempfile.mkdtemp())
    tests = {
        name: [replace(row, tools=tuple(TOOLS)) for row in rows if len(row.tools) == len(TOOLS)]
        for name, rows in workshop(options).items()
    }
    arms: dict[str, Callable[[], tuple[Path, bool]]] = {
        "reads the tools": lambda: (SHIPPED, True),
        "does not": lambda: (SHIPPED, False),
    }
    if not options.base:
        arms["baked"] = lambda: (baked(place, "baked", 0.0, options), False)
        arms["plans alone"] = lambda: (baked(place, "hard", 1.0, options), False)
    right: dict[str, dict[str, list[float]]] = {test: {} for test in tests}
    for name, arm in arms.items():
        write = plan_writer(*arm(), TOOLS)
        for test, rows in tests.items():
            begun = time.process_time()
            writers = [write(row.request) for row in rows]
            seconds = time.process_time() - begun
            calls = [writer.calls for writer in writers]
            cost = {"cpu_s_per_plan": round(seconds / len(rows), 3)}
            cost["cpu_ms_per_token"] = round(1000 * seconds / sum(writer.written_tokens for writer in writers), 2)
            right[test][name] = [judge_planner([row], [each]).right for row, each in zip(rows, calls, strict=True)]
            against = {"against reading": paired(right[test]["reads the tools"], right[test][name])}
            figures = judge_planner(rows, calls).as_dict()
            print(json.dumps({"test": test, "planner": name, **figures, **cost, **against}), flush=True)


def plan_writer(folder: Path, reads: bool, tools: Sequence[Any]) -> Callable[[str], Any]:
    """Plans for requests with these tools, which the prompt holds or not; the grammar knows them either way."""
    from agent_forge.agents.planner.forged import PlanModel

    model = PlanModel(folder)
    begun = time.process_time()
    if reads:
        model._after_tools(tools)  # kept for every request
    else:
        model._after_tools = lambda functions: model.model.history()  # type: ignore[method-assign]
    print(json.dumps({"tools_read_cpu_s": round(time.process_time() - begun, 2)}), flush=True)
    return lambda request: model.write(request, tools)


def baked(place: Path, name: str, hard: float, options: argparse.Namespace) -> Path:
    """The shipped planner with the workshop's tools baked in, as a folder to plan with."""
    from _own_tools import TOOLS
    from transformers import PreTrainedTokenizerFast

    from agent_forge.agents.planner.forged import SHIPPED
    from agent_forge.agents.planner.script import request_text, tools_text
    from agent_forge.forge.baking import BakeSettings, BakingPrompt, bake
    from agent_forge.forge.training.settings import LoraSettings
    from agent_forge.learning.material import generated as rows_for
    from agent_forge.learning.planner import prepare, write_planner
    from agent_forge.learning.settings import PlannerSettings

    begun = time.process_time()
    model, words = prepare(SHIPPED, PlannerSettings(tools="workshop"), [])
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(SHIPPED / "tokenizer.json"))
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['content'] }}{% endfor %}"  # as the planner reads
    )
    asked = [
        list(dict.fromkeys(request_text(row.request) for row in rows))
        for rows in (rows_for(TOOLS, options.rows, options.seed, held_out=False), workshop(options).popitem()[1])
    ]
    settings = BakeSettings(
        samples=2, answer_tokens=96, steps=options.steps, lr=options.lr, lora=LoraSettings(last=options.last)
    )
    reports = bake(
        model, tokenizer, BakingPrompt(tools_text(TOOLS)), *asked, settings, place / name,
        seed=options.seed, hard=hard, lessons=place / "baked",
        tell=lambda **fields: print(json.dumps(fields), file=sys.stderr, flush=True),
    )  # fmt: skip
    kept = {key: value for key, value in reports[-1].as_dict().items() if key != "prompt"}
    print(json.dumps({"baked": name, **kept, "cpu_s": round(time.process_time() - begun)}), flush=True)
    (place / name / "planner").mkdir(exist_ok=True)
    write_planner(model, place / name / "planner", words, SHIPPED, "int8")
    return place / name / "planner"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", choices=("generated", "traces", "baking"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--tests", type=int, default=40)
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--steps", type=int, default=80, help="of baking")
    parser.add_argument("--last", type=int, default=12, help="layers that are adapted")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--place", type=Path, help="folder of plans and planners; what is there is not made again")
    parser.add_argument("--folds", type=int, default=FOLDS, help="traces: parts that are judged")
    parser.add_argument("--base", action="store_true", help="judge the planner as shipped, and train nothing")
    options = parser.parse_args()
    if options.what is None:
        print("nothing to do: name `generated`, `traces` or `baking`")
        return
    if options.what == "traces" and options.data is None:
        print("nothing to judge: name the folder of the public sets with --data")
        return
    {"generated": generated, "traces": traces, "baking": baking}[options.what](options)


if __name__ == "__main__":
    main()
