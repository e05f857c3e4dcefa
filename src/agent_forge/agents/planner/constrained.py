"""Decoding under the plan grammar: every step allows only tokens after which the plan can still be completed.

The masks come from the tokenizer's own strings. Two limits keep the output bounded whatever the model prefers: a
description ends after `words_tokens` tokens, and the plan ends with the line after `budget` tokens, or with a line that
repeats an earlier one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_forge.agents.planner.grammar import END, PlanGrammar, State, Trie
from agent_forge.errors import ModelError


@dataclass(frozen=True)
class TokenVocabulary:
    """The text of each token, a trie of these texts, and the end token. Built once per tokenizer."""

    texts: dict[int, str]
    trie: Trie
    end_token: int
    in_text: dict[tuple[int, str, bool], list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, tokenizer: Any) -> TokenVocabulary:
        texts = token_texts(tokenizer)
        return cls(texts, Trie.of(texts), tokenizer.eos_token_id)


class PlanProcessor:
    """Masks the logits of plans that are written side by side, each with its own grammar."""

    def __init__(
        self,
        vocabulary: TokenVocabulary,
        grammars: Sequence[PlanGrammar],
        *,
        words_tokens: int = 32,
        budget: int = 256,
    ) -> None:
        self.grammars = tuple(grammars)
        self.words_tokens = words_tokens
        self.budget = budget
        self.vocabulary = vocabulary
        self._masks: dict[tuple[PlanGrammar, State, bool], list[int]] = {}
        self._indices: dict[int, Any] = {}
        self._end = [vocabulary.end_token]
        if not any(self._follow(PlanGrammar(), ("text", 1, 1, "w"), short=True)):
            raise ModelError("the tokenizer has no token with which a description could end (' |')")

    @property
    def most_tokens(self) -> int:
        """An upper bound on the output: the budget, one description, and the dependencies of one line."""
        return self.budget + self.words_tokens + 8 * max(grammar.most for grammar in self.grammars) + 32

    def __call__(self, plan: int, written: Sequence[int], scores: Any) -> Any:
        """The scores of the next token of a plan (numpy, [vocabulary]), with -inf for what its grammar forbids."""
        import numpy as np

        allowed = self._index(self.allowed(written, self.grammars[plan]))
        masked = np.full_like(scores, -np.inf)
        masked[allowed] = scores[allowed]
        if not (masked[allowed] > -np.inf).any():
            masked[allowed] = 0.0  # the model rules out every token that the grammar allows: choose evenly among them
        return masked

    def _index(self, tokens: list[int]) -> Any:
        """The token list as an array, cached: the lists are shared, and some hold the whole vocabulary."""
        import numpy as np

        if id(tokens) not in self._indices:
            self._indices[id(tokens)] = np.array(tokens)
        return self._indices[id(tokens)]

    def allowed(self, written: Sequence[int], grammar: PlanGrammar) -> list[int]:
        """The tokens allowed after those written."""
        state, in_text = self._state(written, grammar)
        if state == END:
            return self._end
        late = len(written) >= self.budget or (grammar.closing(state) and self._repeats(written))
        short = late or in_text >= self.words_tokens
        return self._follow(grammar, state, short=short, late=late)

    def _repeats(self, written: Sequence[int]) -> bool:
        """Whether the last line repeats an earlier one: a small model that starts to loop does not stop."""
        lines = "".join(self.vocabulary.texts[token] for token in written).splitlines()
        goals = [line.partition(":")[2].partition(" |")[0] for line in lines]
        return goals[-1] in goals[:-1]

    def _state(self, written: Sequence[int], grammar: PlanGrammar) -> tuple[State, int]:
        """The state after the text, and how many tokens its current description has."""
        state, in_text = grammar.start, 0
        for token in written:
            if state == END:
                break
            following = grammar.run(state, self.vocabulary.texts[token])
            if following is None:
                raise AssertionError("a token outside the grammar was written")
            in_text = in_text + 1 if following[0] == "text" else 0
            state = following
        return state, in_text

    def _follow(self, grammar: PlanGrammar, state: State, *, short: bool = False, late: bool = False) -> list[int]:
        """The allowed tokens; `short`: the description must end now; `late`: so must the plan."""
        if state[0] == "text":
            return self._in_text(state, ending=short and bool(state[2]))
        closing = late and grammar.closing(state)
        key = (grammar, state, closing)
        if key not in self._masks:
            pairs = list(self.vocabulary.trie.allowed(grammar, state))
            if closing:
                pairs = [pair for pair in pairs if pair[1] == END or pair[1][3].startswith("<")]
            self._masks[key] = [token for token, _ in pairs]
        return self._masks[key]

    def _in_text(self, state: State, *, ending: bool) -> list[int]:
        """The tokens inside a description: nearly all, and the same ones for every task and plan."""
        key = (state[2], state[3], ending)
        cache = self.vocabulary.in_text
        if key not in cache:
            allowed = self.vocabulary.trie.allowed(PlanGrammar(), ("text", 1, state[2], state[3]))
            pairs = [pair for pair in allowed if pair[1][0] in ("text", "separator")]
            if ending:
                # If no token leads straight to the separator, one that is only the space before it.
                spaces = [pair for pair in pairs if pair[1] == ("text", 1, state[2], " ")]
                pairs = [pair for pair in pairs if pair[1][0] != "text"] or spaces
            cache[key] = [token for token, _ in pairs]
        return cache[key]


def token_texts(tokenizer: Any) -> dict[int, str]:
    """The text that each token adds after another one, without special tokens and incomplete characters."""
    anchor = tokenizer.encode("a", add_special_tokens=False)[-1]
    before = len(tokenizer.decode([anchor]))
    special = set(tokenizer.all_special_ids)
    ids = [token for token in range(len(tokenizer)) if token not in special]
    texts = tokenizer.batch_decode([[anchor, token] for token in ids], clean_up_tokenization_spaces=False)
    return {token: text[before:] for token, text in zip(ids, texts, strict=True) if "\ufffd" not in text}
