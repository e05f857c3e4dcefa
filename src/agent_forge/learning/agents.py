"""Trains the model of an agent on its own exercises: supervised first, then by reinforcement, judged on held-out ones.

    agent-forge train qa --base-model smollm2 --iterations 100 --out qa-policy
    agent-forge train qa --base-model smollm2 --algorithm dpo --traces HOME --out qa-policy

From a base that scores near zero no reward signal comes, so it first learns the reference solvers' answers. The report
tells the gains apart: held-out means before, after the warm-up, after reinforcement and, with `control`, after as many
further supervised steps instead. What is written is an adapter as PEFT writes it (without `lora` a whole model), which
is registered as the agent's next policy.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import nn

from agent_forge.agents.profiles import AgentProfile, choose_profile, find_profile, roster
from agent_forge.config import as_dict, build
from agent_forge.errors import DataError, UsageError
from agent_forge.files import atomic_write
from agent_forge.forge.adapters import add_adapter, save_adapter
from agent_forge.forge.checkpoint import Checkpoint
from agent_forge.forge.contracts import format_of
from agent_forge.forge.doors import settings_for
from agent_forge.forge.gates import GateResult, judge
from agent_forge.forge.models import CognateForCausalLM
from agent_forge.forge.opening import ModelName, find_model
from agent_forge.forge.phases.cognate import device
from agent_forge.forge.phases.worker import locked
from agent_forge.forge.progress import Tell, silent
from agent_forge.forge.quantization.folder import copy_tokenizer
from agent_forge.forge.training import checkpoint as ck
from agent_forge.forge.training import train
from agent_forge.forge.training.reinforce import ReinforceResult, learn_policy
from agent_forge.forge.training.settings import ReinforceSettings, first_updates
from agent_forge.forge.training.watch import HeldOutScore
from agent_forge.inference.loading import load_model, load_tokenizer
from agent_forge.learning.attempts import (
    AnswerCollector,
    AnswerGrammar,
    SamplingCopy,
    TurnCollector,
    reference_of,
    write_answers,
)
from agent_forge.learning.practice import Judged, Judges, Practice, gains, judging, paired, score_of
from agent_forge.learning.preferences import PreferenceLoss, pack_preferences, reference_margins
from agent_forge.learning.recorded import Attempts, attempts_of, records_of
from agent_forge.learning.settings import AgentTraining
from agent_forge.learning.stages import RunStages, shown_as_session
from agent_forge.learning.supervised import adamw_settings, in_main_memory, learn_pairs
from agent_forge.tasks import Exercise
from agent_forge.tasks.fixed import held_out

REPORT = "report.json"
METRIC = "held-out reward"
_CONTROL = 50_000  # the number of the first exercise of the control
_HELD_OUT = 1  # the seed of the report's exercises; that of the fixed ones is 0


@dataclass(frozen=True)
class AgentReport:
    """How an agent did on held-out exercises at each stage, and the policy that was registered."""

    agent: str
    out: Path
    stages: Mapping[str, Judged]  # before, warmup, after, control
    gate: GateResult
    policy: Mapping[str, str]  # name and digest
    stopped: str | None = None  # why reinforcement ended early
    counts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def accepted(self) -> bool:
        return self.gate.passed

    def as_dict(self) -> dict[str, Any]:
        stages = {name: asdict(score_of(rewards)) for name, rewards in self.stages.items()}
        figures = {"gate": self.gate.as_dict(), "accepted": self.accepted, **gains(self.stages), **self.counts}
        return {
            "agent": self.agent, "out": str(self.out), **stages, "policy": dict(self.policy), "stopped": self.stopped,
            **figures,
        }  # fmt: skip


def train_agent(
    agent: str | AgentProfile,
    base: ModelName,
    out: str | os.PathLike[str],
    settings: AgentTraining | None = None,
    *,
    seed: int = 0,
    home: str | os.PathLike[str] | None = None,
    tools: Any = None,
    tell: Tell = silent,
    **fields: Any,
) -> AgentReport:
    """Trains `base`, any causal LM, for an agent of the genesis roster (or a profile) into the new folder `out`.

    A run that was interrupted or killed leaves its checkpoints beside `out`, and the same call continues from them.
    Raises ConfigError, DataError, UsageError.
    """
    config = settings_for(AgentTraining, settings, fields, "train")
    profile = trained_profile(agent, config)
    source, target = find_model(base, home), Path(out)
    if target.exists():
        raise UsageError("the folder exists already", where=str(target), fix="Name one that does not")
    target.parent.mkdir(parents=True, exist_ok=True)
    about = json.dumps([as_dict(profile), as_dict(config), source.digest, seed, target.name], default=str)
    key = hashlib.sha256(about.encode()).hexdigest()[:12]
    place = target.parent / f".training-{key}"
    steps = {"warmup": config.warmup_steps, config.algorithm: config.iterations}
    steps |= {"control": config.iterations} if config.control else {}
    with locked(place):
        try:
            with (
                judging(profile, config.judges) as judges,
                judging(profile, config.judges, config.reward) as rewarders,
                shown_as_session(home, session_of(place, profile), f"train {profile.name}", steps, seed) as stages,
            ):
                run = AgentRun(profile, config, source, place, seed, tell, judges, rewarders, stages, tools)
                run.carry_out()
                report = run.write(target, home)
        except BaseException:
            if not any(place.rglob("step-*")):  # nothing to go on from
                shutil.rmtree(place, ignore_errors=True)
            raise
        shutil.rmtree(place, ignore_errors=True)
    return report


def session_of(place: Path, profile: AgentProfile) -> str:
    """The session that shows the run which keeps its checkpoints in `place`: a new one unless that run goes on."""
    note = place / "session"
    if not note.is_file():
        note.write_text(f"train-{profile.name}-{uuid4().hex[:12]}", encoding="utf-8")
    return note.read_text(encoding="utf-8")


def trained_profile(agent: str | AgentProfile, config: AgentTraining) -> AgentProfile:
    """The agent, with the task family that it is to practise. Raises UsageError."""
    if isinstance(agent, str):
        known = roster("genesis")
        agent = known[agent] if agent in known else _chosen(agent)
    return agent if config.task_type == "auto" else replace(agent, family=config.task_type)


def _chosen(name: str) -> AgentProfile:
    is_own = name.endswith((".yaml", ".yml")) or os.sep in name or ":" in name
    return choose_profile(name) if is_own else find_profile(name, dict(roster("genesis")))


class AgentRun:
    """A run and what it stands on: the model, its practice, and the rewards of every stage so far."""

    def __init__(
        self,
        profile: AgentProfile,
        config: AgentTraining,
        source: Checkpoint,
        place: Path,
        seed: int,
        tell: Tell,
        judges: Judges,
        rewarders: Judges,
        shown: RunStages,
        tools: Any = None,
    ) -> None:
        self.profile, self.config, self.source, self.place, self.seed = profile, config, source, place, seed
        self.judges, self.rewarders, self.tools = judges, rewarders, tools
        self.shown, self.tell = shown, tell
        torch.manual_seed(seed)
        self.model, tokenizer = prepare(source.path)
        if config.lora:
            add_adapter(self.model, config.adapter)
        self.model.to(device())
        self.practice = Practice.of(profile, self.model, tokenizer, seed)
        self.policy = SamplingCopy(self.model)
        self.grammar = AnswerGrammar.of(self.practice)
        self.held_out = held_out(self.practice.tasks, config.judged, _HELD_OUT)
        self.stages: dict[str, Judged] = self._stages()
        self.result: ReinforceResult | None = None
        self.attempts: Attempts | None = None

    def carry_out(self) -> None:
        """All stages; those that an interrupted run has finished are not done again."""
        config = self.config
        if config.algorithm in ("sft", "dpo") and config.iterations:
            self.attempts = self.read_traces()  # first: it may be refused
        self.judge("before")
        if config.warmup_steps:
            with self.shown.stage("warmup"):
                self.supervise("warmup", 0, config.warmup_steps, config.warmup_rate)
        self.judge("warmup")
        if config.iterations:
            with self.shown.stage(config.algorithm):
                self.reinforce() if self.attempts is None else self.learn_traces(self.attempts)
        self.judge("after")
        if config.control and config.iterations and "control" not in self.stages:
            learnt = {name: weight.clone() for name, weight in ck.weights_of(self.model).items()}
            self.restart()
            with self.shown.stage("control"):
                rate = config.control_rate or config.warmup_rate
                self.supervise("control", _CONTROL, self.optimiser_steps, rate)
            self.judge("control")
            ck.restore_weights(self.model, learnt)

    @property
    def optimiser_steps(self) -> int:
        """Updates after the warm-up: the control makes as many, on as many references each as the warm-up had."""
        return self.config.iterations * (self.config.updates if self.config.algorithm in ("grpo", "ppo") else 1)

    def judge(self, stage: str) -> None:
        """The rewards of a stage on the held-out exercises, unless they are known."""
        if stage not in self.stages:
            if stage == "warmup" and not self.config.warmup_steps:
                self.stages[stage] = self.stages["before"]
            else:
                self.tell(stage=f"judge: {stage}")
                self.stages[stage] = self.rewards(self.held_out)
            with atomic_write(self.place / "stages.json") as file:
                json.dump(self.stages, file)
        score = score_of(self.stages[stage])
        self.shown.tell(stage, mean=score.mean, stderr=score.stderr, correct=score.correct)

    def _stages(self) -> dict[str, Judged]:
        with suppress(OSError, ValueError):
            text = (self.place / "stages.json").read_text(encoding="utf-8")
            return {name: [(total, correct) for total, correct in rows] for name, rows in json.loads(text).items()}
        return {}

    def rewards(self, exercises: Sequence[Exercise]) -> Judged:
        """What the policy earns now, as `agents eval` would judge it: greedy, bound to the schema."""
        _, answers = write_answers(
            self.policy, self.practice, exercises, max_tokens=self.config.max_tokens, constraint=self.grammar
        )
        return self.judges(answers)

    # -- learning

    def supervise(self, name: str, first: int, steps: int, rate: float) -> None:
        """Learns reference solutions of fresh exercises, as far as `references` reach."""
        wanted, count = self.config.supervised(steps)
        exercises = [self.practice.exercise(first + number) for number in range(count)]
        pairs = [
            (self.practice.prompt(each), self.practice.encoded(self.practice.solution(each))) for each in exercises
        ]
        training = self._training()
        if name == "control":  # it goes on from the warm-up, as reinforcement does
            training = {"warmup": first_updates(steps), **training}
        learn_pairs(
            self.model, pairs, steps, rate, folder=self.place / name, length=self.config.length, epochs=wanted / count,
            training=training, seed=self.seed, on_record=self.record(name, steps),
        )  # fmt: skip

    def _training(self) -> dict[str, Any]:
        return {"gradient_checkpointing": self.config.gradient_checkpointing, **self.config.training}

    def reinforce(self) -> None:
        settings = reinforce_settings(self.config, self.seed)
        if self.model.device.type == "cpu" and "micro_rows" not in self.config.reinforcement:
            settings = replace(settings, micro_rows=settings.copies)  # memory for one exercise's answers at once
        validation = self.practice.validation(max(8, self.config.judged))

        def evaluate(_: nn.Module) -> HeldOutScore:
            self.tell(stage="judge: whether to go on")
            return HeldOutScore.of([reward for reward, _ in self.rewards(validation)])

        if self.config.turns == 1:
            bound = self.grammar if self.config.constrained else None
            collect: Any = AnswerCollector(
                self.policy, self.practice, self.rewarders, settings, bound, self.config.by_parts
            )
        else:
            collect = TurnCollector(
                self.policy, self.profile, self.practice, self.rewarders, settings, turns=self.config.turns,
                strategy=self.config.credit, tools=self.tools, constrained=self.config.constrained,
            )  # fmt: skip
        self.result = learn_policy(
            self.model,
            collect,
            settings,
            folder=self.place / "reinforce",
            reference=reference_of(self.model) if self.config.lora or self.config.kl else None,
            evaluate=evaluate,
            on_record=self.record(self.config.algorithm, settings.iterations),
            progress=None,
        )

    def read_traces(self) -> Attempts:
        """What the traces have to learn from. Raises DataError if that is nothing."""
        attempts = attempts_of(records_of(str(self.config.traces)), self.practice, self.held_out)
        if not (attempts.right if self.config.algorithm == "sft" else attempts.pairs()):
            both = "" if self.config.algorithm == "sft" else " and wrong ones at the same exercises"
            raise DataError(
                f"the traces have no right attempts{both} ({attempts.counts()})", where=str(self.config.traces),
                fix=f"Collect some: agent-forge traces collect --agents {self.profile.name} --model reference,random",
            )  # fmt: skip
        return attempts

    def learn_traces(self, attempts: Attempts) -> None:
        """SFT on the right attempts in the traces, or DPO on right against wrong ones."""
        config, practice = self.config, self.practice
        right, pairs = attempts.right, attempts.pairs()
        rows = right if config.algorithm == "sft" else pairs
        steps = min(config.iterations, math.ceil(config.epochs * len(rows) / config.batch_size))
        learnt = self.record(config.algorithm, steps)
        if config.algorithm == "sft":
            single = [(practice.prompt(each.exercise), practice.encoded(each.text)) for each in right]
            learn_pairs(
                self.model, single, steps, config.learning_rate, folder=self.place / "sft", length=config.length,
                epochs=steps * config.batch_size / len(rows), training=self._training(), seed=self.seed,
                on_record=learnt,
            )  # fmt: skip
            return
        triples = [
            (practice.prompt(good.exercise), practice.encoded(good.text), practice.encoded(bad.text))
            for good, bad in pairs
        ]
        data = pack_preferences(triples, config.length)
        loss = PreferenceLoss(reference_margins(self.model, data, len(triples)))
        per_step = max(1, math.ceil(config.batch_size * len(data) / len(triples)))
        fixed = {"compile": False, "divergence": math.inf, **in_main_memory(self.model, data.length)}
        training = {**fixed, **self._training()}
        settings = adamw_settings(steps, per_step, config.learning_rate, training, self.seed)
        train(self.model, data, settings, self.place / "dpo", on_record=learnt, progress=None, loss=loss)

    def restart(self) -> None:
        """Puts back the weights that the model had after its warm-up."""
        saved = ck.checkpoints(self.place / "warmup")
        if saved:
            ck.restore_weights(self.model, ck.load_checkpoint(saved[-1])[0]["model"])
            return
        torch.manual_seed(self.seed)
        fresh, _ = prepare(self.source.path)
        if self.config.lora:
            add_adapter(fresh, self.config.adapter)
        ck.restore_weights(self.model, ck.weights_of(fresh))

    def record(self, stage: str, steps: int) -> Any:
        """Passes the records of a stage on: to the log, to TensorBoard, and to whoever listens."""

        def pass_on(record: Mapping[str, Any]) -> None:
            self.shown.tell(stage, **{**record, "steps": steps})
            self.tell(**{**record, "steps": steps, "phase": stage})

        return pass_on

    # -- the result

    def write(self, out: Path, home: str | os.PathLike[str] | None) -> AgentReport:
        """Writes the policy and its report into `out`, and registers it."""
        from agent_forge.forge.policies import register_policy
        from agent_forge.learning.exercises import rules_of

        making = self.place / "policy"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        if self.config.lora:
            save_adapter(self.model, making, base=self.source.path)
        else:
            self.model.save_pretrained(making)
            copy_tokenizer(self.source.path, making)
        _, error = paired(self.stages["before"], self.stages["after"])
        means = [score_of(self.stages[stage]).mean for stage in ("before", "after")]
        gate = judge(METRIC, means[0], means[1], error, lower_is_better=False)
        digest = hashlib.sha256(json.dumps(self.data()).encode()).hexdigest()
        stages = {name: asdict(score_of(rewards)) for name, rewards in self.stages.items()}
        entry = register_policy(
            making, self.source.path, self.profile.name, stages, reward=rules_of(self.profile).name, data=digest,
            home=home,
        )  # fmt: skip
        self.shown.judged(self.config.algorithm if self.config.iterations else "warmup", gate.as_dict(), entry.digest)
        policy = {"name": entry.name, "digest": entry.digest}
        stopped = None if self.result is None else self.result.stopped
        report = AgentReport(self.profile.name, out, self.stages, gate, policy, stopped, self.counts())
        (making / REPORT).write_text(json.dumps(report.as_dict(), indent=2), encoding="utf-8")
        shutil.copyfile(self.shown.folder / "events.jsonl", making / "events.jsonl")
        making.rename(out)
        return report

    def data(self) -> dict[str, Any]:
        """What the policy has learnt from, to be compared: the exercises are a function of it."""
        tasks, config = self.practice.tasks, self.config
        drawn = {"family": tasks.name, "version": tasks.version, "seed": self.seed, "settings": as_dict(config)}
        return drawn if self.attempts is None else {**drawn, "traces": self.attempts.digest()}

    def counts(self) -> dict[str, Any]:
        steps = self.config.warmup_steps
        counts: dict[str, Any] = {"warmup_steps": steps, "references": self.config.supervised(steps)[1]}
        if self.attempts is not None:
            counts["traces"] = self.attempts.counts()
        if self.result is not None:
            counts |= {"iterations": self.result.iterations, "seconds": self.result.seconds}
        return counts


def prepare(folder: Path) -> tuple[Any, Any]:
    """The base with float32 weights and its tokenizer. Raises UsageError for one that cannot be trained so."""
    if format_of(folder) != "dense":
        raise UsageError("a packed model cannot be trained", where=str(folder), fix="Name the model it was packed from")
    model = load_model(folder, dtype=torch.float32)
    if isinstance(model, CognateForCausalLM):
        fix = "Start from a Llama-shaped model"
        raise UsageError("Cognate does not read sheets, where prompts share what they begin with", fix=fix)
    return model, load_tokenizer(folder)


def reinforce_settings(config: AgentTraining, seed: int) -> ReinforceSettings:
    """The settings of the reinforcement loop for an agent's. Raises ConfigError."""
    shared = ("algorithm", "iterations", "max_tokens", "normalise", "learning_rate", "kl",
              "evaluate_every", "patience", "gradient_checkpointing")  # fmt: skip
    fields: dict[str, Any] = {name: getattr(config, name) for name in shared}
    fields |= {"prompts": config.batch_size // config.group, "copies": config.group, "minibatches": config.updates}
    fields |= {"discount": config.discount, "save_every": config.checkpoint_every, "seed": seed}
    fields["temperature"] = config.sampling_temperature
    return build(ReinforceSettings, {**fields, **config.reinforcement}, "reinforcement")
