"""The background writer: finished spans wait here as bytes until a thread has stored them.

Why bytes: they cannot change after the span has ended, their number bounds memory, they spill to disk unchanged, and
the garbage collector does not traverse them. `marshal` writes them, because it is Python's fastest copy of JSON-like
values. They never leave this process, except into an anonymous file that only this process can open; nothing is ever
unmarshalled that this process did not marshal.
"""

from __future__ import annotations

import atexit
import logging
import marshal
import os
import struct
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, Protocol

from agent_forge.errors import AgentForgeError, StoreError
from agent_forge.traces.span import Span
from agent_forge.traces.values import plain

log = logging.getLogger("agent_forge.traces")

_dumps = marshal.dumps
_FORMAT = 2  # the last version that does not track references to every object: a fifth faster
_RETRY_S = 1.0  # pause after the store refused a batch

_SCALARS = frozenset({str, int, float, bool, type(None)})
_PLAIN = _SCALARS | {dict, list}

Mask = Callable[[Span], Span]


class Sink(Protocol):
    """Where spans go: a Store, or anything else that can add them."""

    def add(self, spans: Iterable[Span]) -> int: ...


def packed(span: Span) -> bytes:
    """The span as bytes: the common fields, and the rare ones if there are any."""
    attributes, rare = span.attributes, span.rare
    if attributes and not _SCALARS.issuperset(map(type, attributes.values())):
        attributes = snapshot(attributes)
    if rare and not _PLAIN.issuperset(map(type, rare.values())):
        rare = plain(rare)
    values = (
        span.trace_id, span.span_id, span.name, span.kind, span.parent_id, span.start_ns, span.end_ns, span.status,
        span.error, span.inputs, span.outputs, attributes, span.links, span.events, span.agent, span.model,
        span.session, rare,
    )  # fmt: skip
    try:
        return _dumps(values, _FORMAT)
    except ValueError:  # something that is not JSON-like
        return _dumps(tuple(plain(value) for value in values), _FORMAT)


def unpacked(data: bytes) -> Span:
    """The span of `packed`."""
    values = marshal.loads(data)  # noqa: S302 (our own bytes; see the top of this file)
    span = Span(*values[:-1])
    span.rare = values[-1]
    return span


def snapshot(value: Any) -> Any:
    """A copy that later changes to `value` (a growing list of messages) do not reach."""
    if type(value) in _SCALARS:
        return value
    try:
        copy = marshal.loads(_dumps(value, _FORMAT))  # noqa: S302 (a round trip in memory)
        # `marshal` turns arrays and NumPy's numbers into bytes, which differ from the value.
        if copy == value:
            return copy
    except (ValueError, TypeError, RecursionError):
        pass
    return plain(value)


