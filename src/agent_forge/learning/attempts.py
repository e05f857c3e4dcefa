"""Attempts at exercises, for reinforcement: single answers in one batch, or an agent's turns with its tools.

| | reads | a row of experience is | advantage |
|---|---|---|---|
| `AnswerCollector` | a prompt | a prompt with its answer | of the answer, compared with its group, or of its parts |
| `TurnCollector` | what the agent sends | a model call with what it wrote | of the turn: its share of the attempt's |

What tools said stands in the prompt of the next call, and is not learnt. The share of a turn comes from the dependency
graph of the attempt's trace (`traces.credit`).
"""

from __future__ import annotations

import asyncio
import copy
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from agent_forge.agents.agent import Agent
from agent_forge.agents.choices import AnyTools
from agent_forge.agents.front import blocking
from agent_forge.agents.profiles import AgentProfile
from agent_forge.bf16 import is_faster
from agent_forge.errors import ModelError
from agent_forge.forge.adapters import adapted_layers, merge_adapter
from agent_forge.forge.training.experience import Experience, experience_of
from agent_forge.forge.training.policy import TINY, group_advantages
from agent_forge.forge.training.reinforce import Collector
from agent_forge.forge.training.sampling import Samples, sample
from agent_forge.forge.training.settings import ReinforceSettings
from agent_forge.inference import ChatClient, Completion, Request
from agent_forge.inference.batched import BatchedModel
from agent_forge.inference.grammar import GrammarVocabulary, GrammarWalk, SchemaUnsupported, schema_grammar
from agent_forge.inference.local_model import LocalModel
from agent_forge.learning.part_credit import token_credits
from agent_forge.learning.practice import Judges, Practice, WrittenAnswer
from agent_forge.tasks import Exercise
from agent_forge.traces import Recorder, Span, Store
from agent_forge.traces.credit import credit
from agent_forge.traces.graph import SpanGraph

REINFORCED = 100_000  # the number of the first exercise of reinforcement
LARGE = 50_000_000  # weights from which a CPU samples faster in bf16: smaller models have the compiled decoder


class SamplingCopy:
    """The policy as it samples: where bf16 is faster, a copy in it with the adapter merged. A token then takes a third
    of the kernel launches on a GPU, and on a CPU half of the memory to read. Elsewhere it is the policy itself, unless
    `merged`."""

    def __init__(self, model: nn.Module, merged: bool | None = None) -> None:
        self.model = model
        self.copy: nn.Module | None = None
        if merged is None:
            weights = list(model.parameters())
            merged = is_faster(model) and (weights[0].is_cuda or sum(each.numel() for each in weights) >= LARGE)
        if merged:
            self.copy = copy.deepcopy(model)
            merge_adapter(self.copy)
            for weight in self.copy.parameters():  # not the buffers: the frequencies of positions need float32
                weight.requires_grad_(False)
                weight.data = weight.data.to(torch.bfloat16)
            self.copy.eval()

    @torch.no_grad()
    def current(self) -> nn.Module:
        """The model to sample from, with the weights that the policy has now."""
        if self.copy is None:
            return self.model
        layers = dict(adapted_layers(self.model))
        for name, layer in layers.items():
            weight: Any = layer.base.weight
            product = layer.scale * (layer.lora_B @ layer.lora_A)
            plain = isinstance(layer.base, nn.Linear)  # GPT-2's Conv1D stores its matrix as [in, out]
            merged: Any = self.copy.get_submodule(name).weight
            merged.copy_(weight + (product if plain else product.T))
        if not layers:
            for mine, theirs in zip(self.copy.parameters(), self.model.parameters(), strict=True):
                mine.copy_(theirs)
        return self.copy


def reference_of(model: nn.Module) -> nn.Module:
    """A copy of the policy as it is, which shares every weight that does not learn."""
    fixed = {id(weight): weight for weight in model.parameters() if not weight.requires_grad}
    reference: nn.Module = copy.deepcopy(model, fixed)
    return reference.requires_grad_(False).eval()


class AnswerGrammar:
    """The grammar of an agent's answers, as a constraint on samples."""

    def __init__(self, practice: Practice, vocabulary: GrammarVocabulary | None = None) -> None:
        assert practice.schema is not None
        self.vocabulary = vocabulary or GrammarVocabulary(practice.tokenizer, ends=practice.ends)
        self.grammar = schema_grammar(practice.schema)
        self.vocabulary.start(self.grammar)

    @classmethod
    def of(cls, practice: Practice, vocabulary: GrammarVocabulary | None = None) -> AnswerGrammar | None:
        """None where anything may be written, or where no grammar follows the schema. The vocabulary takes about a
        second to make, and serves all agents that share a tokenizer."""
        try:
            return None if practice.schema is None else cls(practice, vocabulary)
        except SchemaUnsupported:
            return None

    def __call__(self, _: Any) -> GrammarWalk:
        return self.vocabulary.start(self.grammar)


