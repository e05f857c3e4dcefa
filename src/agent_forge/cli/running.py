"""`agent-forge run`: plans a request, or takes a plan file, and runs it."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._options import (
    agent_option,
    home_option,
    json_option,
    mask_option,
    model_option,
    planner_option,
    request_argument,
    roster_option,
    sample_option,
    strategy_option,
    tools_option,
)
from agent_forge.cli._output import call_again, echo, json_out
from agent_forge.errors import UsageError

if TYPE_CHECKING:
    from agent_forge.agents.result import Result
    from agent_forge.plans import Task
    from agent_forge.runtime import Budget, Event
    from agent_forge.terminal import ProgressDisplay

_SETTLE = re.compile(r"([^=]+)=(?:done:(.*)|(retry|failed))", re.DOTALL)
_BUDGET = {"tokens": int, "calls": int, "cost": float, "seconds": float}


@click.command()
@request_argument
@click.option("--plan", "plan_file", metavar="FILE", help="Plan to run, in any of the formats; - for stdin.")
@tools_option
@click.option("--resume", metavar="RUN", help="Continue an interrupted run; finished tasks are not repeated.")
@click.option("--list", "list_runs", is_flag=True, hidden=True)  # `agent-forge runs ls`, as it was called before
@model_option
@planner_option
@strategy_option
@agent_option
@click.option("--concurrency", envvar="AGENT_FORGE_CONCURRENCY", type=click.IntRange(min=1), metavar="N",
              help="Maximum number of concurrent tasks.")  # fmt: skip
@click.option("--timeout", "timeout_s", type=float, metavar="S", help="Time limit per task, in seconds.")
@click.option("--budget", multiple=True, metavar="KEY=N",
              help="Limit for the run: tokens=, calls=, cost= or seconds= (repeatable).")  # fmt: skip
@click.option(
    "--on-failure",
    type=click.Choice(["skip", "fail_fast", "continue"]),
    default="skip",
    show_default=True,
    help="What happens to other tasks when one fails.",
)
@click.option("--approve", type=click.Choice(["ask", "all", "none"]), default="ask", show_default=True,
              help="Whether tools with side effects are called: after a question, always or never.")  # fmt: skip
@click.option("--repairs", type=click.IntRange(min=0), default=2, show_default=True, metavar="N",
              help="How often a model may mend the plan after a failure.")  # fmt: skip
@click.option("--settle", multiple=True, metavar="TASK=HOW",
              help="With --resume, what became of a task in doubt: done:VALUE, retry or failed.")  # fmt: skip
@click.option("--workers", metavar="WHERE",
              help="Where tools are called: processes:N, ray://local, ray://host:port [default: here].")  # fmt: skip
@click.option("--team", is_flag=True, help="Assign every task to an agent, by rules, measured trust and load.")
@roster_option
@click.option("--unit", help="Whom this is for, e.g. a user: a rollout then decides which policy does it.")
@click.option("--rollout", metavar="NAME", help="The rollout that decides [default: the latest active one].")
@click.option("--cache", is_flag=True, help="Keep the results of tools marked pure for later runs, and use them.")
@mask_option
@sample_option
@home_option
@json_option
def command(request: str | None, plan_file: str | None, list_runs: bool, as_json: bool, **options: Any) -> int:
    """Plan REQUEST and run it, or run the plan in --plan FILE.

    Independent tasks run in parallel. Exits with 0 when every task succeeded, else with 1: also when a task waits for
    an approval and nobody can be asked (`agent-forge runs approve`), and when the request does not say enough to run.
    """
    roster = options.pop("roster")
    if roster is not None:
        if not options["team"]:
            raise click.UsageError("--roster names the agents of --team")
        options["team"] = roster
    if list_runs:
        from agent_forge.cli.runs import print_runs

        return print_runs(options["home"], as_json)
    if sum(source is not None for source in (request, plan_file, options["resume"])) != 1:
        raise click.UsageError("give exactly one of a request, --plan FILE and --resume RUN")
    from agent_forge.agents.planner import PlanningFailed, PlanRefused
    from agent_forge.plans import PlanInvalid

    try:
        result = _run(request, plan_file, as_json, options)
    except PlanRefused as refused:
        if not as_json:
            raise
        missing = [each.as_dict() for each in refused.missing]
        json_out({"state": "refused", "error": str(refused), "tasks": [], "calls": [], "missing": missing})
        return 1
    except (PlanInvalid, PlanningFailed) as error:
        if not as_json:
            raise
        from agent_forge.cli.plan import print_faults

        return print_faults(error.errors, str(error))
    return report(result, options["home"], as_json, bundled=request is not None and options["tools"] is None)


def report(result: Result, home: str | None, as_json: bool, *, bundled: bool = False) -> int:
    """Prints a result and returns the exit code. `bundled`: a request was answered with the bundled tools."""
    if as_json:
        json_out(result.as_dict())
    else:
        _print(result, home, bundled)
    return 0 if result.ok else 1


def _run(request: str | None, plan_file: str | None, as_json: bool, options: dict[str, Any]) -> Result:
    from agent_forge.agents.api import run
    from agent_forge.cli.plan import read_plan
    from agent_forge.runtime import new_run_id

    work = read_plan(plan_file) if plan_file is not None else request
    name = options["resume"] or new_run_id()
    settings = {
        **options,
        "budget": _budget(options["budget"]),
        "settle": settlements(options["settle"]) if options["resume"] else None,
        **({} if options["resume"] else {"run_id": name}),
    }
    if options["settle"] and not options["resume"]:
        raise click.UsageError("--settle goes with --resume RUN")
    from agent_forge.terminal import ProgressDisplay

    display = ProgressDisplay()
    if options["approve"] == "ask" and can_ask():
        settings["approve"] = asker(display)
    try:
        with task_display(display, quiet=as_json) as on_event:
            return run(work, on_event=on_event, **settings)
    except KeyboardInterrupt:
        echo(_interrupted(name, options["home"]), err=True)
        raise


@contextmanager
def task_display(
    display: ProgressDisplay | None = None, *, quiet: bool = False
) -> Iterator[Callable[[Event], None] | None]:
    """An `on_event` that shows a run: a bar with the running tasks on a terminal, elsewhere a line per finished task.

    `quiet` gives None where stderr is not a terminal.
    """
    from agent_forge.terminal import ProgressDisplay

    display = display or ProgressDisplay()
    if quiet and not display.live:
        yield None
        return
    tasks: set[str] = set()
    running: dict[str, None] = {}  # a set in the order in which they began
    ended = 0

    def on_event(event: Event) -> None:
        nonlocal ended
        if event.task is None:
            return
        tasks.add(event.task)
        running.pop(event.task, None)
        if event.kind == "ended":
            ended += 1
            if event.state != "done" or not display.live:
                reason = f": {event.error}" if event.error else ""
                display.line(f"[{event.at_s:8.2f} s] {event.task} {event.state}{reason}")
        elif event.kind != "planned":
            running[event.task] = None
        if display.live:
            display.update("tasks", ended, len(tasks), detail=", ".join(running))

    with display:
        yield on_event


def can_ask() -> bool:
    """Whether somebody sits at a terminal to be asked."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def asker(display: ProgressDisplay | None = None) -> Callable[[Task], Awaitable[Any]]:
    """Asks at the terminal whether a task may be carried out, one question at a time; the other tasks go on. `display`
    is what shows them there."""
    from agent_forge.threads import THREADS

    lock = asyncio.Lock()

    async def ask(task: Task) -> Any:
        async with lock:
            with nullcontext() if display is None else display.paused():
                return await THREADS.call(lambda: _ask(task))

    return ask


