"""What holds for one task: its own `meta` first, then the rules of its tool, then those of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent_forge.plans import Task
from agent_forge.runtime.limits import ONCE, Limits, Retry


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of one task. A `fault` is a value in its `meta` that cannot be used: the task fails uncalled."""

    timeout_s: float | None = None
    retry: Retry = ONCE
    side_effects: bool = False
    memo: bool = True
    approval: bool = False
    fault: str | None = None


class TermsOf:
    """Looks up the terms of tasks; tasks without `meta` share those of their tool."""

    def __init__(self, limits: Limits, timeout_s: float | None, retry: Retry | None, memo: bool) -> None:
        self._limits = limits
        self._timeout_s = timeout_s
        self._retry = retry or ONCE
        self._memo = memo
        self._by_tool: dict[str | None, Terms] = {}

    def of(self, task: Task) -> Terms:
        """The terms of one task."""
        terms = self._by_tool.get(task.action)
        if terms is None:
            terms = self._by_tool[task.action] = self._of_tool(task.action)
        return _of_meta(terms, task.meta) if task.meta else terms

    def _of_tool(self, tool: str | None) -> Terms:
        rules = self._limits.rules(tool)
        if rules is None:
            return Terms(self._timeout_s, self._retry, memo=self._memo)
        retry = rules.retry or (ONCE if rules.side_effects else self._retry)
        timeout_s = self._timeout_s if rules.timeout_s is None else rules.timeout_s
        memo = self._memo and rules.memo and not rules.side_effects
        return Terms(timeout_s, retry, rules.side_effects, memo, rules.approval)


def _of_meta(terms: Terms, meta: Mapping[str, Any]) -> Terms:
    """The terms of a tool's task whose `meta` overrides them; what else is in `meta` is the user's own."""
    retries, timeout_s = meta.get("retries", 0), meta.get("timeout_s", terms.timeout_s)
    if not isinstance(retries, int) or retries < 0:
        fault = f"`retries` in its meta must be a whole number of at least 0, got {retries!r:.40}"
        return Terms(side_effects=terms.side_effects, fault=fault)
    if timeout_s is not None and not (isinstance(timeout_s, (int, float)) and timeout_s > 0):
        fault = f"`timeout_s` in its meta must be a number above 0, got {timeout_s!r:.40}"
        return Terms(side_effects=terms.side_effects, fault=fault)
    side_effects = bool(meta.get("side_effects", terms.side_effects))
    retry = ONCE if side_effects and not terms.side_effects else terms.retry
    if "retries" in meta:
        # Written in the task itself, so it is meant even for one with side effects.
        retry = replace(terms.retry if terms.retry is not ONCE else Retry(), attempts=retries + 1)
    memo = terms.memo and not side_effects and meta.get("cache", True) is not False
    approval = terms.approval or bool(meta.get("approval", False))  # a plan may ask for more of them, not for fewer
    return Terms(timeout_s, retry, side_effects, memo, approval)
