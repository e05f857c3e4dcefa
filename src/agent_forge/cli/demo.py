"""`agent-forge demo`: the whole loop in miniature, on bundled data. Needs no network, key or model.

Real questions over real Wikipedia passages, planned by rules, run by the executor, traced into a store. Each search is
slowed down to the latency of a remote one: a local index answers in a millisecond, which leaves nothing to gain.
Every figure that is printed was measured in this run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._options import home_option, json_option
from agent_forge.cli._output import call_again, cell, json_out

if TYPE_CHECKING:
    from rich.console import Console

    from agent_forge.agents.result import Result
    from agent_forge.agents.tools import Tool
    from agent_forge.agents.tools.retrieval import Question

LATENCY_S = 0.4
QUESTION = "q35"
MORE = ("q36", "q37", "q38", "q39", "q25", "q31")


@click.command()
@home_option
@click.option("--latency", default=LATENCY_S, show_default=True, help="Simulated latency of a search, in seconds.")
@click.option("--rollouts", is_flag=True, help="Show rollouts instead: one promoted, one pulled back, and a true one.")
@click.option("--learning", is_flag=True, help="Show reinforcement learning instead: a toy whose optimum is known.")
@json_option
def command(home: str | None, latency: float, rollouts: bool, learning: bool, as_json: bool) -> int:
    """Plan, run in parallel and trace real multi-hop questions, on bundled data.

    Without --home or AGENT_FORGE_HOME the traces go to a temporary folder.
    """
    from rich.console import Console

    if learning:
        from agent_forge.cli._demo_learning import show_learning

        policies = show_learning(Console(stderr=as_json, highlight=False))
        if as_json:
            json_out({"policies": policies})
        return 0
    home = home or tempfile.mkdtemp(prefix="agent-forge-demo-")
    if rollouts:
        return _rollouts(home, Console(stderr=as_json, highlight=False), as_json)
    from agent_forge.agents.tools.retrieval import bundled_questions

    console = Console(stderr=as_json, highlight=False)
    questions = {question.id: question for question in bundled_questions()}
    first = _show_one(questions[QUESTION], home, latency, console)
    rows = [first]
    for name in MORE:
        parallel, serial = (_run(questions[name].question, home, latency, limit) for limit in (None, 1))
        rows.append(_row(questions[name], parallel, serial))
    right = sum(_run(question.question, home, 0, None).answer == question.answer for question in questions.values())
    if as_json:
        score = {"right": right, "of": len(questions)}
        json_out({"home": home, "latency_s": latency, "questions": rows, "exact_match": score})
    else:
        _table(rows, latency, console)
        console.print(f"Of all {len(questions)} bundled questions, run just now, {right} got the exact answer.")
        console.print(f"See rollouts next: {cell(call_again('demo', '--rollouts', home=home))}", soft_wrap=True)
        if find_spec("torch") is not None:
            console.print(f"And learning: {cell(call_again('demo', '--learning', home=None))}", soft_wrap=True)
        console.print(f"\nEvery run left a trace in {cell(home)}. Look at the first one:")
        console.print(f"  {cell(call_again('traces', 'trajectory', first['trace'], home=home))}", soft_wrap=True)
    return 0 if all(row["state"] == "done" for row in rows) else 1


def _rollouts(home: str, console: Console, as_json: bool) -> int:
    from agent_forge.cli._demo_rollout import show_rollouts

    rows = show_rollouts(home, console)
    if as_json:
        json_out({"home": home, "rollouts": rows})
    else:
        console.print(f"\nEvery decision with its figures: {cell(call_again('rollout', 'status', 'good', home=home))}")
        console.print("The same as pages: `agent-forge serve`, then /rollouts", markup=False)
    return 0


def _tools(latency: float) -> list[Tool]:
    """The bundled tools, the search as slow as a remote one."""
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

    tools = _tools(latency)
    return run(question, tools=tools, planner="rules", team=True, home=home, concurrency=concurrency, on_event=on_event)


def _show_one(question: Question, home: str, latency: float, console: Console) -> dict[str, Any]:
    from agent_forge.agents.api import plan
    from agent_forge.agents.complexity import complexity
    from agent_forge.cli.running import task_display
    from agent_forge.plans import to_tree

    planned = plan(question.question, tools=_tools(latency), planner="rules")
    console.print(f"[bold]{cell(question.question)}[/]")
    console.print(f"[dim]{cell(complexity(question.question).reason)}[/]")
    console.print(to_tree(planned), markup=False)
    with task_display() as on_event:
        result = _run(question.question, home, latency, None, on_event)
    for name, evidence in result.evidence.items():
        console.print(
            f"  {name} = [cyan]{cell(result.tasks[name].result)}[/] [dim](read in {cell(evidence.source)})[/]"
        )
    console.print(
        f"  answer: [bold green]{cell(result.answer)}[/] [dim](the data set says {cell(question.answer)})[/]\n"
    )
    return _row(question, result, _run(question.question, home, latency, 1))


def _row(question: Question, parallel: Result, serial: Result) -> dict[str, Any]:
    usage = parallel.usage
    return {
        "question": question.question,
        "answer": parallel.answer,
        "gold": question.answer,
        "state": parallel.state,
        "sequential_s": serial.wall_s,
        "parallel_s": parallel.wall_s,
        "critical_path_s": parallel.critical_path_s,
        "tool_calls": usage.tool_calls,
        "tokens": (usage.input_tokens or 0) + (usage.output_tokens or 0) if usage.model_calls else None,
        "trace": parallel.trace_id,
    }


def _table(rows: list[dict[str, Any]], latency: float, console: Console) -> None:
    from rich import box
    from rich.table import Table

    title = f"Measured just now, with {latency:g} s per search"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("question", no_wrap=True, overflow="ellipsis", max_width=max(20, console.width - 60))
    for column in ("right", "serial", "parallel", "limit", "speedup", "calls", "tokens"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            cell(row["question"]),
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
        "[dim]limit: the critical path, the longest chain of dependent tasks. calls: tool calls. tokens: none, since"
        " rules made the plans and read the passages; no model was called.[/]"
    )
