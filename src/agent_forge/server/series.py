"""The numbers that a forge phase reports while it runs, as curves. Whatever a phase records gets a chart.

A progress event is a flat or nested JSON object. Its x is the first of `AXES` that it has; every other number in it is
a point of a series, by its path. A field that ends in `_stderr` is the standard error of the field it is named after.
Series that differ only in a word such as best, mean or worst, or in the `stage` they belong to, share a chart; those
whose stages differ only in the seed are drawn as their mean. An event with a stage and no axis is a row of a table:
what was measured after that stage.
"""

from __future__ import annotations

import json
import math
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from threading import Lock
from typing import Any

from markupsafe import Markup

from agent_forge.server.drawing.charts import Format, Line, line_chart, pareto, scatter_chart
from agent_forge.server.drawing.wording import count, duration, number, share, size

AXES = ("step", "generation", "level", "round", "iteration", "epoch", "cycle", "trial", "layer", "done")
VARIANTS = frozenset(("best", "mean", "worst", "worth", "min", "max", "median", "average", "low", "high"))
# an evolution names its fitness after whose it is
ALIASES = {"champion": "fitness.best", "mean": "fitness.mean", "worth": "fitness.worth"}
QUALITY = ("bits_per_byte", "ppl", "perplexity", "loss")  # drawn against the size: the first that was measured
FIRST = ("loss", "bits", "perplexity", "accuracy", "fitness", "diversity", "reward", "quality", "error", "tokens_per_s")
LAST = ("lr", "norm", "seconds", "memory", "tokens", "bytes", "documents")
FILES = 16  # sessions whose events stay in memory
ERROR = "_stderr"
SEED = re.compile(r", seed \d+$")


@dataclass
class Series:
    """One number over its axis."""

    name: str
    axis: str
    stage: str = ""
    points: list[tuple[float, float]] = field(default_factory=list)
    errors: dict[float, float] = field(default_factory=dict)

    @property
    def constant(self) -> bool:
        return len({y for _, y in self.points}) < 2


@dataclass
class PhaseSeries:
    """What one phase has reported."""

    by_name: dict[tuple[str, str], Series] = field(default_factory=dict)  # by stage and name
    stages: list[dict[str, Any]] = field(default_factory=list)
    events: int = 0
    beats: list[tuple[float, float]] = field(default_factory=list)  # (x, time) of the main axis
    totals: dict[str, float] = field(default_factory=dict)  # such as steps: where the axis ends

    def add(self, event: Mapping[str, Any], at_s: float) -> None:
        """One progress event."""
        self.events += 1
        axis = next((name for name in AXES if _is_number(event.get(name))), "")
        stage = str(event.get("stage") or "")
        numbers = dict(_numbers(event))
        for name in [name for name in numbers if name in ("of", "total") or name[:-1] in AXES]:
            self.totals[name[:-1] if name[:-1] in AXES else axis] = numbers.pop(name)
        if axis != "done":
            numbers.pop("done", None)  # how far the stage is, not a figure of it
        if stage and not axis:
            if numbers:
                self.stages.append({"stage": stage, **numbers})
            return
        x = numbers.pop(axis) if axis else float(self.events)
        evolves = "champion" in numbers
        for name, value in numbers.items():
            shown = ALIASES.get(name, name) if evolves else name
            self._point(shown, "generation" if evolves else axis, stage, x, value)
        if not self.beats or x > self.beats[-1][0]:
            self.beats.append((x, at_s))

    def _point(self, name: str, axis: str, stage: str, x: float, value: float) -> None:
        of = name[: -len(ERROR)] if name.endswith(ERROR) else None
        series = self.by_name.setdefault((stage, of or name), Series(of or name, axis, stage))
        if of is not None:
            series.errors[x] = value
        else:
            series.points.append((x, value))

    def charts(self) -> list[dict[str, Any]]:
        """The series that change, grouped by kind, the most interesting first."""
        groups: dict[tuple[str, str], list[Series]] = {}
        for one in self.by_name.values():
            if one.points and not one.constant:
                groups.setdefault((family(one.name), one.axis), []).append(one)
        charts = [
            {
                "name": title(name),
                "axis": axis or "event",
                "lines": [
                    {
                        "name": _line_name(one, members),
                        "points": one.points,
                        "errors": [one.errors.get(x) for x, _ in one.points],
                    }
                    for one in members
                ],
            }
            for (name, axis), everyone in groups.items()
            for members in (_over_seeds(_plain(everyone)),)
        ]
        return sorted(charts, key=lambda chart: (_interest(chart["name"]), chart["name"]))

    def constants(self) -> dict[str, float]:
        """The numbers that never changed."""
        return {one.name: one.points[-1][1] for one in self.by_name.values() if one.points and one.constant}

    def progress(self, config: Mapping[str, Any]) -> float | None:
        """How far the phase is, from 0 to 1; None if its length is unknown."""
        axis = next((one.axis for one in self.by_name.values() if one.axis), "")
        goal = self.totals.get(axis) or _goal(config, f"{axis}s") or self.totals.get("step")
        return min(1.0, self.beats[-1][0] / goal) if goal and self.beats and axis else None

    def left_s(self, progress: float | None) -> float | None:
        """Seconds left, at the pace so far."""
        if progress is None or not progress or len(self.beats) < 2:
            return None
        (first, start), (last, now) = self.beats[0], self.beats[-1]
        pace = (now - start) / (last - first) if last > first else None
        return None if pace is None else pace * (last / progress - last)


