"""The in-process client: against transformers' own generate, its forward pass, and SmolLM2 itself."""

from __future__ import annotations

import asyncio
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from agents_tiny_model import tiny_folder, tiny_model, tiny_tokenizer  # noqa: E402

from agent_forge.agents import tool  # noqa: E402
from agent_forge.errors import ModelError, UsageError  # noqa: E402
from agent_forge.inference import Completion, Request, TokenUsage, model, use_recorder  # noqa: E402
from agent_forge.inference.gguf_file import GgufFile  # noqa: E402
from agent_forge.inference.llama_gguf import load_gguf  # noqa: E402
from agent_forge.inference.loading import load_model  # noqa: E402
from agent_forge.inference.local_model import LocalModel, end_tokens, read_tool_calls  # noqa: E402
from agent_forge.inference.text import TextWriter  # noqa: E402
from agent_forge.traces import Recorder, Store  # noqa: E402

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny") / "tiny-llama")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> LocalModel:
    return LocalModel(folder, keep_tokens=True)


def only(logits: Any, token: int) -> Any:
    """The logits of a model that has no choice."""
    return np.where(np.arange(len(logits)) == token, 0, -np.inf)


def ask(client: Any, messages: Any = HELLO, **options: Any) -> Completion:
    done: Completion = asyncio.run(client.complete(messages, **options))
    return done


def test_greedy_decoding_is_that_of_generate(tiny: LocalModel) -> None:
    got = ask(tiny, max_tokens=40)
    peer, tokenizer = tiny.load()
    prompt = torch.tensor([got.prompt_ids])
    expected = peer.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=40, do_sample=False)
    assert list(got.output_ids or ()) == expected[0, prompt.shape[1] :].tolist()
    assert tokenizer.decode(got.prompt_ids) == "<|user|>hello<|assistant|>"
    assert got.usage == TokenUsage(prompt.shape[1], 40)
    assert got.finish_reason == "length"
    assert got.model == "tiny-llama"


def test_logprobs_are_those_of_one_forward_pass(tiny: LocalModel) -> None:
    got = ask(tiny, max_tokens=20, temperature=0.9, seed=3)
    peer, _ = tiny.load()
    assert got.prompt_ids is not None
    assert got.output_ids is not None
    whole = torch.tensor([[*got.prompt_ids, *got.output_ids]])
    with torch.inference_mode():
        logits = peer(whole).logits[0, len(got.prompt_ids) - 1 : -1].float()  # (written, vocabulary)
    expected = torch.log_softmax(logits, -1)[range(len(got.output_ids)), list(got.output_ids)]
    assert list(got.logprobs or ()) == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_seed_gives_the_same_answer_again(tiny: LocalModel) -> None:
    torch.manual_seed(1)
    first = ask(tiny, max_tokens=30, temperature=1.0, seed=7)
    torch.manual_seed(2)
    assert ask(tiny, max_tokens=30, temperature=1.0, seed=7) == first
    others = {ask(tiny, max_tokens=30, temperature=1.0).output_ids for _ in range(4)}
    assert len(others) > 1


def test_sampling_follows_the_probabilities(tiny: LocalModel) -> None:
    """The first token of 300 samples against the softmax: total variation below what chance allows."""
    got = ask(tiny, max_tokens=1)
    peer, _ = tiny.load()
    with torch.inference_mode():
        expected = torch.softmax(peer(torch.tensor([got.prompt_ids])).logits[0, -1].float() / 0.5, -1)
    counts = torch.zeros(257)
    for seed in range(300):
        for token, _ in tiny.tokens(got.prompt_ids or (), 1, temperature=0.5, seed=seed):
            counts[token] += 1
    top = int(expected.argmax())
    share = float(counts[top] / 300)
    sigma = float((expected[top] * (1 - expected[top]) / 300) ** 0.5)
    assert abs(share - float(expected[top])) < 5 * sigma + 1e-6


def test_the_stream_is_the_answer_in_pieces(tiny: LocalModel) -> None:
    async def main() -> tuple[list[str], Completion]:
        stream = tiny.stream(HELLO, max_tokens=40)
        return [piece async for piece in stream], stream.completion

    pieces, whole = asyncio.run(main())
    assert len(pieces) > 1
    assert "".join(pieces) == whole.text
    assert whole == ask(tiny, max_tokens=40)


