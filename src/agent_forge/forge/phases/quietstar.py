"""Phase 3, Quiet-STaR: the model learns to think before its tokens, and is judged against everything that could look
like thinking: see `agent_forge.forge.thoughts.judging`.

For each seed three models are trained from the same start on the same rows: with thoughts, with pauses in their place,
and for as many steps without either. First the start and end of a thought and the mixing head learn alone, then
everything. What passes the gate is the first seed's model; a pipeline hands on the input otherwise.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from agent_forge.config import option
from agent_forge.errors import ConfigError
from agent_forge.forge.checkpoint import Checkpoint, Metric, finish, staging
from agent_forge.forge.contracts import Contract
from agent_forge.forge.corpus import Source, SplitCorpus, mixed, read_corpus, source_digests
from agent_forge.forge.lineage import refuse_seen_documents
from agent_forge.forge.phases import Phase, PhaseOutcome, Work
from agent_forge.forge.phases.cognate import device, refuse_long_rows, settings_of
from agent_forge.forge.phases.measure import use_metrics
from agent_forge.forge.phases.specialise import reading_tokenizer
from agent_forge.forge.thoughts.folder import save_heads
from agent_forge.forge.thoughts.judging import (
    CONTROLS,
    Figures,
    ThoughtJudgement,
    coherence_metrics,
    sample_rows,
    token_nats,
)
from agent_forge.forge.thoughts.learning import Arm, ThoughtLoss
from agent_forge.forge.thoughts.model import ThinkingModel
from agent_forge.forge.thoughts.traces import (
    Trace,
    pack_traces,
    read_strategies,
    split_traces,
    trace_metrics,
    trace_nats,
    traces_of,
)
from agent_forge.forge.training import TrainSettings, encode, pack, train
from agent_forge.forge.training.evaluation import HeldOut
from agent_forge.forge.training.packing import PackedRows
from agent_forge.inference.loading import load_model, load_tokenizer

ARMS: tuple[Arm, ...] = ("thoughts", "pause", "plain")
DIVERGENCE = 100.0  # nats: the loss has a policy term, which may jump


@dataclass(frozen=True)
class QuietStar:
    """How thoughts are learnt. `training` holds further fields of TrainSettings."""

    sources: dict[str, Source] = option({"stories": Source("stories"), "problems": Source("problems", 0.25)})
    thought_tokens: int = option(8, help="Tokens per thought", at_least=1)
    thoughts: int = option(2, help="Thoughts per position, which are compared with each other", at_least=1)
    ahead: int = option(4, help="True tokens after the thought that it is rewarded for", at_least=1)
    positions: int = option(0, help="Positions per row to think at, drawn anew in every step (0: all)", at_least=0)
    form: Literal["quietstar", "rlp"] = option(
        "quietstar",
        help="Reward over the mean of several thoughts, or (rlp) of one thought over a moving average of the model",
    )
    average_decay: float = option(0.99, help="Decay of that average, per step", above=0, at_most=1)
    temperature: float = option(1.0, help="Temperature of the policy gradient (the paper: 3)", above=0)
    policy_weight: float = option(1.0, help="Weight of the policy gradient", at_least=0)
    head_steps: int = option(50, help="Steps in which only start, end and mixing head learn", at_least=0)
    head_lr: float = option(0.003, help="Their learning rate meanwhile", above=0)
    steps: int = option(100, help="Steps in which everything learns", at_least=1)
    batch_rows: int = option(8, help="Rows per step", at_least=1)
    length: int = option(256, help="Tokens per row", at_least=8)
    seeds: int = option(3, help="Repetitions; fewer than 3 cannot pass the gate", at_least=1)
    held_out: float = option(0.05, help="Share of the documents held out for judging", above=0, at_most=0.5)
    most_judged: int = option(16_384, help="Limit on the held-out tokens to judge on", at_least=1)
    traces: str = option("", help="Questions with worked answers to learn thoughts from first, e.g. problems")
    trace_steps: int = option(50, help="Steps on these traces, if there are any", at_least=1)
    strategies: str = option("", help="YAML file that says how an answer becomes a thought (default: the package's)")
    training: dict[str, Any] = option({})
    other_names: ClassVar[dict[str, str]] = {
        "thought_length": "it is `thought_tokens` here",
        "num_thoughts": "it is `thoughts` here",
        "coherence_threshold": "coherence is measured (see the card) and does not decide: the gate is the gain in "
        "likelihood over every control",
    }

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError("name at least one source of text", where="sources")
        if self.form == "quietstar" and self.thoughts < 2:
            fix = "Set `thoughts` to 2 or more, or `form: rlp`"
            raise ConfigError("a thought needs another one to be compared with", where="thoughts", fix=fix)
        if self.form == "rlp" and self.thoughts != 1:
            fix = "Set `thoughts: 1`: against the mean of several, the average would cancel out"
            raise ConfigError("the form `rlp` has one thought per position", where="thoughts", fix=fix)
        if self.traces:
            read_strategies(self.strategies)
        for name in ("steps", "batch_rows"):
            if name in self.training:
                raise ConfigError(f"{name!r} belongs beside `training`", where="training")
        self.schedule(self.steps, 0)

    def schedule(self, steps: int, seed: int, **optimizer: float) -> TrainSettings:
        """The settings of one run; `optimizer` changes those of the preset."""
        usual = {"optimizer": "quietstar", "warmup": max(1, steps // 10), "log_every": 5, "divergence": DIVERGENCE}
        asked = {**usual, **self.training, "steps": steps, "batch_rows": self.batch_rows, "compile": False}
        changes = {**optimizer, **asked.get("optimizer_changes", {})}
        return settings_of({**asked, "optimizer_changes": changes}, seed)

    def loss(self, arm: Arm) -> ThoughtLoss:
        names = ("thought_tokens", "thoughts", "ahead", "positions", "temperature", "policy_weight")
        decay = self.average_decay if self.form == "rlp" else 0.0
        return ThoughtLoss(arm, **{name: getattr(self, name) for name in names}, average_decay=decay)


@dataclass(frozen=True)
class ThoughtStudy:
    """One run of the phase: what it starts from, learns from, and is judged on."""

    work: Work
    tokenizer: Any
    data: PackedRows
    judged: PackedRows
    traces: tuple[list[Trace], list[Trace]] = ([], [])  # to learn from, and held out

    @property
    def config(self) -> QuietStar:
        config: QuietStar = self.work.config
        return config

    def start(self, seed: int) -> ThinkingModel:
        """The input with new heads."""
        torch.manual_seed(self.work.seed + seed)
        model = load_model(self.work.inputs[0].path, dtype=torch.float32)
        return ThinkingModel.of(model, self.tokenizer).to(device())

    def baked(self, seed: int) -> ThinkingModel:
        """What every arm starts from: the input or, with traces, what has learnt from them, which is trained once."""
        thinking = self.start(seed)
        if self.traces[0]:
            rows = pack_traces(self.traces[0], self.tokenizer, thinking, self.config.length, alone=False)
            folder = self.work.folder / "traces"
            self._train(thinking, self.config.trace_steps, 0, ThoughtLoss("plain"), folder, rows, "traces")
        return thinking

    def trained(self, arm: Arm, seed: int) -> ThinkingModel:
        """An arm's model; continues what an interrupted run has left."""
        config, thinking, loss = self.config, self.baked(seed), self.config.loss(arm)
        folder, label = self.work.folder / f"{arm}-{seed}", f"{arm}, seed {seed}"
        if config.form == "rlp" and arm == "thoughts":
            thinking.keep_average()
        steps = config.steps
        if arm == "plain":
            steps += config.head_steps  # the control learns from the text meanwhile
        elif config.head_steps:
            thinking.model.requires_grad_(False)
            rates = {"lr": 3 * config.head_lr, "scalar_lr": config.head_lr}
            self._train(thinking, config.head_steps, seed, loss, folder / "heads", self.data, label, rates)
            thinking.model.requires_grad_(True)
        after = 0 if arm == "plain" else config.head_steps
        self._train(thinking, steps, seed, loss, folder / "all", self.data, label, after=after)
        return thinking

    def _train(
        self,
        model: ThinkingModel,
        steps: int,
        seed: int,
        loss: ThoughtLoss,
        folder: Path,
        rows: PackedRows,
        label: str,
        optimizer: dict[str, float] | None = None,
        after: int = 0,
    ) -> None:
        """Trains and tells of it. `after` is the number of steps before these, of the same arm."""
        settings = self.config.schedule(steps, self.work.seed + seed, **(optimizer or {}))

        def note(record: dict[str, Any]) -> None:
            step = after + record["step"]
            self.work.tell(**{**record, **loss.figures, "step": step}, steps=after + steps, stage=label)

        train(model, rows, settings, folder, on_record=note, progress=None, loss=loss)

    def figures(self, arm: Arm, seed: int, judge: ThinkingModel | None = None) -> Figures:
        """The nats of every judged token, kept in a file: a run that is resumed does not train an arm again."""
        file = self.work.folder / f"{arm}-{seed}.npz"
        if not file.is_file():
            model = self.trained(arm, seed)
            count = self.config.thought_tokens
            figures = token_nats(model, self.judged, arm, count, judge=judge, tell=self.work.tell)
            part = file.with_suffix(".part")
            with open(part, "wb") as handle:
                np.savez(handle, **figures)  # type: ignore[arg-type]
            part.replace(file)
        if (arm, seed) != ("thoughts", 0):  # that one's weights are the result
            shutil.rmtree(self.work.folder / f"{arm}-{seed}", ignore_errors=True)
        with np.load(file) as stored:
            return dict(stored)

    @cached_property
    def original(self) -> ThinkingModel:
        original = self.start(0)
        config = self.config
        refuse_long_rows(original.config, config.length + config.thought_tokens + config.ahead + 1)
        return original

    @cached_property
    def before(self) -> np.ndarray:
        return token_nats(self.original, self.judged, "plain")["zero"]

    def judgement(self, seeds: int) -> tuple[ThoughtJudgement, dict[str, Metric]]:
        """Every arm of so many seeds against the controls, and what the input makes of the first seed's thoughts."""
        self.work.folder.mkdir(parents=True, exist_ok=True)
        arms: dict[str, list[np.ndarray]] = {name: [] for name in ("thoughts", *CONTROLS) if name != "before"}
        metrics: dict[str, Metric] = {}
        for seed in range(seeds):
            for arm in ARMS:
                figures = self.figures(arm, seed, self.original if arm == "thoughts" and seed == 0 else None)
                arms[arm].append(figures["zero" if arm == "plain" else arm])
                if arm == "thoughts":
                    arms["zero"].append(figures["zero"])
                    arms["shuffled"].append(figures["shuffled"])
                    metrics |= coherence_metrics(figures) if seed == 0 else {}
        documents = self.judged.documents[:, 1:]
        judgement = ThoughtJudgement(documents[documents >= 0], self.before, arms)
        return judgement, {**judgement.metrics(), **metrics}


