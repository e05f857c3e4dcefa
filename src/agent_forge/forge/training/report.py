"""What a run reports: a JSON line per logged step, and a line for people."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TextIO

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


class Progress:
    """One line, rewritten on a terminal; a new line per record elsewhere; nothing if `stream` is None."""

    def __init__(self, steps: int, stream: TextIO | None = sys.stderr) -> None:
        self.steps, self.stream = steps, stream

    def show(self, record: dict[str, Any], seconds_left: float | None) -> None:
        if self.stream is None:
            return
        terminal = self.stream.isatty()
        left = "" if seconds_left is None else f"  {_clock(seconds_left)} left"
        text = (
            f"step {record['step']}/{self.steps}  loss {record['loss']:.4f}  "
            f"{record['tokens_per_s']:,.0f} tokens/s  MFU {record['mfu']:.1%}{left}"
        )
        print(f"\r{text}\x1b[K" if terminal else text, end="" if terminal else "\n", file=self.stream, flush=True)

    def end(self) -> None:
        if self.stream is not None and self.stream.isatty():
            print(file=self.stream)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
