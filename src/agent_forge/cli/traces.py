"""`agent-forge traces`: list, show, import and export what happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._app import home_option, json_option

if TYPE_CHECKING:
    from agent_forge.traces import Span, Store, Summary

FILTERS: dict[str, tuple[type, str]] = {
    "session": (str, "Of this session."),
    "agent": (str, "In which this agent acted."),
    "model": (str, "In which this model was called."),
    "kind": (str, "That hold a span of this kind."),
    "name": (str, "That hold a span of this name."),
    "category": (str, "That hold a span of this task category."),
    "status": (str, "That ended so: ok, error or unset."),
    "since": (str, "Started at or after (2026-01-31, 2026-01-31T12:00Z)."),
    "until": (str, "Started before."),
    "min-reward": (float, "With at least this reward."),
    "max-reward": (float, "With at most this reward."),
    "text": (str, "That hold this text."),
}


WIDTH = 240  # of tables and trees: what is cut from an id cannot be used. A narrow terminal wraps the lines.
DEEPEST = 16  # spans that lie deeper are not indented any further


def filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose traces."""
    for name, (kind, help_text) in reversed(FILTERS.items()):
        function = click.option(f"--{name}", type=kind, help=help_text)(function)
    return function


def open_store(home: str | None) -> Store:
    """The store of the setting `store` or of a home folder, or of a postgresql:// URL given in its place."""
    from agent_forge.settings import trace_store
    from agent_forge.traces import Store

    return Store.open(trace_store(home))


@click.group()
def command() -> None:
    """What happened: list, show, analyse, import and export traces."""


@command.command("ls")
@filter_options
@click.option("--limit", default=50, show_default=True, help="At most so many.")
@click.option("--after", help="Go on after the page whose `next` this is.")
@home_option
@json_option
def ls(home: str | None, as_json: bool, limit: int, after: str | None, **filters: Any) -> None:
    """List traces, the newest first."""
    with open_store(home) as store:
        page = store.traces(limit=limit, after=after, **filters)
    if as_json:
        from agent_forge.cli._app import json_out

        json_out({"traces": [_summary(trace) for trace in page], "next": page.next})
        return
    _table(page.items)
    if page.next:
        click.echo(f"there are more: --after {page.next}", err=True)


def _summary(trace: Summary) -> dict[str, Any]:
    found = asdict(trace)
    found["duration_s"] = None if trace.end_ns is None else (trace.end_ns - trace.start_ns) / 1e9
    found["started"] = _moment(trace.start_ns)
    return found


def _moment(ns: int) -> str:
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
        called = trace.name if trace.name is None or len(trace.name) <= 60 else trace.name[:59] + "…"
        cells = (trace.trace_id[:12], _moment(trace.start_ns)[:19], called, trace.agent, trace.status, trace.spans)
        row = [*cells, seconds, sum(used) if used else "", reward]
        table.add_row(*("" if cell is None else _plain(str(cell)) for cell in row))
    Console(soft_wrap=True, width=WIDTH).print(table)


def _plain(text: str) -> str:
    """Text of other programs without control characters and rich's markup."""
    from rich.markup import escape

    return escape("".join(letter if letter.isprintable() else "�" for letter in text))


@command.command("show")
@click.argument("trace")
@home_option
@json_option
def show(trace: str, home: str | None, as_json: bool) -> None:
    """Show the spans of a trace as a tree. TRACE may be the beginning of an id."""
    with open_store(home) as store:
        spans = store.trace(_whole_id(store, trace))
    if as_json:
        from agent_forge.cli._app import json_out

        json_out({"trace_id": spans[0].trace_id, "spans": [_span(span) for span in spans]})
        return
    _tree(spans)


def _whole_id(store: Store, beginning: str) -> str:
    from agent_forge.errors import UsageError

    found = store.trace_ids(beginning.lower(), limit=2)
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} or more traces begin with {beginning!r}" if found else f"there is no trace {beginning!r}"
    raise UsageError(what, where=store.where, fix="`agent-forge traces ls` lists them")


