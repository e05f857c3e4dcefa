"""Reinforcement learning on one machine: sample answers, score them, learn from them, and stop when it goes wrong.

    reinforce(model, draw, reward, settings, tokenizer=tokenizer, end=tokenizer.eos_token_id, evaluate=held_out)

`reinforce` is the loop for single answers. What it stands on, `learn_policy`, takes experience from anywhere: an
agent's turns with tools are rows whose mask leaves out what the tools wrote, with an advantage for every token.

Optimiser, micro-batches, memory, checkpoints and log are those of the training loop (`TrainingRun`).

Shapes: N rows, T tokens, L sampled tokens, V vocabulary; what stands at a token is [N, T].
"""

from __future__ import annotations

import copy
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor, nn

from agent_forge.errors import UsageError
from agent_forge.forge.adapters import adapted_layers, without_adapter
from agent_forge.forge.training import checkpoint as ck
from agent_forge.forge.training.experience import Experience, reward_at_the_end, row_lengths, with_signal
from agent_forge.forge.training.loop import TrainingDiverged, TrainingRun
from agent_forge.forge.training.packing import IGNORE, Batch
from agent_forge.forge.training.policy import (
    ValueHead,
    generalised_advantages,
    group_advantages,
    log_probs_and_values,
    policy_loss,
    step_advantages,
    value_loss,
    whitened,
)
from agent_forge.forge.training.sampling import Constraint, Samples, evaluating, sample
from agent_forge.forge.training.settings import ReinforceSettings
from agent_forge.forge.training.shared_prompts import sheet_width, sheets_of_rows
from agent_forge.forge.training.watch import HeldOutScore, PolicyWatch
from agent_forge.plans import Task
from agent_forge.runtime.jobs import Jobs, Place
from agent_forge.runtime.process_worker import find
from agent_forge.runtime.workers import reference

MEASURED = 8  # answers, at least, by which the length of an update is measured
Reward = float | Sequence[float]  # of a whole answer, or of every sampled token (its credit, or what followed it)


@dataclass(frozen=True)
class PromptItem:
    """A prompt to answer, and what its reward is computed from."""

    prompt: Sequence[int]
    item: Any = None


@dataclass
class ReinforceResult:
    """What became of a run. The model has the weights of the best evaluation, or of the end without one."""

    iterations: int = 0
    stopped: str | None = None  # why the run ended early
    rewards: list[float] = field(default_factory=list)  # mean of each iteration's rollouts, since the start or resume
    before: HeldOutScore | None = None
    best: HeldOutScore | None = None
    after: HeldOutScore | None = None  # the last evaluation
    seconds: dict[str, float] = field(default_factory=dict)  # generate, score, learn
    tokens: int = 0  # sampled ones that were learnt from
    peak_memory: int | None = None  # bytes, on a GPU


# ---------------------------------------------------------------------------------------------- single answers


def reinforce(
    model: nn.Module,
    draw: Callable[[int], Sequence[PromptItem]],
    reward: Callable[[Any, Any], Reward],
    settings: ReinforceSettings,
    *,
    end: int | Sequence[int] | None = None,
    tokenizer: Any = None,
    constraint: Callable[[PromptItem], Any] | None = None,
    folder: Path | None = None,
    reference: nn.Module | None = None,
    evaluate: Callable[[nn.Module], HeldOutScore] | None = None,
    on_record: Callable[[dict[str, Any]], None] | None = None,
    value_head: nn.Module | None = None,
    progress: TextIO | None = sys.stderr,
    workers: Place = None,
) -> ReinforceResult:
    """Teaches `model` to answer the questions that `draw(number)` returns, by `reward(item, answer)`.

    `draw` must return the same questions for the same number, or a resumed run takes another course. The answer is a
    text with a `tokenizer`, else a list of tokens. `constraint(question)` starts a `Walk`. With `workers`
    ("processes:4", "ray://…"), they compute the rewards, one job per question: `reward` is then a function of a module,
    and items are JSON. The rest is as in `learn_policy`.
    """
    with Jobs(workers) as jobs:
        collect = SampleCollector(model, draw, reward, settings, end, tokenizer, constraint, jobs)
        return learn_policy(
            model,
            collect,
            settings,
            folder=folder,
            reference=reference,
            evaluate=evaluate,
            on_record=on_record,
            value_head=value_head,
            progress=progress,
        )


