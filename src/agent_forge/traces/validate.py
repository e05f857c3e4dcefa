"""Validation of trace data: a JSON Schema with its formats enforced, and rules that no schema can state.

| code | the broken rule |
|---|---|
| json | each line is a JSON object (or the file is one array of them, or an OTLP document) |
| schema | fields have the types and values of `schema/span.json` |
| format | ids and times have the right form |
| kind_fields | a model call names its model, an agent span its agent, a reward span has a reward; token lists fit |
| duplicate_id | a span id occurs once in its trace |
| missing_parent | the parent of a span is in its trace |
| missing_link | a span linked to in the same trace is there |
| cycle | nothing is its own ancestor, and no link leads back to where it came from |
| end_before_start | a span does not end before it starts |
| outside_root | a span lies within the root of its trace |
| reward_components | a reward is the weighted sum of its components, to 1e-6, where they have weights; components named
  `cap` and `floor` have none, and are the most and the least that the sum may be |

Spans of a file without faults can be stored, assembled and trained on.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

from agent_forge.errors import DataError, TraceError, UsageError
from agent_forge.traces.files import opened
from agent_forge.traces.graph import components
from agent_forge.traces.otlp import read_request
from agent_forge.traces.span import is_id

TOLERANCE = 1e-6  # of a reward against its weighted components

_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class Fault:
    """A broken rule: its code, the line (or the number of the span), and what is wrong."""

    code: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.line}: {self.code}: {self.message}"


Located = tuple[int, Mapping[str, Any]]  # a line and its span


def validate_file(path: str | Path) -> list[Fault]:
    """The faults of a file of spans: JSON lines, a JSON array, or an OTLP/JSON document, gzipped or not.

    An OTLP document is read as `traces import` reads it; its line numbers are the numbers of the spans. Raises
    UsageError where the file cannot be opened.
    """
    try:
        with opened(path, UsageError) as file:
            data = file.read()
    except DataError as error:
        return [Fault("json", 1, error.what)]
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return [Fault("json", data[: error.start].count(b"\n") + 1, "is not UTF-8 text")]
    spans, faults = _spans_in(text)
    return sorted(faults + validate_spans(spans), key=lambda fault: fault.line)


def validate_spans(spans: Iterable[Located]) -> list[Fault]:
    """The faults of spans (JSON objects with their lines), in the order of the lines."""
    sound: list[Located] = []
    faults: list[Fault] = []
    for line, span in spans:
        own = [Fault(code, line, message) for message, code in schema_faults(span, span_schema())]
        faults += own
        if not any(fault.code in ("schema", "format") for fault in own):
            sound.append((line, span))
    traces: dict[str, list[Located]] = defaultdict(list)
    for line, span in sound:
        traces[span["trace_id"]].append((line, span))
    for trace in traces.values():
        for rule in RULES:
            faults += rule(trace)
    return sorted(faults, key=lambda fault: fault.line)


# -- reading -----------------------------------------------------------------------------------------------------------


def _spans_in(text: str) -> tuple[list[Located], list[Fault]]:
    document: Any = _loads(text) if text.lstrip()[:1] in ("[", "{") else None  # None if it is JSON lines
    if _is_otlp(document):
        spans, faults = _from_otlp(document)
        return spans, faults if spans or faults else [Fault("json", 1, NO_SPANS)]
    if isinstance(document, list):
        values = list(enumerate(document, 1))
    else:  # not `splitlines`: U+2028 and others may stand in a JSON string
        lines = enumerate(text.split("\n"), 1)
        values = [(number, _loads(line)) for number, line in lines if line.strip()]
    spans, faults = [], []
    for number, value in values:
        if _is_otlp(value):
            more, wrong = _from_otlp(value)
            spans += [(number, span) for _, span in more]
            faults += [Fault(fault.code, number, fault.message) for fault in wrong]
        elif isinstance(value, dict):
            spans.append((number, value))
        else:
            faults.append(Fault("json", number, "is not a JSON object" if value is not None else NOT_JSON))
    if not spans and not faults:
        faults.append(Fault("json", 1, NO_SPANS))
    if not spans and len(faults) > 1 and all(fault.message == NOT_JSON for fault in faults):
        faults = [_broken(text)]  # one truncated or damaged document, not as many faults as it has lines
    return spans, faults


NOT_JSON, NO_SPANS = "is not JSON", "there are no spans"


def _broken(text: str) -> Fault:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return Fault("json", error.lineno, f"{NOT_JSON}: {error.msg}")
    except RecursionError:
        return Fault("json", 1, f"{NOT_JSON}: it nests too deep")
    return Fault("json", 1, NOT_JSON)


def _loads(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return None


def _is_otlp(document: Any) -> bool:
    return isinstance(document, dict) and not document.keys().isdisjoint(_RESOURCES)


def _from_otlp(document: dict[str, Any]) -> tuple[list[Located], list[Fault]]:
    """The spans of an OTLP document; each is read by itself, so that one fault does not hide the next."""
    spans: list[Located] = []
    faults: list[Fault] = []
    for number, single in enumerate(_single_requests(document), 1):
        try:
            spans += [(number, span.to_dict()) for span in read_request(single)]
        except TraceError as error:
            faults.append(Fault("schema", number, error.what))
    return spans, faults


def _single_requests(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        for group in _first(document, _RESOURCES)[1]:
            name, parts = _first(group, _SCOPES)
            for part in parts:
                for span in part.get("spans", ()):
                    yield {"resourceSpans": [{**group, name: [{**part, "spans": [span]}]}]}
    except (TypeError, AttributeError):
        yield {"resourceSpans": "?"}  # not the shape of a request, which `read_request` refuses


# The names that `traces import` reads too: OTLP's, protobuf's, and OTLP's before 2022.
_RESOURCES = ("resourceSpans", "resource_spans")
_SCOPES = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")


def _first(data: Mapping[str, Any], names: Sequence[str]) -> tuple[str, Any]:
    return next(((name, data[name]) for name in names if data.get(name)), (names[0], ()))


# -- the schema --------------------------------------------------------------------------------------------------------


@cache
def span_schema() -> dict[str, Any]:
    """The JSON Schema of a span, as an object."""
    text = resources.files("agent_forge.traces").joinpath("schema/span.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def schema_faults(value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What in a value breaks a JSON Schema, as (message, code)."""
    for error in _validator(json.dumps(schema, sort_keys=True)).iter_errors(value):
        place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
        code = "format" if error.validator == "format" else "kind_fields" if "then" in error.schema_path else "schema"
        yield f"{place.lstrip('.') or 'span'}: {error.message[:200]}", code


