"""URLs as they may be kept and shown: without passwords and keys."""

from __future__ import annotations

import re

CUT = "***"

_USER = re.compile(r"(?<=://)[^\s/?#@\"'<>]{1,1000}@")
_KEY = re.compile(
    r"([?&;](?:[\w.-]{0,40}[_-])?(?:key|apikey|token|password|passwd|pwd|secret|signature|sig|auth|credential)=)"
    r"[^&;#\s\"'<>]{1,2000}",
    re.IGNORECASE,
)


def without_credentials(text: str) -> str:
    """The text with the user and the secret parameters of every URL in it replaced by `***`.

    >>> without_credentials("http://ann:pw@host:8000/v1?api_key=s3cret&x=1#llama")
    'http://***@host:8000/v1?api_key=***&x=1#llama'
    """
    return _KEY.sub(rf"\1{CUT}", _USER.sub(f"{CUT}@", text))
