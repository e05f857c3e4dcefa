"""`agent-forge delegation`: traces of a coding agent's subagents."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._app import home_option, json_option, json_out
from agent_forge.errors import UsageError

if TYPE_CHECKING:
    from agent_forge.traces.reward import Verification
    from agent_forge.traces.span import Span

project_option = click.option(
    "--project", default=".", show_default=True, type=click.Path(), help="The project's folder."
)


@click.group()
def command() -> None:
    """Traces of a coding agent's subagents: who was given what, how it went, and whom to trust next.

    `install` makes Claude Code append a line to .claude/delegation-log.jsonl whenever a subagent stops.
    """


@command.command("install")
@project_option
@click.option("--local", is_flag=True, help="Into settings.local.json, which is not shared with others.")
@click.option("--portable", is_flag=True, help="Call `agent-forge` from the path: slower, the same on every machine.")
@click.option("--no-text", is_flag=True, help="Keep figures only, not the words of tasks and answers.")
@click.option("--remove", is_flag=True, help="Take the hook out again.")
@json_option
def install_(project: str, local: bool, portable: bool, no_text: bool, remove: bool, as_json: bool) -> None:
    """Write the SubagentStop hook into a project's settings; what is there stays."""
    from agent_forge.traces.delegation import install, log_path, settings_path, uninstall

    path = settings_path(project, local=local)
    if remove:
        changed = uninstall(project, local=local)
        said = f"the hook is out of {path}" if changed else f"there was no hook in {path}"
    else:
        changed = install(project, local=local, portable=portable, keep_text=not no_text)
        said = f"the hook is in {path}{'' if changed else ' already'}; it writes {log_path(project)}"
    if as_json:
        json_out({"changed": changed, "settings": str(path), "log": str(log_path(project))})
    else:
        click.echo(said, err=True)


@command.command("hook")
@click.option("--no-text", is_flag=True, help="Keep figures only.")
def hook(no_text: bool) -> int:
    """Record the SubagentStop payload on stdin. Always exits 0: it runs inside somebody's session."""
    from agent_forge.traces import transcript

    return transcript.main(["--no-text"] if no_text else [])


@command.command("log")
@project_option
@click.option("--session", help="Of this session only.")
@click.option("--last", type=click.IntRange(min=1), help="Only the last so many.")
@click.option("--failed", is_flag=True, help="Only those that failed or were verified as bad.")
@json_option
def log(project: str, session: str | None, last: int | None, failed: bool, as_json: bool) -> None:
    """List the delegations, the oldest first."""
    spans = _spans(project, session)
    if failed:
        spans = [span for span in spans if span.status == "error" or (span.reward is not None and span.reward < 0.5)]
    spans = spans[-last:] if last else spans
    if as_json:
        json_out({"delegations": [span.to_dict() for span in spans]})
        return
    for span in spans:
        click.echo(_line(span))
    click.echo(f"{len(spans)} delegation{'s' * (len(spans) != 1)}", err=True)


def _spans(project: str, session: str | None = None) -> list[Span]:
    from agent_forge.traces.delegation import log_path, read_log

    return [span for span in read_log(log_path(project)) if session is None or span.session == session]


