"""An agent: a profile, tools and a model that work on a request in turns of think, call and observe.

agent = Agent("researcher", model="http://localhost:8000/v1#name")
result = agent.run("Who directed Alien?")
print(result.answer, [call.tool for call in result.calls], result.trace_id)
"""

from __future__ import annotations

import asyncio
import json
import os
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from agent_forge.agents.answer_shape import AnswerAs, AnswerShape
from agent_forge.agents.approval import AnyApproval, approver
from agent_forge.agents.choices import AnyModel, AnyTools, choose_model, choose_tools
from agent_forge.agents.front import blocking
from agent_forge.agents.planner.prompts import template
from agent_forge.agents.profiles import AgentProfile, choose_profile
from agent_forge.agents.run_records import recording
from agent_forge.agents.sessions import Sessions
from agent_forge.agents.tool_limits import limits_of
from agent_forge.agents.tools import Toolbox, builtin_tools
from agent_forge.agents.turns import AgentResult, AgentWork, CallRecord, Emit
from agent_forge.errors import UsageError
from agent_forge.inference import Message, ModelClient, current_recorder, use_recorder
from agent_forge.inference.client import digest_of
from agent_forge.runtime import BatchRouter
from agent_forge.settings import trace_store
from agent_forge.traces import Recorder

TEMPLATE = "agent@1"
# Tools of this package that profiles may name although they are not in every toolbox.
PACKAGED = frozenset(
    ("search", "fetch", "search_files", "read_file", "calculator", "query_json", "query_csv", "python")
)


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """Something an agent did: began a `turn`, wrote `text`, made a `call`, saw an `observation`, gave its `answer`."""

    kind: Literal["turn", "text", "call", "observation", "answer"]
    turn: int
    text: str = ""
    call: CallRecord | None = None
    result: AgentResult | None = None


