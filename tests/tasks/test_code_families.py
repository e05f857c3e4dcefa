"""Programs and tests as models write them: those that cheat, and those that are right in an unusual way."""

from __future__ import annotations

import asyncio
import random
from itertools import combinations
from typing import Any

import pytest
from tasks_checking import LEVELS, exercises

from agent_forge.errors import UsageError
from agent_forge.runtime.sandbox import sandbox_available
from agent_forge.tasks import family
from agent_forge.tasks.execution import Calls, call_all
from agent_forge.tasks.families import builder, qa
from agent_forge.tasks.functions import mutants, run

isolated = pytest.mark.skipif(not sandbox_available()[0], reason=sandbox_available()[1])

ABSOLUTE = {
    "function": "adjust",
    "source": "def adjust(value):\n    if value < 0:\n        return -value\n    return value\n",
    "inputs": [[3], [0], [-1], [-7], [12]],
    "results": [{"value": 3}, {"value": 0}, {"value": 1}, {"value": 7}, {"value": 12}],
}
ROOT = {
    "function": "root",
    "source": "def root(n):\n    if n < 0:\n        raise ValueError('negative')\n    return n * n\n",
    "inputs": [[2], [-1], [0]],
    "results": [{"value": 4}, {"raises": "ValueError"}, {"value": 0}],
}
PROGRAMS: list[tuple[dict[str, Any], str, float]] = [
    (ABSOLUTE, "def adjust(value):\n    return abs(value)", 1),
    (ABSOLUTE, "Sure!\n```python\nadjust = abs\n```\nThat is all.", 1),
    (
        ABSOLUTE,
        "import math\nclass A:\n    def __call__(self, v):\n        return math.fabs(v)\nadjust = A()",
        1,
    ),  # 3.0
    (ABSOLUTE, "def adjust(value):\n    print('ok')\n    return max(value, -value)\nprint('passed')", 1),
    (ABSOLUTE, "def adjust(value):\n    return value", 0.6),
    (ABSOLUTE, "def adjust(value):\n    return 3", 0.2),
    (ABSOLUTE, "def adjust(value):\n    return str(abs(value))", 0),
    (ABSOLUTE, "def adjust(value):\n    return [abs(value)]", 0),
    (ABSOLUTE, "def adjust(value):\n    return value > 0", 0),  # True is not 1
    (ABSOLUTE, "def adjust(value):\n    print(abs(value))", 0),
    (ABSOLUTE, "print('ok')\nimport sys\nsys.exit(0)", 0),
    (ABSOLUTE, "import os\nos._exit(0)", 0),
    (ABSOLUTE, "def adjust(value):\n    import os\n    os._exit(0)", 0),
    (
        ABSOLUTE,
        "class Same:\n    def __eq__(self, other):\n        return True\ndef adjust(value):\n    return Same()",
        0,
    ),
    (
        ABSOLUTE,
        "class N(int):\n    def __eq__(self, other):\n        return True\ndef adjust(value):\n    return N(5)",
        0,
    ),
    (ABSOLUTE, "import builtins\nbuiltins.AssertionError = ValueError\ndef adjust(value):\n    return float('nan')", 0),
    (ABSOLUTE, "def adjust(value):\n    return open('/sandbox/main.py').read()[:100]", 0),
    (ABSOLUTE, "def adjust(value):\n    return adjust(value)", 0),
    (ABSOLUTE, "def other(value):\n    return abs(value)", 0),
    (ABSOLUTE, "adjust = 3", 0),
    (ABSOLUTE, "def adjust(value):\n    return {value}", 0),
    (ABSOLUTE, "def adjust(value:\n    return abs(value)", 0),
    (ABSOLUTE, "", 0),
    (ROOT, "def root(n):\n    if n < 0:\n        raise ValueError\n    return n ** 2", 1),
    (ROOT, "class Bad(ValueError):\n    pass\ndef root(n):\n    if n < 0:\n        raise Bad\n    return n ** 2", 1),
    (ROOT, "def root(n):\n    if n < 0:\n        raise TypeError\n    return n ** 2", 2 / 3),
    (ROOT, "def root(n):\n    return n ** 2", 2 / 3),
    (
        ROOT,
        "class ValueError(Exception):\n    pass\n"
        "def root(n):\n    if n < 0:\n        raise ValueError\n    return n ** 2",
        2 / 3,
    ),
    (ROOT, "def root(n):\n    if n < 0:\n        return 'ValueError'\n    return n ** 2", 2 / 3),
]


@isolated
def test_programs() -> None:
    verdicts = builder.check_all([({"code": code}, expected) for expected, code, _ in PROGRAMS])
    assert [verdict.score for verdict in verdicts] == pytest.approx([score for *_, score in PROGRAMS])
    assert all(verdict.correct or verdict.why for verdict in verdicts)


