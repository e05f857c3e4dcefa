"""`agent-forge data`: scrub, deduplicate, balance, audit, load and fetch training data."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._app import home_option, json_option, json_out
from agent_forge.errors import UsageError

if TYPE_CHECKING:
    from agent_forge.curation.scrub import ScrubReport

_TARGET = "easy=0.3,medium=0.45,hard=0.25"


@click.group()
def command() -> None:
    """Training data: scrub, deduplicate, balance, audit."""


class _Interrupts:
    """Ctrl-C and SIGTERM end a scrub the same way, so that temporary files are removed.

    A signal that raises while processes are forked or futures handed over can leave those broken, or be swallowed. So
    with several processes the first one is only remembered, and the next finished batch raises it.
    """

    def __init__(self, at_once: bool) -> None:
        self.at_once = at_once
        self.seen = False

    def __call__(self, _signal: int, _frame: object) -> None:
        again, self.seen = self.seen, True
        if self.at_once or again:
            raise KeyboardInterrupt

    def check(self) -> None:
        if self.seen:
            raise KeyboardInterrupt

    @contextmanager
    def caught(self) -> Iterator[None]:
        previous = {number: signal.signal(number, self) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _progress(interrupts: _Interrupts, quiet: bool) -> Callable[[ScrubReport], None]:
    """Rows so far and their rate, on one line of a terminal; elsewhere a line every ten seconds."""
    start = last = time.monotonic()
    live = sys.stderr.isatty()

    def show(report: ScrubReport) -> None:
        nonlocal last
        interrupts.check()
        now = time.monotonic()
        if not quiet and now - last > (0.2 if live else 10):
            last = now
            line = f"{report.rows:,} rows, {report.rows / (now - start):,.0f} rows/s, {report.changed:,} changed"
            click.echo(f"\r{line}  " if live else line, nl=not live, err=True)

    return show


def _names(value: str | None) -> tuple[str, ...] | None:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if value else None


@command.command()
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@click.option("--action", default="placeholder", help="placeholder, surrogate, hash or drop.", show_default=True)
@click.option("--key", envvar="AGENT_FORGE_SCRUB_KEY", help="The key of --action hash (better in the environment).")
@click.option("--fields", help="Only these fields, as in messages.content,task; all strings without it.")
@click.option("--types", help="Only these types, as in EMAIL,PHONE.")
@click.option(
    "--reject", metavar="FILE", help="Lines that are not JSON go here; without it the first one stops the run."
)
@click.option("--ner", metavar="MODEL", help="An installed spaCy pipeline (name or folder) that finds names.")
@click.option("--workers", type=click.IntRange(1), help="Processes; as many as cores for large files.")
@json_option
def scrub(
    source: str,
    target: str,
    action: str,
    key: str | None,
    fields: str | None,
    types: str | None,
    reject: str | None,
    ner: str | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Write IN without personal data and secrets to OUT (.jsonl, .gz, .zst). IN is never touched."""
    from agent_forge.curation.lines import require_regular
    from agent_forge.curation.replace import Scrubber
    from agent_forge.curation.scrub import default_workers, scrub_file

    require_regular(source)
    finder = None
    if ner:
        from agent_forge.curation.pii.names import load_names

        finder = load_names(ner)
    scrubber = Scrubber(action, key.encode() if key else None, _types(types), finder)
    processes = workers or default_workers(source)
    interrupts = _Interrupts(at_once=processes == 1 or finder is not None)
    with interrupts.caught():
        report = scrub_file(
            source,
            target,
            scrubber=scrubber,
            fields=_names(fields),
            reject=reject,
            workers=processes,
            on_batch=_progress(interrupts, as_json),
        )
    if as_json:
        json_out(report.as_dict())
        return
    _talk_about_scrub(report.as_dict(), target)


def _types(text: str | None) -> frozenset[str] | None:
    from agent_forge.curation.pii import TYPES

    names = _names(text.upper()) if text else None
    unknown = set(names or ()) - set(TYPES)
    if unknown:
        raise UsageError(f"unknown type '{min(unknown)}'", where="--types", fix=f"some of {', '.join(TYPES)}")
    return frozenset(names) if names else None


def _talk_about_scrub(report: dict[str, Any], target: str) -> None:
    for kind, count in report["replaced"].items():
        reserved = report["reserved"].get(kind, 0)
        click.echo(f"{kind:16s} {count:8,}" + (f"   {reserved:,} of them reserved test values" if reserved else ""))
    click.echo(
        f"{report['rows']:,} rows, {report['changed']:,} changed, {report['dropped']:,} dropped, "
        f"{report['rejected']:,} rejected → {target}",
        err=True,
    )
    if absent := [name for name, count in report.get("fields", {}).items() if not count]:
        click.echo(f"no row has text under {', '.join(absent)}: nothing was scrubbed there", err=True)
    if not report["names_covered"]:
        click.echo("names of people, places and firms are not covered; --ner MODEL finds them", err=True)


