"""Spans for tests: random ones that use every field, and the sums of spans by brute force."""

from __future__ import annotations

import random
from typing import Any

from agent_forge.traces import Span

START = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z
HOUR = 3_600_000_000_000


def trace_id(number: int) -> str:
    return f"{number + 1:032x}"


def span_id(number: int) -> str:
    return f"{number + 1:016x}"


def make(number: int = 0, trace: int = 0, **fields: Any) -> Span:
    """A finished span of one millisecond, with ids made from numbers."""
    begin = fields.pop("start_ns", START + number * 1_000_000)
    values: dict[str, Any] = {"name": "work", "start_ns": begin, "end_ns": begin + 1_000_000, "status": "ok"}
    return Span(trace_id(trace), span_id(number), **{**values, **fields})


def randoms(count: int, seed: int = 0, days: int = 3) -> list[Span]:
    """Spans of many traces, agents, models and durations; some unfinished, some failed, some rewarded."""
    rng = random.Random(seed)
    spans: list[Span] = []
    for number in range(count):
        trace = number // 6
        start = START + rng.randrange(days * 24 * HOUR)
        kind = rng.choice(["model", "tool", "agent", "reward", "task"])
        spans.append(
            make(
                number,
                trace,
                start_ns=start,
                end_ns=None if rng.random() < 0.05 else start + int(10 ** rng.uniform(3, 10)),
                parent_id=None if number % 6 == 0 else span_id(trace * 6),
                name=rng.choice(["chat", "search", "write"]),
                kind=kind,
                status=rng.choice(["ok", "ok", "ok", "error", "unset"]),
                agent=rng.choice(["Explore", "Plan", None]),
                model=rng.choice(["a", "b", None]),
                category=rng.choice(["search", "synthesis", None]),
                session=f"s{trace % 4}",
                input_tokens=rng.choice([None, rng.randrange(1000)]),
                output_tokens=rng.choice([None, rng.randrange(1000)]),
                cost=rng.choice([None, rng.random()]),
                reward=rng.choice([None, rng.random()]),
                inputs={"query": f"otter {number}"},
            )
        )
    return spans


def full(number: int = 0) -> Span:
    """A span that uses every field."""
    return make(
        number,
        parent_id=span_id(99),
        name="chat ☃",
        kind="model",
        status="error",
        error="Timeout: 3 s",
        inputs=[{"role": "user", "content": 'Say "hi"\n\\ to Ωmega'}],
        outputs=[{"role": "assistant", "content": "hi"}],
        attributes={"x.count": 3, "x.list": [1.5, 2.5], "x.deep": {"a": [None, True]}},
        links=[(trace_id(7), span_id(8))],
        events=[{"name": "retry", "time_ns": START, "attributes": {"n": 1}}],
        agent="Explore",
        model="tiny-1",
        provider="openai",
        session="s-1",
        category="codebase_search",
        input_tokens=11,
        output_tokens=5,
        cost=0.25,
        reward=0.5,
        policy="p3",
        template="t2",
        sampling={"temperature": 0.7, "seed": 3, "min_p": 0.1},
        assessment={"complexity": 0.2, "criticality": "high", "uncertainty": 0.9},
        prompt_ids=[1, 2, 3],
        output_ids=[4, 5],
        logprobs=[-0.5, -1.25],
    )
