"""The graph format, read a token at a time: `<node id="s3" depends="s1,s2">search("… {s1}")</node>` in `<graph>`.

A reader of its own rather than an XML parser's: it works on text that is still being written, takes the bare `&` and
`<` that models write, and has no entities to expand, so entity attacks have nothing to work with (declarations are
refused all the same).
"""

from __future__ import annotations

import html.entities
import re
from dataclasses import dataclass, field
from typing import Any

from agent_forge.plans.calls import NotACall, looks_like_call, read_call
from agent_forge.plans.documents import parts_from_json
from agent_forge.plans.faults import PlanFault, PlanLimits
from agent_forge.plans.json_text import NotJson, read_json
from agent_forge.plans.references import braced
from agent_forge.plans.task import Task

_STRING = r'"(?:[^"\\]|\\.)*"'
_TAG = re.compile(r"""<(/?)([A-Za-z][\w:.-]*)(?![\w:.-])((?:[^<>"']|"[^"]*"|'[^']*')*)>""")
_TAG_START = re.compile(r"<[/!?A-Za-z]")
_SPECIAL = re.compile(r"<!--.*?-->|<!\[CDATA\[(?P<data>.*?)\]\]>|<\?.*?\?>", re.DOTALL)
_ATTRIBUTE = re.compile(r"""\s*([\w:.-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'=]+))""")
_ENTITY = re.compile(r"&(#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]\w{0,31});")
_ID_TOKEN = re.compile(
    rf"""(?P<blank>[\s,;]+|and(?=[\s,;]))|(?P<quoted>{_STRING})|(?P<word>[^\s,;"]+)""", re.IGNORECASE
)
NO_IDS = re.compile(r"(?:none|null|nil|n/a|-|\[\])?", re.IGNORECASE)
_NAMES = {
    "depends_on": "depends",
    "dependencies": "depends",
    "deps": "depends",
    "foreach": "for_each",
    "tool": "action",
    "description": "goal",
}
_KNOWN = ("id", "depends", "goal", "action", "args", "parent", "for_each", "limit", "meta", "when", "until", "fallback",
          "first_of", "do")  # fmt: skip


class Broken(ValueError):
    """A text after which nothing more can be read."""


@dataclass
class _Node:
    """A node whose end has not come yet."""

    line: int
    faults_before: int
    attributes: dict[str, str]
    text: list[str] = field(default_factory=list)


class GraphReader:
    """Reads what stands between `<graph>` and `</graph>`; `tasks` fills with each node as it is closed."""

    def __init__(self, limits: PlanLimits) -> None:
        self.limits = limits
        self.tasks: list[Task] = []
        self.lines: list[int] = []
        self.faults: list[PlanFault] = []
        self.unread: set[str] = set()
        self.closed = False
        self._open: list[_Node] = []
        self.line = 1
        self._counted = 0

    def read(self, text: str, line: int) -> int:
        """Read the complete tokens at the start of a text that begins on a line; how far it got. Raises `Broken`."""
        at = 0
        self.line, self._counted = line, 0
        while not self.closed:
            tag = _TAG_START.search(text, at)  # any other < is text
            token_end = self._token(text, at, tag.start()) if tag else None
            if token_end is None:
                return at
            at = token_end
        return at

    def unfinished(self) -> str:
        """What was still open when the text stopped."""
        return f"inside node {self._open[-1].attributes.get('id', '?')!r}" if self._open else "before </graph>"

    def _token(self, text: str, at: int, start: int) -> int | None:
        """Take the text from `at` to `start` and the tag that begins there; None when it is not complete."""
        if text.startswith(("<!", "<?"), start):
            return self._special(text, at, start)
        tag = _TAG.match(text, start)
        if tag is None:
            return None
        self._text(text, at, start)
        closing, name, inside = tag.groups()
        empty = inside.endswith("/") and not closing
        self._tag(name.lower(), bool(closing), inside[:-1] if empty else inside)
        if empty and name.lower() == "node":
            self._end_node()
        return tag.end()

    def _special(self, text: str, at: int, start: int) -> int | None:
        match = _SPECIAL.match(text, start)
        if match is None:
            begun = text[start : start + 9]
            if any(begun.startswith(mark) or mark.startswith(begun) for mark in ("<!--", "<![CDATA[", "<?")):
                return None
            self._at(text, start)
            raise Broken("declarations (<!DOCTYPE, <!ENTITY) are not accepted")
        self._text(text, at, start)
        if match.group("data") is not None and self._open:
            self._open[-1].text.append(match.group("data"))
        return match.end()

    def _at(self, text: str, position: int) -> None:
        self.line += text.count("\n", self._counted, position)
        self._counted = position

    def _text(self, text: str, at: int, end: int) -> None:
        raw = text[at:end]
        if raw.strip():
            self._at(text, at + len(raw) - len(raw.lstrip()))
            if self._open:
                self._open[-1].text.append(self._decode(raw))
            else:
                self._fault(f"{raw.strip()[:60]!r} stands between the nodes")
        self._at(text, end)

    def _tag(self, name: str, closing: bool, inside: str) -> None:
        if name == "graph" and closing:
            if self._open:
                raise Broken(f"</graph> comes {self.unfinished()}")
            self.closed = True
        elif name == "node" and closing:
            if not self._open:
                raise Broken("</node> without a <node>")
            self._end_node()
        elif name == "node":
            if len(self._open) > self.limits.depth:
                self.faults.append(
                    PlanFault("too_large", f"nodes are nested more than {self.limits.depth} deep", line=self.line)
                )
                raise Broken("")
            before = len(self.faults)
            self._open.append(_Node(self.line, before, self._attributes(inside)))
        else:
            what = f"<{'/' if closing else ''}{name}> is not a part of a graph"
            self._fault(f"{what} (only <node> is; write &lt; for a < in text)")

    def _attributes(self, inside: str) -> dict[str, str]:
        attributes: dict[str, str] = {}
        inside = inside.rstrip()
        at = 0
        while at < len(inside):
            each = _ATTRIBUTE.match(inside, at)
            if each is None or len(attributes) > len(_KNOWN):
                self._fault(f'{inside[at : at + 40].strip()!r} is not an attribute such as id="s1"')
                break
            name = each.group(1).lower().replace("-", "_")
            name = _NAMES.get(name, name)
            if name in attributes:
                self._fault(f"a node has the attribute {name!r} twice")
            elif name not in _KNOWN:
                self._fault(f"a node has no attribute {name!r} (it may have {', '.join(_KNOWN)})")
            attributes[name] = self._decode(next(value for value in each.groups()[1:] if value is not None))
            at = each.end()
        return attributes

    def _decode(self, raw: str) -> str:
        if "&" not in raw:
            return raw
        return _ENTITY.sub(self._entity, raw)

    def _entity(self, match: re.Match[str]) -> str:
        name = match.group(1)
        if name[0] != "#":
            if (character := html.entities.html5.get(f"{name};")) is not None:
                return character
            self._fault(f"the entity &{name}; is not defined (write &amp; for a plain &)")
            return match.group()
        number = int(name[2:], 16) if name[1] in "xX" else int(name[1:])
        if 0xD800 <= number <= 0xDFFF or number > 0x10FFFF or number == 0:
            self._fault(f"{match.group()} is not a character")
            return ""
        return chr(number)

    def _end_node(self) -> None:
        node = self._open.pop()
        name = node.attributes.get("id", "").strip()
        if not name:
            self._fault("a node has no id", None, node.line)
        elif self._open and "parent" not in node.attributes:
            node.attributes["parent"] = self._open[-1].attributes.get("id", "").strip()
        try:
            task = _task(name, node.attributes, "".join(node.text).strip())
        except (NotACall, NotJson) as error:
            self._fault(f"node {name!r}: {error}", name, node.line)
        if len(self.faults) > node.faults_before:
            self.unread.add(name)
            return
        self.tasks.append(task)
        self.lines.append(node.line)

    def _fault(self, what: str, task: str | None = None, line: int | None = None) -> None:
        self.faults.append(PlanFault("malformed", what, task, line or self.line))


