"""Carries out one task: call a tool, read passages, combine values, or let an agent do it.

An agent only ever sees the results that the task depends on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from agent_forge.agents.actions import COMBINE, LOOK_UP, SEARCH, Combine, LookUp
from agent_forge.agents.agent import Agent
from agent_forge.agents.answer_shape import AnswerAs, AnswerShape
from agent_forge.agents.approval import AnyApproval
from agent_forge.agents.choices import choose_model
from agent_forge.agents.conversation import as_data, unmarked
from agent_forge.agents.planner.binding import words_of
from agent_forge.agents.planner.checking import FUNCTIONS
from agent_forge.agents.planner.direct import WHOLE
from agent_forge.agents.planner.prompts import template
from agent_forge.agents.profiles import DEFAULT, AgentProfile
from agent_forge.agents.synthesis.answer import Evidence, unless_unknown
from agent_forge.agents.synthesis.combine import combine
from agent_forge.agents.synthesis.facts import about, look_up
from agent_forge.agents.tools import Toolbox, UnknownTool
from agent_forge.agents.tools.tool import by_name
from agent_forge.errors import ToolError
from agent_forge.inference import Message, ModelClient, TokenUsage
from agent_forge.plans import Task
from agent_forge.runtime.job import CURRENT
from agent_forge.runtime.result import error_text

PASSAGES = 8  # retrieved per look-up
SHOWN = 3  # of those, shown to a model
READ_TOKENS = 256  # that a model may write of what it reads
RESULT_CHARS = 16_000  # of all results that a task depends on


class Worker:
    """The handler of a run.

    `reads`: read the result of a search for the value that the task asks for. Values are compared by rule, and rules
    read passages first; a model does what they cannot, or with `rules=False` all of the reading. Tasks in words are
    done by an agent with this `profile`; `approve` is asked before it calls a tool with side effects.
    """

    def __init__(
        self,
        toolbox: Toolbox,
        model: ModelClient | None = None,
        *,
        profile: AgentProfile = DEFAULT,
        reads: bool = True,
        rules: bool = True,
        approve: AnyApproval = "ask",
    ) -> None:
        self.toolbox = toolbox
        self.model = model
        self.profile = profile
        self.approve = approve
        self.reads = reads
        self.rules = rules
        self.evidence: dict[str, Evidence] = {}
        self.usages: list[TokenUsage] = []
        self.tool_calls = 0
        self.calls: list[dict[str, Any]] = []  # every call as it was made: task, tool, args and state
        self.warnings: list[str] = []

    def acting_as(self, profile: AgentProfile) -> Worker:
        """Another agent for the same run, with its own model if the profile names one; what it finds is shared."""
        model = self.model if profile.model is None else choose_model(profile.model)
        other = Worker(self.toolbox, model, profile=profile, reads=self.reads, rules=self.rules, approve=self.approve)
        other.evidence, other.usages = self.evidence, self.usages
        other.calls, other.warnings = self.calls, self.warnings
        return other

    @cached_property
    def agent(self) -> Agent:
        """The agent for tasks in words."""
        return Agent(self.profile, self.toolbox, self.model, approve=self.approve)

    @cached_property
    def reader(self) -> Agent:
        """The same without tools, for what is read from passages and earlier results."""
        limits = replace(self.profile.limits, answer_tokens=min(READ_TOKENS, self.profile.limits.answer_tokens))
        return Agent(replace(self.profile, tools=(), output_schema=None, limits=limits), self.toolbox, self.model)

    async def __call__(self, task: Task, inputs: dict[str, Any]) -> Any:
        """Carries out a task. Raises ToolError if that takes a tool or a model that is not there."""
        action, args = task.action, task.args
        if action in (LOOK_UP, COMBINE) and not self._is_tool(action, args):
            if action == COMBINE:
                return await self._combine(task, Combine.of(args), inputs)
            return await self._look_up(task, LookUp.of(args), inputs)
        if action == SEARCH and SEARCH in self.toolbox:
            if isinstance(args.get("queries"), list):
                return await asyncio.gather(*(self._search(str(query)) for query in args["queries"]))
            if self.reads and isinstance(args.get("query", ""), str):
                return await self._find(task, inputs)
        if action in self.toolbox:
            return await self._call_or_fall_back(task, str(action), by_name(self.toolbox.get(str(action)), args))
        if action is not None and action not in FUNCTIONS:
            raise self._unknown(action, task)
        return await self._reason(task, inputs)

    def _is_tool(self, action: str, args: Mapping[str, Any]) -> bool:
        """Whether the caller has a tool of that name which takes these arguments: then it is called."""
        return action in self.toolbox and not self.toolbox.get(action).name_faults(args)

    def _unknown(self, name: str, task: Task) -> UnknownTool:
        names = ", ".join(self.toolbox.names) or "none"
        return UnknownTool(f"there is no tool {name!r}, known: {names}", where=f"task {task.id!r}")

    async def _call_or_fall_back(self, task: Task, name: str, args: Mapping[str, Any]) -> Any:
        """Calls a tool; if it fails, the one that the task or the tool declares as its fallback."""
        try:
            return await self._call(name, args)
        except Exception as error:
            other = str(task.meta.get("fallback") or self.toolbox.get(name).fallback or "")
            if other not in self.toolbox or self.toolbox.get(other).side_effects > self.toolbox.get(name).side_effects:
                raise  # what changes the world needs an approval of its own
            known = self.toolbox.get(other).schema.get("properties", {})
            result = await self._call(other, {key: value for key, value in args.items() if key in known})
            self.warnings.append(f"task {task.id!r}: {name} failed, so {other} was called: {error_text(error)}")
            return result

    async def _call(self, name: str, args: Mapping[str, Any]) -> Any:
        self.tool_calls += 1
        entry = {"task": _task_name(), "tool": name, "args": dict(args), "state": "failed"}
        self.calls.append(entry)
        result = await self.toolbox.call(name, args)
        entry["state"] = "done"
        return result

    async def _combine(self, task: Task, operation: Combine, inputs: Mapping[str, Any]) -> Any:
        """By rule; what the rules cannot work out goes to the model, if there is one."""
        result = combine(operation)
        if result is None and self.model is not None and any(value is not None for value in operation.operands):
            choices = {"type": "string", "enum": [*operation.labels, "unknown"]} if operation.labels else None
            return await self._reason(task, inputs, self.reader, choices)
        return result

    async def _look_up(self, task: Task, target: LookUp, inputs: Mapping[str, Any]) -> Any:
        """Searches for the entity and reads the value. None if the passages do not say it, or the entity is unknown."""
        if SEARCH not in self.toolbox:
            raise self._unknown(SEARCH, task)
        if not isinstance(target.entity, str) or any(value is None for value in inputs.values()):
            return None
        passages = await self._search(target.entity)
        if not _are_passages(passages):
            return passages
        fact = look_up(target.relation, target.entity, passages) if self.rules else None
        if fact is not None:
            self.evidence[task.id] = Evidence(fact.source, fact.evidence)
            return fact.value
        return await self._extract(task, target.entity, passages) if self.model is not None else None

    async def _find(self, task: Task, inputs: Mapping[str, Any]) -> Any:
        """Searches, and lets the model read the value from the passages; without a model, the passages."""
        if any(value is None for value in inputs.values()):
            return None
        query = str(task.args.get("query") or task.goal)
        passages = await self._search(query)
        if self.model is None or not _are_passages(passages):
            return passages
        return await self._extract(task, query, passages)

    async def _search(self, query: str) -> Any:
        properties = self.toolbox.get(SEARCH).schema.get("properties", {})
        return await self._call(SEARCH, {"query": query, **({"k": PASSAGES} if "k" in properties else {})})

    async def _extract(self, task: Task, query: str, passages: Sequence[Mapping[str, Any]]) -> str | None:
        text = "\n".join(f"[{p['title']}] {p['text']}" for p in shown(query, passages))
        messages = self._messages("extract@1", goal=words_of(task), passages=unmarked(text))
        value = await self._work(self.reader, messages)
        # What the passages do not say is not known, whoever says so: small models like to answer from memory.
        return value if value is not None and _plain(value) in _plain(text) else None

    async def _reason(
        self, task: Task, inputs: Mapping[str, Any], agent: Agent | None = None, answer_as: AnswerAs = None
    ) -> Any:
        if self.model is None:
            what = f"function {task.action!r}" if task.action else "no tool"
            raise ToolError(
                f"the task has {what} and there is no model to carry it out",
                where=f"task {task.id!r}",
                fix=f"Give it one of the tools {', '.join(self.toolbox.names)}, or run with a model (--model)",
            )
        if task.meta.get(WHOLE):
            shape = AnswerShape.of(self.profile.output_schema)
            return await self._work(self.agent, self.agent.opening(task.goal, shape))
        agent = agent or (self.reader if task.action else self.agent)
        results = as_data(dict(inputs), RESULT_CHARS) if inputs else "none"
        messages = self._messages("task@1", goal=words_of(task), inputs=results)
        return await self._work(agent, messages, answer_as)

    def _messages(self, name: str, **values: str) -> list[Message]:
        """The messages of a template, with the profile's instructions first."""
        system, *rest = template(name).messages(**values)
        words = f"{self.profile.instructions.strip()}\n\n{system['content']}".strip()
        return [{**system, "content": words}, *rest]

    async def _work(self, agent: Agent, messages: Sequence[Message], answer_as: AnswerAs = None) -> Any:
        """What the agent makes of a task. Raises ToolError if it does not come to an answer."""
        result = await agent.work(messages, answer_as=answer_as)
        self.usages += result.usages
        self.tool_calls += result.usage.tool_calls
        task = _task_name()
        made = [call for call in result.calls if call.was_made or call.state in ("denied", "waiting")]
        self.calls += [{"task": task, "tool": c.tool, "args": dict(c.args), "state": c.state} for c in made]
        waiting = dict.fromkeys(call.tool for call in made if call.state == "waiting")
        self.warnings += [
            f"task {task!r}: {name} was not called, nobody was there to approve it: run with `approve` (--approve)"
            for name in waiting
        ]
        if not result.ok:
            raise ToolError(f"the agent {self.profile.name!r} did not come to an answer: {result.error}")
        return unless_unknown(result.answer) if isinstance(result.answer, str) else result.answer


def _task_name() -> str | None:
    """The task that is being carried out; for an element of a `for_each` task, the whole."""
    job = CURRENT.get()
    return None if job is None else job.id if job.fan is None else job.fan.whole.id


def _plain(text: str) -> str:
    """Letters and digits alone, in lower case, one space between words."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def shown(entity: str, passages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The passages that a model is shown: the one about the entity first, then the best of the others."""
    own = about(entity, passages)
    rest = [passage for passage in passages if passage is not own]
    return [*([own] if own is not None else []), *rest][:SHOWN]


def _are_passages(results: Any) -> bool:
    return isinstance(results, list) and all(
        isinstance(entry, Mapping) and isinstance(entry.get("title"), str) and isinstance(entry.get("text"), str)
        for entry in results
    )