@cache
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(schema), format_checker=_formats())


@cache
def _formats() -> Any:
    """Our own checks of date-time, which jsonschema leaves to extra packages, and of ids."""
    from jsonschema import Draft202012Validator, FormatChecker

    checker = FormatChecker(formats=())
    checker.checkers = dict(Draft202012Validator.FORMAT_CHECKER.checkers)
    for name, check in (
        ("date-time", is_date_time),
        ("trace-id", partial(is_id, digits=32)),
        ("span-id", partial(is_id, digits=16)),
    ):
        checker.checkers[name] = (_on_text(check), ())
    return checker


def _on_text(check: Callable[[str], bool]) -> Callable[[object], bool]:
    """A format applies to text only; other types are checked by `type`."""
    return lambda value: not isinstance(value, str) or check(value)


def is_date_time(text: str) -> bool:
    """Whether a text is an RFC 3339 date-time: an existing day, a time, and its zone.

    >>> [is_date_time(text) for text in ("2026-02-28T23:59:59.5Z", "2026-02-30T00:00:00Z", "2026-02-28T00:00:00")]
    [True, False, False]
    """
    if not _DATE_TIME.fullmatch(text):
        return False
    zone = text[-6:] if text[-1] not in "Zz" else "+00:00"
    try:
        datetime.fromisoformat(text[:19].replace("t", "T") + zone)
    except ValueError:
        return text[17:19] == "60" and is_date_time(text[:17] + "59" + text[19:])  # a leap second
    return True


# -- rules over a trace ------------------------------------------------------------------------------------------------


def _duplicates(trace: Sequence[Located]) -> Iterator[Fault]:
    seen: dict[str, int] = {}
    for line, span in trace:
        first = seen.setdefault(span["span_id"], line)
        if first != line:
            yield Fault("duplicate_id", line, f"span {span['span_id']} is already on line {first}")


