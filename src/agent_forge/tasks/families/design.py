"""Design: the specification of a screen on a grid, with readable colours, sizes to tap on, and nothing overlapping."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

from agent_forge.tasks.constraints import judge, outside
from agent_forge.tasks.family import Draft, Verdict, task_family

# Components by what they are; those to be tapped have a least size.
_KINDS = {
    "title": "text", "intro": "text", "hint": "text", "name": "input", "email": "input", "search": "input",
    "submit": "button", "cancel": "button", "help": "button", "menu": "button",
}  # fmt: skip
_COLOUR = {"type": "string", "pattern": "^#(?:[0-9A-Fa-f]{6}|[0-9A-Fa-f]{3})$"}
_PIXELS = {"type": "integer", "minimum": 0, "maximum": 2000}
SCHEMA = {
    "type": "object",
    "properties": {
        "components": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"enum": list(_KINDS)},
                    "x": _PIXELS,
                    "y": _PIXELS,
                    "width": _PIXELS,
                    "height": _PIXELS,
                    "font_size": _PIXELS,
                    "text_color": _COLOUR,
                    "fill": _COLOUR,
                },
                "required": ["id", "x", "y", "width", "height", "font_size", "text_color", "fill"],
                "additionalProperties": False,
            },
            "maxItems": 8,
        }
    },
    "required": ["components"],
    "additionalProperties": False,
}
_LARGE = 24  # WCAG's large text: 18 points, 24 pixels


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours by WCAG 2: from 1 to 21.

    >>> round(contrast("#767676", "#fff"), 2)
    4.54
    """
    bright, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    """Relative luminance: the channels in linear light, weighted as the eye does."""
    digits = _long(colour)[1:]
    channels = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _long(colour: str) -> str:
    """The colour in the form #rrggbb."""
    digits = colour.lower()[1:]
    return "#" + (digits if len(digits) == 6 else "".join(digit * 2 for digit in digits))


def check(answer: Mapping[str, Any], expected: Mapping[str, Any]) -> Verdict:
    """Each component by its place, size and text; what overlaps or is not in the brief halves the score."""
    components = {component["id"]: component for component in answer["components"]}
    faults: dict[str, str | None] = {}
    for name in expected["components"]:
        if name in components:
            faults |= _component_faults(components[name], expected)
        else:
            faults |= {f"{name}, {part}": "it is missing" for part in ("place", "size", "text")}
    for first, second in expected["above"]:
        faults[f"{first} above {second}"] = _above_fault(components.get(first), components.get(second))
    for left, right in expected["rows"]:
        faults[f"{left} beside {right}"] = _row_fault(components.get(left), components.get(right))
    ids = [component["id"] for component in answer["components"]]
    extra = [name for place, name in enumerate(ids) if name not in expected["components"] or name in ids[:place]]
    close = [
        f"{one['id']} and {two['id']}"
        for one, two in combinations(answer["components"], 2)
        if _touch(one, two, expected["gap"])
    ]
    what = f"less than {expected['gap']} pixels between" if expected["gap"] else "overlapping"
    return judge(faults, {"not in the brief": ", ".join(extra) or None, what: ", ".join(close) or None})