def study_of(work: Work) -> tuple[ThoughtStudy, SplitCorpus]:
    """What the phase learns from and is judged on. Raises HandoffError if the model has seen any of the latter."""
    config: QuietStar = work.config
    base = work.inputs[0]
    for name, source in config.sources.items():
        refuse_seen_documents(base, name, source.path, source.held_out or config.held_out)
    tokenizer = reading_tokenizer(base)
    corpus = read_corpus(config.sources, config.held_out)
    learnt, judged = learning_rows(work, tokenizer, corpus), judged_rows(work, tokenizer, corpus)
    return ThoughtStudy(work, tokenizer, learnt, judged, read_traces(config)), corpus


def run(work: Work) -> PhaseOutcome:
    study, corpus = study_of(work)
    traces = learn_traces(study, study.original)
    judgement, metrics = study.judgement(work.config.seeds)
    checkpoint = save(study, corpus, {**metrics, **traces})
    return PhaseOutcome(checkpoint, judgement.gate())


def read_traces(config: QuietStar) -> tuple[list[Trace], list[Trace]]:
    if not config.traces:
        return [], []
    return split_traces(traces_of(config.traces, read_strategies(config.strategies)), config.held_out)


def learn_traces(study: ThoughtStudy, original: ThinkingModel) -> dict[str, Metric]:
    """Learns from the traces, if there are any; what that did to held-out ones."""
    held_out, length = study.traces[1], study.config.length
    if not held_out:
        return {}
    models = (original, study.baked(0))
    return trace_metrics(*(trace_nats(model, held_out, study.tokenizer, length) for model in models))


