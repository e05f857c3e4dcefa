"""Delegations of a coding agent: the hook in its settings, the log it writes, and reading the log.

The log, `.claude/delegation-log.jsonl`, is an interchange file: one span per line, appended under a file lock. A line
replaces an earlier one with the same span id, so a later verdict is appended, never edited in. Lines of the older
ONE_SHOT log are read too, and can be written back.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from agent_forge.errors import ConfigError, DataError, TraceError, UsageError
from agent_forge.files import atomic_write
from agent_forge.traces import transcript
from agent_forge.traces.reward import Verification, reward_of
from agent_forge.traces.span import Span
from agent_forge.traces.trust import Candidate, TrustTable

EVENT = "SubagentStop"
TIMEOUT_S = 10
PORTABLE = "agent-forge delegation hook"


def log_path(project: str | Path) -> Path:
    """The delegation log of a project folder."""
    return Path(project) / ".claude" / transcript.LOG


def settings_path(project: str | Path, *, local: bool = False) -> Path:
    """The settings of a project: those shared through its repository, or those of this machine (`local`)."""
    return Path(project) / ".claude" / ("settings.local.json" if local else "settings.json")


def hook_command(*, portable: bool = False, keep_text: bool = True) -> str:
    """The command for the settings: this interpreter on the hook file, or (portable) `agent-forge` from the path."""
    fast = shlex.join([sys.executable, "-I", "-S", str(Path(transcript.__file__))])
    return (PORTABLE if portable else fast) + ("" if keep_text else " --no-text")


# Slash commands for the coding agent: each runs one of ours and says what its output is for.
COMMANDS = {
    "delegation-log": ("ls --limit 20", "The latest delegations", "Name those that failed or were not verified."),
    "delegation-stats": (
        "stats",
        "Which subagent does what how well",
        "Sum it up in a few lines, then run `agent-forge delegation rules --write`, which writes what the counts show "
        "into .claude/rules/delegation.md.",
    ),
    "delegation-trajectory": (
        "trajectory",
        "The delegations of this session in order",
        "Say which was on the critical path, which tools were used, and what could have run in parallel.",
    ),
}
MARK = "<!-- written by `agent-forge delegation install` -->"


def rules_path(project: str | Path) -> Path:
    """The delegation rules of a project folder, which its coding agent reads."""
    return Path(project) / ".claude" / "rules" / "delegation.md"


def write_rules(project: str | Path, text: str) -> bool:
    """Writes the rules into a project; returns whether they changed. Raises ConfigError for a file that is not ours."""
    return _write_ours(rules_path(project), f"{MARK}\n{text}")


def install_commands(project: str | Path) -> list[Path]:
    """Adds the slash commands to a project; returns the files that changed. One of the user's own is left alone."""
    changed = []
    for name, (call, title, then) in COMMANDS.items():
        path = Path(project) / ".claude" / "commands" / f"{name}.md"
        text = (
            f"---\ndescription: {title}\nallowed-tools: Bash(agent-forge delegation:*)\n---\n{MARK}\n"
            f"!`agent-forge delegation {call}`\n\n{then}\n"
        )
        if (not path.exists() or _is_marked(path)) and _write_ours(path, text):
            changed.append(path)
    return changed


def uninstall_files(project: str | Path) -> list[Path]:
    """Removes the slash commands and the rules that we wrote; returns what was removed."""
    commands = [Path(project) / ".claude" / "commands" / f"{name}.md" for name in COMMANDS]
    ours = [path for path in (*commands, rules_path(project)) if _is_marked(path)]
    for path in ours:
        path.unlink()
    return ours


def _is_marked(path: Path) -> bool:
    return path.is_file() and MARK in path.read_text(encoding="utf-8", errors="replace")


def _write_ours(path: Path, text: str) -> bool:
    if path.exists() and not _is_marked(path):
        raise ConfigError("the file is not one that we wrote", where=str(path), fix="Move it, or edit it by hand")
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(text)
    return True


