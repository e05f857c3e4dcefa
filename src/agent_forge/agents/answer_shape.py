"""The form an answer must have: a JSON Schema, or a dataclass or other type that has one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from agent_forge.agents.tools.schema import shape_of
from agent_forge.agents.tools.tool import fault_of
from agent_forge.errors import ModelError, UsageError

AnswerAs = type | Mapping[str, Any] | None
_FENCE = re.compile(r"\A```(?:json)?\s*(.*?)\s*```\Z", re.DOTALL)


class AnswerInvalid(ModelError):
    """An answer that does not have the form that was asked for. `faults` has one line per fault."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults), where="the answer")
        self.faults = faults


class AnswerShape:
    """A JSON Schema and how a valid answer becomes a Python value.

    >>> AnswerShape.of({"type": "integer"}).read("```json\\n42\\n```")
    42
    """

    def __init__(self, schema: Mapping[str, Any], build: Callable[[Any], Any]) -> None:
        from jsonschema import Draft202012Validator, SchemaError
        from referencing import Registry

        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise UsageError(f"the schema of the answer is not a JSON Schema: {error.message[:200]}") from error
        self.schema = schema
        self._build = build
        self._validator = Draft202012Validator(schema, registry=Registry())  # an empty one: no $ref is fetched

    @classmethod
    def of(cls, answer_as: AnswerAs) -> AnswerShape | None:
        """Raises UsageError for what is not a JSON Schema, and UnsupportedAnnotation for a type without one."""
        if answer_as is None:
            return None
        if isinstance(answer_as, Mapping):
            return cls(answer_as, lambda value: value)
        shape = shape_of(answer_as, where="answer_as")
        return cls(shape.schema, shape.value)

    def read(self, text: str) -> Any:
        """The value in a model's answer, alone or in a code fence. Raises AnswerInvalid."""
        from referencing.exceptions import Unresolvable

        text = text.strip()
        fenced = _FENCE.match(text)
        try:
            value = json.loads(fenced[1] if fenced else text)
        except (ValueError, RecursionError) as error:
            if self.schema.get("type") != "string":
                raise AnswerInvalid([f"it is not JSON: {error}"]) from error
            value = text
        try:
            errors = list(self._validator.iter_errors(value))
        except Unresolvable as error:
            raise AnswerInvalid([f"its schema refers to {error.ref!r}, which it does not contain"]) from error
        if errors:
            raise AnswerInvalid([fault_of(error, "value") for error in errors])
        return self._build(value)
