"""Random plans for the property tests: valid by construction, awkward wherever a format could trip."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import strategies as st

from agent_forge.plans import Plan, PlanInvalid, Reference, Task, find_references

AWKWARD = [
    "a | b",
    "x | Dependencies: Task 9",
    "x | Limit: 3 | Meta: {}",
    "</plan>",
    "</graph><node id='x'>",
    "<think>no</think>",
    'say "hi"',
    '"quoted"',
    "it's",
    "two\nlines\r\nand more",
    "Task 1: fake",
    "- Dependencies: none",
    "**bold**",
    "`code`",
    "{not a ref}",
    '{"json": {"deep": [1, 2]}}',
    "{}",
    "{{escaped}}",
    "costs $15 or ${PRICE}",
    "\\frac{1}{2} and \\n",
    "&amp; &lt; &bogus; AT&T",
    'search("x")',
    "call(1, 2",
    "é 日本語 😀 \u2028 \x85 \x0b \x00 \ufffe",
    " leading and trailing ",
    "tasks: []\n---\nsteps:",
    "# heading",
    "(depends on Task 1)",
    "uses {T1} and {Task 2}",
    "]]> <![CDATA[ <!-- x -->",
    "",
]
ODD_IDS = [
    "s1",
    "S1",
    "T1",
    "task_1",
    "task_01",
    "task_1_2",
    "1",
    "2",
    "a b",
    "none",
    "and",
    "item",
    "step-1",
    "x.y",
    "é",
]
ODD_IDS += [
    '"',
    "<b>",
    "a,b",
    "a|b",
    "_",
    "#1",
    "-",
    "Task 1",
    "[]",
    "true",
    "1.5",
    "null",
    "{x}",
    "n/a",
    "to",
    "&amp;",
    "it's",
]

KEYS = ["query", "text", "args", "queries", "n", "odd key", "", "a|b", "</plan>", "é", "_x", "Class"]
ACTIONS = [None, "search", "answer", "think", "compare", "odd name", "a.b", "x(y)", "</plan>", "é|", "search()"]
NUMBERS = [0, 1, -7, 10**20, 0.1, -2.5e-300, 1.5e22, True, False, None]


def random_plan(seed: int) -> Plan:
    """A plan of one to nine tasks with every field in use; the same seed gives the same plan."""
    random = Random(seed)
    names = random.sample(ODD_IDS + [f"task_{number}" for number in range(2, 12)], random.randint(1, 9))
    groups = names[: random.randint(0, len(names) // 3)]
    tasks = [_task(random, name, names, groups) for name in random.sample(names, len(names))]
    return Plan(tasks)


plans = st.integers(0, 2**32).map(random_plan)


def _task(random: Random, name: str, names: list[str], groups: list[str]) -> Task:
    """Tasks depend only on leaves earlier in `names`, and groups hold leaves only, so there is never a cycle."""
    before = [other for other in names[: names.index(name)] if other not in groups]
    before = [] if name in groups else before
    goal = _goal(random, names)
    args = {random.choice(KEYS): _value(random) for _ in range(random.choice([0, 0, 1, 2, 3]))}
    if before and random.random() < 0.5:
        path = random.choice([(), ("rows", 0), ("odd | <key", -1)])
        reference = str(Reference(random.choice(before), path))
        args["data"] = random.choice([reference, f"of {reference}!", [reference], {"deep": reference}])
        goal += random.choice(["", f" with {reference}"])
    return Task(
        name,
        goal,
        action=random.choice(ACTIONS),
        args=args,
        depends_on=random.sample(before, random.randint(0, min(3, len(before)))),
        parent=random.choice(groups) if groups and name not in groups and random.random() < 0.6 else None,
        for_each=str(Reference(random.choice(before), ("items",))) if before and random.random() < 0.2 else None,
        limit=random.choice([None, None, 1, 10**9]),
        meta={random.choice(KEYS): _value(random) for _ in range(random.choice([0, 0, 1, 2]))},
    )


def _goal(random: Random, names: list[str]) -> str:
    """An awkward goal; where its braces happen to hold an id of this very plan it is another matter."""
    goal = random.choice([" ", "\n", ""]).join(random.choices(AWKWARD, k=random.randint(0, 3)))
    if any(reference.head in names for reference in find_references(goal)):
        return "plain"
    try:
        Plan([Task(name) for name in names] + [Task("only for checking", goal)])
    except PlanInvalid:
        return "plain"
    return goal


def _value(random: Random, depth: int = 0) -> Any:
    """A JSON value. Braces that read like a reference are a fault in args, so texts that have them are left out."""
    kind = random.random()
    if depth < 3 and kind < 0.2:
        return [_value(random, depth + 1) for _ in range(random.randint(0, 3))]
    if depth < 3 and kind < 0.4:
        return {random.choice(KEYS): _value(random, depth + 1) for _ in range(random.randint(0, 3))}
    text = random.choice(AWKWARD)
    return random.choice(NUMBERS) if kind < 0.6 else ("{} {not a ref} $15" if find_references(text) else text)