def test_stop_texts_end_the_answer_and_are_not_part_of_it(tiny: LocalModel) -> None:
    free = ask(tiny, max_tokens=60).text
    stop = free[10:13]
    got = ask(tiny, max_tokens=60, stop=[stop])
    assert got.text == free[: free.index(stop)]
    assert got.finish_reason == "stop"


def test_the_end_token_ends_the_answer(folder: Path) -> None:
    def only_end(written: list[int], logits: Any) -> Any:
        return only(logits, 256 if len(written) == 3 else 65)

    got = ask(LocalModel(folder, mask=only_end, keep_tokens=True))
    assert got.output_ids == (65, 65, 65, 256)
    assert got.finish_reason == "stop"
    assert "<|end|>" not in got.text
    assert len(got.text) == 3


def test_leaving_the_stream_stops_the_model(folder: Path) -> None:
    steps: list[int] = []

    def count(written: list[int], logits: Any) -> Any:
        steps.append(len(written))
        return logits

    client = LocalModel(folder, mask=count)

    async def main() -> None:
        stream = client.stream(HELLO, max_tokens=10_000)
        async for _ in stream:
            break
        await stream.aclose()

    asyncio.run(main())
    assert len(steps) < 200
    assert ask(client, max_tokens=2).usage.output_tokens == 2


def test_cancelling_the_answer_stops_the_model(folder: Path) -> None:
    started = threading.Event()

    def note(written: list[int], logits: Any) -> Any:
        started.set()
        return logits

    client = LocalModel(folder, mask=note)

    async def main() -> None:
        call = asyncio.ensure_future(client.complete(HELLO, max_tokens=10_000))
        await asyncio.to_thread(started.wait, 20)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(main())
    assert ask(client, max_tokens=1).usage.output_tokens == 1


def test_the_loop_is_free_while_the_model_writes(tiny: LocalModel) -> None:
    async def main() -> int:
        ticks = 0
        call = asyncio.ensure_future(tiny.complete(HELLO, max_tokens=60))
        while not call.done():
            ticks += 1
            await asyncio.sleep(0)
        return ticks

    assert asyncio.run(main()) > 3


def test_many_answers_at_once_are_those_of_one_at_a_time(tiny: LocalModel) -> None:
    async def main() -> list[Completion]:
        return await asyncio.gather(*(tiny.complete(HELLO, max_tokens=10, temperature=1.0, seed=n) for n in range(4)))

    assert asyncio.run(main()) == [ask(tiny, max_tokens=10, temperature=1.0, seed=n) for n in range(4)]


def test_a_prompt_beyond_the_context_is_refused(tmp_path: Path) -> None:
    client = LocalModel(tiny_folder(tmp_path / "short", context=30))
    with pytest.raises(ModelError, match="the model's context is 30"):
        ask(client, [{"role": "user", "content": "x" * 100}])
    assert (ask(client, max_tokens=500).usage.output_tokens or 0) <= 10


def test_without_a_template_and_with_a_bad_one() -> None:
    plain = LocalModel(lambda: (tiny_model(), tiny_tokenizer(None)), keep_tokens=True)
    got = ask(plain, max_tokens=1)
    assert plain.load()[1].decode(got.prompt_ids) == "user: hello\n\nassistant:"
    assert plain.name == "checkpoint"
    bad = LocalModel(lambda: (tiny_model(), tiny_tokenizer("{{ raise_exception('only one turn') }}")))
    with pytest.raises(ModelError, match="only one turn"):
        ask(bad)


@tool
def search(query: str) -> str:
    """Finds."""
    return query


def test_tools_reach_the_model(tiny: LocalModel) -> None:
    got = ask(tiny, max_tokens=1, tools=[search])
    prompt = tiny.load()[1].decode(got.prompt_ids)
    assert prompt.startswith("<|system|>You may call these functions:")
    assert '"name": "search"' in prompt
    system = [{"role": "system", "content": "Be brief."}, *HELLO]
    prompt = tiny.load()[1].decode(ask(tiny, system, max_tokens=1, tools=[search]).prompt_ids)
    assert prompt.startswith("<|system|>Be brief.\n\nYou may call")
    knows = tiny_tokenizer("{% if tools %}TOOLS {{ tools | length }}{% endif %}{{ messages[0].content }}")
    client = LocalModel(lambda: (tiny_model(), knows), keep_tokens=True)
    assert knows.decode(ask(client, max_tokens=1, tools=[search]).prompt_ids) == "TOOLS 1hello"


