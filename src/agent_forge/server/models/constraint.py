"""Answers that must have a shape: constrained decoding through llguidance."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from agent_forge.errors import MissingExtraError
from agent_forge.server.answers import Refused

_BITS = torch.arange(8, dtype=torch.uint8)


class Grammars:
    """Makes constraints for one tokenizer. The first takes about a second: the vocabulary is read."""

    def __init__(self, tokenizer: Any, vocabulary: int, ends: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._ends = ends
        self._known: Any = None

    def _vocabulary_of(self) -> Any:
        if self._known is None:
            try:
                from llguidance.hf import from_tokenizer
            except ImportError as error:
                raise MissingExtraError("an answer with a schema", "server") from error
            size = max(self._vocabulary, len(self._tokenizer))
            self._known = from_tokenizer(self._tokenizer, n_vocab=size, eos_token=sorted(self._ends))
        return self._known

    def schema(self, schema: Mapping[str, Any]) -> Constraint:
        """A constraint to JSON that is valid under a schema. Raises Refused for a schema that cannot be followed."""
        from llguidance import LLMatcher

        try:
            known = self._vocabulary_of()
            # one way to write it: without it, a weak model may fill its answer with blanks, which JSON allows
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_flexible": False})
        except ValueError as error:
            raise _unusable(str(error)) from error
        matcher = LLMatcher(known, grammar)
        if matcher.is_error():
            raise _unusable(matcher.get_error())
        return Constraint(matcher)


def _unusable(why: str) -> Refused:
    return Refused(400, f"the schema cannot be followed: {why[:500]}", code="invalid_schema", param="response_format")


class Constraint:
    """Where one answer stands in its grammar."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def mask(self) -> Tensor:
        """A boolean vector: the tokens that may come next; it may be longer than the vocabulary."""
        packed = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        return (packed[:, None] >> _BITS & 1).flatten().bool()

    def take(self, token: int) -> bool:
        """Notes a token; True when the answer is complete and nothing may follow."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped())
