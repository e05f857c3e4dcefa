"""The span: one thing that happened, as every room of Agent Forge records and reads it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from agent_forge.errors import TraceError

# The kinds of span. Those of other programs are mapped to these in `conventions.py`.
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


# Agent Lightning's names, which every recorded span carries: a trace is one attempt of one rollout unless the span
# above says otherwise, and numbers order the spans of a process.
ROLLOUT, ATTEMPT = "agentlightning.rollout_id", "agentlightning.attempt_id"
SEQUENCE = "agentlightning.span_sequence_id"

T = TypeVar("T")


class Rare(Generic[T]):
    """A field that few spans have. It is None until it is set."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, span: None, owner: type) -> None: ...
    @overload
    def __get__(self, span: Span, owner: type) -> T | None: ...
    def __get__(self, span: Span | None, owner: type) -> T | None:
        return None if span is None or span.rare is None else span.rare.get(self._name)

    def __set__(self, span: Span, value: T | None) -> None:
        if value is not None:
            if span.rare is None:
                span.rare = {}
            span.rare[self._name] = value
        elif span.rare is not None:
            span.rare.pop(self._name, None)


@dataclass(init=False)
class Span:
    """One thing that happened. A field that was not measured is None, never 0.

    Most spans have few of the fields from `provider` on. These share one dictionary (`rare`), so that creating, copying
    and storing a span costs as much as it holds.

    >>> span = Span("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "search", kind="tool", start_ns=1, end_ns=5)
    >>> span.duration_s, span.reward
    (4e-09, None)
    >>> span.set(reward=0.5, colour="red").attributes
    {'colour': 'red'}
    """

    __slots__ = (
        "agent", "attributes", "clock", "end_ns", "error", "events", "inputs", "kind", "links", "model",
        "name", "outputs", "parent_id", "rare", "session", "span_id", "start_ns", "status", "trace_id",
    )  # fmt: skip

    trace_id: str  # 32 hexadecimal digits
    span_id: str  # 16 hexadecimal digits
    name: str
    kind: str  # one of KINDS
    parent_id: str | None
    start_ns: int  # since the epoch
    end_ns: int | None  # None: not finished
    status: str  # one of STATUSES
    error: str | None
    inputs: Any  # JSON values
    outputs: Any
    attributes: dict[str, Any]
    links: list[tuple[str, str]]  # (trace, span) whose results this one used
    events: list[dict[str, Any]]  # {"name", "time_ns", "attributes"}
    agent: str | None
    model: str | None
    session: str | None
    provider: Rare[str] = Rare()
    category: Rare[str] = Rare()  # the kind of task, for example "codebase_search"
    input_tokens: Rare[int] = Rare()
    output_tokens: Rare[int] = Rare()
    cost: Rare[float] = Rare()  # US dollars
    reward: Rare[float] = Rare()
    policy: Rare[str] = Rare()  # version of the policy that acted
    template: Rare[str] = Rare()  # version of the prompt template
    sampling: Rare[dict[str, Any]] = Rare()  # temperature, top_p, max_tokens, seed …
    assessment: Rare[dict[str, Any]] = Rare()  # complexity, criticality, uncertainty
    prompt_ids: Rare[list[int]] = Rare()  # token ids, for in-process models
    output_ids: Rare[list[int]] = Rare()
    logprobs: Rare[list[float]] = Rare()  # one for each of output_ids
    resource: Rare[dict[str, Any]] = Rare()  # OpenTelemetry: attributes of the process that made the span
    scope: Rare[dict[str, Any]] = Rare()  # OpenTelemetry: name and version of the instrumentation
    otel_kind: Rare[int] = Rare()  # OpenTelemetry: 1 internal, 2 server, 3 client, 4 producer, 5 consumer; None: ours
    otel: Rare[dict[str, Any]] = Rare()  # OpenTelemetry: what has no field of its own (trace state, flags)

    def __init__(
        self,
        trace_id: str,
        span_id: str,
        name: str,
        kind: str = "task",
        parent_id: str | None = None,
        start_ns: int = 0,
        end_ns: int | None = None,
        status: str = "unset",
        error: str | None = None,
        inputs: Any = None,
        outputs: Any = None,
        attributes: dict[str, Any] | None = None,
        links: list[tuple[str, str]] | None = None,
        events: list[dict[str, Any]] | None = None,
        agent: str | None = None,
        model: str | None = None,
        session: str | None = None,
        **rare: Any,
    ) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.name = name
        self.kind = kind
        self.parent_id = parent_id
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.status = status
        self.error = error
        self.inputs = inputs
        self.outputs = outputs
        self.attributes = {} if attributes is None else attributes
        self.links = [] if links is None else links
        self.events = [] if events is None else events
        self.agent = agent
        self.model = model
        self.session = session
        # Wall clock minus monotonic clock when the trace began: one time line per trace, whatever the wall clock does.
        self.clock: int | None = None
        self.rare: dict[str, Any] | None = None  # the rare fields that are not None, by name
        if rare:
            if unknown := rare.keys() - _RARE:
                raise TypeError(f"a span has no field {sorted(unknown)[0]!r}")
            self.rare = {name: value for name, value in rare.items() if value is not None}

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
        """Records that this span used the result of `other`. Returns the span."""
        self.links.append((other.trace_id, other.span_id))
        return self

    def event(self, name: str, time_ns: int, **attributes: Any) -> Span:
        """Adds a moment inside the span. Returns the span."""
        self.events.append({"name": name, "time_ns": time_ns, "attributes": attributes})
        return self

    def to_dict(self) -> dict[str, Any]:
        """A JSON object without the fields that are empty."""
        values = {name: getattr(self, name) for name in FIELDS}
        data = {name: value for name, value in values.items() if value is not None and value not in ([], {})}
        for name in ("inputs", "outputs"):  # an empty answer is an answer
            if values[name] is not None:
                data[name] = values[name]
        if self.links:
            data["links"] = [list(link) for link in self.links]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Span:
        """The inverse of `to_dict`. Raises TraceError where a field is missing, unknown or not of its type."""
        values = {name: value for name, value in data.items() if value is not None}
        unknown = set(data) - _FIELDS
        missing = {"trace_id", "span_id", "name"} - set(values)
        if unknown or missing:
            fault = f"has no {sorted(missing)[0]!r}" if missing else f"has an unknown field {sorted(unknown)[0]!r}"
            raise TraceError(f"the span {fault}", fix=f"Fields are {', '.join(FIELDS)}")
        for name, value in values.items():
            if name in _CHECKS and not _CHECKS[name][1](value):
                raise TraceError(f"the span's {name} is not {_CHECKS[name][0]}: {str(value)[:40]!r}")
        values["links"] = [(trace, span) for trace, span in values.get("links", ())]
        return cls(**values)


