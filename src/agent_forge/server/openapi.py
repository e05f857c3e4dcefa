"""`/openapi.json`: the description of the API. Requests are checked against the same schemas."""

from __future__ import annotations

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
            "description": "OpenAI-compatible models, agent runs, trace intake, metrics.",
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


def _operation(name: str, about: str, responses: dict[int, JSON], body: str | None = None, *places: str) -> JSON:
    """An operation that may also be refused, with an error in OpenAI's shape."""
    refused = _response("Refused; the error states the reason and the fix", _ERROR)
    operation: JSON = {
        "operationId": name,
        "summary": about,
        "responses": {**{str(code): response for code, response in responses.items()}, "4XX": refused},
    }
    if body is not None:
        schema = {"$ref": f"#/components/schemas/{body.capitalize()}"}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if places:
        operation["parameters"] = [
            {"name": place, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for place in places
        ]
    return operation


_EVENTS = {"description": "Server-sent events", "content": {"text/event-stream": {"schema": {}}}}


def _completion_response(kind: str) -> JSON:
    response = _response("The answer; with `stream`, chunks as server-sent events", _completion(kind))
    response["content"]["text/event-stream"] = {"schema": {}}
    return response


_BUSY = _response("Busy; try again after Retry-After", _ERROR)
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
_PATHS: dict[str, JSON] = {
    "/healthz": {"get": _operation("healthz", "Whether the process responds.", {200: _response("It does", OBJECT)})},
    "/readyz": {
        "get": _operation(
            "readyz",
            "Whether store and models are ready.",
            {200: _response("They are", OBJECT), 503: _response("They are not yet", OBJECT)},
        )
    },
    "/metrics": {
        "get": _operation("metrics", "Metrics for Prometheus.", {200: _response("Metrics", TEXT, "text/plain")})
    },
    "/openapi.json": {"get": _operation("openapi", "This document.", {200: _response("The document", OBJECT)})},
    "/v1/models": {
        "get": _operation(
            "list_models",
            "List served models and registered checkpoints.",
            {200: _response("Models", _listing("data", _MODEL))},
        )
    },
    "/v1/models/{model}": {
        "get": _operation("get_model", "Get one model.", {200: _response("The model", _MODEL)}, None, "model")
    },
    "/v1/chat/completions": {
        "post": _operation(
            "chat", "Continue a chat.", {200: _completion_response("chat.completion"), 503: _BUSY}, "chat"
        )
    },
    "/v1/completions": {
        "post": _operation(
            "complete", "Continue a text.", {200: _completion_response("text_completion"), 503: _BUSY}, "completion"
        )
    },
    "/v1/traces": _TRACES,
    "/v1/runs": {
        "get": _operation(
            "list_runs", "List the runs in the journal.", {200: _response("Runs", _listing("runs", OBJECT))}
        ),
        "post": _operation(
            "start_run",
            "Plan a request and run it, or run a plan.",
            {202: _response("Started", _STARTED), 503: _BUSY},
            "run",
        ),
    },
    "/v1/runs/{run}": {
        "get": _operation(
            "get_run",
            "Get a run: what `agent-forge run --json` prints, as far as known.",
            {200: _response("The run", _RESULT)},
            None,
            "run",
        )
    },
    "/v1/runs/{run}/events": {
        "get": _operation("follow_run", "Follow a run, past events first.", {200: _EVENTS}, None, "run")
    },
    "/v1/runs/{run}/approve": {
        "post": _operation(
            "approve", "Approve or reject a waiting task.", {200: _response("Decided", OBJECT)}, "approval", "run"
        )
    },
    "/v1/runs/{run}/cancel": {
        "post": _operation("cancel", "Stop a run.", {202: _response("It will stop", OBJECT)}, None, "run")
    },
}
