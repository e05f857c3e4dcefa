"""`agent-forge traces trajectory | stats | validate | collect`: understanding what was recorded."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._app import home_option, json_option, json_out
from agent_forge.errors import UsageError

if TYPE_CHECKING:
    from agent_forge.traces.collect import Collection, Scenario, Target
    from agent_forge.traces.span import Span
    from agent_forge.traces.store import Store
    from agent_forge.traces.trajectory import Trajectory
    from agent_forge.traces.trust import Calibration, TrustTable

STRATEGIES = ("uniform", "discounted", "last_before_failure", "reuse", "shapley")
MOST_FAULTS = 10  # that are shown to people
strategy_option = click.option(
    "--credit", "strategy", type=click.Choice(STRATEGIES), default="shapley", show_default=True, help="Who gets credit."
)
outcome_option = click.option(
    "--outcome", type=float, help="What to share out; without it the reward, else 1 or -1 by the status."
)


# -- trajectory --------------------------------------------------------------------------------------------------------


@click.command("trajectory")
@click.argument("trace", required=False)
@click.option("--session", help="All traces of this session instead of one trace.")
@strategy_option
@outcome_option
@home_option
@json_option
def trajectory(
    trace: str | None, session: str | None, strategy: str, outcome: float | None, home: str | None, as_json: bool
) -> None:
    """Show how a trace went: order, critical path, credit. TRACE may be the beginning of an id."""
    if (trace is None) == (session is None):
        raise UsageError("name a TRACE or a --session", fix="`agent-forge traces ls` lists the traces")
    from agent_forge.cli.traces import open_store
    from agent_forge.traces.trajectory import assemble

    with open_store(home) as store:
        spans = _of_trace(store, trace) if trace is not None else _of_session(store, str(session))
    show_trajectory(assemble(spans), strategy, outcome, as_json)


def show_trajectory(found: Trajectory, strategy: str, outcome: float | None, as_json: bool) -> None:
    """Prints a trajectory as a JSON document, or as a waterfall with its faults on stderr."""
    if as_json:
        json_out(found.to_json(strategy, outcome))
        return
    from agent_forge.traces.trajectory import waterfall

    width = click.get_current_context().terminal_width or _terminal_width()
    click.echo(waterfall(found, width, found.credit(strategy, outcome)))
    for fault in found.faults[:MOST_FAULTS]:
        click.echo(f"{fault.span_id} {fault.message} ({fault.code})", err=True)
    if len(found.faults) > MOST_FAULTS:
        click.echo(f"and {len(found.faults) - MOST_FAULTS:,} more such faults: --json lists them", err=True)


def _terminal_width() -> int:
    import shutil

    return shutil.get_terminal_size((100, 24)).columns


def _of_trace(store: Store, beginning: str) -> list[Span]:
    found = store.trace_ids(beginning.lower(), limit=2)
    if len(found) != 1:
        what = f"{len(found)} or more traces begin with {beginning!r}" if found else f"there is no trace {beginning!r}"
        raise UsageError(what, where=store.where, fix="`agent-forge traces ls` lists them")
    return store.trace(found[0])


def _of_session(store: Store, session: str) -> list[Span]:
    spans = [span for trace in store.each_trace(session=session) for span in trace]
    if not spans:
        raise UsageError(
            f"there is no session {session!r}", where=store.where, fix="`agent-forge traces ls` lists them"
        )
    return spans


# -- stats -------------------------------------------------------------------------------------------------------------


@click.command("stats")
@click.option("--since", help="Started at or after (2026-01-31, 2026-01-31T12:00Z).")
@click.option("--until", help="Started before.")
@click.option("--trust", "with_trust", is_flag=True, help="Also whom to trust: beliefs and their lower bounds.")
@click.option("--calibration", "with_calibration", is_flag=True, help="Also how good such predictions were so far.")
@home_option
@json_option
def stats(
    since: str | None, until: str | None, with_trust: bool, with_calibration: bool, home: str | None, as_json: bool
) -> None:
    """Say how well each agent does, and at what."""
    from agent_forge.cli.traces import open_store
    from agent_forge.traces.performance import performance

    with open_store(home) as store:
        rows = performance(store, since=since, until=until)
        totals = _totals(store, since, until)
        table = _trust_of(store) if with_trust else None
        calibration = _calibration_of(store) if with_calibration else None
    document = {"agents": [row.to_json() for row in rows], "totals": totals}
    show_stats(document, [row.words() for row in rows], table, calibration, as_json)


def show_stats(
    document: dict[str, Any],
    lines: list[str],
    table: TrustTable | None,
    calibration: Calibration | None,
    as_json: bool,
) -> None:
    """Prints statistics as one JSON document or as sentences."""
    from dataclasses import asdict

    if as_json:
        if table is not None:
            document["trust"] = table.rows()
        if calibration is not None:
            document["calibration"] = asdict(calibration)
        json_out(document)
        return
    from agent_forge.traces.trajectory import printable

    for line in lines:
        click.echo(printable(line))
    if not lines:
        click.echo("no agent has left a span yet", err=True)
    for row in table.rows() if table is not None else ():
        click.echo(printable(_trust_words(row)))
    if calibration is not None:
        click.echo(_calibration_words(calibration))


def _totals(store: Store, since: str | None, until: str | None) -> dict[str, Any]:
    groups = store.aggregate(("kind",), since=since, until=until)
    rewards = sum(group.reward_n for group in groups)
    return {
        "spans": sum(group.spans for group in groups),
        "errors": sum(group.errors for group in groups),
        "seconds": sum(group.duration_s for group in groups),
        "rewards": rewards,
        "kinds": {str(group.group["kind"]): group.spans for group in groups},
    }


def _trust_of(store: Store) -> TrustTable:
    from agent_forge.traces.trust import TrustTable

    table = TrustTable()
    table.observe_store(store)
    return table


def _calibration_of(store: Store) -> Calibration:
    from agent_forge.traces.trust import replay

    return replay(_rewarded_spans(store))


def _rewarded_spans(store: Store) -> Iterator[Span]:
    """Not by trace: the reward of a trace is its root's, and many traces have rewards inside only."""
    after: str | None = None
    while True:
        page = store.search(min_reward=0.0, max_reward=1.0, limit=1000, after=after, oldest_first=True)
        yield from page.items
        if (after := page.next) is None:
            return


