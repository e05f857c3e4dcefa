"""`agent-forge data`: scrubs, deduplicates, balances, audits and fetches training data."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._options import home_option, json_option, renamed, seed_option
from agent_forge.cli._output import echo, json_out
from agent_forge.errors import UsageError

if TYPE_CHECKING:
    from agent_forge.curation.generate import Endpoint
    from agent_forge.curation.scrub import ScrubReport

_SHARES = "easy=0.3,medium=0.45,hard=0.25"
fields_option = click.option("--fields", metavar="NAMES", help="Compare only these top-level fields.")
ner_option = click.option(
    "--ner", metavar="MODEL", help="Installed spaCy pipeline (name or folder) to find names with."
)


@click.group()
def command() -> None:
    """Prepare training data: scrub, deduplicate, balance, audit."""


class _Interrupts:
    """Ctrl-C and SIGTERM end a scrub the same way, so that temporary files are removed.

    A signal that raises while processes are forked or futures handed over can leave those broken, or be swallowed. So
    with several processes the first signal is only remembered, and raised after the next finished batch.
    """

    def __init__(self, at_once: bool) -> None:
        self.at_once = at_once
        self.pending = False

    def __call__(self, _signal: int, _frame: object) -> None:
        again, self.pending = self.pending, True
        if self.at_once or again:
            raise KeyboardInterrupt

    def check(self) -> None:
        if self.pending:
            raise KeyboardInterrupt

    @contextmanager
    def handled(self) -> Iterator[None]:
        previous = {number: signal.signal(number, self) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _names(value: str | None) -> tuple[str, ...] | None:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if value else None


@command.command()
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@click.option("--action", default="placeholder", help="placeholder, surrogate, hash or drop.", show_default=True)
@click.option("--key", envvar="AGENT_FORGE_SCRUB_KEY", help="Key for --action hash (better set in the environment).")
@click.option("--fields", metavar="NAMES", help="Fields to scrub, e.g. messages.content,task [default: all strings].")
@click.option("--types", metavar="NAMES", help="Types to replace, e.g. EMAIL,PHONE [default: all].")
@renamed("--rejected", "reject", former="--reject", metavar="FILE",
         help="File for lines that are not JSON; without it the first one is an error.")  # fmt: skip
@ner_option
@click.option("--workers", type=click.IntRange(1), help="Processes [default: one per core for large files].")
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
    """Write IN without personal data and secrets to OUT (.jsonl, .gz, .zst). IN is never changed."""
    from agent_forge.curation.lines import require_regular
    from agent_forge.curation.scrub import default_workers, scrub_file
    from agent_forge.pii.names import load_names
    from agent_forge.pii.replace import Scrubber
    from agent_forge.terminal import ProgressDisplay

    require_regular(source)
    finder = load_names(ner) if ner else None
    scrubber = Scrubber(action, key.encode() if key else None, _types(types), finder)
    processes = workers or default_workers(source)
    interrupts = _Interrupts(at_once=processes == 1 or finder is not None)
    with interrupts.handled(), ProgressDisplay() as display:

        def on_batch(report: ScrubReport) -> None:
            interrupts.check()
            display.update("scrub", report.rows, unit="rows", detail=f"{report.changed:,} changed")

        report = scrub_file(
            source,
            target,
            scrubber=scrubber,
            fields=_names(fields),
            reject=reject,
            workers=processes,
            on_batch=on_batch,
        )
    if as_json:
        json_out(report.as_dict())
    else:
        _print_scrub(report.as_dict(), target)


def _types(text: str | None) -> frozenset[str] | None:
    from agent_forge.pii import TYPES

    names = _names(text.upper()) if text else None
    unknown = set(names or ()) - set(TYPES)
    if unknown:
        raise UsageError(f"there is no type {min(unknown)!r}", where="--types", fix=f"Use some of {', '.join(TYPES)}")
    return frozenset(names) if names else None


def _print_scrub(report: dict[str, Any], target: str) -> None:
    for kind, count in report["replaced"].items():
        reserved = report["reserved"].get(kind, 0)
        echo(f"{kind:16s} {count:8,}" + (f"   {reserved:,} of them reserved test values" if reserved else ""))
    echo(
        f"{report['rows']:,} rows, {report['changed']:,} changed, {report['dropped']:,} dropped, "
        f"{report['rejected']:,} rejected → {target}",
        err=True,
    )
    if absent := [name for name, count in report.get("fields", {}).items() if not count]:
        echo(f"no row has text under {', '.join(absent)}: nothing was scrubbed there", err=True)
    if not report["names_covered"]:
        echo("names of people, places and organisations are not covered; --ner MODEL finds them", err=True)


@command.command()
@click.argument("source", metavar="IN")
@click.argument("out", metavar="OUT")
@renamed("--shares", former="--target", default=_SHARES, show_default=True, help="Share of each difficulty.")
@click.option("--by", default="auto", show_default=True,
              help="Source of difficulty: pass_rate, label or structure; auto tries them in that order.")  # fmt: skip
@click.option("--model", metavar="URL#NAME", help="OpenAI-compatible model that generates missing rows.")
@click.option("--endpoint", metavar="URL", hidden=True)  # the URL of --model, which then was only the name
@seed_option
@json_option
def balance(
    source: str, out: str, shares: str, by: str, endpoint: str | None, model: str | None, seed: int, as_json: bool
) -> None:
    """Write rows of IN to OUT so that easy, medium and hard have the given shares.

    Rows are dropped, the least informative first, and generated where --model is given; none is relabelled. Rows that
    are still missing are reported as a shortfall.
    """
    from agent_forge.curation.balancing import balance as run
    from agent_forge.curation.balancing import parse_target

    report = run(source, out, parse_target(shares), by=by, endpoint=_endpoint(endpoint, model), seed=seed).as_dict()
    if as_json:
        json_out(report)
        return
    for name, stratum in report["strata"].items():
        echo(
            f"{name:7s} {stratum['have']:7,} → {stratum['kept'] + stratum['generated']:7,} "
            f"({100 * report['shares'][name]:.0f} %, target {100 * stratum['target']:.0f} %)  "
            f"dropped {stratum['dropped']:,}  "
            f"generated {stratum['generated']:,}  missing {stratum['shortfall']:,}"
        )
    if any(report["to_generate"].values()):
        missing = ", ".join(f"{count:,} {name}" for name, count in report["to_generate"].items() if count)
        echo(f"to keep more of the rows, generate {missing}", err=True)


def _endpoint(url: str | None, model: str | None) -> Endpoint | None:
    from agent_forge.curation.generate import Endpoint

    if url is None and model is None:
        return None
    url, _, name = (model or "").rpartition("#") if url is None else (url, "", model)
    if not url or not name:
        raise UsageError("generating rows needs a URL and a model", where="--model", fix="Write for example"
                         " http://localhost:8000/v1#qwen")  # fmt: skip
    return Endpoint(url, name)


@command.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE [AFTER]")
@click.option("--html", metavar="FILE", help="Also write the report as an HTML page.")
@renamed("--out", former="--output", metavar="FILE", help="Also write the report as JSON.")
@renamed("--shares", former="--target", help=f"Required share of each difficulty, e.g. {_SHARES}.")
@click.option("--test", metavar="FILE", help="Held-out file that must not leak into this one.")
@click.option("--threshold", multiple=True, metavar="NAME=VALUE",
              help="Change a threshold, e.g. exact_duplicates=0.05 (repeatable).")  # fmt: skip
@ner_option
@renamed("--save", former="--keep", is_flag=True,
         help="Also save the report in the home folder, where the dashboard shows it.")  # fmt: skip
@home_option
@json_option
def audit(
    files: tuple[str, ...],
    html: str | None,
    out: str | None,
    shares: str | None,
    test: str | None,
    threshold: tuple[str, ...],
    ner: str | None,
    save: bool,
    home: str | None,
    as_json: bool,
) -> int:
    """Report what is in FILE and whether it is fit to learn from; two files are compared, before and after.

    Exits with 1 when a hard threshold is broken, for use in CI.
    """
    from agent_forge.curation.audit import audit_file, compare, write_audit
    from agent_forge.curation.balancing import parse_target
    from agent_forge.pii.names import load_names
    from agent_forge.pii.replace import Scrubber

    if len(files) > 2:
        raise UsageError("audit takes one file, or two to compare")
    scrubber = Scrubber(names=load_names(ner)) if ner else None
    target, limits = parse_target(shares) if shares else None, _thresholds(threshold)
    audits = [audit_file(path, target=target, test=test, thresholds=limits, scrubber=scrubber) for path in files]
    report = audits[0].as_dict() if len(audits) == 1 else compare(*audits)
    write_audit(report, html, out)
    if save:
        write_audit(report, None, path := _saved_audit(home, files[-1]))
        echo(f"saved: {path}", err=True)
    if as_json:
        json_out(report)
    else:
        _print_audit(report, html, out)
    return 0 if report["passed"] else 1


def _saved_audit(home: str | None, file: str) -> Path:
    """Where a report is saved: by the name of its file and the time."""
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
            raise UsageError(
                f"{pair!r} is not a threshold", where="--threshold", fix="Write for example pii=0"
            ) from None
    return limits


def _print_audit(report: dict[str, Any], html: str | None, out: str | None) -> None:
    final = report.get("after", report)
    before = {change["check"]: change["verdict_before"] for change in report.get("changes", ())}
    for check in final["checks"]:
        was = f"{before[check['name']] or '–':12s} → " if before else ""
        echo(f"{was}{check['verdict']:12s} {check['name']:17s} {check['message']}")
    for path in (html, out):
        if path:
            echo(f"written: {path}", err=True)
    reason = "a hard threshold is broken" if final["rows"] else "there are no rows"
    echo("passed" if report["passed"] else f"failed: {reason}", err=True)


@command.command()
@click.argument("source", metavar="IN")
@click.argument("target", metavar="[OUT]", required=False)
@click.option("--exact", is_flag=True, help="Only rows with identical text, not near duplicates.")
@renamed("--similarity", former="--threshold", default=0.8, show_default=True,
         help="Minimum similarity of near duplicates.")  # fmt: skip
@fields_option
@json_option
def dedup(source: str, target: str | None, exact: bool, similarity: float, fields: str | None, as_json: bool) -> None:
    """Find duplicate rows; with OUT, write IN with only the first row of each group."""
    from agent_forge.curation.duplicates import deduplicate_file, find_duplicates
    from agent_forge.curation.lines import read_rows

    options: dict[str, Any] = {"near": not exact, "threshold": similarity, "fields": _names(fields)}
    report = deduplicate_file(source, target, **options) if target else find_duplicates(read_rows(source), **options)[1]
    if as_json:
        json_out(report.as_dict())
        return
    echo(f"{report.duplicates:,} of {report.rows:,} rows repeat another, in {report.groups:,} groups ({report.kind})")
    for group in report.largest:
        echo(f"  rows {', '.join(str(row + 1) for row in group.rows)}: {group.sample!r}")


@command.command()
@click.argument("train", metavar="TRAIN")
@click.argument("test", metavar="TEST")
@renamed("--ngram", former="--run", default=13, show_default=True, help="Consecutive words in common that are a leak.")
@fields_option
@json_option
def leakage(train: str, test: str, ngram: int, fields: str | None, as_json: bool) -> int:
    """Find rows of TEST that leak into TRAIN; exits with 1 when there are any."""
    from agent_forge.curation.duplicates import find_leakage
    from agent_forge.curation.lines import read_rows

    report = find_leakage(read_rows(train), read_rows(test), run=ngram, fields=_names(fields))
    if as_json:
        json_out(report.as_dict())
    else:
        echo(f"of {report.test_rows:,} test rows {report.exact:,} are in TRAIN, {report.overlapping:,} overlap with it")
        for sample in report.samples:
            rows = f"test row {sample['test_row'] + 1}, train row {sample['train_row'] + 1}"
            echo(f"  {sample['kind']}: {rows}: {sample['text']!r}")
    return 1 if report.share else 0


@command.command()
@json_option
def ls(as_json: bool) -> None:
    """List the public data sets that `fetch` knows."""
    from agent_forge.curation.downloads import DOWNLOADS
    from agent_forge.curation.loaders import DATASETS

    rows = [
        {"name": d.name, "task": d.task, "licence": d.licence, "source": d.source, "download": d.name in DOWNLOADS}
        for d in DATASETS.values()
    ]
    if as_json:
        json_out(rows)
        return
    for row in rows:
        echo(f"{row['name']:14s} {row['task']:16s} {row['licence']:32s} {row['source']}")


@command.command()
@click.argument("name", required=False)
@click.option("--from", "folder", metavar="DIR", help="Folder to read the files from instead of downloading them.")
@click.option("--out", metavar="FILE", help="JSONL file to write [default: stdout].")
@click.option("--split", help="Only this split: train, validation, test.")
@json_option
@click.pass_context
def fetch(
    ctx: click.Context, name: str | None, folder: str | None, out: str | None, split: str | None, as_json: bool
) -> None:
    """Convert the public data set NAME to records of one shape."""
    from agent_forge.curation.downloads import fetch as download
    from agent_forge.curation.lines import write_rows
    from agent_forge.curation.loaders import load

    if name is None:  # `ls`, as it was called before
        ctx.invoke(ls, as_json=as_json)
        return
    records = load(name, folder or download(name), split=split)
    if out is None:
        import json

        for record in records:
            sys.stdout.write(json.dumps(record.as_dict(), ensure_ascii=sys.stdout.isatty()) + "\n")
        return
    count = write_rows(out, (record.as_dict() for record in records))
    if as_json:
        json_out({"name": name, "rows": count, "out": out})
    else:
        echo(f"{count:,} records → {out}", err=True)
