# ruff: noqa: S608 (statements are put together from names in this file, never from values)
"""The schema of the trace store."""

from __future__ import annotations

from agent_forge.database import Schema

# OpenTelemetry's ids are stored as the hexadecimal text people see elsewhere. `grp` is the span's row in `groups`,
# `bucket` its duration in quarter octaves (see rows.py), `source` the process and library it came from. The JSON
# columns come last, so that SQLite can stop reading a row before them.
_SPANS = """
CREATE TABLE spans (
  seq {serial}, trace_id TEXT NOT NULL, span_id TEXT NOT NULL, parent_id TEXT, name TEXT NOT NULL, kind TEXT NOT NULL,
  start_ns {int} NOT NULL, end_ns {int}, status TEXT NOT NULL, error TEXT, agent TEXT, model TEXT, provider TEXT,
  session TEXT, category TEXT, policy TEXT, template TEXT, input_tokens {int}, output_tokens {int}, cost {real},
  reward {real}, otel_kind {int}, grp {int} NOT NULL, bucket {int}, source {int}, inputs TEXT, outputs TEXT,
  attributes TEXT, links TEXT, extra TEXT)
"""

_TRACES = """
CREATE TABLE traces (
  trace_id TEXT NOT NULL PRIMARY KEY, start_ns {int} NOT NULL, end_ns {int}, spans {int} NOT NULL,
  errors {int} NOT NULL, unfinished {int} NOT NULL, name TEXT, kind TEXT, status TEXT, error TEXT, agent TEXT,
  category TEXT, session TEXT, input_tokens {int}, output_tokens {int}, cost {real}, root_reward {real},
  given_reward {real}) {packed}
"""

_GROUPS = """
CREATE TABLE groups (
  id {serial}, agent TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, model TEXT NOT NULL,
  category TEXT NOT NULL, UNIQUE (agent, name, kind, model, category))
"""

_SOURCES = "CREATE TABLE sources (id {serial}, body TEXT NOT NULL, digest TEXT NOT NULL UNIQUE)"

_SUMS = """
CREATE TABLE rollup_{step} (
  {step} {int} NOT NULL, grp {int} NOT NULL, status TEXT NOT NULL, spans {int} NOT NULL, duration_ns {int} NOT NULL,
  tokens_n {int} NOT NULL, input_tokens {int} NOT NULL, output_tokens {int} NOT NULL, cost_n {int} NOT NULL,
  cost {real} NOT NULL, reward_n {int} NOT NULL, reward_sum {real} NOT NULL, reward_sumsq {real} NOT NULL,
  PRIMARY KEY ({step}, grp, status)) {packed}
"""

_DURATIONS = """
CREATE TABLE rollup_duration (
  day {int} NOT NULL, grp {int} NOT NULL, bucket {int} NOT NULL, spans {int} NOT NULL,
  PRIMARY KEY (day, grp, bucket)) {packed}
"""

_BUCKETS = """
CREATE TABLE rollup_bucket (
  grp {int} NOT NULL, bucket {int} NOT NULL, spans {int} NOT NULL, PRIMARY KEY (grp, bucket)) {packed}
"""

_MINUTES = """
CREATE TABLE rollup_minute (
  minute {int} NOT NULL PRIMARY KEY, spans {int} NOT NULL, errors {int} NOT NULL) {packed}
"""

# Version 2 wrote the sums of several thousand spans at a time: they covered the spans up to this number. Since version
# 3 they are written with their spans, so this migration adds those that were still waiting.
_MARK = "CREATE TABLE rollup_mark (seq {int} NOT NULL)"
_SUMMED = (
    "count(*), sum(CASE WHEN abs(end_ns - start_ns) < 72057594037927936 THEN end_ns - start_ns ELSE 0 END),"
    " sum(CASE WHEN input_tokens IS NULL AND output_tokens IS NULL THEN 0 ELSE 1 END),"
    " coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0), count(cost), coalesce(sum(cost), 0.0),"
    " count(reward), coalesce(sum(reward), 0.0), coalesce(sum(reward * reward), 0.0)"
)
_SUM_COLUMNS = (
    "spans", "duration_ns", "tokens_n", "input_tokens", "output_tokens", "cost_n", "cost", "reward_n", "reward_sum",
    "reward_sumsq",
)  # fmt: skip


