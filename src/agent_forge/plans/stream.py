"""Reading a plan while it is being written: each task the moment it is complete.

The same machine reads whole texts, so a plan that was streamed is the plan that would have been parsed.
"""

from __future__ import annotations

import re

from agent_forge.plans.documents import plan_from_json, plan_from_yaml
from agent_forge.plans.faults import TEXT_LIMITS, PlanFault, PlanInvalid, PlanLimits
from agent_forge.plans.lines_read import LineReader
from agent_forge.plans.plan import Plan
from agent_forge.plans.task import Task
from agent_forge.plans.xml_read import Broken, GraphReader

FORMATS = ("lines", "xml", "json", "yaml")
_FENCE = re.compile(
    r"^[ \t]*```[ \t]*(?:(json|ya?ml)[ \t]*)?\r?\n(.*?)^[ \t]*```", re.DOTALL | re.IGNORECASE | re.MULTILINE
)
_DOCUMENT_FENCE = re.compile(r"```[ \t]*(?:json|ya?ml)\b", re.IGNORECASE)
_COMMENTS = re.compile(r"\s*(?:#[^\n]*\n\s*)*")
_YAML_START = re.compile(r"---|[\"']?(?:id|name|description|version|tasks|steps)[\"']?[ \t]*:")
_YAML_KEY = re.compile(r"---|[\"']?[A-Za-z_][\w-]*[\"']?[ \t]*:")
_YAML_TASKS = re.compile(r"^(?:---[ \t]+)?[\"']?(?:tasks|steps)[\"']?[ \t]*:", re.MULTILINE)
_OPENING = re.compile(r"<(think|plan|graph)(?:\s[^<>]{0,900})?>|<!(?:DOCTYPE|ENTITY)", re.IGNORECASE)
_THINK_END = re.compile(r"</think[ \t]*>|^[ \t]*(?=<(?:plan|graph)[\s>])", re.IGNORECASE | re.MULTILINE)
_THOUGHT = re.compile(r"<think>.*?</think>", re.IGNORECASE | re.DOTALL)
_PLAN_END = re.compile(r"</plan[ \t]*>", re.IGNORECASE)
_AGAIN = re.compile(r"<(?:plan|graph)(?:\s[^<>]{0,900})?>|</(?:plan|graph)[ \t]*>", re.IGNORECASE)
_LONGEST_TAG = 1000


def find_document(text: str) -> tuple[str, str] | None:
    """The format (`json` or `yaml`) and the text of a document, whole or in a code fence; None when there is none.

    >>> find_document("Here it is:\\n```json\\n[]\\n```")
    ('json', '[]\\n')
    """
    start = text[_comments_end(text) :]
    if start[:1] in ("{", "["):
        return "json", text
    if _YAML_KEY.match(start) and _YAML_TASKS.search(start):
        return "yaml", text
    for fence in _FENCE.finditer(text):
        language, inside = fence.groups()
        if language:
            return ("json" if language.lower() == "json" else "yaml"), inside
        if (match := find_document(inside)) is not None:
            return match
    return None


def _comments_end(text: str) -> int:
    match = _COMMENTS.match(text)
    return match.end() if match else 0


