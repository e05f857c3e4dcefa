"""Spans as rows of the store, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from agent_forge.traces.conventions import complete, payloads
from agent_forge.traces.span import Span
from agent_forge.traces.values import countable, finite, from_json, storable, to_json

Row = tuple[Any, ...]

# The columns that hold a field of the span unchanged come first.
PLAIN = (
    "trace_id", "span_id", "parent_id", "name", "kind", "start_ns", "end_ns", "status", "error", "agent", "model",
    "provider", "session", "category", "policy", "template", "input_tokens", "output_tokens", "cost", "reward",
    "otel_kind",
)  # fmt: skip
COLUMNS = (*PLAIN, "grp", "bucket", "source", "inputs", "outputs", "attributes", "links", "extra")
# Their places in a row.
(
    TRACE, SPAN, PARENT, NAME, KIND, START, END, STATUS, ERROR, AGENT, MODEL, PROVIDER, SESSION, CATEGORY, POLICY,
    TEMPLATE, INPUT_TOKENS, OUTPUT_TOKENS, COST, REWARD, OTEL_KIND, GROUP, BUCKET, SOURCE, INPUTS, OUTPUTS,
    ATTRIBUTES, LINKS, EXTRA,
) = range(len(COLUMNS))  # fmt: skip
# Fields that few spans have share one JSON object.
RARE = ("events", "sampling", "assessment", "prompt_ids", "output_ids", "logprobs", "otel")
_RARE = frozenset(RARE)


def bucket_of(duration_ns: int) -> int:
    """The duration's quarter octave: bucket b covers 2^(b/4) to 2^((b+1)/4) ns, a width of 19 %.

    >>> bucket_of(1024), bucket_of(1200), bucket_of(0)
    (40, 40, 0)
    """
    return int(4 * math.log2(duration_ns)) if duration_ns > 0 else 0


def to_row(span: Span, grp: int, source: int | None) -> Row:
    """The row of a span. Inputs and outputs that its attributes hold are not stored twice."""
    start, end, attributes, inputs, outputs = span.start_ns, span.end_ns, span.attributes, span.inputs, span.outputs
    if attributes and (inputs is not None or outputs is not None):
        in_attributes = payloads(attributes)
        inputs = None if inputs == in_attributes[0] else inputs
        outputs = None if outputs == in_attributes[1] else outputs
    rare = span.rare
    if rare is None:
        provider = category = policy = template = input_tokens = output_tokens = cost = reward = otel_kind = None
    else:
        provider, category, policy, template, input_tokens, output_tokens, cost, reward, otel_kind = map(
            rare.get, _SOME
        )
    error, agent, model, session = span.error, span.agent, span.model, span.session
    return (
        span.trace_id, span.span_id, span.parent_id, storable(span.name), span.kind, start, end, span.status,
        error and storable(error), agent and storable(agent), model and storable(model),
        provider and storable(provider), session and storable(session), category and storable(category),
        policy and storable(policy), template and storable(template), countable(input_tokens), countable(output_tokens),
        cost and finite(cost), reward and finite(reward), otel_kind,
        grp, None if end is None else bucket_of(end - start), source,
        None if inputs is None else to_json(inputs), None if outputs is None else to_json(outputs),
        to_json(attributes) if attributes else None, to_json(span.links) if span.links else None, _extra(span),
    )  # fmt: skip


_SOME = ("provider", "category", "policy", "template", "input_tokens", "output_tokens", "cost", "reward", "otel_kind")


def _extra(span: Span) -> str | None:
    rare = span.rare
    if not span.events and (rare is None or _RARE.isdisjoint(rare)):
        return None
    fields = {name: value for name in RARE if (value := getattr(span, name))}
    return to_json(fields) if fields else None


def to_span(row: Sequence[Any], source: dict[str, Any] | None) -> Span:
    """The span of a row as `to_row` wrote it."""
    span = Span(**dict(zip(PLAIN, row, strict=False)))
    span.inputs, span.outputs = from_json(row[INPUTS]), from_json(row[OUTPUTS])
    if row[LINKS] is not None:
        span.links = [(trace, other) for trace, other in from_json(row[LINKS])]
    if row[EXTRA] is not None:
        for name, value in from_json(row[EXTRA]).items():
            setattr(span, name, value)
    if source is not None:
        span.resource, span.scope = source.get("resource"), source.get("scope")
    if row[ATTRIBUTES] is not None:
        span.attributes = from_json(row[ATTRIBUTES])
        complete(span)
    return span
