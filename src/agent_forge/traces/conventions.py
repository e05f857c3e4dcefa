"""Attribute names: ours, OpenTelemetry's GenAI conventions, and the dialects of OpenInference and OpenLLMetry.

This is the one place that knows them. The GenAI conventions are still marked "in development"
(opentelemetry.io/docs/specs/semconv/gen-ai): when a name changes, the new one is put before the old one here.
Reading takes the first name that a span has; writing uses the first name of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agent_forge.errors import TraceError
from agent_forge.traces.span import KINDS, ROLLOUT, Span
from agent_forge.traces.values import finite, from_json, storable, to_json

PREFIX = "agent_forge."  # of every attribute that is ours alone

REWARD_NAME, REWARD_VALUE = "agentlightning.reward.0.name", "agentlightning.reward.0.value"
# field of the span: the name we write, then the other names we read, in the order in which they win
NAMES: dict[str, tuple[str, ...]] = {
    "agent": ("gen_ai.agent.name", "agent.name"),
    "model": (
        "gen_ai.request.model", "gen_ai.response.model", "llm.model_name", "embedding.model_name",
        "reranker.model_name", "llm.request.model", "llm.response.model",
    ),
    "provider": ("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system", "llm.vendor"),
    "session": (
        "gen_ai.conversation.id", "session.id", "traceloop.association.properties.session_id",
        "traceloop.association.properties.chat_id",
    ),
    "category": ("agent_forge.category",),
    "input_tokens": (
        "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt", "llm.usage.prompt_tokens",
    ),
    "output_tokens": (
        "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion",
        "llm.usage.completion_tokens",
    ),
    "cost": ("agent_forge.cost", "operation.cost", "gen_ai.usage.cost", "llm.cost.total", "llm.usage.cost"),
    "reward": ("agent_forge.reward", "gen_ai.evaluation.score.value", REWARD_VALUE),
    "policy": ("agent_forge.policy",),
    "template": ("agent_forge.template", "llm.prompt_template.version", "traceloop.prompt.version"),
    "prompt_ids": ("prompt_token_ids", "agent_forge.prompt_token_ids"),  # as Agent Lightning's adapters read them
    "output_ids": ("response_token_ids", "agent_forge.output_token_ids"),
    "logprobs": ("agent_forge.logprobs",),
}  # fmt: skip

# Sampling settings, as `span.sampling` names them. Unknown ones travel as agent_forge.sampling.NAME.
SAMPLING: dict[str, tuple[str, ...]] = {
    "temperature": ("gen_ai.request.temperature", "llm.temperature"),
    "top_p": ("gen_ai.request.top_p", "llm.top_p"),
    "top_k": ("gen_ai.request.top_k", "llm.top_k"),
    "max_tokens": ("gen_ai.request.max_tokens", "llm.request.max_tokens"),
    "seed": ("gen_ai.request.seed", "gen_ai.openai.request.seed"),
    "frequency_penalty": ("gen_ai.request.frequency_penalty", "llm.frequency_penalty"),
    "presence_penalty": ("gen_ai.request.presence_penalty", "llm.presence_penalty"),
    "stop": ("gen_ai.request.stop_sequences", "llm.chat.stop_sequences"),
    "n": ("gen_ai.request.choice.count",),
}
_SAMPLING_PREFIX, _ASSESSMENT_PREFIX = PREFIX + "sampling.", PREFIX + "assessment."
_INVOCATION = "llm.invocation_parameters"  # OpenInference: all settings as one JSON object
# They name the requested model, which is all there is when a call failed before a model answered.
REQUESTED = (_INVOCATION, "embedding.invocation_parameters")
_INVOCATION_NAMES = {**{name: name for name in SAMPLING}, "max_completion_tokens": "max_tokens"}

# The kind of a span, by the attribute that says it and the value it has there.
KIND = PREFIX + "kind"
KIND_OF: dict[str, dict[str, str]] = {
    KIND: {kind: kind for kind in KINDS},
    "gen_ai.operation.name": {
        "chat": "model", "text_completion": "model", "generate_content": "model", "embeddings": "model",
        "execute_tool": "tool", "invoke_agent": "agent", "create_agent": "agent", "invoke_workflow": "run",
        "retrieval": "observation", "plan": "plan", "evaluate": "reward",
    },
    "openinference.span.kind": {
        "LLM": "model", "EMBEDDING": "model", "RERANKER": "model", "TOOL": "tool", "AGENT": "agent", "CHAIN": "task",
        "RETRIEVER": "observation", "GUARDRAIL": "task", "EVALUATOR": "reward", "PROMPT": "task",
    },
    "traceloop.span.kind": {"workflow": "run", "task": "task", "agent": "agent", "tool": "tool"},
    "llm.request.type": {"chat": "model", "completion": "model", "rerank": "model", "embedding": "model"},
}  # fmt: skip
# Where an agent span does not name its agent, the span's own name stands in for it, without what the convention puts
# around the agent's name there ("invoke_agent Max", "Max.agent"): (before, after). Our own attribute is not here: what
# we record names the agent, or says that it is unknown.
AGENT_SPANS: dict[str, tuple[tuple[str, str], ...]] = {
    "gen_ai.operation.name": (("invoke_agent ", ""), ("create_agent ", "")),
    "openinference.span.kind": (),
    "traceloop.span.kind": (("", ".agent"),),
}
# Another program's evaluation without a reward judges nothing that can be counted: it is a step of that program.
# OpenInference leaves range and direction of its scores to whoever names them (a "hallucination" of 1 is bad), so
# `evaluations.N.evaluation.score` is not a reward.
UNSCORED = "task"
OPERATION = {"model": "chat", "tool": "execute_tool", "agent": "invoke_agent", "run": "invoke_workflow"}

# The attributes that hold inputs and outputs, in the order in which they win. A name that ends in "." is a flattened
# list of messages, as OpenInference and OpenLLMetry write them ("llm.input_messages.0.message.role").
INPUTS = (
    "agent_forge.inputs", "gen_ai.input.messages", "gen_ai.tool.call.arguments", "llm.input_messages.",
    "gen_ai.prompt.", "input.value", "traceloop.entity.input", "gen_ai.retrieval.query.text", "gen_ai.prompt",
)  # fmt: skip
OUTPUTS = (
    "agent_forge.outputs", "gen_ai.output.messages", "gen_ai.tool.call.result", "llm.output_messages.",
    "gen_ai.completion.", "output.value", "traceloop.entity.output", "gen_ai.retrieval.documents", "gen_ai.completion",
)  # fmt: skip


_WIDEST = 2**63  # what a database's integers hold


def _number(value: Any) -> float:
    if isinstance(value, (int, float)):
        return float(value)
    raise TraceError(f"{value!r} is not a number")


def _count(value: Any) -> int:
    number = int(value)
    if -_WIDEST <= number < _WIDEST:
        return number
    raise TraceError(f"{value!r} is more than a database holds")


def _list(value: Any) -> list[Any]:
    items = from_json(value) if isinstance(value, str) else value
    if isinstance(items, list):
        return items
    raise TraceError(f"{value!r} is not a list")


_READ: dict[str, tuple[type, Callable[[Any], Any]]] = {
    "input_tokens": (int, _count), "output_tokens": (int, _count), "cost": (float, _number), "reward": (float, _number),
}  # fmt: skip
_LISTS = ("prompt_ids", "output_ids", "logprobs")
# attribute name → (rank among the names of its field, field, expected type, converter for other types)
FIELD_RULES: dict[str, tuple[int, str, Any, Callable[[Any], Any]]] = {
    name: (rank, field, *_READ.get(field, (str, str)))
    for field, names in NAMES.items()
    if field not in _LISTS
    for rank, name in enumerate(names)
}
_SESSION = frozenset(NAMES["session"])
_SAMPLING_RULES = {name: key for key, names in SAMPLING.items() for name in reversed(names)}


def fill(span: Span) -> Span:
    """Sets the kind and the plain fields from the span's attributes, and its session from scope or resource where they
    do not name one. Returns the span.
    """
    for field, value in fields_of(span.attributes, span.name).items():
        setattr(span, field, value)
    if not span.session:
        span.session = session_around(span.resource, span.scope) or span.session
    return span


def fields_of(attributes: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The kind and the plain fields of a span with these attributes and this name, as far as they are known.

    The name stands in for the agent of an agent span, and the requested model for the one that answered. This runs for
    every span that comes in.
    """
    fields: dict[str, Any] = {}
    ranks: dict[str, int] = {}
    for attribute, value in attributes.items():
        if attribute not in FIELD_RULES:
            continue
        rank, field, kind, convert = FIELD_RULES[attribute]
        if field in ranks and ranks[field] < rank:
            continue
        fits = value.__class__ is kind and (kind is not int or -_WIDEST <= value < _WIDEST)
        if not fits and (value := read_value(convert, value)) is None:
            continue
        ranks[field] = rank
        fields[field] = value
    for attribute, kinds in KIND_OF.items():
        value = attributes.get(attribute)
        if isinstance(value, str) and value in kinds:
            fields["kind"] = kinds[value]
            if kinds[value] == "reward" and attribute != KIND and finite(fields.get("reward")) is None:
                fields["kind"] = UNSCORED
            if kinds[value] == "agent" and attribute in AGENT_SPANS and not fields.get("agent") and name:
                fields["agent"] = _agent_of(name, AGENT_SPANS[attribute])
            break
    if "kind" not in fields and fields.get("reward") is not None and REWARD_VALUE in attributes:
        fields["kind"] = "reward"  # an annotation of Agent Lightning
    if fields.get("kind") == "model" and not fields.get("model") and (model := _requested_model(attributes)):
        fields["model"] = model
    return fields


