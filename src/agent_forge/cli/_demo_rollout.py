"""`agent-forge demo --rollouts`: three rollouts on the bundled questions, their traffic really routed and measured.

A candidate that is as good goes to everyone, a planted bad one comes back, and the forged planner meets the rules. Each
unit asks one of the questions; its bucket decides who answers; its answer is compared with the data set's; every few
units the controller reads the traces and decides.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from agent_forge.cli._output import cell

if TYPE_CHECKING:
    from rich.console import Console

    from agent_forge.agents.tools.retrieval import Question
    from agent_forge.rollout import Rollouts
    from agent_forge.traces import Recorder

STEP = 20  # units between two looks

# name, candidate, what it is, the metrics to compare, and the most units to serve
SHOWN = (
    ("good", "graph", "the graph strategy, which plans by the same rules here", ("success", "reward"), 400),
    ("planted", "broken-search", "the rules with a search that finds nothing", ("success", "reward"), 400),
    ("forged", "forged", "the planner that comes with the package", ("success", "reward", "latency_p50"), 160),
)


def show_rollouts(home: str, console: Console, only: str | None = None) -> list[dict[str, Any]]:
    """Rolls out each candidate against the rules and reports how it ended."""
    from agent_forge.agents.tools.retrieval import bundled_questions
    from agent_forge.rollout import Rollouts
    from agent_forge.traces import Recorder

    questions, rows = list(bundled_questions()), []
    with closing(Rollouts.open(home)) as rollouts, Recorder.from_settings(home) as recorder:
        for name, candidate, about, watch, most in SHOWN:
            if only in (None, name):
                console.print(f"[bold]{name}[/]: {cell(candidate)} against rules ({cell(about)})")
                rows.append(_roll_out(rollouts, recorder, name, candidate, watch, most, questions, console))
        recorder.store.close()
    return rows


def _roll_out(
    rollouts: Rollouts,
    recorder: Recorder,
    name: str,
    candidate: str,
    watch: tuple[str, ...],
    most: int,
    questions: list[Question],
    console: Console,
) -> dict[str, Any]:
    from agent_forge.rollout import Guardrails, TraceReadings

    # A demonstration cannot wait for seven days and thousands of users, so it accepts a margin of 25 points.
    rails = Guardrails(
        min_days=0, min_units=40, margin=0.25, primary="reward", watch=watch, require=("success", "reward"), votes=1,
        tuned_at=100,
    )  # fmt: skip
    rollouts.create(name, candidate=candidate, baseline="rules", stages=(0.5, 1.0), guardrails=rails)
    readings, started = TraceReadings(recorder.store), time.perf_counter()
    answer: Callable[..., Any] = _answer_broken if candidate == "broken-search" else _answer
    served, rollout = 0, rollouts.get(name)
    for question in itertools.cycle(questions):
        answer(rollouts, recorder, name, f"visitor-{served}", question)
        served += 1
        if served % STEP == 0:
            recorder.flush()
            rollout = rollouts.step(name, readings)
            if rollout.state != "running" or served >= most:
                break
    document = rollouts.document(name)
    last = document["decisions"][-1]
    figures = {metric: last["figures"][metric] for metric in watch if metric in last["figures"]}
    console.print(f"  [bold]{rollout.state.replace('_', ' ')}[/] after {served} visitors: {cell(last['why'])}")
    for metric, figure in figures.items():
        what = "share above 1.2 × the rules' median latency" if metric == "latency_p50" else metric
        console.print(f"  [dim]{what}: candidate {figure['candidate']:.3f}, rules {figure['baseline']:.3f}[/]")
    seconds = time.perf_counter() - started
    return {"rollout": name, "candidate": candidate, "state": rollout.state, "share": rollout.share,
            "units": served, "seconds": seconds, "why": last["why"], "figures": figures}  # fmt: skip


def _answer(rollouts: Rollouts, recorder: Recorder, name: str, unit: str, question: Question) -> None:
    """A request as any program makes it: `run` asks who serves the unit."""
    from agent_forge.agents.api import run

    home = rollouts.where.rpartition("/")[0]
    result = run(question.question, unit=unit, rollout=name, home=home, recorder=recorder)
    _judge(recorder, result.trace_id, result.answer == question.answer)


def _answer_broken(rollouts: Rollouts, recorder: Recorder, name: str, unit: str, question: Question) -> None:
    """A program with policies of its own asks who serves, does it, and records the exposure itself."""
    from agent_forge.agents.api import run
    from agent_forge.agents.tools import Tool, bundled_corpus, retrieval
    from agent_forge.agents.tools.calculator import calculator
    from agent_forge.rollout import expose, policy_for

    assignment = policy_for(unit, rollout=name, home=rollouts)
    tools: list[Tool] | None = None
    if assignment.policy == "broken-search":
        import dataclasses

        def nothing(**arguments: Any) -> Any:
            raise LookupError("the index is empty")

        tools = [dataclasses.replace(retrieval(bundled_corpus()), function=nothing), calculator]
    home = rollouts.where.rpartition("/")[0]
    with recorder.span(question.question[:80], "run") as span:
        expose(recorder, assignment)
        result = run(question.question, planner="rules", tools=tools, home=home, recorder=recorder)
        if not result.ok:
            span.status, span.error = "error", result.error
    _judge(recorder, span.trace_id, result.answer == question.answer)


def _judge(recorder: Recorder, trace_id: str | None, right: bool) -> None:
    from agent_forge.traces.scores import add_score

    assert trace_id is not None
    recorder.flush()
    add_score(recorder.store, recorder.store.trace(trace_id), float(right), by="data set")
