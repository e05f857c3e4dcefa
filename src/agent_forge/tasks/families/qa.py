"""QA: write tests for a described function that pass on it and fail on its mutants, all run in the sandbox."""

from __future__ import annotations

import ast
import random
from collections.abc import Mapping, Sequence
from typing import Any

from agent_forge.tasks.answers import code_in
from agent_forge.tasks.execution import Calls, call_all
from agent_forge.tasks.family import Draft, Verdict, task_family
from agent_forge.tasks.functions import draw_function, example_place, mutants, run

SCHEMA = {
    "type": "object",
    "properties": {"tests": {"type": "array", "items": {"type": "string"}, "maxItems": 40}},
    "required": ["tests"],
    "additionalProperties": False,
}
# What pytest and unittest offer, as far as tests of a small function use it; pytest is not in the sandbox.
_RUNNER = """
import math
from types import SimpleNamespace

class Raises:
    def __init__(self, kinds, match=None):
        self.kinds, self.match = kinds, match
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        import re
        assert kind is not None, "nothing was raised"
        self.value = error
        return issubclass(kind, self.kinds) and (self.match is None or re.search(self.match, str(error)) is not None)

class Approx:
    def __init__(self, value, rel=1e-6, abs=1e-12):
        self.value, self.rel, self.abs = value, rel, abs
    def __eq__(self, other):
        return math.isclose(self.value, other, rel_tol=self.rel, abs_tol=self.abs)

def parametrize(names, rows, ids=None):
    names = names.replace(",", " ").split() if isinstance(names, str) else list(names)
    def decorate(function):
        def each():
            for row in rows:
                function(**dict(zip(names, row if len(names) > 1 else [row])))
        return each
    return decorate

def passes():
    pytest = SimpleNamespace(raises=Raises, approx=Approx, mark=SimpleNamespace(parametrize=parametrize))
    names = {"__name__": "tests", "pytest": pytest}
    try:
        exec(IMPLEMENTATION, names)
        exec(TESTS, names)
        for name, each in list(names.items()):
            if isinstance(each, type) and name != "TestCase":
                for method in sorted(name for name in dir(each) if name.startswith("test")):
                    own = each(method) if hasattr(each, "assertEqual") else each()
                    getattr(own, "setUp", lambda: None)()
                    getattr(own, method)()
            elif name.startswith("test") and callable(each):
                each()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:200]
    return True
"""
_MODULES = {"math": None, "itertools": None, "unittest": ("TestCase", "main")}
_REFUSED = frozenset(
    (
        "open",
        "exec",
        "eval",
        "compile",
        "input",
        "breakpoint",
        "exit",
        "quit",
        "globals",
        "locals",
        "vars",
        "dir",
        "getattr",
        "setattr",
        "delattr",
        "hasattr",
        "type",
        "object",
        "id",
        "hash",
        "memoryview",
        "help",
        "format",
        "format_map",
    )
)


def check(answer: Mapping[str, Any], expected: Mapping[str, Any]) -> Verdict:
    """The share of mutants on which a test fails, if all tests pass on the right function, and 0 otherwise.

    Raises SandboxError without a sandbox.
    """
    return check_all([(answer, expected)])[0]