def only_numbered(attributes: Mapping[str, Any]) -> bool:
    """Whether attributes are no more than what every recorded span carries, so that no field need be looked for."""
    return len(attributes) == 3 and ROLLOUT in attributes and SEQUENCE in attributes


def rollout_of(span: Span) -> tuple[str, str]:
    """The rollout and the attempt that a span belongs to: those it names, or else its trace."""
    named = span.attributes
    if ROLLOUT not in named and span.resource:
        named = span.resource
    rollout, attempt = named.get(ROLLOUT), named.get(ATTEMPT)
    return str(rollout or f"ro-{span.trace_id}"), str(attempt or f"at-{span.trace_id}-1")


def begun(
    trace_id: str,
    span_id: str,
    name: str,
    kind: str,
    parent_id: str | None,
    start_ns: int,
    session: str | None,
    agent: str | None,
    clock: int,
) -> Span:
    """A span that has just started: half the cost of `Span(…)`, which takes every field."""
    span = _new(Span)
    span.trace_id = trace_id
    span.span_id = span_id
    span.name = name
    span.kind = kind
    span.parent_id = parent_id
    span.start_ns = start_ns
    span.session = session
    span.agent = agent
    span.clock = clock
    span.end_ns = span.error = span.inputs = span.outputs = span.model = span.rare = None
    span.status = "unset"
    span.attributes = {}
    span.links = []
    span.events = []
    return span


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pauses the garbage collector while many spans are created: it would traverse all of them several times, a sixth
    of what storing them costs."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_new = object.__new__
_HEX = frozenset("0123456789abcdef")


def is_id(value: Any, digits: int) -> bool:
    """Whether a value is an OpenTelemetry id of so many hexadecimal digits, not all of them 0."""
    return isinstance(value, str) and len(value) == digits and _HEX.issuperset(value) and value.strip("0") != ""


def _are_links(value: Any) -> bool:
    pairs = isinstance(value, (list, tuple)) and all(
        isinstance(link, (list, tuple)) and len(link) == 2 for link in value
    )
    return pairs and all(is_id(trace, 32) and is_id(span, 16) for trace, span in value)


def _are_events(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(event, dict) and {"name", "time_ns"} <= event.keys() for event in value
    )


# field: (what its value must be, whether a value is that). Inputs and outputs may be anything.
_CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "trace_id": ("32 hexadecimal digits", lambda value: is_id(value, 32)),
    **dict.fromkeys(("span_id", "parent_id"), ("16 hexadecimal digits", lambda value: is_id(value, 16))),
    "kind": (f"one of {', '.join(KINDS)}", lambda value: isinstance(value, str) and value in KINDS),
    "status": (f"one of {', '.join(STATUSES)}", lambda value: value in STATUSES),
    **dict.fromkeys(
        ("start_ns", "end_ns"),
        ("a whole number of nanoseconds since 1970", lambda value: type(value) is int and 0 <= value < 2**63),
    ),
    **dict.fromkeys(
        ("name", "error", "agent", "model", "session", "provider", "category", "policy", "template"),
        ("text", lambda value: isinstance(value, str)),
    ),
    **dict.fromkeys(
        ("input_tokens", "output_tokens", "otel_kind"), ("a whole number", lambda value: type(value) is int)
    ),
    **dict.fromkeys(("cost", "reward"), ("a number", lambda value: type(value) in (int, float))),
    **dict.fromkeys(
        ("attributes", "sampling", "assessment", "resource", "scope", "otel"),
        ("an object", lambda value: isinstance(value, dict)),
    ),
    **dict.fromkeys(("prompt_ids", "output_ids", "logprobs"), ("a list", lambda value: isinstance(value, list))),
    "links": ("a list of pairs of a trace and a span", _are_links),
    "events": ("a list of objects with name and time_ns", _are_events),
}
FIELDS: tuple[str, ...] = tuple(Span.__dataclass_fields__)
_FIELDS = frozenset(FIELDS)
COMMON = FIELDS[: FIELDS.index("provider")]  # the arguments of Span by position
_RARE = frozenset(FIELDS) - frozenset(COMMON)
