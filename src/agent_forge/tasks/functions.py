"""Small functions drawn at random: a description, the source, inputs to try it with, and mutants that these reveal.

They serve the families that write or test code. They have no `while`: every mutant ends.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_forge.errors import UsageError

_NAMES = ("transform", "process", "convert", "adjust", "compute")
# (takes, returns, what it does, as an expression of `value`); k is a small number, a and b are letters
_STEPS = (
    ("list", "list", "keep only the numbers greater than {k}", "[n for n in value if n > {k}]"),
    ("list", "list", "keep only the numbers that are at most {k}", "[n for n in value if n <= {k}]"),
    ("list", "list", "keep only the even numbers", "[n for n in value if n % 2 == 0]"),
    ("list", "list", "multiply every number by {k}", "[n * {k} for n in value]"),
    ("list", "list", "add {k} to every number", "[n + {k} for n in value]"),
    ("list", "list", "square every number", "[n * n for n in value]"),
    ("list", "list", "sort the numbers in ascending order", "sorted(value)"),
    ("list", "list", "sort the numbers in descending order", "sorted(value, reverse=True)"),
    ("list", "list", "reverse the list", "value[::-1]"),
    ("list", "list", "keep only the first {k} numbers", "value[:{k}]"),
    ("list", "list", "drop the first number", "value[1:]"),
    ("list", "list", "drop repeated numbers, keeping the first of each", "list(dict.fromkeys(value))"),
    ("list", "number", "return the sum", "sum(value)"),
    ("list", "number", "return how many numbers there are", "len(value)"),
    ("list", "number", "return the largest number, or {k} if there is none", "max(value, default={k})"),
    ("list", "number", "return the smallest number, or {k} if there is none", "min(value, default={k})"),
    ("text", "text", "make all letters upper case", "value.upper()"),
    ("text", "text", "make all letters lower case", "value.lower()"),
    ("text", "text", "reverse the text", "value[::-1]"),
    ("text", "text", "keep only the first {k} characters", "value[:{k}]"),
    ("text", "text", "replace every '{a}' with '{b}'", "value.replace('{a}', '{b}')"),
    (
        "text",
        "text",
        "remove all vowels (a, e, i, o, u in lower case)",
        "''.join(c for c in value if c not in 'aeiou')",
    ),
    ("text", "text", "append '{a}' at the end", "value + '{a}'"),
    (
        "text",
        "list",
        "make a list of the lengths of the words (split at blanks)",
        "[len(word) for word in value.split()]",
    ),
    ("text", "number", "return the number of characters", "len(value)"),
    ("text", "number", "return how often '{a}' occurs", "value.count('{a}')"),
    ("text", "number", "return the number of words (split at blanks)", "len(value.split())"),
)
_SIMPLE = (
    ("adds {k} to the number `value`", "value + {k}"),
    ("subtracts {k} from the number `value`", "value - {k}"),
    ("multiplies the number `value` by {k}", "value * {k}"),
    ("returns the larger of the number `value` and {k}", "max(value, {k})"),
    ("returns twice the number `value`, plus {k}", "value * 2 + {k}"),
    ("returns whether the number `value` is greater than {k}", "value > {k}"),
)
_WORDS = ("tea", "apple", "Hello", "World", "banana", "sky", "queue", "Oslo", "rhythm", "idea")
MOST_MUTANTS = 12


@dataclass(frozen=True, slots=True)
class Function:
    """A function as source, what it does in words, and arguments to call it with."""

    name: str
    parameters: str
    description: str
    source: str
    inputs: list[list[Any]]

    def to_dict(self) -> dict[str, Any]:
        """As JSON, with what each call gives."""
        results = run(self.source, self.name, self.inputs)
        return {"function": self.name, "source": self.source, "inputs": self.inputs, "results": results}

    def example(self) -> str:
        """One call and its result, in words."""
        place = example_place(self.inputs)
        value = run(self.source, self.name, self.inputs)[place]
        arguments = ", ".join(map(repr, self.inputs[place]))
        returns = f"raises {value['raises']}" if "raises" in value else f"returns {value['value']!r}"
        return f"{self.name}({arguments}) {returns}"


def example_place(inputs: Sequence[Any]) -> int:
    """Which of the inputs the prompt shows: the first that is no limit."""
    return min(2, len(inputs) - 1)


def draw_function(rng: random.Random, level: float) -> Function:
    """One expression at first, then pipelines over lists and texts, and tables of thresholds; longer as levels rise."""
    while True:
        kind = _expression if level < 0.2 else _thresholds if rng.random() < 0.4 else _pipeline
        function = kind(rng, level, rng.choice(_NAMES))
        results = function.to_dict()["results"]
        if sum(result == results[0] for result in results) <= len(results) / 2:  # not nearly always the same
            return function


def _expression(rng: random.Random, level: float, name: str) -> Function:
    text, expression = rng.choice(_SIMPLE)
    k = rng.randrange(2, 60)
    source = f"def {name}(value):\n    return {expression.format(k=k)}\n"
    inputs = [[n] for n in (0, 1, rng.randrange(2, 20), k - 1, k, k + 1, -3, 100)]
    return Function(name, "value", text.format(k=k), source, inputs)


def _pipeline(rng: random.Random, level: float, name: str) -> Function:
    length = 1 + round(3 * level)
    start = kind = rng.choice(("list", "text"))
    texts: list[str] = []
    lines: list[str] = []
    numbers = [0, 1, 2]
    while len(texts) < length and kind != "number":
        last = len(texts) == length - 1
        steps = [step for step in _STEPS if step[0] == kind and (last or step[1] != "number")]
        _, kind, text, expression = rng.choice(steps)
        k, letters = rng.randrange(2, 6), rng.sample("aelo", 2)
        line = f"    value = {expression.format(k=k, a=letters[0], b=letters[1])}"
        if line in lines:
            continue
        lines.append(line)
        texts.append(text.format(k=k, a=letters[0], b=letters[1]))
        numbers += [k - 1, k, k + 1]
    source = "\n".join([f"def {name}(value):", *lines, "    return value", ""])
    if texts[-1].startswith("return"):
        texts[-1] = texts[-1].removeprefix("return ")
        end = f"return {texts.pop()}"
    else:
        end = "return the result"
    what = "list of whole numbers" if start == "list" else "text"
    description = f"takes a {what} `value` and does this in order: {'; '.join([*texts, end])}"
    return Function(name, "value", description, source, [[each] for each in _samples(rng, start, numbers)])


def _samples(rng: random.Random, kind: str, numbers: Sequence[int]) -> list[Any]:
    if kind == "list":
        near = sorted({*numbers, -1, -4, 9})
        drawn = [[rng.choice(near) for _ in range(rng.randrange(2, 8))] for _ in range(8)]
        return [[], [3], drawn[0], near, near[::-1], *drawn[1:]]
    drawn_texts = [" ".join(rng.choice(_WORDS) for _ in range(rng.randrange(1, 5))) for _ in range(8)]
    return ["", "a", drawn_texts[0], "  two  blanks ", "Aaeell Oolla", *drawn_texts[1:]]


def _thresholds(rng: random.Random, level: float, name: str) -> Function:
    """A price by amount, perhaps with errors below 0 and something off for members."""
    limits = sorted(rng.sample(range(3, 60), 1 + round(3 * level)))
    prices = rng.sample(range(1, 40), len(limits) + 1)
    sign, words = rng.choice((("<", "less than"), ("<=", "at most")))
    lines, texts = [], []
    if level > 0.5:
        lines.append("    if value < 0:\n        raise ValueError('negative')")
        texts.append("it raises ValueError if `value` is negative")
    for limit, price in zip(limits, prices, strict=False):
        lines.append(f"    if value {sign} {limit}:\n        return {price}")
        texts.append(f"{price} if `value` is {words} {limit}")
    lines.append(f"    return {prices[-1]}")
    texts.append(f"{prices[-1]} otherwise")
    points = sorted({limit + step for limit in [0, *limits] for step in (-1, 0, 1)} | {100})
    first = rng.choice(limits) - 2
    inputs = [[points[-1]], [points[0]], [first], *([n] for n in points[1:-1])]
    parameters, head = "value", "takes a whole number `value` and returns the first that applies: "
    if level > 0.7:
        off = rng.randrange(2, 9)
        lines = [line.replace("return ", f"return -{off} * member + ") for line in lines]
        texts.append(f"and {off} less than that if `member` is true")
        inputs = [[n, member] for (n,) in inputs for member in (False, True)]
        parameters, head = "value, member", "takes a number `value` and a truth value `member` and returns: "
    source = "\n".join([f"def {name}({parameters}):", *lines, ""])
    return Function(name, parameters, head + "; ".join(texts), source, inputs)


# fmt: off
_PARTS = (
    ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Assign, ast.If, ast.Raise, ast.keyword,
    ast.Compare, ast.BinOp, ast.UnaryOp, ast.ListComp, ast.GeneratorExp, ast.comprehension, ast.Call, ast.Subscript,
    ast.Slice, ast.Name, ast.Attribute, ast.Constant, ast.expr_context, ast.operator, ast.unaryop, ast.cmpop,
)
_KNOWN = frozenset((
    "sorted", "list", "dict", "fromkeys", "sum", "len", "max", "min", "ValueError", "reverse", "default",
    "upper", "lower", "replace", "join", "split", "count", "value", "member", "n", "c", "word",
))
# fmt: on


def run(source: str, name: str, inputs: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Runs a function as they are drawn here: for each call `{"value"}` or `{"raises"}`.

    It runs in this process, so anything that cannot be one of ours is refused: raises UsageError.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        words = [getattr(node, field, None) for field in ("id", "attr", "arg")]
        if not isinstance(node, _PARTS) or any(word is not None and word not in _KNOWN for word in words):
            raise UsageError(f"this function is not one of those drawn by agent_forge.tasks: {source[:200]!r}")
    namespace: dict[str, Any] = {}
    exec(compile(tree, f"<{name}>", "exec"), namespace)  # noqa: S102  checked above
    results: list[dict[str, Any]] = []
    for arguments in inputs:
        try:
            results.append({"value": namespace[name](*arguments)})  # none of them changes its arguments
        except Exception as error:
            results.append({"raises": type(error).__name__})
    return results


def mutants(function: Mapping[str, Any]) -> list[str]:
    """Sources with one small mistake each, that show on at least one of the inputs."""
    results = run(function["source"], function["function"], function["inputs"])
    different = [
        source
        for source in _all_mutants(function["source"])
        if run(source, function["function"], function["inputs"]) != results
    ]
    step = max(1, len(different) / MOST_MUTANTS)
    return [different[int(place * step)] for place in range(min(len(different), MOST_MUTANTS))]


_COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq}
_COMPARISONS |= {ast.NotIn: ast.In}
_OPERATIONS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Mod: ast.FloorDiv}
_CALLS = {"max": "min", "min": "max", "sum": "len", "upper": "lower", "lower": "upper", "sorted": "list"}


def _all_mutants(source: str) -> Iterator[str]:
    """One for every place that can be wrong in a way that `_changed` knows, and for every statement left out."""
    nodes = list(ast.walk(ast.parse(source)))
    for place, variant in [(p, v) for p, node in enumerate(nodes) for v in (0, 1) if _changed(copy.copy(node), v)]:
        tree = ast.parse(source)
        _changed(list(ast.walk(tree))[place], variant)
        yield ast.unparse(tree)
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    for place in range(len(function.body) - 1):
        body = function.body[:place] + function.body[place + 1 :]
        yield ast.unparse(ast.FunctionDef(function.name, function.args, body, [], lineno=1))


def _changed(node: ast.AST, variant: int) -> bool:
    """Makes the node wrong in the first or second way there is; False if there is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
        return variant == 0
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        node.value += 1 - 2 * variant
        return True
    if variant:
        return False
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value:
        node.value = node.value[:-1]
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        node.ops = [_COMPARISONS[type(node.ops[0])](), *node.ops[1:]]
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        node.op = _OPERATIONS[type(node.op)]()
    elif isinstance(node, ast.Name) and node.id in _CALLS:
        node.id = _CALLS[node.id]
    elif isinstance(node, ast.Attribute) and node.attr in _CALLS:
        node.attr = _CALLS[node.attr]
    else:
        return False
    return True
