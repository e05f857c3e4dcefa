"""The SubagentStop hook: real payload and transcript shape in, one span line out, and never a failed session."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_forge.traces import transcript
from agent_forge.traces.span import Span

FIXTURES = Path(__file__).parent / "fixtures"
TRANSCRIPTS = FIXTURES / "claude_project"
SESSION = "5f3c9a52-1d7e-4c55-9a54-0c6f0b7b1f11"
AGENT = "a4922348ac368160a"


@pytest.fixture
def payload(tmp_path):
    text = (FIXTURES / "claude_subagent_stop.json").read_text()
    found = json.loads(text.replace("{transcripts}", TRANSCRIPTS.as_posix()).replace("{project}", tmp_path.as_posix()))
    assert found["agent_transcript_path"].endswith(f"agent-{AGENT}.jsonl")
    return found


def call_hook(stdin, cwd, *arguments, env=None):
    command = [sys.executable, "-I", "-S", transcript.__file__, *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "CLAUDE_PROJECT_DIR"}
    return subprocess.run(
        command, input=stdin, cwd=cwd, capture_output=True, timeout=60, check=False, env={**environment, **(env or {})}
    )


def logged(folder):
    path = folder / ".claude" / transcript.LOG
    return [Span.from_dict(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


# -- what the transcript tells ---------------------------------------------------------------------------------------


def test_the_span_of_a_real_payload(payload):
    span = Span.from_dict(transcript.span_of(payload))
    assert (span.kind, span.agent, span.session) == ("agent", "Explore", SESSION)
    assert span.model == "claude-haiku-4-5-20251001"
    assert span.duration_s == pytest.approx(10.75)
    assert span.start_ns == 1770069310 * 10**9
    # three answers of the model, each counted once though the first stands on four lines
    assert span.output_tokens == 88 + 30 + 61
    assert span.input_tokens == (3 + 1200 + 8000) + (4 + 300 + 9200) + (5 + 120 + 9500)
    assert span.attributes["gen_ai.usage.cache_read.input_tokens"] == 8000 + 9200 + 9500
    assert span.attributes["agent_forge.tools"] == ["Grep", "Read", "Read"]
    assert span.attributes["agent_forge.tool_errors"] == 1
    assert span.attributes["agent_forge.tool_seconds"] == pytest.approx(1.0 + 0.5 + 0.25)  # results came out of order
    assert span.inputs.startswith("Find where the checkout total is rounded.")
    assert span.outputs.endswith("one decimal instead of two.")
    assert span.category == "codebase_search"
    assert span.assessment == {"complexity": "medium", "criticality": "low", "uncertainty": "low"}
    assert (span.status, span.reward, span.cost) == ("unset", None, None)  # it stopped: nobody has verified anything


def test_a_crash_in_words_is_no_reward_and_no_status(payload):
    payload["last_assistant_message"] = "Process crashed and was aborted"
    span = transcript.span_of(payload)
    assert span["outputs"] == "Process crashed and was aborted"
    assert "reward" not in span
    assert span["status"] == "unset"


def test_an_api_error_is_a_failed_delegation(payload, tmp_path):
    path = tmp_path / "agent.jsonl"
    lines = Path(payload["agent_transcript_path"]).read_text()
    last = {"type": "assistant", "timestamp": "2026-02-02T21:55:30.000Z", "isApiErrorMessage": True,
            "message": {"id": "x", "role": "assistant", "model": "<synthetic>", "usage": {"output_tokens": 0},
                        "content": [{"type": "text", "text": "API Error: 529 overloaded_error"}]}}  # fmt: skip
    path.write_text(lines + json.dumps(last) + "\n")
    payload["agent_transcript_path"] = str(path)
    span = transcript.span_of(payload)
    assert span["status"] == "error"
    assert span["error"] == "API Error: 529 overloaded_error"
    assert span["model"] == "claude-haiku-4-5-20251001"
    assert span["output_tokens"] == 179


def test_older_payloads_are_completed_from_the_files(payload):
    for name in ("agent_type", "agent_transcript_path", "last_assistant_message"):
        del payload[name]
    span = transcript.span_of(payload)
    assert span["agent"] == "Explore"
    assert span["outputs"].startswith("The total is rounded")


def test_what_was_not_measured_is_missing_not_zero(payload):
    payload["agent_transcript_path"] = "/nowhere/agent-x.jsonl"
    span = transcript.span_of(payload)
    assert span["agent"] == "Explore"
    assert not {"model", "input_tokens", "output_tokens", "category"} & set(span)
    assert not {"agent_forge.tools", "agent_forge.tool_calls", "agent_forge.tool_errors"} & set(span["attributes"])


def test_events_of_subagents_that_never_ran_are_not_recorded(payload):
    payload.update(agent_type="", agent_transcript_path="/nowhere/agent-x.jsonl")
    assert transcript.span_of(payload) is None


def test_damaged_lines_and_unknown_types_are_survived(payload, tmp_path):
    path = tmp_path / "agent.jsonl"
    good = Path(payload["agent_transcript_path"]).read_text().splitlines()
    path.write_text(
        "\n".join(['{"type": "user", "mess', "[]", *good, '{"type":"assistant","message":{"content":[{}]}}'])
    )
    payload["agent_transcript_path"] = str(path)
    span = transcript.span_of(payload)
    assert span["attributes"]["agent_forge.damaged_lines"] == 1
    assert span["output_tokens"] == 179


def test_of_a_huge_transcript_only_both_ends_are_read_and_counts_are_left_out(payload, tmp_path, monkeypatch):
    monkeypatch.setattr(transcript, "WHOLE", 40_000)
    good = Path(payload["agent_transcript_path"]).read_text().splitlines()
    path = tmp_path / "agent.jsonl"
    path.write_text("\n".join([good[0], *[good[4]] * 200, good[-1]]) + "\n")
    payload["agent_transcript_path"] = str(path)
    span = transcript.span_of(payload)
    assert span["attributes"]["agent_forge.partly_read"] is True
    assert span["model"] == "claude-haiku-4-5-20251001"
    assert span["end_ns"] - span["start_ns"] == 10_750_000_000
    assert not {"input_tokens", "output_tokens"} & set(span)


def test_a_tool_without_a_result_has_no_measured_seconds(payload, tmp_path):
    path = tmp_path / "agent.jsonl"
    path.write_text("".join(Path(payload["agent_transcript_path"]).read_text().splitlines(keepends=True)[:6]))
    payload["agent_transcript_path"] = str(path)
    span = transcript.span_of(payload)
    assert span["attributes"]["agent_forge.tool_calls"] == 2
    assert "agent_forge.tool_seconds" not in span["attributes"]


@pytest.mark.parametrize(
    "secret",
    ["sk-ant-" + "api03-" * 4, "ghp_" + "0a" * 18, "AKIA" + "B" * 16, "password=hunter2hunter2",
     ".".join(["eyJ" + "a" * 20] * 3)],
)  # fmt: skip
def test_credentials_are_not_kept(payload, secret):
    payload["last_assistant_message"] = f"I used {secret} to log in."
    assert secret not in json.dumps(transcript.span_of(payload))
    assert "[secret]" in transcript.span_of(payload)["outputs"]


def test_times_need_a_zone():
    assert transcript.time_ns("2026-01-01T01:00:00+01:00") == transcript.time_ns("2026-01-01T00:00:00Z")
    assert transcript.time_ns("2026-01-01T01:00:00") is None
    assert transcript.time_ns(None) is None


# -- as a program ----------------------------------------------------------------------------------------------------


def test_the_hook_appends_one_line_and_says_nothing(payload, tmp_path):
    done = call_hook(json.dumps(payload).encode(), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    (span,) = logged(tmp_path)
    assert span.agent == "Explore"
    assert span.model == "claude-haiku-4-5-20251001"


def test_the_project_folder_wins_over_the_working_folder(payload, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    call_hook(json.dumps(payload).encode(), tmp_path, env={"CLAUDE_PROJECT_DIR": str(project)})
    assert len(logged(project)) == 1
    assert logged(tmp_path) == []


def test_a_second_stop_of_the_same_subagent_keeps_its_id(payload, tmp_path):
    for again in (False, True):
        payload["stop_hook_active"] = again
        call_hook(json.dumps(payload).encode(), tmp_path)
    first, second = logged(tmp_path)
    assert first.span_id == second.span_id
    assert second.attributes["agent_forge.stopped_again"] is True


def test_no_text_keeps_the_figures_and_drops_the_words(payload, tmp_path):
    call_hook(json.dumps(payload).encode(), tmp_path, "--no-text")
    (span,) = logged(tmp_path)
    assert (span.inputs, span.outputs) == (None, None)
    assert span.category == "codebase_search"


@pytest.mark.parametrize("stdin", [b"", b"not json", b"[]", b"\xff\xfe", b'{"agent_transcript_path": 7}', b"null"])
def test_nonsense_never_fails_the_session(stdin, tmp_path):
    done = call_hook(stdin, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert logged(tmp_path) == []


def test_errors_are_noted_in_a_file(payload, tmp_path):
    (tmp_path / ".claude" / transcript.LOG).mkdir(parents=True)  # a folder where the log should be
    done = call_hook(json.dumps(payload).encode(), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert "IsADirectoryError" in (tmp_path / ".claude" / transcript.ERRORS).read_text()


def test_a_folder_that_cannot_be_written_is_survived(payload, tmp_path):
    (tmp_path / ".claude").write_text("a file, not a folder")
    assert call_hook(json.dumps(payload).encode(), tmp_path).returncode == 0


def test_the_hook_imports_nothing_of_the_package():
    """What keeps it under 150 ms: benchmarks/delegation_hook.py measures the time."""
    code = f"import sys; exec(open({transcript.__file__!r}).read(), {{'__name__': 'hook'}}); print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    heavy = {"agent_forge", "typing", "pathlib", "dataclasses", "sqlite3", "click", "asyncio", "logging", "inspect"}
    assert not heavy & set(done.stdout.split())


# -- the lock ----------------------------------------------------------------------------------------------------------


def _append_many(path, writer):
    for number in range(50):
        transcript.append_line(path, json.dumps({"writer": writer, "number": number, "filler": "x" * 5_000}), wait_s=60)


def test_many_processes_append_whole_lines(tmp_path):
    path = str(tmp_path / ".claude" / "log.jsonl")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_append_many, args=(path, writer)) for writer in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert sorted((line["writer"], line["number"]) for line in lines) == [(w, n) for w in range(4) for n in range(50)]


def test_a_torn_last_line_does_not_take_ours_with_it(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"torn": ')
    transcript.append_line(str(path), "{}")
    assert path.read_text() == '{"torn": \n{}\n'


def test_a_lock_that_stays_taken_gives_up(tmp_path):
    fcntl = pytest.importorskip("fcntl", reason="no POSIX locks here")
    path = tmp_path / "log.jsonl"
    with path.open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="lock"):
            transcript.append_line(str(path), "{}", wait_s=0.02)


def test_main_in_process(payload, tmp_path, monkeypatch):
    monkeypatch.delenv("CLAUDE_PROJECT_DIR", raising=False)
    monkeypatch.setattr("sys.stdin", _Stdin(json.dumps(payload)))
    assert transcript.main([]) == 0
    assert len(logged(tmp_path)) == 1
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", _Stdin("{"))
    assert transcript.main([]) == 0
    assert "JSONDecodeError" in (tmp_path / ".claude" / transcript.ERRORS).read_text()


class _Stdin:
    def __init__(self, text):
        self.text = text

    def read(self):
        return self.text
