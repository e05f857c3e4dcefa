# ruff: noqa: S608 (the statements are put together from the names in this file, never from values)
"""Sums stored beside the spans, so that statistics over a million of them cost milliseconds.

By hour and by day, for each group and status: counts, durations, tokens, cost, rewards. By group and duration bucket,
for each day and overall: what percentiles need. By minute: the time line. And `traces`, one row per trace. All of them
are written in the transaction that stores their spans, and can be rebuilt from the spans (`rebuild`), which a test
compares them with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agent_forge.traces.bulk import Insert, adding
from agent_forge.traces.rows import (
    AGENT,
    BUCKET,
    CATEGORY,
    COST,
    END,
    ERROR,
    GROUP,
    INPUT_TOKENS,
    KIND,
    NAME,
    OUTPUT_TOKENS,
    PARENT,
    REWARD,
    SESSION,
    START,
    STATUS,
    TRACE,
    Row,
)  # fmt: skip

SECOND = 1_000_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86400 * SECOND

Hours = dict[tuple[int, int, str], list[Any]]  # hour, group, status: the SUMS
Durations = dict[tuple[int, int, int], int]  # day, group, bucket: spans
Minutes = dict[int, list[int]]  # minute: spans, errors

# ns: two years. A span that seems to have taken longer has a wrong start or end, and a few dozen of them would overflow
# a database's integers: they count as spans, with a duration of 0.
LONGEST = 2**56
TOOK = f"CASE WHEN abs(end_ns - start_ns) < {LONGEST} THEN end_ns - start_ns ELSE 0 END"

SUMS = (
    "spans", "duration_ns", "tokens_n", "input_tokens", "output_tokens", "cost_n", "cost", "reward_n", "reward_sum",
    "reward_sumsq",
)  # fmt: skip
_TRACE_COLUMNS = (
    "trace_id", "start_ns", "end_ns", "spans", "errors", "unfinished", "name", "kind", "status", "error", "agent",
    "category", "session", "input_tokens", "output_tokens", "cost", "root_reward", "given_reward",
)  # fmt: skip


_ADD_HOUR = adding("rollup_hour", ("hour", "grp", "status"), SUMS)
_ADD_DAY = adding("rollup_day", ("day", "grp", "status"), SUMS)
_ADD_DURATION = adding("rollup_duration", ("day", "grp", "bucket"), ("spans",))
_ADD_BUCKET = adding("rollup_bucket", ("grp", "bucket"), ("spans",))
_ADD_MINUTE = adding("rollup_minute", ("minute",), ("spans", "errors"))


def _merged(column: str) -> str:
    """How a column of a trace's row takes in another batch of its spans."""
    old, new = f"traces.{column}", f"excluded.{column}"
    if column in ("spans", "errors", "unfinished"):
        return f"{column} = {old} + {new}"
    if column in ("input_tokens", "output_tokens", "cost"):
        return f"{column} = CASE WHEN {old} IS NULL THEN {new} WHEN {new} IS NULL THEN {old} ELSE {old} + {new} END"
    if column in ("start_ns", "end_ns"):
        later = "<" if column == "start_ns" else ">"
        return f"{column} = CASE WHEN {old} IS NULL OR {new} {later} {old} THEN {new} ELSE {old} END"
    if column in ("name", "kind", "status", "error", "agent", "category", "root_reward"):  # of the root: the first wins
        return f"{column} = CASE WHEN traces.name IS NULL THEN {new} ELSE {old} END"
    if column == "given_reward":  # of the last reward span
        return f"{column} = CASE WHEN {new} IS NULL THEN {old} ELSE {new} END"
    return f"{column} = CASE WHEN {old} IS NULL THEN {new} ELSE {old} END"


_ADD_TRACE = Insert(
    "traces",
    _TRACE_COLUMNS,
    f"ON CONFLICT (trace_id) DO UPDATE SET {', '.join(_merged(name) for name in _TRACE_COLUMNS[1:])}",
    (("error",), ("agent", "category"), ("session",), ("cost", "root_reward", "given_reward")),
)


