"""What happened: spans, their recorder, and the store they live in."""

from __future__ import annotations

from agent_forge.traces.recorder import Recorder, carry, current_span, use_span
from agent_forge.traces.span import KINDS, Span
from agent_forge.traces.store import Page, Store

__all__ = ["KINDS", "Page", "Recorder", "Span", "Store", "carry", "current_span", "use_span"]
