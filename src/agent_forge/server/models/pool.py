"""The models of a server: those named at the start, and registered checkpoints loaded when they are first asked for."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from agent_forge.context_length import context_length
from agent_forge.errors import AgentForgeError, ModelError
from agent_forge.server.answers import Refused
from agent_forge.server.context import Context
from agent_forge.server.models.loading import Loaded, Source, load, registered, source_of

if TYPE_CHECKING:
    from agent_forge.server.models.engine import Engine


class Served:
    """One model: being loaded, at work, or broken."""

    def __init__(self, source: Source, context: Context, *, kept: bool) -> None:
        self.source = source
        self.kept = kept  # named at the start, so never unloaded
        self.used_s = time.monotonic()
        self.ready: Future[Ready] = Future()
        self._context = context

    def load(self) -> None:
        """Loads the model and starts its engine; `ready` gets it, or the error."""
        try:
            self.ready.set_result(Ready(self.source, load(self.source, self._context), self._context))
        except AgentForgeError as error:
            self.ready.set_exception(error)
        except Exception as error:  # whatever a foreign model folder makes transformers do
            self.ready.set_exception(ModelError(f"the model cannot be loaded: {type(error).__name__}: {error}"))

    @property
    def state(self) -> str:
        if not self.ready.done():
            return "loading"
        error = self.ready.exception()
        return "ok" if error is None else str(error)

    @property
    def now(self) -> Ready | None:
        """The model, if it is ready."""
        return self.ready.result() if self.ready.done() and self.ready.exception() is None else None

    def close(self) -> None:
        if (model := self.now) is not None:
            model.engine.close()


class Ready:
    """A loaded model with its engine and its grammars."""

    def __init__(self, source: Source, loaded: Loaded, context: Context) -> None:
        from agent_forge.agents.models.local_model import end_tokens
        from agent_forge.server.models.constraint import Grammars
        from agent_forge.server.models.engine import Engine

        settings = context.settings
        self.source = source
        self.loaded = loaded
        self.tokenizer = loaded.tokenizer
        self.ends = end_tokens(loaded.model, loaded.tokenizer)
        self.context: int | None = context_length(loaded.model.config)
        head = loaded.model.get_output_embeddings()
        self.vocabulary = int(getattr(head, "out_features", None) or head.weight.shape[0])
        self.grammars = Grammars(loaded.tokenizer, self.vocabulary, self.ends)
        self.engine: Engine = Engine(
            loaded.model, slots=settings.slots, waiting=settings.waiting, cache_bytes=settings.cache_bytes
        )

    @property
    def name(self) -> str:
        return self.source.name


class Models:
    """All models of a server, by name."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._turn = threading.Lock()
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="agent-forge-load")
        self._served: dict[str, Served] = {}
        sources = [source_of(text, context) for text in context.settings.models]  # all are found before one is loaded
        for source in sources:
            self._served[source.name] = self._begin(source, kept=True)

    def _begin(self, source: Source, *, kept: bool) -> Served:
        served = Served(source, self._context, kept=kept)
        self._loader.submit(served.load)
        return served

    def states(self) -> dict[str, str]:
        """`ok`, `loading`, or what went wrong, by name."""
        return {name: served.state for name, served in list(self._served.items())}

    def ready(self) -> list[Ready]:
        """The models that are loaded."""
        return [model for served in list(self._served.values()) if (model := served.now) is not None]

    def listed(self) -> list[dict[str, Any]]:
        """What `/v1/models` shows: the served ones first, then every registered checkpoint."""
        served = list(self._served.values())
        known = {one.source.digest for one in served}
        sources = [one.source for one in served]
        for entry in self._context.registry.ls():
            if entry.digest not in known:
                sources.append(Source(entry.path.name, str(entry.path), entry.digest, entry.created_s))
        return [_document(source, self._served.get(source.name)) for source in sources]

    def document(self, name: str) -> dict[str, Any]:
        """One model of the list. Raises Refused (404)."""
        served = self._served.get(name)
        if served is not None:
            return _document(served.source, served)
        entry = registered(name, self._context)
        if entry is None:
            raise _unknown(name)
        return _document(Source(entry.path.name, str(entry.path), entry.digest, entry.created_s), None)

    async def get(self, name: str) -> Ready:
        """The model of that name, loaded. Raises Refused: 404 for an unknown one, 503 for one that cannot be loaded."""
        served = await asyncio.to_thread(self._find, name)
        served.used_s = time.monotonic()
        try:
            return await asyncio.shield(asyncio.wrap_future(served.ready))
        except AgentForgeError as error:
            with self._turn:
                if not served.kept:  # the next request tries again
                    self._served.pop(served.source.name, None)
            raise Refused(503, str(error), code="model_not_loaded") from error

    def _find(self, name: str) -> Served:
        with self._turn:
            if (served := self._served.get(name)) is not None:
                return served
            entry = registered(name, self._context)
            if entry is None:
                raise _unknown(name)
            for served in self._served.values():
                if served.source.digest == entry.digest:
                    return served
            self._make_room()
            source = Source(entry.path.name, str(entry.path), entry.digest, entry.created_s)
            served = self._served[source.name] = self._begin(source, kept=False)
            return served

    def _make_room(self) -> None:
        """Unloads the idle model that was used least recently, when too many are loaded. Raises Refused (503)."""
        passing = [one for one in self._served.values() if not one.kept]
        if len(passing) < self._context.settings.models_at_once:
            return
        idle = [one for one in passing if (now := one.now) is None or now.engine.running + now.engine.waiting == 0]
        if not idle:
            raise Refused(503, "all models are at work", code="no_room", headers={"Retry-After": "5"})
        oldest = min(idle, key=lambda one: one.used_s)
        del self._served[oldest.source.name]
        oldest.close()

    def close(self) -> None:
        """Stops all engines."""
        self._loader.shutdown(wait=True, cancel_futures=True)
        for served in self._served.values():
            served.close()


def models_of(context: Context) -> Models:
    """The models of a server, made by the first who asks."""
    found: Models = context.part("models", lambda: Models(context))
    return found


def _document(source: Source, served: Served | None) -> dict[str, Any]:
    ready = served.now if served is not None else None
    return {
        "id": source.name,
        "object": "model",
        "created": int(source.created_s),
        "owned_by": "agent-forge",
        "digest": source.digest,
        "state": served.state if served is not None else "registered",
        "parameters": ready.loaded.parameters if ready is not None else None,
    }


def _unknown(name: str) -> Refused:
    return Refused(
        404,
        f"there is no model {name[:200]!r}",
        code="model_not_found",
        param="model",
        fix="GET /v1/models lists them",
    )
