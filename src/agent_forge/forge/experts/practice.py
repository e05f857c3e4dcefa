"""A model that answers exercises of the task families, and the self-test that finds its domains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from agent_forge.errors import SandboxError, UsageError
from agent_forge.forge.evaluation.generation import beginning
from agent_forge.forge.experts.continuations import choice_grammar
from agent_forge.forge.experts.settings import Discovery, ExpertSettings
from agent_forge.forge.progress import Tell, silent, track
from agent_forge.forge.training.reinforce import PromptItem
from agent_forge.forge.training.sampling import sample
from agent_forge.inference.grammar import Grammar, GrammarVocabulary, GrammarWalk, SchemaUnsupported, schema_grammar
from agent_forge.inference.local_model import end_tokens
from agent_forge.inference.prompt import chat_prompt
from agent_forge.tasks import Exercise, families, family

CHOICES = "choices"  # in what an exercise expects: the texts that may be written
BATCH = 512  # answers at once, where memory allows
# Exercises of a family are numbered, and each use has numbers of its own.
TRAINING, TESTING, VALIDATION, LABELLED, SEARCHED = (use * 10_000_000 for use in range(5))


@dataclass
class Respondent:
    """A model and its tokenizer, answering exercises."""

    model: Any
    tokenizer: Any
    settings: ExpertSettings
    grammars: dict[str, Grammar | None] = field(default_factory=dict)  # by family

    @cached_property
    def ends(self) -> list[int]:
        return sorted(end_tokens(self.model, self.tokenizer))

    @cached_property
    def vocabulary(self) -> GrammarVocabulary:
        return GrammarVocabulary(self.tokenizer, size=self.model.config.vocab_size, ends=self.ends)

    def question(self, exercise: Exercise) -> PromptItem:
        """The exercise as tokens: by the chat template, or else as a text and a new line. Text goes on as it is."""
        text = exercise.prompt if CHOICES in exercise.expected else f"{exercise.prompt}\n"
        if self.tokenizer.chat_template is not None and CHOICES not in exercise.expected:
            return PromptItem(chat_prompt(self.tokenizer, [{"role": "user", "content": exercise.prompt}], []), exercise)
        first = beginning(self.model, self.tokenizer, None)
        tokens = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return PromptItem(tokens if first is None else [first, *tokens], exercise)

    def walk(self, question: PromptItem) -> GrammarWalk | None:
        """The start of an answer in the grammar of its family, or None where answers are free."""
        name = question.item.family
        if CHOICES in question.item.expected:
            return self.vocabulary.start(choice_grammar(question.item.expected[CHOICES]))
        if name not in self.grammars:
            schema = family(name).schema if self.settings.constrained else None
            try:
                self.grammars[name] = None if schema is None else schema_grammar(schema)
                return None if schema is None else self.vocabulary.start(self.grammars[name])  # type: ignore[arg-type]
            except SchemaUnsupported:
                self.grammars[name] = None
        grammar = self.grammars[name]
        return None if grammar is None else self.vocabulary.start(grammar)

    def sampled(
        self, exercises: Sequence[Exercise], copies: int = 1, temperature: float = 0.0, seed: int = 0
    ) -> tuple[list[str], np.ndarray]:
        """`copies` answers to each exercise, one after the other, and the log-probability of each, [N]."""
        questions = [self.question(exercise) for exercise in exercises]
        samples = sample(
            self.model,
            [question.prompt for question in questions],
            copies=copies,
            max_tokens=self.settings.max_tokens,
            temperature=temperature,
            end=self.ends,
            seed=seed,
            constraint=lambda number: self.walk(questions[number]),
            batch=BATCH,
        )
        texts = self.tokenizer.batch_decode(samples.answers(), skip_special_tokens=True)
        return texts, samples.log_probs.sum(1).double().numpy()

    def right(self, exercises: Sequence[Exercise], *, temperature: float = 0.0, seed: int = 0) -> np.ndarray:
        """1 for every exercise that is answered right, else 0; [N]."""
        texts, _ = self.sampled(exercises, temperature=temperature, seed=seed)
        return np.array([float(one.check(text).correct) for one, text in zip(exercises, texts, strict=True)])


@dataclass(frozen=True)
class Domain:
    """Exercises of one family and level, and the share that the base answers right."""

    name: str  # of the family
    level: float
    success: float
    stderr: float

    def exercises(self, count: int, first: int, *, held_out: bool = False) -> list[Exercise]:
        """The exercises from number `first` on."""
        kind = family(self.name)
        return [kind.make(first + number, self.level, held_out=held_out) for number in range(count)]


def discover(
    respondent: Respondent, settings: Discovery, seed: int, tell: Tell = silent, text: Sequence[str] = ()
) -> list[Domain]:
    """Every family and level that was tested, with the success of the sampled answers: those that training sees.

    The families of `text` come last, or alone where the settings name none. A level whose reference solutions are
    longer than an answer may be, or whose programs this machine cannot run, is left out.
    """
    names = (*(settings.families or (() if text else tuple(families()))), *text)
    tested = []
    for name, level in track([(name, level) for name in names for level in settings.levels], "self-test", tell):
        domain = Domain(name, level, math.nan, math.nan)
        try:
            exercises = domain.exercises(settings.discovery_samples, TESTING)
            if not _answerable(respondent, exercises[:4]):
                continue
            right = respondent.right(exercises, temperature=respondent.settings.temperature, seed=seed)
        except SandboxError:
            continue
        tested.append(Domain(name, level, float(right.mean()), float(right.std(ddof=1) / math.sqrt(len(right)))))
    return tested


def _answerable(respondent: Respondent, exercises: Sequence[Exercise]) -> bool:
    import json

    for exercise in exercises:
        try:
            solution = exercise.solution()
        except UsageError:  # no solver: it may be
            return True
        text = solution if isinstance(solution, str) else json.dumps(solution)
        if len(respondent.tokenizer(text)["input_ids"]) <= respondent.settings.max_tokens:
            return True
    return False


def choose_domains(tested: Sequence[Domain], settings: Discovery) -> list[Domain]:
    """Of each family the level nearest to 50 % success, within the limits; the best `max_experts`, in order of name."""
    nearest: dict[str, Domain] = {}
    for one in tested:
        if settings.lowest <= one.success <= settings.highest:
            other = nearest.get(one.name)
            if other is None or abs(one.success - 0.5) < abs(other.success - 0.5):
                nearest[one.name] = one
    best = sorted(nearest.values(), key=lambda one: (abs(one.success - 0.5), one.name))[: settings.max_experts]
    return sorted(best, key=lambda one: one.name)
