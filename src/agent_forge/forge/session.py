"""A forge run: one session in which the phases of a pipeline run, are skipped, or bring no gain."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import time
import traceback
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
from agent_forge.forge.handoff import ADAPTED, handoff
from agent_forge.forge.phases import Phase, Work, phase
from agent_forge.forge.phases.worker import Busy, job_of, locked, run_phase
from agent_forge.forge.pipeline import PhaseReport, Pipeline, PipelineStep, Report, phase_key
from agent_forge.forge.registry import Registry, folder_of
from agent_forge.forge.room import Room, free_memory, need
from agent_forge.plans import Task
from agent_forge.runtime import execute
from agent_forge.runtime.jobs import ATTEMPTS, call_again, open_workers
from agent_forge.runtime.workers import Inline, Processes, RemoteError, Threads, Workers
from agent_forge.traces.recorder import current_span


class GateMissed(AgentForgeError):
    """A phase brought no gain in a strict run."""


class ForgeSession:
    """Runs a pipeline against a registry.

    `strict` makes a phase without gain a failure; otherwise its input is passed on. With a `recorder` every phase
    leaves a span. `workers` run the phases: by default, processes; on Ray, with the resources of each phase.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        registry: Registry,
        *,
        strict: bool = False,
        bus: Bus | None = None,
        recorder: Any = None,
        workers: Workers | str | None = None,
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
        """Runs every phase that is not finished yet.

        Raises UsageError, CheckpointError or DataError before anything is done, if a start or a source is missing, and
        KeyboardInterrupt after marking the session as paused.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # the processes would wait for each other's locks for ever
            fix = "Run it without a launcher; `forge.training.train` is what takes several processes"
            raise UsageError("a pipeline starts its own processes, and this is already one of several", fix=fix)
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
        for name in [name for name in self.pipeline.phases if name not in self.reports]:
            error = str(result.tasks[name].error or "a phase that it waits for did not succeed")
            self.reports[name] = PhaseReport(name, "not run", error=error)
            self.registry.record_phase(self.id, name, state="not run", error=error)
        reports = tuple(self.reports[name] for name in self.pipeline.phases)
        state = "completed" if all(r.state in ("completed", "skipped", "no gain") for r in reports) else "failed"
        self.registry.end_session(self.id, state)
        return Report(self.id, state, reports, result.trace_id)

    async def _execute(self) -> Any:
        follower = asyncio.ensure_future(self._follow())
        self.workers = open_workers(self.workers) or Processes(self.pipeline.parallel)
        local = isinstance(self.workers, Processes | Threads | Inline)
        self.room = Room(await asyncio.to_thread(free_memory) if local else None)  # a cluster has room of its own
        try:
            return await execute(
                self.pipeline.plan(), self._handle, concurrency=self.pipeline.parallel, recorder=self.recorder
            )
        finally:
            follower.cancel()
            await asyncio.wait([follower])
            await self.workers.close()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self._pass_on()

    def _pass_on(self) -> None:
        """Forwards the progress that the worker processes have written to the session's log."""
        for event in self.tail.read():
            if event.kind == "progress":
                self.bus.tell(event.kind, event.phase, **event.fields)

    def _tell(self, kind: str, name: str, **fields: Any) -> None:
        self._pass_on()
        self.log.tell(kind, name, **fields)
        self.bus.tell(kind, name, **fields)

    async def _handle(self, task: Task, inputs: Mapping[str, Any]) -> dict[str, Any]:
        step, started = self.pipeline.phases[task.id], time.time()
        if self.recorder is not None and (span := current_span()) is not None:  # the executor's, of this task
            span.name, span.kind = task.id, "phase"
            span.attributes["phase"] = step.phase
        self.registry.record_phase(self.id, task.id, state="running", started_s=started)
        try:
            report = await self._do(task.id, step, [inputs[name]["checkpoint"] for name in step.after], started)
        except asyncio.CancelledError:
            self.registry.record_phase(self.id, task.id, state="paused", ended_s=time.time())
            raise
        except Exception as error:
            text = str(error) if isinstance(error, AgentForgeError) else f"{type(error).__name__}: {error}"
            file = self._keep_traceback(task.id, error)
            seconds = time.time() - started
            self._ended(PhaseReport(task.id, "failed", error=text, seconds=seconds, traceback=str(file)))
            self._tell("failed", task.id, error=text, traceback=str(file))
            raise
        self._ended(report)
        return {"checkpoint": report.checkpoint, "gate": report.gate, "state": report.state}

    def _keep_traceback(self, name: str, error: Exception) -> Path:
        """Writes where the phase failed, in the worker process if it ran in one, into the session's folder."""
        trace = error.trace if isinstance(error, RemoteError) else "".join(traceback.format_exception(error))
        file = self.folder / f"{name}.traceback.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(trace, encoding="utf-8")
        return file

    async def _do(self, name: str, step: PipelineStep, digests: Sequence[str], started: float) -> PhaseReport:
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
        """The folder of a piece of work, once nobody else works there: of two equal phases, one works and one waits."""
        folder = self.registry.home / "work" / key[:32]
        with ExitStack() as lock:
            while True:
                try:
                    lock.enter_context(locked(folder))
                    break
                except Busy:
                    await asyncio.sleep(0.2)
            yield folder

    def _inputs(self, name: str, step: PipelineStep, kind: Phase, digests: Sequence[str]) -> list[Checkpoint]:
        """The checkpoints that the phase takes, adapted to its contract; the handoff is recorded."""
        if step.after:
            originals = [self.registry.load(digest) for digest in digests]
        else:
            originals = [self._start(start) for start in self.pipeline.start] if kind.takes.checkpoints[1] else []
        source = ", ".join(step.after or self.pipeline.start) or "nothing"
        try:
            adapted, checked = handoff(kind.takes, originals, name, self.registry.models)
        except HandoffError as error:
            self.registry.record_handoff(self.id, source, name, "refused", [str(error)])
            raise
        verdict = "passed" if all(clause.met for clause in checked) else "adapted"
        self.registry.record_handoff(self.id, source, name, verdict, map(str, checked))
        for checkpoint in (*originals, *adapted):
            self.registry.add(checkpoint)
        return adapted

    def _start(self, start: str) -> Checkpoint:
        """A registered checkpoint, checked against the registry, or a model folder from anywhere else."""
        folder = folder_of(start)
        if folder.is_dir() and folder not in {entry.path for entry in self.registry.ls()}:
            return checkpoints.load(folder)
        return self.registry.load(start)

    async def _work(self, work: Work, kind: Phase, key: str) -> dict[str, Any]:
        """Runs the phase in a worker process and records its outcome."""
        threads = max(1, (os.cpu_count() or 1) // self.pipeline.parallel)
        step = self.pipeline.phases[work.name]
        job = job_of(work, step.phase, self.events, self.registry.home, threads, step.resources)
        assert self.workers is not None
        assert not isinstance(self.workers, str)
        attempts = 1 if isinstance(self.workers, Processes) else ATTEMPTS  # here, what ended one would end the next
        result = await call_again(self.workers, run_phase, job, attempts)
        outcome = await asyncio.to_thread(self._outcome, result, work.inputs, kind)
        self.registry.finish(key, outcome)
        return outcome

    def _outcome(self, result: Mapping[str, Any], inputs: Sequence[Checkpoint], kind: Phase) -> dict[str, Any]:
        """The digest to hand on and the gate, after checking the phase's promises and registering its checkpoint."""
        checkpoint = None
        if result["checkpoint"] and not Path(result["checkpoint"]).is_dir():  # on another machine
            checkpoint = self.registry.pull(result["digest"])
        elif result["checkpoint"]:
            checkpoint = checkpoints.load(result["checkpoint"])
        if checkpoint is not None:
            if broken := [clause for clause in clauses(kind.promises, [checkpoint]) if not clause.met]:
                raise HandoffError(f"phase {kind.name!r} broke its promise: {'; '.join(map(str, broken))}")
            self.registry.add(checkpoint)
        if result["gate"]["verdict"] != PASSED and inputs:  # no gain, no change: the input is handed on
            checkpoint = self._as_it_came(inputs[result.get("passes_on", 0)])
        if checkpoint is None:
            raise AgentForgeError(f"phase {kind.name!r} made no checkpoint and had none to pass on")
        return {"checkpoint": checkpoint.digest, "gate": result["gate"]}

    def _as_it_came(self, checkpoint: Checkpoint) -> Checkpoint:
        """What an input was before the handoff unpacked it: packed, it stays packed where nothing was gained."""
        if checkpoint.card.phase == ADAPTED and "format" in checkpoint.card.config[ADAPTED]:
            return self.registry.load(checkpoint.card.inputs[0])
        return checkpoint

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
