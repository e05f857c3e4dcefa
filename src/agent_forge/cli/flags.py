"""`agent-forge rollout flag`: feature flags."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import click

from agent_forge.cli._options import home_option, json_option
from agent_forge.cli._output import echo, json_out
from agent_forge.errors import UsageError

if TYPE_CHECKING:
    from agent_forge.rollout import Flags

environment_option = click.option(
    "--environment", metavar="NAME", help="Only in this environment, for example staging."
)


@click.group(name="flag")
def command() -> None:
    """Read and change feature flags. Definitions are in flags.yaml in the home folder."""


@command.command(name="ls")
@environment_option
@home_option
@json_option
def flag_ls(environment: str | None, home: str | None, as_json: bool) -> int:
    """List the flags, their values in the environment, and why they have them."""
    with closing(_flags(home, environment)) as flags:
        rows = []
        for name, each in flags.all().items():
            found = flags.evaluate(name)
            rows.append({"name": name, "type": each.type, "value": found.value, "reason": found.reason,
                         "killed": flags.is_killed(name), "description": each.description})  # fmt: skip
        if as_json:
            json_out({"environment": flags.environment, "flags": rows})
            return 0
        for row in rows:
            echo(f"{row['name']:24} {row['value']!s:8} {row['reason']:16} {row['description']}")
    return 0


@command.command(name="get")
@click.argument("name")
@click.option("--unit", help="The unit to evaluate it for.")
@click.option("--attribute", "attributes", multiple=True, metavar="KEY=VALUE", help="What rules match (repeatable).")
@environment_option
@home_option
@json_option
def flag_get(
    name: str, unit: str | None, attributes: tuple[str, ...], environment: str | None, home: str | None, as_json: bool
) -> int:
    """Evaluate flag NAME."""
    pairs = dict(text.partition("=")[::2] for text in attributes)
    with closing(_flags(home, environment)) as flags:
        found = flags.evaluate(name, unit=unit, **pairs)
    if found.reason == "ERROR":
        raise UsageError(found.why or f"there is no flag {name!r}", fix="`agent-forge rollout flag ls` lists them")
    if as_json:
        json_out({"name": name, "value": found.value, "reason": found.reason})
    else:
        echo(f"{found.value}  ({found.reason})")
    return 0


@command.command(name="set")
@click.argument("name")
@click.argument("value")
@environment_option
@home_option
@json_option
def flag_set(name: str, value: str, environment: str | None, home: str | None, as_json: bool) -> int:
    """Set flag NAME to VALUE, stronger than its rules, in all environments or one."""
    from agent_forge.rollout.flags import parse_value

    with closing(_flags(home, environment)) as flags:
        known = flags.all().get(name)
        if known is None:
            raise UsageError(f"there is no flag {name!r}", fix="Define it in flags.yaml in the home folder")
        flags.set(name, parse_value(value, known.type), environment=environment)
        return _flag_changed(flags, name, as_json)


def _flag_command(action: str, text: str) -> None:
    @click.argument("name")
    @home_option
    @json_option
    def call(name: str, home: str | None, as_json: bool) -> int:
        with closing(_flags(home, None)) as flags:
            getattr(flags, action)(name)
            return _flag_changed(flags, name, as_json)

    command.add_command(click.command(action, help=text)(call))


_flag_command("kill", "Give flag NAME its default everywhere, from the next request on.")
_flag_command("revive", "Take back a kill of flag NAME.")
_flag_command("unset", "Take back a value that was set for all environments.")


@command.command(name="audit")
@home_option
@json_option
def flag_audit(home: str | None, as_json: bool) -> int:
    """Show every change of a flag: when, who, what, before and after."""
    with closing(_flags(home, None)) as flags:
        rows = flags.audit()
    if as_json:
        json_out({"audit": rows})
        return 0
    for row in rows:
        echo(f"{row['at'][:19]}  {row['who']:12} {row['what']:24} {row['before']} → {row['after']}")
    return 0


def _flags(home: str | None, environment: str | None) -> Flags:
    from agent_forge.rollout import Flags

    return Flags(home, environment)


def _flag_changed(flags: Flags, name: str, as_json: bool) -> int:
    found = flags.evaluate(name)
    if as_json:
        json_out({"name": name, "value": found.value, "reason": found.reason, "killed": flags.is_killed(name)})
    else:
        echo(f"{name}  {found.value}  ({found.reason})")
    return 0