def write_answers(
    model: SamplingCopy,
    practice: Practice,
    exercises: Sequence[Exercise],
    *,
    max_tokens: int,
    copies: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
    constraint: AnswerGrammar | None = None,
) -> tuple[Samples, list[WrittenAnswer]]:
    """What the policy answers, in one batch."""
    prompts = [practice.prompt(exercise) for exercise in exercises]
    policy: Any = model.current()
    plain = nullcontext() if model.copy is None else torch.autocast(policy.device.type, enabled=False)
    with plain:
        samples = sample(
            policy,
            prompts,
            copies=copies,
            max_tokens=max_tokens,
            temperature=temperature,
            end=practice.ends,
            seed=seed,
            constraint=constraint,
        )
    answers = [
        practice.answer(exercises[place], len(prompts[place]), ids)
        for place, ids in zip(samples.prompt_of.tolist(), samples.answers(), strict=True)
    ]
    return samples, answers


def exercises_of(practice: Practice, settings: ReinforceSettings, number: int) -> list[Exercise]:
    """The training exercises of a draw."""
    first = REINFORCED + number * settings.prompts
    return [practice.exercise(first + place) for place in range(settings.prompts)]


@dataclass
class AnswerCollector(Collector):
    """Samples answers to training exercises, and has them judged several at a time."""

    policy: SamplingCopy
    practice: Practice
    judges: Judges
    settings: ReinforceSettings
    constraint: AnswerGrammar | None = None
    by_parts: bool = False  # see `part_credit`
    sampled: int = 0  # tokens so far

    def draw(self, number: int) -> list[Exercise]:
        return exercises_of(self.practice, self.settings, number)

    def answers(self, questions: Sequence[Exercise], number: int) -> Experience:
        s, start = self.settings, time.perf_counter()
        samples, answers = write_answers(
            self.policy,
            self.practice,
            questions,
            max_tokens=s.max_tokens,
            copies=s.copies,
            temperature=s.temperature,
            seed=s.seed * 1_000_003 + number,
            constraint=self.constraint,
        )
        written = time.perf_counter()
        self.sampled += int(samples.mask.sum())
        advantages = None
        if self.by_parts:
            rewards, advantages = self.credited(samples, answers)
        else:
            rewards = torch.tensor([reward for reward, _ in self.judges(answers)])
        spent = {"generate": written - start, "score": time.perf_counter() - written}
        rows = (samples.tokens, samples.mask, samples.log_probs)
        return Experience(
            *rows, rewards, samples.prompt_of, advantages=advantages, allowed=samples.allowed, seconds=spent
        )

    def credited(self, samples: Samples, answers: Sequence[WrittenAnswer]) -> tuple[Tensor, Tensor]:
        """Rewards [N], and at every sampled token the credit of the part of the answer that it belongs to, [N, T]."""
        rows_of = [(samples.prompt_of == group).nonzero()[:, 0].tolist() for group in samples.prompt_of.unique()]
        rewards, advantages = torch.zeros(len(answers)), torch.zeros_like(samples.mask)
        ids = samples.answers()
        judged = self.judges.credited([[answers[row] for row in rows] for rows in rows_of])
        for rows, (totals, credits) in zip(rows_of, judged, strict=True):
            rewards[rows] = torch.tensor([reward for reward, _ in totals])
            whole = rewards[rows] - rewards[rows].mean()
            for row, own, advantage in zip(rows, credits, whole.tolist(), strict=True):
                pieces = self.practice.pieces(ids[row], answers[row].text)
                places = samples.mask[row].nonzero()[:, 0]
                advantages[row, places] = advantage  # also of the end token, which `ids` does not have
                advantages[row, places[: len(pieces)]] = torch.tensor(token_credits(pieces, own, advantage))
        advantages[advantages.abs() < 1e-6] = 0.0  # what rounding left: it says nothing
        for rows in rows_of if self.settings.normalise else ():
            spread = advantages[rows][samples.mask[rows].bool()].square().mean().sqrt()
            advantages[rows] /= spread + TINY
        return rewards, advantages


# -- several turns -----------------------------------------------------------------------------------------------------


class FreeModel(LocalModel):
    """A model that no grammar binds: what it writes is what it learns from, and the form is part of the reward."""

    def walk(self, request: Request) -> None:
        return None


class SeededPolicy(ChatClient):
    """The policy as a model of the agent loop: it samples, by a seed of its own for every call, and its spans carry
    the tokens and their log-probabilities."""

    def __init__(self, model: BatchedModel, seed: int) -> None:
        self.name, self.provider, self.model = model.name, model.provider, model
        self._random = random.Random(seed)

    async def answer(self, request: Request) -> Completion:
        return await self.model.answer(replace(request, seed=self._random.randrange(2**62)))

    async def pieces(self, request: Request) -> AsyncIterator[str | Completion]:
        async for piece in self.model.pieces(replace(request, seed=self._random.randrange(2**62))):
            yield piece


@dataclass(frozen=True)
class AgentAttempt:
    """An agent's work on an exercise: what it answered, and the trace of how."""

    answer: WrittenAnswer
    spans: Sequence[Span]


