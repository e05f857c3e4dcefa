"""The model API through OpenAI's own client, against a server that listens."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import server_tiny as tiny
from agents_tiny_model import tiny_tokenizer

openai = pytest.importorskip("openai", reason="the openai client is not installed: the extra `dev` brings it")

HI = [{"role": "user", "content": "hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Finds things.",
            "parameters": {
                "type": "object",
                "properties": {"count": {"type": "integer", "maximum": 9, "minimum": 0}},
                "required": ["count"],
                "additionalProperties": False,
            },
        },
    }
]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(live: Any) -> Iterator[Any]:
    made = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=60)
    yield made
    made.close()


@pytest.fixture(scope="module")
def model(live: Any) -> Any:
    return live.context.parts["models"].ready()[0]


def alone(model: Any, prompt: list[int], most: int) -> str:
    """What `generate` writes for a prompt up to the end token, as text."""
    written = tiny.alone(model.loaded.model, prompt, most)
    until = next((place for place, token in enumerate(written) if token in model.ends), most)
    return str(tiny_tokenizer().decode(written[:until]))


def test_models_are_listed(client: Any) -> None:
    assert [one.id for one in client.models.list()] == ["tiny"]
    found = client.models.retrieve("tiny")
    assert found.object == "model"
    assert found.state == "ok"
    assert found.parameters == 35040
    with pytest.raises(openai.NotFoundError, match="there is no model 'nobody'"):
        client.models.retrieve("nobody")


def test_a_chat_is_continued_as_generate_would(client: Any, model: Any) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HI, max_tokens=12, temperature=0)
    prompt = tiny_tokenizer().apply_chat_template(HI, add_generation_prompt=True, return_dict=False)
    assert answer.choices[0].message.content == alone(model, prompt, 12)
    assert answer.choices[0].finish_reason == "length"
    assert answer.object == "chat.completion"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), 12)
    assert answer.usage.total_tokens == len(prompt) + 12


def test_a_stream_says_the_same_piece_by_piece(client: Any) -> None:
    asked = {"model": "tiny", "messages": HI, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**asked).choices[0].message.content
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].usage.completion_tokens == 12
    assert len({chunk.id for chunk in chunks}) == 1
    assert len(chunks) > 4


def test_a_text_is_continued(client: Any, model: Any) -> None:
    prompt = list(b"hello")
    answer = client.completions.create(model="tiny", prompt="hello", max_tokens=10, temperature=0)
    ids = tiny_tokenizer()("hello")["input_ids"]
    assert len(ids) == len(prompt)
    assert answer.choices[0].text == alone(model, ids, 10)
    by_ids = client.completions.create(model="tiny", prompt=ids, max_tokens=10, temperature=0)
    assert by_ids.choices[0].text == answer.choices[0].text
    echoed = client.completions.create(model="tiny", prompt="hello", max_tokens=10, temperature=0, echo=True)
    assert echoed.choices[0].text == "hello" + answer.choices[0].text
    several = client.completions.create(model="tiny", prompt=["hello", "world"], max_tokens=4, temperature=0, n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text == several.choices[1].text == answer.choices[0].text[:4]
    assert several.usage.completion_tokens == 16
    pieces = client.completions.create(
        model="tiny", prompt="hello", max_tokens=10, temperature=0, echo=True, stream=True
    )
    assert "".join(piece.choices[0].text for piece in pieces) == echoed.choices[0].text


def test_nothing_is_continued_too(client: Any) -> None:
    assert client.completions.create(model="tiny", prompt="", max_tokens=3, temperature=0).usage.prompt_tokens == 1


def test_a_stop_text_ends_the_answer_and_is_not_in_it(client: Any) -> None:
    asked = {"model": "tiny", "prompt": "hello", "max_tokens": 40, "temperature": 0}
    whole = client.completions.create(**asked).choices[0].text
    stop = whole[3:5]
    cut = client.completions.create(**asked, stop=stop)
    assert cut.choices[0].text == whole[: whole.find(stop)]
    assert cut.choices[0].finish_reason == "stop"
    streamed = client.completions.create(**asked, stop=[stop, "never"], stream=True)
    assert "".join(piece.choices[0].text for piece in streamed) == cut.choices[0].text


def test_the_end_token_ends_the_answer(client: Any, model: Any) -> None:
    """With a high temperature it comes up sooner or later, and is not shown."""
    for seed in range(60):
        answer = client.completions.create(model="tiny", prompt="x", max_tokens=60, temperature=2, seed=seed)
        if answer.choices[0].finish_reason == "stop":
            assert "<|end|>" not in answer.choices[0].text
            assert answer.usage.completion_tokens <= 60
            return
    pytest.fail("no answer ended by itself")


def test_a_seed_repeats_an_answer(client: Any) -> None:
    asked = {"model": "tiny", "messages": HI, "max_tokens": 20, "temperature": 1.2, "top_p": 0.9}

    def once(seed: int) -> str:
        return str(client.chat.completions.create(**asked, seed=seed).choices[0].message.content)

    assert once(5) == once(5)
    assert len({once(seed) for seed in range(5)}) > 1
    several = client.chat.completions.create(**asked, seed=5, n=3).choices
    assert several[0].message.content == once(5)
    assert len({choice.message.content for choice in several}) > 1


def test_log_probabilities(client: Any, model: Any) -> None:
    import torch

    prompt = tiny_tokenizer().apply_chat_template(HI, add_generation_prompt=True, return_dict=False)
    own = torch.log_softmax(model.loaded.model(torch.tensor([prompt])).logits[0, -1].detach(), -1)
    asked = {"model": "tiny", "messages": HI, "max_tokens": 3, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    told = client.chat.completions.create(**asked).choices[0].logprobs.content
    assert len(told) == 3
    assert told[0].logprob == pytest.approx(float(own.max()), abs=1e-4)
    assert [one.logprob for one in told[0].top_logprobs] == pytest.approx(own.topk(2).values.tolist(), abs=1e-4)
    streamed = [c.choices[0].logprobs for c in client.chat.completions.create(**asked, stream=True) if c.choices]
    assert [one.content[0].token for one in streamed if one is not None] == [one.token for one in told]
    legacy = client.completions.create(model="tiny", prompt="hello", max_tokens=3, temperature=0, logprobs=2)
    assert len(legacy.choices[0].logprobs.token_logprobs) == 3
    assert legacy.choices[0].logprobs.text_offset[0] == 0


@pytest.mark.parametrize("seed", range(3))
def test_an_answer_with_a_schema_is_valid(client: Any, seed: int) -> None:
    """The weights are random: without the constraint not even a bracket would be right."""
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    answer = client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=200, temperature=1, seed=seed, response_format=wanted
    )
    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(answer.choices[0].message.content), SCHEMA)


def test_a_json_object_is_one(client: Any) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=400, temperature=0.3, seed=1, response_format={"type": "json_object"}
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    else:
        assert answer.choices[0].message.content.startswith("{")


def test_a_schema_that_cannot_be_followed_is_refused(client: Any) -> None:
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    with pytest.raises(openai.BadRequestError, match="cannot be followed"):
        client.chat.completions.create(model="tiny", messages=HI, response_format=wrong)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "find"}}], ids=["any", "one"])
def test_a_required_call_is_a_call(client: Any, choice: Any, stream: bool) -> None:
    asked = {"model": "tiny", "messages": HI, "max_tokens": 200, "tools": TOOLS, "tool_choice": choice, "seed": 2}
    if stream:
        chunks = list(client.chat.completions.create(**asked, stream=True))
        [call] = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or []]
        finish = chunks[-1].choices[0].finish_reason
        assert not any(chunk.choices[0].delta.content for chunk in chunks)
    else:
        answer = client.chat.completions.create(**asked).choices[0]
        [call], finish = answer.message.tool_calls, answer.finish_reason
        assert answer.message.content is None
    assert finish == "tool_calls"
    assert call.function.name == "find"
    assert call.id.startswith("call_")
    jsonschema.validate(json.loads(call.function.arguments), TOOLS[0]["function"]["parameters"])


def test_a_tool_that_is_not_offered_cannot_be_chosen(client: Any) -> None:
    choice = {"type": "function", "function": {"name": "other"}}
    with pytest.raises(openai.BadRequestError, match="not in tools"):
        client.chat.completions.create(model="tiny", messages=HI, tools=TOOLS, tool_choice=choice)


def test_a_whole_conversation_with_tools_is_read(client: Any) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"count": 2}'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "find two"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "otter, seal"},
    ]
    answer = client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS, max_tokens=4, temperature=0)
    plain = client.chat.completions.create(model="tiny", messages=messages[:2], max_tokens=4, temperature=0)
    assert answer.usage.prompt_tokens > plain.usage.prompt_tokens + 100


WRONG = [
    ({"messages": []}, "messages"),
    ({"temperature": 3}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"presence_penalty": 1}, "presence_penalty"),
    ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "x" * 5000}]}, "messages"),
]


@pytest.mark.parametrize(("change", "param"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_request_is_told_where(client: Any, change: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{"model": "tiny", "messages": HI, **change})
    assert refused.value.param == param
    assert refused.value.type == "invalid_request_error"


def test_an_unknown_word_is_refused(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="colour"):
        client.chat.completions.create(model="tiny", messages=HI, extra_body={"colour": "red"})


def test_tokens_beyond_the_vocabulary_are_refused(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="below 257"):
        client.completions.create(model="tiny", prompt=[5, 999])


def test_a_prompt_beyond_the_context_is_refused_by_its_own_name(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="the model's context") as refused:
        client.completions.create(model="tiny", prompt="x" * 100_000, max_tokens=1)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "prompt")


def test_an_unknown_model_is_not_found(client: Any) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="nobody", messages=HI)
    assert refused.value.code == "model_not_found"


# What a request leaves


def waited(condition: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
    return found


def test_every_request_leaves_a_span_in_the_callers_trace(client: Any, live: Any) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    asked = {"model": "tiny", "messages": HI, "max_tokens": 5, "temperature": 0}
    answer = client.chat.completions.with_raw_response.create(**asked, extra_headers={"traceparent": parent})
    assert answer.headers["x-trace-id"] == "0af7651916cd43dd8448eb211c80319c"
    live.context.recorder.flush()
    [span] = live.context.traces.trace("0af7651916cd43dd8448eb211c80319c")
    assert (span.name, span.kind, span.model, span.parent_id) == ("chat tiny", "model", "tiny", "b7ad6b7169203331")
    assert (span.input_tokens, span.output_tokens, span.status) == (answer.parse().usage.prompt_tokens, 5, "ok")
    assert span.inputs == {"messages": HI}
    assert span.outputs["text"] == answer.parse().choices[0].message.content
    assert span.attributes["time_to_first_token_s"] > 0


@pytest.fixture(scope="module")
def long_prompt(model: Any) -> str:
    """A prompt whose answer does not end by itself before a client has left; which one differs between machines."""

    def length(prompt: str) -> int:
        written = tiny.alone(model.loaded.model, tiny_tokenizer().encode(prompt), 900)
        return next((place for place, token in enumerate(written) if token in model.ends), 900)

    return max(("hello", "a", "the", "one two", "Who is older?", "0123"), key=length)


def test_a_client_that_leaves_stops_the_writing(client: Any, live: Any, model: Any, long_prompt: str) -> None:
    stream = client.completions.create(model="tiny", prompt=long_prompt, max_tokens=900, temperature=0, stream=True)
    next(iter(stream))
    stream.close()
    waited(lambda: model.engine.running == 0)

    def left() -> Any:  # other tests leave errors of their own in the store
        live.context.recorder.flush()
        spans = live.context.traces.search(limit=100, status="error")
        return next((span for span in spans if span.error == "the client left before the end"), None)

    assert 0 < waited(left).output_tokens < 900


def test_a_client_that_leaves_a_whole_answer_stops_it_too(live: Any, model: Any, long_prompt: str) -> None:
    import socket

    def left() -> list[Any]:
        live.context.recorder.flush()
        return list(live.context.traces.search(limit=100, status="error"))

    before = len(left())
    body = json.dumps({"model": "tiny", "prompt": long_prompt, "max_tokens": 1000, "temperature": 0}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", live.port)) as connection:
        connection.sendall(head.encode() + body)
        waited(lambda: model.engine.running == 1)
    waited(lambda: model.engine.running == 0)
    waited(lambda: len(left()) == before + 1)
    assert left()[0].error == "the client left before the end"
    assert left()[0].output_tokens < 1000


def test_many_clients_at_once_each_get_their_own(live: Any, model: Any) -> None:
    """Twice as many as there are slots, streaming: none is lost, none gets another's text."""
    from concurrent.futures import ThreadPoolExecutor

    prompts = [f"number {number}" for number in range(16)]

    def ask(prompt: str) -> str:
        with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=60) as one:
            pieces = one.completions.create(model="tiny", prompt=prompt, max_tokens=15, temperature=0, stream=True)
            return "".join(piece.choices[0].text for piece in pieces)

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, prompts))
    tokenizer = tiny_tokenizer()
    assert answers == [alone(model, tokenizer(prompt)["input_ids"], 15) for prompt in prompts]


