"""Turns a validated completion request into jobs for an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_forge.inference.grammar import Grammar, SchemaUnsupported, call_grammar, schema_grammar
from agent_forge.inference.prompt import chat_prompt
from agent_forge.inference.text import TextWriter
from agent_forge.refusal import Refusal

if TYPE_CHECKING:
    from agent_forge.inference.job import DecodeJob, Outbox
    from agent_forge.server.models.pool import ReadyModel

DEFAULT_CHAT = 1024  # tokens of an answer, unless the request sets a limit
DEFAULT_COMPLETION = 16  # as in the OpenAI API


@dataclass(slots=True)
class CompletionRequest:
    """One request. Its jobs share an outbox and become the choices of the answer, by their index."""

    model: ReadyModel
    body: Mapping[str, Any]
    loop: asyncio.AbstractEventLoop
    chat: bool
    prompts: list[list[int]] = field(default_factory=list)
    jobs: list[DecodeJob] = field(default_factory=list)
    outbox: Outbox = field(default_factory=asyncio.Queue)
    tool_names: tuple[str, ...] = ()
    forced_call: bool = False  # the answer must be a call

    @property
    def logprobs(self) -> bool:
        return any(job.sampling.top_logprobs is not None for job in self.jobs)

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def written(self) -> int:
        return sum(job.written for job in self.jobs)

    @property
    def usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.written,
            "total_tokens": self.prompt_tokens + self.written,
        }


def chat_request(model: ReadyModel, body: Mapping[str, Any], loop: asyncio.AbstractEventLoop) -> CompletionRequest:
    """A chat request. Raises Refusal (400) for a prompt that is too long or a schema that cannot be followed."""
    completion = CompletionRequest(model, body, loop, chat=True)
    tools = body.get("tools") or []
    choice = body.get("tool_choice") or "auto"
    offered = [] if choice == "none" else list(tools)
    if isinstance(choice, Mapping):
        offered = [tool for tool in tools if tool["function"]["name"] == choice["function"]["name"]]
        if not offered:
            raise Refusal(
                400, "tool_choice names a tool that is not in tools", code="invalid_body", param="tool_choice"
            )
    completion.forced_call = bool(offered) and choice != "auto"
    completion.tool_names = tuple(tool["function"]["name"] for tool in offered)
    completion.prompts = [chat_prompt(model.tokenizer, body["messages"], offered)]
    most = body.get("max_completion_tokens") or body.get("max_tokens") or DEFAULT_CHAT
    top = (body.get("top_logprobs") or 0) if body.get("logprobs") else None
    return _with_jobs(completion, most, top, _shape(body, offered if completion.forced_call else None))


def _shape(body: Mapping[str, Any], forced: Sequence[Mapping[str, Any]] | None) -> Grammar | None:
    """The grammar that the answer must follow, if any. Raises Refusal (400)."""
    format_ = body.get("response_format") or {"type": "text"}
    try:
        if forced:
            return call_grammar(forced, many=False)
        if format_["type"] == "json_schema":
            return schema_grammar(format_["json_schema"]["schema"])
    except SchemaUnsupported as error:
        param = "tools" if forced else "response_format"
        raise Refusal(400, error.what, code="invalid_schema", param=param) from error
    return schema_grammar({"type": "object"}) if format_["type"] == "json_object" else None


def text_request(model: ReadyModel, body: Mapping[str, Any], loop: asyncio.AbstractEventLoop) -> CompletionRequest:
    """A text completion request. Raises Refusal (400)."""
    completion = CompletionRequest(model, body, loop, chat=False)
    prompt = body["prompt"]
    prompts = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    completion.prompts = [_ids(model, one) for one in prompts]
    return _with_jobs(completion, body.get("max_tokens") or DEFAULT_COMPLETION, body.get("logprobs"), None)


def _ids(model: ReadyModel, prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, str):
        first = model.tokenizer.bos_token_id  # what a model continues when the prompt is empty
        opening = int(first) if first is not None else min(model.ends, default=0)
        return list(model.tokenizer(prompt)["input_ids"]) or [opening]
    if any(token >= model.vocabulary for token in prompt):
        raise Refusal(400, f"token ids must be below {model.vocabulary}", code="invalid_body", param="prompt")
    return prompt


def _with_jobs(
    completion: CompletionRequest, most: int, top_logprobs: int | None, shape: Grammar | None
) -> CompletionRequest:
    from agent_forge.inference.job import DecodeJob
    from agent_forge.inference.sampling import Sampling

    body, model = completion.body, completion.model
    stop = body.get("stop") or []
    stops = [stop] if isinstance(stop, str) else stop
    number, seed = body.get("n") or 1, body.get("seed")
    if number * len(completion.prompts) > model.engine.slots * 4:
        raise Refusal(400, "too many answers in one request", code="invalid_body", param="n")
    for prompt in completion.prompts:
        room = _room(model, len(prompt), most, "messages" if completion.chat else "prompt")
        for _ in range(number):
            index = len(completion.jobs)
            sampling = Sampling(
                1.0 if body.get("temperature") is None else float(body["temperature"]),
                1.0 if body.get("top_p") is None else float(body["top_p"]),
                None if seed is None else seed + index,
                top_logprobs,
            )
            writer = TextWriter(model.tokenizer, stops)
            walk = None if shape is None else model.grammars.start(shape)
            completion.jobs.append(
                DecodeJob(
                    prompt,
                    room,
                    sampling,
                    writer,
                    model.ends,
                    completion.outbox,
                    completion.loop,
                    walk,
                    index,
                    adapter=model.adapter,
                )
            )
    return completion


def _room(model: ReadyModel, used: int, most: int, param: str) -> int:
    if model.context is None:
        return most
    if used >= model.context:
        raise Refusal(
            400,
            f"the prompt has {used:,} tokens, and the model's context is {model.context:,}",
            code="context_length_exceeded",
            param=param,
            fix="Shorten it",
        )
    return min(most, model.context - used)