class PlanStream:
    """Takes the text of a plan in pieces of any size.

    Tasks come out of `feed` as soon as they are complete, in order, while the plan stands in `<plan>` or `<graph>`
    tags (text before them, such as `<think>`, is passed over). Text without tags, JSON and YAML are read at the end.
    `finish` returns the whole plan or raises `PlanInvalid` with all faults; a text that stops before its closing tag is
    one. `faults` are those so far.

    >>> stream = PlanStream()
    >>> [task.goal for task in stream.feed("<plan>Task 1: Look | Dependencies: none\\nTask 2: Tell | Depend")]
    ['Look']
    >>> [task.depends_on for task in stream.feed("encies: Task 1\\n</plan>")]
    [('task_1',)]
    >>> stream.finish().order()
    ['task_1', 'task_2']
    """

    def __init__(self, format: str | None = None, *, limits: PlanLimits = TEXT_LIMITS, whole: bool = False) -> None:
        self.limits = limits
        self._format = format
        self._whole = whole  # the text is all there is: an unclosed <plan> is not a stream that broke off
        self._parts: list[str] = []
        self._pending: list[str] = []
        self._bytes = 0
        self._line = 1
        self._declared: int | None = None  # the line of a declaration before the plan
        self._state = "start"
        self._reader: LineReader | GraphReader | None = None
        self._own_faults: list[PlanFault] = []
        self._returned = 0

    @property
    def faults(self) -> list[PlanFault]:
        """The faults so far, before the plan as a whole is checked."""
        return [*self._own_faults, *(self._reader.faults if self._reader else [])]

    def feed(self, text: str) -> list[Task]:
        """The tasks that became complete with this piece of text."""
        if self._state == "stopped" or not text:
            return []
        self._bytes += len(text.encode("utf-8", "surrogatepass"))
        if self._bytes > self.limits.text_bytes:
            return self._stop("too_large", f"the text has more than {self.limits.text_bytes} bytes")
        if not self._parts:
            text = text.removeprefix("\ufeff")
        self._parts.append(text)
        self._pending.append(text)
        if self._state == "documents" or not (">" in text or "\n" in text):
            return []  # nothing is complete before the end of a line or of a tag
        self._advance("".join(self._pending))
        return self._new_tasks()

    def finish(self) -> Plan:
        """The whole plan; raises `PlanInvalid` with every fault."""
        text = "".join(self._parts)
        if self._state in ("start", "documents"):
            if self._format in ("json", "yaml") or (self._format is None and find_document(text)):
                return self._read_untagged(text)
            self._state, self._pending = "outside", [text]
        if self._state != "stopped":
            self._advance("".join(self._pending))
            rest = "".join(self._pending)
            if self._state == "plan" and rest.strip():
                self._reader, self._state = LineReader(), "lines"
            if self._reader is None and self._state != "stopped":
                return self._read_untagged(text)
            self._end(rest)
        reader = self._reader or LineReader()
        expected = {"lines": LineReader, "xml": GraphReader}.get(self._format or "")
        if expected and self._reader and not isinstance(reader, expected):
            self._stop("malformed", f"the text is not in the format {self._format}")
        return Plan.parsed(reader.tasks, reader.lines, self.faults, self.limits, reader.unread)

    def _new_tasks(self) -> list[Task]:
        if self._reader is None:
            return []
        new = self._reader.tasks[self._returned :]
        self._returned += len(new)
        if self._returned > self.limits.tasks:  # which the plan reports
            self._state, self._pending = "stopped", []
        return new

    def _advance(self, text: str) -> None:
        """Read as much as is complete, keep the rest."""
        while text:
            step = getattr(self, f"_in_{self._state}")
            state = self._state
            used = step(text)
            self._line += text.count("\n", 0, used)
            text = text[used:]
            if not used and state == self._state:
                break
        self._pending = [text] if text else []

    def _in_start(self, text: str) -> int:
        """Whether this is a document of another kind shows in its first line that says anything."""
        start = text[_comments_end(text) :]
        if "\n" not in start and "<" not in start:
            return 0
        other = start[:1] in ("{", "[") or _YAML_START.match(start) or _DOCUMENT_FENCE.match(start)
        documents = self._format in ("json", "yaml") or (self._format is None and other)
        self._state = "documents" if documents else "outside"
        return 0

    def _in_documents(self, text: str) -> int:
        return 0

    def _in_stopped(self, text: str) -> int:
        return len(text)

    def _in_outside(self, text: str) -> int:
        match = _OPENING.search(text)
        if match is None:
            start = text.rfind("<")
            return start if start >= 0 and len(text) - start < _LONGEST_TAG else len(text)
        name = (match.group(1) or "").lower()
        if not name:  # harmless in prose, not before a graph
            self._declared = self._line + text.count("\n", 0, match.start())
        elif name == "graph" and self._declared is not None:
            self._line = self._declared
            self._stop("malformed", "declarations (<!DOCTYPE, <!ENTITY) are not accepted")
            return len(text)
        elif name == "graph":
            self._reader = GraphReader(self.limits)
            self._state = "graph"
        else:
            self._state = "think" if name == "think" else "plan"
        return match.end()

    def _in_think(self, text: str) -> int:
        match = _THINK_END.search(text)
        if match is None:
            return max(text.rfind("\n") + 1, 0)
        self._state = "outside"
        return match.end()

    def _in_plan(self, text: str) -> int:
        """Just after `<plan>`: a graph may stand in it, otherwise lines."""
        start = text.lstrip()
        if not start or ("<graph".startswith(start.lower()) and len(start) < 6):
            return 0
        if start[:6].lower() == "<graph":
            self._state = "outside"
            return len(text) - len(start)
        self._reader = LineReader()
        self._state = "lines"
        return 0

    def _in_lines(self, text: str) -> int:
        reader = self._reader
        assert isinstance(reader, LineReader)
        end = _PLAN_END.search(text)
        complete = end.start() if end else text.rfind("\n") + 1
        for number, line in enumerate(text[:complete].split("\n") if complete else [], self._line):
            reader.read(line.rstrip("\r"), number)
            if len(reader.tasks) > self.limits.tasks:
                break
        if end is not None:
            reader.close()
            self._state = "after"
            return end.end()
        return complete

    def _in_graph(self, text: str) -> int:
        reader = self._reader
        assert isinstance(reader, GraphReader)
        try:
            used = reader.read(text, self._line)
        except Broken as error:
            self._line = reader.line
            self._stop("malformed", str(error))
            return len(text)
        if reader.closed:
            self._state = "after"
        return used

    def _in_after(self, text: str) -> int:
        """After the plan: anything but a second one."""
        match = _AGAIN.search(text)
        if match is None:
            start = text.rfind("<")
            return start if start >= 0 and len(text) - start < _LONGEST_TAG else len(text)
        again = match.group().lower()
        if again.startswith("</plan") and isinstance(self._reader, GraphReader):
            return match.end()  # <plan><graph>…</graph></plan>
        self._line += text.count("\n", 0, match.start())
        self._stop("malformed", f"{again[:20]} after the end of the plan: one text holds one plan")
        return len(text)

    def _end(self, rest: str) -> None:
        """The text is over: what is left of it, and whether it was complete."""
        if self._state == "lines":
            reader = self._reader
            assert isinstance(reader, LineReader)
            if rest:
                reader.read(rest.rstrip("\r"), self._line)
            if not self._whole:
                self._stop("malformed", "the text stops before </plan>")
            reader.close(cut=True)
        elif self._state == "graph":
            assert isinstance(self._reader, GraphReader)
            self._line += rest.count("\n")
            self._stop("malformed", f"the text stops {self._reader.unfinished()}")

    def _stop(self, code: str, what: str) -> list[Task]:
        if what:
            self._own_faults.append(PlanFault(code, what, line=self._line))
        self._state = "stopped"
        self._pending = []
        return []

    def _read_untagged(self, text: str) -> Plan:
        """JSON, YAML, or lines without tags."""
        kind, inside = find_document(text) or (self._format, text)
        kind = self._format or kind
        if kind in ("json", "yaml"):
            return (plan_from_json if kind == "json" else plan_from_yaml)(inside, self.limits)
        if not text.strip():
            raise PlanInvalid([PlanFault("empty_plan", "the text is empty")])
        if self._state == "plan":
            raise PlanInvalid([PlanFault("empty_plan", "there is nothing after <plan>")])
        if self._state == "think" or kind == "xml":
            what = "there is no <graph>" if kind == "xml" else "the text stops inside <think>"
            raise PlanInvalid([PlanFault("malformed", what, line=self._line)])
        return _read_bare(text, self.limits)