class Writer:
    """Accepts finished spans without waiting, and stores them in batches from a thread of its own."""

    def __init__(self, sink: Sink, *, mask: Mask | None, batch: int, delay_s: float, memory: int, spill: int) -> None:
        self.sink = sink
        self.mask = mask
        self.batch = batch
        self.delay_s = delay_s
        self.memory = memory
        self.spill_limit = spill
        self.dropped = 0  # spans for which memory and disk were full, or that cannot be stored
        self.written = 0
        self._start_afresh()
        _WRITERS.add(self)

    def _start_afresh(self) -> None:
        self._queue: deque[bytes] = deque()
        self._held: list[Span] = []  # a batch the store refused
        self._bytes = 0
        self._awake = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._full = threading.Event()
        self._draining = threading.RLock()
        self._spill = Spill(self.spill_limit, getattr(self.sink, "where", ""))
        self.error: AgentForgeError | None = None

    def put(self, span: Span) -> None:
        """Accepts a span. Never waits for the store."""
        data = packed(span)
        if self._bytes > self.memory:
            self._overflow(data)
            return
        self._queue.append(data)
        self._bytes += len(data)  # a bound, not exact: updates lost between threads are corrected when it is empty
        if not self._awake:
            self._awake = True
            self._rouse()
        elif len(self._queue) == self.batch:
            self._full.set()

    def _rouse(self) -> None:
        if self._thread is None and not self._closed:
            with self._draining:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="agent-forge-traces", daemon=True)
                    self._thread.start()
        self._wake.set()

    def _overflow(self, data: bytes) -> None:
        if self.mask is not None:  # nothing unmasked reaches a disk, not even the spill file
            data = packed(self.mask(unpacked(data)))
        if not self._spill.put(data):
            self.dropped += 1
            if self.dropped == 1:
                log.warning("spans are being dropped: %d bytes wait for the store", self._bytes + self._spill.waiting)

    @property
    def pending(self) -> int:
        """The number of spans that are not stored yet."""
        return len(self._queue) + len(self._held) + self._spill.spans

    def flush(self) -> None:
        """Returns when every span accepted before the call is stored. Raises StoreError if that fails."""
        with self._draining:
            self.error = None
            self._drain()
            if self.error is not None:
                raise self.error

    def close(self) -> None:
        """Flushes, and ends the thread. Raises StoreError as `flush` does."""
        self._closed = True
        self._wake.set()
        self._full.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=60)
        self._thread = None
        try:
            self.flush()
        finally:
            self._closed = False  # a later span starts a new thread
            self._spill.close()

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait()
            self._wake.clear()
            self._full.wait(self.delay_s)
            self._full.clear()
            with self._draining:
                self.error = None
                self._drain()
                failed = self.error is not None
                self._awake = failed or bool(self._queue)
            if self._awake:
                self._wake.set()
            elif self._queue:  # one arrived between the last check and `_awake`
                self._awake = True
                self._wake.set()
            if failed and not self._closed:
                time.sleep(_RETRY_S)

    def _drain(self) -> None:
        """Stores what waits, batch by batch, until nothing is left or the store refuses."""
        while self.error is None:
            masked = bool(self._held)
            batch = self._held or self._take()
            if not batch:
                masked, batch = True, [unpacked(data) for data in self._spill.take(self.batch)]
            if not batch:
                self._bytes = 0
                return
            self._held = []
            self._store(batch if masked or self.mask is None else self._masked(batch))

    def _take(self) -> list[Span]:
        spans: list[Span] = []
        queue = self._queue
        while queue and len(spans) < self.batch:
            data = queue.popleft()
            self._bytes -= len(data)
            spans.append(unpacked(data))
        return spans

    def _masked(self, batch: list[Span]) -> list[Span]:
        assert self.mask is not None
        spans = []
        for span in batch:
            try:
                spans.append(self.mask(span))
            except Exception:
                self._lose("a span could not be masked and was not written")
        return spans

    def _store(self, batch: list[Span]) -> None:
        try:
            self.sink.add(batch)
            self.written += len(batch)
        except StoreError as error:
            self._held, self.error = batch, error
        except Exception:
            if len(batch) == 1:
                self._lose("a span cannot be stored")
            else:  # one bad span must not take the others with it
                for span in batch:
                    self._store([span])

    def _lose(self, message: str) -> None:
        self.dropped += 1
        log.warning("%s", message, exc_info=True)


class Spill:
    """Spans for which memory had no room, in an anonymous file beside the store."""

    def __init__(self, limit: int, store: str) -> None:
        self.limit = limit
        self.spans = 0
        self._folder = Path(store).parent if Path(store).is_file() else None
        self._file: IO[bytes] | None = None
        self._lock = threading.RLock()
        self._read = self._end = 0

    @property
    def waiting(self) -> int:
        """Bytes that are still to be stored."""
        return self._end - self._read

    def put(self, data: bytes) -> bool:
        """Writes `data`; returns False if the file has reached its limit or the disk is full."""
        with self._lock:
            if self._end + len(data) > self.limit:
                return False
            try:
                if self._file is None:
                    self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 (closed in `close`)
                self._file.seek(self._end)
                written = self._file.write(struct.pack("<I", len(data)) + data)
            except OSError:
                return False
            if written != 4 + len(data):
                return False
            self._end += written
            self.spans += 1
            return True

    def take(self, count: int) -> list[bytes]:
        """Removes and returns the oldest `count` entries; the file is closed with the last one."""
        with self._lock:
            entries: list[bytes] = []
            while self._file is not None and self.spans and len(entries) < count:
                self._file.seek(self._read)
                (size,) = struct.unpack("<I", self._file.read(4))
                entries.append(self._file.read(size))
                self._read += 4 + size
                self.spans -= 1
            if not self.spans:
                self.close()
            return entries

    def close(self) -> None:
        """Closes the file, which deletes it."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file, self._read, self._end, self.spans = None, 0, 0, 0


_WRITERS: weakref.WeakSet[Writer] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for writer in list(_WRITERS):
        try:
            writer.close()
        except AgentForgeError as error:
            log.error("%d spans were not stored: %s", writer.pending, error)


_halted: list[Writer] = []


def _before_fork() -> None:
    """Waits for batches that are being stored: a lock held during a fork would stay held in the child for ever."""
    _halted[:] = list(_WRITERS)
    for writer in _halted:
        writer._draining.acquire()


def _in_parent() -> None:
    for writer in _halted:
        writer._draining.release()
    _halted.clear()


def _in_child() -> None:
    """A forked child leaves its parent's spans to the parent, and stores its own when it exits."""
    _halted.clear()
    for writer in list(_WRITERS):
        writer._start_afresh()
    # Children of `multiprocessing` exit with os._exit, which runs no atexit functions, only its own finalizers.
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.register_after_fork(_WRITERS, lambda _: util.Finalize(None, _close_all, exitpriority=10))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
