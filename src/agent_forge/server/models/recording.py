"""Every request for a completion leaves a span with its tokens, and counts in the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from agent_forge.server.context import Context
from agent_forge.server.metrics import metrics_of
from agent_forge.traces import Span

if TYPE_CHECKING:
    from agent_forge.server.models.answered import Choice
    from agent_forge.server.models.asked import Asked

SAMPLING = ("temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "seed", "n")


class Recording:
    """From the moment a request is in line until its last token, or until the client has gone."""

    def __init__(self, context: Context, request: Request, asked: Asked) -> None:
        self._context = context
        self._asked = asked
        self._ended = False
        body = asked.body
        inputs = {name: body[name] for name in ("messages", "prompt", "tools", "response_format") if body.get(name)}
        self._span: Span = context.recorder.start(
            f"{'chat' if asked.chat else 'text_completion'} {asked.model.name}",
            "model",
            inputs=inputs,
            parent=request.state.parent,
            model=asked.model.name,
            provider="agent-forge",
            sampling=_sampling(body),
        )
        request.state.trace_id = self._span.trace_id  # the answer and the log name it

    def end(self, choices: list[Choice], error: BaseException | str | None = None) -> None:
        """Ends the span; twice does no harm. What is not finished is cancelled."""
        if self._ended:
            return
        self._ended = True
        asked = self._asked
        unfinished = [job for job in asked.jobs if job.finish is None]
        asked.model.engine.cancel(unfinished)
        if unfinished and error is None:
            error = "the client left before the end"
        metrics_of(self._context).answered(asked)
        firsts = [job.first_s - job.queued_s for job in asked.jobs if job.first_s is not None]
        self._context.recorder.end(
            self._span,
            outputs=_outputs(choices),
            error=error,
            input_tokens=asked.prompt_tokens,
            output_tokens=asked.written,
            **({"time_to_first_token_s": min(firsts)} if firsts else {}),
            **({"checkpoint": asked.model.source.digest} if asked.model.source.digest else {}),
        )


def _sampling(body: Mapping[str, Any]) -> dict[str, Any] | None:
    return {name: body[name] for name in SAMPLING if body.get(name) is not None} or None


def _outputs(choices: list[Choice]) -> dict[str, Any]:
    documents = [
        {
            "text": choice.text,
            "finish_reason": choice.finish,
            **({"tool_calls": [call.document for call in choice.calls]} if choice.calls else {}),
        }
        for choice in sorted(choices, key=lambda choice: choice.job.index)
    ]
    return documents[0] if len(documents) == 1 else {"choices": documents}
