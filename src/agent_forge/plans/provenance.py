"""Where a plan comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Provenance:
    """Who planned a request, how sure the planner was, and what it cost.

    `input_tokens`, `output_tokens` and `cost` (US dollars) are sums over all attempts; None if they are not known or no
    model was asked. `confidence` is between 0 and 1: for a model, the geometric mean of its tokens' probabilities; None
    if the planner does not measure any.
    """

    request: str
    planner: str
    model: str | None = None
    confidence: float | None = None
    template: str | None = None  # of the prompt
    attempts: int = 1
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    text: str | None = None  # the model's output, verbatim
    shape: str | None = None  # how the rule planner read the request