class TurnCollector(Collector):
    """Lets an agent work on training exercises with its tools, several attempts at each, all at the same time."""

    def __init__(
        self,
        policy: SamplingCopy,
        profile: AgentProfile,
        practice: Practice,
        judges: Judges,
        settings: ReinforceSettings,
        *,
        turns: int = 4,
        strategy: str = "shapley",
        tools: AnyTools = None,
        constrained: bool = False,
    ) -> None:
        self.policy, self.practice, self.judges, self.settings = policy, practice, judges, settings
        limits = replace(profile.limits, turns=turns, answer_tokens=settings.max_tokens)
        self.profile = replace(profile, limits=limits, temperature=settings.temperature)
        self.strategy, self.tools, self.constrained = strategy, tools, constrained

    def draw(self, number: int) -> list[Exercise]:
        return exercises_of(self.practice, self.settings, number)

    def answers(self, questions: Sequence[Exercise], number: int) -> Experience:
        s, start = self.settings, time.perf_counter()
        attempts = blocking(self._attempts([each for each in questions for _ in range(s.copies)], number))
        written = time.perf_counter()
        rewards = torch.tensor([reward for reward, _ in self.judges([attempt.answer for attempt in attempts])])
        spent = {"generate": written - start, "score": time.perf_counter() - written}
        groups = torch.arange(len(questions)).repeat_interleave(s.copies)
        advantages = group_advantages(rewards, groups, scale=s.normalise)
        rows = [
            (turn, place)
            for place, attempt in enumerate(attempts)
            for turn in credited_turns(attempt.spans, float(advantages[place]), self.strategy, s.discount)
        ]
        experience = experience_of(
            [[*turn.prompt, *turn.output] for turn, _ in rows],
            [[0] * len(turn.prompt) + [1] * len(turn.output) for turn, _ in rows],
            [[0.0] * len(turn.prompt) + list(turn.log_probs) for turn, _ in rows],
            [float(rewards[place]) for _, place in rows],
            [int(groups[place]) for _, place in rows],
            [[0.0] * len(turn.prompt) + [turn.advantage] * len(turn.output) for turn, _ in rows],
        )
        return replace(experience, drawn=rewards, seconds=spent)

    async def _attempts(self, exercises: Sequence[Exercise], number: int) -> list[AgentAttempt]:
        model: Any = self.policy.current()
        kind = LocalModel if self.constrained else FreeModel
        loaded = (model, self.practice.tokenizer)
        local = kind(lambda: loaded, name="policy", device=str(model.device), keep_tokens=True)
        batched = BatchedModel(local, slots=len(exercises))
        with Recorder(Store.open(":memory:")) as recorder:
            try:
                seeds = [hash((self.settings.seed, number, place)) for place in range(len(exercises))]
                clients = [SeededPolicy(batched, seed) for seed in seeds]
                return await asyncio.gather(
                    *(self._attempt(*each, recorder) for each in zip(exercises, clients, strict=True))
                )
            finally:
                batched.close()

    async def _attempt(self, exercise: Exercise, model: ChatClient, recorder: Recorder) -> AgentAttempt:
        agent = Agent(self.profile, self.tools, model, approve="all", recorder=recorder)
        try:
            result = await agent.arun(exercise.prompt)
        except ModelError:  # a conversation that fills the context earns what an empty answer does
            return AgentAttempt(WrittenAnswer(exercise, "", 0), ())
        last = result.messages[-1]
        text = str(last.get("content") or "") if last["role"] == "assistant" else ""
        observed = tuple(str(message["content"]) for message in result.messages if message["role"] == "tool")
        tokens = (result.usage.input_tokens or 0) + (result.usage.output_tokens or 0)
        recorder.flush()
        spans = recorder.store.trace(result.trace_id)
        return AgentAttempt(WrittenAnswer(exercise, text, tokens, result.usage.tool_calls, observed), spans)


@dataclass(frozen=True)
class Turn:
    """A model call: the tokens that were read and written, and the advantage of having written them."""

    prompt: Sequence[int]
    output: Sequence[int]
    log_probs: Sequence[float]
    advantage: float


def credited_turns(
    spans: Sequence[Span], advantage: float, strategy: str = "shapley", discount: float = 1.0
) -> list[Turn]:
    """The model calls of a trace, each with its share of the attempt's advantage, times their number: the mean over the
    calls is the attempt's. What its tool calls earned belongs to the model call that made them."""
    calls = sorted((span for span in spans if span.kind == "model"), key=lambda span: span.start_ns)
    calls = [span for span in calls if span.output_ids]
    if not calls:
        return []
    options: dict[str, Any] = {"gamma": discount} if strategy == "discounted" else {}
    shares = [0.0] * len(calls)
    graph = SpanGraph(spans)
    credits = credit(graph, advantage, strategy, **options) if advantage else {}
    for span_id, share in credits.items():
        before = [place for place, call in enumerate(calls) if call.start_ns <= graph.spans[span_id].start_ns]
        shares[before[-1] if before else 0] += share
    return [
        Turn(call.prompt_ids or (), call.output_ids or (), call.logprobs or (), len(calls) * share)
        for call, share in zip(calls, shares, strict=True)
    ]
