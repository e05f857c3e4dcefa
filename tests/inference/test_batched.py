"""Answers in a batch are the answers of the model alone."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from agents_tiny_model import tiny_model, tiny_tokenizer

from agent_forge.errors import ModelError
from agent_forge.inference import Completion, use_recorder
from agent_forge.inference.batched import BatchedModel
from agent_forge.inference.local_model import LocalModel, PromptTooLong
from agent_forge.traces import Recorder, Store

SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 22, 333]}, "ok": {"type": "boolean"}},
          "required": ["n", "ok"], "additionalProperties": False}  # fmt: skip
REQUESTS = [
    {"max_tokens": 12},
    {"max_tokens": 40, "answer_schema": SCHEMA},
    {"max_tokens": 5, "temperature": 0.8, "seed": 3},
    {"max_tokens": 30, "stop": ["a"]},
]


def prompt(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": "hello " * (number + 1)}]


def test_a_batch_gives_the_answers_of_the_model_alone() -> None:
    local = LocalModel(lambda: (tiny_model(), tiny_tokenizer()), name="tiny", keep_tokens=True)
    batched = BatchedModel(local, slots=3)
    recorder = Recorder(Store.open(":memory:"))

    async def together() -> list[Completion]:
        with use_recorder(recorder):
            return await asyncio.gather(*(batched.complete(prompt(n), **o) for n, o in enumerate(REQUESTS)))

    async def alone() -> list[Completion]:
        return [await local.complete(prompt(n), **options) for n, options in enumerate(REQUESTS)]

    async def ask(number: int) -> None:
        await batched.complete(prompt(number))

    try:
        answers = asyncio.run(together())
        for answer, expected in zip(answers, asyncio.run(alone()), strict=True):
            assert (answer.text, answer.finish_reason, answer.usage) == (
                expected.text, expected.finish_reason, expected.usage,
            )  # fmt: skip
            assert answer.output_ids == expected.output_ids
            assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
        assert answers[1].text.startswith('{"n": ')
        with pytest.raises(PromptTooLong):
            asyncio.run(ask(400))
    finally:
        batched.close()
    with pytest.raises(ModelError, match="unloaded"):
        asyncio.run(ask(0))
    recorder.close()
    assert len(list(recorder.store.search(kind="model", limit=10))) == 4
