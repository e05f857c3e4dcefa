"""Masking before writing: secrets by their form or by the name of their field, and personal data if wanted.

    Recorder(mask=masked())                       secrets only
    Recorder(mask=masked(scrub_text))             secrets, and what `scrub_text(text) -> text` replaces
    Recorder.from_settings(…)                     as the settings say: `mask` is "secrets", "pii" or "none"

The mask runs in the writer, before anything reaches a disk; spans in memory stay unchanged. Requests are masked as rows
(`mask_rows`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from agent_forge.errors import UsageError
from agent_forge.pii import SECRET_TYPES, find_pii
from agent_forge.settings import variable
from agent_forge.traces.rows import (
    AGENT,
    ATTRIBUTES,
    CATEGORY,
    ERROR,
    EXTRA,
    GROUP,
    INPUTS,
    MODEL,
    NAME,
    OUTPUTS,
    POLICY,
    PROVIDER,
    SESSION,
    SOURCE,
    TEMPLATE,
    Row,
    group_of,
)  # fmt: skip
from agent_forge.traces.span import ATTEMPT, ROLLOUT, Span
from agent_forge.traces.values import from_json, to_json

MASKED = "[masked]"
LEVELS = ("secrets", "pii", "none")
Scrub = Callable[[str], str]

# Names of fields that hold secrets of any form. Compared without case, hyphens and underscores.
_NAMES = frozenset({
    "password", "passwd", "passphrase", "pwd", "secret", "clientsecret", "apikey", "xapikey", "accesskey", "secretkey",
    "secretaccesskey", "privatekey", "accesstoken", "refreshtoken", "authtoken", "bearertoken", "idtoken", "token",
    "authorization", "proxyauthorization", "cookie", "setcookie", "credentials", "connectionstring",
})  # fmt: skip
# How keys with such names end in JSON; most documents have none of these.
_ENDS = tuple(f'{word}"' for word in ("password", "passwd", "passphrase", "pwd", "secret", "key", "token",
              "authorization", "cookie", "credentials", "ctionstring", "ction_string", "ction-string"))  # fmt: skip
_KEYS = re.compile(r"(?:api|access|secret|private)[_-]?key\"")
_IDS = frozenset({ROLLOUT, ATTEMPT})  # random digits, which may look like a telephone number
_TEXTS = (NAME, ERROR, AGENT, MODEL, PROVIDER, SESSION, CATEGORY, POLICY, TEMPLATE)
_DOCUMENTS = (INPUTS, OUTPUTS, ATTRIBUTES, EXTRA, SOURCE)
_OWN = _TEXTS + _DOCUMENTS[:-1]
_FIELDS = ("name", "error", "agent", "model", "provider", "session", "category", "policy", "template")
_VALUES = ("inputs", "outputs", "attributes", "events", "otel", "resource", "scope", "sampling", "assessment")


def mask_text(text: str) -> str:
    """`text` without the secrets that can be recognised by their form. Of a URL the host stays.

    >>> mask_text("use ghp_0123456789abcdefghijABCDEFGHIJ012345 for now")
    'use [masked] for now'
    """
    matches = find_pii(text, types=SECRET_TYPES)
    for match in reversed(matches):
        host = "@" + match.text.rpartition("@")[2] if match.type == "URL_CREDENTIALS" else ""
        text = f"{text[: match.start]}{MASKED}{host}{text[match.end :]}"
    return text


def masked(*scrubs: Scrub) -> Callable[[Span], Span]:
    """A mask for `Recorder`: removes secrets first, then applies each of `scrubs` to every recorded text.

    >>> span = Span("1" * 32, "2" * 16, "login", inputs={"password": "hunter2", "note": "sk-abcdefghijklmnop1234"})
    >>> masked(str.upper)(span).inputs
    {'password': '[masked]', 'note': '[MASKED]'}
    """
    clean = _cleaner(scrubs)

    def mask(span: Span) -> Span:
        for name in _FIELDS:
            if (text := getattr(span, name)) is not None:
                setattr(span, name, clean(text))
        for name in _VALUES:
            if (value := getattr(span, name)) is not None:
                setattr(span, name, _walk(value, clean))
        return span

    return mask


def _cleaner(scrubs: Iterable[Scrub]) -> Scrub:
    def clean(text: str) -> str:
        text = mask_text(text)
        for scrub in scrubs:
            text = scrub(text)
        return text

    return clean


def mask_for(level: str | None = None) -> Callable[[Span], Span] | None:
    """The mask of a level: "secrets", "pii" (secrets and personal data), or None for "none".

    Without a level, that of the setting `mask`, which is "secrets" by default. Raises UsageError.
    """
    scrubs = _scrubs(level)
    return None if scrubs is None else masked(*scrubs)


def _scrubs(level: str | None) -> tuple[Scrub, ...] | None:
    level = level or os.environ.get(variable("mask")) or LEVELS[0]
    if level not in LEVELS:
        raise UsageError(f"there is no mask {level!r}", fix=f"Use one of {', '.join(LEVELS)}")
    if level == "pii":
        from agent_forge.pii.replace import scrub_text

        return (scrub_text,)
    return None if level == "none" else ()


def mask_rows(rows: list[Row], level: str | None = None) -> list[Row]:
    """The rows of a request, masked like spans. Those without anything suspicious are not even parsed."""
    scrubs = _scrubs(level)
    if scrubs is None:
        return rows
    clean = _cleaner(scrubs)
    return [_masked_row(row, clean) if scrubs or _is_suspicious(row) else row for row in rows]


def _masked_row(row: Row, clean: Scrub) -> Row:
    row = list(row)
    for place in _TEXTS:
        if row[place] is not None:
            row[place] = clean(row[place])
    for place in _DOCUMENTS:
        if row[place] is not None:
            row[place] = to_json(_walk(from_json(row[place]), clean))
    row[GROUP] = group_of(row)
    return row


def _is_suspicious(row: Row) -> bool:
    """Whether a row may hold a secret, by its texts and its JSON as they stand."""
    text = "\n".join([row[place] for place in _OWN if row[place] is not None])
    return _may_hold_secret(text) or (row[SOURCE] is not None and _source_may_hold_secret(row[SOURCE]))


def _may_hold_secret(text: str) -> bool:
    if "\\" in text:  # the letter of a line break must not be read as part of the key after it
        for escape in ("\\n", "\\r", "\\t"):
            text = text.replace(escape, " ")
        text = text.replace('\\"', '"')
    return _has_secret_name(text) or bool(find_pii(text, types=SECRET_TYPES))


def _has_secret_name(text: str) -> bool:
    lowered = text.lower()
    return any(end in lowered and (end != 'key"' or _KEYS.search(lowered)) for end in _ENDS)


_source_may_hold_secret = lru_cache(1024)(_may_hold_secret)  # thousands of spans share a source


def _walk(value: Any, clean: Scrub) -> Any:
    if isinstance(value, str):
        return clean(_masked_document(value) if value[:1] in ("{", "[") else value)
    if isinstance(value, dict):
        return {
            key: MASKED if _is_secret(key, item) else item if key in _IDS else _walk(item, clean)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_walk(item, clean) for item in value]
    return value


def _masked_document(text: str) -> str:
    """Text that is JSON (the arguments of a tool call) without the values under names of secrets."""
    if not _has_secret_name(text):
        return text
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text
    masked_document = _walk(document, str)
    return text if masked_document == document else to_json(masked_document)


def _is_secret(key: Any, value: Any) -> bool:
    """A text under a secret's name. Of attribute names only the last part counts: `http.request.header.cookie`."""
    if not isinstance(key, str) or not isinstance(value, (str, list)) or not value:
        return False
    return key.rpartition(".")[2].replace("-", "").replace("_", "").lower() in _NAMES
