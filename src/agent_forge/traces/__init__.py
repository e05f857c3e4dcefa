"""What happened: spans, their recorder, and the store they live in.

The names are loaded when they are used, so that `import agent_forge.traces` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_forge.traces.export import FORMATS, export_traces, send_otlp
    from agent_forge.traces.files import import_file, read_file
    from agent_forge.traces.masking import masked
    from agent_forge.traces.otlp import read_json, read_request, write_request
    from agent_forge.traces.recorder import Recorder, carry, current_span, use_span
    from agent_forge.traces.span import KINDS, Span
    from agent_forge.traces.stats import Aggregate
    from agent_forge.traces.store import Page, Store, Summary
    from agent_forge.traces.trajectory import Trajectory, assemble
    from agent_forge.traces.trust import TrustTable

_HOMES = {
    "FORMATS": "export", "export_traces": "export", "send_otlp": "export", "import_file": "files", "read_file": "files",
    "masked": "masking", "read_json": "otlp", "read_request": "otlp", "write_request": "otlp", "Recorder": "recorder",
    "carry": "recorder", "current_span": "recorder", "use_span": "recorder", "KINDS": "span", "Span": "span",
    "Aggregate": "stats",
    "Page": "store", "Store": "store", "Summary": "store", "Trajectory": "trajectory", "assemble": "trajectory",
    "TrustTable": "trust",
}  # fmt: skip

__all__ = [
    "FORMATS",
    "KINDS",
    "Aggregate",
    "Page",
    "Recorder",
    "Span",
    "Store",
    "Summary",
    "Trajectory",
    "TrustTable",
    "assemble",
    "carry",
    "current_span",
    "export_traces",
    "import_file",
    "masked",
    "read_file",
    "read_json",
    "read_request",
    "send_otlp",
    "use_span",
    "write_request",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
