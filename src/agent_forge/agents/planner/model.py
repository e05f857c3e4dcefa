"""A planner that asks a model, by URL or in process: whatever answers to ModelClient.

The plan may be read while it is being written (`stream`), so that its tasks start before its last line is there. A text
that is no valid plan goes back to the model once, with its errors; a second one ends in PlanningFailed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from agent_forge.agents.complexity import Complexity, complexity
from agent_forge.agents.models import Completion, CompletionStream, Message, ModelClient, TokenUsage
from agent_forge.agents.planner.binding import bind_task
from agent_forge.agents.planner.interface import Planned, PlanningFailed, total
from agent_forge.agents.planner.prompts import template
from agent_forge.agents.planner.tools import ToolSpec, describe
from agent_forge.errors import ModelError
from agent_forge.plans import Plan, PlanFault, PlanInvalid, PlanStream, Task

TEMPLATES = {"lines": "plan-lines@1", "graph": "plan-graph@1"}
REPAIR = "repair@1"
_SHOWN_FAULTS = 10
_LONGEST_TOKEN = 32  # characters; a plan of more than max_tokens such comes from an endpoint that does not end


class ModelPlanner:
    """Plans with a model. `format` is "lines" or "graph"; without one, tools are planned as a graph of calls and
    everything else as lines. Requests of one or two steps get a plan of one task, unless `always_graph`."""

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

    async def plan(self, request: str, *, tools: Sequence[ToolSpec] = ()) -> Planned:
        """The plan. Raises PlanningFailed after the last repair, ModelError where the model cannot be reached."""
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

    def template(self, tools: Sequence[ToolSpec]) -> str:
        return TEMPLATES[self.format or ("graph" if tools else "lines")]


class Writing:
    """A plan being written. Iterating gives each task once it is complete; when the text is over it is checked as a
    whole: then `planned` is there, or PlanInvalid is raised and `repair` makes the next attempt."""

    def __init__(
        self,
        planner: ModelPlanner,
        request: str,
        tools: Sequence[ToolSpec],
        *,
        messages: list[Message] | None = None,
        spent: Sequence[TokenUsage] = (),
    ) -> None:
        self._planner = planner
        self.request = request
        self.tools = list(tools)
        self.complexity: Complexity = complexity(request)
        self._template = planner.template(tools)
        self._messages = messages or self._asked()
        self._spent = list(spent)
        self._faults: list[PlanFault] = []
        self._text = ""
        self._planned: Planned | None = None
        self.written: dict[str, Task] = {}  # the tasks read so far
        self._tasks = self._read()

    def __aiter__(self) -> AsyncIterator[Task]:
        return self._tasks

    @property
    def attempts(self) -> int:
        return len(self._spent)

    @property
    def complete(self) -> bool:
        """Whether the whole plan is there."""
        return self._planned is not None

    @property
    def planned(self) -> Planned:
        """The whole. Raises PlanningFailed while there is none."""
        if self._planned is None:
            raise PlanningFailed(
                "the plan is not complete", errors=self._faults, attempts=self.attempts, text=self._text
            )
        return self._planned

    def repair(self) -> Writing:
        """The next attempt: the same conversation, with what was wrong. Raises PlanningFailed when none is left."""
        if self.attempts > self._planner.repairs:
            shown = "; ".join(str(fault) for fault in self._faults[:3])
            raise PlanningFailed(
                f"{self._planner.client.name} wrote no valid plan in {self.attempts} attempts: {shown}",
                errors=self._faults,
                attempts=self.attempts,
                text=self._text,
            )
        errors = "\n".join(f"- {fault.code}: {fault}" for fault in self._faults[:_SHOWN_FAULTS])
        asked = [*self._messages, {"role": "assistant", "content": self._text}]
        asked += template(REPAIR).messages(errors=errors)
        return Writing(self._planner, self.request, self.tools, messages=asked, spent=self._spent)

    def _asked(self) -> list[Message]:
        values = {"request": self.request, "tools": describe(self.tools), "most": str(self._planner.most)}
        return [*template(self._template).messages(**values)]

    async def _read(self) -> AsyncIterator[Task]:
        if not (self.complexity.graph or self._planner.always_graph or self._messages != self._asked()):
            yield self._single()
            return
        reader = PlanStream()
        held: list[Task] = []
        most = self._planner.max_tokens
        stream = self._planner.client.stream(self._messages, temperature=0.0, max_tokens=most)
        async for piece in stream:
            self._text += piece
            if len(self._text) > most * _LONGEST_TOKEN:
                await stream.aclose()
                break
            for task in reader.feed(piece):
                bound = self.written[task.id] = bind_task(task, self.tools)
                if self._has_side_effects(bound):
                    held.append(bound)  # nothing is changed in the world for a plan that may yet turn out invalid
                else:
                    yield bound
        self._spent.append(_usage(stream))
        self._finish(reader)
        for task in held:
            yield task

    def _has_side_effects(self, task: Task) -> bool:
        tool = next((tool for tool in self.tools if tool.name == task.action), None)
        return bool(getattr(tool, "side_effects", False))

    def _finish(self, reader: PlanStream) -> None:
        try:
            plan = reader.finish()
        except PlanInvalid as error:
            self._faults = error.errors
            raise
        self._keep(Plan(bind_task(task, self.tools) for task in plan), self._template)

    def _single(self) -> Task:
        """A request of one or two steps: no graph, one task that the handler gives to the model as a whole."""
        task = Task("task_1", self.request)
        self._keep(Plan([task]), None)
        return task

    def _keep(self, plan: Plan, used: str | None) -> None:
        asked = used is not None  # else the rule that decides on a graph planned it, and the model was left alone
        self._planned = Planned(
            plan,
            self.request,
            self._planner.name,
            self.complexity,
            self._planner.client.name if asked else None,
            used,
            self.attempts,
            total(self._spent) if self._spent else TokenUsage(0, 0),
            self._text or None,
            None if used else "direct",
        )


def _usage(stream: CompletionStream) -> TokenUsage:
    try:
        completion: Completion = stream.completion
    except ModelError:  # it was not read to its end
        return TokenUsage(None, None)
    return completion.usage
