"""Packed models are served by the compiled decoder: the same answers, through all that a request may ask for."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import server_tiny as tiny
import torch
from agents_tiny_model import tiny_tokenizer
from torch import nn
from transformers import AutoModelForCausalLM

from agent_forge.forge.models.rows import WindowRows
from agent_forge.inference.engine import Engine
from agent_forge.inference.packed import (
    DecoderBatch,
    TernaryWeight,
    fast_generate,
    from_torch,
    kernels,
    save_packed,
)
from agent_forge.inference.rows import rows_for
from agent_forge.inference.torch_rows import BufferRows, runs_compiled

TOKENIZER = tiny_tokenizer()
MAKERS = {"llama": (tiny.llama, BufferRows), "cognate": (tiny.cognate, WindowRows)}

pytestmark = pytest.mark.skipif(kernels.decoder() is None, reason="there is no C compiler here")


def pack(model: Any, folder: Path) -> Path:
    ternary = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and layer is not model.get_output_embeddings():
            scale = layer.weight.detach().abs().mean(1, keepdim=True)
            ternary[name] = TernaryWeight((layer.weight.detach() / scale).round().clamp(-1, 1), scale)
    save_packed(model, folder, ternary=ternary, layout="2bit", embedding="int8")
    TOKENIZER.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: pack(make(), tmp_path_factory.mktemp("packed") / name) for name, (make, _) in MAKERS.items()}


@pytest.mark.parametrize("name", MAKERS)
def test_each_answer_is_what_the_decoder_writes_alone(name: str, folders: dict[str, Path]) -> None:
    """Requests of all lengths join and leave at all moments."""
    model = AutoModelForCausalLM.from_pretrained(folders[name])
    engine = Engine(model, slots=6, waiting=99, cache_bytes=1 << 30)
    assert isinstance(engine._rows, DecoderBatch)
    rng = random.Random(3)
    asked = [([rng.randrange(3, 256) for _ in range(rng.randrange(1, 60))], rng.randrange(1, 30)) for _ in range(20)]

    async def ask(prompt: list[int], most: int) -> list[int]:
        for _ in range(rng.randrange(3)):  # so that they do not come all at once
            await asyncio.sleep(0.001)
        one = tiny.job(TOKENIZER, prompt, most)
        engine.submit([one])
        return await tiny.finished(one)

    async def all_of_them() -> list[list[int]]:
        return await asyncio.gather(*(ask(*one) for one in asked))

    try:
        answers = asyncio.run(all_of_them())
    finally:
        engine.close()
    alone = from_torch(model)
    assert answers == [fast_generate(alone, *one) for one in asked]


@pytest.mark.parametrize("name", MAKERS)
def test_without_a_compiler_the_answers_are_likely_ones_too(
    name: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By transformers' modules: the same arithmetic, but for the order of additions and what a rounding makes of it."""
    model = AutoModelForCausalLM.from_pretrained(folders[name])
    prompts = [[5, 6, 7, 8], [9, 10]]
    fast = rows_for(model)
    found = [fast.join(prompts), fast.step([11, 12])]
    monkeypatch.setattr(kernels, "decoder", lambda: None)
    assert not runs_compiled(model)
    slow = rows_for(model)
    assert isinstance(slow, MAKERS[name][1])
    expected = [slow.join(prompts), slow.step([11, 12])]
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() < 0.05 * np.abs(other).max()


def test_plain_models_go_the_plain_way() -> None:
    assert not runs_compiled(tiny.llama())
    assert isinstance(rows_for(tiny.llama()), BufferRows)


@pytest.fixture(scope="module")
def client(start_server: Any, folders: dict[str, Path]) -> Any:
    live = start_server(models=(f"m={folders['llama']}",), slots=4)
    with live.client() as made:
        yield made


def ask(client: Any, **body: Any) -> Any:
    answer = client.post("/v1/chat/completions", json={"model": "m", "max_tokens": 24, **HI, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


HI = {"messages": [{"role": "user", "content": "hi"}]}
SCHEMA = {"type": "object", "properties": {"old": {"type": "boolean"}}, "required": ["old"]}
SCHEMA |= {"additionalProperties": False}
FIND = {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}


def test_all_that_a_request_may_ask_for_over_http(client: Any, folders: dict[str, Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(folders["llama"])
    prompt = TOKENIZER.apply_chat_template(HI["messages"], add_generation_prompt=True, return_dict=False)
    written = fast_generate(model, prompt, 24, eos_token_id=256)
    whole = ask(client, temperature=0)["message"]["content"]
    assert whole == TOKENIZER.decode(written, skip_special_tokens=True)
    assert ask(client, temperature=0, stop=whole[3])["message"]["content"] == whole[: whole.index(whole[3])]
    drawn = [ask(client, seed=seed, temperature=1.5)["message"]["content"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    told = ask(client, temperature=0, logprobs=True, top_logprobs=2)["logprobs"]["content"][0]
    decoder = from_torch(model)
    own = torch.log_softmax(torch.from_numpy(decoder.read(decoder.history(), prompt)[0]), -1)
    assert told["logprob"] == pytest.approx(float(own[written[0]]), abs=1e-4)
    assert len(told["top_logprobs"]) == 2
    shaped = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
    jsonschema.validate(json.loads(ask(client, response_format=shaped, seed=3)["message"]["content"]), SCHEMA)
    called = ask(client, tools=[FIND], tool_choice="required", seed=4, max_tokens=80)["message"]["tool_calls"][0]
    jsonschema.validate(json.loads(called["function"]["arguments"]), SCHEMA)


def test_the_weights_are_counted_though_they_are_packed(client: Any) -> None:
    (listed,) = client.get("/v1/models").json()["data"]
    plain = sum(weight.numel() for weight in tiny.llama().parameters())
    assert listed["parameters"] == plain