def add_sums(cursor: Any, rows: list[Row]) -> None:
    """Adds rows to the sums, inside the open transaction. Finished spans count, the others do not."""
    hours, durations, minutes = _count(rows)
    days: dict[tuple[int, int, str], list[Any]] = {}
    for (hour, grp, status), sums in hours.items():
        key = (hour // 24, grp, status)
        days[key] = [a + b for a, b in zip(days[key], sums, strict=True)] if key in days else sums
    buckets: dict[tuple[int, int], int] = {}
    for (_, grp, bucket), spans in durations.items():
        buckets[grp, bucket] = buckets.get((grp, bucket), 0) + spans
    _ADD_HOUR.run(cursor, [(*key, *sums) for key, sums in sorted(hours.items())])
    _ADD_DAY.run(cursor, [(*key, *sums) for key, sums in sorted(days.items())])
    _ADD_DURATION.run(cursor, [(*key, spans) for key, spans in sorted(durations.items())])
    _ADD_BUCKET.run(cursor, [(*key, spans) for key, spans in sorted(buckets.items())])
    _ADD_MINUTE.run(cursor, [(minute, *sums) for minute, sums in sorted(minutes.items())])


def _count(rows: Iterable[Row]) -> tuple[Hours, Durations, Minutes]:
    """One loop with nothing called in it: it runs for every span that comes in."""
    hours: Hours = {}
    durations: Durations = {}
    minutes: Minutes = {}
    for row in rows:
        if row[END] is None:
            continue
        start, status, grp = row[START], row[STATUS], row[GROUP]
        key = (start // HOUR, grp, status)
        if key in hours:
            sums = hours[key]
        else:
            sums = hours[key] = [0, 0, 0, 0, 0, 0, 0.0, 0, 0.0, 0.0]
        sums[0] += 1
        took = row[END] - start
        sums[1] += took if -LONGEST < took < LONGEST else 0
        if row[INPUT_TOKENS] is not None or row[OUTPUT_TOKENS] is not None:
            sums[2] += 1
            sums[3] += row[INPUT_TOKENS] or 0
            sums[4] += row[OUTPUT_TOKENS] or 0
        if row[COST] is not None:
            sums[5] += 1
            sums[6] += row[COST]
        if (reward := row[REWARD]) is not None:
            sums[7] += 1
            sums[8] += reward
            sums[9] += reward * reward
        day = (start // DAY, grp, row[BUCKET])
        durations[day] = durations[day] + 1 if day in durations else 1
        minute = start // MINUTE
        if minute not in minutes:
            minutes[minute] = [0, 0]
        minutes[minute][0] += 1
        if status == "error":
            minutes[minute][1] += 1
    return hours, durations, minutes


# The rows of traces


_UNKNOWN = (None,) * 12  # the columns that a trace's first span may leave empty


def add_traces(cursor: Any, rows: Iterable[Row]) -> None:
    """Adds new rows to the rows of their traces, inside the open transaction."""
    traces: dict[str, list[Any]] = {}
    for row in rows:
        start, end, kind = row[START], row[END], row[KIND]
        trace = traces.get(row[TRACE])
        if trace is None:
            trace = traces[row[TRACE]] = [row[TRACE], start, end, 0, 0, 0, *_UNKNOWN]
        trace[3] += 1
        trace[1] = min(trace[1], start)
        if end is None:
            trace[5] += 1
        elif trace[2] is None or end > trace[2]:
            trace[2] = end
        if row[STATUS] == "error":
            trace[4] += 1
        if row[PARENT] is None and trace[6] is None:
            trace[6:12] = row[NAME], kind, row[STATUS], row[ERROR], row[AGENT], row[CATEGORY]
            trace[16] = row[REWARD]
        if trace[12] is None:
            trace[12] = row[SESSION]
        if kind == "model":  # other kinds repeat what the calls below them used
            for place, value in ((13, row[INPUT_TOKENS]), (14, row[OUTPUT_TOKENS]), (15, row[COST])):
                if value is not None:
                    trace[place] = value if trace[place] is None else trace[place] + value
        elif kind == "reward" and row[REWARD] is not None:
            trace[17] = row[REWARD]
    _ADD_TRACE.run(cursor, [traces[name] for name in sorted(traces)])


_TRACE_OF_SPANS = """
INSERT INTO traces SELECT s.trace_id, min(s.start_ns), max(s.end_ns), count(*),
  sum(CASE WHEN s.status = 'error' THEN 1 ELSE 0 END), sum(CASE WHEN s.end_ns IS NULL THEN 1 ELSE 0 END),
  max(r.name), max(r.kind), max(r.status), max(r.error), max(r.agent), max(r.category),
  (SELECT f.session FROM spans f WHERE f.trace_id = s.trace_id AND f.session IS NOT NULL ORDER BY f.seq LIMIT 1),
  sum(CASE WHEN s.kind = 'model' THEN s.input_tokens END), sum(CASE WHEN s.kind = 'model' THEN s.output_tokens END),
  sum(CASE WHEN s.kind = 'model' THEN s.cost END), max(r.reward),
  (SELECT g.reward FROM spans g WHERE g.trace_id = s.trace_id AND g.kind = 'reward' AND g.reward IS NOT NULL
   ORDER BY g.seq DESC LIMIT 1)
FROM spans s LEFT JOIN spans r ON r.seq =
  (SELECT o.seq FROM spans o WHERE o.trace_id = s.trace_id AND o.parent_id IS NULL ORDER BY o.seq LIMIT 1)
WHERE s.trace_id {which} GROUP BY s.trace_id
"""


def rebuild_trace(cursor: Any, trace_id: str) -> None:
    """Rebuilds a trace's row from its spans."""
    cursor.execute("DELETE FROM traces WHERE trace_id = ?", (trace_id,))
    cursor.execute(_TRACE_OF_SPANS.format(which="= ?"), (trace_id,))


_ERRORS = "sum(CASE WHEN status = 'error' THEN 1 ELSE 0 END)"
_TIMED = "FROM spans WHERE end_ns IS NOT NULL AND start_ns < ? GROUP BY"
_SUMMED = f"""
count(*), sum({TOOK}), sum(CASE WHEN input_tokens IS NULL AND output_tokens IS NULL THEN 0 ELSE 1 END),
coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0), count(cost), coalesce(sum(cost), 0.0), count(reward),
coalesce(sum(reward), 0.0), coalesce(sum(reward * reward), 0.0)
"""
# table: its time column, the width of its steps, and the statement that builds it from the spans
_REBUILD = {
    "rollup_hour": ("hour", HOUR, f"SELECT start_ns / {HOUR}, grp, status, {_SUMMED} {_TIMED} 1, 2, 3"),
    "rollup_day": ("day", DAY, f"SELECT start_ns / {DAY}, grp, status, {_SUMMED} {_TIMED} 1, 2, 3"),
    "rollup_duration": ("day", DAY, f"SELECT start_ns / {DAY}, grp, bucket, count(*) {_TIMED} 1, 2, 3"),
    "rollup_minute": ("minute", MINUTE, f"SELECT start_ns / {MINUTE}, count(*), {_ERRORS} {_TIMED} 1"),
}


def rebuild(cursor: Any, before_ns: int) -> None:
    """Rebuilds the sums of spans that started before `before_ns` (up to the end of that day) from the rows."""
    end = (before_ns // DAY + 1) * DAY
    for table, (column, width, select) in _REBUILD.items():
        cursor.execute(f"DELETE FROM {table} WHERE {column} < ?", (end // width,))
        cursor.execute(f"INSERT INTO {table} {select}", (end,))
    cursor.execute("DELETE FROM rollup_bucket")
    cursor.execute("INSERT INTO rollup_bucket SELECT grp, bucket, sum(spans) FROM rollup_duration GROUP BY 1, 2")
