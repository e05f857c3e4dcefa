"""Prompt templates: packaged text files named `name@version.txt`, so that results can name the prompt they used.

A file consists of `### role` sections; `$name` stands for a value. A new wording is a new version, the old file stays.

>>> template("repair@1").messages(errors="- a cycle")[0]["content"].splitlines()[1]
'- a cycle'
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from agent_forge.errors import UsageError

_SECTION = re.compile(r"^### (system|user|assistant)\n", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n{3,}")


@dataclass(frozen=True, slots=True)
class Prompt:
    name: str  # with its version
    sections: tuple[tuple[str, str], ...]

    def messages(self, **values: str) -> list[dict[str, str]]:
        """The chat messages, with every `$name` replaced. Raises KeyError for a missing value."""
        texts = [Template(text).substitute(values) for _, text in self.sections]
        contents = [_BLANK_LINES.sub("\n\n", text).strip() for text in texts]  # an empty value leaves blank lines
        return [{"role": role, "content": text} for (role, _), text in zip(self.sections, contents, strict=True)]


def names() -> list[str]:
    """The packaged templates."""
    return sorted(entry.name[:-4] for entry in _folder().iterdir() if entry.name.endswith(".txt"))


@cache
def template(name: str) -> Prompt:
    """The template `name@version`. Raises UsageError if there is none."""
    path = _folder() / f"{name}.txt"
    if not path.is_file():
        raise UsageError(f"there is no prompt template {name!r}", fix=f"Known: {', '.join(names())}")
    parts = _SECTION.split(path.read_text(encoding="utf-8"))[1:]
    return Prompt(name, tuple(zip(parts[::2], (part.strip() for part in parts[1::2]), strict=True)))


def _folder() -> Any:  # a Traversable, whose home differs between Python versions
    return files("agent_forge.agents") / "prompts"
