"""Decoding under the plan grammar: at every step only tokens after which the plan can still be completed.

The masks come from the tokenizer's own strings. Two limits keep it bounded whatever the model prefers: a description
of more than `words_tokens` tokens must end, and beyond `budget` tokens, or after a line that repeats an earlier one,
the plan is closed at the line's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_forge.agents.planner.grammar import END, PlanGrammar, State, Trie
from agent_forge.errors import ModelError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TokenVocabulary:
    """The text of each token, the same as a trie, and the token that ends a text. Built once for a tokenizer."""

    texts: dict[int, str]
    trie: Trie
    end_token: int
    in_text: dict[tuple[int, str, bool], list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, tokenizer: Any) -> TokenVocabulary:
        texts = token_texts(tokenizer)
        return cls(texts, Trie.of(texts), tokenizer.eos_token_id)


class PlanProcessor:
    """A transformers logits processor (any callable of ids and scores is one), with one grammar for each row."""

    def __init__(
        self,
        vocabulary: TokenVocabulary,
        grammars: Sequence[PlanGrammar],
        prompt_tokens: int,
        *,
        words_tokens: int = 32,
        budget: int = 256,
    ) -> None:
        self.grammars = tuple(grammars)
        self.prompt_tokens = prompt_tokens
        self.words_tokens = words_tokens
        self.budget = budget
        self.vocabulary = vocabulary
        self._masks: dict[tuple[PlanGrammar, State, bool], list[int]] = {}
        self._indices: dict[int, torch.Tensor] = {}
        self._end = [vocabulary.end_token]
        if not any(self._follow(PlanGrammar(), ("text", 1, 1, "w"), short=True)):
            raise ModelError("the tokenizer has no token with which a description could end (' |')")

    @property
    def most_tokens(self) -> int:
        """A bound on what is written in all: the budget, a description in flight, and the dependencies of one line."""
        return self.budget + self.words_tokens + 8 * max(grammar.most for grammar in self.grammars) + 32

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        masked = scores.new_full(scores.shape, float("-inf"))
        for row, ids in enumerate(input_ids.tolist()):
            allowed = self._index(self.allowed(ids[self.prompt_tokens :], self.grammars[row]), scores)
            masked[row, allowed] = scores[row, allowed]
            if not bool((masked[row] > float("-inf")).any()):
                masked[row, allowed] = (
                    0.0  # the model rules out every token that the grammar allows: let it pick evenly
                )
        return masked

    def _index(self, tokens: list[int], scores: torch.Tensor) -> torch.Tensor:
        """The same as a tensor, made once: the lists are kept and some hold the whole vocabulary."""
        if id(tokens) not in self._indices:
            self._indices[id(tokens)] = scores.new_tensor(tokens).long()
        return self._indices[id(tokens)]

    def allowed(self, written: Sequence[int], grammar: PlanGrammar) -> list[int]:
        """The tokens that may come next after those written."""
        state, in_text = self._state(written, grammar)
        if state == END:
            return self._end
        late = len(written) >= self.budget or (grammar.closing(state) and self._repeats(written))
        short = late or in_text >= self.words_tokens
        return self._follow(grammar, state, short=short, late=late)

    def _repeats(self, written: Sequence[int]) -> bool:
        """Whether the line just ended says what an earlier one said: small models loop, and it never gets better."""
        lines = "".join(self.vocabulary.texts[token] for token in written).splitlines()
        said = [line.partition(":")[2].partition(" |")[0] for line in lines]
        return said[-1] in said[:-1]

    def _state(self, written: Sequence[int], grammar: PlanGrammar) -> tuple[State, int]:
        """Where the text stands, and how many tokens its description has so far."""
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
        """The allowed tokens; `short`: a description must end now; `late`: so must the plan."""
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
        """The tokens inside a description: nearly all there are, and the same for every task and every plan."""
        key = (state[2], state[3], ending)
        known = self.vocabulary.in_text
        if key not in known:
            found = self.vocabulary.trie.allowed(PlanGrammar(), ("text", 1, state[2], state[3]))
            pairs = [pair for pair in found if pair[1][0] in ("text", "separator")]
            if ending:
                pairs = [pair for pair in pairs if pair[1][0] != "text"] or _spaces(pairs, state)
            known[key] = [token for token, _ in pairs]
        return known[key]


def _spaces(pairs: list[tuple[int, State]], state: State) -> list[tuple[int, State]]:
    """Where no token goes straight to the separator, one that is only the space before it."""
    return [pair for pair in pairs if pair[1] == ("text", 1, state[2], " ")]


def token_texts(tokenizer: Any) -> dict[int, str]:
    """The text each token adds after another one. Tokens that are special or not whole characters are left out."""
    anchor = tokenizer.encode("a", add_special_tokens=False)[-1]
    before = len(tokenizer.decode([anchor]))
    special = set(tokenizer.all_special_ids)
    ids = [token for token in range(len(tokenizer)) if token not in special]
    texts = tokenizer.batch_decode([[anchor, token] for token in ids], clean_up_tokenization_spaces=False)
    return {token: text[before:] for token, text in zip(ids, texts, strict=True) if "\ufffd" not in text}
