"""Phase 8: models in fewer bytes, with the quality of what is left measured.

    from agent_forge.forge.compression import Settings, compress, prepare_text

`codecs` are the ways to store one matrix, `search` finds the way for each. Nothing is imported here before it is used:
loading a compressed model needs little of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {
    "Encoded": "container",
    "pack": "container",
    "unpack": "container",
    "Cost": "feedback",
    "distortion": "feedback",
    "CODECS": "codecs",
    "decode": "codecs",
    "encode": "codecs",
    "allocate": "allocation",
    "Option": "allocation",
    "Report": "search",
    "Settings": "search",
    "Text": "text",
    "compress": "search",
    "mixed": "text",
    "prepare_text": "text",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)


__all__ = list(_PLACES)