def _ask(task: Task) -> bool | dict[str, Any]:
    from agent_forge.agents.approval import question

    echo(f"\n{task.id}: {question(task)} changes the world.", err=True)
    while True:
        echo("Approve? [y]es, [n]o, or new arguments as JSON [n]: ", nl=False, err=True)
        # Not `input`: a thread that waits in it holds a lock without which the interpreter aborts after Ctrl-C.
        answer = os.read(sys.stdin.fileno(), 65536).decode(sys.stdin.encoding, "replace").strip() or "n"
        if answer.lower() in ("y", "yes", "n", "no"):
            return answer.lower().startswith("y")
        try:
            return changed_arguments(answer)
        except UsageError as error:
            echo(str(error), err=True)


def changed_arguments(text: str) -> dict[str, Any]:
    """Arguments as a JSON object. Raises UsageError."""
    import json

    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise UsageError(f"{text!r} is not a JSON object", fix='Write for example {"to": "ann@example.com"}')
    return document


def settlements(pairs: tuple[str, ...]) -> dict[str, tuple[str, Any]]:
    """What `--settle` says: `a=done:42` is ("done", 42), and a value that is not JSON is text. Raises UsageError."""
    import json

    settled: dict[str, tuple[str, Any]] = {}
    for pair in pairs:
        match = _SETTLE.fullmatch(pair)
        if match is None:
            raise UsageError(f"--settle {pair}: it is not TASK=done:VALUE, TASK=retry or TASK=failed")
        task, value, word = match.groups()
        try:
            settled[task] = ("done", json.loads(value)) if word is None else (word, None)
        except ValueError:
            settled[task] = "done", value
    return settled


