"""A thousand damaged texts in each format: a typed error or a valid plan, nothing else, and no hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

import pytest
from plan_strategies import AWKWARD, random_plan

from agent_forge.plans import (
    CODES,
    Plan,
    PlanFault,
    PlanInvalid,
    PlanStream,
    parse_plan,
    to_json,
    to_lines,
    to_xml,
    to_yaml,
)

WRITERS = {"lines": to_lines, "xml": to_xml, "json": to_json, "yaml": to_yaml}
MODEL_TEXTS = {
    "lines": [
        "<think>Two facts.</think>\n<plan>\nT1: find a\n- Dependencies: none\nT2: b\n- Dependencies: T1\n</plan>",
        "Sure:\n- **Task 1**: a | Dependencies: none\n* Task 2: b (depends on Task 1)\n3. c | deps: 1-2",
        '<plan>\nTask 1: a | Dependencies: none | Action: search("x | y")\n'
        "Task 2: {T1.rows[0]} | Dependencies: Task 1\n</plan>",
    ],
    "xml": [
        '<plan><graph>\n<node id="s1">search("AT&T | R&D")</node>\n'
        '<node id="s2" depends="s1">compare({s1}, 2)</node></graph></plan>',
        '<graph><node id="g" goal="all"><node id="a">x &lt; y</node><!-- n --></node><node id="b" deps="g"/></graph>',
    ],
    "json": ['{"tasks": [{"id": 1}, {"id": 2, "depends_on": [1], "args": {"q": "{1.rows[0]}"}}]}', '[{"id": "a"}]'],
    "yaml": [
        "id: w\nsteps:\n  - {id: a, type: task, description: x}\n  - id: b\n    depends_on: [a]\n    config: {n: 1}\n",
        "tasks:\n  a: {goal: x}\n  b:\n    depends_on: a\n",
    ],
}
TOKENS = [
    "<plan>",
    "</plan>",
    "<graph>",
    "</graph>",
    "<node id='x'>",
    "</node>",
    "<think>",
    "<!DOCTYPE x>",
    "&x;",
    "&#0;",
]
TOKENS += [
    "Task 1:",
    "| Dependencies:",
    "none",
    "Task 99",
    "| Limit:",
    "| Action: f(",
    "{s1.}",
    "{s1",
    "{{",
    "}}",
    "}",
    "]",
    "[",
]
TOKENS += [
    '"',
    "'",
    "\\",
    "\n",
    "\r",
    "\t",
    "\x00",
    "\u2028",
    "\ud800",
    "- ",
    "* ",
    "**",
    ": ",
    "*a",
    "&a ",
    "!!str ",
    "|",
    ">",
    "#",
]
TOKENS += ["1e999", "NaN", "-", "?", "%", "\ufeff", "null", "true", "tasks:", "steps:", "---", "```json", "9" * 500]
MUTANTS = 1_000


def mutate(random: Random, text: str) -> str:
    """One to four injuries: cut, swapped, repeated, inserted, replaced, or a piece of another text."""
    for _ in range(random.choice([1, 1, 2, 4])):
        start = random.randint(0, len(text))
        end = min(len(text), start + random.choice([1, 1, 3, 20, 100]))
        text = random.choice(
            [
                text[:start] + text[end:],
                text[:start],
                text[start:],
                text[:start] + random.choice(TOKENS) + text[start:],
                text[:start] + random.choice(TOKENS) + text[end:],
                text[:start] + text[start:end] * random.choice([2, 2, 50]) + text[end:],
                text[:start] + text[start:end][::-1] + text[end:],
                text[:start] + random.choice(AWKWARD) + text[end:],
                text[:start] + chr(random.choice([random.randrange(128), random.randrange(0xD800)])) + text[end:],
                text.swapcase() if random.random() < 0.1 else text.replace(" ", "", 3),
            ]
        )
    return text[:5000]


def attempt(read: Callable[[], Plan]) -> Plan | list[PlanFault]:
    try:
        return read()
    except PlanInvalid as refused:
        return refused.errors


def outcome(text: str, format: str | None = None) -> Plan | list[str]:
    """A plan whose parts fit together, or the codes of a refusal; anything else fails the test."""
    result = attempt(lambda: parse_plan(text, format))
    if isinstance(result, list):
        assert result
        assert {fault.code for fault in result} <= set(CODES)
        assert all(fault.message for fault in result)
        return [fault.code for fault in result]
    plan = result
    assert len(plan.order()) == len(plan.leaves) == sum(map(len, plan.levels()))
    return plan


@pytest.mark.untraced
@pytest.mark.parametrize("format", WRITERS)
def test_damaged_texts_are_plans_or_typed_faults(format: str) -> None:
    random = Random(f"mutants of {format}")
    texts = MODEL_TEXTS[format] * 8 + [WRITERS[format](random_plan(seed)) for seed in range(40)]
    texts = [text for text in texts if len(text) < 3000]
    kept = refused = 0
    slowest = 0.0
    for number in range(MUTANTS):
        text = mutate(random, random.choice(texts))
        started = time.process_time()
        result = outcome(text, None if number % 4 else format)
        slowest = max(slowest, time.process_time() - started)
        kept += isinstance(result, Plan)
        refused += not isinstance(result, Plan)
    assert slowest < 5  # a hang guard: the usual time is a millisecond
    assert kept > MUTANTS / 50
    assert refused > MUTANTS / 50


@pytest.mark.untraced
@pytest.mark.parametrize("format", ["lines", "xml"])
def test_damaged_texts_stream_to_the_same_end(format: str) -> None:
    """Cut anywhere, a streamed text ends like the whole one; only a missing closing tag is judged more strictly."""
    random = Random(f"streams of {format}")
    texts = MODEL_TEXTS[format] * 8 + [WRITERS[format](random_plan(seed)) for seed in range(40)]
    for _ in range(200):
        text = mutate(random, random.choice(texts))
        whole = outcome(text)
        stream = PlanStream()
        given_out = []
        at = 0
        while at < len(text):
            step = random.choice([1, 2, 7, 30, 500])
            given_out.extend(stream.feed(text[at : at + step]))
            at += step
        result = attempt(stream.finish)
        if isinstance(result, Plan):
            assert result == whole
            assert given_out == list(result)[: len(given_out)]
        else:
            stopped = any("stops before </plan>" in fault.message for fault in result)
            assert stopped or [fault.code for fault in result] == whole
