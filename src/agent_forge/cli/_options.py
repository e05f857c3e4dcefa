"""The vocabulary of the command line: options that several commands share, and names that options had before.

| option | meaning everywhere |
|---|---|
| `--home`, `--json`, `--seed`, `--set` | home folder, one JSON document, random seed, a value of the configuration |
| `--model`, `--planner`, `--tools`, `--agent` | what plans and works |
| `--mask LEVEL`, `--sample SHARE` | what is masked in traces, and how many of them are recorded |
| `--plan FILE` | a plan to read instead of making one |
| `--out FILE`, `--svg FILE`, `--html FILE` | where something is written |
| `--limit N`, `--after CURSOR` | paging |
| `--batch`, `--length`, `--steps`, `--eval-tokens` | rows per step, tokens per row, training steps, held-out tokens |
| `--max-ppl-increase SHARE` | how much worse a model may become |
"""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from agent_forge.traces import Span, Store

F = TypeVar("F", bound=Callable[..., Any])
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


class RenamedOption(click.Option):
    """An option that also answers to its former names, which help, completion and errors do not mention."""

    def __init__(self, *arguments: Any, former: tuple[str, ...] = (), **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.former = former

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        shown, self.opts = self.opts, [*self.opts, *self.former]
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = shown


def renamed(*names: str, former: str, **attributes: Any) -> Callable[[F], F]:
    """`click.option` for an option that was called `former` before (several names: separated by spaces)."""
    return click.option(*names, cls=RenamedOption, former=tuple(former.split()), **attributes)


def former_command(group: click.Group, name: str, command: click.Command) -> None:
    """Keeps the former name of a command working, unlisted."""
    hidden = copy.copy(command)
    hidden.hidden = True
    group.add_command(hidden, name)


def _one_request(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> str | None:
    if len(words) > 1:
        again = f"{ctx.command_path} {shlex.quote(' '.join(words))}"
        raise click.UsageError(f"a request of several words needs quotes: {again}", ctx=ctx)
    return words[0] if words else None


request_argument = click.argument("request", nargs=-1, metavar="[REQUEST]", callback=_one_request)


def size(text: str) -> int:
    """A size in bytes; kB and MB are powers of ten, KiB and MiB of two.

    >>> size("6MB"), size("1.5 MiB")
    (6000000, 1572864)
    """
    match = re.fullmatch(r"([0-9]*\.[0-9]+|[0-9]+)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].lower() not in UNITS or float(match[1]) <= 0:
        raise click.BadParameter(f"{text!r} is not a size. Write for example 6MB or 800kB.")
    return int(float(match[1]) * UNITS[match[2].lower()])


def share(text: str) -> float:
    """A share, in per cent or as a number.

    >>> share("5%"), share("0.05")
    (0.05, 0.05)
    """
    match = re.fullmatch(r"([0-9]*\.[0-9]+|[0-9]+)\s*(%?)", text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is not a share. Write for example 5%.")
    if not match[2] and float(match[1]) > 1:  # 5 is meant as 5 % more often than as 500 %
        raise click.BadParameter(f"{text!r} is ambiguous. Write {match[1]}% or {100 * float(match[1]):g}%.")
    return float(match[1]) / (100 if match[2] else 1)


def policy_folder(context: click.Context, parameter: click.Parameter, model: str | None) -> str | None:
    """The folder of a registered policy that AGENT@VERSION names; any other model as it is."""
    if model is None or not re.fullmatch(r"[\w.-]+@[0-9]+", model):
        return model
    from agent_forge.forge.registry import Registry

    home = context.params.get("home")
    return str(Registry(None if home is not None and "://" in home else home).find(model).path)


home_option = click.option(
    "--home", envvar="AGENT_FORGE_HOME", metavar="DIR", is_eager=True,
    help="Home folder for traces, journals and models.",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
seed_option = click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed.")
data_option = click.option(
    "--data", multiple=True, metavar="PATH",
    help="Your text (repeatable): a JSONL or text file, or a folder of them [default: bundled text].",
)  # fmt: skip
model_option = click.option(
    "--model",
    envvar="AGENT_FORGE_MODEL",
    metavar="M",
    callback=policy_folder,
    help="http://host:port/v1#name, a model folder, a policy (qa@1), or smollm2.",
)
planner_option = click.option(
    "--planner",
    envvar="AGENT_FORGE_PLANNER",
    metavar="P",
    help="rules, forged, model, local, or the folder of a trained planner.",
)
strategy_option = click.option(
    "--strategy",
    type=click.Choice(["auto", "graph", "react"]),
    default="auto",
    show_default=True,
    help="graph: plan and run in parallel; react: an agent, one call per turn; auto: by the request.",
)
agent_option = click.option("--agent", metavar="NAME|FILE", help="Agent profile: a bundled name or a YAML file.")
roster_option = click.option("--roster", type=click.Choice(["default", "genesis"]), help="Named set of bundled agents.")
tools_option = click.option(
    "--tools",
    metavar="FILE",
    help="Module or file with @tool functions; to plan, also JSON schemas [default: the built-in tools].",
)

workers_option = click.option(
    "--workers", metavar="WHERE", help="Where the work is done: processes:N, ray://local, ray://host:port."
)
mask_option = click.option(
    "--mask", envvar="AGENT_FORGE_MASK", type=click.Choice(["secrets", "pii", "none"]),
    help="What to mask in traces before they are written; pii masks secrets too [default: secrets].",
)  # fmt: skip
sample_option = click.option(
    "--sample", envvar="AGENT_FORGE_SAMPLE", type=click.FloatRange(0, 1), metavar="SHARE",
    help="Share of traces to record [default: 1].",
)  # fmt: skip


def sources_of(paths: tuple[str, ...]) -> dict[str, Any]:
    """`--data` as the setting `sources`."""
    return {"sources": {path: {"path": path} for path in paths}} if paths else {}


def open_store(home: str | None) -> Store:
    """The trace store of the setting `store`, of a home folder, or of a postgresql:// URL in its place."""
    from agent_forge.settings import trace_store
    from agent_forge.traces import Store

    return Store.open(trace_store(home))


def read_trace(store: Store, prefix: str) -> list[Span]:
    """The spans of the one trace whose id begins so. Raises UsageError where there is none, or more than one."""
    from agent_forge.errors import UsageError

    ids = store.trace_ids(prefix.lower(), limit=2)
    if len(ids) != 1:
        what = f"several traces begin with {prefix!r}" if ids else f"there is no trace {prefix!r}"
        raise UsageError(what, where=store.where, fix="`agent-forge traces ls` lists them")
    return store.trace(ids[0])