def _requested_model(attributes: Mapping[str, Any]) -> str | None:
    for name in REQUESTED:
        settings = value_of(attributes.get(name))
        if isinstance(settings, dict):
            for model in (settings.get("model"), settings.get("model_name")):
                if isinstance(model, str) and model:
                    return model
    return None


def _agent_of(name: str, around: tuple[tuple[str, str], ...]) -> str:
    for before, after in around:
        if len(name) > len(before) + len(after) and name.startswith(before) and name.endswith(after):
            return name[len(before) : len(name) - len(after)]
    return name


def session_around(resource: Mapping[str, Any] | None, scope: Mapping[str, Any] | None) -> str | None:
    """The session that a span's scope names, or else its resource: a process that serves one session says so once, and
    so does a runner of Agent Lightning with its rollout.

    >>> session_around({"service.name": "shop", "session.id": "s-1"}, {"name": "openinference"})
    's-1'
    """
    for attributes in (scope.get("attributes") if scope else None, resource):
        if not attributes or _SESSION.isdisjoint(attributes):
            continue
        for name in NAMES["session"]:
            value = attributes.get(name)
            if value.__class__ in (str, int) and value != "":
                return storable(str(value))
    rollout = resource.get(ROLLOUT) if resource else None
    return storable(rollout) if isinstance(rollout, str) and rollout else None


