"""Bodies of requests: parsed, checked against their schema, or refused with a sentence."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from agent_forge.server.answers import Refused
from agent_forge.server.schemas import BODIES

T = TypeVar("T")
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # one half of a character beyond 16 bits; alone it is no text


async def read_json(request: Request, name: str) -> dict[str, Any]:
    """The body as an object that fits the schema of that name. Raises Refused (400, 415)."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise Refused(415, f"the body is {kind!r}", code="unsupported_media_type", fix="send application/json")
    document = parse_json(await request.body())
    error = _fault(_validator(name), document)
    if error is not None:
        raise error
    found: dict[str, Any] = _with_whole_numbers(document, BODIES[name])
    return found


def _with_whole_numbers(value: Any, schema: Mapping[str, Any]) -> Any:
    """To JSON Schema 1.0 is an integer, to Python it is none: where an integer is asked for, it becomes one."""
    options = [schema, *schema.get("anyOf", ())]
    if isinstance(value, float):
        return int(value) if any(option.get("type") == "integer" for option in options) else value
    if isinstance(value, list):
        items = {"anyOf": [option["items"] for option in options if "items" in option]}
        nested = [one for option in items["anyOf"] for one in (option, *option.get("anyOf", ()))]
        return [_with_whole_numbers(item, {"anyOf": nested}) for item in value]
    if isinstance(value, dict):
        known = {name: one for option in options for name, one in option.get("properties", {}).items()}
        return {name: _with_whole_numbers(item, known.get(name, {})) for name, item in value.items()}
    return value


def parse_json(body: bytes) -> Any:
    """JSON as the standard has it: no NaN, no half characters. Raises Refused (400)."""
    try:
        document = json.loads(body, parse_constant=_refuse)
        if _HALF.search(body):
            json.dumps(document, ensure_ascii=False).encode()
        return document
    except RecursionError:
        raise Refused(400, "the body is nested too deeply", code="invalid_json") from None
    except ValueError as error:  # also of text that is not UTF-8 and numbers that are too long
        raise Refused(400, f"the body is not JSON: {error}", code="invalid_json") from error


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


@lru_cache(maxsize=16)
def _validator(name: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(BODIES[name])


def _fault(validator: Any, document: Any) -> Refused | None:
    from jsonschema.exceptions import best_match

    try:
        error = best_match(validator.iter_errors(document))
    except RecursionError:
        return Refused(400, "the body is nested too deeply", code="invalid_json")
    if error is None:
        return None
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    message = error.message if len(error.message) <= 500 else f"{error.message[:500]} …"
    return Refused(
        400, f"{where.lstrip('.') or 'the body'}: {message}", code="invalid_body", param=where.lstrip(".") or None
    )


async def unless_left(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives; if the client leaves first, the work is cancelled. Raises ClientDisconnect."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(left(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def left(request: Request) -> None:
    """Returns when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        continue
