"""The turns of an agent: ask the model, carry out its calls, show it the results, until there is an answer.

A call that does not fit its tool goes back with what was expected, and a corrected call is then required. A call that
failed and is made again unchanged ends the work; one that succeeded is not repeated, and the model must answer.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from agent_forge.agents.answer_shape import AnswerInvalid, AnswerShape
from agent_forge.agents.conversation import as_data, fit, size
from agent_forge.agents.planner.checking import Checker
from agent_forge.agents.planner.interface import total
from agent_forge.agents.result import RunUsage
from agent_forge.agents.tools import ArgumentsInvalid, Toolbox
from agent_forge.errors import UsageError
from agent_forge.inference import Completion, Message, TokenUsage, ToolCall, current_recorder
from agent_forge.inference.chat import tools_recorded
from agent_forge.inference.client import ToolChoice, digest_of
from agent_forge.inference.tool_calls import OPEN, split_calls
from agent_forge.inference.wire import MalformedCall
from agent_forge.plans import Task, literal
from agent_forge.runtime import spend
from agent_forge.traces import current_span

if TYPE_CHECKING:
    from agent_forge.agents.agent import Agent
    from agent_forge.traces import Recorder, Span

Emit = Callable[..., None]  # (kind, turn, text, call), as the fields of an AgentEvent
CONTEXT_TOKENS = 32_768  # of a model whose context is not known
CHARS_PER_TOKEN = 3.0  # until the model has reported how many tokens it read
_GIVEN = (
    "The call was not made. Its values must come from the request, an earlier result or the tool's own choices. "
    "If one is missing, say so in your answer."
)
_NAMED = re.compile(r"argument '([^'.\[]+)")  # in the faults of a call

_outermost: ContextVar[Span | None] = ContextVar("agent_forge_outermost", default=None)


@dataclass(slots=True)
class CallRecord:
    """A tool call by an agent: `state` is that of a task ("done", "failed", "denied", …), or "invalid" if it did not
    fit the tool, "ungiven" if it had a value that nobody gave, "repeated" if it was made before, "not_made" if the turn
    had too many."""

    id: str
    tool: str
    args: Mapping[str, Any]
    state: str = "pending"
    result: Any = None
    error: str | None = None
    key: str = field(init=False, repr=False)  # equal for equal calls

    def __post_init__(self) -> None:
        self.key = digest_of([self.tool, self.args])

    @property
    def was_made(self) -> bool:
        """Whether the tool was called."""
        return self.state not in ("pending", "invalid", "ungiven", "repeated", "not_made", "denied", "waiting")


@dataclass(frozen=True, slots=True)
class AgentResult:
    """How an agent's work ended. `answer` is text, or what `answer_as` or the profile's output schema asks for."""

    state: str  # "done", "failed", "over_budget", "timed_out", or "turn_limit"
    answer: Any
    error: str | None
    turns: int
    calls: tuple[CallRecord, ...]
    usage: RunUsage
    usages: tuple[TokenUsage, ...]  # of each model call
    messages: tuple[Message, ...]
    trace_id: str | None = None
    session: str | None = None
    recorded: Any = field(default=None, repr=False, compare=False)  # where the trace is, as in Result

    @property
    def ok(self) -> bool:
        return self.state == "done"


@contextmanager
def outermost(span: Span | None) -> Iterator[None]:
    """Makes this span the one that keeps the schemas of the tools that agents inside it may call."""
    token = _outermost.set(span)
    try:
        yield
    finally:
        _outermost.reset(token)


def keep_schemas(span: Span, specs: Sequence[Any], digest: str) -> None:
    """Keeps schemas of tools in a span, once per digest, so that a trace can become a training row."""
    span.attributes.setdefault("tool_schemas", {})[digest] = list(specs)


class AgentWork:
    """One request under way. `messages[request_at]` is the request."""

    def __init__(
        self,
        agent: Agent,
        messages: Sequence[Message],
        request_at: int,
        shape: AnswerShape | None,
        emit: Emit | None,
        session: str | None,
    ) -> None:
        self.agent = agent
        self.messages: list[Message] = list(messages)
        self._request_at = request_at
        self._shape = shape
        self._emit = emit
        self._session = session
        self._recorder: Recorder | None = current_recorder()
        self._turn = 0
        self._choice: ToolChoice = "auto"
        self._corrections = agent.profile.limits.corrections
        self._calls: list[CallRecord] = []
        self._checker = self._given() if agent.profile.grounded and agent.specs else None
        self._made: dict[str, CallRecord] = {}
        self._spans: dict[str, Span] = {}  # of the calls of this turn
        self._usages: list[TokenUsage] = []
        self._cost = 0.0  # of model calls
        self._tool_cost = 0.0
        self._chars_per_token = CHARS_PER_TOKEN
        self._trace_id: str | None = None

    def _given(self) -> Checker:
        """What the values of calls may come from: all that was said so far; results are added as they come."""
        checker = Checker(self.agent.tools, request=str(self.messages[self._request_at].get("content")))
        for message in self.messages[: self._request_at]:
            checker.hear(str(message.get("content") or ""))
        return checker

    # The loop

    async def carry_out(self) -> AgentResult:
        """Raises ModelError if the model cannot be reached."""
        profile = self.agent.profile
        request = self.messages[self._request_at].get("content")
        with self._span(profile.name, "agent", inputs={"request": request}, agent=profile.name) as span:
            if span is not None:
                self._trace_id = span.trace_id
                if self._session is not None:
                    span.session = self._session
            with self._schemas(span):
                try:
                    result = await asyncio.wait_for(self._loop(), profile.limits.seconds)
                except asyncio.TimeoutError:
                    result = self._end("timed_out", f"no answer within {profile.limits.seconds:g} s")
            if span is not None:
                span.outputs = {
                    "answer": self.messages[-1].get("content") if result.ok else None,
                    "state": result.state,
                }
                if not result.ok:
                    span.status, span.error = "error", result.error
        return result

    async def _loop(self) -> AgentResult:
        limits = self.agent.profile.limits
        for self._turn in range(1, limits.turns + 1):
            if (spent := self._spent()) is not None:
                return self._end("over_budget", spent)
            if self._turn == limits.turns and self._choice == "auto":
                self._choice = "none"
            self._tell("turn")
            with self._span(f"turn {self._turn}", "task"):
                result = await self._take_turn()
            if result is not None:
                return result
        return self._end("turn_limit", f"no answer after {limits.turns} turns")

    async def _take_turn(self) -> AgentResult | None:
        """One turn; the result if it was the last."""
        try:
            completion = await self._ask()
        except MalformedCall as error:
            self.messages.append({"role": "assistant", "content": f"{error.tool}({error.arguments[:1000]})"})
            wrong = self._feedback(error.tool, {}, [str(error)])
            return self._send_back(f"This call was not made. {as_data(wrong)}", "required", str(error))
        calls = completion.tool_calls or self._calls_in(completion.text)
        if not calls:
            return self._answer(completion.text)
        if self._choice == "none":
            state = "turn_limit" if self._turn == self.agent.profile.limits.turns else "failed"
            return self._end(state, "the model called a tool when it had to answer")
        return await self._act(completion, calls)

    def _spent(self) -> str | None:
        """Which budget is used up, if one is."""
        limits = self.agent.profile.limits
        tokens = sum((u.input_tokens or 0) + (u.output_tokens or 0) for u in self._usages)
        if limits.tokens is not None and tokens >= limits.tokens:
            return f"the budget of {limits.tokens:,} tokens is used up"
        if limits.cost is not None and self._cost + self._tool_cost >= limits.cost:
            return f"the budget of {limits.cost:g} US dollars is used up"
        return None

    def _end(self, state: str, error: str | None, answer: Any = None) -> AgentResult:
        tokens = total(self._usages) if self._usages else TokenUsage(0, 0)
        made = sum(call.was_made for call in self._calls)
        cost = None if tokens.cost is None else tokens.cost + self._tool_cost
        usage = RunUsage(tokens.input_tokens, tokens.output_tokens, len(self._usages), made, cost)
        return AgentResult(
            state, answer, error, self._turn, tuple(self._calls), usage, tuple(self._usages), tuple(self.messages),
            self._trace_id, self._session,
        )  # fmt: skip

    # The model

    async def _ask(self) -> Completion:
        agent, profile = self.agent, self.agent.profile
        prompt = self._prompt()
        options: dict[str, Any] = {
            "tools": agent.specs or None,
            "temperature": profile.temperature,
            "max_tokens": profile.limits.answer_tokens,
        }
        if agent.specs and self._choice != "auto":
            options["tool_choice"] = self._choice
        if self._shape is not None:
            options["answer_schema"] = self._shape.schema
        if self._emit is None:
            completion = await agent.model.complete(prompt, **options)
        else:
            stream, pending = agent.model.stream(prompt, **options), ""
            try:
                async for piece in stream:
                    pending = self._show(pending + piece)
            finally:
                await stream.aclose()
            self._show(pending, last=True)
            completion = stream.completion
        self._count(completion, prompt)
        return completion

    def _prompt(self) -> list[Message]:
        """The conversation, cut to the model's context by the rule in `conversation`."""
        limits = self.agent.profile.limits
        context = limits.context_tokens or getattr(self.agent.model, "context_tokens", None) or CONTEXT_TOKENS
        room = max(context - limits.answer_tokens, context // 2) * self._chars_per_token
        return fit(self.messages, self._request_at, int(room) - self.agent.spec_chars)

    def _count(self, completion: Completion, prompt: Sequence[Message]) -> None:
        usage, limits = completion.usage, self.agent.profile.limits
        self._usages.append(usage)
        counts = [count for count in (usage.input_tokens, usage.output_tokens) if count is not None]
        spend(sum(counts) if counts else None, usage.cost, unpriced=completion.model if usage.cost is None else None)
        if usage.cost is not None:
            self._cost += usage.cost
        elif limits.cost is not None:
            raise UsageError(
                f"the cost of {completion.model} is not known, so the limit on cost cannot be kept",
                where=f"agent {self.agent.profile.name!r}",
                fix="Give its price in the settings, or leave the limit out",
            )
        if usage.input_tokens:
            characters = size(prompt) + self.agent.spec_chars
            self._chars_per_token = min(CHARS_PER_TOKEN, max(0.5, characters / usage.input_tokens))

    def _show(self, text: str, *, last: bool = False) -> str:
        """Emits text as it is written, up to a call in it; returns what may be the beginning of one."""
        before, call, _ = text.partition(OPEN)
        held = next((n for n in range(min(len(OPEN) - 1, len(text)), 0, -1) if OPEN.startswith(text[-n:])), 0)
        shown = before if call else text if last else text[: len(text) - held]
        if shown:
            self._tell("text", shown)
        return text[len(shown) :]

    def _calls_in(self, text: str) -> tuple[ToolCall, ...]:
        """Calls that a model wrote as its answer: bare JSON that calls a tool of ours is a call."""
        _, calls = split_calls(text, self.agent.tools.names) if self.agent.specs else (text, [])
        return tuple(ToolCall(call.id, call.name, json.loads(call.arguments)) for call in calls)

    # Answers

    def _answer(self, text: str) -> AgentResult | None:
        self.messages.append({"role": "assistant", "content": text})
        if self._choice == "required":
            return self._send_back("Call the tool again, with the arguments corrected.", "required", "no call was made")
        if not text.strip():
            return self._send_back("Your answer is empty. Answer the request.", self._choice, "the answer is empty")
        if self._shape is None:
            return self._end("done", None, text.strip())
        try:
            return self._end("done", None, self._shape.read(text))
        except AnswerInvalid as error:
            faults = "\n".join(f"- {fault}" for fault in error.faults[:10])
            words = f"Your answer does not have the form that was asked for:\n{faults}\nAnswer again with JSON alone."
            return self._send_back(words, "none", str(error))

    def _send_back(self, words: str, choice: ToolChoice, why: str) -> AgentResult | None:
        """Lets the model correct itself, as often as its limits say."""
        if self._corrections == 0:
            times = self.agent.profile.limits.corrections
            return self._end("failed", f"still wrong after {times} correction{'s' * (times != 1)}: {why}")
        self._corrections -= 1
        self._choice = choice
        self.messages.append({"role": "user", "content": words})
        return None

    # Calls

    async def _act(self, completion: Completion, calls: Sequence[ToolCall]) -> AgentResult | None:
        most = self.agent.profile.limits.calls
        records = [CallRecord(call.id or f"call_{self._turn}_{n}", call.name, call.arguments)
                   for n, call in enumerate(calls)]  # fmt: skip
        for record in records[most:]:
            record.state, record.error = "not_made", f"at most {most} call{'s' * (most != 1)} can be made per turn"
        observations = {record.id: self._check(record) for record in records[:most]}
        for record in records:
            self._tell("call", call=record)
        await self._execute([record for record in records if record.state == "pending"])
        self._calls += records
        self.messages.append(_assistant(completion.text, records))
        for record in records:
            self._observe(record, observations.get(record.id))
        return self._next(records)

    def _check(self, record: CallRecord) -> Any:
        """Marks a call that must not be made, and returns what the model is told about one that does not fit."""
        earlier = self._made.get(record.key)
        if earlier is not None:
            again = record.tool in self.agent.tools and _may_repeat(self.agent.tools, record.tool)
            if earlier.state == "done" and again:
                return None
            record.state, record.error = "repeated", "the same call was made before"
            return None
        self._made[record.key] = record
        try:
            self.agent.tools.get(record.tool).check(record.args)
        except ArgumentsInvalid as error:
            faults = error.faults
        except Exception as error:  # an unknown tool
            faults = [str(error)]
        else:
            ungiven = self._checker.ungiven(record.tool, record.args) if self._checker is not None else []
            if not ungiven:
                return None
            record.state, record.error = "ungiven", "; ".join(ungiven)
            return {"faults": ungiven, "note": _GIVEN}
        record.state, record.error = "invalid", "; ".join(faults)
        return self._feedback(record.tool, record.args, faults)

    def _feedback(self, name: str, args: Mapping[str, Any], faults: list[str]) -> dict[str, Any]:
        """What a model needs to correct a call: what was expected, what was wrong, and what was probably meant."""
        box = self.agent.tools
        if name not in box:
            nearest = {name: get_close_matches(name, box.names, n=1)}
            return {
                "faults": faults,
                "expected": list(box.names),
                "nearest": {k: v[0] for k, v in nearest.items() if v},
            }
        schema = box.get(name).schema
        properties = schema.get("properties", {})
        missing = [key for key in schema.get("required", []) if key not in args]
        nearest = {key: get_close_matches(key, properties, n=1, cutoff=0.5) for key in args if key not in properties}
        return {
            "faults": faults,
            "expected": {"properties": properties, "required": schema.get("required", [])},
            "offending": list(dict.fromkeys(key for fault in faults for key in _NAMED.findall(fault))),
            "nearest": {key: (close or missing)[0] for key, close in nearest.items() if close or len(missing) == 1},
        }

    async def _execute(self, records: Sequence[CallRecord]) -> None:
        """Runs the calls of a turn in parallel, on the executor."""
        if not records:
            return
        box, by_task = self.agent.tools, {f"c{n}": record for n, record in enumerate(records)}

        async def handler(task: Task, inputs: dict[str, Any]) -> Any:
            span = current_span()
            if span is not None:
                span.kind = "tool"
                self._spans[by_task[task.id].id] = span
            return await box.get(by_task[task.id].tool).call(task.args)

        tasks = [Task(name, action=record.tool, args=literal(record.args)) for name, record in by_task.items()]
        name = f"{self.agent.profile.name}-turn-{self._turn}"  # not stored, so it need not be unique
        outcome = await self.agent.router.start(tasks, handler, run_id=name, recorder=self._recorder).result()
        for name, record in by_task.items():
            ended = outcome.tasks[name]
            record.state, record.result, record.error = ended.state, ended.result, ended.error
        used = outcome.usage
        self._tool_cost += used.cost or 0.0
        if used.tokens is not None or used.cost is not None:
            spend(tokens=used.tokens, cost=used.cost)

    def _observe(self, record: CallRecord, told: Any) -> None:
        if record.state == "repeated":
            earlier = self._made[record.key]
            told = {"note": record.error, "result": earlier.result, "error": earlier.error}
        elif told is None:
            told = record.result if record.state == "done" else {"error": record.error, "state": record.state}
        content = as_data(told, self.agent.profile.limits.result_chars)
        links = [self._spans[record.id]] if record.id in self._spans else []
        with self._span(
            "observation", "observation", inputs={"call": record.id, "tool": record.tool}, links=links
        ) as s:
            if s is not None:
                s.outputs = content
        if self._checker is not None and record.state == "done":
            self._checker.hear(content)
        self.messages.append({"role": "tool", "tool_call_id": record.id, "content": content})
        self._tell("observation", content, record)

    def _next(self, records: Sequence[CallRecord]) -> AgentResult | None:
        """What follows from the calls of a turn."""
        stuck = [r for r in records if r.state == "repeated" and self._made[r.key].state != "done"]
        if stuck:
            first = self._made[stuck[0].key]
            return self._end(
                "failed", f"the model repeated a call unchanged that was not done: {first.tool}: {first.error}"
            )
        wrong = [record for record in records if record.state in ("invalid", "ungiven")]
        if wrong and self._corrections == 0:
            return self._end(
                "failed", f"no valid call after the corrections allowed: {wrong[0].tool}: {wrong[0].error}"
            )
        self._corrections -= bool(wrong)
        repeated = all(record.state == "repeated" for record in records)
        # A tool that does not exist can be done without, if another call of the turn was done; a value that nobody
        # gave may have to be asked for.
        done = any(record.state == "done" for record in records)
        needed = [r for r in wrong if r.state == "invalid" and (r.tool in self.agent.tools or not done)]
        self._choice = "required" if needed else "none" if repeated else "auto"
        return None

    # Spans and events

    def _tell(self, kind: str, text: str = "", call: CallRecord | None = None) -> None:
        if self._emit is not None:
            self._emit(kind, self._turn, text, call)

    def _span(self, name: str, kind: str, **fields: Any) -> Any:
        return self._recorder.span(name, kind, **fields) if self._recorder is not None else nullcontext()

    @contextmanager
    def _schemas(self, span: Span | None) -> Iterator[None]:
        """Keeps the schemas of the tools in the outermost span, once per digest: a run can become a training row."""
        if span is None or not self.agent.specs:
            yield
            return
        digest = self.agent.digest
        root = _outermost.get() or span
        keep_schemas(root, self.agent.specs, digest)
        span.attributes["tools_digest"] = digest
        with outermost(root), tools_recorded(digest):
            yield


def _assistant(text: str, records: Sequence[CallRecord]) -> Message:
    calls = [
        {"id": r.id, "type": "function", "function": {"name": r.tool, "arguments": json.dumps(dict(r.args))}}
        for r in records
    ]
    return {"role": "assistant", "content": text or None, "tool_calls": calls}


def _may_repeat(box: Toolbox, name: str) -> bool:
    """Whether the same call can have another result the next time: a tool that is not cached, and changes nothing."""
    tool = box.get(name)
    return not tool.cache and not tool.side_effects