def _span(span: Span) -> dict[str, Any]:
    import json

    from agent_forge.traces.values import to_json

    found: dict[str, Any] = json.loads(to_json(span.to_dict()))
    found["duration_s"] = span.duration_s
    return found


def _tree(spans: list[Span]) -> None:
    from rich.console import Console
    from rich.tree import Tree

    known = {span.span_id for span in spans}
    below: dict[str | None, list[Span]] = {}
    for span in spans:
        below.setdefault(span.parent_id if span.parent_id in known else None, []).append(span)
    tree = Tree(f"trace {spans[0].trace_id}")
    shown: set[str] = set()
    for root in [*below.pop(None, []), *spans]:  # where parents form a circle, none of them is a root
        waiting = [(tree, root, 0)]
        while waiting:
            branch, span, depth = waiting.pop()
            if span.span_id not in shown:
                shown.add(span.span_id)
                here = branch.add(_line(span) if depth <= DEEPEST else f"({depth} deep) {_line(span)}")
                inside = here if depth < DEEPEST else branch
                waiting += [(inside, child, depth + 1) for child in reversed(below.get(span.span_id, []))]
    Console(soft_wrap=True, width=WIDTH).print(tree)


def _line(span: Span) -> str:
    seconds = "running" if span.duration_s is None else f"{span.duration_s:.3f} s"
    parts = [f"[bold]{_plain(span.name)}[/bold]", span.kind, seconds]
    if span.model:
        parts.append(_plain(span.model))
    if span.input_tokens is not None or span.output_tokens is not None:
        parts.append(f"{span.input_tokens or 0}+{span.output_tokens or 0} tokens")
    if span.reward is not None:
        parts.append(f"reward {span.reward:.2f}")
    if span.status == "error":
        parts.append(f"[red]{_plain(span.error or 'error')}[/red]")
    return " · ".join(parts)


@command.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@home_option
@json_option
def import_(files: tuple[str, ...], home: str | None, as_json: bool) -> None:
    """Store the spans of FILES: OTLP/JSON (one request, or one a line) or our own JSON lines, gzipped or not.

    A file that cannot be read whole is refused, and nothing of it is stored. Importing a file again adds nothing.
    """
    from agent_forge.traces import import_file

    found = added = 0
    with open_store(home) as store:
        for path in files:
            in_file, new = import_file(store, path)
            found, added = found + in_file, added + new
        where = store.where
    if as_json:
        from agent_forge.cli._app import json_out

        json_out({"spans": found, "added": added, "store": where})
    else:
        click.echo(f"{added} of {found} spans added to {where}", err=True)


@command.command("export")
@click.argument("out", type=click.Path())
@click.option("--format", "format_", default="otlp", show_default=True, metavar="NAME",
              help="otlp, jsonl, parquet, messages, sharegpt, dpo or agent-lightning.")  # fmt: skip
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
        from agent_forge.cli._app import json_out

        json_out({"records": count, "out": out, "format": format_})
    else:
        click.echo(f"{count} records written to {out}", err=True)


@command.command("vacuum")
@click.option("--before", help="First delete the traces that ended before (2026-01-31, 2026-01-31T12:00Z).")
@home_option
@json_option
def vacuum(before: str | None, home: str | None, as_json: bool) -> None:
    """Give the room of deleted traces back to the disk, and delete old ones first if asked."""
    with open_store(home) as store:
        deleted = store.delete(before=before) if before else 0
        was, now = store.vacuum()
    if as_json:
        from agent_forge.cli._app import json_out

        json_out({"deleted": deleted, "bytes_before": was, "bytes_after": now})
    else:
        click.echo(f"{deleted} spans deleted; {was:,} → {now:,} bytes", err=True)


def _understand() -> None:
    """Adds trajectory, stats, validate and collect, which live in a file of their own."""
    from agent_forge.cli.traces_understand import commands

    for one in commands:
        command.add_command(one)


_understand()
