"""The hook that Claude Code calls when a subagent stops: reads the payload and the transcript, appends one span.

This file runs inside somebody's session, so it is a program of its own: it imports a handful of standard modules and
nothing from this package (`python -I -S transcript.py`, about 30 ms of CPU), writes nothing to stdout, and always exits
with 0. Errors are written to `.claude/delegation-errors.log`.

The payload (code.claude.com/docs/en/hooks#subagentstop) has session_id, cwd, agent_id, agent_type,
agent_transcript_path and last_assistant_message. Everything else is in the transcript: JSON lines with type, timestamp,
message (role, content blocks, model, usage), toolUseResult. One answer of the model is written as several lines that
share a message id; each repeats its usage, and only the last one is final.
"""

# Importing pathlib would take a fifth of this program's time.
# ruff: noqa: PTH103, PTH109, PTH111, PTH120
from __future__ import annotations

import json
import os
import re
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs 3 ms to import
    from collections.abc import Iterator
    from typing import Any

LOG = "delegation-log.jsonl"
ERRORS = "delegation-errors.log"
TEXT = 2_000  # characters of prompt and answer that are recorded
WHOLE = 8_000_000  # bytes of transcript that are read; of a longer one, the beginning and the end
_PREFIX = "agent_forge."

# The forms of common credentials, which are never recorded.
_SECRET = re.compile(
    r"(?:sk-|gh[pousr]_|github_pat_|xox[abpr]-|glpat-|AKIA|AIza)[A-Za-z0-9_\-]{12,}"
    r"|(?<![\w-])eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"
    r"|(?i:(?<=password=)|(?<=token=)|(?<=secret=)|(?<=api_key=))[^\s&\"']{6,}",
    re.DOTALL,
)
# Lines that the rules file (agents/data/delegation-rules.md) has the delegating agent add to the task.
_CATEGORY = re.compile(r"^[ \t]*category:[ \t]*([\w./-]{1,60})[ \t]*$", re.IGNORECASE | re.MULTILINE)
_ASSESSMENT = re.compile(r"^[ \t]*assessment:[ \t]*(.{1,200})$", re.IGNORECASE | re.MULTILINE)
_TOKENS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_GRADE = re.compile(r"(complexity|criticality|uncertainty)\s{0,9}[=:]\s{0,9}(low|medium|high)", re.IGNORECASE)


def read_transcript(path: str) -> dict[str, Any]:
    """The facts in a transcript: see `_Reading`. A damaged file yields fewer, a missing one none."""
    reading = _Reading()
    try:
        for line in _lines(path, reading):
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                reading.facts["damaged_lines"] = reading.facts.get("damaged_lines", 0) + 1
                continue
            if isinstance(entry, dict):
                reading.add(entry)
    except OSError:
        return {}
    return reading.result()