@isolated
def test_a_program_that_attacks_its_neighbours_gains_nothing_and_harms_none() -> None:
    """It kills the process above it and writes results for all where that would have written them."""
    attack = (
        "import os, signal\n"
        'text = b\'[["{\\\\"value\\\\": true}"], ["{\\\\"value\\\\": true}"]]\'\n'
        "with open(f'/proc/{os.getppid()}/fd/1', 'wb') as out:\n    out.write(text)\n"
        "os.kill(os.getppid(), signal.SIGKILL)\n"
        "def f():\n    return True\n"
    )
    results = call_all([Calls("def f():\n    return 5", "f", [[]]), Calls(attack, "f", [[]])])
    assert results[0] == [{"value": 5}]
    assert builder.check_all([({"code": attack}, ABSOLUTE)])[0].score == 0


@isolated
def test_a_program_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_forge.tasks.execution._CPU_S", 1)
    code = "def adjust(value):\n    while value < 0:\n        pass\n    return value"
    verdict = builder.check({"code": code}, ABSOLUTE)
    assert verdict.score == pytest.approx(0.4)  # what came before the call that never ends counts
    assert "took too long" in verdict.why


@isolated
def test_checkers_also_work_inside_an_event_loop() -> None:
    async def judged() -> bool:
        return builder.check({"code": "adjust = abs"}, ABSOLUTE).correct

    assert asyncio.run(judged())


@isolated
def test_every_mutant_is_a_wrong_program() -> None:
    pool = list(exercises("builder", 15))
    pairs = [({"code": source}, e.expected) for e in pool for source in mutants(e.expected)]
    assert len(pairs) > 100
    assert [pair for pair, verdict in zip(pairs, builder.check_all(pairs), strict=True) if verdict.correct] == []


GOOD = "assert adjust(3) == 3\nassert adjust(0) == 0\nassert adjust(-7) == 7\nassert adjust(-1) == 1"
TESTS: list[tuple[dict[str, Any], list[str], float | None]] = [
    (ABSOLUTE, GOOD.splitlines(), 1),
    (ABSOLUTE, [f"```python\n{GOOD}\n```"], 1),
    (ABSOLUTE, ["import pytest\nfrom solution import adjust\ndef test_it():\n    " + GOOD.replace("\n", "\n    ")], 1),
    (
        ABSOLUTE,
        [
            "import unittest",
            "from adjust import adjust",
            "class TestAdjust(unittest.TestCase):\n    def test_all(self):\n        for n in range(-5, 9):\n"
            "            self.assertEqual(adjust(n), max(n, -n))",
            "if __name__ == '__main__':\n    unittest.main()",
        ],
        1,
    ),
    (
        ABSOLUTE,
        [
            "@pytest.mark.parametrize('n, right', [(3, 3), (-1, 1), (0, 0)])\n"
            "def test(n, right):\n    assert adjust(n) == right"
        ],
        1,
    ),
    (ROOT, ["assert root(2) == 4", "assert root(0) == 0", "with pytest.raises(ValueError):\n    root(-1)"], 1),
    (
        ROOT,
        [
            "try:\n    root(-1)\n    assert root is None\nexcept ValueError:\n    pass",
            "assert [root(0), root(3)] == [0, 9]",
        ],
        1,
    ),
    (ROOT, ["with pytest.raises(ValueError):\n    root(-1)"], None),  # what n * n gives is not tested
    (ABSOLUTE, ["assert adjust(3) == 3"], 0),  # the negative numbers are not tried
    (ABSOLUTE, ["assert True"], 0),
    (ABSOLUTE, ["adjust(1)"], 0),
    (ABSOLUTE, ["# assert adjust(-7) == 7"], 0),
    (ABSOLUTE, ["assert adjust(3) == 4", *GOOD.splitlines()], 0),  # fails on the right function
    (ABSOLUTE, ["assert False"], 0),
    (ABSOLUTE, ["raise SystemExit(0)"], 0),
    (ABSOLUTE, [], 0),
    (ABSOLUTE, ["assert adjust(-7) = 7"], 0),
    (ABSOLUTE, ["def test_it(:"], 0),
    (ABSOLUTE, ["assert " + "not " * 900 + "adjust(3)"], 0),
    (ABSOLUTE, ["assert adjust(3) == 3 \ud800\0"], 0),
    (ABSOLUTE, ["from solution import *", *GOOD.splitlines()], 1),
    # what tells the right function from the wrong ones without testing it
    (ABSOLUTE, ["import inspect\nassert 'abs' in inspect.getsource(adjust)"], 0),
    (ABSOLUTE, ["assert adjust.__code__.co_code"], 0),
    (ABSOLUTE, ["assert adjust.＿＿code＿＿"], 0),
    (ABSOLUTE, ["assert getattr(adjust, '_' + '_code__')"], 0),
    (ABSOLUTE, ["assert ('{0._' + '_code__}').format(adjust)"], 0),
    (ABSOLUTE, ["match adjust:\n    case object(__code__=c):\n        assert c"], 0),
    (ABSOLUTE, ["import unittest\nassert unittest.case.sys"], 0),
    (ABSOLUTE, ["import unittest as math\nassert math.case.sys"], 0),
    (ABSOLUTE, ["from unittest import case"], 0),
    (ABSOLUTE, ["import unittest.case"], 0),
    (ABSOLUTE, ["assert open('/sandbox/main.py').read()"], 0),
    (ABSOLUTE, ["import os\nos._exit(0)"], 0),
    (ABSOLUTE, ["def adjust(value):\n    return abs(value)", *GOOD.splitlines()], 0),
    (ABSOLUTE, ["adjust = abs", *GOOD.splitlines()], 0),
    (ABSOLUTE, ["import math\nmath.n = math.n + 1 if 'n' in dir(math) else 0\nassert math.n == 0"], 0),
    (ABSOLUTE, ["import math\ntry:\n    math.n += 1\nexcept AttributeError:\n    math.n = 0\nassert math.n == 0"], 0),
    (ABSOLUTE, ["g = (x for x in [1])\nassert g.gi_frame"], 0),
]