def complete(span: Span) -> Span:
    """Sets the fields that are still None and that attributes hold: sampling, token ids, inputs, outputs … Returns the
    span."""
    attributes = span.attributes
    if span.inputs is None or span.outputs is None:
        inputs, outputs = payloads(attributes)
        span.inputs = inputs if span.inputs is None else span.inputs
        span.outputs = outputs if span.outputs is None else span.outputs
    for field in _LISTS:
        if getattr(span, field) is None:
            items = next((attributes[name] for name in NAMES[field] if name in attributes), None)
            if items is not None:
                setattr(span, field, read_value(_list, items))
    if span.sampling is None:
        span.sampling = _sampling(attributes) or None
    if span.assessment is None:
        span.assessment = _under(_ASSESSMENT_PREFIX, attributes) or None
    return span


def read_value(convert: Callable[[Any], Any], value: Any) -> Any:
    """A value of an unexpected type, converted; None where that is impossible."""
    try:
        return convert(value)
    except (ValueError, TypeError, OverflowError, TraceError):
        return None  # someone else's mistake: the attribute stays, the field is None


def _sampling(attributes: Mapping[str, Any]) -> dict[str, Any]:
    settings = value_of(attributes[_INVOCATION]) if _INVOCATION in attributes else {}
    items = settings.items() if isinstance(settings, dict) else ()
    sampling = {_INVOCATION_NAMES[key]: value for key, value in items if key in _INVOCATION_NAMES}
    sampling |= {key: attributes[name] for name, key in _SAMPLING_RULES.items() if name in attributes}
    return sampling | _under(_SAMPLING_PREFIX, attributes)


def _under(prefix: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name[len(prefix) :]: value for name, value in attributes.items() if name.startswith(prefix)}


def payloads(attributes: Mapping[str, Any]) -> tuple[Any, Any]:
    """The inputs and outputs that attributes hold; None where they hold none."""
    return _payload(attributes, INPUTS), _payload(attributes, OUTPUTS)