# Which models


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory, tiny_path: Path) -> tuple[str, list[str]]:
    """A home with three registered checkpoints."""
    import shutil

    from agents_tiny_model import tiny_model, tiny_tokenizer

    from agent_forge.forge import checkpoint as checkpoints
    from agent_forge.forge.registry import Registry

    home = tmp_path_factory.mktemp("registry-home")
    registry = Registry(home)
    digests = []
    for seed in range(3):
        with checkpoints.staging(registry.models) as folder:
            tiny_model(seed=seed).save_pretrained(folder)
            tiny_tokenizer().save_pretrained(folder)
            made = checkpoints.finish(folder, checkpoints.Card(phase="cognate", config={}, seed=seed), registry.models)
        registry.add(made)
        digests.append(made.digest)
    assert shutil.disk_usage(home).free > 0
    return str(home), digests


def test_a_registered_checkpoint_is_loaded_when_it_is_asked_for(start_server: Any, registered: Any) -> None:
    home, digests = registered
    server = start_server(home=home, models=(f"first={digests[0][:12]}",), models_at_once=1)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        names = {one.id: one.state for one in client.models.list()}
        assert len(names) == 3
        assert "first" in names
        texts = {}
        for name in ("first", digests[1], f"cognate-{digests[2][:12]}", digests[1][:10]):
            answer = client.completions.create(model=name, prompt="hello", max_tokens=8, temperature=0)
            texts[name] = answer.choices[0].text
        assert texts[digests[1]] == texts[digests[1][:10]]
        assert len(set(texts.values())) == 3
        states = [one.state for one in client.models.list()]
        assert sorted(states) == ["ok", "ok", "registered"]  # one on demand at a time: the older was unloaded
        assert server.client().get("/readyz").json()["checks"]["model first"] == "ok"


def test_a_damaged_checkpoint_is_not_served(start_server: Any, registered: Any) -> None:
    home, digests = registered
    folder = Path(home) / "models" / f"cognate-{digests[2][:12]}"
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    server = start_server(home=home)
    with server.client() as client:
        answer = client.post("/v1/completions", json={"model": digests[2], "prompt": "x"})
    data[-1] ^= 1
    weights.write_bytes(data)  # whole again, for others
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "model_not_loaded"
    assert "digest" in answer.json()["error"]["message"]


def test_pickles_are_not_loaded(start_server: Any, tiny_path: Path, tmp_path: Path) -> None:
    import shutil

    import torch

    folder = tmp_path / "pickled"
    shutil.copytree(tiny_path, folder)
    state = tiny.llama().state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    server = start_server(models=(f"bad={folder}",))
    with server.client() as client:
        answer = client.post("/v1/completions", json={"model": "bad", "prompt": "x"})
        assert answer.status_code == 503
        assert client.get("/readyz").status_code == 503


def test_a_model_that_is_not_there_is_refused_at_the_start(start_server: Any) -> None:
    from agent_forge.errors import UsageError

    with pytest.raises(UsageError, match="there is no model"):
        start_server(models=("/nowhere/at/all",))
