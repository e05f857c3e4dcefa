"""`agent-forge demo`: the whole loop in miniature, on what is embedded. No network, no key, no model needed.

Real questions over real Wikipedia passages, planned by the rules, run by the executor, traced into a store. Each search
is given the latency of a remote one, since a local index answers in a millisecond and there would be nothing to see.
Every figure that is printed was measured in this run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._app import json_option, json_out

if TYPE_CHECKING:
    from rich.console import Console

    from agent_forge.agents.result import Result
    from agent_forge.agents.tools import Tool
    from agent_forge.agents.tools.retrieval import Question

LATENCY_S = 0.4
QUESTION = "q35"
MORE = ("q36", "q37", "q38", "q39", "q25", "q31")


@click.command()
@click.option("--home", metavar="DIR", help="Keep the traces here; without it, in a folder of its own.")
@click.option("--latency", default=LATENCY_S, show_default=True, help="Seconds that a search takes.")
@json_option
def command(home: str | None, latency: float, as_json: bool) -> int:
    """Plan, run in parallel and trace real multi-hop questions, on what comes with the package."""
    home = home or tempfile.mkdtemp(prefix="agent-forge-demo-")
    from rich.console import Console

    console = Console(stderr=as_json, highlight=False)
    questions = _questions()
    first = _show_one(questions[QUESTION], home, latency, console)
    rows = [first, *(_both_ways(questions[name], home, latency) for name in MORE)]
    right = sum(_run(question.question, home, 0, None).answer == question.answer for question in questions.values())
    if as_json:
        score = {"right": right, "of": len(questions)}
        json_out({"home": home, "latency_s": latency, "questions": rows, "exact_match": score})
    else:
        _table(rows, latency, console)
        console.print(f"Of all {len(questions)} bundled questions, asked just now, {right} got the exact answer.")
        _ending(first["trace"], home, console)
    return 0 if all(row["state"] == "done" for row in rows) else 1


def _questions() -> dict[str, Question]:
    from agent_forge.agents.tools.retrieval import bundled_questions

    return {question.id: question for question in bundled_questions()}


def _tools(latency: float) -> list[Tool]:
    """The embedded tools, the search made to take as long as a remote one."""
    from agent_forge.agents.tools import bundled_corpus, retrieval
    from agent_forge.agents.tools.calculator import calculator

    search = retrieval(bundled_corpus())
    function = search.function

    async def slow(**arguments: Any) -> Any:
        await asyncio.sleep(latency)
        return function(**arguments)

    return [dataclasses.replace(search, function=slow), calculator]


def _run(question: str, home: str, latency: float, concurrency: int | None, on_event: Any = None) -> Result:
    from agent_forge.agents.api import run

    options = {"tools": _tools(latency), "planner": "rules", "team": True, "home": home}
    return run(question, concurrency=concurrency, on_event=on_event, **options)


def _show_one(question: Question, home: str, latency: float, console: Console) -> dict[str, Any]:
    from agent_forge.agents.api import plan
    from agent_forge.cli._live import live_view
    from agent_forge.plans import to_tree

    planned = plan(question.question, tools=_tools(latency), planner="rules")
    console.print(f"[bold]{question.question}[/]")
    console.print(f"[dim]{planned.complexity.reason}[/]")
    console.print(to_tree(planned.plan), markup=False, highlight=False)
    with live_view(goals={task.id: task.goal for task in planned.plan}) as on_event:
        result = _run(question.question, home, latency, None, on_event)
    for name, found in result.evidence.items():
        console.print(f"  {name} = [cyan]{result.tasks[name].result}[/] [dim](read in {found.source!r})[/]")
    console.print(f"  answer: [bold green]{result.answer}[/] [dim](the data set says {question.answer})[/]\n")
    return _row(question, result, _run(question.question, home, latency, 1))


def _both_ways(question: Question, home: str, latency: float) -> dict[str, Any]:
    return _row(question, _run(question.question, home, latency, None), _run(question.question, home, latency, 1))


def _row(question: Question, parallel: Result, sequential: Result) -> dict[str, Any]:
    usage = parallel.usage
    return {
        "question": question.question,
        "answer": parallel.answer,
        "gold": question.answer,
        "state": parallel.state,
        "sequential_s": sequential.wall_s,
        "parallel_s": parallel.wall_s,
        "critical_path_s": parallel.critical_path_s,
        "tool_calls": usage.tool_calls,
        "tokens": (usage.input_tokens or 0) + (usage.output_tokens or 0) if usage.model_calls else None,
        "trace": parallel.trace_id,
    }


def _table(rows: list[dict[str, Any]], latency: float, console: Console) -> None:
    from rich import box
    from rich.table import Table

    title = f"measured just now, each search taking {latency:g} s"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("question", no_wrap=True, overflow="ellipsis", max_width=max(20, console.width - 58))
    for column in ("right", "1 by 1", "parallel", "limit", "gain", "calls", "tokens"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["question"],
            "yes" if row["answer"] == row["gold"] else "no",
            f"{row['sequential_s']:.2f} s",
            f"{row['parallel_s']:.2f} s",
            f"{row['critical_path_s']:.2f} s",
            f"{row['sequential_s'] / row['parallel_s']:.1f} ×",
            str(row["tool_calls"]),
            "–" if row["tokens"] is None else str(row["tokens"]),
        )
    console.print(table)
    console.print(
        "[dim]limit: the critical path, the longest chain of tasks that need each other. calls: of tools. tokens: none,"
        " since the rules planned and read, and no model was asked.[/]"
    )


def _ending(trace: str, home: str, console: Console) -> None:
    console.print(f"\nEvery run left a trace in {home}. Look at the first one:", highlight=False)
    console.print(f"  agent-forge traces trajectory {trace} --home {home}", highlight=False, soft_wrap=True)