def _read_bare(text: str, limits: PlanLimits) -> Plan:
    """Lines without tags; thinking is left out, line numbers stay."""
    # Only up to the last </think>: after it every <think> would search the rest of the text in vain.
    cut = max((match.end() for match in re.finditer("</think>", text, re.I)), default=0)
    thought = _THOUGHT.sub(lambda match: "\n" * match.group().count("\n"), text[:cut]) + text[cut:]
    reader = LineReader(tagged=False)
    for number, line in enumerate(thought.split("\n"), 1):
        reader.read(line.rstrip("\r"), number)
        if len(reader.tasks) > limits.tasks:
            break
    reader.close()
    if not (reader.tasks or reader.faults):
        tried = "no <plan>, no <graph>, no task lines, neither JSON nor YAML"
        raise PlanInvalid([PlanFault("malformed", f"there is no plan in the text: {tried}")])
    return Plan.parsed(reader.tasks, reader.lines, reader.faults, limits, reader.unread)


def parse_plan(text: str, format: str | None = None, *, limits: PlanLimits = TEXT_LIMITS) -> Plan:
    """The plan in a text, in whichever of the formats it is written; raises `PlanInvalid` with every fault.

    >>> parse_plan('<graph><node id="a">search("x")</node><node id="b">answer("{a}")</node></graph>').levels()
    [['a'], ['b']]
    """
    if format is not None and format not in FORMATS:
        raise ValueError(f"format is {format!r}, not one of {', '.join(FORMATS)}")
    stream = PlanStream(format, limits=limits, whole=True)
    stream.feed(text)
    return stream.finish()
