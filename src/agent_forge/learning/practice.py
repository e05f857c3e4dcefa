"""An agent's practice: exercises, the prompts that `agents eval` would send for them, and what its answers earn.

Exercises to learn from are drawn from training seeds, which never give a held-out one. A prompt is made by the agent
itself and the chat template of the model, so that training and evaluation see the same tokens.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from multiprocessing import get_context
from statistics import fmean, stdev
from typing import Any

from agent_forge.agents.agent import Agent
from agent_forge.agents.answer_shape import AnswerShape
from agent_forge.agents.profiles import AgentProfile
from agent_forge.agents.tools.toolbox import load_python
from agent_forge.errors import ToolError, UsageError
from agent_forge.inference import Message
from agent_forge.inference.local_model import end_tokens
from agent_forge.inference.prompt import chat_prompt
from agent_forge.learning.exercises import AgentScore, GivenAnswer, family_of, rules_of
from agent_forge.learning.part_credit import PartCredit, part_credits
from agent_forge.rewards import Reward, RewardProfile, score
from agent_forge.tasks import LEVELS, Exercise, Family

_SEEDS = 1_000_000  # exercises that one training seed has room for
_VALIDATION = 500_000  # from this number on, exercises are for stopping, not for learning


@dataclass(frozen=True)
class WrittenAnswer:
    """What was written for an exercise: its text, how many tokens were read and written, and what tools said."""

    exercise: Exercise
    text: str
    tokens: int
    calls: int = 0
    observations: tuple[str, ...] = ()


class Practice:
    """The exercises of one agent for one model, whose chat template and end token are in `tokenizer`."""

    def __init__(self, profile: AgentProfile, tokenizer: Any, ends: Sequence[int], seed: int = 0) -> None:
        self.profile, self.tokenizer, self.seed = replace(profile, tools=()), tokenizer, seed
        self.ends = tuple(ends)  # the tokens that end an answer
        self.tasks: Family = family_of(profile)
        self._agent = Agent(self.profile, model=GivenAnswer("practice", ""), record=False)
        self._shape = AnswerShape.of(self.profile.answer_schema)
        self._pieces: dict[int, str] = {}  # the text of a token by itself

    @classmethod
    def of(cls, profile: AgentProfile, model: Any, tokenizer: Any, seed: int = 0) -> Practice:
        """The practice of an agent with a model. Raises UsageError if nothing can end an answer."""
        own = tokenizer.eos_token_id  # the template's end of a turn, where that is not the end of a text
        ends = sorted(end_tokens(model, tokenizer), key=lambda token: token != own)
        if not ends:
            raise UsageError("the base has no token that ends a text", fix="Set eos_token_id in its configuration")
        return cls(profile, tokenizer, ends, seed)

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON Schema of the answers."""
        return None if self._shape is None else self._shape.schema

    def exercise(self, number: int) -> Exercise:
        """The training exercise of a number, the levels in turn; another one for another seed."""
        levels = list(LEVELS.values())
        return self.tasks.make(_SEEDS * self.seed + number, levels[number % len(levels)])

    def validation(self, count: int) -> list[Exercise]:
        """Exercises that are not learnt from, to tell when to stop. What is held out is for the report alone."""
        return [self.exercise(_VALIDATION + number) for number in range(count)]

    def messages(self, exercise: Exercise) -> list[Message]:
        """What the model is asked."""
        return self._agent.opening(exercise.prompt, self._shape)

    def prompt(self, exercise: Exercise) -> list[int]:
        """The same as tokens."""
        return chat_prompt(self.tokenizer, self.messages(exercise), ())

    def solution(self, exercise: Exercise) -> str:
        """The reference solver's answer as a model should write it. Raises UsageError without a solver."""
        answer = self.tasks.demonstrate(exercise.expected)
        return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)

    def encoded(self, text: str) -> list[int]:
        """A whole answer as tokens, its end included."""
        return [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.ends[0]]

    def answer(self, exercise: Exercise, prompt: int, ids: Sequence[int]) -> WrittenAnswer:
        """What token ids say, after a prompt of so many."""
        return WrittenAnswer(exercise, self.text(ids), prompt + len(ids))

    def text(self, ids: Sequence[int]) -> str:
        """What token ids say, their end aside."""
        written = [token for token in ids if token not in self.ends]
        return str(self.tokenizer.decode(written, skip_special_tokens=True))

    def pieces(self, ids: Sequence[int], text: str) -> list[str]:
        """What each token adds to their text."""
        for token in ids:
            if token not in self._pieces:
                self._pieces[token] = self.text([token])
        pieces = [self._pieces[token] for token in ids]
        if "".join(pieces) == text:
            return pieces
        # A character of several tokens, or a tokenizer that drops the space before a first word. What the first tokens
        # say may be longer than their share of the text, where they end inside a character.
        ends = accumulate((min(len(self.text(ids[:count])), len(text)) for count in range(len(ids))), max)
        return [text[start:end] for start, end in pairwise([*ends, len(text)])]


def reward_of(profile: AgentProfile, answer: WrittenAnswer, rules: RewardProfile | None = None) -> Reward:
    """What an answer earns, judged as `agents eval` judges it."""
    facts = {
        "prompt": answer.exercise.prompt,
        "tokens": answer.tokens,
        "calls": answer.calls,
        "observations": list(answer.observations),
    }
    return score(rules or rules_of(profile), answer.text, answer.exercise, facts, family=family_of(profile))


Rewarder = Callable[[WrittenAnswer], float]


