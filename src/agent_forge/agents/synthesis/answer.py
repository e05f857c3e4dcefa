"""The final answer of a run, worked out from the results that nothing else used."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_forge.agents.models import ModelClient, TokenUsage
from agent_forge.agents.planner.prompts import template
from agent_forge.plans import Plan

TEMPLATE = "answer@1"
UNKNOWN = frozenset({"unknown", "none", "null", "n/a", "not known", ""})
_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where a look-up's value stands: the title of the passage and the sentence."""

    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """`text` is None where the results do not hold the answer: it is never made up."""

    text: str | None
    observation: str  # the results as JSON, keyed by task
    by: str  # "rules" or the model's name
    usage: TokenUsage = field(default_factory=TokenUsage)

    def __str__(self) -> str:
        """The output format: an `<observation>` JSON object and an `<answer>`."""
        return f"<observation>\n{self.observation}\n</observation>\n<answer>{self.text or 'unknown'}</answer>"


async def synthesise(
    request: str, plan: Plan, results: Mapping[str, Any], *, model: ModelClient | None = None
) -> Answer:
    """Answers a request from the results of a run.

    One final task whose result is a plain value is the answer. Several, or one with a structure, need a model to put
    them into words; it sees those final results alone. Without a model the answer is then None.

    >>> import asyncio
    >>> from agent_forge.plans import Task
    >>> plan = Plan([Task("s1"), Task("s2", "use {s1}")])
    >>> print(asyncio.run(synthesise("Where?", plan, {"s1": "Ann", "s2": "Oslo"})))
    <observation>
    {"s1": "Ann", "s2": "Oslo"}
    </observation>
    <answer>Oslo</answer>
    """
    observation = json.dumps(dict(results), ensure_ascii=False, default=repr)
    last = [name for name in plan.leaves if not plan.dependents[name]]
    values = [results.get(name) for name in last]
    if len(values) == 1 and isinstance(values[0], (str, int, float, bool)):
        return Answer(_plain(values[0]), observation, "rules")
    if model is None or all(value is None for value in values):
        return Answer(None, observation, "rules")
    seen = json.dumps(dict(zip(last, values, strict=True)), ensure_ascii=False, default=repr)
    asked = template(TEMPLATE).messages(request=request, observations=seen)
    completion = await model.complete(asked, temperature=0.0, max_tokens=256)
    return Answer(parse_answer(completion.text), observation, model.name, completion.usage)


def _plain(value: Any) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return known(str(value))


def parse_answer(text: str) -> str | None:
    """What a model put into `<answer>` tags, or all it wrote where there are none; None for "unknown".

    >>> parse_answer("<think>…</think><answer> Oslo </answer>"), parse_answer("<answer>unknown</answer>")
    ('Oslo', None)
    """
    found = _ANSWER.findall(text)
    return known(found[-1] if found else text)


def known(text: str) -> str | None:
    """The text without surrounding blanks and full stop, None where it says that nothing is known."""
    text = text.strip()
    return None if text.strip(" .\"'").lower() in UNKNOWN else text
