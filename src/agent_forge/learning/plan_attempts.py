"""Plans sampled for requests, and what they earn: the experience of a planner that learns by reinforcement.

Sampling follows the grammar of the planner (`PlanWriter`), so every sampled plan could have been written in use. The
log-probabilities are those over the allowed tokens, which is the policy that acts: tokens that the grammar forces have
no gradient. The weights that the planner puts on its choices in use (against asking, or using a number twice) are no
part of the model and are left out here.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from agent_forge.agents.planner.script import request_text, tools_text
from agent_forge.agents.planner.writer import PlanWriter
from agent_forge.errors import DataError
from agent_forge.forge.training.experience import Experience
from agent_forge.forge.training.reinforce import Collector
from agent_forge.forge.training.sampling import Samples, sample
from agent_forge.forge.training.settings import ReinforceSettings
from agent_forge.forge.training.watch import HeldOutScore
from agent_forge.inference.grammar import GrammarVocabulary
from agent_forge.learning.attempts import SamplingCopy
from agent_forge.learning.plan_reward import plan_reward
from agent_forge.learning.rows import PlanRow


class PlanSampler:
    """Writes plans for many rows side by side with a model that learns. `tokenizer` is one of the library tokenizers,
    `end` the token that ends an answer."""

    def __init__(self, model: nn.Module, tokenizer: Any, end: int) -> None:
        self.policy, self.tokenizer, self.end = SamplingCopy(model), tokenizer, end
        # the copies of a plan come to the same line at different times
        self.vocabulary = GrammarVocabulary(tokenizer, ends=[end], remember=512)

    def prompt(self, row: PlanRow) -> list[int]:
        """The tokens before a plan. Tools and request are encoded apart, as in use and in supervised training."""
        texts = (tools_text(row.tools), request_text(row.request))
        tools, request = (each.ids for each in self.tokenizer.encode_batch(texts, add_special_tokens=False))
        return [*tools, *request]

    def write(
        self, rows: Sequence[PlanRow], *, max_tokens: int, copies: int = 1, temperature: float = 0.0, seed: int = 0
    ) -> tuple[Samples, list[PlanWriter]]:
        """`copies` plans for each row, with the writers that have their calls."""
        writers: dict[int, list[PlanWriter]] = defaultdict(list)

        def begin(place: int) -> PlanWriter:
            writer = PlanWriter(self.vocabulary, rows[place].tools, rows[place].request)
            writers[place].append(writer)
            return writer

        policy: Any = self.policy.current()
        with nullcontext() if self.policy.copy is None else torch.autocast(policy.device.type, enabled=False):
            samples = sample(
                policy, [self.prompt(row) for row in rows], copies=copies, max_tokens=max_tokens,
                temperature=temperature, end=self.end, seed=seed, constraint=begin,
            )  # fmt: skip
        # the last ones: when memory runs out, a batch is begun again
        return samples, [writer for place in range(len(rows)) for writer in writers[place][-copies:]]

    def rewards(self, rows: Sequence[PlanRow], samples: Samples, writers: Sequence[PlanWriter]) -> list[float]:
        """What the plans earn; one that was cut off earns nothing."""
        owners, ended = samples.prompt_of.tolist(), samples.ended.tolist()
        return [
            plan_reward(rows[place], writer.calls) if whole else 0.0
            for place, whole, writer in zip(owners, ended, writers, strict=True)
        ]

    def judge(self, rows: Sequence[PlanRow], max_tokens: int) -> HeldOutScore:
        """What the likeliest plans earn."""
        return HeldOutScore.of(self.rewards(rows, *self.write(rows, max_tokens=max_tokens)))


@dataclass
class PlanCollector(Collector):
    """Samples plans for training rows, those with more calls more often: that is where plans go wrong. Raises DataError
    if there are no rows."""

    sampler: PlanSampler
    rows: Sequence[PlanRow]
    settings: ReinforceSettings
    sampled: int = 0  # tokens so far

    def __post_init__(self) -> None:
        self.rows = [row for row in self.rows if row.steps is None]
        if not self.rows:
            raise DataError("there are no plans of calls to practise", fix="Add rows that have tools")

    def draw(self, number: int) -> list[PlanRow]:
        chance = random.Random(self.settings.seed * 1_000_003 + number)
        return chance.choices(self.rows, [max(1, len(row.calls)) for row in self.rows], k=self.settings.prompts)

    def answers(self, questions: Sequence[PlanRow], number: int) -> Experience:
        s, start = self.settings, time.perf_counter()
        samples, writers = self.sampler.write(
            questions,
            max_tokens=s.max_tokens,
            copies=s.copies,
            temperature=s.temperature,
            seed=s.seed * 1_000_003 + number,
        )
        written = time.perf_counter()
        self.sampled += int(samples.mask.sum())
        rewards = torch.tensor(self.sampler.rewards(questions, samples, writers))
        spent = {"generate": written - start, "score": time.perf_counter() - written}
        columns = (samples.tokens, samples.mask, samples.log_probs)
        return Experience(*columns, rewards, samples.prompt_of, allowed=samples.allowed, seconds=spent)
