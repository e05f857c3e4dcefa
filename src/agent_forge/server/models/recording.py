"""Records every completion request: a span with its tokens, and the metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from agent_forge.inference.policy import NAME
from agent_forge.server.context import Context
from agent_forge.server.metrics import metrics_of
from agent_forge.traces import Span

if TYPE_CHECKING:
    from agent_forge.server.models.request import CompletionRequest
    from agent_forge.server.models.response import CompletionChoice

SAMPLING = ("temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "seed", "n")


class CompletionRecording:
    """From the submission of a request until its last token, or until the client has left."""

    def __init__(self, context: Context, request: Request, completion: CompletionRequest) -> None:
        self._context = context
        self._asked = completion
        self._ended = False
        body = completion.body
        inputs = {name: body[name] for name in ("messages", "prompt", "tools", "response_format") if body.get(name)}
        self._span: Span = context.recorder.start(
            f"{'chat' if completion.chat else 'text_completion'} {completion.model.name}",
            "model",
            inputs=inputs,
            parent=request.state.parent,
            model=completion.model.name,
            policy=completion.model.name if NAME.fullmatch(completion.model.name) else None,
            provider="agent-forge",
            sampling={name: body[name] for name in SAMPLING if body.get(name) is not None} or None,
        )
        request.state.trace_id = self._span.trace_id  # the response and the log name it

    def end(self, choices: list[CompletionChoice], error: BaseException | str | None = None) -> None:
        """Ends the span (once) and cancels what is not finished."""
        if self._ended:
            return
        self._ended = True
        completion = self._asked
        unfinished = [job for job in completion.jobs if job.finish is None]
        completion.model.engine.cancel(unfinished)
        if unfinished and error is None:
            error = "the client left before the end"
        metrics_of(self._context).count_completion(completion)
        firsts = [job.first_s - job.queued_s for job in completion.jobs if job.first_s is not None]
        self._context.recorder.end(
            self._span,
            outputs=_outputs(choices),
            error=error,
            input_tokens=completion.prompt_tokens,
            output_tokens=completion.written,
            **({"time_to_first_token_s": min(firsts)} if firsts else {}),
            **({"checkpoint": completion.model.source.digest} if completion.model.source.digest else {}),
        )


def _outputs(choices: list[CompletionChoice]) -> dict[str, Any]:
    documents = [
        {
            "text": choice.text,
            "finish_reason": choice.finish,
            **({"tool_calls": [call.document for call in choice.calls]} if choice.calls else {}),
        }
        for choice in sorted(choices, key=lambda choice: choice.job.index)
    ]
    return documents[0] if len(documents) == 1 else {"choices": documents}
