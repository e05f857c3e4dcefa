"""`agent-forge traces`: lists, shows, scores, imports and exports traces."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli import traces_analysis
from agent_forge.cli._options import home_option, json_option, open_store, read_trace
from agent_forge.cli._output import cell, echo, json_out

if TYPE_CHECKING:
    from agent_forge.traces import Span, Summary

FILTERS: dict[str, tuple[type, str]] = {
    "session": (str, "Only traces of this session."),
    "agent": (str, "Only traces with this agent."),
    "model": (str, "Only traces with a call of this model."),
    "kind": (str, "Only traces with a span of this kind."),
    "name": (str, "Only traces with a span of this name."),
    "category": (str, "Only traces with a span of this task category."),
    "status": (str, "Only traces with this status: ok, error or unset."),
    "since": (str, "Only traces started at or after this time (2026-01-31, 2026-01-31T12:00Z)."),
    "until": (str, "Only traces started before this time."),
    "min-reward": (float, "Only traces with at least this reward."),
    "max-reward": (float, "Only traces with at most this reward."),
    "text": (str, "Only traces that contain this text."),
}

WIDTH = 240  # of tables and trees: half an id is of no use. A narrow terminal wraps the lines.
DEEPEST = 16  # deeper spans are not indented further


def filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that select traces."""
    for name, (kind, help_text) in reversed(FILTERS.items()):
        function = click.option(f"--{name}", type=kind, help=help_text)(function)
    return function


@click.group()
def command() -> None:
    """List, show, score, analyse, import and export traces."""


for _command in traces_analysis.commands:
    command.add_command(_command)


@command.command("ls")
@filter_options
@click.option("--limit", default=50, show_default=True, help="Maximum number of traces.")
@click.option("--after", help="Cursor: the `next` value of the previous page.")
@home_option
@json_option
def ls(home: str | None, as_json: bool, limit: int, after: str | None, **filters: Any) -> None:
    """List traces, newest first."""
    with open_store(home) as store:
        page = store.traces(limit=limit, after=after, **filters)
    if as_json:
        json_out({"traces": [_summary(trace) for trace in page], "next": page.next})
        return
    if page.items:
        _table(page.items)
    else:
        echo("there are no such traces" if any(filters.values()) or after else "there are no traces yet", err=True)
    if page.next:
        echo(f"for more, add --after {page.next}", err=True)