def reward_job(task: Task, inputs: Mapping[str, Any]) -> list[Reward]:
    """What a worker calls: the rewards of some answers."""
    reward = find(task.args["reward"])
    return [reward(item, answer) for item, answer in task.args["answers"]]


class Collector(ABC):
    """Has questions answered and scored, and leaves out groups that say nothing: others are drawn instead, but not for
    ever."""

    settings: ReinforceSettings

    @abstractmethod
    def draw(self, number: int) -> Sequence[Any]:
        """The questions of a draw: the same for the same number."""

    @abstractmethod
    def answers(self, questions: Sequence[Any], number: int) -> Experience:
        """Answers to questions, with their rewards; the groups are the places of the questions."""

    def __call__(self, iteration: int) -> Experience:
        """The experience of an iteration: without rows where no group says anything."""
        s = self.settings
        attempts = 1 + (s.resample if s.algorithm == "grpo" else 0)
        parts: list[Experience] = []
        first: Experience | None = None
        seconds = {"generate": 0.0, "score": 0.0}
        for number in range(iteration * attempts, (iteration + 1) * attempts):
            missing = s.prompts - sum(len(part.groups.unique()) for part in parts)
            if missing <= 0:
                break
            part = self.answers(self.draw(number)[:missing], number)
            first = first or part
            seconds = {name: spent + part.seconds[name] for name, spent in seconds.items()}
            parts.append(part.take(with_signal(part).nonzero()[:, 0]) if s.algorithm == "grpo" else part)
        assert first is not None
        if s.kl and not any(map(len, parts)):
            parts = [first]  # no advantages, but the KL term has something to say
        drawn = first.rewards if first.drawn is None else first.drawn
        return replace(Experience.joined(parts), drawn=drawn, seconds=seconds)


@dataclass
class SampleCollector(Collector):
    """Samples answers to the questions that `questions(number)` returns."""

    model: nn.Module
    questions: Callable[[int], Sequence[PromptItem]]
    reward: Callable[[Any, Any], Reward]
    settings: ReinforceSettings
    end: int | Sequence[int] | None = None
    tokenizer: Any = None
    constraint: Callable[[PromptItem], Any] | None = None
    jobs: Jobs | None = None

    def draw(self, number: int) -> Sequence[PromptItem]:
        return self.questions(number)

    def answers(self, questions: Sequence[PromptItem], number: int) -> Experience:
        s, constraint = self.settings, self.constraint
        start = time.perf_counter()
        walks: Constraint | None = None if constraint is None else lambda i: constraint(questions[i])
        samples = sample(
            self.model,
            [question.prompt for question in questions],
            copies=s.copies,
            max_tokens=s.max_tokens,
            temperature=s.temperature,
            end=self.end,
            seed=s.seed * 1_000_003 + number,
            constraint=walks,
        )
        written = time.perf_counter()
        answers: list[Any] = samples.answers()
        if self.tokenizer is not None:
            answers = self.tokenizer.batch_decode(answers, skip_special_tokens=True)
        items = [questions[i].item for i in samples.prompt_of.tolist()]
        rewards = self._rewards(list(zip(items, answers, strict=True)))
        spent = {"generate": written - start, "score": time.perf_counter() - written}
        return replace(_rewarded(samples, rewards), seconds=spent)

    def _rewards(self, answers: list[tuple[Any, Any]]) -> list[Reward]:
        if self.jobs is None or not self.jobs.elsewhere:
            return [self.reward(item, answer) for item, answer in answers]
        name, most = reference(self.reward), self.settings.copies
        jobs = [{"reward": name, "answers": answers[n : n + most]} for n in range(0, len(answers), most)]
        return [reward for rewards in self.jobs.map(reward_job, jobs) for reward in rewards]


