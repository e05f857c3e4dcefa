"""The line format, read a line at a time: `Task 3: Generate report | Dependencies: Task 1, Task 2`.

Models write it with bullets, numbers, bold type and dependencies on the next line. All of that is accepted; a line that
could hide a task or a dependency and cannot be read is a fault with its number, never skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from agent_forge.plans.calls import NotACall, read_call_at
from agent_forge.plans.documents import parts_from_json
from agent_forge.plans.faults import PlanFault
from agent_forge.plans.json_text import NotJson, read_json_at
from agent_forge.plans.line_words import STRING, NotAList, numbered_id, read_dependencies, unquoted
from agent_forge.plans.references import braced
from agent_forge.plans.task import Task

_MARKS = r"[*`]{0,3}"
_HEADER = re.compile(
    rf"""[ \t>\#]* (?:[-*+•◦▪–][ \t]+)? (?:\[[ xX]?\][ \t]*)? (?P<bold>{_MARKS})
    (?: (?:\(?\d{{1,6}}[.)][ \t]+)? (?P<bold2>{_MARKS})
        (?: (?P<label>(?:(?:(?:sub-?)?task|step)[ \t_\#-]*|t|\#)\d+(?:[._]\d+)*)
          | (?:(?:sub-?)?task|step)[ \t]+(?P<word>[^\W\d][\w-]*)
          | (?:(?:sub-?)?task|step)[ \t]+(?P<quoted>{STRING})
          | (?P<short>[^\W\d][\w-]*\d)(?=\W*[:：]) )
        (?P<close>{_MARKS}) [ \t]* (?:[:：.)=]|[-–—](?=\s))
      | (?P<number>\(?\d{{1,6}}[.):：])(?=[\s*`]|$) )
    (?P<close2>{_MARKS}) [ \t]* """,
    re.IGNORECASE | re.VERBOSE,
)
_KEYS = {
    "depends_on": r"dependenc(?:y|ies)|depends?(?:[ \t_-]*on)?|deps?|requires|prerequisites?",
    "action": r"action|tool",
    "args": r"args|arguments",
    "parent": r"parent|part[ \t]+of",
    "for_each": r"for[ \t_-]?each",
    "limit": r"limit",
    "meta": r"meta",
    # Words that prose uses too: only with a value that can be one.
    "when": rf"(?:only[ \t]+)?when(?={_MARKS}[ \t]*[:=][^|\n]*\{{)",
    "until": rf"(?:repeat[ \t]+)?until(?={_MARKS}[ \t]*[:=][^|\n]*\{{)",
    "fallback": r"fallbacks?",
    "first_of": r"first[ \t_-]?of",
    "do": rf"do(?={_MARKS}[ \t]*[:=]{_MARKS}[ \t]*\[)",
}
_KEY = "|".join(f"(?P<{name}>{words})" for name, words in _KEYS.items())
FIELD = re.compile(rf"\|[ \t]*{_MARKS}(?:{_KEY}){_MARKS}[ \t]*[:=]{_MARKS}[ \t]*", re.IGNORECASE)
_FIELD_LINE = re.compile(rf"[ \t]*(?:[-*+•|][ \t]*)?{_MARKS}(?=(?:{_KEY}){_MARKS}[ \t]*[:=])", re.IGNORECASE)
_DEPENDENCY_WORDS = r"(?:dependenc(?:y|ies)|depends[ \t]+on|deps)"
_TAIL = re.compile(
    rf"""(?:[(\[]|[-–—;,.][ \t]|[ \t])[ \t]{{0,3}}{_MARKS}{_DEPENDENCY_WORDS}{_MARKS}[ \t]*:?{_MARKS}
    (?P<list>[^()\[\]]*)[)\]]?{_MARKS}[.]?[ \t]*\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_BRACKETED = re.compile(
    rf"""[(\[{{][ \t]*{_MARKS}(?:depends?|requires|needs|after)\b{_MARKS}[ \t]*:?{_MARKS}
    (?P<list>[^()\[\]{{}}]*)[)\]}}]{_MARKS}[.]?[ \t]*\Z""",
    re.IGNORECASE | re.VERBOSE,
)
# `| Dependecies: Task 1`, `(blocked by: T2)`: an unknown name, and a list of tasks after its colon.
_UNKNOWN_FIELD = re.compile(
    rf"""(?:[|(\[]|\n)[ \t]*{_MARKS}(?P<key>[^\W\d][\w \t()-]{{0,40}}?){_MARKS}[ \t]*[:=：]{_MARKS}
    (?P<list>[^|()\[\]\n]*)[)\]]?{_MARKS}[.]?[ \t]*(?=\||\n|\Z)""",
    re.VERBOSE,
)
_LONGEST_TAIL = 2000
_TASK_WORD = re.compile(r"\b(?:task|step|t)[ \t_#-]*\d|#\d", re.IGNORECASE)
_BROKEN_HEADER = re.compile(rf"[ \t>#]*(?:[-*+•][ \t]+)?{_MARKS}(?:(?:sub-?)?task|step)[ \t_#-]*\d", re.IGNORECASE)
_BULLET = re.compile(r"[ \t]*(?:[-*+•◦▪][ \t]+|\(?\d{1,6}[.)])")
_DECORATION = re.compile(r"(?:```\w*|~~~\w*|[-=*_#]{3,}|[#>*_ \t]*[^|:\d]{0,60}:[*_]*|#+[^|\d]*)?")
NAMED_REFERENCE = re.compile(r"\{[ \t]*((?:(?:sub-?)?task|step)[ \t_#-]*\d+|t\d+)(?=[.\[}\s])[ \t]*", re.IGNORECASE)


@dataclass
class _Draft:
    """A task being read: its parts as they come."""

    id: str
    line: int
    goal: list[str]
    fields: dict[str, Any] = field(default_factory=dict)
    exact: bool = False  # the goal was a JSON string
    bad: bool = False


class LineReader:
    """Feed it lines in order; `tasks` fills with each task as it becomes complete.

    A task whose line holds its dependencies is complete at the end of the line; otherwise it stays open for the lines
    that follow, until the next task or `close`. With `tagged=False` there are no tags that say where the plan is, so
    prose around it is passed over.
    """

    def __init__(self, tagged: bool = True) -> None:
        self.tagged = tagged
        self.tasks: list[Task] = []
        self.lines: list[int] = []
        self.faults: list[PlanFault] = []
        self.unread: set[str] = set()
        self.number = 0
        self._draft: _Draft | None = None
        self._names: dict[str, str] = {}
        self._exact: set[str] = set()

    def read(self, line: str, number: int) -> None:
        """One line, without its end."""
        self.number = number
        if not line.strip():
            return
        header = _HEADER.match(line)
        # `Step 2:` begins a task; a header that is only a short word and a digit may be a key.
        field_line = None if header is not None and header.group("short") is None else _FIELD_LINE.match(line)
        if header is not None and field_line is None:
            self._finish()
            self._begin(header, line)
        elif field_line is None:
            self._other(line)
        elif self._draft is None:
            text = line[field_line.end() :]
            self._fault(f"{text[:40].strip()!r} does not belong to a task that is still open")
        else:
            self._fields(f"| {line[field_line.end() :]}".rstrip(), 0, self._draft)

    def close(self, cut: bool = False) -> None:
        """The end of the plan; `cut` when the text stopped without saying that it was over."""
        draft = self._draft
        if cut and draft is not None and "depends_on" not in draft.fields:
            self._fault(f"the text stops inside task {draft.id!r}, before its dependencies", draft)
        self._finish()

    def _begin(self, header: re.Match[str], line: str) -> None:
        name = self._name(header)
        draft = self._draft = _Draft(name, self.number, [])
        self._names.setdefault(name.casefold(), name)
        self._exact.add(name)
        rest = line[header.end() :].rstrip()
        bold = header.group("bold") or header.group("bold2") or ""
        closed = header.group("close") or header.group("close2")
        at = self._goal(rest, draft, bold if not closed else "")
        self._fields(rest, at, draft)
        if "depends_on" in draft.fields:
            self._finish()

    def _name(self, header: re.Match[str]) -> str:
        if header.group("number"):
            return f"task_{int(header.group('number').strip('().:： '))}"
        if header.group("quoted"):
            try:
                return unquoted(header.group("quoted"))
            except NotAList as error:
                self._fault(str(error))
                return header.group("quoted")
        text: str = header.group("label") or header.group("word") or header.group("short")
        return numbered_id(text) or text

    def _goal(self, rest: str, draft: _Draft, bold: str) -> int:
        """Read the goal at the start of a line's rest; the position where the fields begin."""
        if rest.startswith('"'):
            try:
                goal, end = read_json_at(rest, 0)
            except NotJson:
                goal, end = None, 0
            if goal is not None and (end == len(rest) or rest[end:].lstrip().startswith("|")):
                draft.goal, draft.exact = [goal], True
                return end
        end = _next_field(rest, 0)
        goal = rest[:end].strip()
        if bold and goal.endswith(bold):
            goal = goal[: -len(bold)].strip()
        draft.goal = [goal] if goal else []
        return end

    def _fields(self, text: str, at: int, draft: _Draft) -> None:
        """Read `| Key: value` one after another to the end of the text."""
        while rest := text[at:].lstrip(" \t"):
            at = len(text) - len(rest)
            match = FIELD.match(text, at)
            if match is None:
                if rest.strip(" \t*|"):
                    self._fault(f"{rest[:40]!r} in task {draft.id!r} cannot be read", draft)
                return
            name = str(match.lastgroup)
            try:
                fields, at = self._value(name, text, match.end())
            except (NotAList, NotACall, NotJson) as error:
                self._fault(f"{name} of task {draft.id!r}: {error}", draft)
                fields, at = {name: None}, _next_field(text, match.end())
            if not draft.fields.keys().isdisjoint(fields):
                self._fault(f"task {draft.id!r} has {name} twice", draft)
            draft.fields.update(fields)

    def _value(self, name: str, text: str, start: int) -> tuple[dict[str, Any], int]:
        """The value of one field, as fields of the task, and where it ends."""
        if name in ("args", "meta"):
            value, end = read_json_at(text, start)
            if not isinstance(value, dict):
                raise NotJson('an object is expected, such as {"key": 1}')
            return {name: value}, end
        if name == "do":
            value, end = read_json_at(text, start)
            return {name: parts_from_json(value)}, end
        if name in ("when", "until") and text.startswith('"', start):
            try:
                value, end = read_json_at(text, start)
            except NotJson:
                value, end = None, start
            if isinstance(value, str) and (end == len(text.rstrip()) or FIELD.match(text[end:].lstrip())):
                return {name: value}, end
        if name == "action":
            if text.startswith('"', start):
                value, end = read_json_at(text, start)
                return {name: value}, end
            action, args, end = read_call_at(text, start)
            return ({name: action, "args": args} if args else {name: action}), end
        end = _next_field(text, start)
        return {name: self._short_value(name, text[start:end].strip())}, end

    def _short_value(self, name: str, value: str) -> Any:
        if name in ("depends_on", "fallback", "first_of"):
            return tuple(read_dependencies(value, self._word))
        if name in ("when", "until"):
            return value
        if name == "limit":
            if not re.fullmatch(r"\d{1,10}", value):
                raise NotAList(f"{value!r} is not a whole number")
            return int(value)
        if name == "for_each":
            return str(read_json_at(value, 0)[0]) if value.startswith('"') else braced(value)
        names = read_dependencies(value, self._word)
        if len(names) != 1:
            raise NotAList(f"{value!r} is not one task")
        return names[0]

    def _word(self, text: str) -> str:
        """Which id a plain word means: itself, or the earlier one that differs from it only in case."""
        return text if text in self._exact else self._names.get(text.casefold(), text)

    def _other(self, line: str) -> None:
        """A line that begins no task and no field: more of an open goal, decoration, prose, or a fault."""
        draft = self._draft
        telling = (
            _BROKEN_HEADER.match(line)
            or _BULLET.match(line)
            or FIELD.search(line)
            or _TAIL.search(line, len(line) - _LONGEST_TAIL)
        )
        if _BROKEN_HEADER.match(line):
            self._fault(f"{line.strip()[:60]!r} is not `Task N: goal | Dependencies: …` (a colon after the number?)")
        elif draft is not None and not telling and not draft.exact and "depends_on" not in draft.fields:
            if self.tagged or line[:1] in " \t":
                draft.goal.append(line.strip())
        elif draft is not None and not draft.exact and not _BULLET.match(line) and FIELD.search(line):
            end = _next_field(line, 0)
            if line[:end].strip():
                draft.goal.append(line[:end].strip())
            self._fields(line.rstrip(), end, draft)
        elif _DECORATION.fullmatch(line.strip(" \t")) or (not self.tagged and not telling):
            return
        elif self.tagged or self.tasks or draft or FIELD.search(line):
            self._fault(f"{line.strip()[:60]!r} is not a task: a task begins with `Task N:`")

    def _finish(self) -> None:
        """Make the open task complete."""
        draft, self._draft = self._draft, None
        if draft is None:
            return
        goal = "\n".join(draft.goal)
        if not draft.exact:
            if "depends_on" not in draft.fields:
                goal = self._tail(goal, draft)
            goal = NAMED_REFERENCE.sub(lambda match: "{" + str(numbered_id(match.group(1))), goal)
        if draft.bad:
            self.unread.add(draft.id)
            return
        self.tasks.append(Task(draft.id, goal, **{"depends_on": (), **draft.fields}))
        self.lines.append(draft.line)

    def _tail(self, goal: str, draft: _Draft) -> str:
        """Dependencies in the goal itself: `Compare them (depends on Task 1 and Task 2)`."""
        start = max(0, len(goal) - _LONGEST_TAIL)
        match = _TAIL.search(goal, start) or _BRACKETED.search(goal, start)
        if match is None:
            self._refuse_unknown_field(goal[start:], draft)
            return goal
        listed = match.group("list")
        try:
            names = read_dependencies(listed, self._word)
        except NotAList as error:
            if _TASK_WORD.search(listed):
                self._fault(f"dependencies of task {draft.id!r}: {error}", draft, draft.line)
            return goal
        if not all(name.startswith("task_") or name in self._exact for name in names):
            return goal  # "… depends on the weather" is prose
        draft.fields["depends_on"] = tuple(names)
        return goal[: match.start()].rstrip(" \t\n|")

    def _refuse_unknown_field(self, goal: str, draft: _Draft) -> None:
        """A misspelt `Dependencies:` must not become part of the goal, and the dependency be lost."""
        for match in _UNKNOWN_FIELD.finditer(goal):
            listed = match.group("list")
            if _TASK_WORD.search(listed) and _is_list(listed):
                what = f"{match.group('key').strip()!r} of task {draft.id!r} is unknown"
                self._fault(f"{what}; did you mean `Dependencies: {listed.strip()}`?", draft, draft.line)

    def _fault(self, what: str, draft: _Draft | None = None, line: int | None = None) -> None:
        if draft is not None:
            draft.bad = True
        self.faults.append(PlanFault("malformed", what, draft.id if draft else None, line or self.number))


def _next_field(text: str, start: int) -> int:
    match = FIELD.search(text, start)
    return match.start() if match else len(text)


def _is_list(text: str) -> bool:
    try:
        return bool(read_dependencies(text, str))
    except NotAList:
        return False
