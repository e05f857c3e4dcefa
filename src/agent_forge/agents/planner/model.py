"""A planner that asks a model, remote or in this process: any ModelClient.

The plan can be read while it is being written (`stream`), so that its tasks start before its last line arrives. Text
that is not a valid plan, or calls a tool with a value that nobody gave, goes back to the model once, with its errors; a
second failure raises PlanningFailed.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from agent_forge.agents.complexity import Complexity, complexity
from agent_forge.agents.conversation import as_data, unmarked
from agent_forge.agents.planner.binding import bind_task, bind_tools
from agent_forge.agents.planner.checking import Checker
from agent_forge.agents.planner.direct import whole_task
from agent_forge.agents.planner.interface import PlanningFailed, check_request, total
from agent_forge.agents.planner.prompts import template
from agent_forge.agents.planner.tools import ToolSpec, describe
from agent_forge.errors import ModelError
from agent_forge.inference import CompletionStream, Message, ModelClient, TokenUsage
from agent_forge.plans import Plan, PlanFault, PlanInvalid, PlanStream, Provenance, Task, parse_plan, to_xml
from agent_forge.plans.faults import raise_for

TEMPLATES = {"lines": "plan-lines@1", "graph": "plan-graph@1"}
REPAIR = "repair@1"
MEND = "mend@1"
_SHOWN_RESULT = 2000  # characters of one
_SHOWN_FAULTS = 10
_LONGEST_TOKEN = 32  # characters; more than max_tokens of these come from an endpoint that never stops


class ModelPlanner:
    """Plans with a model. `format` is "lines" or "graph"; by default "graph" if there are tools, else "lines". Requests
    of one or two steps get a plan of a single task, unless `always_graph`."""

    name = "model"

    def __init__(
        self,
        client: ModelClient,
        *,
        format: str | None = None,
        repairs: int = 1,
        most: int = 20,
        max_tokens: int = 2048,
        always_graph: bool = False,
    ) -> None:
        self.client = client
        self.format = format
        self.repairs = repairs
        self.most = most
        self.max_tokens = max_tokens
        self.always_graph = always_graph

    async def plan(self, request: str, *, tools: Sequence[ToolSpec] = ()) -> Plan:
        """The plan. Raises PlanningFailed after the last repair, ModelError if the model cannot be reached."""
        writing = self.stream(request, tools=tools)
        while True:
            try:
                async for _ in writing:
                    pass
                return writing.planned
            except PlanInvalid:
                writing = writing.repair()

    def stream(self, request: str, *, tools: Sequence[ToolSpec] = ()) -> Writing:
        """The plan as it is written: an asynchronous iterator of tasks."""
        return Writing(self, request, tools)

    async def mend(
        self,
        request: str,
        plan: Plan,
        failed: str,
        error: str,
        results: Mapping[str, Any],
        *,
        tools: Sequence[ToolSpec] = (),
        faults: Sequence[str] = (),
    ) -> tuple[list[Task], TokenUsage]:
        """The tasks that take the place of what has not begun, after task `failed`. Raises PlanInvalid or ModelError.

        `faults` are what was wrong with the attempt before.
        """
        refused = [f"the last attempt to mend it was refused: {fault}" for fault in faults]
        told = [f"{name}: {as_data(value)}" for name, value in results.items()]
        messages: list[Message] = [
            *template(MEND).messages(
                request=request,
                tools=describe(tools),
                plan=to_xml(plan),
                results="\n".join(line if len(line) <= _SHOWN_RESULT else f"{line[:_SHOWN_RESULT]}…" for line in told),
                failed=failed,
                error=unmarked("; ".join([error, *refused])),
            )
        ]
        completion = await self.client.complete(messages, temperature=0.0, max_tokens=self.max_tokens)
        written = parse_plan(completion.text)
        tasks = [task for task in written if task.id not in results]
        return [bind_task(task, tools) for task in tasks], completion.usage

    def template(self, tools: Sequence[ToolSpec]) -> str:
        return TEMPLATES[self.format or ("graph" if tools else "lines")]


class Writing:
    """A plan being written. Iterating yields each task once it is complete. At the end the whole plan is checked: then
    `planned` is available, or PlanInvalid is raised and `repair` starts the next attempt."""

    def __init__(
        self,
        planner: ModelPlanner,
        request: str,
        tools: Sequence[ToolSpec],
        *,
        conversation: list[Message] | None = None,
        spent: Sequence[TokenUsage] = (),
    ) -> None:
        check_request(request)
        self._planner = planner
        self.request = request
        self.tools = list(tools)
        self.complexity: Complexity = complexity(request)
        self._template = planner.template(tools)
        self._repairing = conversation is not None
        self._messages: list[Message] = conversation or [
            *template(self._template).messages(request=request, tools=describe(self.tools), most=str(planner.most))
        ]
        self._spent = list(spent)
        self._faults: list[PlanFault] = []
        self._text = ""
        self._planned: Plan | None = None
        self.written: dict[str, Task] = {}  # the tasks read so far
        self._tasks = self._read()

    def __aiter__(self) -> AsyncIterator[Task]:
        return self._tasks

    @property
    def attempts(self) -> int:
        return len(self._spent)

    @property
    def complete(self) -> bool:
        """Whether the plan is complete."""
        return self._planned is not None

    @property
    def planned(self) -> Plan:
        """The complete plan. Raises PlanningFailed while there is none."""
        if self._planned is None:
            raise PlanningFailed(
                "the plan is not complete", errors=self._faults, attempts=self.attempts, text=self._text
            )
        return self._planned

    def repair(self) -> Writing:
        """The next attempt: the same conversation, with the errors. Raises PlanningFailed if none is left."""
        if self.attempts > self._planner.repairs:
            faults = "; ".join(str(fault) for fault in self._faults[:3])
            raise PlanningFailed(
                f"{self._planner.client.name} wrote no valid plan in {self.attempts} attempts: {faults}",
                errors=self._faults,
                attempts=self.attempts,
                text=self._text,
            )
        errors = "\n".join(f"- {fault.code}: {fault}" for fault in self._faults[:_SHOWN_FAULTS])
        conversation = [*self._messages, {"role": "assistant", "content": self._text}]
        conversation += template(REPAIR).messages(errors=errors)
        return Writing(self._planner, self.request, self.tools, conversation=conversation, spent=self._spent)

    async def _read(self) -> AsyncIterator[Task]:
        if not (self.complexity.graph or self._planner.always_graph or self._repairing):
            task = whole_task(self.request)  # one or two steps: a single task for an agent, no graph
            self._complete(Plan([task]))
            yield task
            return
        reader = PlanStream()
        held: list[Task] = []
        faults: list[PlanFault] = []
        checker = Checker(self.tools, request=self.request, model=True)
        most = self._planner.max_tokens
        with_effects = {tool.name for tool in self.tools if getattr(tool, "side_effects", False)}
        stream = self._planner.client.stream(self._messages, temperature=0.0, max_tokens=most)
        async for piece in stream:
            self._text += piece
            if len(self._text) > most * _LONGEST_TOKEN:
                await stream.aclose()
                break
            for task in reader.feed(piece):
                bound = self.written[task.id] = bind_task(task, self.tools)
                faults += checker.faults_of(bound)
                if faults:
                    continue  # it will be written again: what has not begun need not begin
                if bound.action in with_effects:
                    held.append(bound)  # nothing may change the world for a plan that can still turn out invalid
                else:
                    yield bound
        self._spent.append(_usage(stream))
        try:
            plan = reader.finish()
            raise_for(faults)
        except PlanInvalid as error:
            self._faults = error.errors
            raise
        self._complete(bind_tools(plan, self.tools), self._template, _confidence(stream))
        for task in held:
            yield task

    def _complete(self, plan: Plan, used: str | None = None, confidence: float | None = None) -> None:
        """`used` is the template, None if the model was not asked: the complexity rule decided against a graph."""
        usage = total(self._spent) if self._spent else TokenUsage(0, 0)
        provenance = Provenance(
            self.request,
            self._planner.name,
            self._planner.client.name if used else None,
            confidence,
            used,
            self.attempts,
            usage.input_tokens,
            usage.output_tokens,
            usage.cost,
            self._text or None,
            None if used else "direct",
        )
        self._planned = plan.with_provenance(provenance)


def _usage(stream: CompletionStream) -> TokenUsage:
    try:
        return stream.completion.usage
    except ModelError:  # the stream was not read to its end
        return TokenUsage(None, None)


def _confidence(stream: CompletionStream) -> float | None:
    try:
        logprobs = stream.completion.logprobs
    except ModelError:  # the stream was not read to its end
        return None
    return math.exp(sum(logprobs) / len(logprobs)) if logprobs else None
