"""OpenFeature: our flags for users of that SDK, and theirs for us. Needs the extra `flags`."""

from __future__ import annotations

from typing import Any

from agent_forge.errors import MissingExtraError
from agent_forge.rollout.flags import TYPES, Flags, FlagValue

try:
    from openfeature.evaluation_context import EvaluationContext
    from openfeature.exception import ErrorCode
    from openfeature.flag_evaluation import FlagResolutionDetails, Reason
    from openfeature.provider import AbstractProvider, Metadata
except ImportError as _error:
    raise MissingExtraError("OpenFeature", "flags") from _error


class ForgeProvider(AbstractProvider):
    """A provider of our flags: `openfeature.api.set_provider(ForgeProvider(Flags()))`.

    The targeting key is the unit; the other attributes are what rules match.
    """

    def __init__(self, flags: Flags) -> None:
        super().__init__()
        self.flags = flags

    def get_metadata(self) -> Metadata:
        return Metadata("agent-forge")

    def _resolve(self, kind: str, key: str, default: Any, context: EvaluationContext | None) -> Any:
        unit = context.targeting_key if context is not None else None
        attributes = dict(context.attributes) if context is not None else {}
        attributes.pop("unit", None)
        found = self.flags.evaluate(key, unit=unit, **{str(name): value for name, value in attributes.items()})
        if found.reason == "ERROR":
            return FlagResolutionDetails(default, ErrorCode.FLAG_NOT_FOUND, found.why, Reason.ERROR)
        value = float(found.value) if kind == "float" and type(found.value) is int else found.value
        if not isinstance(value, TYPES[kind]) or (kind != "boolean" and isinstance(value, bool)):
            why = f"flag {key!r} is not of type {kind}"
            return FlagResolutionDetails(default, ErrorCode.TYPE_MISMATCH, why, Reason.ERROR)
        return FlagResolutionDetails(value, reason=Reason(found.reason))

    def resolve_boolean_details(
        self, flag_key: str, default_value: bool, evaluation_context: EvaluationContext | None = None
    ) -> Any:
        return self._resolve("boolean", flag_key, default_value, evaluation_context)

    def resolve_string_details(
        self, flag_key: str, default_value: str, evaluation_context: EvaluationContext | None = None
    ) -> Any:
        return self._resolve("string", flag_key, default_value, evaluation_context)

    def resolve_integer_details(
        self, flag_key: str, default_value: int, evaluation_context: EvaluationContext | None = None
    ) -> Any:
        return self._resolve("integer", flag_key, default_value, evaluation_context)

    def resolve_float_details(
        self, flag_key: str, default_value: float, evaluation_context: EvaluationContext | None = None
    ) -> Any:
        return self._resolve("float", flag_key, default_value, evaluation_context)

    def resolve_object_details(
        self, flag_key: str, default_value: Any, evaluation_context: EvaluationContext | None = None
    ) -> Any:
        return self._resolve("object", flag_key, default_value, evaluation_context)


class ClientFlags:
    """The flags of an OpenFeature client, whoever provides them, in the place of `Flags`."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def value(self, name: str, default: Any, *, unit: str | None = None, **attributes: Any) -> Any:
        """The value of a flag of the default's type; the default where the provider has none."""
        return self._details(name, default, unit, attributes).value

    def evaluate(self, name: str, *, unit: str | None = None, **attributes: Any) -> FlagValue:
        """The value of a boolean flag and the provider's reason."""
        details = self._details(name, False, unit, attributes)
        if details.error_code is not None:
            return FlagValue(None, "ERROR", details.error_message)
        return FlagValue(details.value, str(getattr(details.reason, "value", details.reason)))

    def _details(self, name: str, default: Any, unit: str | None, attributes: dict[str, Any]) -> Any:
        kind = next(kind for kind, types in TYPES.items() if type(default) is types[0] or isinstance(default, types))
        context = EvaluationContext(unit, attributes)
        return getattr(self.client, f"get_{kind}_details")(name, default, context)
