"""`agent-forge delegation`: traces of a coding agent's subagents."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._options import former_command, home_option, json_option, open_store, renamed
from agent_forge.cli._output import echo, json_out
from agent_forge.cli.traces_analysis import credit_option, show_stats, show_trajectory
from agent_forge.errors import UsageError

if TYPE_CHECKING:
    from agent_forge.traces.reward import Verification
    from agent_forge.traces.span import Span

project_option = click.option(
    "--project", default=".", show_default=True, type=click.Path(), metavar="DIR", help="Project folder."
)


@click.group()
def command() -> None:
    """Trace the subagents of a coding agent: what each was given, how it went, and which to trust.

    `install` makes Claude Code append a line to .claude/delegation-log.jsonl whenever a subagent stops.
    """


@command.command("install")
@project_option
@click.option("--local", is_flag=True, help="Use settings.local.json, which is not shared with others.")
@click.option("--portable", is_flag=True, help="Call `agent-forge` from the PATH: slower, works on every machine.")
@click.option("--no-text", is_flag=True, help="Record figures only, not the text of tasks and answers.")
@click.option("--remove", is_flag=True, help="Remove the hook, and the commands and rules that were added with it.")
@json_option
def install_(project: str, local: bool, portable: bool, no_text: bool, remove: bool, as_json: bool) -> None:
    """Add the SubagentStop hook to the settings of a project; other settings stay.

    Also adds the slash commands /delegation-log, /delegation-stats and /delegation-trajectory, and the rules file
    .claude/rules/delegation.md. Files of your own with these names are left alone.
    """
    from agent_forge.traces import delegation

    path, log, rules = (
        delegation.settings_path(project, local=local),
        delegation.log_path(project),
        delegation.rules_path(project),
    )
    if remove:
        changed = delegation.uninstall(project, local=local)
        files = delegation.uninstall_files(project)
        message = f"the hook was removed from {path}" if changed else f"there was no hook in {path}"
    else:
        changed = delegation.install(project, local=local, portable=portable, keep_text=not no_text)
        files = delegation.install_commands(project)
        if not rules.exists() and delegation.write_rules(project, _rules_text(_spans(project) if log.exists() else [])):
            files.append(rules)
        message = f"the hook is {'now' if changed else 'already'} in {path}; it writes {log}"
    if as_json:
        json_out({"changed": changed, "settings": str(path), "log": str(log), "files": [str(file) for file in files]})
    else:
        echo(message, err=True)
        for file in files:
            echo(f"{'removed' if remove else 'wrote'} {file}", err=True)


@command.command("hook")
@click.option("--no-text", is_flag=True, help="Record figures only.")
def hook(no_text: bool) -> int:
    """Record the SubagentStop payload on stdin. Always exits with 0: it runs inside somebody's session."""
    from agent_forge.traces import transcript

    return transcript.main(["--no-text"] if no_text else [])


@command.command("ls")
@project_option
@click.option("--session", help="Only delegations of this session.")
@renamed("--limit", former="--last", type=click.IntRange(min=1), help="Only the latest N delegations.")
@click.option("--failed", is_flag=True, help="Only delegations that failed or were verified as bad.")
@json_option
def ls(project: str, session: str | None, limit: int | None, failed: bool, as_json: bool) -> None:
    """List the delegations, oldest first."""
    spans = _spans(project, session)
    if failed:
        spans = [span for span in spans if span.status == "error" or (span.reward is not None and span.reward < 0.5)]
    spans = spans[-limit:] if limit else spans
    if as_json:
        json_out({"delegations": [span.to_dict() for span in spans]})
        return
    for span in spans:
        _print(span)
    echo(f"{len(spans)} delegation{'s' * (len(spans) != 1)}", err=True)


former_command(command, "log", ls)


def _spans(project: str, session: str | None = None) -> list[Span]:
    from agent_forge.traces.delegation import log_path, read_log

    return [span for span in read_log(log_path(project)) if session is None or span.session == session]


