"""Streamed plans: tasks start while the planner is still writing.

A task waits for what it names, whether that has been written yet or not. What only the end can tell, that a name never
came or that tasks wait for each other, is reported at the end. A group cannot be told from a task until one of its
children is seen, so children that come before their group wait for it, and a group that comes first must say so
(`meta: {"group": true}`); whoever depends on a group waits until the stream has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from agent_forge.plans import Plan, PlanFault, PlanInvalid, Task
from agent_forge.runtime.options import duration_of
from agent_forge.runtime.result import TaskResult, error_text
from agent_forge.runtime.run import Run


class TaskStream:
    """Brings the tasks of an asynchronous iterator into a run, one by one."""

    def __init__(self, run: Run, source: AsyncIterator[Task], idle_s: float, known: Mapping[str, TaskResult]) -> None:
        self._run = run
        self._board = run.board
        self._source = source
        self._idle_s = idle_s
        self._known = known
        self._tasks: dict[str, Task] = {}
        self._needs: dict[str, tuple[str, ...]] = {}
        self._dependents: dict[str, list[str]] = {}
        self._early: dict[str, list[Task]] = {}  # children whose group has not come
        self._stalled = False
        self._given_up = False
        run.board.growing = True
        run.board.tasks, run.board.needs, run.board.dependents = self._tasks, self._needs, self._dependents

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
            self._run.life.after(self._run.settings.grace_s, self._give_up, reader)

    def _give_up(self, reader: asyncio.Task[Any]) -> None:
        """The source ignored its cancellation: the plan is what has come so far."""
        if not reader.done():
            self._given_up = True
            self._fault("malformed", f"the plan broke off: nothing came for {self._idle_s:g} s")
            self._close()
            self._run.life.abandon_chore(reader)

    async def _close_source(self) -> None:
        close = getattr(self._source, "aclose", None)
        if close is not None:
            try:
                await close()
            except Exception as error:
                self._run.life.warnings.append(f"the stream could not be closed: {error_text(error)}")

    def _fault(self, code: str, message: str, task: str | None = None) -> None:
        self._run.faults.append(PlanFault(code, message, task))

    # One task comes

    def _arrive(self, task: Any) -> None:
        if not isinstance(task, Task) or not isinstance(task.id, str):
            self._fault("malformed", f"{task!r:.60} is not a Task")
            return
        if task.id in self._tasks:
            self._fault("duplicate_id", f"more than one task has the id {task.id!r}", task.id)
            return
        self._tasks[task.id] = task
        if self._run.watch is not None:
            self._run.watch.planned(task)
        parent = task.parent
        if parent is None or parent in self._board.children:
            self._admit(task)
        elif parent not in self._needs:
            self._early.setdefault(parent, []).append(task)
        elif self._board.is_pending(parent):
            self._make_group(parent)
            self._admit(task)
        else:
            what = f"{task.id!r} names {parent!r} as its parent, which has been started as a task of its own"
            self._fault("malformed", f"{what} (a group that comes first needs meta group: true)", task.id)
            self._fail(task, what)

    def _admit(self, task: Task) -> None:
        run, board, name = self._run, self._board, task.id
        needs = list(task.needs(self._tasks))
        if (owner := run.flow.stands_in_for(name)) is not None:
            needs.append(owner)
        if task.control is not None or task.for_each is not None:
            run.flow.register(self._tasks, [name])
        group = task.parent
        while group is not None and group in board.children:  # what the groups around it wait for holds it back too
            needs += self._tasks[group].needs(self._tasks)
            group = self._tasks[group].parent
        self._needs[name] = tuple(dict.fromkeys(needs))
        for dep in self._needs[name]:
            self._dependents.setdefault(dep, []).append(name)
        outcomes = [board.outcome(dep) for dep in self._needs[name]]
        board.missing[name] = sum(outcome is None or not run.lets_pass(outcome) for outcome in outcomes)
        if task.parent is not None:
            board.children[task.parent].append(name)
            board.missing[task.parent] += 1
            self._dependents.setdefault(name, []).append(task.parent)
        children = self._early.pop(name, [])
        if children or task.meta.get("group"):
            self._make_group(name)
            for child in children:
                self._admit(child)
        elif name in self._known:
            run.take_over(name, self._known[name])
            run.pass_on(name, self._known[name])
        else:
            if run.agenda.ordered:
                self._rank(name)
            run.place(name)
        run.flow.came(name)

    def _make_group(self, name: str) -> None:
        for dep in self._needs[name]:  # its children wait for these in its place
            self._dependents[dep].remove(name)
        self._needs[name] = ()
        self._board.children[name] = []
        self._board.special.add(name)
        self._board.missing[name] = 1  # more children may come until the stream ends

    def _rank(self, name: str) -> None:
        """Ranks a task of a plan that is still being written: what it waits for moves up with it."""
        durations, ranks = self._run.settings.durations or {}, self._run.preparation.ranks
        ranks[name] = duration_of(self._tasks[name], durations) or 1.0
        behind = [name]
        steps = 4 * len(self._tasks)  # a stream may hold a cycle, which is reported at its end; ranks must not chase it
        while behind and steps:
            each = behind.pop()
            steps -= 1
            for dep in self._needs[each]:
                if dep in self._tasks:
                    rank = ranks[each] + (duration_of(self._tasks[dep], durations) or 1.0)
                    if rank > ranks.get(dep, 0.0):
                        ranks[dep] = rank
                        behind.append(dep)

    # No more tasks come

    def _close(self) -> None:
        run, board = self._run, self._board
        for children in self._early.values():
            for task in children:
                self._fail(task, f"there is no task {task.parent!r}, which it names as its parent")
        try:
            # The tasks in a `do` join those of the stream when they start.
            board.plan = Plan(task for name, task in self._tasks.items() if name not in board.parts)
        except PlanInvalid as invalid:
            reported = {fault.message for fault in run.faults}
            run.faults.extend(fault for fault in invalid.errors if fault.message not in reported)
            self._fail_faulty(invalid.errors)
        if run.watch is not None and board.plan is not None:
            run.watch.replanned(board.plan, [])
        board.growing = False
        run.whole.set()
        run.flow.came()
        for name in board.children:
            board.missing[name] -= 1
            run.place(name)
        run.crew.cover()

    def _fail(self, task: Task, why: str) -> None:
        """Ends a task that cannot be run, so that it too has a typed state."""
        self._needs[task.id] = ()
        self._board.missing[task.id] = 0
        self._run.settle(self._run.preparation.job(task.id), "failed", why)

    def _fail_faulty(self, faults: list[PlanFault]) -> None:
        """Ends the tasks that can never run; those behind them are skipped."""
        run, board = self._run, self._board
        for fault in faults:
            if fault.task in self._needs and board.is_pending(fault.task):
                run.settle(run.preparation.job(fault.task), "failed", fault.message)
        for name, needs in self._needs.items():
            if board.is_pending(name) and any(dep not in self._tasks for dep in needs):
                run.settle(run.preparation.job(name), "failed", "it waits for a task that never came")