def learning_rows(work: Work, tokenizer: Any, corpus: SplitCorpus) -> PackedRows:
    config: QuietStar = work.config
    rows = {
        name: pack(encode(tokenizer, texts), config.length, tokenizer.bos_token_id, tokenizer.pad_token_id)
        for name, texts in corpus.train.items()
    }
    needed = (config.head_steps + config.steps) * config.batch_rows
    weights = {name: source.weight for name, source in config.sources.items()}
    packed: PackedRows = mixed(rows, weights, min(needed, 4 * sum(map(len, rows.values()))), work.seed)
    return packed


def judged_rows(work: Work, tokenizer: Any, corpus: SplitCorpus) -> PackedRows:
    texts = [text for texts in corpus.held_out.values() for text in texts]
    return sample_rows(HeldOut.of(tokenizer, texts, work.config.length), work.config.most_judged)


def save(study: ThoughtStudy, corpus: SplitCorpus, metrics: dict[str, Metric]) -> Checkpoint:
    """The first seed's model with its heads, as a checkpoint."""
    work, thinking = study.work, study.trained("thoughts", 0)
    removed = {"leaked_documents_removed": Metric(float(corpus.removed))}
    card = work.card(corpus.digests(), {**metrics, **use_metrics(thinking.model), **removed})
    with staging(work.models) as folder:
        thinking.model.cpu().save_pretrained(folder)
        load_tokenizer(work.inputs[0].path).save_pretrained(folder)
        save_heads(thinking, work.config.thought_tokens, folder)
        return finish(folder, card, work.models)


def data_digests(config: QuietStar) -> dict[str, str]:
    traces = {"traces": Source(config.traces)} if config.traces else {}
    digests = source_digests({**config.sources, **traces})
    if config.traces:
        digests["strategies"] = hashlib.sha256(
            repr(sorted(read_strategies(config.strategies).items())).encode()
        ).hexdigest()
    return digests


PHASE = Phase(
    name="quietstar",
    version=2,
    about="Learn to think before tokens",
    config=QuietStar,
    takes=Contract(checkpoints=(1, 1), formats=("dense",), tokenizer=True),
    promises=Contract(tokenizer=True),
    run=run,
    data=data_digests,
)