def _rewarded(samples: Samples, rewards: Sequence[Reward]) -> Experience:
    """Experience from samples and their rewards: numbers, or a number for every sampled token."""
    rows = (samples.tokens, samples.mask, samples.log_probs)
    totals = torch.tensor([sum(each) if isinstance(each, Sequence) else float(each) for each in rewards])
    experience = Experience(*rows, totals, samples.prompt_of, allowed=samples.allowed)
    if not any(isinstance(each, Sequence) for each in rewards):
        return experience
    spread = torch.zeros_like(samples.mask)
    for row, (each, chosen) in enumerate(zip(rewards, samples.mask.bool(), strict=True)):
        if not isinstance(each, Sequence):
            raise UsageError("some rewards are numbers and some are one per token: return the same kind for all")
        places = chosen.nonzero()[:, 0]
        if len(each) not in (len(places), len(places) - 1):  # the end token, which a reward does not see, may have none
            raise UsageError(f"{len(each)} rewards for {len(places)} tokens", fix="Return one per token")
        places = places[: len(each)]
        spread[row, places] = torch.tensor(list(each), dtype=torch.float)
    return replace(experience, token_rewards=spread)


# ---------------------------------------------------------------------------------------------- the loop


def learn_policy(
    model: nn.Module,
    collect: Callable[[int], Experience | None],
    settings: ReinforceSettings,
    *,
    folder: Path | None = None,
    reference: nn.Module | None = None,
    evaluate: Callable[[nn.Module], HeldOutScore] | None = None,
    on_record: Callable[[dict[str, Any]], None] | None = None,
    value_head: nn.Module | None = None,
    progress: TextIO | None = sys.stderr,
) -> ReinforceResult:
    """Improves `model` with the experience that `collect(iteration)` brings (without rows: nothing to learn; None: the
    run ends here, as when its time is up).

    With a `folder`, resumes from its last checkpoint and saves new ones; `model` must then be what it was at the start.
    `reference` is what the KL is measured from: by default the base below an adapter, or a copy of the start where the
    loss has a KL term. The run stops when the reward collapses, the KL exceeds its limit, the loss is not finite, or
    the held-out score falls or stops improving; the model then has the best weights known. Raises TrainingDiverged
    where there are none to go back to.
    """
    run = PolicyRun(model, settings, folder, reference, evaluate, on_record, value_head, progress)
    with run.train.prepared():
        run.begin()
        while run.iteration < settings.iterations and run.watch.stopped is None:
            with evaluating(model), run.train.precision():
                experience = collect(run.iteration)
            if experience is None:
                break
            run.learn(experience)
        return run.finish()


