"""Small charts as SVG: lines, points and bars on axes with round ticks. Every curve is labelled at its end."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from markupsafe import Markup

from agent_forge.server.drawing.wording import count, number

POINTS = 400  # per line: more cannot be seen
Point = tuple[float, float]
Format = Callable[[float], str]


@dataclass(frozen=True)
class Line:
    """A named series of points, sorted by x. `errors` are standard errors of y, drawn as whiskers."""

    name: str
    points: Sequence[Point]
    errors: Sequence[float | None] = ()
    labels: Sequence[str] = ()  # of single points, for scatter charts
    links: Sequence[str] = ()


@dataclass(frozen=True)
class Frame:
    """The drawing area and how values map onto it."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    width: float = 420
    height: float = 210
    left: float = 46
    right: float = 14
    top: float = 16
    bottom: float = 34
    log_x: bool = False
    text: Format = field(default=count)

    def x(self, value: float) -> float:
        low, high = self.x_range
        if self.log_x:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.left + (value - low) / ((high - low) or 1) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.height - self.bottom - (value - low) / ((high - low) or 1) * (self.height - self.top - self.bottom)


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers between two bounds, in steps of 1, 2 or 5 times a power of ten.

    >>> nice_ticks(0.13, 0.92)
    [0.2, 0.4, 0.6, 0.8]
    >>> nice_ticks(0, 150)
    [0, 50, 100, 150]
    >>> nice_ticks(3.0, 3.0)
    [3.0]
    """
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    places = max(0, -math.floor(math.log10(step)))
    ticks = [round(place * step, places) for place in range(first, last + 1)]
    return [int(tick) if float(tick).is_integer() else tick for tick in ticks]


def time_ticks(low: float, high: float, about: int = 7) -> list[float]:
    """Round times between two (in seconds): whole minutes, hours or days.

    >>> time_ticks(0, 3 * 3600)
    [0, 1800, 3600, 5400, 7200, 9000, 10800]
    """
    steps = [60 * minutes for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10080, 43200)]
    step = next((step for step in steps if (high - low) / step <= about), steps[-1])
    return list(range(math.ceil(low / step) * step, math.floor(high / step) * step + 1, step))


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between two bounds; also 2 and 5 times those if there are few.

    >>> log_ticks(3e6, 4e7)
    [5000000.0, 10000000.0, 20000000.0]
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        ticks = [factor * 10.0**decade for decade in decades for factor in factors]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= 3:
            return ticks
    return ticks or [low]


def sample(points: Sequence[Point], most: int = POINTS) -> list[Point]:
    """At most `most` points: the lowest and the highest of each stretch, so that no peak is lost.

    >>> sample([(0, 0), (1, 9), (2, 1), (3, 0)], 2)
    [(0, 0), (1, 9), (2, 1), (3, 0)]
    """
    if len(points) <= max(most, 4):
        return list(points)
    stretch = max(2, math.ceil(2 * len(points) / most))
    chosen = [points[0]]
    for start in range(1, len(points) - 1, stretch):
        part = points[start : min(start + stretch, len(points) - 1)]
        chosen += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return [*chosen, points[-1]]


def line_chart(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    text: Format = number,
    x_text: Format = count,
    zero: bool = False,
    name: str = "",
) -> Markup:
    """Curves over a shared x axis. `text` and `x_text` format values; `zero` starts the y axis at 0."""
    drawn = [Line(line.name, sample([p for p in line.points if _finite(p)]), line.errors) for line in lines]
    drawn = [line for line in drawn if line.points]
    if not drawn:
        return Markup("")
    frame = _frame([p for line in drawn for p in line.points], zero=zero)
    parts = [_axes(frame, x_label, y_label, text, x_text)]
    ends = [max(frame.top, frame.y(line.points[-1][1]) - 7) for line in drawn]
    turn = -1 if max(ends) > frame.height / 2 else 1  # away from the nearer edge
    heights = [turn * height for height in spread([(frame.width, turn * height) for height in ends])]
    for place, line in enumerate(drawn):
        label = text(line.points[-1][1])
        parts.append(_curve(frame, line, place, heights[place], label if len(drawn) == 1 else f"{line.name} {label}"))
    return _svg(frame, parts, name or f"{y_label} by {x_label}", [line.points for line in drawn], (x_label, y_label))


def scatter_chart(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    text: Format = number,
    x_text: Format = count,
    front: Sequence[Point] = (),
    log_x: bool = False,
    size: tuple[float, float] = (420, 210),
    name: str = "",
) -> Markup:
    """Labelled points; a line joins the points of `front`, the Pareto front."""
    drawn = [line for line in lines if line.points]
    points = [p for line in drawn for p in line.points]
    if not points:
        return Markup("")
    xs = [x for x, _ in points]
    frame = _frame(points, room=0.12, log_x=log_x and 0 < 3 * min(xs) <= max(xs))
    frame = replace(frame, width=size[0], height=size[1])
    parts = [_axes(frame, x_label, y_label, text, x_text)]
    if len(front) > 1:
        way = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in sorted(front))
        parts.append(Markup('<polyline class="front" points="{}"/>').format(way))
    dots = [(line, index, place) for place, line in enumerate(drawn) for index in range(len(line.points))]
    heights = spread([(frame.x(x), frame.y(y)) for line, index, _ in dots for x, y in (line.points[index],)])
    parts += [_dot(frame, *dot, height) for dot, height in zip(dots, heights, strict=True)]
    return _svg(frame, parts, name or f"{y_label} against {x_label}")


def spread(places: Sequence[Point], wide: float = 110.0, high: float = 12.0) -> list[float]:
    """The heights of labels at (x, y): each at its place, or below it as near as possible without overlapping another.

    >>> spread([(0.0, 10.0), (5.0, 11.0), (300.0, 11.0)])
    [10.0, 22.0, 11.0]
    """
    heights = [y for _, y in places]
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    for at, index in enumerate(order):
        for other in order[:at]:
            if abs(places[index][0] - places[other][0]) < wide and heights[index] - heights[other] < high:
                heights[index] = max(heights[index], heights[other] + high)
    return heights


def bar_chart(
    bars: Sequence[tuple[float, float, float]],
    *,
    window: tuple[float, float],
    x_label: str,
    y_label: str,
    x_text: Format,
    step: float,
    name: str,
) -> Markup:
    """Bars over time: (time, total, of those with errors); errors have their own colour, at the bottom."""
    if not bars:
        return Markup("")
    highest = max(total for _, total, _ in bars)
    first, last = min(window[0], bars[0][0]), max(window[1], bars[-1][0] + step)
    frame = Frame((first, last), (0, highest), time_ticks(first, last, 9), nice_ticks(0, highest, 3), 1240, 140)
    parts = [_axes(frame, x_label, y_label, count, x_text)]
    wide = max(1.0, frame.x(first + step) - frame.x(first) - 1)
    for at, total, faults in bars:
        title = f"{x_text(at)}: {number(total)} {y_label}, {number(faults)} with errors"
        for value, base, kind in ((faults, 0.0, "bar is-error"), (total - faults, faults, "bar")):
            if value > 0:
                place = (frame.x(at), frame.y(base + value), wide, max(0.5, frame.y(base) - frame.y(base + value)))
                parts.append(_bar(kind, place, title))
    return _svg(frame, parts, name)


def _bar(kind: str, place: tuple[float, float, float, float], title: str) -> Markup:
    return Markup(
        '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
    ).format(kind, *place, title)


def pareto(points: Sequence[Point]) -> list[Point]:
    """The Pareto front: the points that no other beats, where smaller is better in both directions.

    >>> pareto([(1, 3), (2, 2), (3, 2.5), (3, 1)])
    [(1, 3), (2, 2), (3, 1)]
    """
    front: list[Point] = []
    for point in sorted(set(points)):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front


def _finite(point: Point) -> bool:
    return all(isinstance(value, (int, float)) and math.isfinite(value) for value in point)


def _frame(points: Sequence[Point], *, zero: bool = False, room: float = 0.04, log_x: bool = False) -> Frame:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = (min(0.0, *ys) if zero else min(ys)), max(ys)
    pad = (high - low) * room or abs(high) * 0.1 or 1.0
    low = low if zero and low == 0 else low - pad
    y_range = (low, high + pad)
    if log_x:
        x_range = (min(xs) / 1.3, max(xs) * 1.3)
        return Frame(x_range, y_range, log_ticks(*x_range), nice_ticks(*y_range, 4), log_x=True)
    side = (max(xs) - min(xs)) * (room if room > 0.05 else 0)
    if room > 0.05 or max(xs) == min(xs):
        side = max(side, abs(max(xs)) * 0.05, 0.5)
    x_range = (min(xs) - side, max(xs) + side)
    return Frame(x_range, y_range, nice_ticks(*x_range, 5), nice_ticks(*y_range, 4))


def _axes(frame: Frame, x_label: str, y_label: str, text: Format, x_text: Format) -> Markup:
    floor = frame.height - frame.bottom
    parts = []
    for tick in frame.y_ticks:
        y = frame.y(tick)
        parts.append(
            Markup(
                '<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>'
                '<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>'
            ).format(frame.left, frame.width - frame.right, y, y, frame.left - 6, y + 3.5, text(tick))
        )
    for tick in frame.x_ticks:
        x = frame.x(tick)
        anchor = "end" if x > frame.width - 24 else "middle"
        parts.append(
            Markup('<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(
                x, floor + 14, anchor, x_text(tick)
            )
        )
    parts.append(
        Markup('<line class="axis" x1="{0:.1f}" x2="{1:.1f}" y1="{2:.1f}" y2="{2:.1f}"/>').format(
            frame.left, frame.width - frame.right, floor
        )
    )
    parts.append(
        Markup(
            '<text class="axis-name" x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>'
            '<text class="axis-name" x="2" y="10">{}</text>'
        ).format(frame.width - frame.right, frame.height - 4, x_label, y_label)
    )
    return Markup("").join(parts)


def _curve(frame: Frame, line: Line, place: int, height: float, label: str) -> Markup:
    way = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in line.points)
    x, y = line.points[-1]
    low, high = frame.y_range
    parts = [Markup('<polyline class="curve s{}" points="{}"/>').format(place % 6, way)]
    parts += [
        Markup('<line class="whisker s{0}" x1="{1:.1f}" x2="{1:.1f}" y1="{2:.1f}" y2="{3:.1f}"/>').format(
            place % 6, frame.x(x), *(frame.y(min(max(end, low), high)) for end in (y - error, y + error))
        )
        for (x, y), error in zip(line.points, line.errors, strict=False)
        if error is not None and math.isfinite(error)
    ]
    parts.append(
        Markup(
            '<circle class="dot s{0}" cx="{1:.1f}" cy="{2:.1f}" r="2.8"/>'
            '<text class="end s{0}" x="{1:.1f}" y="{3:.1f}" text-anchor="end">{4}</text>'
        ).format(place % 6, frame.x(x), frame.y(y), height, label)
    )
    return Markup("").join(parts)


def _dot(frame: Frame, line: Line, index: int, place: int, height: float) -> Markup:
    x, y = (frame.x(line.points[index][0]), frame.y(line.points[index][1]))
    label = line.labels[index] if index < len(line.labels) else line.name
    side = ("end", x - 7) if x > frame.width * 0.72 else ("start", x + 7)
    drawn = Markup(
        '<circle class="dot s{0}" cx="{1:.1f}" cy="{2:.1f}" r="4"><title>{5}</title></circle>'
        '<text class="end s{0}" x="{3:.1f}" y="{6:.1f}" text-anchor="{4}">{5}</text>'
    ).format(place % 6, x, y, side[1], side[0], label, height + 3.5)
    return Markup('<a href="{}">{}</a>').format(line.links[index], drawn) if index < len(line.links) else drawn


def _svg(
    frame: Frame,
    parts: Sequence[Markup],
    name: str,
    curves: Sequence[Sequence[Point]] = (),
    axes: tuple[str, str] = ("", ""),
) -> Markup:
    """The chart. It carries the points of its curves, so that the page can show the values under the mouse."""
    more = Markup("")
    if curves:
        rounded = [[(float(f"{x:.6g}"), float(f"{y:.6g}")) for x, y in curve] for curve in curves]
        place = [frame.left, frame.right, frame.width, *frame.x_range]
        more = Markup(' data-curves="{}" data-frame="{}" data-axes="{}"').format(
            json.dumps(rounded, separators=(",", ":")), json.dumps(place), json.dumps(axes)
        )
    return Markup('<svg class="chart" role="img" aria-label="{}" viewBox="0 0 {:.0f} {:.0f}"{}>{}</svg>').format(
        name, frame.width, frame.height, more, Markup("").join(parts)
    )
