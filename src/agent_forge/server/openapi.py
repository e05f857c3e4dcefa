"""`/openapi.json`: the description of the API. Requests are checked against the same schemas."""

from __future__ import annotations

import re
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_forge._version import __version__
from agent_forge.server.context import Context
from agent_forge.server.responses import json_response
from agent_forge.server.schemas import BODIES, JSON, OBJECT, TEXT

_ERROR: JSON = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": TEXT,
                "type": TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_STATUS: JSON = {
    "type": "object",
    "properties": {"code": {"type": "integer"}, "message": TEXT},
    "required": ["code", "message"],
}
_MODEL: JSON = {
    "type": "object",
    "properties": {
        "id": TEXT,
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": TEXT,
        "digest": {"type": ["string", "null"]},
        "state": TEXT,
        "parameters": {"type": ["integer", "null"]},
    },
    "required": ["id", "object", "created", "owned_by"],
}
_USAGE: JSON = {
    "type": "object",
    "properties": {name: {"type": "integer"} for name in ("prompt_tokens", "completion_tokens", "total_tokens")},
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
}


def _completion(kind: str) -> JSON:
    return {
        "type": "object",
        "properties": {
            "id": TEXT,
            "object": {"const": kind},
            "created": {"type": "integer"},
            "model": TEXT,
            "choices": {"type": "array", "items": OBJECT},
            "usage": _USAGE,
        },
        "required": ["id", "object", "created", "model", "choices", "usage"],
    }


_RESULT: JSON = {
    "type": "object",
    "properties": {"run": TEXT, "state": TEXT, "tasks": OBJECT, "error": {"type": ["string", "null"]}},
    "required": ["run", "state", "tasks"],
}
_STARTED: JSON = {
    "type": "object",
    "properties": {"run": TEXT, "state": TEXT, "url": TEXT, "events": TEXT},
    "required": ["run", "state", "url", "events"],
}


def _listing(name: str, item: JSON) -> JSON:
    return {"type": "object", "properties": {name: {"type": "array", "items": item}}, "required": [name]}


def routes(context: Context) -> list[Route]:
    """The document."""

    async def show(request: Request) -> Response:
        return json_response(document(secured=context.settings.token is not None))

    return [Route("/openapi.json", show)]


