"""Writes a plan token by token: chooses among what the grammar of the line allows, and keeps how sure it was."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from agent_forge.agents.grounding import Mentions, plain
from agent_forge.agents.planner.constraint import line_grammar, settled
from agent_forge.agents.planner.script import MISSING, Function, read_line, result_fields
from agent_forge.inference.grammar import Grammar, GrammarVocabulary

MOST_CALLS = 12


AGAIN = 0.1  # factor on a number or a text that the call has already used as often as it was said
_NUMBER = re.compile(r"=(-?[0-9.]*)$")  # one that is being written
_USED = re.compile(r"=(-?[0-9][0-9.]*)[,)]")
_QUOTE = re.compile(r'(?<!\\)"')


@dataclass(frozen=True)
class Tokens:
    """What tokens stand for; those that begin with `?`, and `=` and `="`."""

    texts: tuple[str, ...]
    asking: frozenset[int]
    equals: int
    quote: int

    @classmethod
    @lru_cache(maxsize=4)
    def of(cls, vocabulary: GrammarVocabulary) -> Tokens:
        texts = tuple(vocabulary.text([token]) for token in range(vocabulary.size))
        asking = frozenset(token for token, text in enumerate(texts) if text.startswith(MISSING))
        return cls(texts, asking, texts.index("="), texts.index('="') if '="' in texts else -1)


@dataclass
class PlanWriter:
    """One plan in the making. Feed it the logits after the prompt, then those after each token it chose.

    `choose` gives the next token, or None at the end. Probabilities
    are over the allowed tokens alone; where there is one choice, there is nothing to be unsure of.

    Where others draw the tokens (`forge.training.sampling`), `allowed` and `advance` make it a constraint: then none of
    the weights above counts, and the distribution is the model's own over the allowed tokens.
    """

    vocabulary: GrammarVocabulary
    functions: Sequence[Function]
    request: str
    refuse_above: float = 0.9  # probability of `none` from which on a request is refused
    ask_weight: float = 0.1  # factor on the probability that a value is missing: asking costs a turn
    calls: list[dict[str, Any]] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)  # one per call: the least sure choice in it
    none_probability: float | None = None
    ended: bool = False
    text: str = ""  # what was written
    written_tokens: int = 0
    read_tokens: int = 0  # by the model, what it wrote itself included

    def __post_init__(self) -> None:
        self._said = Mentions(" ".join(self.request.split()))
        self._by_name = {function["name"]: function for function in self.functions}
        self._tokens = Tokens.of(self.vocabulary)
        self._begin_line()

    def _begin_line(self) -> None:
        earlier = [self._by_name[call["tool"]] for call in self.calls]
        self._walk = self.vocabulary.start(Grammar(line_grammar(self.functions, self._said, earlier)))
        self._line: list[int] = []
        self._bare = False  # whether the last token is a `=` where `="` could have stood
        self._least = 1.0

    def choose(self, logits: np.ndarray) -> int | None:
        """The next token. `logits` [vocabulary] are not changed."""
        options = np.flatnonzero(self._walk.allowed()[: len(logits)])
        if len(options) == 0:
            self.ended = True
            return None
        scores = logits[options].astype(np.float64)
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        if not self.calls and not self._line:
            self._decide_none(options, weights)
        elif self._line:
            self._weigh(options, weights)
        best = int(weights.argmax())
        self._least = min(self._least, float(weights[best]))
        self._bare = options[best] == self._tokens.equals and self._tokens.quote in options
        return self._take(int(options[best]))

    def allowed(self) -> np.ndarray:
        """The tokens that may come next, [vocabulary]; when the plan is over, those that end an answer."""
        mask = np.zeros(self.vocabulary.size, dtype=bool) if self.ended else self._walk.allowed()
        if not mask.any():
            mask[list(self.vocabulary.ends)] = True
        return mask

    def advance(self, token: int) -> None:
        """Goes on by an allowed token."""
        if not self.ended:
            self._take(token)

    def _weigh(self, options: np.ndarray, weights: np.ndarray) -> None:
        """Makes it less likely that a value is called missing, or that what was said once is used twice, in place."""
        line = self.vocabulary.text(self._line)
        *texts, open_text = _QUOTE.split(line)
        inside = len(texts) % 2  # of a text
        taken = [plain(each).strip() for each in texts[1::2]] if inside else []
        number = _NUMBER.search(line)
        used = Counter(_USED.findall(line)) if number else None
        asking = set() if self._bare else set(self._tokens.asking)
        if self._tokens.quote in options and self._blind():
            asking.add(self._tokens.equals)
        for place, token in enumerate(options.tolist()):
            if token in asking:
                weights[place] *= self.ask_weight
            elif (number and used and self._used_up(number[1] + self._tokens.texts[token], used)) or (
                taken and weights[place] > 0.01 and self._taken(open_text + self._tokens.texts[token], taken)
            ):
                weights[place] *= AGAIN
        weights /= weights.sum()

    def _blind(self) -> bool:
        """Whether no earlier call tells what it returns: then little but `?` follows a bare `=`."""
        return not any(result_fields(self._by_name[call["tool"]]) for call in self.calls)

    def _used_up(self, written: str, used: Counter[str]) -> bool:
        """Whether what is written of a number can only become one that was used as often as it was said."""
        number, *rest = re.split("[,)]", written, maxsplit=1)
        possible = [text for text in self._said.times if (text == number if rest else text.startswith(number))]
        return bool(possible) and all(used[text] >= self._said.times[text] for text in possible)

    def _taken(self, written: str, texts: Sequence[str]) -> bool:
        """Whether what is written of a text can only become one that the call has, as often as it was said."""
        text = plain(_QUOTE.split(written)[0]).strip()
        times = self._said.words.count(f" {text}") if text else 0
        return 0 < times <= sum(each.startswith(text) for each in texts)

    def _decide_none(self, options: np.ndarray, weights: np.ndarray) -> None:
        """The first token already says whether any tool serves: `none` against the number of the first call."""
        first = self.vocabulary.tokens("1")[0]
        place = int(np.searchsorted(options, first))
        serve = float(weights[place]) if place < len(options) and options[place] == first else 0.0
        self.none_probability = 1.0 - serve
        if self.none_probability <= self.refuse_above:
            weights[options != first] = 0.0
        else:
            weights[options == first] = 0.0

    def _take(self, token: int) -> int | None:
        if token in self.vocabulary.ends:
            self.ended = True
            return None
        self._walk.advance(token)
        self._line.append(token)
        self.written_tokens += 1
        if self._walk.finished or self._walk.may_stop:
            line = self.vocabulary.text(self._line)
            self.text += line
            call = read_line(line)
            call = call and settled(call, self._by_name[call["tool"]], self._said)
            call = None if call in self.calls else call  # the same again: it goes round in circles
            if call is None or len(self.calls) + 1 == MOST_CALLS:
                self.ended = True
            if call is not None:
                self.calls.append(call)
                self.confidences.append(self._least)
            if self.ended:
                return None
            self._begin_line()
        return token
