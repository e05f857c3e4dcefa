"""A checked request for a completion, turned into jobs for an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_forge.agents.models.text import TextWriter
from agent_forge.server.answers import Refused
from agent_forge.server.models.prompt import chat_prompt
from agent_forge.server.models.tool_calls import call_schema

if TYPE_CHECKING:
    from agent_forge.server.models.constraint import Constraint
    from agent_forge.server.models.job import Job, Outbox
    from agent_forge.server.models.pool import Ready

DEFAULT_CHAT = 1024  # tokens of an answer where a request says nothing
DEFAULT_COMPLETION = 16  # as the OpenAI API has it


@dataclass(slots=True)
class Asked:
    """One request: its jobs share an outbox, and are the choices of the answer by their index."""

    model: Ready
    body: Mapping[str, Any]
    loop: asyncio.AbstractEventLoop
    chat: bool
    prompts: list[list[int]] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    outbox: Outbox = field(default_factory=asyncio.Queue)
    tool_names: tuple[str, ...] = ()
    forced_call: bool = False  # the answer can be nothing but a call

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


def asked_chat(model: Ready, body: Mapping[str, Any], loop: asyncio.AbstractEventLoop) -> Asked:
    """Raises Refused (400): a prompt too long, a schema that cannot be followed."""
    asked = Asked(model, body, loop, chat=True)
    tools = body.get("tools") or []
    choice = body.get("tool_choice") or "auto"
    offered = [] if choice == "none" else list(tools)
    if isinstance(choice, Mapping):
        offered = [tool for tool in tools if tool["function"]["name"] == choice["function"]["name"]]
        if not offered:
            raise Refused(400, "tool_choice names a tool that is not offered", code="invalid_body", param="tool_choice")
    asked.forced_call = bool(offered) and choice != "auto"
    asked.tool_names = tuple(tool["function"]["name"] for tool in offered)
    asked.prompts = [chat_prompt(model.tokenizer, body["messages"], offered)]
    most = body.get("max_completion_tokens") or body.get("max_tokens") or DEFAULT_CHAT
    top = (body.get("top_logprobs") or 0) if body.get("logprobs") else None
    return _with_jobs(asked, most, top, _shape(body, offered if asked.forced_call else None))


def _shape(body: Mapping[str, Any], forced: Sequence[Mapping[str, Any]] | None) -> Mapping[str, Any] | None:
    """The schema that the answer must fit, if any."""
    if forced:
        return call_schema(forced)
    wanted = body.get("response_format") or {"type": "text"}
    if wanted["type"] == "json_schema":
        schema: Mapping[str, Any] = wanted["json_schema"]["schema"]
        return schema
    return {"type": "object"} if wanted["type"] == "json_object" else None


def asked_completion(model: Ready, body: Mapping[str, Any], loop: asyncio.AbstractEventLoop) -> Asked:
    """Raises Refused (400)."""
    asked = Asked(model, body, loop, chat=False)
    given = body["prompt"]
    several = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
    asked.prompts = [_ids(model, one) for one in several]
    return _with_jobs(asked, body.get("max_tokens") or DEFAULT_COMPLETION, body.get("logprobs"), None)


def _ids(model: Ready, prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, str):
        return list(model.tokenizer(prompt)["input_ids"]) or _opening(model)
    if any(token >= model.vocabulary for token in prompt):
        raise Refused(400, f"token ids are below {model.vocabulary}", code="invalid_body", param="prompt")
    return prompt


def _opening(model: Ready) -> list[int]:
    """What a model continues when it is given nothing."""
    first = model.tokenizer.bos_token_id
    return [int(first)] if first is not None else [min(model.ends, default=0)]


def _with_jobs(asked: Asked, most: int, top_logprobs: int | None, shape: Mapping[str, Any] | None) -> Asked:
    from agent_forge.server.models.job import Job
    from agent_forge.server.models.sampling import Sampling

    body, model = asked.body, asked.model
    stop = body.get("stop") or []
    stops = [stop] if isinstance(stop, str) else stop
    number, seed = body.get("n") or 1, body.get("seed")
    if number * len(asked.prompts) > model.engine.slots * 4:
        raise Refused(400, "that is too many answers in one request", code="invalid_body", param="n")
    for prompt in asked.prompts:
        room = _room(model, len(prompt), most, "messages" if asked.chat else "prompt")
        for _ in range(number):
            index = len(asked.jobs)
            sampling = Sampling(
                _or(body.get("temperature"), 1.0),
                _or(body.get("top_p"), 1.0),
                None if seed is None else seed + index,
                top_logprobs,
            )
            writer = TextWriter(model.tokenizer, stops)
            constraint: Constraint | None = None if shape is None else model.grammars.schema(shape)
            asked.jobs.append(
                Job(prompt, room, sampling, writer, model.ends, asked.outbox, asked.loop, constraint, index)
            )
    return asked


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def _room(model: Ready, used: int, most: int, param: str) -> int:
    if model.context is None:
        return most
    if used >= model.context:
        raise Refused(
            400,
            f"the prompt has {used:,} tokens, and the model's context is {model.context:,}",
            code="context_length_exceeded",
            param=param,
            fix="shorten it",
        )
    return min(most, model.context - used)
