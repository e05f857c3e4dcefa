"""Streamed plans: tasks start while the planner is still writing.

A task waits for what it names, whether that has been written yet or not. What can only be known at the end, that a name
never came or that tasks wait for each other, is found at the end. A group cannot be told from a task until a child of
it is seen, so children that come before their group wait for it, and a group that comes first must say so
(`meta: {"group": true}`); whoever depends on a group waits until the stream has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from agent_forge.plans import Plan, PlanFault, PlanInvalid, Task
from agent_forge.runtime.options import duration_of
from agent_forge.runtime.result import TaskResult, error_text

if TYPE_CHECKING:
    from agent_forge.runtime.run import Run


class Stream:
    """Brings the tasks of an asynchronous iterator into a run, one by one."""

    def __init__(self, run: Run, source: AsyncIterator[Task], idle_s: float, known: Mapping[str, TaskResult]) -> None:
        self._run = run
        self._source = source
        self._idle_s = idle_s
        self._known = known
        self._tasks: dict[str, Task] = {}
        self._needs: dict[str, tuple[str, ...]] = {}
        self._dependents: dict[str, list[str]] = {}
        self._held: dict[str, list[Task]] = {}  # children whose group has not come
        self._stalled = False
        self._given_up = False
        run.growing = True
        run.tasks, run.needs, run.dependents = self._tasks, self._needs, self._dependents

    async def read(self) -> None:
        """Reads to the end, however that comes, and closes the plan."""
        try:
            await self._read_all()
        except asyncio.CancelledError:
            if not self._stalled:
                raise
            self._fault("malformed", f"the plan broke off: nothing came for {self._idle_s:g} s")
        except Exception as error:
            self._run.exception = self._run.exception or error
            self._fault("malformed", f"the plan broke off: {error_text(error)}")
        finally:
            await self._close_source()
        if not self._given_up:
            self._close()

    async def _read_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            alarm = loop.call_later(self._idle_s, self._stall, asyncio.current_task())
            try:
                task = await self._source.__anext__()
            except StopAsyncIteration:
                return
            finally:
                alarm.cancel()
            if self._given_up:
                return
            self._arrive(task)
            self._run.crew.cover()

    def _stall(self, reader: asyncio.Task[Any] | None) -> None:
        self._stalled = True
        if reader is not None:
            reader.cancel()
            self._run.after(self._run.options.grace_s, self._give_up, reader)

    def _give_up(self, reader: asyncio.Task[Any]) -> None:
        """The source ignored its cancellation: the plan is what has come so far."""
        if not reader.done():
            self._given_up = True
            self._fault("malformed", f"the plan broke off: nothing came for {self._idle_s:g} s")
            self._close()
            self._run.abandon_chore(reader)

    async def _close_source(self) -> None:
        close = getattr(self._source, "aclose", None)
        if close is not None:
            try:
                await close()
            except Exception as error:
                self._run.warnings.append(f"the stream could not be closed: {error_text(error)}")

    def _fault(self, code: str, message: str, task: str | None = None) -> None:
        self._run.faults.append(PlanFault(code, message, task))

    # One task comes

    def _arrive(self, task: Any) -> None:
        if not isinstance(task, Task) or not isinstance(task.id, str):
            self._fault("malformed", f"{task!r:.60} is no Task")
            return
        if task.id in self._tasks:
            self._fault("duplicate_id", f"more than one task has the id {task.id!r}", task.id)
            return
        self._tasks[task.id] = task
        if self._run.watch is not None:
            self._run.watch.planned(task)
        parent = task.parent
        if parent is None or parent in self._run.children:
            self._admit(task)
        elif parent not in self._needs:
            self._held.setdefault(parent, []).append(task)
        elif self._run.is_pending(parent):
            self._make_group(parent)
            self._admit(task)
        else:
            what = f"{task.id!r} is to be part of {parent!r}, which has been started as a task of its own"
            self._fault("malformed", f"{what} (a group that comes first needs meta group: true)", task.id)
            self._fail(task, what)

    def _admit(self, task: Task) -> None:
        run, name = self._run, task.id
        needs = self._needs[name] = tuple(dict.fromkeys([*task.needs(self._tasks), *self._inherited(task)]))
        for dep in needs:
            self._dependents.setdefault(dep, []).append(name)
        met = [dep for dep in needs if (outcome := run.outcome(dep)) is not None and run.lets_pass(outcome)]
        run.missing[name] = len(needs) - len(met)
        if task.parent is not None:
            self._join(name, task.parent)
        children = self._held.pop(name, [])
        if children or task.meta.get("group"):
            self._make_group(name)
            for child in children:
                self._admit(child)
        elif name in self._known:
            run.take_over(name, self._known[name])
            run.pass_on(name, self._known[name])
        else:
            self._rank(name)
            run.place(name)

    def _inherited(self, task: Task) -> list[str]:
        """What the groups around a task wait for holds the task back too."""
        found: list[str] = []
        name = task.parent
        while name is not None and name in self._run.children:
            found.extend(self._tasks[name].needs(self._tasks))
            name = self._tasks[name].parent
        return found

    def _make_group(self, name: str) -> None:
        for dep in self._needs[name]:  # its children wait for these in its place
            self._dependents[dep].remove(name)
        self._needs[name] = ()
        self._run.children[name] = []
        self._run.missing[name] = 1  # more children may come until the stream ends

    def _join(self, name: str, group: str) -> None:
        self._run.children[group].append(name)
        self._run.missing[group] += 1
        self._dependents.setdefault(name, []).append(group)

    def _rank(self, name: str) -> None:
        """Ranks a task of a plan that is still being written: what it waits for moves up with it."""
        run = self._run
        if not run.agenda.ordered:
            return
        given, ranks = run.options.durations or {}, run.ranks
        ranks[name] = duration_of(self._tasks[name], given) or 1.0
        behind = [name]
        steps = 4 * len(self._tasks)  # a stream may hold a cycle, which is found at its end; ranks must not chase it
        while behind and steps:
            each = behind.pop()
            steps -= 1
            for dep in self._needs[each]:
                if dep in self._tasks:
                    rank = ranks[each] + (duration_of(self._tasks[dep], given) or 1.0)
                    if rank > ranks.get(dep, 0.0):
                        ranks[dep] = rank
                        behind.append(dep)

    # No more tasks come

    def _close(self) -> None:
        run = self._run
        for held in self._held.values():
            for task in held:
                self._fail(task, f"there is no task {task.parent!r}, which it names as its parent")
        try:
            run.plan = Plan(self._tasks.values())
        except PlanInvalid as invalid:
            found = {fault.message for fault in run.faults}
            run.faults.extend(fault for fault in invalid.errors if fault.message not in found)
            self._fail_faulty(invalid.errors)
        if run.watch is not None and run.plan is not None:
            run.watch.replanned(run.plan, [])
        run.growing = False
        for name in run.children:
            run.missing[name] -= 1
            run.place(name)
        run.crew.cover()

    def _fail(self, task: Task, why: str) -> None:
        """A task that cannot be run is known to the run all the same, so that it ends in a typed state."""
        self._needs[task.id] = ()
        self._run.missing[task.id] = 0
        self._run.settle(self._run.job(task.id), "failed", why)

    def _fail_faulty(self, faults: list[PlanFault]) -> None:
        """Ends the tasks that can never run; those behind them are skipped."""
        run = self._run
        for fault in faults:
            if fault.task in self._needs and run.is_pending(fault.task):
                run.settle(run.job(fault.task), "failed", fault.message)
        for name, needs in self._needs.items():
            if run.is_pending(name) and any(dep not in self._tasks for dep in needs):
                run.settle(run.job(name), "failed", "it waits for a task that never came")
