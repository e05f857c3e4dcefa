"""The plan grammar: what it allows is exactly what parses, and decoding under it always ends in a plan."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_forge.agents.planner.grammar import END, PlanGrammar, State, Trie
from agent_forge.plans import parse_plan

ONE = "Task 1: a | Dependencies: none\n"
LETTERS = "ab T1:|,\n<>{}none/plskDi=9é"


def walk(grammar: PlanGrammar, rng: random.Random, most_chars: int = 400) -> str:
    """A random text of the grammar, one allowed character at a time; towards the end it takes the way out."""
    alphabet = sorted(set("abc dent|:,\n</>Taskplno0123456789Dependicsh_") | set("".join(grammar.tools)))
    state, text = grammar.start, ""
    while state != END:
        options = [char for char in alphabet if grammar.step(state, char) is not None]
        assert options, f"a dead end after {text!r}"
        if len(text) > most_chars:
            options = [c for c in options if c in ("|<" if state[0] != "dependencies" else "n")] or _out(options, state)
        char = rng.choice(options)
        following = grammar.step(state, char)
        assert following is not None
        state, text = following, text + char
    return text


def _out(options: list[str], state: State) -> list[str]:
    """A description ends with a space and a bar."""
    return [char for char in options if char == " "] or options if state[0] == "text" and state[2] else options


@pytest.mark.parametrize("tools", [(), ("send_sms", "getWeather")])
def test_every_walk_through_the_grammar_parses(tools: tuple[str, ...]) -> None:
    for seed in range(40):
        grammar = PlanGrammar(least=1 + seed % 3, most=4 + seed % 8, tools=tools)
        text = walk(grammar, random.Random(seed))
        plan = parse_plan("<plan>\n" + text, format="lines")
        assert grammar.least <= len(plan) <= grammar.most
        if tools:
            assert all(task.goal.startswith(tools) for task in plan)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("Task 1: look | Dependencies: none\n</plan>", True),
        ("Task 1: look | Dependencies: none\nTask 2: tell | Dependencies: Task 1\n</plan>", True),
        ("Task 1: look | Dependencies: Task 1\n</plan>", False),
        ("Task 1: look | Dependencies: none\nTask 2: x | Dependencies: Task 3\n</plan>", False),
        ("Task 2: look | Dependencies: none\n</plan>", False),
        ("Task 1:  | Dependencies: none\n</plan>", False),
        ("Task 1: a|b | Dependencies: none\n</plan>", False),
        (f"{ONE}Task 2: a | Dependencies: none\nTask 3: b | Dependencies: Task 2, Task 1\n", False),
        ("</plan>", False),
    ],
)  # fmt: skip
def test_what_the_grammar_allows(text: str, allowed: bool) -> None:
    assert (PlanGrammar().run(PlanGrammar().start, text) is not None) is allowed


def test_no_task_beyond_the_most() -> None:
    grammar = PlanGrammar(most=1)
    assert grammar.run(grammar.start, "Task 1: a | Dependencies: none\nT") is None
    assert grammar.run(grammar.start, "Task 1: a | Dependencies: none\n<") is not None


def _reached(text: str) -> State | None:
    return PlanGrammar().run(PlanGrammar().start, text)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(LETTERS, min_size=1, max_size=6), min_size=1, max_size=60, unique=True), st.integers(0, 30))
def test_the_trie_finds_exactly_the_tokens_that_may_follow(tokens: list[str], cut: int) -> None:
    text = "Task 1: ab | Dependencies: none\nTask 2: b | Dependencies: Task 1\n"
    state = _reached(text[: cut * 2])
    assert state is not None
    trie = Trie.of(dict(enumerate(tokens)))
    found = dict(trie.allowed(PlanGrammar(), state))
    for number, token in enumerate(tokens):
        assert found.get(number) == PlanGrammar().run(state, token)
