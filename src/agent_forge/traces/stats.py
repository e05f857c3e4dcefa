# ruff: noqa: S608 (statements are put together from names in this file, never from values)
"""Statistics over many spans, read from the rollups in milliseconds.

Whole days inside the window come from the days' sums, whole hours before and after them from the hours', and what is
left at the two ends is summed from the spans themselves, all in one statement. So a figure is what the rows would give,
for any window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from agent_forge.errors import UsageError
from agent_forge.traces.queries import Moment, to_ns
from agent_forge.traces.rollup import DAY, HOUR, MINUTE, SUMS, TOOK

Window = tuple[int, int]  # from, and up to but excluding
GROUPS = ("agent", "name", "kind", "model", "category", "status")
_LAST = 2**63 // DAY * DAY  # the last whole day that a database can number
_ROWS = "FROM spans WHERE end_ns IS NOT NULL AND start_ns >= ? AND start_ns < ?"


@dataclass(frozen=True)
class Aggregate:
    """The sums of one group of finished spans. Means are None if nothing was measured."""

    group: dict[str, str | None]
    spans: int
    errors: int
    duration_s: float  # of all spans together
    tokens_n: int  # spans whose tokens were measured
    input_tokens: int
    output_tokens: int
    cost_n: int
    cost: float
    reward_n: int
    reward_sum: float
    reward_sumsq: float

    @property
    def mean_s(self) -> float:
        """Mean duration."""
        return self.duration_s / self.spans

    @property
    def reward_mean(self) -> float | None:
        """None without rewards."""
        return self.reward_sum / self.reward_n if self.reward_n else None

    @property
    def reward_std(self) -> float | None:
        """The sample standard deviation; None below two rewards."""
        if self.reward_n < 2:
            return None
        spread = self.reward_sumsq - self.reward_sum**2 / self.reward_n
        return math.sqrt(max(spread, 0.0) / (self.reward_n - 1))


class Tick(NamedTuple):
    """One step of the time line."""

    start_ns: int
    spans: int
    errors: int


_ROW_SUMS = (
    f"1 AS spans, {TOOK} AS duration_ns,"
    " CASE WHEN input_tokens IS NULL AND output_tokens IS NULL THEN 0 ELSE 1 END AS tokens_n,"
    " coalesce(input_tokens, 0) AS input_tokens, coalesce(output_tokens, 0) AS output_tokens,"
    " CASE WHEN cost IS NULL THEN 0 ELSE 1 END AS cost_n, coalesce(cost, 0.0) AS cost,"
    " CASE WHEN reward IS NULL THEN 0 ELSE 1 END AS reward_n, coalesce(reward, 0.0) AS reward_sum,"
    " coalesce(reward * reward, 0.0) AS reward_sumsq"
)


def aggregate(
    cursor: Any, by: Sequence[str], since: Moment | None, until: Moment | None, only: Mapping[str, str]
) -> list[Aggregate]:
    """See `Store.aggregate`."""
    columns = _columns(by, "a.status")
    filtered, values = _only(only, "a.status")
    summed = f"SELECT grp, status, {', '.join(SUMS)} FROM"
    days, rest = _whole(_window(since, until), DAY)
    parts_of_rest = [_whole(window, HOUR) for window in rest]
    hours = [step for steps, _ in parts_of_rest for step in steps]
    ends = [end for _, ends in parts_of_rest for end in ends]
    parts = [(f"{summed} rollup_day WHERE day >= ? AND day < ?", step) for step in days]
    parts += [(f"{summed} rollup_hour WHERE hour >= ? AND hour < ?", step) for step in hours]
    parts += [(f"SELECT grp, status, {_ROW_SUMS} {_ROWS}", end) for end in ends]
    if not parts:
        return []
    source = " UNION ALL ".join(text for text, _ in parts)
    times = [time for _, part in parts for time in part]
    # Groups are summed before they are joined with their names: joining every hour's row would cost more than the sum.
    inner = ", ".join(f"sum({name}) AS {name}" for name in SUMS)
    outer = ", ".join(f"sum(a.{name})" for name in SUMS)
    sql = (
        f"SELECT {', '.join(columns)}, sum(CASE WHEN a.status = 'error' THEN a.spans ELSE 0 END), {outer}"
        f" FROM (SELECT grp, status, {inner} FROM ({source}) r GROUP BY grp, status) a"
        f" JOIN groups g ON g.id = a.grp{filtered} GROUP BY {_ordinals(by)} ORDER BY {_ordinals(by)}"
    )
    rows = cursor.execute(sql, [*times, *values]).fetchall()
    return [_aggregate(by, row) for row in rows]


def _aggregate(by: Sequence[str], row: Sequence[Any]) -> Aggregate:
    group = {name: value or None for name, value in zip(by, row, strict=False)}
    errors, spans, duration, tokens_n, tokens_in, tokens_out, cost_n, cost, n, total, squares = row[len(by) :]
    return Aggregate(
        group, int(spans), int(errors), int(duration) / 1e9, int(tokens_n), int(tokens_in), int(tokens_out),
        int(cost_n), float(cost), int(n), float(total), float(squares),
    )  # fmt: skip


def percentiles(
    cursor: Any,
    by: Sequence[str],
    of: Sequence[float],
    since: Moment | None,
    until: Moment | None,
    only: Mapping[str, str],
) -> dict[tuple[str | None, ...], list[float]]:
    """See `Store.percentiles`."""
    if "status" in (*by, *only):
        raise UsageError("durations are not recorded by status", fix="Leave status out")
    columns = _columns(by, "")
    filtered, values = _only(only, "")
    source, times = _buckets(_window(since, until))
    sql = (
        f"SELECT {', '.join(columns)}, a.bucket, sum(a.spans) FROM"
        f" (SELECT grp, bucket, sum(spans) AS spans FROM ({source}) r GROUP BY grp, bucket) a"
        f" JOIN groups g ON g.id = a.grp{filtered}"
        f" GROUP BY {_ordinals(by)}, a.bucket ORDER BY {_ordinals(by)}, a.bucket"
    )
    counts: dict[tuple[str | None, ...], list[tuple[int, int]]] = {}
    for *group, bucket, spans in cursor.execute(sql, [*times, *values]).fetchall():
        counts.setdefault(tuple(value or None for value in group), []).append((int(bucket), int(spans)))
    return {group: [_quantile(buckets, share) for share in of] for group, buckets in counts.items()}


def _buckets(window: Window) -> tuple[str, list[int]]:
    """A statement for the number of spans per group and duration bucket in a window."""
    days, ends = _whole(window, DAY)
    if window == (0, _LAST):
        parts: list[tuple[str, Sequence[int]]] = [("SELECT grp, bucket, spans FROM rollup_bucket", ())]
    else:
        select = "SELECT grp, bucket, spans FROM rollup_duration WHERE day >= ? AND day < ?"
        parts = [(select, step) for step in days]
        parts += [(f"SELECT grp, bucket, 1 AS spans {_ROWS}", end) for end in ends or [(0, 0)]]
    return " UNION ALL ".join(text for text, _ in parts), [time for _, part in parts for time in part]


def _quantile(counts: Sequence[tuple[int, int]], share: float) -> float:
    """The duration in seconds below which `share` of the spans lie: the middle of its bucket."""
    rank = share * sum(spans for _, spans in counts)
    running = accumulate(spans for _, spans in counts)
    bucket = next(bucket for (bucket, _), below in zip(counts, running, strict=True) if below >= rank)
    return float(2 ** ((bucket + 0.5) / 4)) / 1e9


def timeline(cursor: Any, minutes: int, since: Moment | None, until: Moment | None, agent: str | None) -> list[Tick]:
    """See `Store.timeline`. The window is widened to whole minutes, or hours for one agent."""
    if agent is not None and minutes % 60:
        raise UsageError("an agent's time line is recorded by the hour", fix="Use a multiple of 60 minutes")
    if minutes < 1:
        raise UsageError(f"the steps of a time line must be at least 1 minute, not {minutes}")
    begin, end = _window(since, until)
    if minutes % 60:
        return _by_minute(cursor, minutes, begin, end)
    return _by_hour(cursor, minutes // 60, begin, end, agent)


def _by_minute(cursor: Any, step: int, begin: int, end: int) -> list[Tick]:
    tick, sums, grouped = f"minute * {MINUTE}", "spans, errors", ""
    if step > 1:
        tick, sums, grouped = f"minute / {step} * {step * MINUTE}", "sum(spans), sum(errors)", " GROUP BY 1"
    sql = f"SELECT {tick}, {sums} FROM rollup_minute WHERE minute >= ? AND minute < ?{grouped} ORDER BY 1"
    return _ticks(cursor, sql, [begin // MINUTE, -(-end // MINUTE)])


def _by_hour(cursor: Any, step: int, begin: int, end: int, agent: str | None) -> list[Tick]:
    only = "" if agent is None else " AND grp IN (SELECT id FROM groups WHERE agent = ?)"
    sql = (
        f"SELECT hour / {step} * {step * HOUR}, sum(spans), sum(CASE WHEN status = 'error' THEN spans ELSE 0 END)"
        f" FROM rollup_hour WHERE hour >= ? AND hour < ?{only} GROUP BY 1 ORDER BY 1"
    )
    return _ticks(cursor, sql, [begin // HOUR, -(-end // HOUR), *([] if agent is None else [agent])])


def _ticks(cursor: Any, sql: str, values: list[Any]) -> list[Tick]:
    rows = cursor.execute(sql, values).fetchall()
    if rows and type(rows[0][1]) is not int:  # PostgreSQL's sums are decimals
        rows = [tuple(map(int, row)) for row in rows]
    return list(map(Tick._make, rows))


def _window(since: Moment | None, until: Moment | None) -> Window:
    return (to_ns(since) if since is not None else 0), (to_ns(until) if until is not None else _LAST)


def _whole(window: Window, width: int) -> tuple[list[Window], list[Window]]:
    """The whole steps inside a window (numbered), and what is left of it before and after them (in ns)."""
    begin, end = window
    first, last = -(-begin // width), end // width
    if first >= last:
        return [], [window] if begin < end else []
    ends = [(begin, first * width), (last * width, end)]
    return [(first, last)], [(one, other) for one, other in ends if one < other]


def _columns(by: Sequence[str], status: str) -> list[str]:
    if not by:
        raise UsageError("there is nothing to group by", fix=f"Choose from {', '.join(GROUPS)}")
    return [status if name == "status" else f"g.{_checked(name)}" for name in by]


def _only(only: Mapping[str, str], status: str) -> tuple[str, list[str]]:
    conditions = [f"{status if name == 'status' else 'g.' + _checked(name)} = ?" for name in only]
    return (f" WHERE {' AND '.join(conditions)}" if conditions else ""), [value or "" for value in only.values()]


def _checked(name: str) -> str:
    if name not in GROUPS:
        raise UsageError(f"spans cannot be grouped by {name!r}", fix=f"Groups are {', '.join(GROUPS)}")
    return name


def _ordinals(by: Sequence[str]) -> str:
    return ", ".join(str(place + 1) for place in range(len(by)))
