"""Recording real exchanges from a server, and replaying them without it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from agents_chat_server import chat, chat_server, event, reply, stream

from agent_forge.agents import tool
from agent_forge.errors import ModelError
from agent_forge.inference import (
    Completion,
    MissingRecording,
    ModelClient,
    OpenAICompatible,
    Recorded,
    Recording,
    use_recorder,
)
from agent_forge.traces import Recorder, Store

HELLO = [{"role": "user", "content": "hello"}]


@tool
def search(query: str) -> str:
    """Finds."""
    return query


def ask(client: Any, content: str = "hello", **options: Any) -> Completion:
    done: Completion = asyncio.run(client.complete([{"role": "user", "content": content}], **options))
    return done


def read(client: Any, **options: Any) -> tuple[list[str], Completion]:
    async def main() -> tuple[list[str], Completion]:
        answer = client.stream(HELLO, **options)
        return [piece async for piece in answer], answer.completion

    return asyncio.run(main())


def test_a_recording_replays_what_the_server_said(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "cassette.jsonl"
    call = {"id": "a", "function": {"name": "search", "arguments": '{"query": "x"}'}}
    script = [reply(chat("whole", tool_calls=[call])), stream(event({"content": "a"}), event({"content": "b"}, "stop"))]
    with chat_server(*script) as server:
        recording = Recording(OpenAICompatible(server.url, "m"), path)
        assert isinstance(recording, ModelClient)
        first = ask(recording, tools=[search], temperature=0.0)
        pieces, second = read(recording, stop=["END"], seed=3, max_tokens=5)
    replay = Recorded(path)
    assert isinstance(replay, ModelClient)
    assert replay.name == "served-model"
    assert ask(replay, temperature=0.0, tools=[search]) == first
    assert read(replay, max_tokens=5, seed=3, stop=["END"]) == (pieces, second) == (["a", "b"], second)
    assert ask(replay, stop=["END"], seed=3, max_tokens=5) == second
    assert read(replay, tools=[search], temperature=0.0) == (["whole"], first)
    assert replay.requests == 4
    row = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    assert row["request"]["messages"] == HELLO
    assert "api" not in path.read_text(encoding="utf-8").lower()


def test_a_missing_recording_is_an_error_that_names_the_request(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    with chat_server(reply(chat("x"))) as server:
        ask(Recording(OpenAICompatible(server.url, "m"), path))
    replay = Recorded(path)
    with pytest.raises(
        MissingRecording, match=r"no recording of the request [0-9a-f]{12} \(1 messages, the last: 'bye'\)"
    ):
        ask(replay, "bye")
    with pytest.raises(MissingRecording, match=r"xx…'"):
        ask(replay, "x" * 200)
    with pytest.raises(MissingRecording):
        ask(replay, temperature=0.1)
    with pytest.raises(MissingRecording):
        read(replay, seed=1)
    with pytest.raises(MissingRecording, match="0 messages"):
        asyncio.run(replay.complete([]))


def test_repeated_requests_replay_in_order_and_the_last_stays(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    with chat_server(reply(chat("one")), reply(chat("two"))) as server:
        recording = Recording(OpenAICompatible(server.url, "m"), path)
        ask(recording)
        ask(recording)
    replay = Recorded(path)
    assert [ask(replay).text for _ in range(4)] == ["one", "two", "two", "two"]


def test_token_ids_survive(tmp_path: Path) -> None:
    class Local:
        name = "local"

        async def complete(self, messages: Any, **options: Any) -> Completion:
            return Completion("x", "local", "stop", prompt_ids=(1, 2), output_ids=(3,), logprobs=(-0.5,))

        def stream(self, messages: Any, **options: Any) -> Any:
            raise ModelError("not asked for")

    ask(Recording(Local(), tmp_path / "c.jsonl"))
    got = ask(Recorded(tmp_path / "c.jsonl"))
    assert (got.prompt_ids, got.output_ids, got.logprobs) == ((1, 2), (3,), (-0.5,))


def test_one_span_a_call(tmp_path: Path) -> None:
    store = Store.open(":memory:")
    recorder = Recorder(store)
    with chat_server(reply(chat("x"))) as server, use_recorder(recorder):
        recording = Recording(OpenAICompatible(server.url, "m"), tmp_path / "c.jsonl")
        assert "Recording(OpenAICompatible(" in repr(recording)
        ask(recording)
        ask(Recorded(tmp_path / "c.jsonl"))
    recorder.flush()
    spans = [span for row in store.search() for span in store.trace(row.trace_id)]
    assert sorted(span.provider or "" for span in spans) == ["openai", "recorded"]
    recorder.close()


def test_an_abandoned_stream_is_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    with chat_server(stream(event({"content": "a"}), event({"content": "b"}, "stop"))) as server:

        async def main() -> None:
            answer = Recording(OpenAICompatible(server.url, "m"), path).stream(HELLO)
            async for _ in answer:
                break
            await answer.aclose()

        asyncio.run(main())
    assert not path.exists()


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"digest": "x", "completion": {"nope": 1}}', '{"digest": 1}'])
def test_files_that_are_not_recordings(tmp_path: Path, line: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(f"\n{line}\n", encoding="utf-8")
    with pytest.raises(ModelError, match="line 1: not a recorded exchange"):
        Recorded(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        Recorded(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("", encoding="utf-8")
    assert repr(Recorded(tmp_path / "empty.jsonl")).startswith("Recorded(")
