"""How hard a row is: the measured pass rate of a policy where there is one, else an estimate from its structure.

The estimate is a prior. Its weights were fitted to pass rates of a small model (docs/results/curation.md says which
rows, which model and how well it predicts) and cannot be negative: more of a feature never makes a row easier. It is
calibrated by rank: 0.8 means harder than 80 % of the rows it was fitted on.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_forge.curation.lines import Row, text_of
from agent_forge.errors import UsageError

STRATA = ("easy", "medium", "hard")
EASY_ABOVE = 0.7
HARD_BELOW = 0.3
FEATURES = ("steps", "tools", "depth", "constraints", "quantities", "prompt_words", "answer_words")

_CONSTRAINT = re.compile(
    r"\b(?:must|should|only|exactly|at least|at most|no more than|no less than|without|unless|except|before|after|"
    r"until|within|each|every|both|either|neither|not|if|when|then|twice|half|times|per|remaining|ensure|require[sd]?)\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)*")
_STEP_LINE = re.compile(r"^[^\S\n]*(?:step\s*\d+|\d+[.)]|[-*•])\s+\S", re.IGNORECASE | re.MULTILINE)
_PROMPT_KEYS = ("input", "prompt", "question", "task", "instruction", "query", "request", "problem", "context")
_ANSWER_KEYS = ("target", "answer", "output", "completion", "expected_output", "response", "solution", "code")
_STEP_KEYS = ("steps", "reasoning_steps", "reasoning", "task_steps", "decomposition", "plan")
_TOOL_KEYS = ("tools", "tools_used", "tool_calls", "functions", "calls", "actions")
_LABEL_KEYS = ("difficulty", "level", "difficulty_level")
_RATE_KEYS = ("pass_rate", "passrate", "pass_at_k", "success_rate")


def features(row: Row) -> dict[str, float]:
    """What the structure of a row says about its difficulty; lengths as logarithms.

    >>> features({"question": "2 + 2 if 3?", "answer": "4", "steps": ["add"]})["steps"]
    1.0
    """
    scope = _scope(row)
    prompt = _text(scope, _PROMPT_KEYS, by_assistant=False)
    answer = _text(scope, _ANSWER_KEYS, by_assistant=True)
    plans = [scope.get(key) for key in ("target", "plan")]
    graph = next((plan for plan in plans if isinstance(plan, dict) and isinstance(plan.get("nodes"), list)), None)
    return {
        "steps": float(_steps(scope, graph, answer)),
        "tools": float(_tools(scope, graph)),
        "depth": float(_depth(graph)),
        "constraints": float(min(20, len(_CONSTRAINT.findall(prompt)))),
        "quantities": float(min(20, len(_NUMBER.findall(prompt)))),
        "prompt_words": math.log2(1 + len(prompt.split())),
        "answer_words": math.log2(1 + len(answer.split())),
    }


def _scope(row: Row) -> dict[str, Any]:
    """The keys of a row and of its `meta` or `metadata`, the row's own first."""
    under: dict[str, Any] = next((row[key] for key in ("meta", "metadata") if isinstance(row.get(key), dict)), {})
    return {**under, **row}


def _text(scope: Mapping[str, Any], keys: tuple[str, ...], *, by_assistant: bool) -> str:
    """The text of the assistant's messages or of all others; without messages, the text under these keys."""
    messages = scope.get("messages")
    if isinstance(messages, list):
        turns = [m for m in messages if isinstance(m, dict) and (m.get("role") == "assistant") is by_assistant]
        return "\n".join(text_of(turn.get("content")) for turn in turns)
    return "\n".join(text_of(scope[key]) for key in keys if key in scope)


