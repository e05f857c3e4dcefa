"""The schema of the trace store."""

from __future__ import annotations

from agent_forge.database import Schema

# OpenTelemetry's ids are kept as the hexadecimal text people see elsewhere. `grp` names the span's row in `groups`,
# `bucket` its duration in quarter octaves (see rollup.py), `source` the process and library that made it. The JSON
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

# The sums hold the spans up to this number; those after it are counted from their rows until they are written.
_MARK = "CREATE TABLE rollup_mark (seq {int} NOT NULL)"

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
    ),
)