def _trust_words(row: dict[str, Any]) -> str:
    who = " with ".join(name for name in (row["agent"], row["model"]) if name)
    bound = "not enough seen for a bound" if row["lower_bound"] is None else f"at least {row['lower_bound']:.2f}"
    what = row["category"] or "uncategorised work"
    return f"trust {who} at {what}: {row['mean']:.2f} expected, {bound} (n={row['count']:.1f} after fading)"


def _calibration_words(calibration: Calibration) -> str:
    if calibration.brier is None:
        return "calibration: no verified reward to check predictions against"
    lines = [
        f"calibration: Brier score {calibration.brier:.4f} (always saying the mean: {calibration.brier_reference:.4f}),"
        f" calibration error {calibration.error:.4f}, n={calibration.count}"
    ]
    for row in calibration.reliability:
        seen = f"{row.predicted:.2f}, observed {row.observed:.2f} (n={row.count})"
        lines.append(f"  predicted {row.low:.1f}–{row.high:.1f}: {seen}")
    return "\n".join(lines)


# -- validate ----------------------------------------------------------------------------------------------------------


@click.command("validate")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@json_option
def validate(files: tuple[str, ...], as_json: bool) -> int:
    """Check files of spans (JSON lines, or OTLP/JSON): one line a fault, and exit code 1 if there is any."""
    from agent_forge.traces.trajectory import printable
    from agent_forge.traces.validate import validate_file

    found = {path: validate_file(path) for path in files}
    count = sum(map(len, found.values()))
    if as_json:
        faults = [
            {"file": path, "line": fault.line, "code": fault.code, "message": fault.message}
            for path, some in found.items()
            for fault in some
        ]
        json_out({"valid": not count, "faults": faults})
    else:
        for path, some in found.items():
            for fault in some:
                click.echo(printable(f"{path}:{fault}"))
        click.echo(f"{count} fault{'s' * (count != 1)}" if count else "no faults", err=True)
    return 1 if count else 0


# -- collect -----------------------------------------------------------------------------------------------------------


