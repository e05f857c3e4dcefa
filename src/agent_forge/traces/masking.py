"""Masking before writing: secrets by their form or by their name, and whatever else the caller scrubs.

    Recorder(mask=masked())                       secrets only
    Recorder(mask=masked(detector.scrub))         secrets, and what `scrub(text) -> text` replaces, such as PII

The mask runs in the writer, before anything reaches a disk; spans in memory stay unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from agent_forge.traces.span import Span

MASKED = "[masked]"

# Secrets that their prefix gives away. Each pattern starts at the start of a word, so that a long run of letters is
# searched once, not once per letter.
_FORMS = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    r"sk-[A-Za-z0-9_-]{16,}"  # OpenAI, Anthropic and others
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"  # GitHub
    r"|glpat-[A-Za-z0-9_-]{16,}"  # GitLab
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}"  # Slack
    r"|hf_[A-Za-z0-9]{20,}"  # Hugging Face
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}"  # AWS
    r"|AIza[A-Za-z0-9_-]{30,}"  # Google
    r"|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{30,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"  # JSON Web Tokens
    r")"
    r"|(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{12,}"
    r"|(?<=://)[^\s/:@\"]{1,200}:[^\s/@\"]{1,200}(?=@)"  # user:password@ in a URL
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?:[^-]|-(?!----END))*(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?"
)
# Names of fields that hold secrets of any form. Compared without case, hyphens and underscores.
_NAMES = frozenset({
    "password", "passwd", "passphrase", "secret", "clientsecret", "apikey", "xapikey", "accesskey", "secretkey",
    "secretaccesskey", "privatekey", "accesstoken", "refreshtoken", "authtoken", "bearertoken", "idtoken", "token",
    "authorization", "proxyauthorization", "cookie", "setcookie", "credentials", "connectionstring",
})  # fmt: skip

Scrub = Callable[[str], str]


def mask_text(text: str) -> str:
    """`text` without the secrets that can be recognised by their form.

    >>> mask_text("use ghp_0123456789abcdefghijABCDEFGHIJ012345 for now")
    'use [masked] for now'
    """
    return _FORMS.sub(MASKED, text)


def masked(*scrubs: Scrub) -> Callable[[Span], Span]:
    """A mask for `Recorder`: removes secrets first, then applies each of `scrubs` to every recorded text.

    >>> span = Span("1" * 32, "2" * 16, "login", inputs={"password": "hunter2", "note": "sk-abcdefghijklmnop1234"})
    >>> masked(str.upper)(span).inputs
    {'password': '[masked]', 'note': '[MASKED]'}
    """

    def clean(text: str) -> str:
        text = _FORMS.sub(MASKED, text)
        for scrub in scrubs:
            text = scrub(text)
        return text

    def mask(span: Span) -> Span:
        span.inputs, span.outputs = _walk(span.inputs, clean), _walk(span.outputs, clean)
        span.attributes = _walk(span.attributes, clean)
        if span.events:
            span.events = _walk(span.events, clean)
        if span.error is not None:
            span.error = clean(span.error)
        return span

    return mask


def _walk(value: Any, clean: Scrub) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {key: MASKED if _is_secret(key, item) else _walk(item, clean) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_walk(item, clean) for item in value]
    return value


def _is_secret(key: Any, value: Any) -> bool:
    """A text under a secret's name. Of attribute names only the last part counts: `http.request.header.cookie`."""
    if not isinstance(key, str) or not isinstance(value, (str, list)) or not value:
        return False
    return key.rpartition(".")[2].replace("-", "").replace("_", "").lower() in _NAMES
