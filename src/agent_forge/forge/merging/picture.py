"""A picture of interference: one cell per tensor, layers from left to right, red where task vectors conflict."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from agent_forge.forge.merging.layout import LAYER
from agent_forge.forge.merging.vectors import Interference

CELL, LEFT, TOP = 22, 250, 64
FONT = 'font-family="system-ui, sans-serif" font-size="12"'


def interference_svg(rows: Sequence[Interference], title: str = "Interference of task vectors") -> str:
    """An SVG. The colour of a cell is its share of sign conflicts, from 0 (white) to 1/2 and above (red)."""
    cells: dict[str, dict[int, Interference]] = {}
    for row in rows:
        match = LAYER.fullmatch(row.name)
        kind = match["after"].strip(".") if match else row.name
        cells.setdefault(kind.removesuffix(".weight"), {})[int(match["number"]) if match else 0] = row
    width = LEFT + CELL * (1 + max(layer for line in cells.values() for layer in line)) + 230
    height = TOP + CELL * len(cells) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {FONT}>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="12" y="24" font-size="15" font-weight="600">{escape(title)}</text>',
        f'<text x="12" y="44" fill="#555">{escape(_summary(rows))}</text>',
    ]
    for line, (kind, layers) in enumerate(cells.items()):
        y = TOP + CELL * line
        parts.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(kind)}</text>')
        parts += [_cell(LEFT + CELL * layer, y, row) for layer, row in layers.items()]
    parts.append(_legend(width - 200, TOP))
    return "\n".join([*parts, "</svg>\n"])


def _cell(x: int, y: int, row: Interference) -> str:
    title = escape(f"{row.name}: conflict {_number(row.conflict)}, cosine {_number(row.cosine)}")
    fill, size = _colour(row.conflict), CELL - 2
    return f'<rect x="{x}" y="{y}" width="{size}" height="{size}" fill="{fill}"><title>{title}</title></rect>'


def _colour(conflict: float | None) -> str:
    if conflict is None:
        return "#e8e8e8"
    strength = min(1.0, conflict * 2)
    return f"rgb({255 - int(55 * strength)},{255 - int(215 * strength)},{255 - int(205 * strength)})"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _summary(rows: Sequence[Interference]) -> str:
    whole = rows[-1]
    norms = ", ".join(f"{norm:.3f}" for norm in whole.norms)
    return (
        f"all tensors: sign conflicts {_number(whole.conflict)}, mean cosine {_number(whole.cosine)}, "
        f"norms relative to the base {norms}"
    )


def _legend(x: int, y: int) -> str:
    steps = (0.0, 0.125, 0.25, 0.375, 0.5)
    lines = [f'<text x="{x}" y="{y + 12}">share of sign conflicts</text>']
    for number, value in enumerate(steps):
        top = y + 20 + number * 18
        lines.append(f'<rect x="{x}" y="{top}" width="16" height="16" fill="{_colour(value)}" stroke="#ccc"/>')
        lines.append(f'<text x="{x + 24}" y="{top + 13}">{value:g}{" and above" if value == 0.5 else ""}</text>')
    return "\n".join(lines)
