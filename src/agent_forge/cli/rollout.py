"""`agent-forge rollout`: staged rollouts, flags and experiments."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._options import home_option, json_option, open_store
from agent_forge.cli._output import echo, json_out
from agent_forge.cli._settings import read_settings, settings_options
from agent_forge.cli.experiments import command as experiments
from agent_forge.cli.flags import command as flags
from agent_forge.rollout.metrics import Guardrails

if TYPE_CHECKING:
    from pathlib import Path

    from agent_forge.rollout import Rollouts

now_option = click.option("--now", metavar="TIME", help="Act as if it were TIME, ISO 8601 [default: the clock].")
why_option = click.option("--why", default="by hand", show_default=True, help="Reason to write into the log.")


@click.group()
def command() -> None:
    """Release a policy in stages that pull themselves back; flags; A/B experiments.

    A policy is a planner (rules, forged, model, local), a strategy (graph, react), the URL of a model, or a model
    folder or digest of the registry.
    """


command.add_command(flags)
command.add_command(experiments)


@command.command()
@click.argument("name")
@click.option("--candidate", required=True, metavar="P", help="The policy to release.")
@click.option("--baseline", default="current", show_default=True, metavar="P", help="The policy to compare it with.")
@click.option("--stages", default="10,50,100", show_default=True, help="Shares of the candidate, in per cent.")
@settings_options(Guardrails)
@now_option
@home_option
@json_option
def create(
    name: str,
    candidate: str,
    baseline: str,
    stages: str,
    now: str | None,
    home: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Create rollout NAME and give the candidate its first share.

    Nothing further happens by itself: `agent-forge rollout step NAME`, run by a scheduler, looks at the traces and
    promotes or rolls back.
    """
    from agent_forge.agents.policies import why_not
    from agent_forge.rollout.state import parse_stages

    shares, rails = parse_stages(stages), read_settings(Guardrails, options)
    with closing(_rollouts(home)) as rollouts:
        rollouts.create(
            name,
            candidate=candidate,
            baseline=baseline,
            stages=shares,
            guardrails=rails,
            folder_of=lambda policy: registered_folder(policy, home),
            now_s=_seconds(now),
        )
        for policy in (candidate, baseline):  # another program may have policies of its own
            problem = None if policy == "current" or registered_folder(policy, home) else why_not(policy, None)
            if problem is not None:
                echo(f"note: for `agent-forge run`, {problem}", err=True)
        return _show(rollouts, name, as_json)


@command.command()
@click.argument("name")
@home_option
@json_option
def status(name: str, home: str | None, as_json: bool) -> int:
    """Show rollout NAME and every decision about it, with its figures."""
    with closing(_rollouts(home)) as rollouts:
        return _show(rollouts, name, as_json)


@command.command()
@click.argument("name")
@now_option
@home_option
@json_option
def step(name: str, now: str | None, home: str | None, as_json: bool) -> int:
    """Look at the traces of both arms, and hold, promote or roll back rollout NAME.

    Safe to repeat and to run twice at once. Exits with 0 whatever was decided.
    """
    from agent_forge.rollout import TraceReadings

    with closing(_rollouts(home)) as rollouts, open_store(home) as store:
        rollouts.step(name, TraceReadings(store), now_s=_seconds(now))
        return _show(rollouts, name, as_json, last=True)


def _by_hand(action: str, text: str) -> click.Command:
    @click.argument("name")
    @why_option
    @now_option
    @home_option
    @json_option
    def call(name: str, why: str, now: str | None, home: str | None, as_json: bool) -> int:
        with closing(_rollouts(home)) as rollouts:
            getattr(rollouts, action)(name, why, now_s=_seconds(now))
            return _show(rollouts, name, as_json, last=True)

    return click.command(action, help=text)(call)


for _command in (
    _by_hand("promote", "Move rollout NAME to its next stage, whatever the evidence says."),
    _by_hand("pause", "Keep the share of rollout NAME where it is. It still comes back when it must."),
    _by_hand("resume", "Let a paused rollout NAME go on."),
    _by_hand("rollback", "Give everyone the baseline of rollout NAME, whatever its state."),
):
    command.add_command(_command)


@command.command()
@home_option
@json_option
def ls(home: str | None, as_json: bool) -> int:
    """List the rollouts, newest first, and the current policy."""
    from agent_forge.errors import StoreError

    rows = []
    with closing(_rollouts(home)) as rollouts:
        for name in rollouts.names():
            try:
                document = rollouts.document(name)
                del document["decisions"]
            except StoreError as error:
                document = {"name": name, "state": "damaged", "error": str(error)}
            rows.append(document)
        policies = rollouts.policies()
    if as_json:
        json_out({"rollouts": rows, "policies": policies})
        return 0
    for row in rows:
        what = row.get("error") or f"{row['share']:4.0%}  {row['candidate']} against {row['baseline']}"
        echo(f"{row['name']:20} {row['state']:12} {what}")
    if not rows:
        echo("there are no rollouts yet", err=True)
    if policies["current"] is not None:
        echo(f"current policy: {policies['current']} (before: {policies['previous']})", err=True)
    return 0


@command.command()
@click.argument("unit")
@click.option("--rollout", metavar="NAME", help="The rollout to ask [default: the latest active one].")
@home_option
@json_option
def assign(unit: str, rollout: str | None, home: str | None, as_json: bool) -> int:
    """Show which policy serves UNIT: a user, a session, a request."""
    from dataclasses import asdict

    from agent_forge.rollout import bucket, policy_for

    assignment = policy_for(unit, rollout=rollout, home=home)
    place = None if assignment.rollout is None else bucket(assignment.rollout, unit)
    if as_json:
        json_out({**asdict(assignment), "bucket": place})
    else:
        arm = "" if place is None else f"  ({assignment.arm} of {assignment.rollout}, bucket {place:.4f})"
        echo(f"{assignment.policy or 'the default'}{arm}{f'  {assignment.why}' if assignment.why else ''}")
    return 0


def registered_folder(policy: str, home: str | None) -> Path | None:
    """The folder of a registered model whose digest begins so, or whose name it is; it is pinned, for a rollback.
    None for any other name."""
    from agent_forge.errors import UsageError
    from agent_forge.home import home as home_folder

    folder = home_folder(None if home is not None and "://" in home else home)
    if (len(policy) < 6 and "@" not in policy) or not (folder / "registry.db").exists():
        return None
    from agent_forge.forge.registry import Registry

    registry = Registry(folder)
    try:
        entry = registry.find(policy)
    except UsageError:
        return None
    registry.pin(entry.digest)
    return entry.path


def _rollouts(home: str | None) -> Rollouts:
    from agent_forge.rollout import Rollouts

    return Rollouts.open(home)


def _seconds(now: str | None) -> float | None:
    if now is None:
        return None
    from agent_forge.traces.queries import to_ns

    return to_ns(now) / 1e9


def _show(rollouts: Rollouts, name: str, as_json: bool, *, last: bool = False) -> int:
    document = rollouts.document(name)
    if as_json:
        json_out(document)
        return 0
    share = f"stage {document['stage'] + 1} of {len(document['stages'])}, {document['share']:.0%}"
    echo(f"{name}  {document['state'].replace('_', ' ')}  {share} {document['candidate']}, else {document['baseline']}")
    for decision in document["decisions"][-1:] if last else document["decisions"]:
        echo(f"  {decision['at'][:19]}  {decision['action']:8}  {decision['why']}")
    return 0
