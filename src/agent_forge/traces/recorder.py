"""The recorder: spans that get their parent from context variables and cost microseconds."""

from __future__ import annotations

import contextvars
import functools
import itertools
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from agent_forge.errors import UsageError
from agent_forge.settings import variable
from agent_forge.traces.conventions import REWARD_NAME, REWARD_VALUE
from agent_forge.traces.span import ATTEMPT, ROLLOUT, SEQUENCE, Span, begun
from agent_forge.traces.store import Store
from agent_forge.traces.writer import Mask, Sink, Writer, snapshot

P = ParamSpec("P")
R = TypeVar("R")

_current: ContextVar[Span | None] = ContextVar("agent_forge_span", default=None)
_now = time.perf_counter_ns
_order = itertools.count(1)  # of all spans that this process begins
_NOTHING: dict[str, Any] = {}
_ids: list[str] = []  # random ids in stock: one system call yields many

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ids.clear)


def new_span_id() -> str:
    """16 random hexadecimal digits. They do not depend on the seed of `random`."""
    while True:
        try:
            return _ids.pop()
        except IndexError:  # atomic, so that threads need no lock
            digits = os.urandom(2048).hex()
            _ids.extend([digits[at : at + 16] for at in range(0, 4096, 16)])


def new_trace_id() -> str:
    """32 random hexadecimal digits."""
    return new_span_id() + new_span_id()


def current_span() -> Span | None:
    """The span that surrounds this line, in this task and thread."""
    return _current.get()


@contextmanager
def use_span(span: Span | None) -> Iterator[None]:
    """Makes `span` the parent of what is recorded in the block, without ending it."""
    token = _current.set(span)
    try:
        yield
    finally:
        try:
            _current.reset(token)
        except ValueError:
            _forget(span)


