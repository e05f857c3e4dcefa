"""`execute`: a plan in, a typed result out. It never hangs: whatever happens, every task ends in a named state."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from agent_forge.errors import UsageError
from agent_forge.plans import Plan, Task
from agent_forge.runtime.board import Composites
from agent_forge.runtime.budget import Budget
from agent_forge.runtime.crew import Crew
from agent_forge.runtime.limits import Limits, Retry
from agent_forge.runtime.options import Approve, Handler, Mend, OnEvent, RunSettings, Update
from agent_forge.runtime.result import ENDED, FINE, RunResult, TaskResult, TaskResults
from agent_forge.runtime.run import Run
from agent_forge.runtime.stream import TaskStream

if TYPE_CHECKING:
    from agent_forge.runtime.journal import Journal, RunLog
    from agent_forge.runtime.stored import StoredRun
    from agent_forge.runtime.workers import Workers
    from agent_forge.traces import Recorder

AnyPlan = Plan | Iterable[Task] | AsyncIterator[Task]


async def execute(
    plan: AnyPlan,
    handler: Handler,
    *,
    concurrency: int | None = None,
    limits: Limits | None = None,
    retry: Retry | None = None,
    timeout_s: float | None = None,
    on_failure: str = "skip",
    budget: Budget | None = None,
    journal: Journal | None = None,
    run_id: str | None = None,
    recorder: Recorder | None = None,
    approve: Approve | None = None,
    on_event: OnEvent | None = None,
    update: Update | None = None,
    mend: Mend | None = None,
    known: Mapping[str, Any] | None = None,
    durations: Mapping[str, float] | None = None,
    workers: Workers | None = None,
    **more: Any,
) -> RunResult:
    """Carries out a plan: each task starts the moment its last input arrives.

    `plan` is a Plan, tasks, or an asynchronous iterator of tasks, which start while it is still being written.
    `handler(task, inputs)` does the work of one task; references in `task.args` are resolved, `inputs` are the
    results by dependency. Its result may be any value (with a `journal`: any JSON value).

    - `concurrency`, `limits`: tasks at once; calls at once and per second of each tool. When slots are
      short, the task with the longest work behind it starts first (`durations` by task or tool, else
      `est_s` in its meta, else a count of tasks).
    - `retry`, `timeout_s`: for each task, unless its tool or its meta (`retries`, `timeout_s`) says otherwise.
    - `on_failure`: "skip" (only what depends on it), "fail_fast", or "continue" (dependents run without the result).
    - `budget`: tokens, money, calls and wall time. `approve(task)`: called for tasks with `approval` in their meta or
      in the rules of their tool; True, False, other arguments, or None: the task waits, for `resume`.
    - `journal`, `run_id`: stores results, for `resume`. `recorder`: one span per task. `on_event`: for live views.
    - `known`: results that are already there, by id. `update(plan, task_id, outcome)`: may return a changed plan.
      `mend(plan, task_id, outcome, results)`: after a failure, may return tasks in place of all that has not begun.
    - `workers`: threads or processes that call the handler. `more`: the other fields of `RunSettings`.

    Raises UsageError, PlanInvalid or StoreError before anything is started; after that it always returns a result.

    >>> async def handler(task, inputs):
    ...     return sum(inputs.values()) + 1
    >>> result = asyncio.run(execute([Task("a"), Task("b"), Task("c", depends_on=["a", "b"])], handler))
    >>> result.state, result.tasks["c"].result
    ('done', 3)
    """
    settings = RunSettings(
        concurrency, limits, retry, timeout_s, on_failure, budget, journal, run_id, recorder, approve, on_event, update,
        mend, known or {}, durations, workers, **more,
    )  # fmt: skip
    return await launch(plan, handler, settings).result()


def start(plan: AnyPlan, handler: Handler, **settings: Any) -> Running:
    """Starts a run on the running event loop and returns at once. The settings are those of `execute`."""
    return launch(plan, handler, RunSettings(**settings))


class Running:
    """A run under way."""

    def __init__(self, run: Run, log: RunLog | None, *, shared: bool) -> None:
        self._run = run
        self._log = log
        self._shared = shared  # its crew works for other runs too
        self._result: RunResult | None = None

    @property
    def run_id(self) -> str:
        """The name of the run."""
        return self._run.name

    def cancel(self, why: str = "it was asked to stop") -> None:
        """Stops the run; `result` then returns what was done."""
        self._run.stop("cancelled", why)

    def cancel_task(self, name: str) -> None:
        """Stops one task; what depends on it is skipped, the rest continues."""
        if name not in self._run.board.needs:
            raise UsageError(f"there is no task {name!r} in run {self.run_id!r}")
        self._run.cancel_task(name)

    async def result(self) -> RunResult:
        """Waits for the end. If the waiter is cancelled, the run is stopped, and nothing of it is left running."""
        try:
            await asyncio.shield(self._run.life.ended)
        except asyncio.CancelledError:
            self._run.stop("cancelled", "the caller was cancelled")
            await _undisturbed(self._end())
            raise
        return await self._end()

    async def _end(self) -> RunResult:
        run = self._run
        await asyncio.shield(run.life.ended)
        if not self._shared:
            await run.crew.close()
        if self._result is None:
            self._result = outcome_of(run)
            run.crew.runs.remove(run)
            if run.watch is not None:
                run.watch.run_ended(self._result)
            if self._log is not None:
                self._log.close()
        return self._result


def outcome_of(run: Run) -> RunResult:
    """The result of a run that has ended."""
    board, plan = run.board, run.board.plan
    tasks: Mapping[str, TaskResult] = TaskResults(board.needs, board.places, board.results, run.origin)
    state, error = _state(run, tasks)
    if plan is not None and plan.composites:
        composites = board.composites or Composites(plan, board.results, board.places)
        groups = {name: composites.outcome(name, tasks) for name in plan.composites}
        tasks = {name: groups[name] if name in groups else tasks[name] for name in [*plan.tasks, *board.parts]}
    return RunResult(
        run.name,
        state,
        tasks,
        run.clock() - run.origin,
        plan,
        run.usage,
        run.watch.trace_id if run.watch is not None else None,
        error,
        run.exception,
        run.faults,
        run.life.warnings,
        {} if plan is not None else board.needs,
        board.parts,
    )


def _state(run: Run, tasks: Mapping[str, TaskResult]) -> tuple[str, str | None]:
    if len(tasks) and not run.board.undone and not run.faults and run.exception is None:
        return "done", None
    if run.stopping is not None:
        return run.stopping, run.error
    if run.faults:
        return "failed", str(run.faults[0])
    own = {name: task for name, task in tasks.items() if name not in run.board.covered}
    if any(task.state == "waiting" for task in own.values()):
        names = ", ".join(repr(name) for name, task in tasks.items() if task.state == "waiting")
        return "waiting", f"waiting for an approval: {names}"
    if any(task.state == "not_started" for task in own.values()):
        return "over_budget", run.error
    # The first task that failed by itself explains the run; those it took with it do not, nor one that another covers.
    bad = [(name, task) for name, task in own.items() if task.state not in (*FINE, "skipped")]
    bad = bad or [(name, task) for name, task in own.items() if task.state not in FINE]
    name, task = min(bad, key=lambda pair: pair[1].ended_s if pair[1].ended_s is not None else 0.0)
    return "failed", f"task {name!r} {ENDED[task.state]}: {task.error}"


def launch(
    plan: AnyPlan,
    handler: Handler,
    settings: RunSettings,
    crew: Crew | None = None,
    reopened: tuple[StoredRun, RunLog] | None = None,
) -> Running:
    """Starts a run, with a crew of its own or a shared one; `reopened` is what an earlier process has left of it."""
    stream = plan if isinstance(plan, AsyncIterator) else None
    whole = None if stream is not None else plan if isinstance(plan, Plan) else Plan(_tasks(plan))
    name = settings.run_id or new_run_id()
    stored, log = reopened or (None, None)
    if settings.journal is not None and log is None:
        log = settings.journal.begin(name, whole, settings.describe(), settings.notes)
    try:
        run = Run(name, handler, settings, crew or Crew(settings), log)
        run.crew.runs.append(run)
        known = {name: TaskResult("done", value) for name, value in settings.known.items()}
        if stored is not None:
            run.recall(stored)
            known = {**stored.ended, **known}
        if settings.budget is not None and (wall_s := settings.budget.wall_s) is not None:
            run.life.after(wall_s, run.stop, "timed_out", f"the wall time of {wall_s:g} s is used up")
        if stream is not None:
            run.life.chore(TaskStream(run, stream, settings.stream_idle_s, known).read())
        elif whole is not None:
            run.load(whole, known)
        run.crew.cover()
        return Running(run, log, shared=crew is not None)
    except BaseException:
        if log is not None:
            log.close()
        raise


def _tasks(plan: Any) -> Iterable[Task]:
    if hasattr(plan, "__aiter__") or not isinstance(plan, Iterable):
        what = "an asynchronous iterable: pass its iterator" if hasattr(plan, "__aiter__") else "not a plan"
        raise UsageError(f"{type(plan).__name__} is {what}", fix="Pass a Plan, tasks, or an asynchronous iterator")
    return plan


def new_run_id() -> str:
    """A name for a run: 12 random hexadecimal digits."""
    return secrets.token_hex(6)


async def _undisturbed(work: Any) -> Any:
    """Awaits to the end even if the waiter is cancelled again in the meantime."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue
    return task.result()


async def resume(
    run_id: str,
    handler: Handler,
    *,
    journal: Journal,
    settle: Mapping[str, tuple[str, Any]] | None = None,
    **settings: Any,
) -> RunResult:
    """Continues a run whose process ended, however it ended. What is done is not done again.

    A task with side effects that was running then is `in_doubt`: reported, not repeated, until it is settled:
    `settle` has ("done", RESULT), ("retry", None) or ("failed", None) for it, an element of a `for_each` as
    `task[0]`. Tasks that failed are tried again, unless they have side effects.
    Settings default to those the run was started with. Raises StoreError for an unknown run and for one
    that another process is running.
    """
    stored, log = journal.reopen(run_id)
    try:
        merged = RunSettings(**{**stored.settings, **settings, "journal": journal, "run_id": run_id})
        for task, (how, value) in (settle or {}).items():
            stored.settle(task, how, value)
        if stored.plan is None:
            raise UsageError(f"run {run_id!r} has no plan to continue", fix="Start it again from its request")
        running = launch(stored.plan, handler, merged, reopened=(stored, log))
    except BaseException:
        log.close()
        raise
    return await running.result()
