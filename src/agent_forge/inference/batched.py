"""A model in this process that writes many answers at a time, through the batching engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from agent_forge.errors import ModelError
from agent_forge.inference.chat import ChatClient
from agent_forge.inference.client import Completion, Request
from agent_forge.inference.engine import Engine
from agent_forge.inference.job import DecodeJob, Outbox
from agent_forge.inference.local_model import LocalModel, end_tokens, room
from agent_forge.inference.prompt import chat_prompt
from agent_forge.inference.sampling import Sampling
from agent_forge.inference.text import TextWriter
from agent_forge.refusal import Refusal
from agent_forge.threads import THREADS


class BatchedModel(ChatClient):
    """Answers the requests that come at the same time together: `slots` of them in one batch.

    The answers are those of the `local` model alone, whose `mask` must be None. Close it when done.
    """

    def __init__(self, local: LocalModel, *, slots: int = 8, cache_bytes: int = 2**31) -> None:
        self.local = local
        self.name, self.provider = local.name, local.provider
        self.slots = slots
        self._cache_bytes = cache_bytes
        self._engine: Engine | None = None
        self._starting = asyncio.Lock()

    async def answer(self, request: Request) -> Completion:
        """The whole answer. Raises ModelError."""
        *_, last = [piece async for piece in self.pieces(request)]
        assert isinstance(last, Completion)
        return last

    async def pieces(self, request: Request) -> AsyncIterator[str | Completion]:
        """The text as it is written, then the Completion. Leaving the stream takes the answer out of the batch."""
        engine = await self._started()
        job = self._job(request)
        ids: list[int] = []
        logprobs: list[float] = []
        try:
            engine.submit([job])
        except Refusal as error:
            raise ModelError(str(error)) from error
        try:
            while True:
                _, piece = await job.outbox.get()
                if piece.error is not None:
                    raise piece.error
                if piece.token is not None:
                    ids.append(piece.token.id)
                    logprobs.append(piece.token.logprob or 0.0)
                if piece.text:
                    yield piece.text
                if piece.finish is not None:
                    break
        finally:
            if job.finish is None:
                engine.cancel([job])
        yield self.local.completion(request, job.writer.text, job.finish or "stop", list(job.prompt), ids, logprobs)

    async def _started(self) -> Engine:
        async with self._starting:
            if self._engine is None:
                model, _ = await THREADS.call(self.local.load)
                self._engine = Engine(model, slots=self.slots, waiting=100_000, cache_bytes=self._cache_bytes)
            return self._engine

    def _job(self, request: Request) -> DecodeJob:
        model, tokenizer = self.local.load()
        try:
            prompt = chat_prompt(tokenizer, request.messages, request.tools)
        except Refusal as error:
            raise ModelError(str(error)) from error
        outbox: Outbox = asyncio.Queue()
        return DecodeJob(
            prompt,
            room(model, len(prompt), request.max_tokens),
            Sampling(request.temperature or 0.0, seed=request.seed, top_logprobs=0),
            TextWriter(tokenizer, request.stop),
            end_tokens(model, tokenizer),
            outbox,
            asyncio.get_running_loop(),
            self.local.walk(request),
        )

    def close(self) -> None:
        """Ends the thread of the engine; unfinished answers fail."""
        if self._engine is not None:
            self._engine.close()