def _line_name(one: Series, members: Sequence[Series]) -> str:
    """The name of a series in its chart: its own, its stage, or both, whichever tells it from the others."""
    names = {other.name for other in members}
    if len(names) == 1 and len(members) > 1:
        return one.stage
    same = [other for other in members if other.name == one.name]
    return one.name if len(same) == 1 else f"{one.name} {one.stage}"


def _plain(members: Sequence[Series]) -> Sequence[Series]:
    """Of several stages' series those without words such as mean, where there are some: else a chart has too many."""
    plain = [one for one in members if not VARIANTS & set(re.split(r"[._ ]", one.name))]
    return plain if plain and len({one.stage for one in members}) > 1 else members


def _over_seeds(members: Sequence[Series]) -> list[Series]:
    """Series that differ only in the seed as one: their mean at each x, and its standard error."""
    alike: dict[tuple[str, str], list[Series]] = {}
    for one in members:
        alike.setdefault((one.name, SEED.sub("", one.stage)), []).append(one)
    merged = []
    for (name, stage), same in alike.items():
        if len(same) == 1:
            merged.append(same[0])
            continue
        values: dict[float, list[float]] = {}
        for x, y in (point for one in same for point in one.points):
            values.setdefault(x, []).append(y)
        points = [(x, fmean(ys)) for x, ys in sorted(values.items())]
        errors = {x: stdev(ys) / math.sqrt(len(ys)) for x, ys in values.items() if len(ys) > 1}
        merged.append(Series(name, same[0].axis, stage, points, errors))
    return merged


def family(name: str) -> str:
    """The name of a series without words such as best and mean.

    >>> family("mean_loss"), family("fitness.best"), family("best"), family("evaluation.loss")
    ('loss', 'fitness', 'best', 'evaluation loss')
    """
    words = name.replace(".", " ").replace("_", " ").split()
    return " ".join([word for word in words if word not in VARIANTS] or words)


def title(name: str) -> str:
    """A name for people.

    >>> title("tokens_per_s"), title("evaluation.bits_per_byte")
    ('tokens/s', 'evaluation bits per byte')
    """
    return name.replace(".", " ").replace("_", " ").replace(" per s", "/s")


def phase_series(path: Path) -> dict[str, PhaseSeries]:
    """What each phase has reported, from the events file of a session. Only new lines are read."""
    return _FILES.read(path)


class _Files:
    """The events files that were read recently, each with the position reached."""

    def __init__(self) -> None:
        self._files: OrderedDict[Path, tuple[int, dict[str, PhaseSeries]]] = OrderedDict()
        self._lock = Lock()

    def read(self, path: Path) -> dict[str, PhaseSeries]:
        with self._lock:
            at, series = self._files.pop(path, (0, {}))
            size = path.stat().st_size if path.exists() else 0
            if size < at:  # another file of that name
                at, series = 0, {}
            if size > at:
                with open(path, "rb") as file:
                    file.seek(at)
                    data = file.read()
                whole = data[: data.rfind(b"\n") + 1]
                at += len(whole)
                for phase, event, at_s in _progress(whole):
                    series.setdefault(phase, PhaseSeries()).add(event, at_s)
            self._files[path] = (at, series)
            while len(self._files) > FILES:
                self._files.popitem(last=False)
            return series


def _progress(data: bytes) -> Iterator[tuple[str, dict[str, Any], float]]:
    for line in data.split(b"\n"):
        try:
            event = json.loads(line)
            kind, phase, at_s = event.pop("kind"), str(event.pop("phase")), float(event.pop("at_s"))
        except (ValueError, KeyError, AttributeError, TypeError):
            continue  # a torn line: the writer was killed
        if kind == "progress":
            yield phase, event, at_s


def _numbers(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    for name, item in value.items():
        if isinstance(item, Mapping):
            yield from _numbers(item, f"{before}{name}.")
        elif _is_number(item):
            yield f"{before}{name}", float(item)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _goal(config: Mapping[str, Any], name: str) -> float | None:
    """A number of that name anywhere in a configuration."""
    for key, value in config.items():
        if key == name and _is_number(value):
            return float(value)
        if isinstance(value, Mapping) and (goal := _goal(value, name)) is not None:
            return goal
    return None


def _interest(name: str) -> int:
    for place, word in enumerate(FIRST):
        if word.replace("_per_", "/").replace("_", " ") in name:
            return place
    for place, word in enumerate(LAST):
        if word in name.split():
            return 200 + place
    return 100


_FILES = _Files()


# --- drawing ----------------------------------------------------------------------------------------------------------

# the end of a name: how its values are written
WRITTEN: tuple[tuple[str, Format], ...] = (
    ("bytes", size),
    ("memory", size),
    ("/s", count),
    ("tokens", count),
    ("parameters", count),
    ("seconds", duration),
    ("mfu", share),
)


def draw(chart: Mapping[str, Any]) -> Markup:
    """A group of series as one chart."""
    name = str(chart["name"])
    text = next((format_ for ending, format_ in WRITTEN if name.endswith(ending)), number)
    lines = [Line(title(one["name"]), one["points"], one["errors"]) for one in chart["lines"]]
    return line_chart(lines, x_label=chart["axis"], y_label=name, text=text)


def draw_stages(stages: Sequence[Mapping[str, Any]]) -> Markup:
    """The size after each stage against the quality, with the Pareto front as a line."""
    quality = next((name for name in QUALITY if any(name in one for one in stages)), None)
    measured = [one for one in stages if quality in one and "bytes" in one]
    if quality is None or len(measured) < 2:
        return Markup("")
    points = [(float(one["bytes"]), float(one[quality])) for one in measured]
    line = Line("stages", points, labels=[str(one["stage"]) for one in measured])
    return scatter_chart([line], x_label="size", y_label=title(quality), x_text=size, front=pareto(points), log_x=True)