def own_rewarder(name: str) -> Rewarder:
    """A reward function of one's own, `FILE.py:NAME` or `package.module:NAME`: from a WrittenAnswer to a number."""
    place, _, attribute = name.rpartition(":")
    if not place:
        raise UsageError(f"{name!r} does not name a reward function", fix="FILE.py:NAME or package.module:NAME")
    try:
        names = vars(load_python(place))
    except ToolError as error:
        raise UsageError(f"the reward function cannot be imported: {error}", where=name) from error
    if not callable(names.get(attribute)):
        raise UsageError(f"there is no function {attribute!r}", where=place)
    rewarder: Rewarder = names[attribute]
    return rewarder


Judged = list[tuple[float, bool]]  # rewards, and whether nothing was wrong


class Judges:
    """Scores answers, several at a time: checkers that execute programs wait, others compute, and a GPU idles."""

    def __init__(self, profile: AgentProfile, executor: Executor | None = None, own: str | None = None) -> None:
        self.profile, self.executor, self.own = profile, executor, own

    def __call__(self, answers: Sequence[WrittenAnswer]) -> Judged:
        """The reward of each, and whether nothing is wrong with it. Answers that are the same are judged once."""

        def judge(unique: Sequence[WrittenAnswer]) -> Judged:
            parts = [unique[start : start + _PART] for start in range(0, len(unique), _PART)]
            return [each for judged in self._work(_Judge(self.profile, self.own), parts) for each in judged]

        return _once(judge, answers)

    def credited(self, groups: Sequence[Sequence[WrittenAnswer]]) -> list[tuple[Judged, list[list[PartCredit]]]]:
        """The same for groups of answers, each to one exercise, and the credits of the answers' parts."""
        return list(self._work(_CreditJudge(_Judge(self.profile, self.own)), groups))

    def _work(self, judge: Callable[[Any], Any], parts: Sequence[Any]) -> Iterator[Any]:
        return (self.executor.map if self.executor is not None else map)(judge, parts)


_PART = 4  # answers that go to a process at once


def _once(judge: Callable[[Sequence[WrittenAnswer]], Judged], answers: Sequence[WrittenAnswer]) -> Judged:
    """Has answers judged, each of those that are the same once."""
    keys = [(each.exercise.prompt, each.text, each.tokens, each.calls, each.observations) for each in answers]
    unique = dict(zip(keys, answers, strict=True))
    rewards = dict(zip(unique, judge(list(unique.values())), strict=True))
    return [rewards[key] for key in keys]


@dataclass(frozen=True)
class _Judge:
    """Scores a part; a class of its own, since it travels to another process."""

    profile: AgentProfile
    own: str | None

    def __call__(self, answers: Sequence[WrittenAnswer]) -> Judged:
        rewards = [reward_of(self.profile, answer) for answer in answers]
        if self.own is None:
            return [(reward.total, reward.correct) for reward in rewards]
        rewarder = own_rewarder(self.own)
        return [(float(rewarder(answer)), reward.correct) for answer, reward in zip(answers, rewards, strict=True)]


@dataclass(frozen=True)
class _CreditJudge:
    """Scores the answers to one exercise, and their parts."""

    judge: _Judge

    def __call__(self, answers: Sequence[WrittenAnswer]) -> tuple[Judged, list[list[PartCredit]]]:
        def earn(variants: Sequence[tuple[int, str]]) -> list[float]:
            changed = [replace(answers[place], text=text) for place, text in variants]
            return [reward for reward, _ in _once(self.judge, changed)]

        judged = _once(self.judge, answers)
        return judged, part_credits([answer.text for answer in answers], [reward for reward, _ in judged], earn)


@contextmanager
def judging(profile: AgentProfile, processes: int = 0, own: str | None = None) -> Iterator[Judges]:
    """Judges in so many processes (0: one per core). With one, threads of this process judge: for a family that only
    this process knows, and where starting processes takes longer than judging."""
    count = processes or os.cpu_count() or 1
    if count == 1:
        executor: Executor = ThreadPoolExecutor(4)
    else:
        # not by fork: this process has threads, and perhaps a GPU
        executor = ProcessPoolExecutor(count, mp_context=get_context("spawn"))
    try:
        yield Judges(profile, executor, own)
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def score_of(rewards: Sequence[tuple[float, bool]]) -> AgentScore:
    """The mean reward with its standard error."""
    totals = [total for total, _ in rewards]
    error = stdev(totals) / math.sqrt(len(totals)) if len(totals) > 1 else None
    return AgentScore(fmean(totals), error, len(totals), fmean(correct for _, correct in rewards))


def paired(before: Sequence[tuple[float, bool]], after: Sequence[tuple[float, bool]]) -> tuple[float, float | None]:
    """The mean gain over the same exercises, with its standard error."""
    gains = [b - a for (a, _), (b, _) in zip(before, after, strict=True)]
    return fmean(gains), stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else None


def gains(stages: Mapping[str, Judged]) -> dict[str, Any]:
    """Each stage against the one before, and reinforcement against its control, over the same exercises."""
    named = {"warmup": ("before", "warmup"), "learning": ("warmup", "after"), "over_control": ("control", "after")}
    pairs = {name: pair for name, pair in named.items() if all(stage in stages for stage in pair)}
    compared = {name: paired(stages[first], stages[second]) for name, (first, second) in pairs.items()}
    return {"gains": {name: {"mean": mean, "stderr": error} for name, (mean, error) in compared.items()}}
