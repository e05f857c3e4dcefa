"""The result of a run: the answer and everything that led to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_forge.agents.synthesis import Evidence
from agent_forge.plans import Plan, Provenance
from agent_forge.runtime import RunResult, TaskResult
from agent_forge.runtime.result import jsonable


@dataclass(frozen=True, slots=True)
class RunUsage:
    """What a run used. Token counts are None if a model did not report them, 0 if no model was asked. The cost, in US
    dollars, is None if nothing reported any, or if that of a model call is not known."""

    input_tokens: int | None
    output_tokens: int | None
    model_calls: int
    tool_calls: int
    cost: float | None = None


@dataclass(slots=True, repr=False)
class Result:
    """The answer of a run, its plan, the state of every task, times, usage and the trace id."""

    outcome: RunResult
    answer: str | None
    usage: RunUsage
    request: str | None = None
    provenance: Provenance | None = None
    observation: str | None = None
    answered_by: str | None = None
    evidence: dict[str, Evidence] = field(default_factory=dict)
    trace_id: str | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)  # as they were made: task, tool, args, state
    recorded: Any = None  # where the trace is: what `Store.open` takes, or the caller's own recorder

    def __repr__(self) -> str:
        return f"Result({self.state!r}, answer={self.answer!r}, {self.outcome!r})"

    @property
    def run(self) -> str:
        """The name of the run, to `resume` it."""
        return self.outcome.run

    @property
    def state(self) -> str:
        return self.outcome.state

    @property
    def ok(self) -> bool:
        return self.outcome.ok

    @property
    def plan(self) -> Plan | None:
        """The final plan; None if a streamed one turned out invalid."""
        return self.outcome.plan

    @property
    def tasks(self) -> Mapping[str, TaskResult]:
        return self.outcome.tasks

    @property
    def wall_s(self) -> float:
        return self.outcome.wall_s

    @property
    def critical_path_s(self) -> float:
        return self.outcome.critical_path_s

    @property
    def error(self) -> str | None:
        return self.outcome.error

    @property
    def warnings(self) -> list[str]:
        """What went wrong and was handled: a plan that rules had to make, a failure that was mended."""
        return self.outcome.warnings

    def as_dict(self) -> dict[str, Any]:
        """The document that `agent-forge run --json` prints."""
        usage = self.usage
        return {
            **self.outcome.as_dict(),
            "trace_id": self.trace_id,
            "request": self.request,
            "answer": self.answer,
            "planner": self.provenance.planner if self.provenance else None,
            "calls": [{**call, "args": jsonable(call["args"])} for call in self.calls],
            "missing": [],
            "evidence": {name: {"source": e.source, "text": e.text} for name, e in self.evidence.items()},
            "usage": {
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "model_calls": usage.model_calls,
                "tool_calls": usage.tool_calls,
                "cost": usage.cost,
            },
        }
