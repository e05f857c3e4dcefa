"""`agent-forge traces trajectory | stats | validate | collect`: analyses what was recorded, and collects more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._options import home_option, json_option, open_store, read_trace, roster_option, seed_option
from agent_forge.cli._output import echo, json_out, read_text
from agent_forge.errors import UsageError

if TYPE_CHECKING:
    from agent_forge.traces.collect import Collection, Scenario, Target
    from agent_forge.traces.recorder import Recorder
    from agent_forge.traces.span import Span
    from agent_forge.traces.store import Store
    from agent_forge.traces.trajectory import Trajectory
    from agent_forge.traces.trust import Calibration, TrustTable

STRATEGIES = ("uniform", "discounted", "last_before_failure", "reuse", "shapley")
MOST_FAULTS = 10  # more are only counted
credit_option = click.option("--credit", "strategy", type=click.Choice(STRATEGIES), default="shapley",
                             show_default=True, help="How credit is assigned.")  # fmt: skip


# -- trajectory --------------------------------------------------------------------------------------------------------


@click.command("trajectory")
@click.argument("trace", required=False)
@click.option("--session", help="All traces of this session instead of one trace.")
@credit_option
@click.option("--outcome", type=float, help="Outcome to share out [default: the reward].")
@home_option
@json_option
def trajectory(
    trace: str | None, session: str | None, strategy: str, outcome: float | None, home: str | None, as_json: bool
) -> None:
    """Show the order, critical path and credit of TRACE, an id or its beginning."""
    if (trace is None) == (session is None):
        raise UsageError("give either a TRACE or a --session", fix="`agent-forge traces ls` lists the traces")
    from agent_forge.traces.trajectory import assemble

    with open_store(home) as store:
        if trace is not None:
            spans = read_trace(store, trace)
        else:
            spans = [span for one in store.each_trace(session=session) for span in one]
        if not spans:
            fix = "`agent-forge traces ls` lists them"
            raise UsageError(f"there is no session {session!r}", where=store.where, fix=fix)
    show_trajectory(assemble(spans), strategy, outcome, as_json)


def show_trajectory(trajectory: Trajectory, strategy: str, outcome: float | None, as_json: bool) -> None:
    """Prints a trajectory as a JSON document, or as a waterfall with its faults on stderr."""
    if as_json:
        json_out(trajectory.to_json(strategy, outcome))
        return
    import shutil

    from agent_forge.traces.trajectory import waterfall

    width = click.get_current_context().terminal_width or shutil.get_terminal_size((100, 24)).columns
    echo(waterfall(trajectory, width, trajectory.credit(strategy, outcome)))
    for fault in trajectory.faults[:MOST_FAULTS]:
        echo(f"{fault.span_id} {fault.message} ({fault.code})", err=True)
    if len(trajectory.faults) > MOST_FAULTS:
        echo(f"and {len(trajectory.faults) - MOST_FAULTS:,} more such faults: --json lists them", err=True)


# -- stats -------------------------------------------------------------------------------------------------------------


@click.command("stats")
@click.option("--since", help="Only spans started at or after this time (2026-01-31, 2026-01-31T12:00Z).")
@click.option("--until", help="Only spans started before this time.")
@click.option("--trust", "with_trust", is_flag=True, help="Also show trust: expected rewards and lower bounds.")
@click.option("--calibration", "with_calibration", is_flag=True, help="Also show how accurate such predictions were.")
@home_option
@json_option
def stats(
    since: str | None, until: str | None, with_trust: bool, with_calibration: bool, home: str | None, as_json: bool
) -> None:
    """Show how well each agent does, and at what."""
    from agent_forge.traces.performance import performance
    from agent_forge.traces.trust import TrustTable, replay

    table = TrustTable() if with_trust else None
    with open_store(home) as store:
        rows = performance(store, since=since, until=until)
        totals = _totals(store, since, until)
        if table is not None:
            table.observe_store(store)
        calibration = replay(_rewarded_spans(store)) if with_calibration else None
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
    for line in lines:
        echo(line)
    if not lines:
        echo("no agent has left a span yet", err=True)
    for row in table.rows() if table is not None else ():
        echo(_trust_line(row))
    if calibration is not None:
        echo(_calibration_lines(calibration))


def _totals(store: Store, since: str | None, until: str | None) -> dict[str, Any]:
    groups = store.aggregate(("kind",), since=since, until=until)
    models = [group for group in groups if group.group["kind"] == "model"]
    return {
        "spans": sum(group.spans for group in groups),
        "errors": sum(group.errors for group in groups),
        "seconds": sum(group.duration_s for group in groups),
        "rewards": sum(group.reward_n for group in groups),
        "cost": sum(group.cost for group in models) if any(group.cost_n for group in models) else None,
        "kinds": {str(group.group["kind"]): group.spans for group in groups},
    }


def _rewarded_spans(store: Store) -> Iterator[Span]:
    """All spans with a reward. (Traces would not do: their reward is the root's, and many have rewards only inside.)"""
    after: str | None = None
    while True:
        page = store.search(min_reward=0.0, max_reward=1.0, limit=1000, after=after, oldest_first=True)
        yield from page.items
        if (after := page.next) is None:
            return


def _trust_line(row: dict[str, Any]) -> str:
    agent = " with ".join(name for name in (row["agent"], row["model"]) if name)
    bound = "too few observations for a bound" if row["lower_bound"] is None else f"at least {row['lower_bound']:.2f}"
    task = row["category"] or "uncategorised work"
    return f"trust {agent} at {task}: {row['mean']:.2f} expected, {bound} (n={row['count']:.1f} after decay)"


def _calibration_lines(calibration: Calibration) -> str:
    if calibration.brier is None:
        return "calibration: no verified reward to check predictions against"
    baseline = f"(always predicting the mean: {calibration.brier_reference:.4f})"
    lines = [
        f"calibration: Brier score {calibration.brier:.4f} {baseline}, "
        f"calibration error {calibration.error:.4f}, n={calibration.count}"
    ]
    for row in calibration.reliability:
        means = f"{row.predicted:.2f}, observed {row.observed:.2f} (n={row.count})"
        lines.append(f"  predicted {row.low:.1f}–{row.high:.1f}: {means}")
    return "\n".join(lines)


# -- validate ----------------------------------------------------------------------------------------------------------


@click.command("validate")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@json_option
def validate(files: tuple[str, ...], as_json: bool) -> int:
    """Check files of spans (JSON lines, or OTLP/JSON): one line per fault; exits with 1 if there is any."""
    from agent_forge.traces.validate import validate_file

    faults = [(path, fault) for path in files for fault in validate_file(path)]
    if as_json:
        rows = [{"file": path, "line": f.line, "code": f.code, "message": f.message} for path, f in faults]
        json_out({"valid": not faults, "faults": rows})
    else:
        for path, fault in faults:
            echo(f"{path}:{fault}")
        echo(f"{len(faults)} fault{'s' * (len(faults) != 1)}" if faults else "no faults", err=True)
    return 1 if faults else 0


# -- collect -----------------------------------------------------------------------------------------------------------


@click.command("collect")
@click.argument("scenarios", required=False, metavar="[SCENARIOS]")
@click.option("--plan", "plans", multiple=True, type=click.Path(), metavar="FILE",
              help="Plan file to use as a scenario (repeatable).")  # fmt: skip
@click.option("--tools", metavar="MODULE", help="Module or file with the tools of the plans.")
@click.option("--agents", metavar="NAMES", help="Agents to do training exercises: all, or names separated by commas.")
@click.option("--model", "models", default="reference,random", show_default=True, metavar="NAMES",
              help="With --agents, the models that take turns: also copy, smollm2, a folder or URL#name.")  # fmt: skip
@roster_option
@click.option("--traces", "count", default=2000, show_default=True, help="Total number of traces.")
@click.option("--per-agent", default=0, show_default=True, help="Minimum number of traces per agent.")
@click.option("--name", default="collection", show_default=True, help="Name of the collection to start or continue.")
@seed_option
@click.option("--concurrency", default=4, show_default=True, help="Maximum number of concurrent scenarios.")
@home_option
@json_option
def collect(
    scenarios: str | None, plans: tuple[str, ...], tools: str | None, agents: str | None, models: str,
    roster: str | None, count: int, per_agent: int, name: str, seed: int, concurrency: int, home: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Run scenarios until there are enough traces of them.

    SCENARIOS is a module or a Python file with a list SCENARIOS of agent_forge.traces.collect.Scenario. With --agents,
    agents do exercises of their task families instead, and every trace is scored. A collection that was stopped
    continues from what the store holds. Failures are recorded like successes.
    """
    from agent_forge.terminal import ProgressDisplay
    from agent_forge.traces.collect import Target
    from agent_forge.traces.collect import collect as run
    from agent_forge.traces.recorder import Recorder

    work = [*(_load_scenarios(scenarios) if scenarios else ()), *_plan_scenarios(plans, tools)]
    if agents is not None and work:
        raise UsageError("--agents goes without scenarios and plans")
    target = Target(count, per_agent)
    total = max(count, per_agent * len({scenario.agent for scenario in work}))
    with open_store(home) as store, Recorder.from_settings(store) as recorder, ProgressDisplay() as display:

        def progress(state: Collection) -> None:
            reward = "" if state.mean_reward is None else f"mean reward {state.mean_reward:.2f}"
            display.update("collect", state.traces, total, unit="traces", detail=reward)

        options: dict[str, Any] = {"name": name, "seed": seed, "concurrency": concurrency, "progress": progress}
        if agents is not None:
            done = _collect_exercises(agents, models, roster, target, recorder, options)
        else:
            done = run(work, target, recorder, **options)
    if as_json:
        json_out({"traces": done.traces, "agents": done.agents, "added": done.added, "errors": done.errors,
                  "mean_reward": done.mean_reward})  # fmt: skip
        return
    reward = "nothing verified" if done.mean_reward is None else f"mean reward {done.mean_reward:.3f}"
    echo(f"{done.traces} traces in {name!r}, {done.added} new ({reward}, {done.errors} failed)")


def _collect_exercises(
    agents: str, models: str, roster: str | None, target: Target, recorder: Recorder, options: dict[str, Any]
) -> Collection:
    from agent_forge.agents.profiles import roster as profiles_of
    from agent_forge.cli.agents import chosen_agents
    from agent_forge.learning.exercises import Examinee, collect_exercises

    profiles = chosen_agents(agents, profiles_of(roster or "genesis"))
    examinees = [Examinee(model.strip()) for model in models.split(",")]
    return collect_exercises(profiles, examinees, target, recorder, **options)


def _load_scenarios(source: str) -> list[Scenario]:
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
        scenarios: list[Scenario] = list(module.SCENARIOS)
    except Exception as error:
        what = f"cannot be loaded: {type(error).__name__}: {error}"
        raise UsageError(what, where=source, fix="Define a list SCENARIOS in it") from error
    return scenarios


def _plan_scenarios(paths: tuple[str, ...], tools: str | None) -> Iterator[Scenario]:
    from pathlib import Path

    from agent_forge.agents.api import arun
    from agent_forge.plans import parse_plan
    from agent_forge.traces.collect import Scenario
    from agent_forge.traces.reward import Verification, exit_code

    for path in paths:
        plan = parse_plan(read_text(path))

        async def run(recorder: Any, seed: int, plan: Any = plan) -> Verification:
            result = await arun(plan, tools=tools, record=False, recorder=recorder)
            return exit_code(0 if result.ok else 1, f"the run ended as {result.state}")

        yield Scenario(Path(path).stem, Path(path).stem, run)


commands = (trajectory, stats, validate, collect)
