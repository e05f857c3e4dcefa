"""Constrained decoding: answers that follow a JSON Schema, through llguidance."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from agent_forge.errors import MissingExtraError
from agent_forge.refusal import Refusal

_BITS = torch.arange(8, dtype=torch.uint8)


class Grammars:
    """Makes constraints for one tokenizer. The first one reads the vocabulary, which takes about a second."""

    def __init__(self, tokenizer: Any, vocabulary: int, ends: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._ends = ends
        self._tokens: Any = None

    def _read_vocabulary(self) -> Any:
        if self._tokens is None:
            try:
                from llguidance.hf import from_tokenizer
            except ImportError as error:
                raise MissingExtraError("an answer with a schema", "server") from error
            size = max(self._vocabulary, len(self._tokenizer))
            self._tokens = from_tokenizer(self._tokenizer, n_vocab=size, eos_token=sorted(self._ends))
        return self._tokens

    def schema(self, schema: Mapping[str, Any]) -> Constraint:
        """A constraint to JSON that is valid under a schema. Raises Refusal (400) for an unsupported schema."""
        from llguidance import LLMatcher

        try:
            tokens = self._read_vocabulary()
            # a weak model would otherwise fill its answer with blanks, which JSON allows
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_flexible": False})
        except ValueError as error:
            raise _unusable(str(error)) from error
        matcher = LLMatcher(tokens, grammar)
        if matcher.is_error():
            raise _unusable(matcher.get_error())
        return Constraint(matcher)


def _unusable(why: str) -> Refusal:
    return Refusal(400, f"the schema cannot be followed: {why[:500]}", code="invalid_schema", param="response_format")


class Constraint:
    """The state of one answer in its grammar."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def mask(self) -> Tensor:
        """The tokens that may come next, boolean [V] or longer."""
        packed = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        return (packed[:, None] >> _BITS & 1).flatten().bool()

    def take(self, token: int) -> bool:
        """Advances by a token; True when the answer is complete."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped())
