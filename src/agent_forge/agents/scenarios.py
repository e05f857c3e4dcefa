"""Scenarios: requests with the calls and the answers that they should lead to, in a YAML file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agent_forge.agents.api import run
from agent_forge.config import load
from agent_forge.errors import AgentForgeError, ConfigError


@dataclass(frozen=True)
class RequestScenario:
    """A request and what is expected of its run; what is left out is not checked."""

    request: str
    calls: tuple[str, ...] | None = None  # the tools that are called, in any order, repeats included
    answer: str | None = None  # what the answer says, whatever the case of its letters


@dataclass(frozen=True)
class _File:
    scenarios: tuple[RequestScenario, ...]


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """How the run of a scenario compares; `faults` is empty if it did what was expected."""

    request: str
    answer: str | None
    calls: tuple[str, ...]
    faults: tuple[str, ...]
    trace_id: str | None = None


def load_scenarios(path: str | os.PathLike[str]) -> tuple[RequestScenario, ...]:
    """The scenarios in a file. Raises ConfigError, also for a file without any."""
    scenarios = load(_File, path).scenarios
    if not scenarios:
        raise ConfigError("the file has no scenarios", where=os.fspath(path))
    return scenarios


def evaluate(scenarios: tuple[RequestScenario, ...], **options: Any) -> Iterator[ScenarioResult]:
    """Runs each scenario with the options of `run`, and compares. A run that fails is a result too."""
    for scenario in scenarios:
        try:
            result = run(scenario.request, **options)
        except AgentForgeError as error:
            yield ScenarioResult(scenario.request, None, (), (str(error),))
            continue
        calls = tuple(call["tool"] for call in result.calls if call["state"] == "done")
        faults = [] if result.ok else [f"the run {result.state}: {result.error}"]
        if scenario.calls is not None and sorted(calls) != sorted(scenario.calls):
            faults.append(f"called {', '.join(calls) or 'nothing'}, expected {', '.join(scenario.calls) or 'nothing'}")
        if scenario.answer is not None and scenario.answer.casefold() not in (result.answer or "").casefold():
            faults.append(f"answered {result.answer!r}, expected {scenario.answer!r}")
        yield ScenarioResult(scenario.request, result.answer, calls, tuple(faults), result.trace_id)