def _summary(trace: Summary) -> dict[str, Any]:
    duration_s = None if trace.end_ns is None else (trace.end_ns - trace.start_ns) / 1e9
    return {**asdict(trace), "duration_s": duration_s, "started": _time(trace.start_ns)}


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _table(traces: list[Summary]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("trace", "started", "name", "agent", "status", "spans", "seconds", "tokens", "reward"):
        table.add_column(name, justify="right" if name in ("spans", "seconds", "tokens", "reward") else "left")
    for trace in traces:
        seconds = "" if trace.end_ns is None else f"{(trace.end_ns - trace.start_ns) / 1e9:.3f}"
        used = [count for count in (trace.input_tokens, trace.output_tokens) if count is not None]
        reward = "" if trace.reward is None else f"{trace.reward:.2f}"
        title = trace.name if trace.name is None or len(trace.name) <= 60 else trace.name[:59] + "…"
        identity = (trace.trace_id[:12], _time(trace.start_ns)[:19], title, trace.agent, trace.status, trace.spans)
        table.add_row(*map(cell, (*identity, seconds, sum(used) if used else "", reward)))
    Console(soft_wrap=True, width=WIDTH).print(table)


@command.command("show")
@click.argument("trace")
@home_option
@json_option
def show(trace: str, home: str | None, as_json: bool) -> None:
    """Show the spans of TRACE, an id or its beginning, as a tree."""
    from agent_forge.traces.values import to_json

    with open_store(home) as store:
        spans = read_trace(store, trace)
    if as_json:
        rows = [{**json.loads(to_json(span.to_dict())), "duration_s": span.duration_s} for span in spans]
        json_out({"trace_id": spans[0].trace_id, "spans": rows})
    else:
        _tree(spans)


def _tree(spans: list[Span]) -> None:
    from rich.console import Console
    from rich.tree import Tree

    ids = {span.span_id for span in spans}
    children: dict[str | None, list[Span]] = {}
    for span in spans:
        children.setdefault(span.parent_id if span.parent_id in ids else None, []).append(span)
    tree = Tree(f"trace {spans[0].trace_id}")
    shown: set[str] = set()
    for root in [*children.pop(None, []), *spans]:  # where parents form a cycle, none of them is a root
        stack = [(tree, root, 0)]
        while stack:
            branch, span, depth = stack.pop()
            if span.span_id not in shown:
                shown.add(span.span_id)
                node = branch.add(_line(span) if depth <= DEEPEST else f"({depth} deep) {_line(span)}")
                inside = node if depth < DEEPEST else branch
                stack += [(inside, child, depth + 1) for child in reversed(children.get(span.span_id, []))]
    Console(soft_wrap=True, width=WIDTH).print(tree)


def _line(span: Span) -> str:
    from agent_forge.traces.scores import JUDGE

    seconds = "running" if span.duration_s is None else f"{span.duration_s:.3f} s"
    parts = [f"[bold]{cell(span.name)}[/bold]", cell(span.kind), seconds]
    if span.model:
        parts.append(cell(span.model))
    if span.input_tokens is not None or span.output_tokens is not None:
        parts.append(f"{span.input_tokens or 0}+{span.output_tokens or 0} tokens")
    if span.reward is not None:
        judge = span.attributes.get(JUDGE)
        parts.append(f"reward {span.reward:.2f}{f' by {cell(judge)}' if judge else ''}")
    if span.status == "error":
        parts.append(f"[red]{cell(span.error or 'error')}[/red]")
    return " · ".join(parts)


@command.command("reward")
@click.argument("trace")
@click.argument("value", type=float, required=False)
@click.option("--profile", metavar="NAME|FILE", help="Score by a reward profile (an agent's name) instead of VALUE.")
@click.option(
    "--span", "span_id", metavar="S", help="Judge this span instead of the whole trace: an id or its beginning."
)
@click.option("--component", "components", multiple=True, metavar="NAME=VALUE",
              help="Aspect of the judgement, from 0 to 1 (repeatable).")  # fmt: skip
@click.option("--by", default="user", show_default=True, metavar="WHO", help="Name of the judge.")
@click.option("--comment", metavar="TEXT", help="Reason for the score.")
@home_option
@json_option
def reward(
    trace: str,
    value: float | None,
    profile: str | None,
    span_id: str | None,
    components: tuple[str, ...],
    by: str,
    comment: str | None,
    home: str | None,
    as_json: bool,
) -> None:
    """Score TRACE, an id or its beginning, with VALUE from 0 (bad) to 1 (good), or by a reward profile.

    A profile scores traces of exercises: those of `agents eval` and `traces collect --agents`. Totals of
    `plus-minus-one`, from -1 to 1, are moved onto the scale from 0 to 1.
    Scores of several judges are kept apart, and their mean is the reward of the trace. A later score of the same judge
    replaces the earlier one. The agents that acted get their share of the credit: `agent-forge traces stats`.
    """
    from agent_forge.traces.scores import add_score, score_document

    if (value is None) == (profile is None):
        raise click.UsageError("give either VALUE or --profile NAME")
    parts = dict(_component(text) for text in components)
    with open_store(home) as store:
        spans = read_trace(store, trace)
        if profile is not None:
            from agent_forge.rewards import score_trace

            value, parts, why = score_trace(spans, profile).judgement()
            by, comment = f"reward {profile}", comment or why or None
        assert value is not None
        span = add_score(store, spans, value, span_id=span_id, by=by, components=parts, comment=comment)
        document = score_document(store, span)
    if as_json:
        json_out(document)
        return
    mean = "" if document["reward"] is None else f"; the reward of the trace is {document['reward']:.3g}"
    echo(f"{document['judge']} gave {value:g} to {span.parent_id}{mean}", err=True)
    for agent, credit in document["credit"].items():
        echo(f"  {agent}: credit {credit:.3g}", err=True)


def _component(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    try:
        if not equals or not name.strip():
            raise ValueError
        return name.strip(), float(value)
    except ValueError:
        raise click.BadParameter(f"--component {text!r} is not of the form NAME=VALUE, such as style=0.5") from None


@command.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@home_option
@json_option
def import_(files: tuple[str, ...], home: str | None, as_json: bool) -> None:
    """Store the spans of FILES: OTLP/JSON (one request, or one per line), our own JSON lines, trajectory records or
    trace logs, gzipped or not.

    A file that cannot be read completely is refused as a whole. Importing a file again adds nothing.
    """
    from agent_forge.traces import import_file

    with open_store(home) as store:
        counts = [import_file(store, path) for path in files]
        where = store.where
    total, added = (sum(column) for column in zip(*counts, strict=True))
    if as_json:
        json_out({"spans": total, "added": added, "store": where})
    else:
        echo(f"{added} of {total} spans added to {where}", err=True)


@command.command("export")
@click.argument("out", type=click.Path())
@click.option("--format", "format_", default="otlp", show_default=True, metavar="NAME",
              help="otlp, jsonl, parquet, trajectory, trace-log, messages, sharegpt, dpo, agent-lightning, "
              "or turns.")  # fmt: skip
@filter_options
@click.option("--json-body", is_flag=True, help="Send OTLP as JSON rather than protobuf (OUT is a URL).")
@home_option
@json_option
def export(out: str, format_: str, json_body: bool, home: str | None, as_json: bool, **filters: Any) -> None:
    """Write traces to the file OUT, or send them to an OTLP endpoint (OUT is an http:// or https:// URL)."""
    from agent_forge.traces import export_traces, send_otlp

    with open_store(home) as store:
        traces = store.each_trace(**filters)
        if out.startswith(("http://", "https://")):
            count = send_otlp(traces, out, protobuf=not json_body)
        else:
            count = export_traces(traces, format_, out)
    if as_json:
        json_out({"records": count, "out": out, "format": format_})
    else:
        fits = "" if count else f": no trace here has what {format_!r} takes; runs without a model have no messages"
        echo(f"{count} record{'s' * (count != 1)} written to {out}{fits}", err=True)


@command.command("vacuum")
@click.option("--before", help="First delete the traces that ended before this time (2026-01-31, 2026-01-31T12:00Z).")
@home_option
@json_option
def vacuum(before: str | None, home: str | None, as_json: bool) -> None:
    """Return the space of deleted traces to the disk; with --before, delete old ones first."""
    with open_store(home) as store:
        deleted = store.delete(before=before) if before else 0
        was, now = store.vacuum()
    if as_json:
        json_out({"deleted": deleted, "bytes_before": was, "bytes_after": now})
    else:
        echo(f"{deleted} spans deleted; {was:,} → {now:,} bytes", err=True)