def _line(span: Span) -> str:
    from datetime import datetime, timezone

    from agent_forge.traces.trajectory import printable

    when = datetime.fromtimestamp(span.start_ns / 1e9, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
    calls = span.attributes.get("agent_forge.tool_calls")
    known = [
        span.span_id[:8],
        when,
        span.agent,
        span.model,
        span.category,
        f"{calls} calls" if calls is not None else None,
        f"{span.duration_s:.1f} s" if span.duration_s is not None else None,
        f"reward {span.reward:.2f}" if span.reward is not None else "not verified",
        "failed" if span.status == "error" else None,
    ]
    return printable("  ".join(part for part in known if part))


@command.command("trajectory")
@project_option
@click.option("--session", help="Of this session; without it, of the last one.")
@click.option("--credit", "strategy", default="shapley", show_default=True, help="Who gets credit.")
@click.option("--outcome", type=float, help="What to share out; without it the mean reward.")
@json_option
def trajectory(project: str, session: str | None, strategy: str, outcome: float | None, as_json: bool) -> None:
    """Show how the delegations of a session went: order, critical path, credit."""
    from agent_forge.cli.traces_understand import show_trajectory
    from agent_forge.traces.trajectory import assemble

    spans = _spans(project)
    wanted = session or (max(spans, key=lambda span: span.start_ns).session if spans else None)
    chosen = [span for span in spans if span.session == wanted]
    if not chosen:
        raise UsageError(f"there is no session {session!r} in the log", fix="`agent-forge delegation log` shows them")
    show_trajectory(assemble(chosen), strategy, outcome, as_json)


@command.command("stats")
@project_option
@json_option
def stats(project: str, as_json: bool) -> None:
    """Say how well each kind of subagent does, whom to trust, and how well calibrated that is."""
    from agent_forge.cli.traces_understand import show_stats
    from agent_forge.traces.performance import performance
    from agent_forge.traces.trust import TrustTable, replay

    spans = _spans(project)
    rows = performance(spans)
    table = TrustTable()
    table.observe_spans(spans)
    document: dict[str, Any] = {"agents": [row.to_json() for row in rows], "delegations": len(spans)}
    show_stats(document, [row.words() for row in rows], table, replay(spans), as_json)


@command.command("verify")
@click.argument("span")
@project_option
@click.option("--exit-code", type=int, help="The exit code of the command that checked it.")
@click.option("--tests", metavar="PASSED/TOTAL", help="How many tests passed, as in 46/47.")
@click.option("--grade", type=click.FloatRange(0, 1), help="A grader's score.")
@click.option("--verdict", type=click.Choice(["pass", "partial", "fail"]), help="A person's verdict.")
@click.option("--evidence", default="", help="What was seen.")
@json_option
def verify(
    span: str, project: str, exit_code: int | None, tests: str | None, grade: float | None, verdict: str | None,
    evidence: str, as_json: bool,
) -> None:  # fmt: skip
    """Give a delegation its reward: from something that looked, never from what it says. SPAN may be shortened."""
    from agent_forge.traces.delegation import verify as append

    found = append(project, span, _verification(exit_code, tests, grade, verdict, evidence))
    if as_json:
        json_out(found.to_dict())
    else:
        click.echo(_line(found))


def _verification(
    exit_code: int | None, tests: str | None, grade: float | None, verdict: str | None, evidence: str
) -> Verification:
    from agent_forge.traces import reward

    given = [value for value in (exit_code, tests, grade, verdict) if value is not None]
    if len(given) != 1:
        raise UsageError("give one of --exit-code, --tests, --grade and --verdict")
    if exit_code is not None:
        return reward.exit_code(exit_code, evidence)
    if grade is not None:
        return reward.grader(grade, evidence)
    if verdict is not None:
        return reward.person(verdict, evidence)
    try:
        passed, total = (int(part) for part in str(tests).split("/"))
    except ValueError as error:
        raise UsageError(f"--tests is {tests!r}", fix="write PASSED/TOTAL, as in 46/47") from error
    if not 0 <= passed <= total:
        raise UsageError(f"--tests {tests}: of {total} tests not {passed} can have passed")
    return reward.share_passed(passed, total - passed, evidence)


@command.command("import")
@project_option
@home_option
@json_option
def import_(project: str, home: str | None, as_json: bool) -> None:
    """Put the delegations and their verdicts into the trace store; what is there already is not added again."""
    from agent_forge.cli.traces import open_store
    from agent_forge.traces.delegation import for_store

    spans = _spans(project)
    with open_store(home) as store:
        added, where = store.add(for_store(spans)), store.where
    if as_json:
        json_out({"delegations": len(spans), "added": added, "store": where})
    else:
        click.echo(f"{len(spans)} delegations, {added} new spans in {where}", err=True)


@command.command("rules")
def rules() -> None:
    """Print a short file of rules to give to a coding agent (for CLAUDE.md or AGENTS.md)."""
    from importlib import resources

    text = resources.files("agent_forge.agents").joinpath("data/delegation-rules.md").read_text(encoding="utf-8")
    sys.stdout.write(text)
