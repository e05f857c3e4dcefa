"""The jury: tells the search what a recipe scores, from the log where it was examined before.

A search is a function of its seed and of its evaluations. So a killed search simply starts again: it asks for the same
recipes in the same order, and finds in the log what was finished.
"""

from __future__ import annotations

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
from agent_forge.plans import Task
from agent_forge.runtime.jobs import Jobs, Place
from agent_forge.runtime.workers import RemoteError, WorkerDied


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
    """Judges recipes on the selection data, in this process or on workers (by default, those of the settings)."""

    def __init__(
        self, config: Evolve, examiner: Examiner, log: EvaluationLog, models: Path, workers: Place = None
    ) -> None:
        self.config, self.examiner, self.log, self.family = config, examiner, log, examiner.family
        names = tuple(parent.name for parent in self.family.parents)
        self.space = Space(names, self.family.base.name, config.search.techniques)
        self.context = {  # what a result depends on besides the recipe
            "models": self.family.digests(),
            "data": digest_of(examiner.tasks),
            "lengths": [config.length, config.most_tokens],
        }
        self._job = {"config": as_dict(config), "models": str(models)}
        self._jobs = Jobs(config.search.workers if workers is None else workers)
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
        if self._jobs.elsewhere:
            self._examine_elsewhere(pending)
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

    def _examine_elsewhere(self, members: Sequence[Member]) -> None:
        """One job per recipe; what is finished is in the log at once."""
        recipes = {member.key: self.stages(member.genome) for member in members}
        keys = list(recipes)
        jobs = [{"job": self._job, "stages": stages} for stages in recipes.values()]
        try:
            self._jobs.map(examine_task, jobs, on_result=lambda index, record: self.log.put(keys[index], record))
        except (RemoteError, WorkerDied) as error:
            raise AgentForgeError(f"a recipe could not be examined: {error}") from error

    def close(self) -> None:
        """Ends the workers, if there are any."""
        self._jobs.close()

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
