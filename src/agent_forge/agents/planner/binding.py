"""From words to actions: what a task means whose goal, or whose call of `search` or `answer`, is only text.

Models write plans in words ("date of birth of Ada Lovelace"), and so do people. This is the only place where such
words are read; the worker acts on `action` and `args` alone. What cannot be read here stays a task in words, which a
model has to carry out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent_forge.agents.actions import ANSWER, CHOICES, OPERATIONS, SEARCH, Combine, LookUp, Meaning
from agent_forge.agents.language import VERBS
from agent_forge.agents.planner.arguments import arguments
from agent_forge.agents.planner.direct import WHOLE
from agent_forge.agents.planner.tools import ToolSpec
from agent_forge.agents.relations import NOUNS, canonical
from agent_forge.plans import Plan, Task, find_references, whole_reference
from agent_forge.tasks.words import words as words_in

LONGEST_GOAL = 2000  # characters; longer texts are not goals in our words

_TOOL_NAME = re.compile(r"(?:call |use |run )?`?([A-Za-z_][\w.-]*)`?")
_RELATION = re.compile(r"[\w' -]+")
# Relations whose names contain "of", so that "date of birth of X" is not cut after "date".
_WITH_OF = sorted(
    (f"{form} of " for forms in NOUNS.values() for form in forms if " of " in form), key=len, reverse=True
)


def bind_tools(plan: Plan, tools: Sequence[ToolSpec], *, reads: bool = True) -> Plan:
    """The plan with an action for every task whose words name a tool, a look-up or a combination.

    `reads=False` leaves searches alone: a caller's own search then returns its results as they are.
    """
    tasks = [bind_task(task, tools, reads=reads) for task in plan]
    if all(bound is task for bound, task in zip(tasks, plan, strict=True)):
        return plan
    return Plan(tasks, version=plan.version, provenance=plan.provenance)


def bind_task(task: Task, tools: Sequence[ToolSpec], *, reads: bool = True) -> Task:
    """The task with the action and arguments that its words stand for; unchanged if they stand for none.

    >>> bind_task(Task("s3", "difference of {s1} and {s2}"), ()).args
    {'operation': 'difference', 'operands': ['{s1}', '{s2}']}
    """
    if task.control is not None and task.do:
        parts = tuple(bind_task(part, tools, reads=reads) for part in task.do)
        return task if parts == task.do else replace(task, control=replace(task.control, do=parts))
    if task.action not in (None, SEARCH, ANSWER) or task.meta.get(WHOLE) or task.first_of:
        return task
    names = {tool.name: tool for tool in tools}
    if task.action is None and (bound := _call_of_a_tool(task, names)) is not None:
        return bound
    text = words_of(task)
    meaning = read_goal(text)
    if isinstance(meaning, LookUp) and reads and SEARCH in names and task.action != ANSWER:
        return replace(task, goal=text, action=meaning.action, args=meaning.args)
    if isinstance(meaning, Combine) and ANSWER not in names and task.action != SEARCH:
        # "if they are the same" names no operands: they are what the task waits for
        operands = meaning.operands or tuple(f"{{{name}}}" for name in task.depends_on)
        if operands:
            return replace(task, goal=text, action=meaning.action, args=replace(meaning, operands=operands).args)
    return task


def words_of(task: Task) -> str:
    """The task in words: its goal, or the text of its call if the goal only repeats the call.

    >>> words_of(Task("s1", 'search("otters")', "search", {"query": "otters"}))
    'otters'
    """
    text = task.args.get("query") or task.args.get("text")
    if isinstance(text, str) and (not task.goal or task.goal.startswith(f"{task.action}(")):
        return text
    return task.goal


def _call_of_a_tool(task: Task, tools: dict[str, ToolSpec]) -> Task | None:
    """ "send_sms: tell Ann", "use calculator to add them" and "search(otters)" as calls, their arguments filled in."""
    name = _TOOL_NAME.match(task.goal)
    if name is None or name[1] not in tools:
        return None
    after = task.goal[name.end() :]
    rest = after.lstrip()
    if rest and not rest.startswith((":", "(")) and not (after[:1].isspace() and re.match(r"(?:-|to)\s", rest)):
        return None
    rest = re.sub(r"^(?:[:(]|-\s|to\s)", "", rest).strip().rstrip(")").strip()
    goal, references = rest or task.goal, [f"{{{each}}}" for each in task.depends_on]
    args = dict(task.args) or _given(tools[name[1]], rest, references)
    return replace(task, goal=goal, action=name[1], args=args)


def _given(tool: ToolSpec, text: str, references: Sequence[str]) -> dict[str, Any]:
    """The arguments in what follows the name of a tool. Its one text is all of it, unless it is an instruction."""
    found = arguments(tool, text, references)[0]
    properties, required = tool.schema.get("properties") or {}, tool.schema.get("required") or []
    only_text = len(required) == 1 and properties.get(required[0], {}).get("type") == "string"
    if found or not text or not only_text or (words_in(text) or [""])[0] in VERBS:
        return found
    return {required[0]: text}


def read_goal(goal: str) -> Meaning | None:
    """The look-up or combination that a goal words as `LookUp.goal` and `Combine.goal` do; None for other texts.

    >>> read_goal("place of birth of {s1}")
    LookUp(relation='place of birth', entity='{s1}')
    >>> read_goal("which is earliest of {s1} (Ann), {s2} (Bob)")
    Combine(operation='earliest', operands=('{s1}', '{s2}'), labels=('Ann', 'Bob'))
    """
    goal = goal.strip().rstrip(".?")
    if len(goal) > LONGEST_GOAL:
        return None
    if goal[:4].lower() == "the ":
        goal = goal[4:]
    return _combination(goal) or _look_up(goal)


def _lower(text: str) -> str:
    """Lower case of the same length, so that positions agree ("İ" has two letters in lower case)."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text


def _combination(goal: str) -> Combine | None:
    lower = _lower(goal)
    for operation, words in OPERATIONS.items():
        before, after = words.split("{}")
        if not lower.startswith(before) or not lower.endswith(after) or len(goal) < len(before) + len(after) - 1:
            continue
        inside = goal[len(before) : len(goal) - len(after)]
        if operation in CHOICES:
            return _choice(operation, inside)
        if operation == "difference":
            return Combine(operation, tuple(inside.split(" and ")))
        if operation in ("number", "sum") and whole_reference(inside) is None:
            return None  # "number of floors of {s1}" is a look-up
        return Combine(operation, tuple(str(reference) for reference in find_references(inside)))
    return None


def _choice(operation: str, inside: str) -> Combine:
    """ "{s1} (Ann), {s2} (Bo (Film))": operands with labels, or operands alone."""
    pairs = [part.partition(" (") for part in re.split(r", (?=\{)", inside)]
    if all(whole_reference(operand) and label.endswith(")") for operand, _, label in pairs):
        return Combine(operation, tuple(pair[0] for pair in pairs), tuple(pair[2][:-1] for pair in pairs))
    return Combine(operation, tuple(str(reference) for reference in find_references(inside)))


def _look_up(goal: str) -> LookUp | None:
    lower = _lower(goal)
    start = next((len(form) - len(" of ") for form in _WITH_OF if lower.startswith(form)), 0)
    if lower.startswith("number of "):
        start = len("number of ")
    at = lower.find(" of ", start)
    relation, entity = goal[:at].strip(), goal[at + len(" of ") :]
    if at < 0 or not entity or not _RELATION.fullmatch(relation) or lower.startswith("if "):
        return None
    return LookUp(canonical(relation), entity)
