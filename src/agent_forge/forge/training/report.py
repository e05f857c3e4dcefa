"""The log of a run: a JSON line per logged step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agent_forge.files import atomic_write


class TrainingLog:
    """`log.jsonl`. On resuming, lines after the resumed step are removed, so that a curve has every step once."""

    def __init__(self, path: Path | None, resumed_at: int = 0) -> None:
        self.path = path
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [line for line in _whole_lines(path) if json.loads(line)["step"] <= resumed_at]
        with atomic_write(path) as file:
            file.writelines(line + "\n" for line in lines)

    def write(self, record: dict[str, Any]) -> None:
        if self.path is not None:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a run's log."""
    return [json.loads(line) for line in _whole_lines(path)]


def _whole_lines(path: Path) -> list[str]:
    """The complete lines: a process killed while writing leaves half of one."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return text[: text.rfind("\n") + 1].splitlines()