def _component_faults(component: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    name, grid, margin = component["id"], expected["grid"], expected["margin"]
    width, height = expected["screen"]
    loose = next((key for key in ("x", "y", "width", "height") if component[key] % grid), None)
    right, bottom = component["x"] + component["width"], component["y"] + component["height"]
    inside = min(component["x"], component["y"]) >= margin and right <= width - margin and bottom <= height - margin
    place = None if inside else f"it is not within the screen, {margin} pixels from its edges"
    yield f"{name}, place", f"{loose} is not a multiple of {grid}" if loose else place
    least = max(component["font_size"], expected["tap"] if _KINDS[name] != "text" else 0)
    small = min(component["width"], component["height"]) < least
    yield f"{name}, size", f"it is less than {least} pixels wide or high" if small else None
    yield f"{name}, text", _text_fault(component, expected)


def _text_fault(component: Mapping[str, Any], expected: Mapping[str, Any]) -> str | None:
    low, high = expected["title_font" if component["id"] == "title" else "font"]
    if fault := outside("pixels of font_size", component["font_size"], low, high):
        return fault
    colours = [_long(component["text_color"]), _long(component["fill"])]
    if strange := [colour for colour in colours if expected["palette"] and colour not in expected["palette"]]:
        return f"{strange[0]} is not in the palette"
    ratio, least = contrast(*colours), 3.0 if component["font_size"] >= _LARGE else 4.5
    return None if ratio >= least else f"a contrast of {ratio:.2f} instead of {least}"


def _above_fault(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> str | None:
    right = first and second and first["y"] + first["height"] <= second["y"]
    return None if right else "it is not"


def _row_fault(left: Mapping[str, Any] | None, right: Mapping[str, Any] | None) -> str | None:
    if not left or not right or (left["y"], left["height"]) != (right["y"], right["height"]):
        return "they do not have the same y and height"
    return None if left["x"] + left["width"] <= right["x"] else f"{left['id']} is not to the left"


def _touch(one: Mapping[str, Any], two: Mapping[str, Any], gap: int) -> bool:
    """Whether two rectangles overlap or have less than the gap between them."""
    across = one["x"] < two["x"] + two["width"] + gap and two["x"] < one["x"] + one["width"] + gap
    return bool(across and one["y"] < two["y"] + two["height"] + gap and two["y"] < one["y"] + one["height"] + gap)


def solve(expected: Mapping[str, Any]) -> dict[str, Any]:
    """All in one column, in the order of the brief, a row in two columns; the two colours that differ most."""
    grid: int = expected["grid"]

    def up(size: int) -> int:
        """The next line of the grid."""
        return -(-size // grid) * grid

    palette = expected["palette"] or ["#000000", "#ffffff"]
    dark, light = max(combinations(palette, 2), key=lambda pair: contrast(*pair))
    left, gap = up(expected["margin"]), up(expected["gap"])
    height = up(max(expected["tap"], expected["title_font"][0]))
    full = (expected["screen"][0] - expected["margin"] - left) // grid * grid
    half = (full - gap) // 2 // grid * grid
    rights = {right: left_one for left_one, right in expected["rows"]}
    components: list[dict[str, Any]] = []
    y = left
    for name in expected["components"]:
        beside = name in rights
        if components and not beside:
            y += height + gap
        split = beside or any(name == left_one for left_one, _ in expected["rows"])
        components.append(
            {
                "id": name,
                "x": left + half + gap if beside else left,
                "y": y,
                "width": half if split else full,
                "height": height,
                "font_size": expected["title_font" if name == "title" else "font"][0],
                "text_color": dark,
                "fill": light,
            }
        )
    return {"components": components}


@task_family("design", check=check, solve=solve, schema=SCHEMA)
def design(rng: random.Random, level: float) -> Draft:
    """More components, an order, a palette, margins and gaps as the level rises."""
    chosen = rng.sample(list(_KINDS), 1 + round(5 * level))
    names = [name for name in _KINDS if name in chosen]
    rows = []
    if level > 0.7:  # the last two form a row
        rows = [names[-2:]]
    singles = names[: len(names) - 2] if rows else names
    size, small = 4 * rng.randrange(6, 9), rng.randrange(12, 16)
    expected = {
        "screen": [40 * rng.randrange(8, 12), 80 * rng.randrange(8, 11)],
        "grid": rng.choice((4, 5, 8, 10)) if level > 0.15 else rng.choice((2, 5, 10)),
        "components": names,
        "tap": rng.choice((40, 44, 48)) if level > 0.1 else 0,
        "font": [small, small + 6],
        "title_font": [size, size + 12],
        "palette": _draw_palette(rng, 3 + round(3 * level)) if level > 0.45 else [],
        "above": [list(pair) for pair in pairwise(singles)] if level > 0.3 else [],
        "rows": rows,
        "margin": rng.choice((8, 12, 16, 20)) if level > 0.4 else 0,
        "gap": rng.choice((6, 8, 12)) if level > 0.6 else 0,
    }
    return Draft(_prompt(expected), expected)


def _draw_palette(rng: random.Random, count: int) -> list[str]:
    """A dark and a light colour that contrast, and others in between; no two alike."""
    ranges = [(0, 60), (200, 256), *[(90, 170)] * (count - 2)]
    colours = ["#" + "".join(f"{rng.randrange(*bounds):02x}" for _ in range(3)) for bounds in ranges]
    colours = list(dict.fromkeys(colours))
    rng.shuffle(colours)
    return colours


def _prompt(expected: Mapping[str, Any]) -> str:
    width, height = expected["screen"]
    listed = ", ".join(f"{name} ({_KINDS[name]})" for name in expected["components"])
    rules = "\n".join(f"- {rule}" for rule in _rules(expected))
    return (
        f"Design a screen of {width} x {height} pixels with exactly these components: {listed}. Give each its id, x "
        "and y (of its upper left corner), width, height, font_size, text_color and fill (colours as #rrggbb).\n"
        f"Rules:\n{rules}"
    )


def _rules(expected: Mapping[str, Any]) -> Iterator[str]:
    grid, names = expected["grid"], expected["components"]
    yield f"x, y, width and height are multiples of {grid}; width and height are at least font_size"
    edges = f", at least {expected['margin']} pixels from each edge" if expected["margin"] else ""
    yield f"all is within the screen{edges}"
    if len(names) > 1:
        distance = f"any two components are at least {expected['gap']} pixels apart, horizontally or vertically"
        yield distance if expected["gap"] else "nothing overlaps"
    if expected["tap"] and any(_KINDS[name] != "text" for name in names):
        yield f"inputs and buttons are at least {expected['tap']} pixels wide and high"
    yield from _font_rules(names, expected)
    yield "the contrast of text_color on fill is at least 4.5 by WCAG, or 3 where font_size is 24 or more"
    if expected["palette"]:
        yield f"colours are from this palette: {', '.join(expected['palette'])}"
    for first, second in expected["above"]:
        yield f"{first} is above {second}: it ends where {second} begins or earlier"
    for left, right in expected["rows"]:
        yield f"{left} and {right} have the same y and height, with {left} on the left"


def _font_rules(names: Sequence[str], expected: Mapping[str, Any]) -> Iterator[str]:
    if "title" in names:
        yield "font_size of the title is {} to {}".format(*expected["title_font"])
    if names != ["title"]:
        yield "font_size of {} is {} to {}".format("the others" if "title" in names else "all", *expected["font"])
