"""Instructions: one step per clause or listed item, ordered by what needs what.

A step depends on an earlier one if it speaks of its result ("it", "them", "the route", "based on that"). "then" and
"after that" make a dependency too, unless the parameters of the tools are known: then a step that names all of its
arguments is independent, whatever word precedes it. "finally" and "next" merely continue a list.
"""

from __future__ import annotations

import re
from itertools import pairwise

from agent_forge.agents.complexity import listed_items
from agent_forge.agents.language import VERBS, Clause, clauses
from agent_forge.agents.planner.arguments import arguments
from agent_forge.agents.planner.rules.draft import PlanDraft, Step, tidy
from agent_forge.agents.planner.tools import ToolIndex, ToolSpec
from agent_forge.tasks.words import content_words, stem, word_set, words

_PRONOUNS = word_set("it its them they their this that these those such him her his")
_RESULTS = word_set("result results output outcome resulting above available booked chosen selected obtained found")
_PHRASE = re.compile(
    r"\b(?:(?:based on|according to|using|from|with) "
    r"(?:the (?:result|output|same|previous)|that|this|these|those|its?|them)|"
    r"if (?:so|available|possible|there|it)|the same)\b",
    re.IGNORECASE,
)
# Words that unrelated steps share without referring to the same thing.
_GENERAL = frozenset(
    map(stem, word_set("id identifier name data information detail number value time date day year type user list"))
)
_ASKING = re.compile(
    r"^(?:i(?:'d| would)?(?: also)? (?:need|want|like|require|wish)|"
    r"(?:what|which|who|where|when|how|is|are|can|could|would)\b|"
    r"i(?:'m| am) (?:also )?(?:interested|looking|curious))",
    re.IGNORECASE,
)


def instructions(request: str, tools: ToolIndex | None = None) -> PlanDraft | None:
    """The plan of an instruction, or None if it has no words."""
    items = listed_items(request)
    if items:
        # Listed steps keep their order: a list does not say which of its steps could run together.
        before = [(), *((f"s{number}",) for number in range(1, len(items)))]
        return PlanDraft("list", [Step(tidy(item), after=after) for item, after in zip(items, before, strict=True)])
    draft = _with_tools(request, tools) if tools is not None else None
    if draft is None or not draft.steps:
        draft = _free(request)
    return draft if draft.steps else None


class _Steps:
    """The steps so far, by the words that later steps may refer to them with."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._latest: dict[str, int] = {}  # content word -> the last step that has it

    def add(self, text: str) -> None:
        self.texts.append(text)
        self.extend(text)

    def extend(self, text: str) -> None:
        """More words about the last step."""
        self._latest.update(dict.fromkeys(set(content_words(text)) - _GENERAL, len(self.texts)))

    def referred_to_by(self, text: str) -> tuple[str, ...]:
        """The step that a clause speaks of: the last one that shares a definite noun ("the BMI"), or for a pronoun or
        a phrase such as "based on that" the previous one."""
        tokens = words(text)
        definite = {stem(noun) for article, noun in pairwise(tokens) if article in {"the", "that", "this", "these"}}
        shared = [self._latest[noun] for noun in definite if noun in self._latest]
        if shared:
            return (f"s{max(shared)}",)
        if self.texts and (not (_PRONOUNS | _RESULTS).isdisjoint(tokens) or _PHRASE.search(text)):
            return (f"s{len(self.texts)}",)
        return ()


def _free(request: str) -> PlanDraft:
    draft, steps = PlanDraft("request"), _Steps()
    for clause in clauses(request):
        after = steps.referred_to_by(clause.text)
        if not after and clause.joined_by == "then":
            after = (f"s{len(steps.texts)}",)
        draft.add(Step(tidy(clause.text), after=after))
        steps.add(clause.text)
    return draft


def _with_tools(request: str, index: ToolIndex) -> PlanDraft:
    """Each clause that asks for something goes to the tool that fits best; the others describe the previous step."""
    draft, steps = PlanDraft("tools"), _Steps()
    for clause in clauses(request, index.verbs):
        verb = words(clause.text)[0]
        asks = clause.asks or verb in VERBS or verb in index.verbs or _ASKING.match(clause.text)
        tool = index.best(clause.text) if asks else None
        # The same tool in other words goes on about the call before ("… and tell me its name"); the same verb again is
        # another call ("get the weather in Oslo, get the weather in Rome").
        same = tool is not None and bool(draft.steps) and draft.steps[-1].action == tool.name
        if tool is None or (same and clause.joined_by != "then" and verb != words(steps.texts[-1])[0]):
            if draft.steps:
                draft.steps[-1].goal += f"; {clause.text}"
                steps.extend(clause.text)
            continue
        after = _needs(clause, steps, tool)
        for args in arguments(tool, clause.text, [f"{{{name}}}" for name in after]):
            draft.add(Step(clause.text, tool.name, args, after))
            steps.add(clause.text)
    return draft


def _needs(clause: Clause, steps: _Steps, tool: ToolSpec) -> tuple[str, ...]:
    required = tool.schema.get("required") or ()
    names_all = bool(required) and set(required) <= set(arguments(tool, clause.text, weak=False)[0])
    if not steps.texts or (names_all and _PRONOUNS.isdisjoint(words(clause.text))):
        return ()
    after = steps.referred_to_by(clause.text)
    if not after and not tool.schema:
        # Nothing is known about the parameters of the tool: keep the order of the request.
        after = (f"s{len(steps.texts)}",)
    return after