def _lines(path: str, reading: _Reading) -> Iterator[bytes]:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= WHOLE:
            yield from file
            return
        reading.facts["partly_read"] = True  # then counts are left out: they would be too small
        yield from file.read(WHOLE // 8).splitlines()[:-1]
        file.seek(size - WHOLE // 2)
        file.readline()
        yield from file


class _Reading:
    """Collects, entry by entry: prompt, answer, model, tools in order with their seconds and errors, tokens, times."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.tools: list[dict[str, Any]] = []
        self.called: dict[str, tuple[int, dict[str, Any]]] = {}  # tool_use id → its time, and its entry in `tools`
        self.usage: dict[str, dict[str, int]] = {}  # message id → its largest usage
        self.finished: set[str] = set()
        self.models: dict[str, int] = {}

    def add(self, entry: dict[str, Any]) -> None:
        message = entry.get("message")
        if entry.get("type") not in ("user", "assistant") or not isinstance(message, dict):
            return
        at = time_ns(entry.get("timestamp"))
        if at is not None:
            self.facts.setdefault("start_ns", at)
            self.facts["start_ns"] = min(self.facts["start_ns"], at)
            self.facts["end_ns"] = max(self.facts.get("end_ns", at), at)
        for name in ("version", "gitBranch", "agentId", "sessionId"):
            if entry.get(name):
                self.facts[name] = entry[name]
        if entry["type"] == "assistant":
            self._assistant(message, at, bool(entry.get("isApiErrorMessage")))
        else:
            self._user(message, at)

    def _assistant(self, message: dict[str, Any], at: int | None, failed: bool) -> None:
        self.facts["failed"] = failed
        if failed:
            self.facts["error"] = _text(message.get("content"))
        model = message.get("model")
        if isinstance(model, str) and model and model != "<synthetic>":  # Claude Code's own messages, about errors
            self.models[model] = self.models.get(model, 0) + 1
        name, usage = str(message.get("id") or len(self.usage)), message.get("usage")
        if isinstance(usage, dict) and model != "<synthetic>":
            counts = {kind: usage[kind] for kind in _TOKENS if type(usage.get(kind)) is int}
            seen = self.usage.get(name)
            if seen is None or counts.get("output_tokens", 0) >= seen.get("output_tokens", 0):
                self.usage[name] = counts
            if message.get("stop_reason"):
                self.finished.add(name)
        text = _text(message.get("content"))
        if text:
            self.facts["answer"] = text
        for block in _blocks(message, "tool_use"):
            tool = {"name": str(block.get("name")), "seconds": None, "error": False}
            self.tools.append(tool)
            if at is not None:
                self.called[str(block.get("id"))] = (at, tool)

    def _user(self, message: dict[str, Any], at: int | None) -> None:
        text = _text(message.get("content"))
        if text and "prompt" not in self.facts:
            self.facts["prompt"] = text
        for block in _blocks(message, "tool_result"):
            began, tool = self.called.get(str(block.get("tool_use_id")), (None, None))
            if tool is not None:
                tool["error"] = block.get("is_error") is True
                if began is not None and at is not None:
                    tool["seconds"] = (at - began) / 1e9

    def result(self) -> dict[str, Any]:
        facts = self.facts
        if self.models:
            facts["model"] = max(self.models, key=lambda model: self.models[model])
        if facts.get("partly_read"):
            return facts
        facts["tools"] = self.tools
        if self.usage:
            facts["usage"] = {kind: sum(counts.get(kind, 0) for counts in self.usage.values()) for kind in _TOKENS}
            facts["unfinished_messages"] = len(self.usage) - len(self.finished)
        return facts


def _blocks(message: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    content = message.get("content")
    return [x for x in content if isinstance(x, dict) and x.get("type") == kind] if isinstance(content, list) else []


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(block.get("text") or "") for block in _blocks({"content": content}, "text"))


def time_ns(text: object) -> int | None:
    """An ISO 8601 time with its zone, as Claude Code writes it, in ns since the epoch.

    >>> time_ns("2026-01-01T00:00:00.250Z")
    1767225600250000000
    """
    from datetime import datetime, timedelta, timezone

    try:
        moment = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    return (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1) * 1000


# -- the span ----------------------------------------------------------------------------------------------------------


def span_of(payload: dict[str, Any], *, keep_text: bool = True) -> dict[str, Any] | None:
    """The span of a SubagentStop payload, as a JSON object that `Span.from_dict` takes.

    None for an event without an agent type and without a transcript: Claude Code sends those for subagents that were
    never started (anthropics/claude-code issue 88995). There is no reward: a subagent that stopped has not been
    verified. The id derives from session and agent, so a second stop of the same subagent replaces the first.
    """
    facts = read_transcript(os.path.expanduser(_transcript_path(payload)))
    agent = str(payload.get("agent_type") or "") or _agent_type_beside(_transcript_path(payload))
    if not facts and not agent:
        return None
    session = str(payload.get("session_id") or facts.get("sessionId") or "unknown")
    agent_id = str(payload.get("agent_id") or facts.get("agentId") or time.time_ns())
    answer = payload.get("last_assistant_message") or facts.get("answer")
    now = time.time_ns()
    span = {
        "trace_id": _digest("session", session, 32),
        "span_id": _digest("agent", f"{session}/{agent_id}", 16),
        "name": f"delegate to {agent or 'subagent'}",
        "kind": "agent",
        "start_ns": facts.get("start_ns", now),
        "end_ns": facts.get("end_ns", now),
        "status": "error" if facts.get("failed") else "unset",
        "agent": agent or "subagent",
        "session": session,
        "attributes": _attributes(payload, facts, agent_id),
    }
    if facts.get("failed"):
        span["error"] = _clean(facts.get("error") or "the model's API failed", 500)
    span.update(_measured(facts))
    span.update(_stated(str(facts.get("prompt") or "")))
    if keep_text:
        span["inputs"], span["outputs"] = _clean(facts.get("prompt")), _clean(answer)
    return {name: value for name, value in span.items() if value is not None}


def _transcript_path(payload: dict[str, Any]) -> str:
    """The subagent's own transcript; before version 2.0.42 it had to be found from the session's."""
    if payload.get("agent_transcript_path"):
        return str(payload["agent_transcript_path"])
    session, agent_id = payload.get("transcript_path"), payload.get("agent_id")
    if session and agent_id:
        return f"{str(session)[: -len('.jsonl')]}/subagents/agent-{agent_id}.jsonl"
    return ""


def _agent_type_beside(path: str) -> str | None:
    """Versions that do not send agent_type store it in a small file beside the transcript."""
    try:
        with open(os.path.expanduser(path[: -len(".jsonl")] + ".meta.json"), encoding="utf-8") as file:
            agent_type = json.load(file).get("agentType")
    except (OSError, ValueError, AttributeError):
        return None
    return str(agent_type) if agent_type else None


def _attributes(payload: dict[str, Any], facts: dict[str, Any], agent_id: str) -> dict[str, Any]:
    """Facts without a field of their own, under OpenTelemetry's name or else with our prefix."""
    usage = facts.get("usage") or {}
    tools = facts.get("tools")
    facts_by_name = {
        "gen_ai.agent.id": agent_id,
        "gen_ai.usage.cache_read.input_tokens": usage.get("cache_read_input_tokens"),
        "gen_ai.usage.cache_creation.input_tokens": usage.get("cache_creation_input_tokens"),
        "tools": [tool["name"] for tool in tools] if tools is not None else None,
        "tool_calls": len(tools) if tools is not None else None,
        "tool_errors": sum(tool["error"] for tool in tools) if tools is not None else None,
        "tool_seconds": _total([tool["seconds"] for tool in tools]) if tools else None,
        "unfinished_messages": facts.get("unfinished_messages") or None,
        "damaged_lines": facts.get("damaged_lines"),
        "partly_read": facts.get("partly_read"),
        "transcript": _transcript_path(payload) or None,
        "client": f"claude-code {facts['version']}" if facts.get("version") else None,
        "git_branch": facts.get("gitBranch"),
        "permission_mode": payload.get("permission_mode"),
        "stopped_again": payload.get("stop_hook_active") or None,
    }
    named = {name if name.startswith("gen_ai.") else _PREFIX + name: value for name, value in facts_by_name.items()}
    return {name: value for name, value in named.items() if value is not None}


def _total(seconds: list[float | None]) -> float | None:
    measured = [value for value in seconds if value is not None]
    return sum(measured) if len(measured) == len(seconds) else None  # a tool without a result was not measured


def _measured(facts: dict[str, Any]) -> dict[str, Any]:
    usage = facts.get("usage")
    if not usage:
        return {"model": facts.get("model")}
    fresh = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    return {"model": facts.get("model"), "input_tokens": fresh, "output_tokens": usage["output_tokens"]}


def _stated(prompt: str) -> dict[str, Any]:
    """Category and assessment, if the task states them on lines of their own."""
    category, assessment = _CATEGORY.search(prompt), _ASSESSMENT.search(prompt)
    grades = {name.lower(): grade.lower() for name, grade in _GRADE.findall(assessment.group(1))} if assessment else {}
    return {"category": category.group(1) if category else None, "assessment": grades or None}


def _clean(text: object, limit: int = TEXT) -> str | None:
    return _SECRET.sub("[secret]", str(text))[:limit] if text else None


def _digest(kind: str, text: str, digits: int) -> str:
    from hashlib import sha256

    return sha256(f"{kind}:{text}".encode()).hexdigest()[:digits]


# -- the log -----------------------------------------------------------------------------------------------------------


def append_line(path: str, line: str, wait_s: float = 2.0) -> None:
    """Appends one line under an exclusive lock. Raises OSError (TimeoutError if the lock is not free in time)."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        _lock(fd, time.monotonic() + wait_s)
        size = os.fstat(fd).st_size
        torn = size > 0 and os.lseek(fd, size - 1, os.SEEK_SET) >= 0 and os.read(fd, 1) != b"\n"  # its writer died
        data = (("\n" if torn else "") + line + "\n").encode()
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)  # releases the lock


def _lock(fd: int, deadline: float) -> None:
    try:
        import fcntl
    except ImportError:  # not a POSIX system: there is no lock, only the append
        return
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError("another process holds the lock of the delegation log") from None
            time.sleep(0.005)


def project_folder(payload: dict[str, Any]) -> str:
    """The project folder according to Claude Code; a subagent's own working folder may be below it."""
    return os.environ.get("CLAUDE_PROJECT_DIR") or str(payload.get("cwd") or "") or os.getcwd()


def record(text: str, *, keep_text: bool = True) -> dict[str, Any] | None:
    """Appends the span of a payload to the project's log and returns it; None if there is nothing to record."""
    payload = json.loads(text)
    if not isinstance(payload, dict):
        raise ValueError("the payload is not a JSON object")
    span = span_of(payload, keep_text=keep_text)
    if span is not None:
        line = json.dumps(span, ensure_ascii=False, separators=(",", ":"))
        append_line(f"{project_folder(payload)}/.claude/{LOG}", line)
    return span


def main(arguments: list[str]) -> int:
    """The hook: payload on stdin, exit code 0 whatever happens."""
    text = ""
    try:
        text = sys.stdin.read()
        record(text, keep_text="--no-text" not in arguments)
    except BaseException as error:
        _note(text, error)
    return 0


def _note(text: str, error: BaseException) -> None:
    try:
        payload = json.loads(text)
    except ValueError:
        payload = {}
    try:
        folder = f"{project_folder(payload if isinstance(payload, dict) else {})}/.claude"
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        append_line(f"{folder}/{ERRORS}", f"{moment} {type(error).__name__}: {error}", wait_s=0.2)
    except BaseException:
        return  # nothing more can be done, and the session must go on


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
