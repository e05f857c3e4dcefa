"""Responses: JSON, and errors in the shape of the OpenAI API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from agent_forge.errors import AgentForgeError, StoreError
from agent_forge.refusal import Refusal

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def utf8(text: str) -> bytes:
    """Text as it is sent. A lone surrogate (a tool may return one), which UTF-8 does not have, becomes an escape.

    >>> utf8('{"result": "\\ud83d!"}')
    b'{"result": "\\\\ud83d!"}'
    """
    return text.encode("utf-8", "backslashreplace")


def json_response(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON document as a response."""
    body = utf8(json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    return Response(body, status, headers, "application/json")


def error_document(status: int, message: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """An error in the shape of the OpenAI API."""
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """An error as a response."""
    return json_response(error_document(status, message, code, param), status, headers)


def status_of(error: AgentForgeError) -> tuple[int, dict[str, str]]:
    """The HTTP status and headers of an error: a store that fails may work again, for instance on a full disk."""
    if isinstance(error, Refusal):
        return error.status, error.headers
    if error.exit_code == 2:
        return 400, {}
    return (503, {"Retry-After": "5"}) if isinstance(error, StoreError) else (500, {})


def refusal_response(refusal: Refusal) -> Response:
    """A refusal as a response."""
    return error_response(refusal.status, str(refusal), code=refusal.code, param=refusal.param, headers=refusal.headers)
