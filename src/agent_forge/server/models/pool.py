"""The models of a server: those named at the start, and registered checkpoints loaded on demand."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_forge.context_length import context_length
from agent_forge.errors import AgentForgeError, CheckpointError, ModelError
from agent_forge.inference.grammar import GrammarVocabulary
from agent_forge.model_files import digest_of, known_digest
from agent_forge.refusal import Refusal
from agent_forge.server.context import Context
from agent_forge.server.models.loading import (
    LoadedModel,
    ModelSource,
    base_of,
    checkpoint_source,
    load,
    registered,
    source_of,
)

if TYPE_CHECKING:
    from agent_forge.forge.registry import Entry
    from agent_forge.inference.engine import Engine


class ServedModel:
    """One model: loading, ready or broken."""

    def __init__(self, source: ModelSource, context: Context, *, pinned: bool) -> None:
        self.source = source
        self.pinned = pinned  # named at the start, so never unloaded
        self.used_s = time.monotonic()
        self.ready: Future[ReadyModel] = Future()
        self._context = context

    def load(self) -> None:
        """Loads the model and starts its engine; `ready` gets it, or the error."""
        try:
            self.ready.set_result(ReadyModel(self.source, load(self.source, self._context), self._context))
        except AgentForgeError as error:
            self.ready.set_exception(error)
        except Exception as error:  # a foreign model folder can make transformers raise anything
            self.ready.set_exception(ModelError(f"the model cannot be loaded: {type(error).__name__}: {error}"))

    @property
    def state(self) -> str:
        if not self.ready.done():
            return "loading"
        error = self.ready.exception()
        return "ok" if error is None else str(error)

    @property
    def now(self) -> ReadyModel | None:
        """The model, or None if it is not ready."""
        return self.ready.result() if self.ready.done() and self.ready.exception() is None else None

    def close(self) -> None:
        if (model := self.now) is not None:
            model.engine.close()


class ReadyModel:
    """A loaded model with its engine."""

    def __init__(self, source: ModelSource, loaded: LoadedModel, context: Context) -> None:
        from agent_forge.inference.engine import Engine
        from agent_forge.inference.local_model import end_tokens

        settings = context.settings
        self.source = source
        self.adapter: str | None = None  # that every job of a request names
        self.loaded = loaded
        self.tokenizer = loaded.tokenizer
        self.ends = end_tokens(loaded.model, loaded.tokenizer)
        self.context: int | None = context_length(loaded.model.config)
        head = loaded.model.get_output_embeddings()
        self.vocabulary = int(getattr(head, "out_features", None) or head.weight.shape[0])
        self._grammars = cache(lambda: GrammarVocabulary(loaded.tokenizer, size=self.vocabulary, ends=self.ends))
        self.engine: Engine = Engine(
            loaded.model, slots=settings.slots, waiting=settings.waiting, cache_bytes=settings.cache_bytes
        )

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def grammars(self) -> GrammarVocabulary:
        """The tokens as grammars see them; reading them takes about a second."""
        return self._grammars()

    def adapted(self, entry: Entry, context: Context) -> ReadyModel:
        """The same model and batch with the adapter of a policy, verified before its first use.

        Raises CheckpointError for a policy that was changed, or that belongs to another base than this one.
        """
        source = checkpoint_source(entry)
        if not self.engine.has_adapter(entry.digest):
            context.registry.load(entry.digest)
            base, folder = entry.parents[0], Path(self.source.folder)
            own = self.source.digest or (digest_of(folder, file_digest=known_digest) if folder.is_dir() else None)
            if own != base:
                raise CheckpointError(f"{source.name} is an adapter to another base than {self.name}")
            self.engine.add_adapter(entry.digest, entry.path)
        view = copy.copy(self)
        view.source, view.adapter = source, entry.digest
        return view


class ModelPool:
    """All models of a server, by name."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="agent-forge-load")
        self._served: dict[str, ServedModel] = {}
        sources = [source_of(text, context) for text in context.settings.models]  # a wrong name shows before any loads
        for source in sources:
            self._served[source.name] = self._begin(source, pinned=True)

    def _begin(self, source: ModelSource, *, pinned: bool) -> ServedModel:
        served = ServedModel(source, self._context, pinned=pinned)
        self._loader.submit(served.load)
        return served

    def states(self) -> dict[str, str]:
        """`ok`, `loading`, or the error, by name."""
        return {name: served.state for name, served in list(self._served.items())}

    def ready(self) -> list[ReadyModel]:
        """The models that are loaded."""
        return [model for served in list(self._served.values()) if (model := served.now) is not None]

    def documents(self) -> list[dict[str, Any]]:
        """What `/v1/models` shows: the served ones first, then every registered checkpoint."""
        served = list(self._served.values())
        digests = {one.source.digest for one in served}
        entries = [entry for entry in self._context.registry.ls() if entry.digest not in digests]
        return [*(_document(one.source, one) for one in served), *map(self._registered, entries)]

    def document(self, name: str) -> dict[str, Any]:
        """One model of the list. Raises Refusal (404)."""
        served = self._served.get(name)
        if served is not None:
            return _document(served.source, served)
        entry = registered(name, self._context)
        if entry is None:
            raise _unknown(name)
        return self._registered(entry)

    def _registered(self, entry: Entry) -> dict[str, Any]:
        """A checkpoint that is not served by its name; an adapter is, once a request has used it."""
        document = _document(checkpoint_source(entry), None)
        if not (entry.path / "config.json").is_file():
            loaded = any(model.engine.has_adapter(entry.digest) for model in self.ready())
            document |= {"parent": entry.parents[0], "state": "ok" if loaded else "registered"}
        return document

    async def get(self, name: str) -> ReadyModel:
        """The model of that name, loaded: a policy's name, or BASE:POLICY, is its base with its adapter.

        Raises Refusal: 404 for an unknown one, 503 for one that cannot be loaded or is not what was registered.
        """
        served, policy = await asyncio.to_thread(self._find, name)
        served.used_s = time.monotonic()
        try:
            ready = await asyncio.shield(asyncio.wrap_future(served.ready))
        except AgentForgeError as error:
            with self._lock:
                if not served.pinned:  # the next request tries again
                    self._served.pop(served.source.name, None)
            raise Refusal(503, str(error), code="model_not_loaded") from error
        try:
            return ready if policy is None else await asyncio.to_thread(ready.adapted, policy, self._context)
        except AgentForgeError as error:
            raise Refusal(503, str(error), code="model_not_loaded") from error

    def _find(self, name: str) -> tuple[ServedModel, Entry | None]:
        """The model to load, and the policy whose adapter goes on it."""
        with self._lock:
            if (served := self._served.get(name)) is not None:
                return served, None
            base, colon, adapter = name.partition(":")
            entry = registered(adapter if colon else name, self._context)
            if entry is None:
                raise _unknown(name)
            try:
                beneath = base_of(entry, self._context)
            except AgentForgeError as error:
                raise Refusal(503, f"the base of {entry.name} is not registered", code="model_not_loaded") from error
            if beneath is None:
                if colon:
                    raise _unknown(name)
                return self._served_or_begun(entry), None
            if not colon:
                return self._served_or_begun(beneath), entry
            if (served := self._served.get(base)) is not None:
                return served, entry
            named = registered(base, self._context)
            if named is None:
                raise _unknown(base)
            return self._served_or_begun(named), entry

    def _served_or_begun(self, entry: Entry) -> ServedModel:
        for served in self._served.values():
            if served.source.digest == entry.digest or served.source.folder == str(entry.path):
                return served
        self._make_room()
        source = checkpoint_source(entry)
        if source.name in self._served:  # a folder elsewhere, called as another is
            source = replace(source, name=entry.name)
        served = self._served[source.name] = self._begin(source, pinned=False)
        return served

    def _make_room(self) -> None:
        """Unloads the least recently used idle model if too many are loaded. Raises Refusal (503)."""
        unpinned = [one for one in self._served.values() if not one.pinned]
        if len(unpinned) < self._context.settings.models_at_once:
            return
        idle = [one for one in unpinned if (now := one.now) is None or now.engine.running + now.engine.waiting == 0]
        if not idle:
            raise Refusal(503, "all models are busy", code="no_room", headers={"Retry-After": "5"})
        oldest = min(idle, key=lambda one: one.used_s)
        del self._served[oldest.source.name]
        oldest.close()

    def close(self) -> None:
        """Stops all engines."""
        self._loader.shutdown(wait=True, cancel_futures=True)
        for served in self._served.values():
            served.close()


def models_of(context: Context) -> ModelPool:
    """The models of a server, made on first use."""
    pool: ModelPool = context.part("models", lambda: ModelPool(context))
    return pool


def _document(source: ModelSource, served: ServedModel | None) -> dict[str, Any]:
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


def _unknown(name: str) -> Refusal:
    return Refusal(
        404,
        f"there is no model {name[:200]!r}",
        code="model_not_found",
        param="model",
        fix="GET /v1/models lists them",
    )
