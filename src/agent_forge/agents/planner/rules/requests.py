"""Instructions: one step for each clause or listed item, tied together by what needs what.

A step depends on an earlier one when it speaks of its result ("it", "them", "the route", "based on that"). "then" and
"after that" make a dependency too, unless the tools' parameters are known: then a step that names all it needs is
independent whatever word precedes it. "finally" and "next" only go on with a list.
"""

from __future__ import annotations

import re
from itertools import pairwise

from agent_forge.agents.language import VERBS, Clause, clauses, content_words, stem, word_set, words
from agent_forge.agents.planner.rules.draft import Draft, Step, step_id
from agent_forge.agents.planner.rules.tools import ToolIndex, ToolSpec, fill

_LISTED = re.compile(r"^\s*(?:\d+[.)]|[-*•])\s+(\S.*)$", re.MULTILINE)
_PRONOUNS = word_set("it its them they their this that these those such him her his")
_RESULTS = word_set("result results output outcome resulting above available booked chosen selected obtained found")
_PHRASE = re.compile(
    r"\b(?:(?:based on|according to|using|from|with) "
    r"(?:the (?:result|output|same|previous)|that|this|these|those|its?|them)|"
    r"if (?:so|available|possible|there|it)|the same)\b",
    re.IGNORECASE,
)
# Words that two unrelated steps share without speaking of the same thing.
_GENERAL = frozenset(
    map(stem, word_set("id identifier name data information detail number value time date day year type user list"))
)
_ASKING = re.compile(
    r"^(?:i(?:'d| would)?(?: also)? (?:need|want|like|require|wish)|"
    r"(?:what|which|who|where|when|how|is|are|can|could|would)\b|"
    r"i(?:'m| am) (?:also )?(?:interested|looking|curious))",
    re.IGNORECASE,
)


def listed(request: str) -> list[str]:
    """The items of a numbered or bulleted request (two or more), else nothing."""
    items = [item.strip() for item in _LISTED.findall(request)]
    return items if len(items) > 1 else []


def instructions(request: str, tools: ToolIndex | None = None) -> Draft | None:
    """The plan of an instruction, or None when nothing in it can be read as a step."""
    items = listed(request)
    if items:
        return _chain(items)
    with_tools = _with_tools(request, tools) if tools is not None else None
    if with_tools is not None:
        return with_tools
    found = clauses(request)
    return _free(found) if found else None


def _chain(items: list[str]) -> Draft:
    """Listed steps keep their order: a list does not say which of its steps could go together."""
    draft = Draft("list")
    previous: tuple[str, ...] = ()
    for item in items:
        previous = (step_id(draft.act(item, previous)),)
    return draft


def _free(found: list[Clause]) -> Draft:
    draft = Draft("request")
    texts: list[str] = []
    for clause in found:
        after = _refers_to(clause.text, texts)
        if not after and clause.joined_by == "then":
            after = (f"s{len(texts)}",)
        draft.act(clause.text, after)
        texts.append(clause.text)
    return draft


def _refers_to(text: str, earlier: list[str]) -> tuple[str, ...]:
    """The earlier step whose result a clause speaks of: the one that shares a definite noun ("the BMI"), or for a
    pronoun or a phrase such as "based on that" the last one."""
    tokens = words(text)
    definite = {stem(b) for a, b in pairwise(tokens) if a in {"the", "that", "this", "these"}}
    for number in range(len(earlier), 0, -1):
        if definite & set(content_words(earlier[number - 1])) - _GENERAL:
            return (f"s{number}",)
    if earlier and ((_PRONOUNS | _RESULTS) & set(tokens) or _PHRASE.search(text)):
        return (f"s{len(earlier)}",)
    return ()


def _with_tools(request: str, index: ToolIndex) -> Draft | None:
    """Each clause goes to the tool that fits it best; clauses that ask for nothing describe the step before."""
    draft = Draft("tools")
    texts: list[str] = []
    for clause in clauses(request, index.verbs):
        match = index.best(clause.text) if _asks(clause, index) else None
        if match is None or (clause.joined_by != "then" and _same_call(match, clause, draft, texts)):
            _describe_last(draft, texts, clause)
            continue
        after = _needed(clause, texts, match)
        args = fill(match, clause.text, [f"{{{i}}}" for i in after])
        draft.steps.append(Step(clause.text, "act", after, match.name, args))
        texts.append(clause.text)
    return draft if draft.steps else None


def _same_call(tool: ToolSpec, clause: Clause, draft: Draft, texts: list[str]) -> bool:
    """Whether a clause goes on about the call before: the same tool in other words ("… and tell me its name"). The same
    verb again is another call ("get the weather in Oslo, get the weather in Rome")."""
    again = bool(draft.steps) and draft.steps[-1].action == tool.name
    return again and words(clause.text)[0] != words(texts[-1])[0]


def _asks(clause: Clause, index: ToolIndex) -> bool:
    return clause.asks or words(clause.text)[0] in VERBS | index.verbs or bool(_ASKING.match(clause.text))


def _describe_last(draft: Draft, texts: list[str], clause: Clause) -> None:
    if draft.steps:
        draft.steps[-1].goal += f"; {clause.text}"
        texts[-1] += f" {clause.text}"


def _needed(clause: Clause, earlier: list[str], tool: ToolSpec) -> tuple[str, ...]:
    if not earlier or (_names_all(clause, tool) and not _PRONOUNS & set(words(clause.text))):
        return ()
    after = _refers_to(clause.text, earlier)
    if not after and not tool.schema:
        after = (
            f"s{len(earlier)}",
        )  # nothing is known of what the tool needs: keep the order in which it was asked for
    return after


def _names_all(clause: Clause, tool: ToolSpec) -> bool:
    """Whether the clause itself holds every argument that the tool requires."""
    required = tool.schema.get("required") or ()
    return bool(required) and set(required) <= set(fill(tool, clause.text, (), whole=False))
