"""`/openapi.json`: the API, described. The schemas of bodies are the ones that requests are checked against."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_forge._version import __version__
from agent_forge.server.answers import json_answer
from agent_forge.server.context import Context
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
        return json_answer(document(secured=context.settings.token is not None))

    return [Route("/openapi.json", show)]


def document(*, secured: bool = False) -> dict[str, Any]:
    """The OpenAPI document.

    >>> sorted(document()["paths"])[:3]
    ['/healthz', '/metrics', '/openapi.json']
    """
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Agent Forge",
            "version": __version__,
            "description": "Models in the manner of OpenAI's API, agent runs, the intake of traces, metrics.",
        },
        "paths": {path: dict(operations) for path, operations in _PATHS.items()},
        "components": {
            "schemas": {**{name.capitalize(): schema for name, schema in BODIES.items()}, "Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    if secured:
        found["security"] = [{"token": []}]
    return found


def _answer(about: str, schema: JSON | None = None, kind: str = "application/json") -> JSON:
    content = {kind: {"schema": schema or {}}}
    return {"description": about, "content": content}


def _operation(name: str, about: str, answers: dict[int, JSON], body: str | None = None, *places: str) -> JSON:
    """An operation that may also be refused, with an error in OpenAI's shape."""
    refused = _answer("Refused; the error says why and what to do", _ERROR)
    found: JSON = {
        "operationId": name,
        "summary": about,
        "responses": {**{str(code): answer for code, answer in answers.items()}, "4XX": refused},
    }
    if body is not None:
        schema = {"$ref": f"#/components/schemas/{body.capitalize()}"}
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if places:
        found["parameters"] = [
            {"name": place, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for place in places
        ]
    return found


_EVENTS = {"description": "Server-sent events", "content": {"text/event-stream": {"schema": {}}}}


def _completing(kind: str) -> JSON:
    answer = _answer("The answer; with `stream`, chunks as server-sent events", _completion(kind))
    answer["content"]["text/event-stream"] = {"schema": {}}
    return answer


_BUSY = _answer("Not now; Retry-After says when", _ERROR)
_TRACES: JSON = {
    "post": {
        "operationId": "take_traces",
        "summary": "Takes in spans: an OTLP ExportTraceServiceRequest. They are on disk when it answers.",
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
            "503": _answer("The store cannot be written to now", _STATUS),
        },
    }
}
_PATHS: dict[str, JSON] = {
    "/healthz": {"get": _operation("healthz", "The process answers.", {200: _answer("It does", OBJECT)})},
    "/readyz": {
        "get": _operation(
            "readyz",
            "Store and models are ready.",
            {200: _answer("They are", OBJECT), 503: _answer("They are not yet", OBJECT)},
        )
    },
    "/metrics": {
        "get": _operation("metrics", "Metrics for Prometheus.", {200: _answer("Metrics", TEXT, "text/plain")})
    },
    "/openapi.json": {"get": _operation("openapi", "This document.", {200: _answer("It", OBJECT)})},
    "/v1/models": {
        "get": _operation(
            "list_models",
            "Models that are served, and registered checkpoints that can be.",
            {200: _answer("Models", _listing("data", _MODEL))},
        )
    },
    "/v1/models/{model}": {
        "get": _operation("get_model", "One model.", {200: _answer("The model", _MODEL)}, None, "model")
    },
    "/v1/chat/completions": {
        "post": _operation("chat", "Continues a chat.", {200: _completing("chat.completion"), 503: _BUSY}, "chat")
    },
    "/v1/completions": {
        "post": _operation(
            "complete", "Continues a text.", {200: _completing("text_completion"), 503: _BUSY}, "completion"
        )
    },
    "/v1/traces": _TRACES,
    "/v1/runs": {
        "get": _operation("list_runs", "Runs in the journal.", {200: _answer("Runs", _listing("runs", OBJECT))}),
        "post": _operation(
            "start_run",
            "Plans a request and carries it out, or carries out a plan.",
            {202: _answer("Started", _STARTED), 503: _BUSY},
            "run",
        ),
    },
    "/v1/runs/{run}": {
        "get": _operation(
            "get_run",
            "A run: what `agent-forge run --json` prints, as far as it is known.",
            {200: _answer("The run", _RESULT)},
            None,
            "run",
        )
    },
    "/v1/runs/{run}/events": {
        "get": _operation("follow_run", "Follows a run, past events first.", {200: _EVENTS}, None, "run")
    },
    "/v1/runs/{run}/approve": {
        "post": _operation(
            "approve", "Decides on a task that waits for it.", {200: _answer("Decided", OBJECT)}, "approval", "run"
        )
    },
    "/v1/runs/{run}/cancel": {
        "post": _operation("cancel", "Stops a run.", {202: _answer("It will stop", OBJECT)}, None, "run")
    },
}
