"""A model that answers exercises of the task families."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from agent_forge.forge.evaluation.generation import beginning
from agent_forge.forge.practice.continuations import choice_grammar
from agent_forge.forge.training.reinforce import PromptItem
from agent_forge.forge.training.sampling import sample
from agent_forge.inference.grammar import Grammar, GrammarVocabulary, GrammarWalk, SchemaUnsupported, schema_grammar
from agent_forge.inference.local_model import end_tokens
from agent_forge.inference.prompt import chat_prompt
from agent_forge.tasks import Exercise, family

CHOICES = "choices"  # in what an exercise expects: the texts that may be written
BATCH = 512  # answers at once, where memory allows
# Exercises of a family are numbered, and each use has numbers of its own.
TRAINING, TESTING, VALIDATION, LABELLED, SEARCHED = (use * 10_000_000 for use in range(5))
APART = 1_000_000  # numbers between two seeds


@dataclass
class Respondent:
    """A model and its tokenizer, answering exercises."""

    model: Any
    tokenizer: Any
    settings: Any  # with max_tokens, temperature and constrained
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
