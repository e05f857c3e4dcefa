"""What happens between the last input of a task and its place in the queue.

References are resolved against real results, a `for_each` is spread over its list, an approval is asked for, and a call
that another task of the run has made already is not made again.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Mapping
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from agent_forge.plans import ReferenceUnresolved, Task, find_references, resolve
from agent_forge.runtime.fanout import fan_out
from agent_forge.runtime.job import PARKED, Job
from agent_forge.runtime.result import error_text

if TYPE_CHECKING:
    from agent_forge.runtime.run import Run

ITEM = "item"


def prepare(run: Run, job: Job) -> None:
    """Takes a pending job whose inputs are there to the queue, to a park, or to its end."""
    job.state = PARKED
    if job.terms.fault is not None:
        run.settle(job, "failed", job.terms.fault)
    elif job.id in run.children:  # a group of a streamed plan: its children are its inputs
        run.done(job, {name: run.results[name] for name in run.children[job.id] if name in run.results})
    elif job.terms.approval and job.fan is None:
        job.wake = run.chore(_ask(run, job)).cancel
    else:
        proceed(run, job)


def proceed(run: Run, job: Job) -> None:
    """Goes on with a job that needs no approval, or has it."""
    try:
        job.inputs = _inputs(run, job)
        if job.task.for_each is not None and job.fan is None:
            fan_out(run, job)
            return
        job.call = resolved(run, job)
    except ReferenceUnresolved as error:
        missing = error.reason == "no_result" and error.reference.head in run.tasks
        run.settle(job, "skipped" if missing else "failed", error_text(error), error)
        return
    if not _joined(run, job):
        run.agenda.put(run.queue, job)


def resolved(run: Run, job: Job) -> Task:
    """The task as the handler sees it: every reference replaced by what it refers to."""
    task = job.task
    results: Mapping[str, Any] = run.results
    if job.fan is not None:
        results = ChainMap({ITEM: job.fan.values[job.item]}, run.results)
    return Task(
        task.id,
        resolve(task.goal, results, ids=run.tasks) if "{" in task.goal else task.goal,
        task.action,
        resolve(task.args, results, ids=run.tasks) if task.args else task.args,
        task.depends_on,
        task.parent,
        task.for_each,
        task.limit,
        task.meta,
    )


def _inputs(run: Run, job: Job) -> dict[str, Any]:
    """Results by dependency: the leaves a task waits for, and the groups it names."""
    results = run.results
    inputs = {name: results[name] for name in job.deps if name in results}
    if run.groups is not None:
        inputs.update((name, results[name]) for name in job.task.needs(run.tasks) if name in results)
    if job.fan is not None:
        inputs[ITEM] = job.fan.values[job.item]
    return inputs


async def _ask(run: Run, job: Job) -> None:
    """Asks for the approval of one task; only what depends on it waits."""
    approve = run.options.approve
    if run.watch is not None:
        run.watch.asking(job)
    if approve is None:
        _end(run, job, "denied", "it needs an approval and there is nobody to ask: pass `approve` to the run")
        return
    try:
        answer = approve(job.task if job.task.for_each is not None else resolved(run, job))
        approved = await answer if isawaitable(answer) else answer
    except Exception as error:
        _end(run, job, "failed", f"the approval could not be asked for: {error_text(error)}")
        return
    if not approved:
        _end(run, job, "denied", "it was not approved")
    elif job.state == PARKED:
        job.wake = None
        proceed(run, job)
    run.crew.cover()


def _end(run: Run, job: Job, state: str, why: str) -> None:
    if job.state == PARKED:
        run.settle(job, state, why)
        run.crew.cover()


def _joined(run: Run, job: Job) -> bool:
    """Whether the job was given to an identical call of this run, to share its result."""
    call = job.call
    if not job.terms.memo or call is None or call.action is None or not call.args:
        return False
    key = _call_key(run, job, call)
    if key is None:
        return False
    leader = run.leaders.get(key)
    if leader is None:
        job.key = key
        run.leaders[key] = job
        return False
    if leader.state == "done":
        job.same_as = leader.id
        run.done(job, leader.result)
        return True
    job.state = PARKED
    if leader.followers is None:
        leader.followers = []
    leader.followers.append(job)
    return True


def _call_key(run: Run, job: Job, call: Task) -> tuple[str, str] | None:
    """Action, resolved arguments, and the inputs that the arguments do not name but the handler is given."""
    inputs = job.inputs or {}
    if inputs:
        named = {found.head for found in find_references(job.task.args)}
        inputs = {name: value for name, value in inputs.items() if name not in named}
    try:
        return str(call.action), json.dumps([call.args, inputs], sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return None  # not JSON: nobody can say whether two of them are the same