def check_all(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[Verdict]:
    """Judges several answers in one sandbox, which costs more than the answers do."""
    verdicts: list[Verdict | None] = []
    programs: list[Calls] = []
    spans: list[range] = []
    wrong: dict[str, list[str]] = {}
    for answer, expected in pairs:
        tests, fault = read_tests([code_in(text) for text in answer["tests"]], expected["function"])
        verdicts.append(Verdict(0.0, fault) if fault else None)
        first = len(programs)
        if not fault:
            if expected["source"] not in wrong:
                wrong[expected["source"]] = mutants(expected)
            sources = wrong[expected["source"]]
            programs += [
                Calls(_RUNNER + f"\nIMPLEMENTATION = {source!r}\nTESTS = {tests!r}\n", "passes", [[]], gate)
                for source, gate in [(expected["source"], None), *((source, first) for source in sources)]
            ]
        spans.append(range(first, len(programs)))
    results = call_all(programs)
    return [
        verdict or _verdict([results[place] for place in span]) for verdict, span in zip(verdicts, spans, strict=True)
    ]


def _verdict(results: Sequence[Sequence[Mapping[str, Any]]]) -> Verdict:
    good, *others = ((own[0].get("value", own[0].get("error")) if own else None) for own in results)
    if good is not True:
        return Verdict(0.0, f"a test fails on the right function: {good}")
    killed = sum(outcome is not True for outcome in others)
    why = f"{len(others) - killed} of {len(others)} wrong functions pass the tests"
    return Verdict(killed / max(1, len(others)), "" if killed == len(others) else why)


def read_tests(tests: Sequence[str], function: str) -> tuple[str, str | None]:
    """The tests as one program, and why they are refused or None.

    A test sees the function by calling it only: whatever could look at its code, at files or at other modules would
    tell the right function from a wrong one without testing.
    """
    try:
        tree = ast.parse("\n".join(tests))
        fault = _refused(tree, function)
        return ast.unparse(tree), fault
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return "", f"the tests are not Python: {error}"


def _refused(tree: ast.Module, function: str) -> str | None:
    """Why the tests are refused, or None. Takes out what has nothing to do here: imports of the function, `main`."""
    body = [node for node in tree.body if not _is_main(node)]
    tree.body = [node for node in body if not _imports(node, function)]
    if not tree.body:
        return "there are no tests"
    for node in ast.walk(tree):
        for word in _words(node):
            inner = isinstance(node, ast.Attribute) and word.startswith(("_", "f_", "gi_", "tb_", "co_", "cr_", "ag_"))
            if word in _REFUSED or "__" in word or inner:
                return f"tests may not use {word!r}"
        if isinstance(node, (ast.Import, ast.ImportFrom)) and not _allowed(node):
            return f"tests may not import this: {ast.unparse(node)}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            known = _MODULES.get(node.value.id)
            if known is not None and node.attr not in known:
                return f"tests may not use {ast.unparse(node)}"
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == function:
            return f"the tests define {function} themselves"
        if isinstance(node, ast.Name) and node.id == function and not isinstance(node.ctx, ast.Load):
            return f"the tests assign {function}"
    return None


def _words(node: ast.AST) -> list[str]:
    """All names in a node, of whatever it is the name."""
    words = [value for name, value in ast.iter_fields(node) if name in ("id", "attr", "name", "arg", "asname")]
    words += getattr(node, "kwd_attrs", [])
    return [word for word in words if isinstance(word, str)]


def _is_main(node: ast.stmt) -> bool:
    """`if __name__ == "__main__":`, or what stands in it."""
    text = ast.unparse(node)
    return (
        isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
    ) or text == "unittest.main()"


def _imports(node: ast.stmt, function: str) -> bool:
    """Whether it imports what is there anyway: pytest, or the function, from whatever file the model thinks of."""
    if isinstance(node, ast.ImportFrom):
        names = [alias.name for alias in node.names]
        return names == [function] or (names == ["*"] and node.module not in _MODULES)
    return isinstance(node, ast.Import) and [alias.name for alias in node.names] == ["pytest"]


def _allowed(node: ast.Import | ast.ImportFrom) -> bool:
    if any(alias.asname for alias in node.names):
        return False
    if isinstance(node, ast.Import):
        return all(alias.name in _MODULES for alias in node.names)
    known = _MODULES.get(node.module or "", ())
    return known is None or all(alias.name in known for alias in node.names)


def solve(expected: Mapping[str, Any]) -> dict[str, Any]:
    """The prompt's example, and as few further calls as reveal all wrong functions (chosen greedily).

    Not all inputs: one false expectation makes an answer worthless, so whoever learns from long answers fails.
    """
    function, inputs = expected["function"], expected["inputs"]
    results = run(expected["source"], function, inputs)  # every mutant differs from these somewhere
    outcomes = [run(source, function, inputs) for source in mutants(expected)]
    reveals = [{m for m, own in enumerate(outcomes) if own[place] != right} for place, right in enumerate(results)]
    chosen = [example_place(inputs)]
    left = set(range(len(outcomes))) - reveals[chosen[0]]
    while left:  # of calls that reveal as many, the shortest
        best = max(range(len(inputs)), key=lambda place: (len(reveals[place] & left), -len(repr(inputs[place]))))
        chosen.append(best)
        left -= reveals[best]
    tests = []
    for place in chosen:
        call = f"{function}({', '.join(map(repr, inputs[place]))})"
        if "raises" in results[place]:
            tests.append(f"with pytest.raises({results[place]['raises']}):\n    {call}")
        else:
            tests.append(f"assert {call} == {results[place]['value']!r}")
    return {"tests": tests}


@task_family("qa", check=check, solve=solve, schema=SCHEMA)
def qa(rng: random.Random, level: float) -> Draft:
    """From one expression, where one assertion is enough, to functions with many limits to be tried."""
    function = draw_function(rng, level)
    prompt = (
        f"Write tests for a Python function `{function.name}({function.parameters})` that {function.description}.\n"
        f"For example, {function.example()}.\n"
        "The tests must pass on a right function and fail on wrong ones: try the limits. Answer with assert "
        f'statements or test functions as JSON: {{"tests": ["assert {function.name}(...) == ...", ...]}}'
    )
    return Draft(prompt, function.to_dict())
