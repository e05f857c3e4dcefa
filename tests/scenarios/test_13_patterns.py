"""Scenario 13: no text makes a regular expression of the package take more than linear time.

A pattern that is linear on every text made against it (`attacks.py`) needs no more. One that is not may only be used
where its callers keep texts short or take the sting out of them: those callers get 100 kB of the same texts (10 kB
in the short form), and their time may grow no faster than the text. Only the growth of CPU times is judged.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from scenario_attacks import Attack, attacks, uses

from agent_forge.agents.planner import RulePlanner
from agent_forge.agents.planner.binding import bind_task, read_goal
from agent_forge.agents.synthesis import facts, values
from agent_forge.agents.synthesis.answer import parse_answer
from agent_forge.agents.tools import calculator
from agent_forge.agents.tools.docstring import read_docstring
from agent_forge.agents.tools.tables import query_csv
from agent_forge.cli import _options
from agent_forge.curation import difficulties, plan_sets
from agent_forge.curation.generate import _parse
from agent_forge.forge.leakage import Leaks
from agent_forge.forge.merging.layout import LAYER
from agent_forge.inference.tool_calls import split_calls
from agent_forge.pii import replace
from agent_forge.plans import Plan, Task, parse_plan, references
from agent_forge.plans.calls import read_call
from agent_forge.traces import masking, transcript

LONG = os.environ.get("AGENT_FORGE_SCENARIOS") == "long"
KNOWN = Path(__file__).with_name("attacks.json")  # what broke a pattern once: written by the long form
PIECES = [
    " ", "\n", " \n", "a", "a ", "1", "1. ", "0.", "a, ", "'", '"a ', "(", "{", "[", "<", "```\n", "and ", "or ",
    "then ", "of the ", "-", "=", "#", "|", "*", "@a.",
]  # fmt: skip
SIZE = 100_000 if LONG else 10_000  # what is quadratic takes a quarter of a second for that

TOOLS = (calculator,)
RELATIONS = [*facts.PATTERNS, *facts._SPECIAL]
Caller = Callable[[str], Any]


def _worfbench(text: str) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write(json.dumps({"conversations": [{"content": text}], "source": ""}))
        file.flush()
        list(plan_sets.worfbench(Path(file.name)))


CALLERS: dict[str, tuple[Caller, ...]] = {
    "agents": (RulePlanner().plan_now, lambda text: RulePlanner().plan_now(text, tools=TOOLS)),
    "agents.planner.binding": (read_goal, lambda text: bind_task(Task("a", text), TOOLS)),
    "agents.synthesis.facts": (
        lambda text: [facts.look_up(each, "Ada", [{"title": "Ada", "text": text}]) for each in RELATIONS],
        lambda text: facts.about(text, [{"title": text, "text": ""}, {"title": "Ada", "text": ""}]),
    ),
    "agents.synthesis.values": (values.parse_date, values.parse_number, values.country_in, values.plain, parse_answer),
    "agents.tools.docstring": (read_docstring, lambda text: read_docstring(f"Args:\n    {text}")),
    "agents.tools.tables": (lambda text: asyncio.run(query_csv.call({"data": text, "query": "[0]"})),),
    "cli._options": (_options.size, _options.share),
    "curation.difficulties": (lambda text: difficulties.features({"question": text, "answer": text}),),
    "curation.generate": (_parse,),
    "curation.plan_sets": (_worfbench,),
    "pii": (replace.scrub_text, lambda text: replace.mask_pii({"note": text, text[:50]: text})),
    "forge.leakage": (lambda text: Leaks([text]).found_in(text),),
    "forge.merging.layout": (LAYER.fullmatch,),
    "inference.tool_calls": (lambda text: split_calls(text, ["find"]),),
    "plans.stream": (parse_plan, lambda text: parse_plan(f"<plan>\n{text}"), lambda text: parse_plan(f"<graph>{text}")),
    "plans.lines_read": (lambda text: parse_plan(f"Task 1: a | Dependencies: {text}\nTask 2: {text}"),),
    "plans.documents": (lambda text: Plan([Task("a", text, "x", {"y": [text]})]).to_yaml(),),
    "plans.calls": (read_call, lambda text: read_call(f"f({text})")),
    "plans.checks": (lambda text: Plan([Task("a", text), Task("b", f"{{a.{text}}}")]),),
    "plans.references": (references.split_text,),
    "traces.masking": (masking.mask_text,),
    "traces.transcript": (transcript._stated, transcript._clean),
}


def seconds(work: Callable[[], Any], tries: int = 1) -> float:
    """CPU seconds of this thread; an error is as good as an answer here."""
    best = float("inf")
    for _ in range(tries):
        start = time.thread_time()
        with suppress(Exception):
            work()
        best = min(best, time.thread_time() - start)
    return best


def superlinear(pattern: re.Pattern[Any], attack: Attack, methods: Iterable[str] = ("findall",)) -> bool:
    """Whether twice the text takes a pattern nearly three times as long, in any of these ways to apply it."""

    def text(length: int) -> Any:
        made = attack.text(length)
        return made.encode() if isinstance(pattern.pattern, bytes) else made

    for name in methods:
        method = getattr(pattern, name)
        for length in (250, 1000, 4000, 8000) if LONG else (250, 4000):
            if seconds(lambda: method(text(length))) > 0.004:  # noqa: B023
                half, whole = (seconds(lambda: method(text(n)), tries=3) for n in (length // 2, length))  # noqa: B023
                if whole > 0.004:
                    if whole > 2.8 * half:
                        return True
                    break
    return False


def freezes(caller: Caller, attack: Attack) -> str | None:
    """The sizes at which a caller's time outgrew its text, found before it could take minutes; None if it is linear."""
    times: dict[int, float] = {}
    length = SIZE // 16
    while length <= SIZE:
        times[length] = seconds(lambda: caller(attack.text(length)))  # noqa: B023
        quarter = times.get(length // 4, float("inf"))
        if times[length] > 0.05 and times[length] > 9 * quarter:  # linear is 4, quadratic 16
            whole, before = (seconds(lambda n=n: caller(attack.text(n)), tries=3) for n in (length, length // 4))
            if whole > 9 * before:
                return f"{length} characters took {whole:.3f} s, a quarter of them {before:.3f} s"
        length *= 4
    return None


def callers_of(module: str) -> str | None:
    """The entry of CALLERS that answers for a module: its own, or that of the nearest package around it."""
    return max((key for key in CALLERS if f"{module}.".startswith(f"{key}.")), key=len, default=None)


def known() -> dict[str, list[Attack]]:
    return {module: [Attack(*each) for each in found] for module, found in json.loads(KNOWN.read_text()).items()}


@pytest.mark.untraced
@pytest.mark.parametrize("module", sorted(CALLERS))
def test_callers_are_linear_on_100_kb_of_what_their_patterns_dislike(module: str) -> None:
    mine = {attack for name, each in known().items() if LONG or callers_of(name) == module for attack in each}
    mine.update(
        Attack(start, piece, "\x01") for piece in PIECES for start in ("", "Who is older, ") if LONG or not start
    )
    for caller in CALLERS[module]:
        for attack in sorted(mine, key=str):
            assert freezes(caller, attack) is None, (caller, attack)


@pytest.mark.untraced
def test_a_pattern_is_linear_or_its_module_has_callers_here() -> None:
    """The short form tries a few pieces on the patterns of other modules; the long form tries all that its parse tree
    suggests on every pattern, and keeps what broke one for the test above."""
    broken: dict[str, list[Attack]] = {}
    for use in uses():
        if not LONG and callers_of(use.module.removeprefix("agent_forge.")):
            continue
        tried = attacks(use.pattern) if LONG else [Attack("", piece, "\x01") for piece in PIECES]
        hit = next((attack for attack in tried if superlinear(use.pattern, attack, use.methods)), None)
        if hit is not None:
            broken.setdefault(use.module.removeprefix("agent_forge."), []).append(hit)
    if LONG:
        merged = {name: {*known().get(name, ()), *broken.get(name, ())} for name in sorted({*known(), *broken})}
        rows = {name: sorted([each.start, each.piece, each.end] for each in found) for name, found in merged.items()}
        KNOWN.write_text(json.dumps(rows, indent=1) + "\n")
    assert not {module: found for module, found in broken.items() if callers_of(module) is None}


def test_the_judges_know_a_quadratic_pattern_from_a_linear_one() -> None:
    """The control: without linear patterns both tests fail."""
    slow, fast = re.compile(r"\s+$"), re.compile(r"\s\S")
    attack = Attack("", " ", "\x01")
    assert any(superlinear(slow, attack) for _ in range(9))  # on a busy machine one measurement may hide it
    assert not superlinear(fast, attack)
    assert any(freezes(slow.search, attack) is not None for _ in range(9))
    assert freezes(lambda text: slow.search(text[:2000]), attack) is None