def document(*, secured: bool = False) -> dict[str, Any]:
    """The OpenAPI document.

    >>> sorted(document()["paths"])[:3]
    ['/healthz', '/metrics', '/openapi.json']
    """
    api: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Agent Forge",
            "version": __version__,
            "description": "OpenAI-compatible models, agent runs, trace intake, scores, metrics.",
        },
        "paths": {path: dict(operations) for path, operations in _PATHS.items()},
        "components": {
            "schemas": {**{name.capitalize(): schema for name, schema in BODIES.items()}, "Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    if secured:
        api["security"] = [{"token": []}]
    return api


def _response(about: str, schema: JSON | None = None, kind: str = "application/json") -> JSON:
    content = {kind: {"schema": schema or {}}}
    return {"description": about, "content": content}


def _operation(path: str, name: str, about: str, responses: dict[int, JSON], body: str | None = None) -> JSON:
    """An operation that may also be refused or fail for a while, with an error in OpenAI's shape."""
    refused = _response("Refused; the error states the reason and the fix", _ERROR)
    busy = _response("Busy, or the store fails, as on a full disk; try again after Retry-After", _ERROR)
    usual = {"4XX": refused, "503": busy}
    operation: JSON = {
        "operationId": name,
        "summary": about,
        "responses": usual | {str(code): response for code, response in responses.items()},
    }
    if body is not None:
        schema = {"$ref": f"#/components/schemas/{body.capitalize()}"}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if parameters := re.findall(r"{(\w+)}", path):
        text = {"type": "string", "minLength": 1}
        operation["parameters"] = [{"name": n, "in": "path", "required": True, "schema": text} for n in parameters]
    return operation


_EVENTS = {"description": "Server-sent events", "content": {"text/event-stream": {"schema": {}}}}


def _completion_response(kind: str) -> JSON:
    response = _response("The answer; with `stream`, chunks as server-sent events", _completion(kind))
    response["content"]["text/event-stream"] = {"schema": {}}
    return response


_TRACES: JSON = {
    "post": {
        "operationId": "take_traces",
        "summary": "Store spans: an OTLP ExportTraceServiceRequest. They are on disk when the response arrives.",
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": _listing("resourceSpans", OBJECT)},
                "application/x-protobuf": {"schema": {"type": "string", "format": "binary"}},
            },
        },
        "responses": {
            "200": {
                "description": "Stored",
                "content": {"application/json": {"schema": OBJECT}, "application/x-protobuf": {"schema": {}}},
            },
            "4XX": {
                "description": "Refused, as a google.rpc.Status; 429: send it again after Retry-After",
                "content": {
                    "application/json": {"schema": {"anyOf": [_STATUS, _ERROR]}},
                    "application/x-protobuf": {"schema": {}},
                },
            },
            "503": _response("The store is not writable now", _STATUS),
        },
    }
}
_CHAT, _TEXT = (_completion_response(kind) for kind in ("chat.completion", "text_completion"))
_RUN = "/v1/runs/{run}"
# method, path, name, summary, responses by status, and the schema of the body
_OPERATIONS: tuple[tuple[str, str, str, str, dict[int, JSON], str | None], ...] = (
    ("get", "/healthz", "healthz", "Whether the process responds.", {200: _response("It does", OBJECT)}, None),
    ("get", "/readyz", "readyz", "Whether store and models are ready.",
     {200: _response("They are", OBJECT), 503: _response("They are not yet", OBJECT)}, None),
    ("get", "/metrics", "metrics", "Metrics for Prometheus.", {200: _response("Metrics", TEXT, "text/plain")}, None),
    ("get", "/openapi.json", "openapi", "This document.", {200: _response("The document", OBJECT)}, None),
    ("get", "/v1/models", "list_models", "List served models and registered checkpoints.",
     {200: _response("Models", _listing("data", _MODEL))}, None),
    ("get", "/v1/models/{model}", "get_model", "Get one model.", {200: _response("The model", _MODEL)}, None),
    ("post", "/v1/chat/completions", "chat", "Continue a chat.", {200: _CHAT}, "chat"),
    ("post", "/v1/completions", "complete", "Continue a text.", {200: _TEXT}, "completion"),
    ("get", "/v1/runs", "list_runs", "List the runs in the journal.",
     {200: _response("Runs", _listing("runs", OBJECT))}, None),
    ("post", "/v1/runs", "start_run", "Plan a request and run it, or run a plan.",
     {202: _response("Started", _STARTED)}, "run"),
    ("get", _RUN, "get_run", "Get a run: what `agent-forge run --json` prints, as far as known.",
     {200: _response("The run", _RESULT)}, None),
    ("get", f"{_RUN}/events", "follow_run", "Follow a run, past events first.", {200: _EVENTS}, None),
    ("post", f"{_RUN}/approve", "approve", "Approve, change or reject a waiting task.",
     {200: _response("Decided", OBJECT)}, "approval"),
    ("post", "/v1/traces/{trace}/reward", "reward_trace", "Score a trace or one of its spans from 0 to 1.",
     {200: _response("The score, the reward of the trace, and the credit of the agents", OBJECT)}, "reward"),
    ("get", "/v1/rollouts", "list_rollouts", "List the rollouts and the current policy.",
     {200: _response("Rollouts", _listing("rollouts", TEXT))}, None),
    ("get", "/v1/rollouts/{name}", "get_rollout", "Get a rollout and its decisions.",
     {200: _response("The rollout", OBJECT)}, None),
    ("post", "/v1/rollouts/{name}/{action}", "change_rollout", "Pause, resume, promote or roll back a rollout.",
     {200: _response("The rollout", OBJECT)}, "rollout"),
    ("post", f"{_RUN}/cancel", "cancel", "Stop a run.", {202: _response("It will stop", OBJECT)}, None),
)  # fmt: skip
_PATHS: dict[str, JSON] = {"/v1/traces": _TRACES}
for _method, _path, _name, _about, _responses, _body in _OPERATIONS:
    _PATHS.setdefault(_path, {})[_method] = _operation(_path, _name, _about, _responses, _body)
