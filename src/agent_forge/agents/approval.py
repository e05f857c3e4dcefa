"""Who approves what changes the world: nobody yet, everybody, nobody at all, a person, or a table of decisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_forge.errors import UsageError
from agent_forge.plans import Task
from agent_forge.runtime.options import Approval, Approve

MODES = ("ask", "all", "none")
AnyApproval = str | Mapping[str, Approval] | Approve


def approver(approve: AnyApproval) -> Approve | None:
    """What the executor asks. None: nobody is there, so that a task with side effects waits, and the run with it.

    "ask" waits, "all" approves and "none" rejects everything; a mapping decides by task (True, False, or the arguments
    to change) and lets the others wait; a function is asked, and may be asynchronous.
    """
    if approve == "ask":
        return None
    if approve == "all":
        return lambda task: True
    if approve == "none":
        return lambda task: False
    if isinstance(approve, Mapping):
        decisions: Mapping[str, Any] = approve
        return lambda task: decisions.get(task.id)
    if isinstance(approve, str) or not callable(approve):
        raise UsageError(f"approve is {approve!r}", fix=f"Use one of {', '.join(MODES)}, a mapping or a function")
    return approve


def question(task: Task) -> str:
    """What is to be approved, in one line: `send_email(to="ann@example.com")`."""
    from agent_forge.plans.calls import write_call

    call = write_call(task.action, dict(task.args)) if task.action else None
    return call or task.action or task.goal