def test_tool_calls_are_read_from_the_text() -> None:
    text = 'a <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call> b <tool_call>\n{"name": "g"}\n</tool_call>'
    rest, calls = read_tool_calls(text)
    assert rest == "a  b"
    assert [(call.id, call.name, call.arguments) for call in calls] == [("call_0", "f", {"x": 1}), ("call_1", "g", {})]
    for bad in (
        "plain",
        "<tool_call>{x}</tool_call>",
        '<tool_call>{"name": 3}</tool_call>',
        "<tool_call>{}</tool_call>",
    ):
        assert read_tool_calls(bad) == (bad, ())


def test_a_model_that_calls_a_tool() -> None:
    tokenizer = tiny_tokenizer()
    script = tokenizer('ok <tool_call>{"name": "search", "arguments": {"query": "é"}}</tool_call>')["input_ids"] + [256]

    def follow(written: list[int], logits: Any) -> Any:
        return only(logits, script[len(written)])

    client = LocalModel(lambda: (tiny_model(), tokenizer), mask=follow)
    got = ask(client, tools=[search])
    assert (got.text, got.finish_reason) == ("ok", "tool_calls")
    assert got.tool_calls[0].arguments == {"query": "é"}
    assert got.prompt_ids is None


def test_spans_keep_the_tokens(tiny: LocalModel) -> None:
    store = Store.open(":memory:")
    recorder = Recorder(store)
    with use_recorder(recorder):
        got = ask(tiny, max_tokens=4)
    recorder.flush()
    (row,) = store.search()
    (span,) = store.trace(row.trace_id)
    assert span.output_ids == list(got.output_ids or ())
    assert span.prompt_ids == list(got.prompt_ids or ())
    assert span.logprobs == pytest.approx(list(got.logprobs or ()))
    assert (span.provider, span.input_tokens, span.output_tokens) == ("checkpoint", len(span.prompt_ids), 4)
    recorder.close()


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config.json"):
        LocalModel(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    with pytest.raises(ModelError, match="pickled weights are never read"):
        ask(LocalModel(tmp_path))


def test_a_pickled_model_is_refused(tmp_path: Path) -> None:
    """Weights only as a pickle: loading them could run code, so it is not done."""
    tiny_folder(tmp_path)
    weights = tmp_path / "model.safetensors"
    state = tiny_model().state_dict()
    weights.unlink()
    torch.save(state, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickled weights are never read"):
        ask(LocalModel(tmp_path))


def test_end_tokens(tiny: LocalModel) -> None:
    peer, tokenizer = tiny.load()
    assert end_tokens(peer, tokenizer) == {256}
    several = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=[1, 2]))
    assert end_tokens(several, SimpleNamespace(eos_token_id=None)) == {1, 2}
    assert repr(tiny) == "LocalModel('tiny-llama')"


def test_pieces_never_cut_a_character_or_show_a_stop_text() -> None:
    tokenizer = tiny_tokenizer()
    text = "naïve 日本 STOP after"
    for stop in (["STOP"], ["never"], ["本 S", "zzz"], []):
        writer = TextWriter(tokenizer, stop)
        pieces: list[str] = []
        for token in tokenizer(text)["input_ids"]:
            pieces += writer.add(token)
            if writer.stopped:
                break
        pieces += writer.rest()
        ends = [text.index(s) for s in stop if s in text]
        assert "".join(pieces) == writer.text == text[: min(ends, default=len(text))]
        assert all("\ufffd" not in piece for piece in pieces)
        assert writer.stopped == bool(ends)
    half = TextWriter(tokenizer)
    assert list(half.add(tokenizer("é")["input_ids"][0])) == []
    assert list(half.rest()) == ["\ufffd"]


def test_models_by_name(folder: Path, tmp_path: Path) -> None:
    assert repr(model("https://h/v1#a/b:c")) == "OpenAICompatible('https://h/v1', 'a/b:c')"
    assert model(str(folder)).name == "tiny-llama"
    (tmp_path / "c.jsonl").write_text("", encoding="utf-8")
    assert model(f"recorded:{tmp_path / 'c.jsonl'}").name == "recorded:c.jsonl"
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert model(str(tmp_path / "m.gguf")).name == "m"
    for bad in ("nothing", "http://h/v1", "http://h/v1#", ""):
        with pytest.raises((UsageError, ModelError)):
            model(bad)