def _add_waiting(table: str, keys: dict[str, str], sums: tuple[str, ...], summed: str) -> str:
    key, groups = ", ".join(keys), ", ".join(str(place + 1) for place in range(len(keys)))
    added = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in sums)
    return (
        f"INSERT INTO {table} ({key}, {', '.join(sums)}) SELECT {', '.join(keys.values())}, {summed} FROM spans"
        f" WHERE end_ns IS NOT NULL AND seq > (SELECT seq FROM rollup_mark) GROUP BY {groups}"
        f" ON CONFLICT ({key}) DO UPDATE SET {added}"
    )


_HOUR, _DAY, _MINUTE = "start_ns / 3600000000000", "start_ns / 86400000000000", "start_ns / 60000000000"
_ERRORS = "count(*), sum(CASE WHEN status = 'error' THEN 1 ELSE 0 END)"
_WRITE_WAITING = (
    _add_waiting("rollup_hour", {"hour": _HOUR, "grp": "grp", "status": "status"}, _SUM_COLUMNS, _SUMMED),
    _add_waiting("rollup_day", {"day": _DAY, "grp": "grp", "status": "status"}, _SUM_COLUMNS, _SUMMED),
    _add_waiting("rollup_duration", {"day": _DAY, "grp": "grp", "bucket": "bucket"}, ("spans",), "count(*)"),
    _add_waiting("rollup_bucket", {"grp": "grp", "bucket": "bucket"}, ("spans",), "count(*)"),
    _add_waiting("rollup_minute", {"minute": _MINUTE}, ("spans", "errors"), _ERRORS),
    "DROP TABLE rollup_mark",
)

# Judged traces, and how many finished spans each had when its credits were computed (0: not yet); and the agents that
# acted in judged spans, with their shares of the credit. See scores.py.
_JUDGED = "CREATE TABLE judged (trace_id TEXT NOT NULL PRIMARY KEY, finished {int} NOT NULL) {packed}"
_CREDITS = """
CREATE TABLE credits (
  trace_id TEXT NOT NULL, span_id TEXT NOT NULL, agent TEXT NOT NULL, model TEXT NOT NULL, category TEXT NOT NULL,
  start_ns {int} NOT NULL, share {real} NOT NULL, reward {real} NOT NULL,
  PRIMARY KEY (trace_id, span_id, agent, model, category)) {packed}
"""

SCHEMA = Schema(
    name="trace store",
    application_id=0x41467472,  # "AFtr"
    namespace="agent_forge_traces",
    migrations=(
        (
            _SPANS,
            "CREATE UNIQUE INDEX spans_id ON spans (trace_id, span_id)",
            "CREATE INDEX spans_start ON spans (start_ns)",
            "CREATE INDEX spans_group ON spans (grp, start_ns)",
            "CREATE INDEX spans_session ON spans (session, start_ns) WHERE session IS NOT NULL",
            "CREATE INDEX spans_error ON spans (start_ns) WHERE status = 'error'",
            "CREATE INDEX spans_reward ON spans (reward) WHERE reward IS NOT NULL",
            "CREATE INDEX spans_duration ON spans ((end_ns - start_ns)) WHERE end_ns IS NOT NULL",
            _TRACES,
            "CREATE INDEX traces_start ON traces (start_ns)",
            "CREATE INDEX traces_session ON traces (session, start_ns) WHERE session IS NOT NULL",
            _GROUPS,
            _SOURCES,
            _SUMS.replace("{step}", "hour"),
            _SUMS.replace("{step}", "day"),
            _DURATIONS,
            _BUCKETS,
            _MINUTES,
        ),
        (_MARK, "INSERT INTO rollup_mark SELECT coalesce(max(seq), 0) FROM spans"),
        _WRITE_WAITING,
        (_JUDGED, _CREDITS, "CREATE INDEX credits_start ON credits (start_ns)"),
    ),
)
