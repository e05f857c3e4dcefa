"""What may start next: critical path first inside a run, fair between runs, never above a limit."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from itertools import count

from agent_forge.runtime.job import READY, Job
from agent_forge.runtime.limits import ANY, Gate, Limits

_TICKET = count()  # keeps heap entries of equal rank in the order they came


class Queue:
    """The ready jobs of one run. `served` is the slot time it has been given so far, which keeps the runs fair.

    `in_turn` makes the job of a queued name when its turn comes; None if it cannot be called then.
    """

    __slots__ = ("_heap", "_in_turn", "held", "line", "listed", "ordered", "served", "usual_s")

    def __init__(self, in_turn: Callable[[str], Job | None], ordered: bool) -> None:
        self._in_turn = in_turn
        self.ordered = ordered
        self.served = 0.0
        self.usual_s = 1e-3  # what its jobs usually take
        self.listed = False
        self.held: dict[Gate, list[tuple[float, int, Job]]] = {}  # ready, but its tool is at its limit
        self._heap: list[tuple[float, int, Job]] = []
        self.line: deque[Job | str] = deque()  # first come, first served; a name is a job that has not been made yet

    def put(self, job: Job) -> None:
        if self.ordered:
            heappush(self._heap, (-job.rank, next(_TICKET), job))
        else:
            self.line.append(job)

    def pop(self) -> Job | None:
        """The next job, whatever has become of it; None when there is none."""
        if self.ordered:
            return heappop(self._heap)[2] if self._heap else None
        line = self.line
        while line:
            entry = line.popleft()
            job = self._in_turn(entry) if isinstance(entry, str) else entry
            if job is not None:
                return job
        return None

    def clear(self) -> None:
        self._heap.clear()
        self.line.clear()
        self.held.clear()

    def __bool__(self) -> bool:
        return bool(self._heap or self.line)


class Agenda:
    """The slots of one or many runs. Without any limit it is a plain queue; with one, jobs are ordered by rank."""

    def __init__(self, limits: Limits, *, shared: bool, first_come: bool, budgeted: bool) -> None:
        self.limits = limits
        self.shared = shared
        self.budgeted = budgeted  # each job must be admitted by the budget of its run
        self.free: float = math.inf if limits.concurrency is None else limits.concurrency
        # Gates of tools that only `"*"` covers are made when the tool is first seen.
        others = limits.tools.get(ANY)
        self._gates = {
            name: Gate(name, rules) for name, rules in limits.tools.items() if name != ANY and rules.is_limit
        }
        self._others = others if others is not None and others.is_limit else None
        self.gated = bool(self._gates) or self._others is not None
        self.ordered = (limits.concurrency is not None or self.gated) and not first_come
        self.unlimited = limits.concurrency is None and not self.gated and not shared  # no slot to take or give back
        self._turns: list[tuple[float, int, Queue]] = []  # queues with ready jobs, the least served first
        self._waiting: dict[Gate, deque[Queue]] = {}  # queues with jobs held at a gate, in turn
        self._charges: dict[Job, tuple[Queue, float]] = {}  # what the run of a running job was charged in advance
        self._timers: dict[Gate, asyncio.TimerHandle] = {}
        self.rouse: Callable[[], None] = lambda: None  # called when a timer makes a job startable

    def gate(self, tool: str | None) -> Gate | None:
        """The gate that a tool's jobs pass, if it has one."""
        if not self.gated or tool is None:
            return None
        gate = self._gates.get(tool)
        if gate is None and self._others is not None and tool not in self.limits.tools:
            gate = self._gates[tool] = Gate(tool, self._others)
        return gate

    def put(self, queue: Queue, job: Job) -> None:
        """Queues a job whose inputs are there."""
        job.state = READY
        queue.put(job)
        if not queue.listed:
            self._list(queue)

    def put_name(self, queue: Queue, name: str) -> None:
        """Queues a task whose inputs are there, as its name alone. Not where jobs are ordered."""
        queue.line.append(name)
        if not queue.listed:
            self._list(queue)

    def has_work(self) -> bool:
        """Whether a worker that asks now may get a job."""
        return bool(self._turns) and self.free > 0

    def take(self) -> Job | None:
        """The job to start now, its slots taken; None when nothing can start."""
        turns = self._turns
        while turns and self.free > 0:
            served, _, queue = turns[0]
            if served < queue.served:  # it was given work since it was listed
                heapreplace(turns, (queue.served, next(_TICKET), queue))
                continue
            job = queue.pop()
            if job is None:
                heappop(turns)
                queue.listed = False
            elif job.state == READY and job.gate is not None and job.gate.allowance(_now()) < 1:
                self._hold(job.gate, queue, job)
            elif job.state == READY and (not self.budgeted or job.run.admit(job)):
                if not self.unlimited:
                    self.free -= 1
                    if job.gate is not None:
                        job.gate.enter(_now())
                    if self.shared:  # charged with what its jobs usually take, corrected in `release`
                        self._charges[job] = queue, queue.usual_s
                        queue.served += queue.usual_s
                return job
            elif job.gate is not None:  # it will not start after all: the room made for it goes to the next
                self._let_in(job.gate)
        return None

    def release(self, job: Job) -> None:
        """Gives back what `take` took."""
        self.free += 1
        if self.shared:
            queue, charge = self._charges.pop(job)
            took = _now() - job.began
            queue.served += took - charge
            queue.usual_s += 0.2 * (took - queue.usual_s)
        if job.gate is not None:
            job.gate.leave()
            self._let_in(job.gate)

    def drop(self, queue: Queue) -> None:
        """Forgets every job of a run that stops."""
        queue.clear()
        for waiting in self._waiting.values():
            if queue in waiting:
                waiting.remove(queue)

    def close(self) -> None:
        """Cancels the timers of rate limits."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _list(self, queue: Queue) -> None:
        queue.listed = True
        if self._turns:  # one that comes late starts level with the least served, not with a claim on the past
            queue.served = max(queue.served, self._turns[0][0])
        heappush(self._turns, (queue.served, next(_TICKET), queue))

    def _hold(self, gate: Gate, queue: Queue, job: Job) -> None:
        heappush(queue.held.setdefault(gate, []), (-job.rank if self.ordered else 0.0, next(_TICKET), job))
        waiting = self._waiting.setdefault(gate, deque())
        if queue not in waiting:
            waiting.append(queue)
        self._watch(gate)

    def _watch(self, gate: Gate) -> None:
        """Sets a timer for when the rate of a gate lets the next one in."""
        opens_at = gate.opens_at()
        if opens_at is not None and gate not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[gate] = loop.call_at(opens_at, self._on_timer, gate)

    def _on_timer(self, gate: Gate) -> None:
        self._timers.pop(gate, None)
        self._let_in(gate)
        self.rouse()

    def _let_in(self, gate: Gate) -> None:
        """Moves as many held jobs back as the gate has room for, one run after the other."""
        waiting = self._waiting.get(gate)
        if not waiting:
            return
        room = gate.allowance(_now())
        while waiting and room >= 1:
            queue = waiting.popleft()
            held = queue.held.get(gate)
            if not held:
                continue
            job = heappop(held)[2]
            if held:
                waiting.append(queue)
            if job.state == READY:
                self.put(queue, job)
                room -= 1
        if waiting:
            self._watch(gate)


def _now() -> float:
    return asyncio.get_running_loop().time()