def test_smollm2_answers(smollm2: Any) -> None:
    got = ask(smollm2, [{"role": "user", "content": "What is the capital of France?"}], max_tokens=30)
    assert "Paris" in got.text
    assert got.finish_reason == "stop"
    assert got.model == "smollm2"


def test_smollm2s_tokenizer_keeps_every_text(smollm2: Any) -> None:
    _, tokenizer = smollm2.load()
    for text in ("Hello world 12345 it's  naïve—test\n\n\tx", "price $15, {s1}", "日本語 Łódź 2024-01-02"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    # digits stand alone, as SmolLM2 was trained; a control token is one token
    assert tokenizer("2024")["input_ids"] == [tokenizer(digit)["input_ids"][0] for digit in "2024"]
    assert tokenizer("<|im_start|>")["input_ids"] == [1]


def test_smollm2_is_not_surprised_by_english(smollm2: Any) -> None:
    """The mean log probability of plain English: right weights give about −3, a wrong permutation far less."""
    peer, tokenizer = smollm2.load()
    text = "The sun rises in the east and sets in the west. Water boils at one hundred degrees."
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    with torch.inference_mode():
        loss = float(peer(ids, labels=ids).loss)
    assert 1.0 < loss < 3.5


def test_files_that_are_not_gguf(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    for content, words in [
        (b"", "cannot be read"),
        (b"nope", "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "header announces"),
        (head, "not a complete GGUF"),
        (head + struct.pack("<Q", 2**50), "not a complete GGUF"),
        (head + struct.pack("<Q", 1) + b"a" + struct.pack("<I", 99), "not a complete GGUF"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 1) + b"t" + struct.pack("<I", 99),
            "not a complete",
        ),
    ]:
        path.write_bytes(content)
        with pytest.raises(ModelError, match=words):
            GgufFile(path)
    with pytest.raises(ModelError, match="cannot be read"):
        GgufFile(tmp_path / "none.gguf")


def write_gguf(path: Path, architecture: str, tensor_bytes: int = 8) -> Path:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    settings = [
        text("general.architecture") + struct.pack("<I", 8) + text(architecture),
        text("numbers") + struct.pack("<IIQ3h", 9, 3, 3, -1, 0, 1),
        text("nested") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b"),
        text("flag") + struct.pack("<I?", 7, True),
    ]
    tensors = text("t") + struct.pack("<IQIQ", 1, 2, 0, 0)
    body = b"GGUF" + struct.pack("<IQQ", 3, 1, len(settings)) + b"".join(settings) + tensors
    body += b"\0" * (-len(body) % 32)
    path.write_bytes(body + struct.pack("<2f", 1.5, -2.0)[:tensor_bytes])
    return path


def test_a_small_gguf_file(tmp_path: Path) -> None:
    file = GgufFile(write_gguf(tmp_path / "a.gguf", "bert"))
    assert file.settings == {"general.architecture": "bert", "numbers": [-1, 0, 1], "nested": ["a", "b"], "flag": True}
    assert file.tensor("t").tolist() == [1.5, -2.0]
    with pytest.raises(ModelError, match="only Llama models"):
        load_gguf(tmp_path / "a.gguf")
    with pytest.raises(ModelError, match="beyond the end"):
        GgufFile(write_gguf(tmp_path / "b.gguf", "bert", 4)).tensor("t")


def test_requests_with_the_same_content_have_the_same_digest() -> None:
    one = Request(({"role": "user", "content": "a"},), temperature=0.5)
    same = Request(({"content": "a", "role": "user"},), temperature=0.5)
    assert one.digest == same.digest
    assert one.digest != Request(one.messages).digest


def test_two_threads_that_load_models_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While transformers loads, `tie_weights` does nothing in the whole process; two at once would leave it so."""
    import transformers

    shape = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    transformers.LlamaForCausalLM(shape).save_pretrained(tmp_path)
    load, inside = transformers.AutoModelForCausalLM.from_pretrained, threading.Semaphore(1)

    def watched(*args: Any, **options: Any) -> Any:
        assert inside.acquire(blocking=False), "two loads overlap"
        try:
            return load(*args, **options)
        finally:
            inside.release()

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", watched)
    with ThreadPoolExecutor(4) as pool:
        models = list(pool.map(lambda _: load_model(tmp_path), range(8)))
    assert all(model.lm_head.weight is model.model.embed_tokens.weight for model in models)
    tied = transformers.LlamaForCausalLM(shape)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
