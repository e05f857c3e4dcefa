"""`agent-forge rollout experiment`: A/B experiments."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from agent_forge.cli._options import home_option, json_option, open_store
from agent_forge.cli._output import echo, json_out


@click.group(name="experiment")
def command() -> None:
    """Compare two or more policies side by side: effects, intervals that hold at all times, guardrails."""


@command.command()
@click.argument("name")
@click.option("--variants", required=True, metavar="P[=W],…", help="Policies with weights, the control first.")
@click.option("--metric", default="success", show_default=True, help="The metric to decide by.")
@click.option(
    "--guardrails", default="tool_errors,latency,cost", show_default=True, help="Metrics that must not suffer."
)
@click.option("--alpha", type=click.FloatRange(0, 0.5, min_open=True, max_open=True), default=0.05, show_default=True,
              help="Probability that an interval of the metric is ever wrong.")  # fmt: skip
@home_option
@json_option
def create(
    name: str, variants: str, metric: str, guardrails: str, alpha: float, home: str | None, as_json: bool
) -> int:
    """Create experiment NAME. `agent-forge run … --unit U --rollout NAME` takes part in it."""
    from agent_forge.errors import UsageError
    from agent_forge.rollout import Experiment, Rollouts
    from agent_forge.rollout.experiments import create_experiment

    weights: dict[str, float] = {}
    for text in variants.split(","):
        policy, equals, weight = text.strip().partition("=")
        try:
            weights[policy] = float(weight) if equals else 1.0
        except ValueError as error:
            raise UsageError(f"{text!r} is not a variant", fix="Write for example rules or rules=3") from error
    names = tuple(text.strip() for text in guardrails.split(",") if text.strip())
    experiment = Experiment(name, weights, metric, names, alpha)
    with closing(Rollouts.open(home)) as rollouts:
        create_experiment(rollouts, experiment)
    if as_json:
        json_out({"name": name, "state": "running", "variants": weights, "metric": metric, "guardrails": list(names)})
    else:
        echo(f"{name}  running  {' against '.join(weights)} on {metric}")
    return 0


@command.command()
@home_option
@json_option
def ls(home: str | None, as_json: bool) -> int:
    """List the experiments, newest first."""
    from agent_forge.rollout import Rollouts
    from agent_forge.rollout.experiments import experiments

    with closing(Rollouts.open(home)) as rollouts:
        rows = [
            {"name": name, "state": state, "variants": dict(each.variants), "metric": each.metric}
            for name, (each, state) in experiments(rollouts).items()
        ]
    if as_json:
        json_out({"experiments": rows})
    else:
        for row in rows:
            echo(f"{row['name']:20} {row['state']:8} {' against '.join(row['variants'])} on {row['metric']}")
        if not rows:
            echo("there are no experiments yet", err=True)
    return 0


@command.command()
@click.argument("name")
@click.option("--svg", type=click.Path(dir_okay=False), metavar="FILE", help="Also draw the effects into FILE.")
@home_option
@json_option
def report(name: str, svg: str | None, home: str | None, as_json: bool) -> int:
    """Show what experiment NAME has found so far. Reading it often does no harm."""
    from agent_forge.errors import UsageError
    from agent_forge.rollout import Rollouts, TraceReadings, analyse
    from agent_forge.rollout.experiments import experiments, picture

    with closing(Rollouts.open(home)) as rollouts:
        found = experiments(rollouts).get(name)
    if found is None:
        raise UsageError(f"there is no experiment {name!r}", fix="`agent-forge rollout experiment ls` lists them")
    with open_store(home) as store:
        result = analyse(found[0], TraceReadings(store).exposed(name))
    if svg is not None:
        Path(svg).write_text(picture(result), encoding="utf-8")
    if as_json:
        json_out(result.to_json())
        return 0
    echo(f"{name}: {result.verdict}")
    echo("  units: " + ", ".join(f"{variant} {count}" for variant, count in result.units.items()))
    for effect in result.effects:
        adjusted = "" if effect.cuped is None else f", {effect.cuped:.0%} of the variance explained by the covariate"
        echo(
            f"  {effect.variant} {effect.metric}: {effect.mean:.4g} against {effect.control:.4g},"
            f" {effect.difference:+.4g} between {effect.lower:+.4g} and {effect.upper:+.4g}"
            f" ({effect.verdict}){adjusted}"
        )
    return 0


@command.command()
@click.argument("name")
@home_option
@json_option
def stop(name: str, home: str | None, as_json: bool) -> int:
    """Stop experiment NAME: everyone gets the current policy. Its report stays."""
    from agent_forge.rollout import Rollouts
    from agent_forge.rollout.experiments import stop_experiment

    with closing(Rollouts.open(home)) as rollouts:
        stop_experiment(rollouts, name)
    if as_json:
        json_out({"name": name, "state": "stopped"})
    else:
        echo(f"{name}  stopped")
    return 0
