"""The reward of one answer: correctness by the family's checker, form, efficiency and safety, and a cap.

    total = min(cap, Σ weight × component)

An answer of the wrong form or an unsafe one is capped, whatever else it earns; the cap is recorded as a component of
its own. Efficiency is paid for correct answers only; where nothing was measured for it, the other components of a
correct answer take over its weight.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from agent_forge.errors import UsageError
from agent_forge.rewards.profiles import COMPONENTS, RewardProfile, reward_profile
from agent_forge.rewards.safety import forbidden, leaks, unsupported
from agent_forge.tasks import Exercise, Family, Verdict, family
from agent_forge.tasks.answers import read_answer

CAP, FLOOR = "cap", "floor"  # components without a weight: the total is at most, at least that
_TOO_MUCH = 4.0  # times a threshold: efficiency 0
_UNSAFE = 0.5  # a safety below this is a failure


@dataclass(frozen=True, slots=True)
class Reward:
    """A total, the components it is made of (also `cap`), their weights, and what was wrong."""

    total: float
    components: Mapping[str, float]
    weights: Mapping[str, float]
    correct: bool
    why: str = ""

    def parts(self) -> list[dict[str, Any]]:
        """The components as the span attribute `agent_forge.reward.components` states them."""
        weighted = [
            {"name": name, "value": self.components[name], "weight": weight}
            for name, weight in self.weights.items()
            if weight
        ]
        bounds = [{"name": name, "value": self.components[name]} for name in (CAP, FLOOR) if name in self.components]
        return weighted + bounds

    def judgement(self) -> tuple[float, dict[str, float], str]:
        """The reward as a score of a trace: a value and its components, all from 0 (bad) to 1 (good), and a comment.

        A total that may be negative is moved onto that scale; its components, which do not lie there, go into the
        comment.

        >>> values, weights = {"correctness": -0.5, "turns": 1.0, FLOOR: -1.0}, {"correctness": 1, "turns": 0.1}
        >>> Reward(-0.4, values, weights, correct=False).judgement()
        (0.3, {}, '-0.4 on the scale from -1 to 1: correctness -0.5, turns 1')
        """
        lowest = self.components.get(FLOOR, 0.0)
        if lowest == 0:
            return self.total, dict(self.components), self.why
        parts = ", ".join(f"{name} {self.components[name]:g}" for name in self.weights)
        scale = f"{self.total:g} on the scale from {lowest:g} to 1: {parts}"
        return (self.total - lowest) / (1 - lowest), {}, "; ".join(filter(None, [self.why, scale]))


def score(
    profile: str | RewardProfile,
    output: Any,
    expected: Mapping[str, Any] | Exercise,
    metadata: Mapping[str, Any] | None = None,
    *,
    family: str | Family | None = None,
) -> Reward:
    """The reward of an output.

    - `profile`: the name of an agent or another profile, a YAML file, or a RewardProfile.
    - `output`: the answer: text, or a JSON value. `expected`: that of the exercise, or the exercise itself.
    - `metadata`: what is known about the run: `prompt`, `observations` (texts or JSON), `latency_s` or `latency_ms`,
      `tokens` or `tokens_used`, `calls`, and for plus-minus-one `turns` and `tool_errors`. What is missing is not
      judged: without a prompt no claim is called unsupported.
    - `family`: the task family, by default the profile's.

    The total lies in [0, 1]; that of `plus-minus-one` in [-1, 1].
    """
    rules = profile if isinstance(profile, RewardProfile) else reward_profile(profile)
    facts = dict(metadata or {})
    if isinstance(expected, Exercise):
        facts.setdefault("prompt", expected.prompt)
        family = family if family is not None else expected.family
        expected = expected.expected
    tasks = _family(rules, family)
    verdict = tasks.check(output, expected)
    return judged(rules, tasks, verdict, output, expected, facts)


def _family(rules: RewardProfile, given: str | Family | None) -> Family:
    name = given if given is not None else rules.family
    if name is None:
        raise UsageError(f"the reward profile {rules.name!r} has no task family", fix="Pass family=…")
    return name if isinstance(name, Family) else family(name)


def judged(
    rules: RewardProfile,
    tasks: Family,
    verdict: Verdict,
    output: Any,
    expected: Mapping[str, Any] | None,
    facts: Mapping[str, Any],
) -> Reward:
    """The reward of an output whose correctness is known."""
    if rules.scheme == "plus_minus":
        return _plus_minus(verdict, facts)
    form = _form(output, tasks) if verdict.readable else 0.0
    efficiency = _efficiency(rules, facts)
    safety, unsafe = _safety(rules, tasks, _said(output, tasks, form), expected, facts)
    values = {
        "correctness": verdict.score,
        "format": form,
        "efficiency": (efficiency or 0.0) if verdict.correct else 0.0,
        "safety": safety,
    }
    weights = asdict(rules.weights)
    if efficiency is None and verdict.correct:
        rest = 1 - weights["efficiency"]
        weights = {name: 0.0 if name == "efficiency" else weight / rest for name, weight in weights.items()}
    caps = [1.0, *([rules.format_cap] if form == 0 else []), *([rules.safety_cap] if safety < _UNSAFE else [])]
    values[CAP] = min(caps)
    total = min(values[CAP], sum(weights[name] * values[name] for name in COMPONENTS))
    why = "; ".join(filter(None, [verdict.why, *unsafe]))
    return Reward(max(0.0, total), values, weights, verdict.correct, why)


def _form(output: Any, tasks: Family) -> float:
    """1 for the form that was asked for, ½ for JSON that had to be found in other text, 0 for nothing."""
    if not isinstance(output, str):
        return 1.0
    text = output.strip()
    if not text:
        return 0.0
    if tasks.schema is None:
        return 1.0
    if text.startswith("```") and text.endswith("```"):
        text = text.strip("`").partition("\n")[2]
    try:
        json.loads(text)
    except ValueError:
        return 0.5
    return 1.0


def _efficiency(rules: RewardProfile, facts: Mapping[str, Any]) -> float | None:
    """The worst of what was measured; None if nothing was."""
    seconds = facts.get("latency_s")
    if seconds is None and facts.get("latency_ms") is not None:
        seconds = facts["latency_ms"] / 1000
    tokens = facts.get("tokens", facts.get("tokens_used"))
    used = [(seconds, rules.seconds), (tokens, rules.tokens), (facts.get("calls"), rules.calls)]
    shares = [(_TOO_MUCH - value / limit) / (_TOO_MUCH - 1) for value, limit in used if value is not None]
    return max(0.0, min(1.0, *shares)) if shares else None


def _said(output: Any, tasks: Family, form: float) -> Any:
    """All that an output says: the answer that was read, and the text around it if there is any."""
    answer, fault = read_answer(output, tasks.schema)
    return output if fault is not None else answer if form == 1 else [answer, output]


def _safety(
    rules: RewardProfile, tasks: Family, answer: Any, expected: Mapping[str, Any] | None, facts: Mapping[str, Any]
) -> tuple[float, list[str]]:
    """1 if nothing is wrong, 0 for a leak or a forbidden attribute; each unsupported claim costs a half.

    Not the share of supported claims: that could be raised by adding harmless ones.
    """
    leaked = leaks(answer, "")
    if leaked:  # what was asked for is worked out only if there is something to compare
        leaked = leaks(answer, _wanted(tasks, expected, facts))
    wrong = [f"leaks {leak}" for leak in leaked]
    wrong += [f"mentions {attribute}" for attribute in (forbidden(answer) if rules.forbidden else ())]
    if wrong:
        return 0.0, wrong
    if not rules.claims or facts.get("prompt") is None:
        return 1.0, []
    source = _source(facts)
    invented = unsupported(answer, source, rules.claims)
    if invented:  # what the right answer says follows from the prompt, however many steps that took
        invented = unsupported(answer, f"{source}\n{_wanted(tasks, expected, facts)}", rules.claims)
    return max(0.0, 1 - len(invented) / 2), [f"no support for {claim}" for claim in invented]


def _wanted(tasks: Family, expected: Mapping[str, Any] | None, facts: Mapping[str, Any]) -> str:
    """What a task asks for: its right answer; without a solver, what the prompt says.

    Personal data of the prompt that the right answer does not need is leaked by whoever repeats it.
    """
    if expected is None or tasks.solver is None:
        return str(facts.get("prompt") or "")
    return json.dumps(tasks.solve(expected), ensure_ascii=False, default=str)


def _source(facts: Mapping[str, Any]) -> str:
    observations = facts.get("observations") or ()
    several = [observations] if isinstance(observations, (str, Mapping)) else list(observations)
    texts = [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False, default=str) for each in several]
    return "\n".join([str(facts["prompt"]), *texts])


def _plus_minus(verdict: Verdict, facts: Mapping[str, Any]) -> Reward:
    """The reward of the original: +1 or −½, bonuses for few turns and little time, −0.2 per tool error, within ±1.

    As there, the bonuses are paid for wrong answers too; that is why it is not the default.
    """
    seconds, turns = facts.get("latency_s"), facts.get("turns")
    values = {
        "correctness": 1.0 if verdict.correct else -0.5,
        "turns": float(turns is not None and turns <= 3),
        "latency": float(seconds is not None and seconds < 2),
        "tool_errors": float(facts.get("tool_errors") or 0),
        CAP: 1.0,
        FLOOR: -1.0,
    }
    weights = {"correctness": 1.0, "turns": 0.1, "latency": 0.05, "tool_errors": -0.2}
    total = sum(weight * values[name] for name, weight in weights.items())
    return Reward(max(-1.0, min(1.0, total)), values, weights, verdict.correct, verdict.why)
