"""The graph format, written: well-formed XML that reads back as the same plan."""

from __future__ import annotations

import re

from agent_forge.plans.calls import looks_like_call, write_call
from agent_forge.plans.json_text import json_line
from agent_forge.plans.plan import Plan
from agent_forge.plans.task import Task
from agent_forge.plans.xml_read import NO_IDS

_NOT_XML = "\ufffe\uffff"  # beside control characters, what XML cannot hold; JSON strings carry it
_ODD = re.compile("[\x00-\x08\x0b-\x1f\ufffe\uffff]")
_PLAIN_ID = re.compile(r"[\w.:-]+")
_TEXT = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_IN_TEXT = str.maketrans(_TEXT)
_IN_ATTRIBUTES = str.maketrans({**_TEXT, "\n": "&#10;", "\r": "&#13;", "\t": "&#9;", '"': "&quot;"})


def to_xml(plan: Plan) -> str:
    """The plan in the graph format, every field of it.

    >>> print(to_xml(Plan([Task("s1", "Find it"), Task("s2", action="search", args={"query": "{s1}?"})])))
    <graph>
      <node id="s1">Find it</node>
      <node id="s2" goal="">search("{s1}?")</node>
    </graph>
    """
    return "\n".join(["<graph>", *(f"  {_node(task)}" for task in plan), "</graph>"])


def _node(task: Task) -> str:
    attributes: dict[str, str] = {"id": task.id}
    if task.depends_on:
        attributes["depends"] = ",".join(map(_id, task.depends_on))
    body = write_call(task.action, dict(task.args), _NOT_XML) if task.action is not None else None
    if body is not None:
        if body != task.goal:
            attributes["goal"] = _exact(task.goal)
    else:
        if task.action is not None:
            attributes["action"] = _exact(task.action)
        if task.args:
            attributes["args"] = json_line(task.args, _NOT_XML)
        if _plain_body(task.goal):
            body = task.goal
        elif task.goal:
            attributes["goal"] = _exact(task.goal)
    if task.parent is not None:
        attributes["parent"] = task.parent
    if task.for_each is not None:
        attributes["for_each"] = _exact(task.for_each)
    if task.limit is not None:
        attributes["limit"] = str(task.limit)
    if task.meta:
        attributes["meta"] = json_line(task.meta, _NOT_XML)
    if task.control is not None:
        conditions = (("when", task.when), ("until", task.until))
        attributes.update((name, _exact(text)) for name, text in conditions if text is not None)
        lists = (("fallback", task.fallback), ("first_of", task.first_of))
        attributes.update((name, ",".join(map(_id, names))) for name, names in lists if names)
        if task.do:
            attributes["do"] = json_line([part.as_dict() for part in task.do], _NOT_XML)
    written = " ".join(f'{name}="{value.translate(_IN_ATTRIBUTES)}"' for name, value in attributes.items())
    return f"<node {written}>{body.translate(_IN_TEXT)}</node>" if body else f"<node {written}/>"


def _id(name: str) -> str:
    return (
        name if _PLAIN_ID.fullmatch(name) and not NO_IDS.fullmatch(name) and name.lower() != "and" else json_line(name)
    )


def _plain_body(goal: str) -> bool:
    if not goal or goal != goal.strip() or goal.startswith('"') or looks_like_call(goal):
        return False
    return _ODD.search(goal) is None


def _exact(text: str) -> str:
    return json_line(text, _NOT_XML) if text.startswith('"') or _ODD.search(text) else text