def _lost_parents_and_links(trace: Sequence[Located]) -> Iterator[Fault]:
    ids = {span["span_id"] for _, span in trace}
    for line, span in trace:
        if span.get("parent_id") and span["parent_id"] not in ids:
            message = f"the parent {span['parent_id']} of {span['span_id']} is not in the trace"
            yield Fault("missing_parent", line, message)
        for trace_id, span_id in span.get("links", ()):
            if trace_id == span["trace_id"] and span_id not in ids:
                yield Fault("missing_link", line, f"{span['span_id']} links to {span_id}, which is not in the trace")


def _cycles(trace: Sequence[Located]) -> Iterator[Fault]:
    lines = {span["span_id"]: line for line, span in trace}
    parents = {span["span_id"]: [span.get("parent_id")] for _, span in trace}
    links = {span["span_id"]: [target for _, target in span.get("links", ())] for _, span in trace}
    for what, edges in (("ancestor", parents), ("source, through its links", links)):
        for span_id in _on_cycle(edges):
            yield Fault("cycle", lines[span_id], f"{span_id} is its own {what}")


def _on_cycle(edges: Mapping[str, Sequence[str | None]]) -> list[str]:
    inner = {span_id: [x for x in targets if x in edges and x is not None] for span_id, targets in edges.items()}
    number = components(list(inner), inner)
    size = Counter(number.values())
    return [span_id for span_id in inner if size[number[span_id]] > 1 or span_id in inner[span_id]]


def _times(trace: Sequence[Located]) -> Iterator[Fault]:
    for line, span in trace:
        if span.get("end_ns") is not None and span["end_ns"] < span["start_ns"]:
            yield Fault("end_before_start", line, f"{span['span_id']} ends before it starts")


def _inside_root(trace: Sequence[Located]) -> Iterator[Fault]:
    by_id = {span["span_id"]: span for _, span in trace}
    root_of: dict[str, Mapping[str, Any] | None] = {}
    for line, span in trace:
        root = _root(span, by_id, root_of)
        if root is None or root is span:
            continue
        early = span["start_ns"] < root["start_ns"]
        late = root.get("end_ns") is not None and (span.get("end_ns") or span["start_ns"]) > root["end_ns"]
        if early or late:
            how = "starts before" if early else "ends after"
            yield Fault("outside_root", line, f"{span['span_id']} {how} its root {root['span_id']}")


def _root(
    span: Mapping[str, Any], by_id: Mapping[str, Mapping[str, Any]], root_of: dict[str, Mapping[str, Any] | None]
) -> Mapping[str, Any] | None:
    """The outermost ancestor, remembered in `root_of`; None in a cycle of parents."""
    walk: list[str] = []
    at: Mapping[str, Any] | None = span
    while at is not None and at["span_id"] not in root_of and at["span_id"] not in walk:
        walk.append(at["span_id"])
        above = by_id.get(at.get("parent_id") or "")
        if above is None:
            root_of[at["span_id"]] = at
            break
        at = above
    root = root_of.get(at["span_id"]) if at is not None else None
    root_of.update(dict.fromkeys(walk, root))
    return root


def _rewards(trace: Sequence[Located]) -> Iterator[Fault]:
    for line, span in trace:
        parts = span.get("attributes", {}).get("agent_forge.reward.components")
        bounds = {part["name"]: part["value"] for part in parts or () if "weight" not in part}
        if not parts or not bounds.keys() <= {"cap", "floor"} or len(bounds) == len(parts):
            continue  # without weights they are aspects, not summands
        total = sum(part["value"] * part["weight"] for part in parts if "weight" in part)
        total = max(min(total, bounds.get("cap", math.inf)), bounds.get("floor", -math.inf))
        if span.get("reward") is None or abs(span["reward"] - total) > TOLERANCE:
            yield Fault(
                "reward_components",
                line,
                f"reward {span.get('reward')} is not the bounded sum of its weighted components, {total:.9g}",
            )


def _token_counts(trace: Sequence[Located]) -> Iterator[Fault]:
    for line, span in trace:
        tokens, logprobs = span.get("output_ids"), span.get("logprobs")
        if tokens is not None and logprobs is not None and len(tokens) != len(logprobs):
            yield Fault("kind_fields", line, f"{len(logprobs)} log-probabilities for {len(tokens)} output tokens")


RULES = (_duplicates, _lost_parents_and_links, _cycles, _times, _inside_root, _rewards, _token_counts)
