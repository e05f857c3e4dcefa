"""What is done with one task: a tool is called, passages are read, values are combined, or a model is asked.

Only the results a task depends on are ever shown to a model for it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agent_forge.agents.models import Message, ModelClient, TokenUsage
from agent_forge.agents.planner.prompts import template
from agent_forge.agents.relations import Combine, LookUp, parse_goal
from agent_forge.agents.synthesis.answer import Evidence, known
from agent_forge.agents.synthesis.combine import combine
from agent_forge.agents.synthesis.facts import about, look_up
from agent_forge.agents.tools import Tool, Toolbox, UnknownTool
from agent_forge.errors import ToolError
from agent_forge.plans import Task, find_references
from agent_forge.plans import look_up as value_of
from agent_forge.runtime import spend

SEARCH = "search"
FUNCTIONS = frozenset({"think", "plan", "observation", "reflection", "answer"})
PASSAGES = 8  # how many are looked through for one look-up
SHOWN = 3  # how many of them a model is shown
ROUNDS = 4  # of tool calls that a model may make for one task
_CALL = re.compile(r"^(?:search|answer|think|plan|reflection|observation)\(\s*\"(?P<text>.*)\"\s*\)$", re.DOTALL)


class Worker:
    """The handler of a run.

    `reads` says whether what a search finds is read for the value that the goal asks for. Values are compared by rule,
    and the rules read passages first; a model is asked for what they cannot do, or with `rules=False` for all reading.
    """

    def __init__(
        self, toolbox: Toolbox, model: ModelClient | None = None, *, reads: bool = True, rules: bool = True
    ) -> None:
        self.toolbox = toolbox
        self.model = model
        self.reads = reads
        self.rules = rules
        self.evidence: dict[str, Evidence] = {}
        self.usages: list[TokenUsage] = []
        self.tool_calls = 0

    async def __call__(self, task: Task, inputs: dict[str, Any]) -> Any:
        """Carries out a task. Raises ToolError where nothing here can."""
        goal = goal_of(task)
        asked = parse_goal(goal)
        if isinstance(asked, Combine) and (task.action or "answer") == "answer" and "answer" not in self.toolbox:
            return await self._combine(task, asked, goal, inputs)
        if self.reads and SEARCH in self.toolbox and task.action in {SEARCH, None} and self._is_look_up(task, asked):
            return await self._look_up(task, goal, inputs)
        if task.action == SEARCH and SEARCH in self.toolbox and isinstance(task.args.get("queries"), list):
            return await asyncio.gather(*(self._search(str(query)) for query in task.args["queries"]))
        if task.action in self.toolbox:
            return await self._call(str(task.action), named(self.toolbox.get(str(task.action)), task.args))
        if task.action is not None and task.action not in FUNCTIONS:
            raise UnknownTool(self._unknown(task.action), where=f"task {task.id!r}")
        return await self._reason(task, goal, inputs)

    def _is_look_up(self, task: Task, asked: Any) -> bool:
        return (task.action == SEARCH and isinstance(task.args.get("query", ""), (str, type(None)))) or (
            task.action is None and isinstance(asked, LookUp)
        )

    async def _call(self, name: str, args: Mapping[str, Any]) -> Any:
        self.tool_calls += 1
        return await self.toolbox.call(name, args)

    def _unknown(self, name: str) -> str:
        return f"there is no tool {name!r}, known: {', '.join(self.toolbox.names) or 'none'}"

    async def _combine(self, task: Task, asked: Combine, goal: str, inputs: Mapping[str, Any]) -> Any:
        """By the rules; what they cannot work out goes to the model, if there is one."""
        values = [_value(operand, inputs) for operand in asked.operands] or list(inputs.values())
        found = combine(asked, values)
        if found is None and self.model is not None and any(value is not None for value in values):
            return await self._reason(task, goal, inputs)
        return found

    async def _look_up(self, task: Task, goal: str, inputs: Mapping[str, Any]) -> Any:
        """Searches, and reads what was found. None where the passages do not say, or the thing itself is not known."""
        if any(value is None for value in inputs.values()):
            return None
        asked = parse_goal(goal)
        query = asked.entity if isinstance(asked, LookUp) else goal
        found = await self._search(query)
        if not _are_passages(found):
            return found
        if isinstance(asked, LookUp) and self.rules:
            fact = look_up(asked.relation, asked.entity, found)
            if fact is not None:
                self.evidence[task.id] = Evidence(fact.source, fact.evidence)
                return fact.value
        if self.model is None:
            return None if isinstance(asked, LookUp) else found
        return await self._extract(goal, shown(query, found))

    async def _search(self, query: str) -> Any:
        tool = self.toolbox.get(SEARCH)
        properties = tool.schema.get("properties", {})
        return await self._call(SEARCH, {"query": query, **({"k": PASSAGES} if "k" in properties else {})})

    async def _extract(self, goal: str, passages: Sequence[Mapping[str, Any]]) -> str | None:
        text = "\n".join(f"[{p['title']}] {p['text']}" for p in passages)
        return known(await self._ask(template("extract@1").messages(goal=goal, passages=text)))

    async def _reason(self, task: Task, goal: str, inputs: Mapping[str, Any]) -> Any:
        if self.model is None:
            what = f"function {task.action!r}" if task.action else "no tool"
            raise ToolError(
                f"the task has {what} and there is no model to work it out",
                where=f"task {task.id!r}",
                fix=f"give it one of the tools {', '.join(self.toolbox.names)}, or run with a model (--model)",
            )
        known_so_far = json.dumps(dict(inputs), ensure_ascii=False, default=repr, indent=1) if inputs else "none"
        asked = template("task@1").messages(goal=goal, inputs=known_so_far)
        return known(await self._ask(asked, tools=not task.action))

    async def _ask(self, messages: Sequence[Message], *, tools: bool = False) -> str:
        """Asks the model; where it calls tools, they are called together and it is asked again, a few times at most."""
        assert self.model is not None
        conversation = list(messages)
        for _ in range(ROUNDS):
            completion = await self.model.complete(
                conversation,
                tools=self.toolbox if tools and len(self.toolbox) else None,
                temperature=0.0,
                max_tokens=512,
            )
            self._count(completion.usage)
            if not completion.tool_calls:
                return completion.text
            conversation += await self._answered(completion)
        raise ToolError(f"the model still called tools after {ROUNDS} rounds")

    async def _answered(self, completion: Any) -> list[Message]:
        results = await asyncio.gather(*(self._attempt(call.name, call.arguments) for call in completion.tool_calls))
        calls = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.dumps(dict(c.arguments))}}
            for c in completion.tool_calls
        ]
        said: list[Message] = [{"role": "assistant", "content": completion.text or None, "tool_calls": calls}]
        for call, result in zip(completion.tool_calls, results, strict=True):
            said.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return said

    async def _attempt(self, name: str, args: Mapping[str, Any]) -> str:
        try:
            return json.dumps(await self._call(name, args), ensure_ascii=False, default=repr)
        except ToolError as error:
            return f"error: {error}"

    def _count(self, usage: TokenUsage) -> None:
        self.usages.append(usage)
        counts = [count for count in (usage.input_tokens, usage.output_tokens) if count is not None]
        if counts:
            spend(tokens=sum(counts))


def shown(entity: str, passages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The passages that a model is shown: the one about the thing itself first, then the best of the others."""
    own = about(entity, passages)
    rest = [passage for passage in passages if passage is not own]
    return [*([own] if own is not None else []), *rest][:SHOWN]