def install(project: str | Path, *, local: bool = False, portable: bool = False, keep_text: bool = True) -> bool:
    """Adds the hook to a project's settings; returns whether anything had to change.

    Everything else in the file stays as it is, in its order. Raises ConfigError, without touching the file, if it is
    not JSON of the expected shape, and UsageError if the project is not a folder.
    """
    if not Path(project).is_dir():
        raise UsageError("there is no such project folder", where=str(project))
    path = settings_path(project, local=local)
    text, settings = _read_settings(path)
    groups = _groups(settings, path)
    ours = {"type": "command", "command": hook_command(portable=portable, keep_text=keep_text), "timeout": TIMEOUT_S}
    if ours in [hook for group in groups for hook in group.get("hooks", ())]:
        return False
    _remove_ours(groups)
    groups.append({"hooks": [ours]})
    _write_settings(path, text, settings)
    return True


def uninstall(project: str | Path, *, local: bool = False) -> bool:
    """Removes the hook; returns whether it was there."""
    path = settings_path(project, local=local)
    text, settings = _read_settings(path)
    groups = _groups(settings, path)
    if not _remove_ours(groups):
        return False
    if not groups:
        del settings["hooks"][EVENT]
    if not settings["hooks"]:
        del settings["hooks"]
    _write_settings(path, text, settings)
    return True