def _budget(pairs: tuple[str, ...]) -> Budget | None:
    from agent_forge.runtime import Budget

    limits: dict[str, Any] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in _BUDGET:
            fix = f"Use one of {', '.join(_BUDGET)}"
            raise UsageError(f"--budget {pair}: there is no budget called {key!r}", fix=fix)
        try:
            limits["wall_s" if key == "seconds" else key] = _BUDGET[key](value)
        except ValueError:
            raise UsageError(f"--budget {pair}: {value!r} is not a number") from None
    return Budget(**limits) if limits else None


def _interrupted(name: str, home: str | None) -> str:
    """What was saved of an interrupted run, and how to continue it."""
    from agent_forge.errors import StoreError
    from agent_forge.runtime.journal import Journal

    try:
        journal = Journal.open(home)
        done = len(journal.load(name).results)
        journal.close()
    except StoreError:
        return "no task had begun, so nothing was saved"
    again = call_again("run", "--resume", name, home=home)
    return f"{done} finished task{'s' * (done != 1)} saved; continue with: {again}"


def _written(tool: str, args: Mapping[str, Any]) -> str:
    """A call in one line, as `agent-forge plan` shows it."""
    from agent_forge.plans.calls import write_call
    from agent_forge.runtime.result import jsonable

    plain = {name: jsonable(value) for name, value in args.items()}
    return write_call(tool, plain) or f"{tool}({', '.join(f'{name}={value!r}' for name, value in plain.items())})"


def _last_results(result: Result) -> dict[str, str]:
    """What the last tasks returned, for want of a model to put several results, or a structure, into words. A tool may
    return nothing; a look-up that finds nothing is unknown."""
    plan = result.plan
    last = [name for name in plan.leaves if not plan.dependents[name]] if plan is not None else []
    made = {call["task"]: _written(call["tool"], call["args"]) for call in result.calls}
    lines = {}
    for name in last:
        task = result.tasks.get(name)
        if plan is not None and task is not None and task.ok:
            action = plan[name].action
            if task.result is not None or action not in (None, "look_up", "combine"):
                lines[name] = f"{made.get(name) or _written(action or name, plan[name].args)}: {task.result}"
    return lines


def _print(result: Result, home: str | None, bundled: bool = False) -> None:
    """The answer, or the results of a plan, on stdout; what was called and statistics on stderr. Why a task of a
    request failed, `task_display` has said."""
    shown: Iterable[str] = result.evidence
    if result.request is not None:
        last = {} if result.answer else _last_results(result)
        if bundled and result.plan is not None:  # whatever passages are nearest are no answer to a question in words
            last = {name: line for name, line in last.items() if result.plan[name].action != "search"}
        if text := result.answer or "\n".join(last.values()) or ("unknown" if result.ok else ""):
            echo(text)
        if bundled and text == "unknown" and not result.usage.model_calls:
            echo("  only the bundled passages were searched; --tools FILE adds tools, --model a model", err=True)
        shown = {*shown, *last}
    else:
        shown = result.tasks
        for name, task in result.tasks.items():
            if name in result.outcome.parts or task.state == "not_needed":
                continue
            echo(f"{name}: {task.result if task.ok else f'[{task.state}] {task.error}'}")
    for name, evidence in result.evidence.items():
        echo(f"  {name}: {result.tasks[name].result}  ({evidence.source})", err=True)
    for made in result.calls:
        if made["task"] not in shown and made["state"] != "waiting":
            echo(f"  {made['task']}: {_written(made['tool'], made['args'])}", err=True)
    for warning in result.warnings:
        echo(f"  warning: {warning}", err=True)
    for name, task in result.tasks.items():
        if task.state == "waiting":
            call = next((call for call in result.calls if call["task"] == name and call["state"] == "waiting"), None)
            what = _written(call["tool"], call["args"]) if call else name
            again = call_again("runs", "approve", result.run, name, home=home)
            echo(f"  {name} waits for an approval: {what}; approve with: {again}", err=True)
        elif task.state == "in_doubt":
            again = call_again("run", "--resume", result.run, "--settle", f"{name}=done:VALUE", home=home)
            echo(f"  {name} is in doubt; settle with: {again} (or {name}=retry, {name}=failed)", err=True)
    usage = result.usage
    counted = usage.input_tokens is not None
    tokens = f"{usage.input_tokens}+{usage.output_tokens} tokens" if counted else "tokens not counted"
    cost = "" if usage.cost is None else f", ${usage.cost:.6g}"
    echo(
        f"{result.state} in {result.wall_s:.2f} s (critical path {result.critical_path_s:.2f} s), "
        f"{usage.tool_calls} tool call{'s' * (usage.tool_calls != 1)}, "
        f"{usage.model_calls} model call{'s' * (usage.model_calls != 1)}, {tokens}{cost}; "
        f"run {result.run}, trace {result.trace_id}",
        err=True,
    )
