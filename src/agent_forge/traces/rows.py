"""Rows of the store: from spans and from what requests hold, and back to spans."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent_forge.traces.conventions import complete, payloads
from agent_forge.traces.span import Span, only_numbered
from agent_forge.traces.values import countable, finite, from_json, storable, to_json

Row = Any  # a list, or what a database driver returns: a tuple

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


def make_row(
    trace_id: str,
    span_id: str,
    parent_id: str | None,
    name: str,
    kind: str,
    start_ns: int,
    end_ns: int | None,
    status: str,
    error: str | None,
    agent: str | None,
    model: str | None,
    session: str | None,
    rare: Mapping[str, Any] | None,
    source: str | None,
    inputs: Any,
    outputs: Any,
    attributes: Mapping[str, Any],
    links: Sequence[Any],
    extra: Mapping[str, Any] | None,
) -> Row:
    """The row of a span with these fields. Where the numbers of its group and source belong, it has the group's names
    and the source's JSON text: `Interned.number` replaces them.

    Recorded spans and those of a request both come through here, the latter without ever being a Span.
    """
    if rare:
        get = rare.get
        provider, category, policy, template = get("provider"), get("category"), get("policy"), get("template")
        input_tokens, output_tokens = countable(get("input_tokens")), countable(get("output_tokens"))
        cost, reward, otel_kind = get("cost"), get("reward"), get("otel_kind")
    else:
        provider = category = policy = template = input_tokens = output_tokens = cost = reward = otel_kind = None
    name, agent, model = storable(name), agent and storable(agent), model and storable(model)
    category = category and storable(category)
    return [
        trace_id, span_id, parent_id, name, kind, start_ns, end_ns, status, error and storable(error), agent, model,
        provider and storable(provider), session and storable(session), category, policy and storable(policy),
        template and storable(template), input_tokens, output_tokens, cost and finite(cost), reward and finite(reward),
        otel_kind, _group(agent, name, kind, model, category),
        None if end_ns is None else bucket_of(end_ns - start_ns), source,
        None if inputs is None else to_json(inputs), None if outputs is None else to_json(outputs),
        to_json(attributes) if attributes else None, to_json(links) if links else None,
        to_json(extra) if extra else None,
    ]  # fmt: skip


def _group(agent: str | None, name: str, kind: str, model: str | None, category: str | None) -> tuple[str, ...]:
    return (agent or "", name, kind, model or "", category or "")


def group_of(row: Row) -> tuple[str, ...]:
    """The names by which a row's figures are summed up."""
    return _group(row[AGENT], row[NAME], row[KIND], row[MODEL], row[CATEGORY])


def to_rows(spans: Iterable[Span]) -> list[Row]:
    """The rows of spans, as `make_row` makes them."""
    sources: dict[tuple[int, int], str] = {}  # spans of one process share the objects, which are encoded once
    rows = []
    for span in spans:
        rare, source = span.rare, None
        if rare is not None and not _SOURCE.isdisjoint(rare):
            resource, scope = rare.get("resource"), rare.get("scope")
            source = sources.get((id(resource), id(scope)))
            if source is None:
                source = sources[id(resource), id(scope)] = source_text(resource, scope)
        rows.append(_to_row(span, source))
    return rows


_SOURCE = frozenset({"resource", "scope"})


def source_text(resource: dict[str, Any] | None, scope: dict[str, Any] | None) -> str:
    """The JSON text under which a span's process and library are stored."""
    return to_json({"resource": resource, "scope": scope})


def _to_row(span: Span, source: str | None) -> Row:
    attributes, inputs, outputs, rare, extra = span.attributes, span.inputs, span.outputs, span.rare, None
    if attributes and (inputs is not None or outputs is not None) and not only_numbered(attributes):
        in_attributes = payloads(attributes)  # what the attributes hold is not stored twice
        inputs = None if inputs == in_attributes[0] else inputs
        outputs = None if outputs == in_attributes[1] else outputs
    if span.events or (rare is not None and not _RARE.isdisjoint(rare)):
        extra = {name: value for name in RARE if (value := getattr(span, name))}
    return make_row(
        span.trace_id, span.span_id, span.parent_id, span.name, span.kind, span.start_ns, span.end_ns, span.status,
        span.error, span.agent, span.model, span.session, rare, source, inputs, outputs, attributes, span.links, extra,
    )  # fmt: skip


def to_span(row: Sequence[Any], source: dict[str, Any] | None) -> Span:
    """The span of a row, with its source."""
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
        if not only_numbered(span.attributes):
            complete(span)
    return span


def to_spans(rows: Iterable[Row]) -> list[Span]:
    """The spans of rows as `make_row` made them."""
    sources: dict[str, dict[str, Any]] = {}
    spans = []
    for row in rows:
        text = row[SOURCE]
        if text is not None and text not in sources:
            sources[text] = from_json(text)
        spans.append(to_span(row, None if text is None else sources[text]))
    return spans
