"""Answers in one shape: JSON, and errors as the OpenAI API writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from agent_forge.errors import AgentForgeError

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


class Refused(AgentForgeError):
    """A request that is not carried out. `status` is the HTTP status, `code` a word for programs."""

    def __init__(
        self,
        status: int,
        what: str,
        *,
        code: str | None = None,
        param: str | None = None,
        fix: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(what, fix=fix)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    @property
    def answer(self) -> Response:
        """The refusal as it is sent."""
        return error_answer(self.status, str(self), code=self.code, param=self.param, headers=self.headers)


def utf8(text: str) -> bytes:
    """Text as it is sent. What UTF-8 does not have, half of a character in a tool's result, goes as its escape.

    >>> utf8('{"result": "\\ud83d!"}')
    b'{"result": "\\\\ud83d!"}'
    """
    return text.encode("utf-8", "backslashreplace")


def json_answer(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON document as an answer."""
    body = utf8(json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    return Response(body, status, headers, "application/json")


def error_document(status: int, message: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """An error as the OpenAI API writes it."""
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_answer(
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """An error as an answer."""
    return json_answer(error_document(status, message, code, param), status, headers)