def _payload(attributes: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if name.endswith("."):
            if messages := unflatten(attributes, name):
                return messages
        elif (value := attributes.get(name)) is not None:
            return value_of(value)
    return None


def unflatten(attributes: Mapping[str, Any], prefix: str) -> list[Any]:
    """The list behind "prefix0.role", "prefix0.tool_calls.0.name", "prefix1.message.content" …"""
    root: dict[str, Any] = {}
    for name, value in attributes.items():
        if not name.startswith(prefix):
            continue
        place = root
        *path, last = name[len(prefix) :].split(".")
        for step in path:
            inner = place.setdefault(step, {})
            if not isinstance(inner, dict):
                break
            place = inner
        else:
            place[last] = value
    items = _lists(root)
    return items if isinstance(items, list) else []


def _lists(value: Any) -> Any:
    """Objects whose keys are all numbers as lists, and messages without their wrapper."""
    if not isinstance(value, dict):
        return value
    items = {key: _lists(item) for key, item in value.items()}
    if items and all(key.isdecimal() for key in items):
        return [items[key] for key in sorted(items, key=int)]
    for wrapper in ("message", "tool_call", "message_content"):
        if items.keys() == {wrapper} and isinstance(items[wrapper], dict):
            return items[wrapper]
    return items


def value_of(text: Any) -> Any:
    """The value of an attribute that holds JSON text or plain text."""
    if not isinstance(text, str) or not text or text[0] not in '{["-0123456789tfn':
        return text
    try:
        return from_json(text)
    except ValueError:
        return text


def text_of(value: Any) -> str:
    """The inverse of `value_of`: text as it is where it cannot be taken for JSON, JSON otherwise."""
    return value if isinstance(value, str) and value_of(value) is value else to_json(value)


def to_attributes(span: Span, *, alone: bool = False) -> dict[str, Any]:
    """The attributes under which a span is exported: its own, and its fields that cannot be read from these.

    With `alone`, its resource and scope do not go with it: what only they hold becomes an attribute too.
    """
    implied = Span(span.trace_id, span.span_id, span.name, "other", attributes=span.attributes)
    if not alone:
        implied.resource, implied.scope = span.resource, span.scope
    complete(fill(implied))
    attributes = dict(span.attributes)
    if span.kind != implied.kind or span.otel_kind is None:
        # The kind is written below, and the span's name stands in for the agent by the attribute that names the kind.
        implied.agent = implied.model = None
    for field, names in NAMES.items():
        value, other = getattr(span, field), getattr(implied, field)
        stored = storable(other) if isinstance(other, str) else other  # a field loses what no database holds
        if value is not None and value not in (other, stored):
            attributes[names[0]] = value
    if span.kind != implied.kind:
        attributes[KIND] = span.kind
    for key, value in (span.sampling or {}).items():
        if (implied.sampling or {}).get(key) != value:
            attributes[SAMPLING[key][0] if key in SAMPLING else _SAMPLING_PREFIX + key] = value
    for key, value in (span.assessment or {}).items():
        if (implied.assessment or {}).get(key) != value:
            attributes[_ASSESSMENT_PREFIX + key] = value
    _add_payloads(attributes, span, implied)
    if span.otel_kind is None:
        _add_ours(attributes, span)
    return attributes


_PAYLOAD_NAMES = {
    "model": ("gen_ai.input.messages", "gen_ai.output.messages"),
    "tool": ("gen_ai.tool.call.arguments", "gen_ai.tool.call.result"),
}


def _add_payloads(attributes: dict[str, Any], span: Span, implied: Span) -> None:
    ours = ("agent_forge.inputs", "agent_forge.outputs")
    names = _PAYLOAD_NAMES.get(span.kind, ours)
    payloads = ((span.inputs, implied.inputs), (span.outputs, implied.outputs))
    for (value, other), name, own in zip(payloads, names, ours, strict=True):
        if value is None or value == other:
            continue
        fits = other is None and (span.kind != "model" or isinstance(value, list))  # GenAI messages are a list
        attributes[name if fits else own] = text_of(value)


def _add_ours(attributes: dict[str, Any], span: Span) -> None:
    """What the GenAI conventions ask for beside the fields, on spans that we recorded."""
    if span.kind in OPERATION:
        attributes.setdefault("gen_ai.operation.name", OPERATION[span.kind])
    if span.kind == "tool":
        attributes.setdefault("gen_ai.tool.name", span.name)
    if span.reward is not None:
        attributes.setdefault("gen_ai.evaluation.name", span.name)
        attributes.setdefault("gen_ai.evaluation.score.value", span.reward)
        if span.kind == "reward":  # on any other span it would hide the model calls inside from Agent Lightning
            attributes.setdefault(REWARD_NAME, span.name)
            attributes.setdefault(REWARD_VALUE, span.reward)
