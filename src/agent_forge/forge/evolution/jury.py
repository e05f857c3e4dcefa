"""The jury: tells the search what a recipe scores, from the log where it was examined before.

A search is a function of its seed and of its evaluations. So a killed search simply starts again: it asks for the same
recipes in the same order, and finds in the log what was finished.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agent_forge.config import as_dict, build
from agent_forge.errors import AgentForgeError
from agent_forge.forge.evolution.examiner import Examiner, Stages, as_scores
from agent_forge.forge.evolution.fitness import ModelScores, RunningCost, Yardstick
from agent_forge.forge.evolution.genome import Genome, Space, compile_recipe, name_of
from agent_forge.forge.evolution.search import Member
from agent_forge.forge.evolution.settings import Evolve
from agent_forge.forge.evolution.tasks import digest_of
from agent_forge.plans import Plan, Task
from agent_forge.runtime import execute
from agent_forge.runtime.workers import Processes


class EvaluationLog:
    """Records by key, in memory and in a JSONL file. A torn line, which a killed writer leaves, is ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: dict[str, dict[str, Any]] = {}
        if path.exists():
            lines = path.read_bytes().split(b"\n")
            for line in lines:
                try:
                    record = json.loads(line)
                    self.records[record["key"]] = record
                except (ValueError, KeyError, TypeError):
                    continue
            if lines[-1]:  # what comes next starts on a line of its own
                with open(path, "ab") as file:
                    file.write(b"\n")

    def put(self, key: str, record: Mapping[str, Any]) -> dict[str, Any]:
        """Adds a record; durable when it returns."""
        self.records[key] = {"key": key, **record}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab", buffering=0) as file:
            file.write(json.dumps(self.records[key], allow_nan=False).encode() + b"\n")
            os.fsync(file.fileno())
        return self.records[key]


class Jury:
    """Judges recipes on the selection data, in this process or in `workers` processes, which `close` ends."""

    def __init__(self, config: Evolve, examiner: Examiner, log: EvaluationLog, models: Path) -> None:
        self.config, self.examiner, self.log, self.family = config, examiner, log, examiner.family
        names = tuple(parent.name for parent in self.family.parents)
        self.space = Space(names, self.family.base.name, config.search.techniques)
        self.context = {  # what a result depends on besides the recipe
            "models": self.family.digests(),
            "data": digest_of(examiner.tasks),
            "lengths": [config.length, config.most_tokens],
        }
        self._job = {"config": as_dict(config), "models": str(models)}
        self._workers = Processes(config.search.workers) if config.search.workers else None
        self._loop = asyncio.new_event_loop() if self._workers else None
        self.cost = self._base_cost()
        parents = {member.name: self._measure_parent(member.name) for member in self.family.members}
        self.yardstick = Yardstick(parents[self.family.base.name], examiner.kinds, config.weights)
        self.parents = {name: self.yardstick.fitness(parent) for name, parent in parents.items()}
        self._best_parent = parents[max(self.parents, key=self.parents.__getitem__)]

    def stages(self, genome: Genome, paths: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """The recipe of a genome, in the names of the family or with `paths`."""
        return compile_recipe(genome, self.space, self.config.dtype, paths)

    def key(self, genome: Genome) -> str:
        return self._key(self.stages(genome))

    def _key(self, stages: Stages) -> str:
        return name_of({"stages": stages, **self.context})

    def evaluate(self, members: Sequence[Member]) -> None:
        pending = [member for member in members if member.key not in self.log.records]
        if self._workers is not None and pending:
            self._examine_in_processes(pending)
        else:
            for member in pending:
                self.log.put(member.key, self.examiner.examine(self.stages(member.genome)))
        for member in members:
            measurement = self._measurement(self.log.records[member.key])
            member.fitness = self.yardstick.fitness(measurement)
            changes = self.yardstick.changes(measurement, self._best_parent)
            excess = sum(max(0.0, -change - self.config.worst_loss) for change in changes.values())
            member.excess = excess if np.isfinite(excess) else 1.0

    def _measurement(self, record: Mapping[str, Any]) -> ModelScores:
        return ModelScores(as_scores(record["scores"]), self.cost)

    def _examine_in_processes(self, members: Sequence[Member]) -> None:
        """One task per recipe, run by the runtime's worker processes."""
        recipes = {member.key: self.stages(member.genome) for member in members}
        plan = Plan(Task(key, args={"job": self._job, "stages": stages}) for key, stages in recipes.items())

        async def examine(task: Task, inputs: dict[str, Any]) -> None:
            assert self._workers is not None
            self.log.put(task.id, await self._workers.call(examine_task, task, inputs))

        assert self._loop is not None
        result = self._loop.run_until_complete(execute(plan, examine, on_failure="fail_fast"))
        for task in result.tasks.values():
            if task.error:
                raise AgentForgeError(f"a recipe could not be examined: {task.error}")

    def close(self) -> None:
        """Ends the worker processes, if there are any."""
        if self._loop is not None and self._workers is not None:
            self._loop.run_until_complete(self._workers.close())
            self._loop.close()
            self._loop = self._workers = None

    def _measure_parent(self, name: str) -> ModelScores:
        stages = [{"merge_method": "passthrough", "models": [{"model": name}], "dtype": self.config.dtype}]
        key = self._key(stages)
        return self._measurement(self.log.records.get(key) or self.log.put(key, self.examiner.examine(stages)))

    def _base_cost(self) -> RunningCost:
        """Merges have the base's shape, so their cost is measured once; logged, so that a resumed search has it too."""
        key = name_of({"cost": True, **self.context})
        record = self.log.records.get(key)
        if record is None:
            cost = self.examiner.cost_of(self.examiner.model_at(self.family.base.path))
            record = self.log.put(key, vars(cost))
        return RunningCost(record["tokens_per_s"], record["memory_bytes"])


_examiners: dict[str, Examiner] = {}  # of this worker process


def examine_task(task: Task, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a worker process calls. It opens the parents and data of an evolution once."""
    job = task.args["job"]
    name = name_of(job)
    if name not in _examiners:
        _examiners.clear()
        _examiners[name] = Examiner.open(build(Evolve, job["config"], "evolve"), Path(job["models"]))
    return _examiners[name].examine(task.args["stages"])