def _print(span: Span) -> None:
    from datetime import datetime, timezone

    calls = span.attributes.get("agent_forge.tool_calls")
    parts = [
        span.span_id[:8],
        datetime.fromtimestamp(span.start_ns / 1e9, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ"),
        span.agent,
        span.model,
        span.category,
        f"{calls} calls" if calls is not None else None,
        f"{span.duration_s:.1f} s" if span.duration_s is not None else None,
        f"reward {span.reward:.2f}" if span.reward is not None else "not verified",
        "failed" if span.status == "error" else None,
    ]
    echo("  ".join(part for part in parts if part))


@command.command("trajectory")
@project_option
@click.option("--session", help="Session to show [default: the last one].")
@credit_option
@click.option("--outcome", type=float, help="Outcome to share out [default: the mean reward].")
@json_option
def trajectory(project: str, session: str | None, strategy: str, outcome: float | None, as_json: bool) -> None:
    """Show the order, critical path and credit of a session's delegations."""
    from agent_forge.traces.trajectory import assemble

    spans = _spans(project)
    name = session or (max(spans, key=lambda span: span.start_ns).session if spans else None)
    chosen = [span for span in spans if span.session == name]
    if not chosen:
        raise UsageError(f"there is no session {session!r} in the log", fix="`agent-forge delegation ls` lists them")
    show_trajectory(assemble(chosen), strategy, outcome, as_json)


verified_option = click.option(
    "--verified", is_flag=True, help="Only count rewards that came from a check, not those of a ONE_SHOT log."
)


@command.command("stats")
@project_option
@verified_option
@json_option
def stats(project: str, verified: bool, as_json: bool) -> None:
    """Show how well each kind of subagent does, which to trust, and how accurate that was."""
    from agent_forge.traces.performance import performance
    from agent_forge.traces.trust import TrustTable, replay

    spans = _counted(_spans(project), verified)
    rows = performance(spans)
    table = TrustTable()
    table.observe_spans(spans)
    document: dict[str, Any] = {"agents": [row.to_json() for row in rows], "delegations": len(spans)}
    show_stats(document, [row.words() for row in rows], table, replay(spans), as_json)


@command.command("verify")
@click.argument("span")
@project_option
@click.option("--exit-code", type=int, help="Exit code of the command that checked it.")
@click.option("--tests", metavar="PASSED/TOTAL", help="Passed and total tests, e.g. 46/47.")
@click.option("--grade", type=click.FloatRange(0, 1), help="Score of a grader.")
@click.option("--verdict", type=click.Choice(["pass", "partial", "fail"]), help="Verdict of a person.")
@click.option("--evidence", default="", help="What the check saw.")
@json_option
def verify(
    span: str, project: str, exit_code: int | None, tests: str | None, grade: float | None, verdict: str | None,
    evidence: str, as_json: bool,
) -> None:  # fmt: skip
    """Give the delegation SPAN (an id or its beginning) its reward, from a check, never from its own words."""
    from agent_forge.traces.delegation import verify as append

    verified = append(project, span, _verification(exit_code, tests, grade, verdict, evidence))
    if as_json:
        json_out(verified.to_dict())
    else:
        _print(verified)


def _verification(
    exit_code: int | None, tests: str | None, grade: float | None, verdict: str | None, evidence: str
) -> Verification:
    from agent_forge.traces import reward

    if sum(value is not None for value in (exit_code, tests, grade, verdict)) != 1:
        raise UsageError("give exactly one of --exit-code, --tests, --grade and --verdict")
    if exit_code is not None:
        return reward.exit_code(exit_code, evidence)
    if grade is not None:
        return reward.grader(grade, evidence)
    if verdict is not None:
        return reward.person(verdict, evidence)
    try:
        passed, total = (int(part) for part in str(tests).split("/"))
    except ValueError as error:
        raise UsageError(f"--tests is {tests!r}", fix="Write PASSED/TOTAL, e.g. 46/47") from error
    if not 0 <= passed <= total:
        raise UsageError(f"--tests {tests}: {passed} of {total} tests cannot have passed")
    return reward.share_passed(passed, total - passed, evidence)


@command.command("import")
@project_option
@home_option
@json_option
def import_(project: str, home: str | None, as_json: bool) -> None:
    """Add the delegations and their verdicts to the trace store; those already there are not added again."""
    from agent_forge.traces.delegation import for_store

    spans = _spans(project)
    with open_store(home) as store:
        added, where = store.add(for_store(spans)), store.where
    if as_json:
        json_out({"delegations": len(spans), "added": added, "store": where})
    else:
        echo(f"{len(spans)} delegations, {added} new spans in {where}", err=True)


@command.command("export")
@click.argument("out", type=click.Path(dir_okay=False))
@project_option
@json_option
def export(out: str, project: str, as_json: bool) -> None:
    """Write the delegations to OUT as a ONE_SHOT log (v12.2)."""
    from agent_forge.traces.delegation import write_one_shot

    count = write_one_shot(_spans(project), out)
    if as_json:
        json_out({"delegations": count, "out": out})
    else:
        echo(f"{count} delegations in {out}", err=True)


@command.command("rules")
@project_option
@verified_option
@click.option("--write", is_flag=True, help="Write them to .claude/rules/delegation.md of the project.")
def rules(project: str, verified: bool, write: bool) -> None:
    """Print rules for a coding agent (for CLAUDE.md or AGENTS.md): how to delegate, and who does what best.

    Who does what comes from the log, as far as its counts tell the subagents apart.
    """
    from agent_forge.traces.delegation import log_path, rules_path, write_rules

    spans = _counted(_spans(project), verified) if log_path(project).exists() else []
    text = _rules_text(spans)
    if write:
        changed = write_rules(project, text)
        echo(f"{rules_path(project)} {'was written' if changed else 'is up to date'}", err=True)
    else:
        sys.stdout.write(text)


def _rules_text(spans: list[Span]) -> str:
    from importlib import resources

    from agent_forge.traces.delegation import learned_rules

    text = resources.files("agent_forge.agents").joinpath("data/delegation-rules.md").read_text(encoding="utf-8")
    learned = learned_rules(spans)
    if not learned:
        return text
    head = "**Who does what**, from this project's log (expected reward, delegations that count, 90 % interval):"
    return f"{text}\n{head}\n\n" + "".join(f"- {line}\n" for line in learned)


def _counted(spans: list[Span], verified: bool) -> list[Span]:
    """The spans, with --verified without the rewards that a ONE_SHOT log came with."""
    from dataclasses import replace

    from agent_forge.traces.delegation import ORIGINAL

    if not verified:
        return spans
    guessed = [ORIGINAL in span.attributes and "agent_forge.verification" not in span.attributes for span in spans]
    return [replace(span, reward=None) if guess else span for span, guess in zip(spans, guessed, strict=True)]