def _steps(scope: Mapping[str, Any], graph: Mapping[str, Any] | None, answer: str) -> int:
    if graph is not None:
        return len(graph["nodes"])
    for key in _STEP_KEYS:
        value = scope.get(key)
        if isinstance(value, list):
            return len(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    equation = scope.get("equation")
    if isinstance(equation, str):
        return sum(equation.count(operator) for operator in "+-*/")
    return len(_STEP_LINE.findall(answer))


def _tools(scope: Mapping[str, Any], graph: Mapping[str, Any] | None) -> int:
    if graph is not None:
        return len({str(node["action"]) for node in graph["nodes"] if isinstance(node, dict) and "action" in node})
    for key in _TOOL_KEYS:
        if isinstance(scope.get(key), list):
            return len(scope[key])
    messages = scope.get("messages")
    if isinstance(messages, list):
        calls = [m.get("tool_calls") for m in messages if isinstance(m, dict)]
        return sum(len(some) for some in calls if isinstance(some, list))
    return 0


def _depth(graph: Mapping[str, Any] | None) -> int:
    """The longest chain of dependencies, in nodes; 0 without a graph, and a cycle counts as its nodes."""
    if graph is None:
        return 0
    successors: dict[str, list[str]] = {}
    edges = graph.get("edges")
    for edge in edges if isinstance(edges, list) else ():
        if isinstance(edge, (list, tuple)) and len(edge) == 2:  # others may use another shape
            successors.setdefault(str(edge[0]), []).append(str(edge[1]))
    depth = dict.fromkeys((str(node["id"]) for node in graph["nodes"] if isinstance(node, dict) and "id" in node), 1)
    for _ in range(len(depth)):
        changed = False
        for node, following in successors.items():
            for then in following:
                if then in depth and depth.get(node, 0) + 1 > depth[then] and depth.get(node, 0) < len(depth):
                    depth[then], changed = depth[node] + 1, True
        if not changed:
            break
    return max(depth.values(), default=0)


@dataclass(frozen=True, slots=True)
class Weights:
    """A fitted estimate: per feature its scale and its weight (never negative), and the scores of the fitted rows."""

    scale: Mapping[str, float]
    weight: Mapping[str, float]
    quantiles: Sequence[float]
    fitted_on: str

    def contributions(self, values: Mapping[str, float]) -> dict[str, float]:
        return {name: self.weight[name] * values[name] / self.scale[name] for name in self.weight}

    def rank(self, score: float) -> float:
        """The share of the fitted rows that score lower, between the stored quantiles by interpolation."""
        at = bisect_right(self.quantiles, score)
        if at == 0 or at == len(self.quantiles):
            return 0.0 if at == 0 else 1.0
        low, high = self.quantiles[at - 1], self.quantiles[at]
        return (at - 1 + (score - low) / (high - low)) / (len(self.quantiles) - 1)


# As examples/curation_fit_difficulty.py prints them.
WEIGHTS = Weights(
    scale={
        "steps": 0.8911,
        "tools": 0.3121,
        "depth": 0.3044,
        "constraints": 1.4244,
        "quantities": 2.2752,
        "prompt_words": 0.5323,
        "answer_words": 0.4931,
    },
    weight={
        "steps": 0.0275,
        "tools": 0.0162,
        "depth": 0.0158,
        "constraints": 0.0,
        "quantities": 0.0107,
        "prompt_words": 0.0161,
        "answer_words": 0.0116,
    },
    quantiles=(
        *(0.160, 0.180, 0.186, 0.192, 0.196, 0.203, 0.211, 0.219, 0.236, 0.323, 0.360),
        *(0.386, 0.411, 0.449, 0.482, 0.502, 0.514, 0.530, 0.643, 0.677, 0.842),
    ),
    fitted_on="426 rows of GSM8K, UltraTool, ARC-Easy and ARC-Challenge; pass rates of SmolLM2-135M-Instruct",
)


@dataclass(frozen=True, slots=True)
class Difficulty:
    """The stratum of a row, its basis ("pass_rate", "label" or "structure") and the reasons."""

    stratum: str
    basis: str
    pass_rate: float | None = None
    score: float | None = None
    because: dict[str, float] = field(default_factory=dict)

    def explain(self) -> str:
        """One sentence for people."""
        if self.basis == "pass_rate":
            return f"{self.stratum}: measured pass rate {self.pass_rate:.2f}"
        if self.basis == "label":
            return f"{self.stratum}: the row's own label; nothing was measured"
        parts = ", ".join(f"{name} +{share:.2f}" for name, share in self.because.items())
        return (
            f"{self.stratum}: harder than {100 * (self.score or 0):.0f} % of the fitted rows ({parts or 'no feature'})"
        )


def stratum_of(pass_rate: float) -> str:
    """
    >>> [stratum_of(rate) for rate in (0.9, 0.7, 0.3, 0.1)]
    ['easy', 'medium', 'medium', 'hard']
    """
    return "easy" if pass_rate > EASY_ABOVE else "hard" if pass_rate < HARD_BELOW else "medium"


def estimate(row: Row, weights: Weights | None = None) -> Difficulty:
    """The difficulty that the structure of a row suggests, with the contribution of each feature."""
    weights = weights or WEIGHTS
    parts = weights.contributions(features(row))
    score = weights.rank(sum(parts.values()))
    because = {name: round(part, 3) for name, part in sorted(parts.items(), key=lambda item: -item[1]) if part > 0}
    return Difficulty(stratum_of(1 - score), "structure", None, score, because)


def _own_rate(row: Row) -> float | None:
    scope = _scope(row)
    for key in _RATE_KEYS:
        value = scope.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1:
            return float(value)
    return None


def own_label(row: Row) -> str | None:
    """The stratum that the row's own label names, or None."""
    scope = _scope(row)
    for key in _LABEL_KEYS:
        value = scope.get(key)
        if isinstance(value, str) and value.strip().lower() in STRATA:
            return value.strip().lower()
    return None


def difficulty(row: Row, *, by: str = "auto", weights: Weights | None = None) -> Difficulty:
    """The difficulty of a row: its measured pass rate, else its own label, else the estimate from its structure.

    `by` selects one of them: "pass_rate", "label" or "structure"; rows without it fall back to "structure".

    >>> difficulty({"task": "x", "pass_rate": 0.1}).stratum
    'hard'
    """
    if by not in ("auto", "pass_rate", "label", "structure"):
        raise UsageError(f"there is no difficulty by {by!r}", fix="Use auto, pass_rate, label or structure")
    rate = _own_rate(row) if by in ("auto", "pass_rate") else None
    if rate is not None:
        return Difficulty(stratum_of(rate), "pass_rate", rate)
    label = own_label(row) if by in ("auto", "label") else None
    return Difficulty(label, "label") if label is not None else estimate(row, weights)


def measure(row: Row, policy: Callable[[Row, int], bool | float], *, samples: int = 8) -> Difficulty:
    """The pass rate of `policy(row, sample)` (right or wrong, or a score from 0 to 1) over `samples` tries.

    >>> measure({"task": "2+2"}, lambda row, sample: sample % 2 == 0, samples=4).pass_rate
    0.5
    """
    if samples < 1:
        raise UsageError("a pass rate needs at least one sample")
    rate = sum(float(policy(row, sample)) for sample in range(samples)) / samples
    return Difficulty(stratum_of(rate), "pass_rate", rate)


def fit(rows: Iterable[tuple[Mapping[str, float], float, str]], *, fitted_on: str, ridge: float = 1.0) -> Weights:
    """Weights for (features, pass rate, data set) triples: ridge regression, no weight below zero.

    Pass rates of different sets are not comparable (four choices against a free answer), so rows enter with their rank
    within their set, and features with their distance from the mean of the set.
    """
    sets: dict[str, list[tuple[Mapping[str, float], float]]] = {}
    for values, rate, name in rows:
        sets.setdefault(name, []).append((values, rate))
    if sum(map(len, sets.values())) < 2:
        raise UsageError("weights cannot be fitted to fewer than two rows")
    centred = [_centred([values for values, _ in members]) for members in sets.values()]
    x = [row for members in centred for row in members]
    y = [rank - 0.5 for members in sets.values() for rank in failure_ranks([rate for _, rate in members])]
    scale = [math.sqrt(sum(row[i] ** 2 for row in x) / len(x)) or 1.0 for i in range(len(FEATURES))]
    weight = _non_negative_ridge([[value / s for value, s in zip(row, scale, strict=True)] for row in x], y, ridge)
    named = Weights(dict(zip(FEATURES, scale, strict=True)), dict(zip(FEATURES, weight, strict=True)), (), fitted_on)
    scores = sorted(sum(named.contributions(values).values()) for members in sets.values() for values, _ in members)
    quantiles = [scores[round(at * (len(scores) - 1) / 20)] for at in range(21)]
    return Weights(named.scale, named.weight, quantiles, fitted_on)


def _centred(members: list[Mapping[str, float]]) -> list[list[float]]:
    means = {name: sum(values[name] for values in members) / len(members) for name in FEATURES}
    return [[values[name] - means[name] for name in FEATURES] for values in members]


def failure_ranks(rates: Sequence[float]) -> list[float]:
    """For each pass rate, the share of the others above it (ties count half): 0 for the easiest, 1 for the hardest.

    >>> failure_ranks([0.9, 0.1, 0.5])
    [0.0, 1.0, 0.5]
    """
    others = max(1, len(rates) - 1)
    return [(sum(r > rate for r in rates) + (sum(r == rate for r in rates) - 1) / 2) / others for rate in rates]


def _non_negative_ridge(z: list[list[float]], y: list[float], ridge: float) -> list[float]:
    count, size = len(z), len(z[0])
    gram = [[sum(row[i] * row[j] for row in z) / count for j in range(size)] for i in range(size)]
    moment = [sum(row[i] * value for row, value in zip(z, y, strict=True)) / count for i in range(size)]
    weight = [0.0] * size
    for _ in range(500):
        for i in range(size):
            rest = moment[i] - sum(gram[i][j] * weight[j] for j in range(size) if j != i)
            weight[i] = max(0.0, rest / (gram[i][i] + ridge)) if gram[i][i] > 1e-12 else 0.0
    return weight