@click.command("collect")
@click.argument("scenarios", required=False, metavar="[SCENARIOS]")
@click.option("--plan", "plans", multiple=True, type=click.Path(), help="A plan file as a scenario. May be repeated.")
@click.option("--tools", help="The tools of the plans: a module or a file.")
@click.option("--traces", "count", default=2000, show_default=True, help="So many traces in all.")
@click.option("--per-agent", default=0, show_default=True, help="And at least so many for each agent.")
@click.option("--name", default="collection", show_default=True, help="The collection: what is there counts.")
@click.option("--seed", default=0, show_default=True)
@click.option("--concurrency", default=4, show_default=True, help="Scenarios that run at once.")
@home_option
@json_option
def collect(
    scenarios: str | None, plans: tuple[str, ...], tools: str | None, count: int, per_agent: int, name: str, seed: int,
    concurrency: int, home: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Run scenarios until there are enough traces of them.

    SCENARIOS is a module or a Python file with a list SCENARIOS of agent_forge.traces.collect.Scenario. Started again
    it goes on from what the store holds. Failures are kept as they come.
    """
    from agent_forge.cli.traces import open_store
    from agent_forge.traces.collect import Target
    from agent_forge.traces.collect import collect as run
    from agent_forge.traces.recorder import Recorder

    found = [*(_scenarios_in(scenarios) if scenarios else ()), *_plan_scenarios(plans, tools)]
    target = Target(count, per_agent)
    with open_store(home) as store, Recorder(store) as recorder, _progress(found, target) as progress:
        done = run(found, target, recorder, name=name, seed=seed, concurrency=concurrency, progress=progress)
    if as_json:
        json_out({"traces": done.traces, "agents": done.agents, "added": done.added, "errors": done.errors,
                  "mean_reward": done.mean_reward})  # fmt: skip
        return
    rate = "nothing verified" if done.mean_reward is None else f"mean reward {done.mean_reward:.3f}"
    click.echo(f"{done.traces} traces of {name!r}, {done.added} new ({rate}, {done.errors} failed)")


def _scenarios_in(source: str) -> list[Scenario]:
    import importlib
    import importlib.util
    from pathlib import Path

    try:
        if source.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(source).stem, source)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(source)
        found: list[Scenario] = list(module.SCENARIOS)
    except Exception as error:
        what = f"cannot be loaded: {type(error).__name__}: {error}"
        raise UsageError(what, where=source, fix="it should hold a list SCENARIOS") from error
    return found


def _plan_scenarios(paths: tuple[str, ...], tools: str | None) -> Iterator[Scenario]:
    from pathlib import Path

    from agent_forge.cli._app import require_file
    from agent_forge.traces.collect import Scenario
    from agent_forge.traces.reward import Verification, exit_code

    for path in paths:
        from agent_forge.agents.api import arun
        from agent_forge.plans import parse_plan

        plan = parse_plan(require_file(path))

        async def run(recorder: Any, seed: int, plan: Any = plan) -> Verification:
            result = await arun(plan, tools=tools, record=False, recorder=recorder)
            return exit_code(0 if result.ok else 1, f"the run ended as {result.state}")

        yield Scenario(Path(path).stem, Path(path).stem, run)


@contextmanager
def _progress(scenarios: list[Scenario], target: Target) -> Iterator[Callable[[Collection], None]]:
    """A bar with rate and time left on a terminal, a line every tenth elsewhere."""
    agents = len({scenario.agent for scenario in scenarios})
    whole = max(target.traces, target.per_agent * agents)
    if not sys.stderr.isatty():
        yield _plain_progress(whole)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("collecting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
               TextColumn("{task.fields[figures]}"))  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("collecting", total=whole, figures="")
        began = time.monotonic()

        def told(standing: Collection) -> None:
            rate = f"{standing.added / max(time.monotonic() - began, 1e-9):.1f}/s"
            reward = "" if standing.mean_reward is None else f", mean reward {standing.mean_reward:.2f}"
            bar.update(task, completed=standing.traces, figures=rate + reward)

        yield told


def _plain_progress(whole: int) -> Callable[[Collection], None]:
    step = max(1, whole // 10)

    def told(standing: Collection) -> None:
        if standing.traces % step == 0:
            click.echo(f"{standing.traces} of {whole} traces", err=True)

    return told


commands = (trajectory, stats, validate, collect)  # `agent-forge traces` takes them in
