"""The final answer of a run, from the results that no other task used."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_forge.agents.conversation import as_data
from agent_forge.agents.planner.prompts import template
from agent_forge.inference import ModelClient, TokenUsage
from agent_forge.plans import Plan

TEMPLATE = "answer@1"
UNKNOWN = frozenset({"unknown", "none", "null", "n/a", "not known", ""})
_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The source of a value: the title of the passage and the sentence."""

    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """`text` is None if the results do not contain the answer: it is never invented."""

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

    If there is one final task and its result is a plain value, that is the answer. Otherwise a model has to put the
    final results into words; it sees nothing else. Without a model the answer is then None.

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
    stand_ins = {other for name in plan.flow for other in plan[name].fallback}
    last = [name for name in plan.leaves if not plan.dependents[name] and name not in stand_ins]
    values = [results.get(name) for name in last]
    if len(values) == 1 and isinstance(values[0], (str, int, float, bool)):
        value = values[0]
        text = ("yes" if value else "no") if isinstance(value, bool) else unless_unknown(str(value))
        return Answer(text, observation, "rules")
    if model is None or all(value is None for value in values):
        return Answer(None, observation, "rules")
    final = as_data(dict(zip(last, values, strict=True)))
    messages = template(TEMPLATE).messages(request=request, observations=final)
    completion = await model.complete(messages, temperature=0.0, max_tokens=256)
    return Answer(parse_answer(completion.text), observation, model.name, completion.usage)


def parse_answer(text: str) -> str | None:
    """The text in the last `<answer>` tags, or the whole text if there are none; None for "unknown".

    >>> parse_answer("<think>…</think><answer> Oslo </answer>"), parse_answer("<answer>unknown</answer>")
    ('Oslo', None)
    """
    tagged = _ANSWER.findall(text)
    return unless_unknown(tagged[-1] if tagged else text)


def unless_unknown(text: str) -> str | None:
    """The stripped text, or None if it says that the answer is unknown."""
    text = text.strip()
    return None if text.strip(" .\"'").lower() in UNKNOWN else text
