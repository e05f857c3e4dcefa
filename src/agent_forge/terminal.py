"""What goes to a terminal: text of others made harmless, and the one display of progress."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TextIO

# Control characters (C0, C1 and DEL start escape sequences), line separators, bidirectional overrides and tags.
_HARMFUL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
PLAIN_EVERY_S = 5.0
RAREST_S = 60.0  # between two lines of a stage, even if it reports nothing


def printable(text: str, *, lines: bool = False) -> str:
    """Text without the characters that can move the cursor, hide or reorder what is shown.

    `lines=True` keeps line ends and tabs.

    >>> printable("a\\x1b[2Jb\\n")
    'a�[2Jb�'
    """
    if lines:
        return _HARMFUL.sub(lambda match: match[0] if match[0] in "\n\t" else "�", text.replace("\r\n", "\n"))
    return _HARMFUL.sub("�", text)


def printable_json(text: str) -> str:
    """The same JSON document with harmful characters as \\u escapes; line ends between values stay.

    >>> print(printable_json('{"name": "\x9b2J"}'))
    {"name": "\\u009b2J"}
    """
    return _HARMFUL.sub(lambda match: match[0] if match[0] == "\n" else json.dumps(match[0])[1:-1], text)


@dataclass
class _Stage:
    began_s: float
    first: float  # what was done when the stage was first reported: a resumed job does not start at 0
    printed_s: float
    done: float = 0
    total: float | None = None
    figures: str = ""
    bar: Any = None  # rich's id of its bar, on a terminal


class ProgressDisplay:
    """Progress of a long job, on stderr.

    A terminal shows a bar per running stage, with count, rate and time left; the bars vanish at the end. Elsewhere
    each stage prints a plain line with the same figures when it begins and then at most every `every_s` seconds,
    less often in a long stage, so that the log of a night's work stays short; but at least once per minute.

    >>> with ProgressDisplay(sys.stdout) as display:
    ...     display.update("calibrate")
    ...     display.line("calibrated")
    calibrate
    calibrated
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        every_s: float = PLAIN_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stream = sys.stderr if stream is None else stream  # still None where stderr is closed, as with `2>&-`
        self.every_s, self.clock = every_s, clock
        self.live = self.stream is not None and self.stream.isatty()
        self._stages: dict[str, _Stage] = {}
        self._bars: Any = None
        self._lock = threading.RLock()  # of the stages: the heartbeat reads them in its own thread
        self._closed = threading.Event()

    def __enter__(self) -> ProgressDisplay:
        if self.live:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[figures]}", markup=False),
                console=Console(file=self.stream),
                transient=True,
                # rich moves what is printed meanwhile above the bars, on their stream: never out of a pipe on stdout
                redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
            )
            self._bars.start()
        elif self.stream is not None:
            threading.Thread(target=self._beat, name="agent-forge-progress", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Takes the bars off the terminal while somebody is asked something there, for they would overwrite it."""
        bars = self._bars
        if bars is not None:
            bars.stop()
        try:
            yield
        finally:
            if bars is not None and bars is self._bars:
                bars.start()

    def line(self, text: str) -> None:
        """Prints a line that stays."""
        if self._bars is not None:
            self._bars.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
        elif self.stream is not None:
            print(printable(text), file=self.stream, flush=True)

    def update(
        self, stage: str, done: float | None = None, total: float | None = None, *, unit: str = "", detail: str = ""
    ) -> None:
        """Reports how far a stage is, `unit` being what is counted ("B" for bytes).

        A stage ends when it is complete; one of unknown length, when another begins.
        """
        with self._lock:
            self._update(stage, done, total, unit, detail)

    def _update(self, stage: str, done: float | None, total: float | None, unit: str, detail: str) -> None:
        now = self.clock()
        state = self._stages.get(stage)
        if state is None or (done or 0) < state.done:  # it begins, or begins again
            self.finish(stage, *(name for name, other in self._stages.items() if other.total is None))
            state = self._stages[stage] = _Stage(now, done or 0, -RAREST_S if (done or 0) <= 1 else now)
        state.done, state.total = done or 0, total
        figures = state.figures = _figures(state, now - state.began_s, unit, detail)
        if self._bars is None:
            if now - state.printed_s >= min(RAREST_S, max(self.every_s, (now - state.began_s) / 20)):
                state.printed_s = now
                self.line(f"{stage}: {figures}" if figures else stage)
        elif total is not None and state.done >= total:
            self.finish(stage)
        elif state.bar is None:
            state.bar = self._bars.add_task(
                printable(stage), completed=state.done, total=total, figures=printable(figures)
            )
        else:
            self._bars.update(state.bar, completed=state.done, total=total, figures=printable(figures))

    def finish(self, *stages: str) -> None:
        """Takes stages off the display."""
        with self._lock:
            for stage in stages:
                state = self._stages.pop(stage, None)
                if state is not None and state.bar is not None:
                    self._bars.remove_task(state.bar)

    def _beat(self) -> None:
        while not self._closed.wait(RAREST_S / 4):
            self.beat()

    def beat(self) -> None:
        """Prints a line for every stage that has not printed one for a minute."""
        with self._lock:
            now = self.clock()
            for name, stage in self._stages.items():
                if now - stage.printed_s >= RAREST_S and (stage.total is None or stage.done < stage.total):
                    stage.printed_s = now
                    elapsed = f"{timedelta(seconds=round(now - stage.began_s))} so far"
                    self.line(f"{name}: {', '.join(filter(None, (stage.figures, elapsed)))}")


def _figures(state: _Stage, spent_s: float, unit: str, detail: str) -> str:
    """Count, rate and time left, as far as they are known, and the detail."""
    scale, noun = (1e6, " MB") if unit == "B" else (1, unit and f" {unit}")
    parts = []
    if state.total is not None:
        parts.append(f"{state.done / scale:,.0f}/{state.total / scale:,.0f}{noun}")
    elif state.done:
        parts.append(f"{state.done / scale:,.0f}{noun}")
    if state.done > state.first and spent_s > 0:
        rate = (state.done - state.first) / spent_s
        shown = rate / scale
        parts.append(f"{shown:,.0f}{noun}/s" if shown >= 10 else f"{shown:.1f}{noun}/s" if shown >= 1 else
                     f"{60 * shown:.1f}{noun}/min")  # fmt: skip
        if state.total is not None:
            parts.append(f"{timedelta(seconds=round((state.total - state.done) / rate))} left")
    return ", ".join([*parts, detail] if detail else parts)