@command.command()
@click.argument("source", metavar="IN")
@click.argument("out", metavar="OUT")
@click.option("--target", default=_TARGET, show_default=True, help="The share of each stratum.")
@click.option(
    "--by", default="auto", show_default=True, help="Difficulty by pass_rate, label or structure; auto: in that order."
)
@click.option("--endpoint", metavar="URL", help="An OpenAI-compatible endpoint that generates what is missing.")
@click.option("--model", help="The model at the endpoint.")
@click.option("--seed", default=0, show_default=True)
@json_option
def balance(
    source: str, out: str, target: str, by: str, endpoint: str | None, model: str | None, seed: int, as_json: bool
) -> None:
    """Write rows of IN to OUT so that easy, medium and hard have the shares of --target.

    Rows are dropped, the least telling first, and generated where --endpoint is given; none is relabelled. What is
    missing in the end is reported as a shortfall.
    """
    from agent_forge.curation.balancing import balance as run
    from agent_forge.curation.balancing import parse_target
    from agent_forge.curation.generate import Endpoint

    if endpoint and not model:
        raise UsageError("an endpoint needs the name of a model", fix="add --model NAME")
    shares = parse_target(target)
    served = Endpoint(endpoint, model or "") if endpoint else None
    report = run(source, out, shares, by=by, endpoint=served, seed=seed).as_dict()
    if as_json:
        json_out(report)
        return
    for name, stratum in report["strata"].items():
        click.echo(
            f"{name:7s} {stratum['have']:7,} → {stratum['kept'] + stratum['generated']:7,} "
            f"({100 * report['shares'][name]:.0f} %, target {100 * stratum['target']:.0f} %)  "
            f"dropped {stratum['dropped']:,}  "
            f"generated {stratum['generated']:,}  missing {stratum['shortfall']:,}"
        )
    if any(report["to_generate"].values()):
        wanted = ", ".join(f"{count:,} {name}" for name, count in report["to_generate"].items() if count)
        click.echo(f"to keep more of the rows, generate {wanted}", err=True)


@command.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE [AFTER]")
@click.option("--html", metavar="PAGE", help="Write the report as one HTML page.")
@click.option("--output", metavar="JSON", help="Write the report as one JSON file.")
@click.option("--target", help=f"The shares of difficulty wanted, as in {_TARGET}.")
@click.option("--test", metavar="FILE", help="A held-out file that must not leak into this one.")
@click.option(
    "--threshold", multiple=True, metavar="NAME=VALUE", help="Change a threshold, as in exact_duplicates=0.05."
)
@click.option("--ner", metavar="MODEL", help="An installed spaCy pipeline (name or folder) that finds names.")
@click.option("--keep", is_flag=True, help="Keep the report under the home folder, where the dashboard shows it.")
@home_option
@json_option
def audit(
    files: tuple[str, ...],
    html: str | None,
    output: str | None,
    target: str | None,
    test: str | None,
    threshold: tuple[str, ...],
    ner: str | None,
    keep: bool,
    home: str | None,
    as_json: bool,
) -> int:
    """Say what is in FILE and whether it is fit to learn from; two files are compared, before and after.

    Exits 1 when a hard threshold is broken, so that it can stand in CI.
    """
    from agent_forge.curation.audit import audit_file, compare, write_audit
    from agent_forge.curation.balancing import parse_target
    from agent_forge.curation.pii.names import load_names
    from agent_forge.curation.replace import Scrubber

    if len(files) > 2:
        raise UsageError("audit takes one file, or two to compare")
    finder = Scrubber(names=load_names(ner)) if ner else None
    shares, limits = parse_target(target) if target else None, _thresholds(threshold)
    audits = [audit_file(path, target=shares, test=test, thresholds=limits, scrubber=finder) for path in files]
    report = audits[0].as_dict() if len(audits) == 1 else compare(*audits)
    write_audit(report, html, output)
    if keep:
        write_audit(report, None, kept := _kept(home, files[-1]))
        click.echo(f"kept: {kept}", err=True)
    if as_json:
        json_out(report)
    else:
        _talk_about_audit(report, html, output)
    return 0 if report["passed"] else 1


def _kept(home: str | None, file: str) -> Path:
    """Where a report is kept: by the name of its file and the time."""
    from agent_forge.home import home as home_folder

    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in Path(file).stem)
    return home_folder(home) / "audits" / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"


