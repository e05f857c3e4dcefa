"""The span: one thing that happened, as every room of Agent Forge records and reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_forge.errors import TraceError

# What a span can be. Names of other programs' kinds are mapped to these in `conventions.py`.
KINDS: dict[str, str] = {
    "run": "a whole run: usually the root of a trace",
    "plan": "making or changing a plan",
    "task": "one task of a plan, or a step of a program",
    "model": "a call of a model: chat, completion, embedding",
    "tool": "a call of a tool",
    "agent": "an agent at work, or work delegated to one",
    "observation": "something read from outside: a retrieval, a message, a person's answer",
    "reward": "a judgement of what another span did",
    "phase": "a phase of the forge",
    "other": "anything else, for example an HTTP request of an instrumented program",
}
STATUSES = ("unset", "ok", "error")


@dataclass(slots=True)
class Span:
    """One thing that happened. A field that was not measured is None, never 0.

    >>> span = Span("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "search", kind="tool", start_ns=1, end_ns=5)
    >>> span.duration_s, span.reward
    (4e-09, None)
    >>> span.set(reward=0.5, colour="red").attributes
    {'colour': 'red'}
    """

    trace_id: str  # 32 hexadecimal digits
    span_id: str  # 16 hexadecimal digits
    name: str
    kind: str = "task"  # one of KINDS
    parent_id: str | None = None
    start_ns: int = 0  # since the epoch
    end_ns: int | None = None  # None: not finished
    status: str = "unset"  # one of STATUSES
    error: str | None = None
    inputs: Any = None  # JSON values
    outputs: Any = None
    attributes: dict[str, Any] = field(default_factory=dict)
    links: list[tuple[str, str]] = field(default_factory=list)  # (trace, span) whose results this one used
    events: list[dict[str, Any]] = field(default_factory=list)  # {"name", "time_ns", "attributes"}
    agent: str | None = None
    model: str | None = None
    session: str | None = None
    provider: str | None = None
    category: str | None = None  # the kind of task, for example "codebase_search"
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None  # US dollars
    reward: float | None = None
    policy: str | None = None  # version of the policy that acted
    template: str | None = None  # version of the prompt template
    sampling: dict[str, Any] | None = None  # temperature, top_p, max_tokens, seed …
    assessment: dict[str, Any] | None = None  # complexity, criticality, uncertainty
    prompt_ids: list[int] | None = None  # token ids, for in-process models
    output_ids: list[int] | None = None
    logprobs: list[float] | None = None  # one for each of output_ids
    resource: dict[str, Any] | None = None  # OpenTelemetry: attributes of the process that made the span
    scope: dict[str, Any] | None = None  # OpenTelemetry: name and version of the instrumentation
    otel_kind: int | None = None  # OpenTelemetry: 1 internal, 2 server, 3 client, 4 producer, 5 consumer; None: ours
    otel: dict[str, Any] | None = None  # OpenTelemetry: what has no field of its own (trace state, flags)
    # Wall clock minus monotonic clock when the trace began: one trace, one timeline, whatever the wall clock does.
    clock: int | None = field(default=None, repr=False, compare=False)

    @property
    def duration_ns(self) -> int | None:
        """None while the span is not finished."""
        return None if self.end_ns is None else self.end_ns - self.start_ns

    @property
    def duration_s(self) -> float | None:
        """None while the span is not finished."""
        return None if self.end_ns is None else (self.end_ns - self.start_ns) / 1e9

    def set(self, **values: Any) -> Span:
        """Sets fields by name; any other name becomes an attribute. Returns the span."""
        for name, value in values.items():
            if name in _FIELDS:
                setattr(self, name, value)
            else:
                self.attributes[name] = value
        return self

    def link(self, other: Span) -> Span:
        """Says that this span used the result of `other`. Returns the span."""
        self.links.append((other.trace_id, other.span_id))
        return self

    def event(self, name: str, time_ns: int, **attributes: Any) -> Span:
        """Adds a moment inside the span. Returns the span."""
        self.events.append({"name": name, "time_ns": time_ns, "attributes": attributes})
        return self

    def to_dict(self) -> dict[str, Any]:
        """A JSON object without the fields that are empty."""
        values = {name: getattr(self, name) for name in FIELDS}
        found = {name: value for name, value in values.items() if value is not None and value not in ([], {})}
        for name in ("inputs", "outputs"):  # an empty answer is an answer
            if values[name] is not None:
                found[name] = values[name]
        if self.links:
            found["links"] = [list(link) for link in self.links]
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Span:
        """The inverse of `to_dict`. Raises TraceError where a field is missing or unknown."""
        unknown = set(data) - _FIELDS
        missing = {"trace_id", "span_id", "name"} - set(data)
        if unknown or missing:
            fault = f"has no {sorted(missing)[0]!r}" if missing else f"has an unknown field {sorted(unknown)[0]!r}"
            raise TraceError(f"the span {fault}", fix=f"the fields are {', '.join(FIELDS)}")
        values = dict(data)
        values["links"] = [(str(trace), str(span)) for trace, span in data.get("links") or ()]
        return cls(**values)


FIELDS: tuple[str, ...] = tuple(name for name in Span.__dataclass_fields__ if name != "clock")
_FIELDS = frozenset(FIELDS)