def carry(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, bound to the current span: pass it to a thread or an executor.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor() as pool:
    ...     pool.submit(carry(current_span)).result() is current_span()
    True
    """
    context = contextvars.copy_context()

    @functools.wraps(function)
    def bound(*args: P.args, **kwargs: P.kwargs) -> R:
        return context.copy().run(function, *args, **kwargs)  # a copy per call: a context cannot be entered twice

    return bound


class Recorder:
    """Records spans into a store from a background thread.

    >>> recorder = Recorder(Store.open(":memory:"))
    >>> with recorder.span("research", kind="agent", agent="Explore") as outer:
    ...     with recorder.span("search", kind="tool", inputs={"query": "otters"}) as span:
    ...         span.outputs = {"hits": 3}
    >>> recorder.flush()
    >>> [(span.name, span.parent_id == outer.span_id) for span in recorder.store.trace(outer.trace_id)]
    [('research', False), ('search', True)]
    >>> recorder.close()
    """

    def __init__(
        self,
        store: Store | Sink | str | os.PathLike[str] | None = None,
        *,
        session: str | None = None,
        agent: str | None = None,
        mask: Mask | None = None,
        sample: float = 1.0,
        join: Any = None,
        batch: int = 500,
        delay_s: float = 0.05,
        memory_mb: float = 64,
        spill_mb: float = 1024,
    ) -> None:
        """`store` may be anything that `Store.open` takes; None is the home folder's store.

        `session` and `agent` are the defaults of spans without a parent. `mask` changes a span before it is written.
        `sample` is the share of traces to record, chosen by trace id, so that all processes choose the same ones.
        `join` is an OpenTelemetry tracer provider (True: the global one) whose traces our spans become part of. The
        rest bounds what waits: see docs/traces.md.
        """
        if not 0.0 <= sample <= 1.0:
            raise UsageError(f"sample is {sample}", fix="It must be between 0 and 1")
        opened = Store.open(store) if store is None or isinstance(store, (str, os.PathLike)) else store
        self.store: Any = opened
        self.session = session
        self.agent = agent
        self._join: Any = None
        if join is not None and join is not False:
            from agent_forge.traces.otel import Join

            self._join = Join(join)
        self._sampled_below = None if sample == 1.0 else round(sample * 2**64)
        self._writer = Writer(
            opened,
            mask=mask,
            batch=batch,
            delay_s=delay_s,
            memory=int(memory_mb * 2**20),
            spill=int(spill_mb * 2**20),
        )
        self._put = self._writer.put

    @classmethod
    def from_settings(
        cls,
        store: Store | Sink | str | os.PathLike[str] | None = None,
        *,
        mask: str | None = None,
        sample: float | None = None,
        **options: Any,
    ) -> Recorder:
        """A recorder that masks and samples as these say, else the settings `mask` ("secrets", "pii" or "none"; secrets
        by default) and `sample`. Raises UsageError."""
        from agent_forge.traces.masking import mask_for

        if sample is None:
            text = os.environ.get(variable("sample")) or "1"
            try:
                sample = float(text)
            except ValueError as error:
                raise UsageError(f"{variable('sample')} is {text!r}", fix="It must be between 0 and 1") from error
        return cls(store, mask=mask_for(mask), sample=sample, **options)

    def span(
        self,
        name: str,
        kind: str = "task",
        *,
        inputs: Any = None,
        parent: Span | None = None,
        links: Sequence[Span | tuple[str, str]] = (),
        attributes: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Scope:
        """A context manager that yields the span, makes it current, and ends it (with an error if the block raised).

        Inputs are copied here, the rest at the end. Fields are those of Span; any other name becomes an attribute.
        """
        span = self.begin(name, kind, parent if parent is not None else _current.get(), inputs)
        if attributes:
            span.attributes |= attributes
        if links or fields:
            _set_fields(span, links, fields)
        return Scope(self, span) if self._join is None else JoinedScope(self, span)

    def start(
        self,
        name: str,
        kind: str = "task",
        *,
        inputs: Any = None,
        parent: Span | None = None,
        links: Sequence[Span | tuple[str, str]] = (),
        attributes: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Span:
        """Starts a span without making it current; finish it with `end`. The parent defaults to the current span."""
        span = self.begin(name, kind, parent if parent is not None else _current.get(), inputs)
        if attributes:
            span.attributes |= attributes
        _set_fields(span, links, fields)
        return span

    def begin(self, name: str, kind: str, above: Span | None, inputs: Any = None) -> Span:
        """Starts a span under `above`: the bare part of `start` and `span`, for callers that count microseconds."""
        if name.__class__ is not str:
            name = str(name)
        try:
            own = _ids.pop()
        except IndexError:
            own = new_span_id()
        if above is None:
            clock = time.time_ns() - _now()
            span = begun(new_trace_id(), own, name, kind, None, clock + _now(), self.session, self.agent, clock)
        else:
            clock = above.clock if above.clock is not None else time.time_ns() - _now()
            span = begun(
                above.trace_id, own, name, kind, above.span_id, clock + _now(), above.session, above.agent, clock
            )
        if inputs is not None:
            span.inputs = snapshot(inputs)
        if self._join is not None:
            self._join.begin(span, above)
        trace, known = span.trace_id, _NOTHING if above is None else above.attributes
        span.attributes = {
            ROLLOUT: known.get(ROLLOUT) or "ro-" + trace,
            ATTEMPT: known.get(ATTEMPT) or "at-" + trace + "-1",
            SEQUENCE: next(_order),
        }
        return span

    def reward(self, value: float, of: Span | None = None, *, name: str = "reward", **fields: Any) -> Span:
        """Records a judgement of a span (by default the current one) as a span of its own, linked to it.

        This is how to record a reward that comes later: a finished span never changes.
        """
        judged = of if of is not None else _current.get()
        if judged is None:
            raise UsageError("there is no span to reward", fix="Pass one, as in recorder.reward(1.0, span)")
        span = self.start(name, "reward", parent=judged, links=[judged], reward=value, category=judged.category)
        span.attributes |= {REWARD_NAME: name, REWARD_VALUE: value}
        span.set(**fields)
        self.end(span)
        return span

    def end(self, span: Span, *, outputs: Any = None, error: BaseException | str | None = None, **fields: Any) -> None:
        """Finishes a span and hands it to the writer. Later changes to it are not recorded."""
        if fields:
            span.set(**fields)
        if outputs is not None:
            span.outputs = outputs
        if error is not None:
            _fail(span, error)
        self.finish(span)

    def enter(self, span: Span) -> None:
        """Makes a span current for the rest of a context that exists for it alone."""
        if self._join is not None:
            self._join.enter(span)
        _current.set(span)

    def finish(self, span: Span) -> None:
        """Finishes a span as it stands: the bare part of `end`."""
        clock = span.clock
        span.end_ns = clock + _now() if clock is not None else time.time_ns()
        if span.outputs is not None:
            span.outputs = snapshot(span.outputs)
        if span.status == "unset":
            span.status = "ok"
        if self._join is not None:
            self._join.finish(span)
        if self._sampled_below is None or int(span.trace_id[16:], 16) < self._sampled_below:
            self._put(span)

    def flush(self) -> None:
        """Returns when every span that has ended is on disk. Raises StoreError if the store refuses them."""
        self._writer.flush()

    def close(self) -> None:
        """Flushes and ends the background thread. This happens by itself when a program exits."""
        self._writer.close()

    @property
    def pending(self) -> int:
        """Number of spans that have ended but are not stored yet: what a kill -9 would lose now."""
        return self._writer.pending

    @property
    def dropped(self) -> int:
        """Number of spans lost because memory and the spill file were full, or because they could not be stored."""
        return self._writer.dropped

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Scope:
    """The block of a `with recorder.span(...)`."""

    __slots__ = ("_recorder", "_token", "span")

    def __init__(self, recorder: Recorder, span: Span) -> None:
        self._recorder = recorder
        self.span = span

    def __enter__(self) -> Span:
        self._token = _current.set(self.span)
        return self.span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            _current.reset(self._token)
        except ValueError:
            _forget(self.span)
        if error is None:
            self._recorder.finish(self.span)
        else:
            self._recorder.end(self.span, error=error)


class JoinedScope(Scope):
    """The block of a recorder that has joined OpenTelemetry: their span is current in it too."""

    __slots__ = ("_joined",)

    def __enter__(self) -> Span:
        self._joined = self._recorder._join.enter(self.span)
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recorder._join.leave(self._joined)
        super().__exit__(kind, error, trace)


def _forget(span: Span | None) -> None:
    """Cleans up after a block that ends in another context than it began in (a generator closed elsewhere)."""
    if span is not None and _current.get() is span:
        _current.set(None)


def _set_fields(span: Span, links: Sequence[Span | tuple[str, str]], fields: dict[str, Any]) -> None:
    if links:
        span.links = [link if isinstance(link, tuple) else (link.trace_id, link.span_id) for link in links]
    if fields:
        span.set(**fields)


def _fail(span: Span, error: BaseException | str) -> None:
    span.status = "error"
    if isinstance(error, str):
        span.error = error
        return
    kind = type(error).__name__
    span.error = f"{kind}: {error}" if str(error) else kind
    stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    details = {"exception.type": kind, "exception.message": str(error), "exception.stacktrace": stack}
    now = time.time_ns() if span.clock is None else span.clock + _now()
    span.event("exception", now, **details)