def goal_of(task: Task) -> str:
    """What a task is to find out, in words: its goal, or the text of its call where the goal is only the call."""
    call = _CALL.match(task.goal.strip())
    if call:
        return call["text"].replace('\\"', '"')
    return task.goal or str(task.args.get("query") or task.args.get("text") or "")


def named(tool: Tool, args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name: a call such as `add(2, 3)` gives its values as the list `args`, in the tool's own order."""
    values = args.get("args")
    properties = list(tool.schema.get("properties", {}))
    if not isinstance(values, (list, tuple)) or "args" in properties:
        return dict(args)
    rest = {name: value for name, value in args.items() if name != "args"}
    free = [name for name in properties if name not in rest]
    return {**dict(zip(free, values, strict=False)), **rest} if len(values) <= len(free) else dict(args)


def _value(operand: str, inputs: Mapping[str, Any]) -> Any:
    """An operand's value: what its reference stands for, or the words themselves. None where it is not known."""
    references = find_references(operand)
    if not references:
        return None if operand.strip() in {"null", "None", ""} else operand.strip()
    return value_of(references[0], inputs) if references[0].head in inputs else None


def _are_passages(found: Any) -> bool:
    return isinstance(found, list) and all(
        isinstance(entry, Mapping) and isinstance(entry.get("title"), str) and isinstance(entry.get("text"), str)
        for entry in found
    )