def read_ids(text: str) -> tuple[str, ...]:
    """The ids of a `depends` attribute: separated by commas, blanks or `and`; JSON strings for odd ones.

    >>> read_ids('s1, s2 and "a b"'), read_ids("none")
    (('s1', 's2', 'a b'), ())
    """
    if NO_IDS.fullmatch(text.strip()):
        return ()
    if text.strip()[:1] == "[" and text.strip()[-1:] == "]":
        text = text.strip()[1:-1]
    names: list[str] = []
    at = 0
    while at < len(text):
        match = _ID_TOKEN.match(text, at)
        if match is None:
            raise NotJson(f"depends: {text[at : at + 40]!r} is not a list of ids")
        if match.lastgroup == "quoted":
            names.append(str(read_json(match.group())))
        elif match.lastgroup == "word":
            names.append(match.group())
        at = match.end()
    return tuple(names)


def exact_text(text: str) -> str:
    """Text in which anything may stand: as it is, or as a JSON string when it begins with a quotation mark."""
    if text.startswith('"') and text.endswith('"') and len(text) > 1:
        try:
            value = read_json(text)
        except NotJson:
            return text
        return str(value)
    return text


def _task(name: str, attributes: dict[str, str], body: str) -> Task:
    fields: dict[str, Any] = {"depends_on": read_ids(attributes.get("depends", ""))}
    fields["goal"] = exact_text(attributes["goal"]) if "goal" in attributes else None
    if body and looks_like_call(body):
        if "action" in attributes or "args" in attributes:
            raise NotACall("it has a call and the attributes action or args")
        fields["action"], fields["args"] = read_call(body)
        fields["goal"] = body if fields["goal"] is None else fields["goal"]
    elif body and fields["goal"] is not None:
        raise NotACall(f"it has the attribute goal and the text {body[:40]!r}")
    elif body:
        fields["goal"] = exact_text(body)
    if "action" in attributes:
        fields["action"] = exact_text(attributes["action"])
    for key in ("args", "meta"):
        if key in attributes:
            fields[key] = _object(key, attributes[key])
    if "limit" in attributes:
        if not re.fullmatch(r"\s*\d{1,10}\s*", attributes["limit"]):
            raise NotJson(f"limit is {attributes['limit'][:40]!r}, not a whole number")
        fields["limit"] = int(attributes["limit"])
    if "for_each" in attributes:
        fields["for_each"] = braced(exact_text(attributes["for_each"]))
    for key in ("when", "until"):
        if key in attributes:
            fields[key] = exact_text(attributes[key])
    for key in ("fallback", "first_of"):
        if key in attributes:
            fields[key] = read_ids(attributes[key])
    if "do" in attributes:
        fields["do"] = parts_from_json(read_json(attributes["do"]))
    return Task(name, **{**fields, "goal": fields["goal"] or "", "parent": attributes.get("parent")})


def _object(key: str, text: str) -> dict[str, Any]:
    value = read_json(text)
    if not isinstance(value, dict):
        raise NotJson(f"{key} must be a JSON object")
    return value