def _read_settings(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return "", {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the settings cannot be read: {error}", where=str(path)) from error
    try:
        settings = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise ConfigError(
            f"the settings are not valid JSON ({error})", where=str(path), fix="Repair them first. Nothing was changed"
        ) from error
    if not isinstance(settings, dict):
        raise ConfigError("the settings are not a JSON object", where=str(path), fix="Nothing was changed")
    return text, settings


def _groups(settings: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    """The hook groups of our event, added if missing. Raises ConfigError if they have another shape."""
    hooks = settings.setdefault("hooks", {})
    groups: Any = hooks.setdefault(EVENT, []) if isinstance(hooks, dict) else None
    if not isinstance(groups, list) or not all(
        isinstance(group, dict) and isinstance(group.get("hooks", []), list) for group in groups
    ):
        raise ConfigError(
            f"hooks.{EVENT} does not have the shape that Claude Code expects",
            where=str(path),
            fix="Nothing was changed",
        )
    return groups


def _remove_ours(groups: list[dict[str, Any]]) -> bool:
    """Removes our hook from the groups, and groups that are then empty; returns whether it was there."""
    removed = False
    for group in list(groups):
        hooks = group.get("hooks", [])
        others = [hook for hook in hooks if not _is_ours(hook)]
        if len(others) < len(hooks):
            removed = True
            group["hooks"] = others
            if not others:
                groups.remove(group)
    return removed


def _is_ours(hook: Any) -> bool:
    command = str(hook.get("command", "")) if isinstance(hook, dict) else ""
    return PORTABLE in command or "/".join(Path(transcript.__file__).parts[-3:]) in command.replace("\\", "/")


def _write_settings(path: Path, before: str, settings: dict[str, Any]) -> None:
    first = next((line for line in before.splitlines()[1:] if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip())] or "  "
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path.resolve()) as file:  # a symbolic link stays one
        file.write(json.dumps(settings, indent=indent, ensure_ascii=False) + "\n")


# -- the log -----------------------------------------------------------------------------------------------------------


def read_log(path: str | Path) -> list[Span]:
    """The delegations in a log, each as its last line has it, in the order of their start.

    Raises DataError without a log, and TraceError, naming the line, for a line that is not a span. A truncated line
    (its writer died) is left out.
    """
    spans: dict[tuple[str, str], Span] = {}
    for number, line in _numbered(path):
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            if line.startswith(b"{") and not line.rstrip().endswith(b"}"):
                continue
            raise TraceError(f"line {number} is not a span ({error})", where=str(path)) from error
        try:
            span = Span.from_dict(data) if "span_id" in data and "trace_id" in data else from_one_shot(data)
        except (ValueError, TypeError, AttributeError, OverflowError, TraceError) as error:
            raise TraceError(f"line {number} is not a span ({error})", where=str(path)) from error
        spans[span.trace_id, span.span_id] = span
    return sorted(spans.values(), key=lambda span: (span.start_ns, span.span_id))


def _numbered(path: str | Path) -> Iterator[tuple[int, bytes]]:
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        fix = "It is started when a subagent stops, after `agent-forge delegation install`"
        raise DataError("there is no delegation log yet", where=str(path), fix=fix) from None
    except OSError as error:
        raise DataError(f"the delegation log cannot be read: {error}", where=str(path)) from error
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            yield number, line


_ONE_SHOT = ("timestamp", "agent_type")
ORIGINAL = "agent_forge.one_shot"  # the attribute that holds the line a span was read from
_STATUS = {"success": "ok", "partial": "unset", "failure": "error"}


def from_one_shot(data: Mapping[str, Any]) -> Span:
    """A line of a ONE_SHOT v12 log as a span. Its reward counts as it stands; `ORIGINAL` among the attributes tells it
    from one that came from a check (ONE_SHOT's own hook took it from keywords in the answer)."""
    missing = [name for name in _ONE_SHOT if name not in data]
    end_ns = transcript.time_ns(data.get("timestamp"))
    if missing or end_ns is None:
        raise TraceError(f"has no usable {missing[0] if missing else 'timestamp'!r}")
    session = str(data.get("session_id") or "unknown")
    duration = data.get("duration_ms")
    attributes = {
        "agent_forge.tools": data.get("tool_sequence"),
        "agent_forge.tool_calls": data.get("tool_calls_count"),
        ORIGINAL: dict(data),
    }
    reward = data.get("reward")
    if reward is not None and not (type(reward) in (int, float) and 0 <= reward <= 1):
        raise TraceError(f"has the reward {reward!r:.40}, which does not lie in [0, 1]")
    return Span(
        transcript._digest("session", session, 32),
        transcript._digest("agent", f"{session}/{data.get('span_id') or json.dumps(dict(data), sort_keys=True)}", 16),
        f"delegate to {data['agent_type']}",
        kind="agent",
        start_ns=end_ns - int(duration * 1_000_000) if isinstance(duration, (int, float)) else end_ns,
        end_ns=end_ns,
        inputs=data.get("task_input"),
        outputs=data.get("task_output") or data.get("summary"),
        attributes={name: value for name, value in attributes.items() if value is not None},
        agent=str(data["agent_type"]),
        model=data.get("model") if data.get("model") != "unknown" else None,
        session=session,
        assessment=data.get("assessment"),
        status=_STATUS.get(str(data.get("result")), "unset"),
        reward=reward,
    )


def to_one_shot(span: Span) -> dict[str, Any]:
    """A delegation as a line of a ONE_SHOT v12 log; one that was read from such a line is that line, with a later
    verdict in place of its reward and result."""
    original = span.attributes.get(ORIGINAL)
    line = dict(original) if isinstance(original, Mapping) else _new_one_shot(span)
    if span.reward is not None and span.reward != line.get("reward"):
        line["reward"] = span.reward
        line["result"] = "success" if span.reward >= 0.75 else "partial" if span.reward >= 0.25 else "failure"
    return line


def _new_one_shot(span: Span) -> dict[str, Any]:
    ended = datetime.fromtimestamp((span.end_ns or span.start_ns) / 1e9, timezone.utc)
    line = {
        "timestamp": ended.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "span_id": span.span_id,
        "session_id": span.session,
        "agent_type": span.agent,
        "model": span.model,
        "task_input": _short(span.inputs),
        "task_output": _short(span.outputs),
        "tool_sequence": span.attributes.get("agent_forge.tools"),
        "tool_calls_count": span.attributes.get("agent_forge.tool_calls"),
        "duration_ms": None if span.duration_s is None else round(span.duration_s * 1000),
        "result": "failure" if span.status == "error" else None,
        "assessment": span.assessment,
    }
    return {name: value for name, value in line.items() if value is not None}


def _short(value: Any) -> str | None:
    text = value if isinstance(value, str) else None if value is None else json.dumps(value, ensure_ascii=False)
    return None if text is None else text[:200]


def write_one_shot(spans: Iterable[Span], out: str | Path) -> int:
    """Writes delegations as a ONE_SHOT log, completely or not at all; returns their number."""
    lines = [json.dumps(to_one_shot(span), ensure_ascii=False) for span in spans]
    with atomic_write(Path(out)) as file:
        file.writelines(f"{line}\n" for line in lines)
    return len(lines)


def verify(project: str | Path, span_id: str, verification: Verification) -> Span:
    """Appends a verdict on a delegation to the log, and returns the span with its reward. The id may be shortened.

    Raises UsageError if no delegation, or more than one, has that id, and for a verification that is undecided.
    """
    if verification.value is None:
        raise UsageError(f"the verification is undecided: {verification.evidence or verification.method}")
    path = log_path(project)
    matches = [span for span in read_log(path) if span.span_id.startswith(span_id)]
    if len(matches) != 1:
        what = (
            f"{len(matches)} delegations begin with {span_id!r}" if matches else f"there is no delegation {span_id!r}"
        )
        raise UsageError(what, where=str(path), fix="`agent-forge delegation ls` shows the ids")
    span = matches[0]
    judged = "agent_forge.verification" in span.attributes  # then its status came from an earlier verdict
    span.reward = reward_of([verification])
    span.attributes["agent_forge.verification"] = verification.to_json()
    span.attributes["agent_forge.verified_at"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
    if span.reward is not None and (span.status == "unset" or (judged and not span.error)):
        span.status = "ok" if span.reward >= 0.5 else "error"
    transcript.append_line(str(path), json.dumps(span.to_dict(), ensure_ascii=False, separators=(",", ":")))
    return span


def learned_rules(spans: Iterable[Span], table: TrustTable | None = None) -> list[str]:
    """Who should do what, a line per category in which the counts tell two subagents apart; otherwise nothing.

    One is better than another if the lower bound of its mean reward is above the other's upper bound.
    """
    table = table or TrustTable()
    table.observe_spans(spans)
    categories: dict[str, list[Candidate]] = {}
    for row in table.rows():
        if row["lower_bound"] is not None and row["category"] is not None:
            categories.setdefault(row["category"], []).append((row["agent"], row["model"]))
    lines = []
    for category, candidates in sorted(categories.items()):
        standing = table.standing(candidates, category)
        best = max(bound for bound in standing.values() if bound is not None)
        good = [candidate for candidate in candidates if standing[candidate] == best]
        bad = [candidate for candidate in candidates if candidate not in good]
        if bad:
            use, avoid = ([_figures(table, each, category) for each in group] for group in (good, bad))
            lines.append(f"{category}: give it to {' or '.join(use)}, not to {' or '.join(avoid)}")
    return lines


def _figures(table: TrustTable, candidate: Candidate, category: str) -> str:
    agent, model = candidate
    belief = table.belief(agent, model, category)
    low, high = table.lower_bound(agent, model, category), table.upper_bound(agent, model, category)
    name = f"{agent} ({model})" if model else str(agent)
    return f"{name} [{belief.mean:.2f}, n={belief.count:.0f}, {low:.2f} to {high:.2f}]"


_VERDICT = ("agent_forge.verification", "agent_forge.verified_at")


def for_store(spans: Iterable[Span]) -> Iterator[Span]:
    """The delegations as a store takes them. A finished span never changes there, so the verdict, which may come later,
    is a reward span of its own at the end of the delegation.
    """
    for span in spans:
        own = {name: value for name, value in span.attributes.items() if name not in _VERDICT}
        yield replace(span, reward=None, status="error" if span.error else "unset", attributes=own)
        if span.reward is not None:
            verdict = {name: span.attributes[name] for name in _VERDICT if name in span.attributes}
            yield Span(
                span.trace_id,
                transcript._digest("verdict", f"{span.span_id}/{json.dumps(verdict, sort_keys=True)}", 16),
                "verdict",
                kind="reward",
                parent_id=span.span_id,
                start_ns=span.end_ns or span.start_ns,
                end_ns=span.end_ns or span.start_ns,
                status="ok",
                attributes=verdict,
                agent=span.agent,
                model=span.model,
                category=span.category,
                session=span.session,
                reward=span.reward,
            )