class PolicyRun:
    """One run: the policy and its value head, the training core under it, and the watch over both."""

    def __init__(
        self,
        model: nn.Module,
        settings: ReinforceSettings,
        folder: Path | None,
        reference: nn.Module | None,
        evaluate: Callable[[nn.Module], HeldOutScore] | None,
        on_record: Callable[[dict[str, Any]], None] | None,
        value_head: nn.Module | None,
        progress: TextIO | None,
    ) -> None:
        if settings.algorithm == "ppo" and value_head is None:
            value_head = ValueHead.for_model(model)
        self.model, self.settings, self.folder, self.evaluate = model, settings, folder, evaluate
        self.adapted = any(True for _ in adapted_layers(model))
        if reference is None and settings.kl and not self.adapted:
            reference = copy.deepcopy(model).eval()
        self.reference = reference
        _without_dropout(model)
        self.whole = WithValueHead(model, value_head)
        self.train = TrainingRun(
            self.whole, _Length(settings.max_tokens), settings.training(), folder, None, on_record, progress, self.loss
        )
        self.watch = PolicyWatch(settings)
        self.good: dict[str, Tensor] | None = None  # the best weights, where there is no folder for them
        self.figures: list[tuple[Tensor, Tensor]] = []  # tokens and figures of the losses since the last record
        self.moved: list[float] = []  # the KL of each update since then, before it was held back
        self.passed: list[Tensor] = []  # log-probabilities of an update's micro-batches, before its step
        self.result = ReinforceResult()

    @property
    def iteration(self) -> int:
        return self.train.step // self.settings.updates

    def begin(self) -> None:
        """After resuming: what the run knew; else the first evaluation."""
        if self.train.notes:
            self.watch = PolicyWatch.from_notes(self.settings, self.train.notes)
        elif self.evaluate is not None:
            self.judge()

    # ------------------------------------------------------------------------------------------ one iteration

    def learn(self, experience: Experience) -> None:
        """The updates of one iteration, and what is done after it."""
        s, start = self.settings, time.perf_counter()
        drawn = experience.rewards if experience.drawn is None else experience.drawn
        end = (self.iteration + 1) * s.updates  # also where there was less to learn from
        figures, kl = self.update(experience) if len(experience) else ({}, None)
        self.train.step = end
        seconds = {**experience.seconds, "learn": time.perf_counter() - start}
        for name, spent in seconds.items():
            self.result.seconds[name] = self.result.seconds.get(name, 0.0) + spent
        record: dict[str, Any] = {"step": self.train.step, "iteration": self.iteration, "reward": float(drawn.mean())}
        record |= {"reward_spread": float(drawn.std()) if len(drawn) > 1 else 0.0, "rollouts": len(drawn)}
        self.result.rewards.append(record["reward"])
        if self.watch.iteration(drawn, kl) and self.evaluate is None:
            self.keep_good()
        self.train.publish({**record, **figures, "seconds": seconds})
        if self.train.display is not None:
            detail = f"reward {record['reward']:.3f}"
            self.train.display.update("reinforce", self.iteration, s.iterations, unit="iterations", detail=detail)
        if s.evaluate_every and self.iteration % s.evaluate_every == 0 and self.watch.stopped is None:
            self.judge()
        self.train.notes = self.watch.notes()
        if s.save_every and self.iteration % s.save_every == 0:
            self.train.save()

    def update(self, experience: Experience) -> tuple[dict[str, Any], float | None]:
        """Learns from experience; returns the figures of the record, and the KL from the reference if measured."""
        s, batch = self.settings, self.prepare(experience)
        order = torch.Generator().manual_seed(s.seed * 1_000_003 + self.iteration)
        try:
            for _ in range(s.epochs):
                for rows in torch.randperm(len(experience), generator=order).chunk(s.minibatches):
                    update = batch.rows(rows, sheet_width(self.model))
                    with self.held_back(update):
                        self.train.learn(update)
                    self.train.step += 1  # the learning rate follows the updates, not the iterations
            losses = self.train.losses()
        except TrainingDiverged as error:
            if self.good is None and self.saved_good is None and error.checkpoint is None:
                raise
            self.watch.stopped, losses = str(error), [math.nan]
        tokens = int(experience.mask.sum())
        self.result.tokens += tokens
        figures = {"rows": len(batch), "tokens": tokens, "loss": losses[-1], "gradient_norm": _number(self.train.norm)}
        figures |= {"sampled_log_prob": float(experience.log_probs.sum() / max(1, tokens)), **self.averages()}
        if self.moved:
            figures["update_kl"], self.moved = max(self.moved), []
        if batch.reference is None:
            figures["kl"] = None  # not measured in this iteration
        return figures, figures["kl"]

    @contextmanager
    def held_back(self, update: PolicyBatch) -> Iterator[None]:
        """An update that moves the policy by about `update_kl` at the most: what goes further is scaled down.

        Adam's steps are as long where the gradient is mostly noise as where it is not, so a rate does not say how far
        it moves a policy. A divergence does: by Pinsker's inequality a reward between 0 and 1 changes by sqrt(KL / 2)
        at the most. It grows with the square of a short step; a long one is measured again.
        """
        limit = self.settings.update_kl
        if not limit:
            yield
            return
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        start = [weight.detach().clone() for weight in weights]
        self.passed.clear()
        yield
        chosen = torch.linspace(0, len(update) - 1, min(len(update), max(MEASURED, len(update) // 8))).long()
        some, before = update.take(chosen), self.before(update)[chosen]
        moved = self.divergence(some, before)
        self.moved.append(moved)
        for _ in range(3):
            if moved <= 1.5 * limit:
                break
            factor = math.sqrt(limit / moved) if math.isfinite(moved) else 0.1
            with torch.no_grad():
                for weight, earlier in zip(weights, start, strict=True):
                    weight.copy_(earlier + factor * (weight - earlier))
            moved = self.divergence(some, before)

    def before(self, update: PolicyBatch) -> Tensor:
        """The log-probabilities that the losses of an update have read, [N, T]."""
        log_probs, at = torch.zeros_like(update.old), len(update)
        for part in reversed(self.passed):  # more than one for a row, where memory ran out and the step began again
            if at > 0:
                log_probs[at - len(part) : at, : part.shape[1]] = part.cpu()
                at -= len(part)
        self.passed.clear()
        return log_probs

    def divergence(self, batch: PolicyBatch, before: Tensor) -> float:
        """KL(before || now) per answer, by Schulman's k3 from answers that were sampled before."""
        log_ratio = (self.scored(batch)[0] - before) * batch.documents
        return float((log_ratio.exp() - 1 - log_ratio).sum() / len(batch))

    def averages(self) -> dict[str, float]:
        """The figures of the losses since the last call, each the mean over the tokens."""
        names = ("clipped", "stale", "kl", *(["value_loss"] if self.whole.value is not None else []))
        figures, self.figures = self.figures, []
        tokens = torch.stack([tokens for tokens, _ in figures])
        mean = (torch.stack([values for _, values in figures]) * tokens[:, None]).sum(0) / tokens.sum()
        return dict(zip(names, mean.tolist(), strict=False))

    def prepare(self, experience: Experience) -> PolicyBatch:
        """Experience with what its losses need: advantages, returns and the reference's log-probabilities."""
        s, mask = self.settings, experience.mask
        batch = PolicyBatch(
            experience.tokens,
            experience.tokens.masked_fill(~mask.bool(), IGNORE),
            mask,
            old=experience.log_probs,
            allowed=experience.allowed,
        )
        if s.kl or (self.iteration % s.kl_every == 0 and (self.adapted or self.reference is not None)):
            batch = replace(batch, reference=self.scored(batch, reference=True)[0])
        advantages, returns = experience.advantages, None
        if self.whole.value is not None:
            values = self.scored(batch)[1]
            assert values is not None
            rewards = (
                experience.token_rewards if experience.token_rewards is not None else reward_at_the_end(experience)
            )
            spread, returns = generalised_advantages(rewards, values, mask, s.discount, s.trace)
            if advantages is None:
                advantages = whitened(spread, mask) if s.normalise else spread
        elif advantages is None and experience.token_rewards is not None:
            advantages = step_advantages(
                experience.token_rewards, mask, experience.groups, discount=s.discount, scale=s.normalise
            )
        elif advantages is None:
            advantages = group_advantages(experience.rewards, experience.groups, scale=s.normalise)[:, None] * mask
        return replace(batch, advantages=advantages, returns=returns)

    @torch.no_grad()
    def scored(self, batch: PolicyBatch, reference: bool = False) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities and values of a batch without gradients, [N, T], from the policy or from its reference."""
        model = self.reference if reference and self.reference is not None else self.model
        base = without_adapter(model) if reference and self.reference is None else nullcontext()
        log_probs, values = torch.zeros_like(batch.old), torch.zeros_like(batch.old)
        at = 0
        with evaluating(model), self.train.precision(), base:
            for part in batch.split(self.train.micro_rows):
                head = None if reference else self.whole.value
                new, estimates = self.read(model, head, part.to(self.train.device))
                place = slice(at, at + len(part)), slice(0, new.shape[1])
                log_probs[place] = new.cpu()
                if estimates is not None:
                    values[place] = estimates.cpu()
                at += len(part)
        return log_probs, values if self.whole.value is not None else None

    def read(self, model: nn.Module, head: nn.Module | None, batch: Any) -> tuple[Tensor, Tensor | None]:
        return log_probs_and_values(
            model,
            head,
            batch.inputs,
            batch.documents,
            temperature=self.settings.temperature,
            allowed_BLV=batch.allowed,
        )

    def loss(self, whole: Any, batch: Any) -> Tensor:
        """The objective of the training core: a mean over the tokens of a micro-batch."""
        new, values = self.read(whole.policy, whole.value, batch)
        parts = policy_loss(new, batch.old, batch.advantages, batch.documents, self.settings, batch.reference)
        loss, error = parts.loss, torch.zeros_like(parts.loss)
        if values is not None:
            error = value_loss(values, batch.returns, batch.documents)
            loss = loss + self.settings.value_weight * error
        if self.settings.update_kl:
            self.passed.append(new.detach())
        figures = torch.stack([parts.clipped, parts.stale, parts.kl, error.detach()])
        self.figures.append((batch.documents.sum(), figures.float()))
        return loss

    # ------------------------------------------------------------------------------------------ judging

    def judge(self) -> None:
        """Evaluates on held-out questions; keeps the best weights, and may stop the run."""
        if self.evaluate is None:
            return
        with evaluating(self.model), self.train.precision(), torch.no_grad():
            score = self.evaluate(self.model)
        if self.watch.judge(score, self.iteration):
            self.keep_good()
        self.train.publish({"step": self.train.step, "iteration": self.iteration, "evaluation": asdict(score)})

    @property
    def saved_good(self) -> Path | None:
        path = self.folder / "best" if self.folder is not None else None
        return path if path is not None and (path / ck.STATE).exists() else None

    def keep_good(self) -> None:
        weights = ck.weights_of(self.whole)
        if self.folder is not None:
            ck.save_checkpoint(self.folder / "best", {"model": weights}, {"step": self.iteration})
        else:
            self.good = {name: weight.clone() for name, weight in weights.items()}

    def finish(self) -> ReinforceResult:
        """The last evaluation and checkpoint; then the best weights go back into the model."""
        s, watch, result = self.settings, self.watch, self.result
        if watch.stopped is None and self.evaluate is not None and watch.judged_at != self.iteration:
            self.judge()
        self.train.notes = watch.notes()
        if not (s.save_every and self.iteration % s.save_every == 0):
            self.train.save()
        worse = watch.best is not None and watch.last is not None and watch.last.mean < watch.best.mean
        if watch.stopped is not None or worse:
            if self.good is not None:
                ck.restore_weights(self.whole, self.good)
            elif self.saved_good is not None:
                ck.restore_weights(self.whole, ck.load_checkpoint(self.saved_good)[0]["model"])
        result.stopped, result.iterations = watch.stopped, self.iteration
        result.before, result.best, result.after = watch.first, watch.best, watch.last
        device = self.train.device
        result.peak_memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
        return result


# ---------------------------------------------------------------------------------------------- parts


class WithValueHead(nn.Module):
    """The policy and its value head as one module: one optimiser, one checkpoint."""

    def __init__(self, policy: nn.Module, value: nn.Module | None) -> None:
        super().__init__()
        self.policy, self.value = policy, value

    @property
    def config(self) -> Any:
        return getattr(self.policy, "config", None)

    def get_output_embeddings(self) -> Any:
        policy: Any = self.policy
        return policy.get_output_embeddings()

    def gradient_checkpointing_enable(self) -> None:
        policy: Any = self.policy  # the other kind would need inputs with gradients, which an adapter does not have
        policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


@dataclass(frozen=True)
class PolicyBatch(Batch):
    """Rows of experience as the training core sees them; `documents` is the mask. Each tensor is [B, T]."""

    old: Tensor = field(default_factory=lambda: torch.zeros(0))
    advantages: Tensor | None = None
    returns: Tensor | None = None
    reference: Tensor | None = None
    allowed: Tensor | None = None  # [B, L, V / 8]

    def _each(self, change: Callable[[Tensor], Tensor]) -> PolicyBatch:
        chosen = {name: getattr(self, name) for name in _TENSORS}
        return PolicyBatch(**{name: change(value) for name, value in chosen.items() if value is not None})

    def rows(self, chosen: Tensor, width: int | None) -> PolicyBatch:
        """Some rows; those that share a prompt are neighbours, then those of like length: micro-batches hold little
        padding."""
        sheets = sheets_of_rows(self.inputs[chosen], self.documents[chosen], width)
        return self.take(chosen[torch.tensor([row for sheet in sheets for row in sheet])])

    def take(self, chosen: Tensor) -> PolicyBatch:
        return self._each(lambda tensor: tensor[chosen])

    def split(self, rows: int) -> Iterator[PolicyBatch]:
        """Micro-batches, each as wide as its longest row."""
        for start in range(0, len(self), rows):
            part = self._each(lambda tensor, at=start: tensor[at : at + rows])  # type: ignore[misc]
            width = max(1, int(row_lengths(part.documents).max()))
            yield part._each(lambda tensor, to=width: tensor[:, :to] if tensor.dim() == 2 else tensor)  # type: ignore[misc]


_TENSORS = ("inputs", "targets", "documents", "old", "advantages", "returns", "reference", "allowed")


@dataclass(frozen=True)
class _Length:
    length: int


def _number(value: Tensor | None) -> float | None:
    return None if value is None else float(value)


def _without_dropout(model: nn.Module) -> None:
    """A policy must have the same probabilities when it samples and when it learns."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0  # type: ignore[assignment]