def _thresholds(pairs: tuple[str, ...]) -> dict[str, float]:
    limits = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            limits[name.strip()] = float(value)
        except ValueError:
            raise UsageError(f"'{pair}' is no threshold", where="--threshold", fix="as in pii=0") from None
    return limits


def _talk_about_audit(report: dict[str, Any], html: str | None, output: str | None) -> None:
    final = report.get("after", report)
    before = {change["check"]: change["verdict_before"] for change in report.get("changes", ())}
    for check in final["checks"]:
        was = f"{before[check['name']] or '–':12s} → " if before else ""
        click.echo(f"{was}{check['verdict']:12s} {check['name']:17s} {check['message']}")
    for path in (html, output):
        if path:
            click.echo(f"written: {path}", err=True)
    why = "a hard threshold is broken" if final["rows"] else "there are no rows"
    click.echo("passed" if report["passed"] else f"failed: {why}", err=True)


@command.command()
@click.argument("source", metavar="IN")
@click.argument("target", metavar="[OUT]", required=False)
@click.option("--exact", is_flag=True, help="Only rows whose text is the same; near duplicates count too without it.")
@click.option(
    "--threshold", default=0.8, show_default=True, help="The similarity from which two rows are near duplicates."
)
@click.option("--fields", help="Compare only these top-level fields.")
@json_option
def dedup(source: str, target: str | None, exact: bool, threshold: float, fields: str | None, as_json: bool) -> None:
    """Find duplicate rows; with OUT, write the first of each group and all that have none."""
    from agent_forge.curation.duplicates import deduplicate_file, find_duplicates
    from agent_forge.curation.lines import read_rows

    options: dict[str, Any] = {"near": not exact, "threshold": threshold, "fields": _names(fields)}
    report = deduplicate_file(source, target, **options) if target else find_duplicates(read_rows(source), **options)[1]
    if as_json:
        json_out(report.as_dict())
        return
    click.echo(
        f"{report.duplicates:,} of {report.rows:,} rows repeat another, in {report.groups:,} groups ({report.kind})"
    )
    for group in report.largest:
        click.echo(f"  rows {', '.join(str(row + 1) for row in group.rows)}: {group.sample!r}")


@command.command()
@click.argument("train", metavar="TRAIN")
@click.argument("test", metavar="TEST")
@click.option("--run", default=13, show_default=True, help="So many words in a row in common count as a leak.")
@click.option("--fields", help="Compare only these top-level fields.")
@json_option
def leakage(train: str, test: str, run: int, fields: str | None, as_json: bool) -> int:
    """Find rows of TEST that TRAIN gives away; exits 1 when there are any."""
    from agent_forge.curation.duplicates import find_leakage
    from agent_forge.curation.lines import read_rows

    report = find_leakage(read_rows(train), read_rows(test), run=run, fields=_names(fields))
    if as_json:
        json_out(report.as_dict())
    else:
        click.echo(
            f"of {report.test_rows:,} test rows {report.exact:,} are in TRAIN, {report.overlapping:,} overlap with it"
        )
        for sample in report.samples:
            click.echo(
                f"  {sample['kind']}: test row {sample['test_row'] + 1}, train row {sample['train_row'] + 1}: "
                f"{sample['text']!r}"
            )
    return 1 if report.share else 0


@command.command()
@click.argument("name", required=False)
@click.option("--from", "folder", metavar="DIR", help="Read the files from this folder instead of the network.")
@click.option("--out", metavar="FILE", help="Write the records as JSONL; to stdout without it.")
@click.option("--split", help="Only this split: train, validation, test.")
@json_option
def fetch(name: str | None, folder: str | None, out: str | None, split: str | None, as_json: bool) -> None:
    """Bring a public data set into one record shape; without a NAME, list them."""
    from agent_forge.curation.homes import HOMES
    from agent_forge.curation.homes import fetch as download
    from agent_forge.curation.lines import write_rows
    from agent_forge.curation.loaders import DATASETS, load

    if name is None:
        sets = [
            {"name": d.name, "task": d.task, "licence": d.licence, "source": d.source, "download": d.name in HOMES}
            for d in DATASETS.values()
        ]
        if as_json:
            json_out(sets)
        else:
            for item in sets:
                click.echo(f"{item['name']:14s} {item['task']:16s} {item['licence']:32s} {item['source']}")
        return
    records = load(name, folder or download(name), split=split)
    if out is None:
        import json

        for record in records:
            sys.stdout.write(json.dumps(record.as_dict(), ensure_ascii=False) + "\n")
        return
    count = write_rows(out, (record.as_dict() for record in records))
    if as_json:
        json_out({"name": name, "rows": count, "out": out})
    else:
        click.echo(f"{count:,} records → {out}", err=True)
