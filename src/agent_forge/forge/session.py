"""A forge run: one session in which the phases of a pipeline are done, skipped, or passed over."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from agent_forge.config import as_dict
from agent_forge.config import build as build_config
from agent_forge.errors import AgentForgeError, HandoffError, UsageError
from agent_forge.forge import checkpoint as checkpoints
from agent_forge.forge.checkpoint import Checkpoint
from agent_forge.forge.contracts import clauses
from agent_forge.forge.events import Bus, Tail, jsonl_sink
from agent_forge.forge.gates import PASSED
from agent_forge.forge.handoff import handoff
from agent_forge.forge.phases import Phase, Work, phase
from agent_forge.forge.phases.worker import Busy, job_of, locked, run_phase
from agent_forge.forge.pipeline import PhaseReport, Pipeline, Report, Step, phase_key
from agent_forge.forge.registry import Registry, folder_of
from agent_forge.forge.room import Room, free_memory, need
from agent_forge.plans import Task
from agent_forge.runtime import execute
from agent_forge.runtime.workers import Processes, Workers


class GateMissed(AgentForgeError):
    """A phase brought no gain, and the run was asked to be strict."""


class Session:
    """Runs a pipeline against a registry.

    `strict` makes a phase without gain a failure; otherwise its input is passed on. With `recorder` every phase leaves
    a span. `workers` carry out the phases: by default, processes.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        registry: Registry,
        *,
        strict: bool = False,
        bus: Bus | None = None,
        recorder: Any = None,
        workers: Workers | None = None,
    ) -> None:
        self.pipeline, self.registry, self.strict = pipeline, registry, strict
        self.recorder, self.workers = recorder, workers
        self.id = f"{pipeline.name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        self.folder = registry.home / "sessions" / self.id
        self.events = self.folder / "events.jsonl"
        self.bus = bus or Bus()
        self.log = Bus(jsonl_sink(self.events))
        self.tail = Tail(self.events)
        self.reports: dict[str, PhaseReport] = {}

    def run(self) -> Report:
        """Runs every phase that is not finished yet. Raises KeyboardInterrupt after marking the session as paused, and
        UsageError, CheckpointError or DataError, before anything is done, if there is nothing to start or learn from.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # each of them would wait for the others' locks, for ever
            fix = "run it without a launcher; `forge.training.train` is what takes several processes"
            raise UsageError("a pipeline starts processes of its own, and this is one of several already", fix=fix)
        for start in self.pipeline.start:
            self._start(start)
        for name, step in self.pipeline.phases.items():
            kind = phase(step.phase)
            kind.data(build_config(kind.config, step.config, f"phases.{name}.config"))
        self.registry.start_session(self.id, as_dict(self.pipeline))
        try:
            result = asyncio.run(self._execute())
        except (KeyboardInterrupt, asyncio.CancelledError):
            self.registry.end_session(self.id, "paused")
            raise KeyboardInterrupt from None
        except BaseException:
            self.registry.end_session(self.id, "failed")
            raise
        reports = tuple(
            self.reports.get(name) or PhaseReport(name, "not run", error=_reason(result.tasks[name]))
            for name in self.pipeline.phases
        )
        for report in reports:
            if report.state == "not run":
                self.registry.record_phase(self.id, report.name, state="not run", error=report.error)
        state = "completed" if all(r.state in ("completed", "skipped", "no gain") for r in reports) else "failed"
        self.registry.end_session(self.id, state)
        return Report(self.id, state, reports, result.trace_id)

    async def _execute(self) -> Any:
        following = asyncio.ensure_future(self._follow())
        self.room = Room(await asyncio.to_thread(free_memory))
        self.workers = self.workers or Processes(self.pipeline.parallel)
        try:
            return await execute(
                self.pipeline.plan(), self._handle, concurrency=self.pipeline.parallel, recorder=self.recorder
            )
        finally:
            following.cancel()
            await asyncio.wait([following])
            await self.workers.close()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self._pass_on()

    def _pass_on(self) -> None:
        """Tells the progress that the worker processes have written into the session's log."""
        for event in self.tail.read():
            if event.kind == "progress":
                self.bus.tell(event.kind, event.phase, **event.fields)

    def _tell(self, kind: str, name: str, **fields: Any) -> None:
        self._pass_on()
        self.log.tell(kind, name, **fields)
        self.bus.tell(kind, name, **fields)

    async def _handle(self, task: Task, inputs: Mapping[str, Any]) -> dict[str, Any]:
        step, started = self.pipeline.phases[task.id], time.time()
        self.registry.record_phase(self.id, task.id, state="running", started_s=started)
        try:
            report = await self._do(task.id, step, [inputs[name]["checkpoint"] for name in step.after], started)
        except asyncio.CancelledError:
            self.registry.record_phase(self.id, task.id, state="paused", ended_s=time.time())
            raise
        except Exception as error:
            text = str(error) if isinstance(error, AgentForgeError) else f"{type(error).__name__}: {error}"
            self._ended(PhaseReport(task.id, "failed", error=text, seconds=time.time() - started))
            self._tell("failed", task.id, error=text)
            raise
        self._ended(report)
        return {"checkpoint": report.checkpoint, "gate": report.gate, "state": report.state}

    async def _do(self, name: str, step: Step, digests: Sequence[str], started: float) -> PhaseReport:
        kind = phase(step.phase)
        config = build_config(kind.config, step.config, f"phases.{name}.config")
        inputs = await asyncio.to_thread(self._inputs, name, step, kind, digests)
        key = await asyncio.to_thread(phase_key, step.phase, kind, config, inputs, self.pipeline.seed)
        async with self._turn(key) as folder:
            outcome = await asyncio.to_thread(self.registry.finished, key)
            if outcome is not None:
                state = "skipped"
                self._tell("skipped", name, checkpoint=outcome["checkpoint"])
            else:
                work = Work(name, config, inputs, self.pipeline.seed, folder, self.registry.models)
                async with self.room.taken(need(inputs)):
                    self._tell("started", name, does=step.phase)
                    outcome = await self._work(work, kind, key)
                state = "completed" if outcome["gate"]["verdict"] == PASSED else "no gain"
                self._tell("finished" if state == "completed" else "no gain", name, gate=outcome["gate"])
            shutil.rmtree(folder, ignore_errors=True)
        if self.strict and outcome["gate"]["verdict"] != PASSED:
            raise GateMissed(f"phase {name!r} brought no gain: {json.dumps(outcome['gate'])}")
        return PhaseReport(name, state, outcome["gate"], outcome["checkpoint"], seconds=time.time() - started)

    @asynccontextmanager
    async def _turn(self, key: str) -> AsyncIterator[Path]:
        """The folder of a piece of work, when nobody else works there: two phases alike are done once, one waits."""
        folder = self.registry.home / "work" / key[:32]
        with ExitStack() as held:
            while True:
                try:
                    held.enter_context(locked(folder))
                    break
                except Busy:
                    await asyncio.sleep(0.2)
            yield folder

    def _inputs(self, name: str, step: Step, kind: Phase, digests: Sequence[str]) -> list[Checkpoint]:
        if step.after:
            given = [self.registry.load(digest) for digest in digests]
        else:
            given = [self._start(start) for start in self.pipeline.start] if kind.takes.checkpoints[1] else []
        source = ", ".join(step.after or self.pipeline.start) or "nothing"
        try:
            adapted, found = handoff(kind.takes, given, name, self.registry.models)
        except HandoffError as error:
            self.registry.record_handoff(self.id, source, name, "refused", [str(error)])
            raise
        verdict = "passed" if all(clause.met for clause in found) else "adapted"
        self.registry.record_handoff(self.id, source, name, verdict, map(str, found))
        for checkpoint in (*given, *adapted):
            self.registry.add(checkpoint)
        return adapted

    def _start(self, start: str) -> Checkpoint:
        """A registered checkpoint, checked against its row, or a model folder from anywhere else."""
        folder = folder_of(start)
        if folder.is_dir() and folder not in {entry.path for entry in self.registry.ls()}:
            return checkpoints.load(folder)
        return self.registry.load(start)

    async def _work(self, work: Work, kind: Phase, key: str) -> dict[str, Any]:
        """Runs the phase in a worker process and records what it came to."""
        threads = max(1, (os.cpu_count() or 1) // self.pipeline.parallel)
        job = job_of(work, self.pipeline.phases[work.name].phase, self.events, threads)
        assert self.workers is not None
        done = await self.workers.call(run_phase, job, {})
        document = await asyncio.to_thread(self._record, done, work.inputs, kind)
        self.registry.finish(key, document)
        return document

    def _record(self, done: Mapping[str, Any], inputs: Sequence[Checkpoint], kind: Phase) -> dict[str, Any]:
        kept = checkpoints.load(done["checkpoint"]) if done["checkpoint"] else None
        if kept is not None:
            if broken := [clause for clause in clauses(kind.promises, [kept]) if not clause.met]:
                raise HandoffError(f"phase {kind.name!r} broke its promise: {'; '.join(map(str, broken))}")
            self.registry.add(kept)
        if done["gate"]["verdict"] != PASSED:  # no gain, no change: the input goes on, where there is one
            kept = inputs[done.get("passes_on", 0)] if inputs else kept
        if kept is None:
            raise AgentForgeError(f"phase {kind.name!r} made no checkpoint and had none to pass on")
        return {"checkpoint": kept.digest, "gate": done["gate"]}

    def _ended(self, report: PhaseReport) -> None:
        self.reports[report.name] = report
        self.registry.record_phase(
            self.id,
            report.name,
            state=report.state,
            gate=report.gate,
            checkpoint=report.checkpoint,
            error=report.error,
            ended_s=time.time(),
        )


def _reason(task: Any) -> str:
    return str(task.error) if task.error else "a phase that it waits for did not end well"