class Agent:
    """Works on requests with a model and tools.

    - `profile`: an AgentProfile, the name of a bundled one, or a YAML file; by default `default`.
    - `tools`: as in `run`; the agent may call those that its profile names.
    - `model`: as in `run`; by default the profile's, else the one in the settings. Raises UsageError if there is none.
    - `approve`: as in `run`; a call of a tool with side effects that nobody approves is not made.
    - `home`, `record`, `recorder`: where traces and sessions are kept, as in `run`.
    """

    def __init__(
        self,
        profile: AgentProfile | str | os.PathLike[str] | None = None,
        tools: AnyTools = None,
        model: AnyModel = None,
        *,
        approve: AnyApproval = "ask",
        home: str | os.PathLike[str] | None = None,
        record: bool = True,
        recorder: Recorder | None = None,
    ) -> None:
        self.profile = choose_profile(profile)
        self.tools = allowed_tools(self.profile, None if tools is None else choose_tools(tools))
        client = choose_model(model if model is not None else self.profile.model)
        if client is None:
            raise UsageError(
                f"the agent {self.profile.name!r} has no model",
                fix="Name one: model=… or --model http://host:port/v1#name, a folder, or smollm2",
            )
        self.model: ModelClient = client
        self.approve = approve
        self.home = home
        self.record = record
        self.recorder = recorder
        self._routers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, BatchRouter] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"Agent({self.profile.name!r}, {', '.join(self.tools.names) or 'no tools'}, {self.model!r})"

    @cached_property
    def specs(self) -> tuple[dict[str, Any], ...]:
        """The tools as the model is told about them."""
        return tuple(tool.spec for tool in self.tools)

    @cached_property
    def spec_chars(self) -> int:
        """The characters that the tools take in a prompt."""
        return len(json.dumps(self.specs))

    @cached_property
    def digest(self) -> str:
        """The digest of the tools, under which spans name them."""
        return digest_of(self.specs)

    @property
    def router(self) -> BatchRouter:
        """What carries out the calls of every turn: tools' limits hold over all requests of this agent."""
        loop = asyncio.get_running_loop()
        if loop not in self._routers:
            self._routers[loop] = BatchRouter(
                limits=limits_of(self.tools, approval=self.approve != "all"), approve=approver(self.approve), memo=False
            )
        return self._routers[loop]

    def run(self, request: str, *, session: str | None = None, answer_as: AnswerAs = None) -> AgentResult:
        """Works on a request; see `arun`. It also works where an event loop runs, which it blocks meanwhile."""
        return blocking(self.arun(request, session=session, answer_as=answer_as))

    async def arun(self, request: str, *, session: str | None = None, answer_as: AnswerAs = None) -> AgentResult:
        """Works on a request until there is an answer, or a limit of the profile is reached.

        - `session`: the name of a conversation in the home folder; what was said in it before is remembered.
        - `answer_as`: a dataclass or another type with a JSON Schema, or a JSON Schema. An answer of another form goes
          back to the model.

        Raises UsageError before anything is sent, and ModelError if the model cannot be reached.
        """
        return await self._converse(request, session, answer_as, None)

    async def astream(
        self, request: str, *, session: str | None = None, answer_as: AnswerAs = None
    ) -> AsyncIterator[AgentEvent]:
        """The same, as it happens; the last event is the `answer`, with the result. Leaving the loop stops the work."""
        events: asyncio.Queue[AgentEvent | None] = asyncio.Queue()

        def emit(kind: Any, turn: int, text: str = "", call: CallRecord | None = None) -> None:
            events.put_nowait(AgentEvent(kind, turn, text, call))

        # A task of its own: spans are context variables, and must not leak into the code that reads the events.
        work = asyncio.ensure_future(self._converse(request, session, answer_as, emit))
        work.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            result = work.result()
            yield AgentEvent("answer", result.turns, "" if result.answer is None else str(result.answer), None, result)
        finally:
            work.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await work

    async def _converse(self, request: str, session: str | None, answer_as: AnswerAs, emit: Emit | None) -> AgentResult:
        shape = AnswerShape.of(answer_as if answer_as is not None else self.profile.answer_schema)
        system, user = self.opening(request, shape)
        sessions = Sessions.open(self.home) if session is not None else None
        try:
            history = sessions.messages(session) if sessions is not None and session is not None else []
            messages = [system, *history, user]
            own = self.recorder or current_recorder()
            with recording(self.home, self.record, own) as active, use_recorder(active):
                work = AgentWork(self, messages, len(messages) - 1, shape, emit, session)
                result = await work.carry_out()
            result = replace(result, recorded=own if own is not None else trace_store(self.home))
            if sessions is not None and session is not None and result.ok:
                sessions.append(session, result.messages[len(messages) - 1 :])
            return result
        finally:
            if sessions is not None:
                sessions.close()

    def opening(self, request: str, shape: AnswerShape | None = None) -> list[Message]:
        """The system message and the request."""
        form = "" if shape is None else f"Answer with JSON alone, of this JSON Schema: {json.dumps(dict(shape.schema))}"
        words = (self.profile.instructions or self.profile.description).strip()
        system, user = template(TEMPLATE).messages(instructions=words, format=form, request="")
        return [system, {**user, "content": request}]  # as it is: a template changes blank lines

    async def work(self, messages: Sequence[Message], *, answer_as: AnswerAs = None) -> AgentResult:
        """Goes on from these messages, the last of which is the request; nothing is remembered."""
        shape = AnswerShape.of(answer_as if answer_as is not None else self.profile.output_schema)
        return await AgentWork(self, messages, len(messages) - 1, shape, None, None).carry_out()


def allowed_tools(profile: AgentProfile, box: Toolbox | None) -> Toolbox:
    """The tools of the box, by default the bundled ones, that a profile names; all of them if it names none.

    Raises UnknownTool for a name that is neither in the box nor one of this package's tools.
    """
    if box is None:
        box = choose_tools(None) if profile.tools is None else Toolbox(builtin_tools())
    if profile.tools is None:
        return box
    return Toolbox(box.get(name) for name in profile.tools if name in box or name not in PACKAGED)
