# ruff: noqa: S608 (statements are put together from names in this file, never from values)
"""Statistics over many spans, read from the rollups in milliseconds.

Whole hours (days, minutes) inside the asked time come from the sums; what hangs over at its two ends is summed from
the spans themselves. So a figure is the same as if it had been computed from the rows, for any window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from agent_forge.errors import UsageError
from agent_forge.traces.queries import Moment, to_ns
from agent_forge.traces.rollup import DAY, HOUR, MINUTE

GROUPS = ("agent", "name", "kind", "model", "category", "status")
_NEVER, _ALWAYS = 0, 2**63 - 1


@dataclass(frozen=True)
class Aggregate:
    """The sums of one group of finished spans. Means are None where nothing was measured."""

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
        """The sample's standard deviation; None below two rewards."""
        if self.reward_n < 2:
            return None
        spread = self.reward_sumsq - self.reward_sum**2 / self.reward_n
        return math.sqrt(max(spread, 0.0) / (self.reward_n - 1))


@dataclass(frozen=True)
class Tick:
    """Some minutes of the time line."""

    start_ns: int
    spans: int
    errors: int


_SUMS = (
    "spans", "duration_ns", "tokens_n", "input_tokens", "output_tokens", "cost_n", "cost", "reward_n", "reward_sum",
    "reward_sumsq",
)  # fmt: skip
_ROW_SUMS = (
    "1, end_ns - start_ns, CASE WHEN input_tokens IS NULL AND output_tokens IS NULL THEN 0 ELSE 1 END,"
    " coalesce(input_tokens, 0), coalesce(output_tokens, 0), CASE WHEN cost IS NULL THEN 0 ELSE 1 END,"
    " coalesce(cost, 0.0), CASE WHEN reward IS NULL THEN 0 ELSE 1 END, coalesce(reward, 0.0),"
    " coalesce(reward * reward, 0.0)"
)
_ENDS = "FROM spans WHERE end_ns IS NOT NULL AND (start_ns >= ? AND start_ns < ? OR start_ns >= ? AND start_ns < ?)"


def aggregate(
    cursor: Any, by: Sequence[str], since: Moment | None, until: Moment | None, only: Mapping[str, str]
) -> list[Aggregate]:
    """See `Store.aggregate`."""
    columns = _columns(by, "a.status")
    whole, ends = _window(since, until, HOUR)
    kept, values = _only(only, "a.status")
    source = f"SELECT grp, status, {', '.join(_SUMS)} FROM rollup_hour WHERE hour >= ? AND hour < ?"
    if ends:
        source += f" UNION ALL SELECT grp, status, {_ROW_SUMS} {_ENDS}"
    # The groups are summed before they meet their names: a join of every hour's row would cost more than the sum.
    inner = ", ".join(f"sum({name}) AS {name}" for name in _SUMS)
    outer = ", ".join(f"sum(a.{name})" for name in _SUMS)
    sql = (
        f"SELECT {', '.join(columns)}, sum(CASE WHEN a.status = 'error' THEN a.spans ELSE 0 END), {outer}"
        f" FROM (SELECT grp, status, {inner} FROM ({source}) r GROUP BY grp, status) a"
        f" JOIN groups g ON g.id = a.grp{kept} GROUP BY {_ordinals(by)} ORDER BY {_ordinals(by)}"
    )
    rows = cursor.execute(sql, [*whole, *ends, *values]).fetchall()
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
        raise UsageError("durations are not kept by status", fix="leave status out")
    columns = _columns(by, "")
    whole, ends = _window(since, until, DAY)
    kept, values = _only(only, "")
    source = "SELECT grp, bucket, spans FROM rollup_duration WHERE day >= ? AND day < ?"
    if ends:
        source += f" UNION ALL SELECT grp, bucket, 1 {_ENDS}"
    sql = (
        f"SELECT {', '.join(columns)}, a.bucket, sum(a.spans) FROM"
        f" (SELECT grp, bucket, sum(spans) AS spans FROM ({source}) r GROUP BY grp, bucket) a"
        f" JOIN groups g ON g.id = a.grp{kept} GROUP BY {_ordinals(by)}, a.bucket ORDER BY {_ordinals(by)}, a.bucket"
    )
    counts: dict[tuple[str | None, ...], list[tuple[int, int]]] = {}
    for *group, bucket, spans in cursor.execute(sql, [*whole, *ends, *values]).fetchall():
        counts.setdefault(tuple(value or None for value in group), []).append((int(bucket), int(spans)))
    return {group: [_quantile(found, share) for share in of] for group, found in counts.items()}


def _quantile(counts: Sequence[tuple[int, int]], share: float) -> float:
    """The duration in seconds below which `share` of the spans lie: the middle of the bucket where that falls."""
    wanted = share * sum(spans for _, spans in counts)
    running = accumulate(spans for _, spans in counts)
    bucket = next(bucket for (bucket, _), seen in zip(counts, running, strict=True) if seen >= wanted)
    return float(2 ** ((bucket + 0.5) / 4)) / 1e9


def timeline(cursor: Any, minutes: int, since: Moment | None, until: Moment | None, agent: str | None) -> list[Tick]:
    """See `Store.timeline`. The window is widened to whole minutes."""
    first = (to_ns(since) if since is not None else _NEVER) // MINUTE
    last = -(-to_ns(until) // MINUTE) if until is not None else _ALWAYS // MINUTE
    kept = "" if agent is None else " AND agent = ?"
    sql = (
        f"SELECT minute / {int(minutes)} AS tick, sum(spans), sum(CASE WHEN status = 'error' THEN spans ELSE 0 END)"
        f" FROM rollup_minute WHERE minute >= ? AND minute < ?{kept} GROUP BY tick ORDER BY tick"
    )
    rows = cursor.execute(sql, [first, last, *([] if agent is None else [agent])]).fetchall()
    return [Tick(int(tick) * minutes * MINUTE, int(spans), int(errors)) for tick, spans, errors in rows]


def _window(since: Moment | None, until: Moment | None, width: int) -> tuple[list[int], list[int]]:
    """The whole steps inside a window, and the spans' times at its two ends (empty where it has no ends)."""
    begin = to_ns(since) if since is not None else _NEVER
    end = to_ns(until) if until is not None else _ALWAYS
    first, last = -(-begin // width), end // width
    if since is None and until is None:
        return [_NEVER, _ALWAYS], []
    if first >= last:
        return [0, 0], [begin, end, 0, 0]
    return [first, last], [begin, first * width, last * width, end if until is not None else last * width]


def _columns(by: Sequence[str], status: str) -> list[str]:
    if not by:
        raise UsageError("nothing to group by", fix=f"name some of {', '.join(GROUPS)}")
    return [status if name == "status" else f"g.{_checked(name)}" for name in by]


def _only(only: Mapping[str, str], status: str) -> tuple[str, list[str]]:
    conditions = [f"{status if name == 'status' else 'g.' + _checked(name)} = ?" for name in only]
    return (f" WHERE {' AND '.join(conditions)}" if conditions else ""), [value or "" for value in only.values()]


def _checked(name: str) -> str:
    if name not in GROUPS:
        raise UsageError(f"spans cannot be grouped by {name!r}", fix=f"groups are {', '.join(GROUPS)}")
    return name


def _ordinals(by: Sequence[str]) -> str:
    return ", ".join(str(place + 1) for place in range(len(by)))
