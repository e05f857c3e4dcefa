"""Figures for people: durations, times, sizes, shares. What was not measured is a dash."""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone
from typing import Any

DASH = "–"
_PARTS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_AGES = ((60, 1, "s"), (3_600, 60, "min"), (86_400, 3_600, "h"), (60 * 86_400, 86_400, "d"))


def number(value: float | None, digits: int = 3) -> str:
    """A number with this many significant digits and thousands separators; integers in full.

    >>> number(1234567), number(0.123456), number(None), number(1234.5), number(2.0)
    ('1,234,567', '0.123', '–', '1,234', '2')
    """
    if value is None or not math.isfinite(value):
        return DASH
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    size = abs(value)
    if size >= 1e6 or size < 1e-4:
        return f"{value:.{digits - 1}e}"
    places = max(0, digits - 1 - math.floor(math.log10(size)))
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def signed(value: float | None, digits: int = 3) -> str:
    """A number with its sign: a real minus, and a plus.

    >>> signed(0.5), signed(-2), signed(0), signed(None)
    ('+0.5', '−2', '0', '–')
    """
    text = number(value, digits)
    if value is None or text == DASH:
        return text
    return f"+{text}" if value > 0 else text.replace("-", "−", 1)


def count(value: float | None) -> str:
    """A large count, short: 1.2 M.

    >>> count(999), count(24_900_000), count(None)
    ('999', '24.9 M', '–')
    """
    if value is None:
        return DASH
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{number(value / (1e3 if unit == 'k' else size))} {unit}"
    return number(value)


def size(value: float | None) -> str:
    """Bytes, in powers of ten.

    >>> size(512), size(49_300_000), size(None)
    ('512 B', '49.3 MB', '–')
    """
    if value is None:
        return DASH
    for step, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= step:
            return f"{number(value / step)} {unit}"
    return f"{number(value)} B"


def duration(seconds: float | None) -> str:
    """Seconds in readable units.

    >>> [duration(s) for s in (None, 0, 0.0000123, 0.0456, 1.234, 75, 3_725, 200_000)]
    ['–', '0 s', '12.3 µs', '45.6 ms', '1.23 s', '1 min 15 s', '1 h 2 min', '2 d 7 h']
    """
    if seconds is None or not math.isfinite(seconds):
        return DASH
    if seconds < 0:
        return f"−{duration(-seconds)}"
    for step, unit in ((1e-3, "µs"), (1.0, "ms")):
        if 0 < seconds < step:
            return f"{number(seconds / step * 1e3)} {unit}"
    if seconds < 60:
        return f"{number(seconds)} s"
    left = round(seconds)
    words: list[str] = []
    for step, unit in _PARTS:
        if left >= step or words:
            words.append(f"{left // step} {unit}")
            left %= step
    return " ".join(word for word in words[:2] if not word.startswith("0 "))


def ago(then_s: float | None, now_s: float) -> str:
    """How long ago a time was.

    >>> ago(100.0, 103.0), ago(0.0, 7300.0), ago(None, 1.0), ago(5.0, 2.0)
    ('3 s ago', '2 h ago', '–', 'now')
    """
    if then_s is None:
        return DASH
    passed = now_s - then_s
    if passed < 1:
        return "now"
    for below, step, unit in _AGES:
        if passed < below:
            return f"{int(passed // step)} {unit} ago"
    return iso(then_s)[:10]


def iso(then_s: float) -> str:
    """A time as ISO 8601 in UTC, to the second.

    >>> iso(0)
    '1970-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(then_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def share(value: float | None) -> str:
    """A share in per cent.

    >>> share(0.125), share(None), share(1.0)
    ('12.5 %', '–', '100 %')
    """
    return DASH if value is None else f"{number(100 * value)} %"


def money(value: float | None) -> str:
    """US dollars; small amounts with more digits.

    >>> money(1.5), money(0.00042), money(None), money(0.0)
    ('$1.50', '$0.00042', '–', '$0')
    """
    if value is None:
        return DASH
    return f"${value:,.2f}" if value >= 0.1 else f"${number(value)}"


def measured(value: float | None, name: str) -> str:
    """The value of a metric, in the unit that its name implies.

    >>> measured(8.23e8, "peak_memory_bytes"), measured(0.063, "latency_s_at_512"), measured(2.0712, "bits per byte")
    ('823 MB', '63 ms', '2.071')
    """
    if name.endswith("bytes"):
        return size(value)
    return duration(value) if name.startswith(("latency", "seconds")) else number(value, 4)


def pretty(value: Any, longest: int = 20_000) -> str:
    """A JSON value for reading: text as it is, anything else indented; cut if it is very long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=str)
    if len(text) <= longest:
        return text
    return f"{text[:longest]}\n… {len(text) - longest:,} more characters: see the JSON of this page"


def short(value: Any, longest: int = 80) -> str:
    """A value on one line.

    >>> short({"a": [1, 2]}), short("x" * 90, 5)
    ('{"a": [1, 2]}', 'xxxx…')
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
