"""What a task's handler is given: its inputs, and the task with every reference resolved against real results."""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

from agent_forge.plans import Task, find_references, resolve
from agent_forge.runtime.board import Board
from agent_forge.runtime.job import Job


def inputs_of(board: Board, job: Job) -> dict[str, Any]:
    """Results by dependency: the leaves a task waits for, and the groups it names."""
    results = board.results
    inputs = {name: results[name] for name in job.deps if name in results}
    if board.composites is not None:
        inputs.update((name, results[name]) for name in job.task.needs(board.tasks) if name in results)
    if job.fan is not None:
        # Whether the whole list is there by now depends on the moment; the element is what it is for.
        inputs.pop(job.fan.source or "", None)
        inputs[job.fan.name] = job.fan.values[job.item]
    return inputs


def resolved(board: Board, job: Job) -> Task:
    """The task as the handler sees it. Raises ReferenceUnresolved."""
    task = job.task
    results: Mapping[str, Any] = board.results
    if job.fan is not None:
        results = ChainMap({job.fan.name: job.fan.values[job.item]}, board.results)
    return Task(
        task.id,
        resolve(task.goal, results, ids=board.tasks) if "{" in task.goal else task.goal,
        task.action,
        resolve(task.args, results, ids=board.tasks) if task.args else task.args,
        task.depends_on,
        task.parent,
        task.for_each,
        task.limit,
        task.meta,
        task.control,
    )


def elements(board: Board, task: Task, most: int, coming: Sequence[Any] | None = None) -> list[Any]:
    """The list that a `for_each` task is spread over; of one whose elements are still `coming`, only its length.

    Raises ReferenceUnresolved, and ValueError for a value that is not a list or has too many elements.
    """
    values = resolve(task.for_each, board.results, ids=board.tasks) if coming is None else [None] * len(coming)
    if not isinstance(values, (list, tuple)):
        raise ValueError(f"for_each {task.for_each} is of type {type(values).__name__}, not a list")
    limit = most if task.limit is None else task.limit
    if len(values) > limit:
        raise ValueError(f"for_each {task.for_each} has {len(values)} elements, the limit is {limit}")
    return list(values)


def call_key(job: Job) -> tuple[str, str] | None:
    """What makes two calls identical: the action, the resolved arguments, and those inputs that the arguments do not
    name but the handler is given. None for a call that is never shared."""
    call, inputs = job.call, job.inputs or {}
    if not job.terms.memo or call is None or call.action is None or not call.args:
        return None
    if inputs:
        named = {reference.head for reference in find_references(job.task.args)}
        inputs = {name: value for name, value in inputs.items() if name not in named}
    try:
        return call.action, json.dumps([call.args, inputs], sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return None  # not JSON: nobody can say whether two of them are the same