@isolated
def test_tests() -> None:
    verdicts = qa.check_all([({"tests": tests}, expected) for expected, tests, _ in TESTS])
    for (_, tests, score), verdict in zip(TESTS, verdicts, strict=True):
        if score is None:
            assert 0 < verdict.score < 1, tests
        else:
            assert verdict.score == score, (tests, verdict)
        assert verdict.correct or verdict.why


@isolated
def test_solvers_are_right_and_changed_tests_are_refused() -> None:
    """A wrong result in one assertion makes it fail on the right function."""
    rng = random.Random(1)
    pool = list(exercises("qa", 5))
    pairs = [(exercise.solution(), exercise.expected) for exercise in pool]
    assert [verdict.score for verdict in qa.check_all(pairs)] == [1.0] * len(pool)
    assert all(
        verdict.correct for verdict in builder.check_all([(builder.solve(e.expected), e.expected) for e in pool])
    )
    changed = []
    for answer, expected in pairs * 12:
        tests = [test for test in answer["tests"] if test.startswith("assert")]
        place = rng.randrange(len(tests))
        left, _, right = tests[place].partition(" == ")
        wrong = rng.choice([f"{right} + {right}x", f"[{right}]", "None", f"not ({left[7:]})", f"({right}, 0)"])
        changed.append(({"tests": [*tests[:place], f"{left} == {wrong}", *tests[place + 1 :]]}, expected))
    assert [pair for pair, verdict in zip(changed, qa.check_all(changed), strict=True) if verdict.score > 0] == []


def test_reference_tests_are_few_and_begin_with_the_example() -> None:
    """By brute force over all sets of calls with the example: at most one test more than the fewest."""
    for exercise in exercises("qa", 12):
        expected, tests = exercise.expected, exercise.solution()["tests"]
        call, _, value = tests[0].removeprefix("assert ").partition(" == ")
        assert f"For example, {call} returns {value}." in exercise.prompt or "raises" in tests[0]
        outcomes = [run(source, expected["function"], expected["inputs"]) for source in mutants(expected)]
        others = [place for place in range(len(expected["inputs"])) if place != 2]
        few = next(
            size
            for size in range(len(others) + 1)
            for chosen in combinations(others, size)
            if all(any(own[place] != expected["results"][place] for place in (2, *chosen)) for own in outcomes)
        )
        assert 1 + few <= len(tests) <= 2 + few


@pytest.mark.parametrize(
    "source",
    [
        "import os\ndef f(value):\n    return os.getpid()",
        "def f(value):\n    return open('/etc/hostname').read()",
        "def f(value):\n    return value.__class__",
        "def f(value):\n    return __import__('os')",
        "def f(value):\n    while True:\n        value = value",
        "def f(value):\n    return (lambda: 1)()",
        "def f(value):\n    return f'{value}'",
        "eval('1')",
    ],
)
def test_only_functions_of_ours_run_outside_the_sandbox(source: str) -> None:
    """`expected` may come from a file of scenarios: what it brings as source is not to be trusted."""
    with pytest.raises(UsageError, match="not one of those drawn"):
        mutants({"source": source, "function": "f", "inputs": [[1]], "results": []})


def test_mutants_differ_on_the_inputs_and_functions_grow() -> None:
    for name in ("qa", "builder"):
        for exercise in exercises(name, 20):
            expected = exercise.expected
            assert mutants(expected)
            for source in mutants(expected):
                assert source != expected["source"]
                assert run(source, expected["function"], expected["inputs"]) != expected["results"]
    sizes = [
        sum(len(family("qa").make(seed, level).expected["source"].splitlines()) for seed in range(40))
        for level in LEVELS
    ]
    assert sizes == sorted(sizes)
    assert sizes[-1] > 2 * sizes[0]
