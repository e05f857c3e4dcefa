"""The report: a table, and a picture of size against quality that needs no plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from agent_forge.forge.compression.search import CompressionReport

WIDTH, HEIGHT, MARGIN = 720, 420, 64
GOOD, BAD, LINE = "#1a7f37", "#b35900", "#57606a"


def stage_table(report: CompressionReport) -> Any:
    """Every stage as a row of a rich table."""
    from rich.table import Table

    table = Table(title="stages", title_justify="left")
    for column in ("stage", "bytes", "perplexity", "KL", "same token", "gate"):
        table.add_column(column, justify="left" if column in ("stage", "gate") else "right")
    before = report.before.before
    table.add_row("original", f"{report.bytes_before:,}", f"{before.perplexity:.3f}", "0", "100 %", "")
    for stage in report.stages:
        figures = stage.figures
        verdict = "passed" if stage.passed else "too large" if stage.good else "failed"
        row = (f"{figures.bytes:,}", f"{figures.ppl:.3f}", f"{figures.kl:.4f}", f"{100 * figures.agreement:.1f} %")
        table.add_row(stage.name, *row, verdict)
    return table


def draw_stages(report: CompressionReport, path: str | Path) -> None:
    """Every stage as a point: bytes against perplexity."""
    points = [(s.figures.bytes / 1e6, s.figures.ppl, s.name, s.passed) for s in report.stages]
    points.append((report.bytes_before / 1e6, report.before.before.perplexity, "original", True))
    limit = report.stages[0].limit_ppl if report.stages else None
    Path(path).write_text(scatter(points, "MB on disk, everything counted", "perplexity", limit), encoding="utf-8")


def scatter(
    points: Sequence[tuple[float, float, str, bool]], x_name: str, y_name: str, limit: float | None = None
) -> str:
    """An SVG of (x, y, label, good) points on logarithmic axes; `limit` is a horizontal line.

    >>> "<svg" in scatter([(1.0, 2.0, "a", True), (10.0, 1.0, "b", False)], "size", "loss")
    True
    """
    shown = [p for p in points if p[0] > 0 and p[1] > 0 and math.isfinite(p[1])]
    across = _LogAxis([x for x, *_ in shown], MARGIN, WIDTH - 110)
    up = _LogAxis([y for _, y, *_ in shown] + ([limit] if limit else []), HEIGHT - MARGIN, 24)
    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *_frame(across, up, x_name, y_name)]
    if limit:
        y = f"{up(limit):.1f}"
        parts.append(f'<line x1="{MARGIN}" x2="{WIDTH - 16}" y1="{y}" y2="{y}" stroke="{BAD}" stroke-dasharray="5 4"/>')
    for x, y_value, label, good in shown:
        colour = GOOD if good else BAD
        parts.append(f'<circle cx="{across(x):.1f}" cy="{up(y_value):.1f}" r="4.5" fill="{colour}"/>')
        parts.append(_text(across(x) + 7, up(y_value) - 6, f"{label}: {x:.3g}, {y_value:.4g}", "start"))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
    return "\n".join([head, *parts, "</svg>"]) + "\n"


class _LogAxis:
    """A logarithmic scale from values to places on the page."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = math.log(min(values)), math.log(max(values))
        room = max(0.05 * (high - low), 0.02)
        self.low, self.high, self.start, self.end = low - room, high + room, start, end

    def __call__(self, value: float) -> float:
        return self.start + (math.log(value) - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        return [math.exp(self.low + (self.high - self.low) * place / (count - 1)) for place in range(count)]


def _frame(across: _LogAxis, up: _LogAxis, x_name: str, y_name: str) -> list[str]:
    bottom = HEIGHT - MARGIN
    turned = f'transform="rotate(-90 16 {HEIGHT / 2})"'
    return [
        f'<path d="M{MARGIN} 16 V{bottom} H{WIDTH - 16}" fill="none" stroke="{LINE}"/>',
        *(_text(across(value), bottom + 18, f"{value:.3g}", "middle") for value in across.ticks()),
        *(_text(MARGIN - 6, up(value) + 4, f"{value:.4g}", "end") for value in up.ticks()),
        _text(WIDTH / 2, HEIGHT - 16, x_name, "middle", 13),
        _text(16, HEIGHT / 2, y_name, "middle", 13, turned),
    ]


def _text(x: float, y: float, text: str, anchor: str, size: int = 11, more: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" {more}'
    return f"<text {place.strip()}>{escape(text)}</text>"
