"""The description of a function and its arguments in its docstring: Google, NumPy and Sphinx style."""

from __future__ import annotations

import inspect
import re

LONGEST = 20_000  # characters that are read; inspect.cleandoc takes quadratic time on blank lines
_GOOGLE_SECTION = re.compile(r"(?:Args|Arguments|Parameters):\s*$")
_NUMPY_SECTION = re.compile(r"Parameters\s*$")
_SPHINX = re.compile(r":param (?:[^:]* )?(\w+):\s*(.*)$")
_GOOGLE = re.compile(r"(\w+)(?: \([^)]*\))?:\s*(.*)$")
_NUMPY = re.compile(r"(\w+)(?:\s*:.*)?$")


def read_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """The first paragraph, and the descriptions of the arguments.

    >>> read_docstring("Adds.\\n\\nArgs:\\n    a: the first\\n    b: the second")
    ('Adds.', {'a': 'the first', 'b': 'the second'})
    """
    if not text or not text.strip():
        return "", {}
    lines = inspect.cleandoc(text[:LONGEST]).splitlines()
    return _first_paragraph(lines), _arguments(lines)


def _first_paragraph(lines: list[str]) -> str:
    paragraph: list[str] = []
    for line in lines:
        if not line.strip() or _GOOGLE_SECTION.match(line) or _SPHINX.match(line.strip()):
            break
        paragraph.append(line.strip())
    return " ".join(paragraph)


def _arguments(lines: list[str]) -> dict[str, str]:
    for number, line in enumerate(lines):
        if _GOOGLE_SECTION.match(line):
            return _indented(lines[number + 1 :], _GOOGLE)
        underlined = number + 1 < len(lines) and set(lines[number + 1].strip()) == {"-"}
        if _NUMPY_SECTION.match(line) and underlined:
            return _numpy(lines[number + 2 :])
    return _sphinx(lines)


def _indented(lines: list[str], entry: re.Pattern[str]) -> dict[str, str]:
    """`name: text` entries, continued on more deeply indented lines, until the indentation ends."""
    entries: dict[str, list[str]] = {}
    depth, name = None, ""
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent == 0:
            break
        depth = indent if depth is None and line.strip() else depth
        match = entry.match(line.strip()) if indent == depth else None
        if match:
            name = match[1]
            entries[name] = [match[2]]
        elif name:
            entries[name].append(line.strip())
    return _joined(entries)


def _numpy(lines: list[str]) -> dict[str, str]:
    """`name : type` at the margin with the text indented below it, until the next underlined heading."""
    entries: dict[str, list[str]] = {}
    name = ""
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if following.strip() and set(following.strip()) == {"-"}:
            break
        match = _NUMPY.match(line) if line.strip() else None
        if match:
            name = match[1]
            entries[name] = []
        elif name:
            entries[name].append(line.strip())
    return _joined(entries)


def _sphinx(lines: list[str]) -> dict[str, str]:
    entries: dict[str, list[str]] = {}
    name = ""
    for line in map(str.strip, lines):
        match = _SPHINX.match(line)
        if match:
            name = match[1]
            entries[name] = [match[2]]
        elif not line or line.startswith(":"):
            name = ""
        elif name:
            entries[name].append(line)
    return _joined(entries)


def _joined(entries: dict[str, list[str]]) -> dict[str, str]:
    texts = {name: " ".join(" ".join(parts).split()) for name, parts in entries.items()}
    return {name: text for name, text in texts.items() if text}
