"""What happened: spans, their recorder, and the store they live in.

The names are loaded when they are used, so that `import agent_forge.traces` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_forge.lazy import attach

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

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "export": "FORMATS export_traces send_otlp",
        "files": "import_file read_file",
        "masking": "masked",
        "otlp": "read_json read_request write_request",
        "recorder": "Recorder carry current_span use_span",
        "span": "KINDS Span",
        "stats": "Aggregate",
        "store": "Page Store Summary",
        "trajectory": "Trajectory assemble",
        "trust": "TrustTable",
    },
)
