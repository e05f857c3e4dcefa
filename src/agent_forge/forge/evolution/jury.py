"""The jury: tells the search what a recipe scores, from the ledger where it was examined before."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from agent_forge.config import build
from agent_forge.errors import AgentForgeError
from agent_forge.forge.evolution.examiner import Examiner, as_scores
from agent_forge.forge.evolution.fitness import Measured, Use, Yardstick, behaviour_distance
from agent_forge.forge.evolution.genome import Genome, Space, name_of
from agent_forge.forge.evolution.ledger import Ledger
from agent_forge.forge.evolution.parents import Family
from agent_forge.forge.evolution.recipe import Stage, compile_recipe
from agent_forge.forge.evolution.search import Member
from agent_forge.forge.evolution.settings import Weights
from agent_forge.plans import Plan, Task
from agent_forge.runtime import execute
from agent_forge.runtime.workers import Processes


class Jury:
    """Judges members on the selection data. With `workers`, recipes are examined in as many processes of the runtime,
    which `close` ends."""

    def __init__(
        self,
        space: Space,
        examiner: Examiner,
        ledger: Ledger,
        weights: Weights,
        *,
        dtype: str,
        worst_loss: float,
        data_digest: str,
        workers: int = 0,
        job: Mapping[str, Any] | None = None,
    ) -> None:
        self.space, self.examiner, self.ledger, self.dtype = space, examiner, ledger, dtype
        self.job, self.worst_loss = job, worst_loss
        self._loop = asyncio.new_event_loop() if workers else None
        self._workers = Processes(workers) if workers else None
        self.family: Family = examiner.family
        lengths = [examiner.length, examiner.most_tokens]
        self.context = {"models": self.family.context(), "data": data_digest, "dtype": dtype, "lengths": lengths}
        self.context["rungs"] = list(examiner.rungs)
        self._keys: dict[Genome, str] = {}
        self.parents = {member.name: self._examined_whole(member.name) for member in self.family.members}
        self.use = self._use()
        self.yardstick = Yardstick(self._measured(self.parents[self.family.base.name]), examiner.kinds, weights)
        self.best_parent = self._measured(
            max(self.parents.items(), key=lambda pair: self.fitness_of_parent(pair[0]))[1]
        )
        probes = [records[0]["probe"] for records in self.parents.values()]
        spreads = [behaviour_distance(_numbers(a), _numbers(b)) for a, b in combinations(probes, 2)]
        self.spread = float(np.mean(spreads)) if spreads else 0.0

    def stages(self, genome: Genome, paths: Mapping[str, str] | None = None) -> list[Stage]:
        """The recipe of a genome, with the names of the family or with `paths`."""
        return compile_recipe(
            genome,
            self.space,
            base=self.family.base.name,
            layer_prefix=self.family.layer_prefix,
            dtype=self.dtype,
            paths=paths,
        )

    def key(self, genome: Genome) -> str:
        if genome not in self._keys:
            self._keys[genome] = name_of({"stages": self.stages(genome), **self.context})
        return self._keys[genome]

    def evaluate(self, members: Sequence[Member], rung: int) -> None:
        wanted = [member for member in members if self.ledger.get(f"{member.key}/{rung}") is None]
        if self._workers is not None and wanted:
            self._examine_in_processes(wanted, rung)
        else:
            recipes = [self.stages(member.genome) for member in wanted]
            for member, record in zip(wanted, self.examiner.examine_each(recipes, rung), strict=True):
                self.ledger.put(f"{member.key}/{rung}", record)
        for member in members:
            records = [self.ledger.records[f"{member.key}/{number}"] for number in range(rung + 1)]
            measured = self._measured(records)
            member.rung, member.fitness = rung, self.yardstick.fitness(measured)
            member.excess = self.excess(measured, self.examiner.rungs[rung])
            member.probe = _numbers(records[0]["probe"])

    def excess(self, measured: Measured, share: float) -> float:
        """By how much a recipe loses more on single tasks than the gate will allow, against the best parent."""
        parent, total = self.best_parent.prefix(share), 0.0
        for task in self.yardstick.kinds:
            change = self.yardstick.task_score(task, measured) / max(1e-9, self.yardstick.task_score(task, parent)) - 1
            total += max(0.0, -change - self.worst_loss)
        return total if np.isfinite(total) else 1.0

    def fitness_of_parent(self, name: str) -> float:
        return self.yardstick.fitness(self._measured(self.parents[name]))

    def _examine_in_processes(self, members: Sequence[Member], rung: int) -> None:
        """One task a recipe, carried out by the runtime's worker processes."""
        jobs = {member.key: self.stages(member.genome) for member in members}
        plan = Plan(Task(key, args={"job": self.job, "stages": stages, "rung": rung}) for key, stages in jobs.items())
        assert self._loop is not None

        def keep(task: str, record: Any) -> None:
            self.ledger.put(f"{task}/{rung}", record)
            self.examiner.times.add(record["seconds"])

        async def examine(task: Task, inputs: dict[str, Any]) -> None:
            assert self._workers is not None
            keep(task.id, await self._workers.call(examine_task, task, inputs))

        result = self._loop.run_until_complete(execute(plan, examine, on_failure="fail_fast"))
        for done in result.tasks.values():
            if done.error:
                raise AgentForgeError(f"a recipe could not be examined: {done.error}")

    def close(self) -> None:
        """Ends the worker processes, if there are any."""
        if self._loop is not None and self._workers is not None:
            self._loop.run_until_complete(self._workers.close())
            self._loop.close()
            self._loop = self._workers = None

    def _examined_whole(self, name: str) -> list[dict[str, Any]]:
        """The records of a parent, all rungs of it."""
        stages = [{"merge_method": "passthrough", "models": [{"model": name}], "dtype": self.dtype}]
        key = name_of({"stages": stages, **self.context})
        records = []
        for rung in range(len(self.examiner.rungs)):
            if (record := self.ledger.get(f"{key}/{rung}")) is None:
                self.ledger.put(f"{key}/{rung}", self.examiner.examine(stages, rung))
                record = self.ledger.records[f"{key}/{rung}"]
            records.append(record)
        return records

    def _use(self) -> Use:
        """Merges have the base's shape, so what they cost to run is measured once; kept, so that a resumed search goes
        on with the same figure."""
        key = name_of({"use": True, **self.context})
        if (record := self.ledger.get(key)) is None:
            stages = [
                {"merge_method": "passthrough", "models": [{"model": self.family.base.name}], "dtype": self.dtype}
            ]
            found = self.examiner.use_of(self.examiner.merged(stages))
            self.ledger.put(key, {"tokens_per_s": found.tokens_per_s, "memory_bytes": found.memory_bytes})
            record = self.ledger.records[key]
        return Use(record["tokens_per_s"], record["memory_bytes"])

    def _measured(self, records: Sequence[Mapping[str, Any]]) -> Measured:
        parts = [as_scores(record["scores"]) for record in records]
        return Measured(
            {name: np.concatenate([part[name] for part in parts]) for name in self.examiner.kinds}, self.use
        )


def _numbers(probe: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(0.0 if number is None else number for number in probe)


_EXAMINERS: dict[str, Examiner] = {}  # of this worker process


def examine_task(task: Task, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a worker process calls. The examiner of an evolution is made once in each process."""
    from agent_forge.forge.evolution.run import open_examiner
    from agent_forge.forge.evolution.settings import Evolve

    job = task.args["job"]
    name = name_of(job)
    if name not in _EXAMINERS:
        _EXAMINERS.clear()
        _EXAMINERS[name] = open_examiner(build(Evolve, job["config"], "evolve"), Path(job["models"]))
    return _EXAMINERS[name].examine(task.args["stages"], task.args["rung"])
