"""Agent Lightning by protocol: its names on spans as they are recorded, and what its clients send."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agent_forge.traces import Recorder, Span, Store
from agent_forge.traces.lightning import agent_lightning, step_rewards
from agent_forge.traces.otlp import read_request, write_request
from agent_forge.traces.scores import add_score

ROLLOUT, ATTEMPT = "agentlightning.rollout_id", "agentlightning.attempt_id"
SEQUENCE = "agentlightning.span_sequence_id"
VALUE = "agentlightning.reward.0.value"


def recorded(folder: Path, **root: Any) -> list[Span]:
    """An agent that calls a model twice, with a reward after each call, from a store on disk."""
    with Recorder(folder) as recorder:
        with recorder.span("solve", "agent", agent="qa", inputs={"request": "otters?"}, **root) as outer:
            for number in (1, 2):
                with recorder.span("chat m", "model", model="m", inputs={"messages": []}) as call:
                    call.set(prompt_ids=[1, 2], output_ids=[3, number], logprobs=[-0.5, -0.25])
                recorder.reward(number / 4, call, name="checked")
        recorder.flush()
        return list(recorder.store.trace(outer.trace_id))


def test_spans_carry_the_names_as_they_are_recorded(tmp_path: Path) -> None:
    spans = recorded(tmp_path)
    trace = spans[0].trace_id
    assert [(span.attributes[ROLLOUT], span.attributes[ATTEMPT]) for span in spans] == [
        (f"ro-{trace}", f"at-{trace}-1")
    ] * 5
    order = [span.attributes[SEQUENCE] for span in sorted(spans, key=lambda span: span.start_ns)]
    assert order == sorted(set(order))  # as they began, each once
    rewards = [span for span in spans if span.kind == "reward"]
    assert [span.attributes[VALUE] for span in rewards] == [span.reward for span in rewards] == [0.25, 0.5]
    assert {span.attributes["agentlightning.reward.0.name"] for span in rewards} == {"checked"}
    assert not any(VALUE in span.attributes for span in spans if span.kind != "reward")
    with Store.open(tmp_path) as store:
        score = add_score(store, spans, 0.75, by="ann")
        assert (score.attributes[ROLLOUT], score.attributes[VALUE]) == (f"ro-{trace}", 0.75)


def test_a_rollout_with_an_id_of_its_own(tmp_path: Path) -> None:
    ids = {ROLLOUT: "ro-7", ATTEMPT: "at-2"}
    spans = recorded(tmp_path, attributes={**ids, "colour": "red"})
    assert {(span.attributes[ROLLOUT], span.attributes[ATTEMPT]) for span in spans} == {("ro-7", "at-2")}
    assert [span.attributes.get("colour") for span in spans].count("red") == 1
    lines = list(agent_lightning([spans]))
    assert {(line["rollout_id"], line["attempt_id"]) for line in lines} == {("ro-7", "at-2")}


def test_a_mask_leaves_the_ids_alone(tmp_path: Path) -> None:
    """Of 32 random digits some look like a telephone number or a card."""
    with Recorder.from_settings(tmp_path, mask="pii") as recorder:
        above = Span("4111111111111111" * 2, "1" * 16, "remote")
        with recorder.span("call +1 415 555 2671", parent=above):
            pass
        recorder.flush()
        [span] = recorder.store.search()
    assert "555" not in span.name
    assert span.attributes[ROLLOUT] == f"ro-{above.trace_id}"


def test_the_wire_has_the_names_and_reading_it_back_loses_nothing(tmp_path: Path) -> None:
    spans = recorded(tmp_path)
    spans[0].reward = 1.0  # on the root it must not look like a reward of Agent Lightning: that hides what is inside
    request = write_request(spans)
    sent = request["resourceSpans"][0]["scopeSpans"][0]["spans"]
    names = [{pair["key"] for pair in span["attributes"]} for span in sent]
    assert all({ROLLOUT, ATTEMPT, SEQUENCE} <= each for each in names)
    assert [VALUE in each for each in names].count(True) == 2
    assert VALUE not in names[0]
    calls = [each for each, span in zip(names, spans, strict=True) if span.kind == "model"]
    assert all({"prompt_token_ids", "response_token_ids"} <= each for each in calls)
    again = read_request(request)
    for one, other in zip(spans, again, strict=True):
        assert (one.kind, one.prompt_ids, one.output_ids, one.logprobs, one.reward, one.session) == (
            other.kind, other.prompt_ids, other.output_ids, other.logprobs, other.reward, other.session,
        )  # fmt: skip
    old = {"key": "agent_forge.prompt_token_ids", "value": {"arrayValue": {"values": [{"intValue": "5"}]}}}
    sent[0]["attributes"] = [old]  # as we wrote it before
    assert read_request(request)[0].prompt_ids == [5]


def foreign(trace: str, place: int, name: str, start: int, end: int, **attributes: Any) -> dict[str, Any]:
    """A span as a client of Agent Lightning sends it."""
    kinds = {str: "stringValue", float: "doubleValue", int: "intValue"}
    pairs = [{"key": key, "value": {kinds[type(value)]: value}} for key, value in attributes.items()]
    ids = {"traceId": trace, "spanId": f"{place:016x}", "parentSpanId": f"{1:016x}" if place > 1 else ""}
    return {**ids, "name": name, "kind": 1, "startTimeUnixNano": str(start), "endTimeUnixNano": str(end),
            "attributes": pairs}  # fmt: skip


def client_request(trace: str = "ab" * 16) -> dict[str, Any]:
    """A rollout with three calls: rewards after the first and at the end, emitted and not linked."""
    call = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    reward = {"agentlightning.reward.0.name": "primary"}
    spans = [
        foreign(trace, 1, "agent", 0, 100),
        foreign(trace, 2, "openai.chat.completion", 10, 20, **call),
        foreign(trace, 3, "agentlightning.annotation", 21, 21, **reward, **{VALUE: 0.5}),
        foreign(trace, 4, "openai.chat.completion", 30, 40, **call),
        foreign(trace, 5, "openai.chat.completion", 50, 60, **call),
        foreign(trace, 6, "agentlightning.annotation", 90, 90, **reward, **{VALUE: 1.0}),
    ]
    ids = [{"key": ROLLOUT, "value": {"stringValue": "ro-9"}}, {"key": ATTEMPT, "value": {"stringValue": "at-3"}}]
    return {"resourceSpans": [{"resource": {"attributes": ids}, "scopeSpans": [{"spans": spans}]}]}


def test_what_a_client_sends_has_its_rollout_and_a_reward_for_each_step() -> None:
    spans = read_request(client_request())
    assert [span.kind for span in spans] == ["other", "model", "reward", "model", "model", "reward"]
    assert {span.session for span in spans} == {"ro-9"}
    assert step_rewards(spans) == {f"{2:016x}": 0.5, f"{5:016x}": 1.0}  # the latest call that had ended
    lines = list(agent_lightning([spans]))
    assert {(line["rollout_id"], line["attempt_id"]) for line in lines} == {("ro-9", "at-3")}
    told = [(line["start_time"], line["attributes"][VALUE]) for line in lines if VALUE in line["attributes"]]
    assert told == [(21e-9, 0.5), (90e-9, 1.0)]  # as they were, and none more


def test_rewards_of_steps_that_say_what_they_judge(tmp_path: Path) -> None:
    spans = recorded(tmp_path)
    calls = [span.span_id for span in spans if span.kind == "model"]
    assert step_rewards(spans) == dict(zip(calls, (0.25, 0.5), strict=True))
    spans[1].reward = 0.9  # its own comes first
    assert step_rewards(spans)[spans[1].span_id] == 0.9


SCRIPT = """
import asyncio, json, sys
from agentlightning.adapter import TracerTraceToTriplet
from agentlightning.utils.otlp import spans_from_proto
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

async def issue(wanted):
    return list(range(len(wanted)))

request = ExportTraceServiceRequest.FromString(open(sys.argv[1], "rb").read())
spans = asyncio.run(spans_from_proto(request, issue))
print(json.dumps([[s.rollout_id, s.attempt_id, s.sequence_id, s.attributes.get("agentlightning.reward.0.value")]
                  for s in spans]))
"""


def test_the_real_package_reads_our_wire(tmp_path: Path) -> None:
    python = os.environ.get("AGENT_FORGE_AGL_PYTHON")
    if not python or not Path(python).exists():
        pytest.skip("agentlightning 0.3 is not here: set AGENT_FORGE_AGL_PYTHON to an interpreter that has it")
    import json

    from agent_forge.traces.otlp_protobuf import write_protobuf

    spans = recorded(tmp_path)
    (tmp_path / "request").write_bytes(write_protobuf(spans))
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    words = [python, "-c", SCRIPT, str(tmp_path / "request")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    expected = [[*(span.attributes[name] for name in (ROLLOUT, ATTEMPT, SEQUENCE)), span.attributes.get(VALUE)]
                for span in spans]  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1]) == expected
