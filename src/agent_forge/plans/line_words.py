"""The words of the line format: how a task is named and how a list of dependencies is written.

`Task 3`, `task_3`, `T3`, `Step 3`, `#3` and, in a list, `3` all name the task `task_3`; `Task 1.2` is `task_1_2`. Any
other word is an id as it stands, and a JSON string is one exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from agent_forge.plans.json_text import NotJson, json_line, read_json

STRING = r'"(?:[^"\\]|\\.)*"'
_NUMBERED = re.compile(r"(?:(?:(?:sub-?)?task|step)s?[ \t_#-]*|t|#)?0*(?!0\d)(\d+(?:[._]\d+)*)", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_][\w-]*")
_KEYWORDS = {"task", "tasks", "step", "steps", "subtask", "subtasks", "and", "to", "through", "none", "no", "nothing"}
_KEYWORDS |= {"nil", "null", "na", "or", "all", "t"}
_NONE = re.compile(
    r"""[(\[{]?\s*
    (?:(?:none|no|nothing|nil|null|n/a|na|-+|–|—|∅|no\ dependenc(?:y|ies)|none\ required)\s*)?
    [)\]}]?\.?""",
    re.IGNORECASE | re.VERBOSE,
)
_LABEL = r"(?:(?:tasks?|steps?)[ \t_\#]*|t)"
_TOKEN = re.compile(
    rf"""(?P<blank>[\s,;&+]+|and\b)
    | (?P<quoted>{STRING})
    | (?P<range>{_LABEL}?\d+[ \t]*(?:-|–|—|\bto\b|\bthrough\b)[ \t]*{_LABEL}?\d+\b)
    | (?P<number>(?:(?:(?:sub-?)?task|step)s?[ \t_#-]*|t|\#)?\d+(?:[._]\d+)*\b(?![-\w]))
    | (?P<label>(?:sub-?)?(?:task|step)s?\b(?=\s*(?:{STRING}|\w)))
    | (?P<word>[^\W\d][\w-]*)""",
    re.IGNORECASE | re.VERBOSE,
)
_EMPHASIS = re.compile(r"[*`]+")
_WIDEST_RANGE = 1000


class NotAList(ValueError):
    """A list of dependencies that cannot be read."""


def numbered_id(text: str) -> str | None:
    """The id that a numbered name stands for, None when the text is not one.

    >>> numbered_id("Task 03"), numbered_id("T1.2"), numbered_id("s1")
    ('task_3', 'task_1_2', None)
    """
    match = _NUMBERED.fullmatch(text)
    return f"task_{match.group(1).replace('.', '_')}" if match else None


def written_id(name: str, exact: bool = False) -> str:
    """How an id is written so that it reads back: `Task 3`, a word, or a JSON string.

    >>> written_id("task_3"), written_id("s1"), written_id("T1"), written_id("a b")
    ('Task 3', 's1', '"T1"', '"a b"')
    """
    short = f"Task {name[5:].replace('_', '.')}"
    if name.startswith("task_") and numbered_id(short) == name:
        return short
    if not exact and _WORD.fullmatch(name) and numbered_id(name) is None and name.lower() not in _KEYWORDS:
        return name
    return json_line(name, avoid="|<{")


def unquoted(text: str) -> str:
    """The id in a JSON string; raises `NotAList` when it is not one."""
    try:
        return str(read_json(text))
    except NotJson as error:
        raise NotAList(f"{text} is not a JSON string: {error}") from None


def read_dependencies(text: str, word: Callable[[str], str]) -> list[str]:
    """The ids in a list of dependencies, none for `none`, `-`, `n/a` and the like; raises `NotAList`.

    `word` says which id a plain word means.

    >>> read_dependencies("task 1, T2 and Tasks 4-6", str)
    ['task_1', 'task_2', 'task_4', 'task_5', 'task_6']
    """
    text = (text if '"' in text else _EMPHASIS.sub("", text)).strip().rstrip(" \t.;")
    if not text:
        raise NotAList("the dependencies are empty; write none where there are none")
    if _NONE.fullmatch(text):
        return []
    if text[0] in "[({" and text[-1] in "])}":
        text = text[1:-1]
    names: list[str] = []
    at = 0
    after_word = False
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or (after_word and token.lastgroup == "word"):  # "the first one" is not a list
            raise NotAList(f"{text[at : at + 40]!r} cannot be read as a list of tasks")
        names.extend(_named(token, word))
        at = token.end()
        after_word = token.lastgroup == "word" or (after_word and token.group().isspace())
    if not names:
        raise NotAList(f"{text[:40]!r} names no task")
    if re.search(r"(?:[,&+]|\band)\s*\Z", text[-20:], re.IGNORECASE):
        raise NotAList(f"the list breaks off after {text[-20:].strip()!r}")
    return names


def _named(token: re.Match[str], word: Callable[[str], str]) -> list[str]:
    kind, text = token.lastgroup, token.group()
    if kind in ("blank", "label"):
        return []
    if kind == "quoted":
        return [unquoted(text)]
    if kind == "range":
        first, last = (int(digits) for digits in re.findall(r"\d{1,9}", text)[:2])
        if not first < last <= first + _WIDEST_RANGE:
            raise NotAList(f"{text!r} is not a usable range of tasks")
        return [f"task_{number}" for number in range(first, last + 1)]
    if (numbered := numbered_id(text)) is not None:
        return [numbered]
    if text.lower() in _KEYWORDS:
        raise NotAList(f"{text!r} stands among the dependencies")
    return [word(text)]
