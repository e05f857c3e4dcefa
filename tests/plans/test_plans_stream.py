"""Plans read while they are written."""

from __future__ import annotations

import pytest

from agent_forge.plans import PlanInvalid, PlanLimits, PlanStream, parse_plan

LINES = (
    "<think>hm\n</think>\n<plan>\nTask 1: a | Dependencies: none\nT2: b\n- Dependencies: T1\n"
    "Task 3: c | Dependencies: Task 2\n</plan> bye"
)
GRAPH = "<graph>\n<node id='a'>x > y</node>\n<node id='b' depends='a' goal='1 > 2'/>\n</graph>"


def when_complete(text: str) -> dict[str, str]:
    """For each task the text that had been written when it came out, feeding one character at a time."""
    stream = PlanStream()
    seen: dict[str, str] = {}
    for index, character in enumerate(text):
        for task in stream.feed(character):
            seen[task.id] = text[: index + 1]
    assert stream.finish() == parse_plan(text)
    return seen


def test_each_task_comes_out_the_moment_it_is_complete() -> None:
    seen = when_complete(LINES)
    assert seen["task_1"].endswith("Task 1: a | Dependencies: none\n")
    assert seen["task_2"].endswith("Task 3: c | Dependencies: Task 2\n")  # it could have gone on until then
    assert seen["task_3"].endswith("Task 3: c | Dependencies: Task 2\n")
    seen = when_complete(GRAPH)
    assert seen["a"].endswith("</node>")
    assert seen["b"].endswith("/>")


@pytest.mark.parametrize("text", [LINES, GRAPH])
def test_a_stream_that_breaks_off_is_a_fault_wherever_it_breaks(text: str) -> None:
    end = text.index("</plan>") if "</plan>" in text else text.index("</graph>")
    for cut in range(1, end):
        stream = PlanStream()
        stream.feed(text[:cut])
        with pytest.raises(PlanInvalid) as refused:
            stream.finish()
        assert set(refused.value.codes) <= {"malformed", "unknown_dependency", "empty_plan"}


def test_a_whole_text_may_lack_its_closing_tag_and_a_stream_may_not() -> None:
    text = "<plan>\nTask 1: a | Dependencies: none\nTask 2: b | Dependencies: Task 1"
    assert len(parse_plan(text)) == 2
    stream = PlanStream()
    assert [task.id for task in stream.feed(text)] == ["task_1"]
    with pytest.raises(PlanInvalid, match="stops before </plan>"):
        stream.finish()


def test_faults_show_before_the_end() -> None:
    stream = PlanStream()
    assert stream.feed("<plan>\nTask 1: a | Dependencies: whatever comes\n") == []
    assert [fault.code for fault in stream.faults] == ["malformed"]
    assert [task.id for task in stream.feed("Task 2: b | Dependencies: Task 1\n</plan>")] == ["task_2"]
    with pytest.raises(PlanInvalid) as refused:
        stream.finish()
    assert len(refused.value.errors) == 1


def test_after_a_fatal_fault_nothing_more_comes_out() -> None:
    stream = PlanStream()
    assert len(stream.feed("<graph><node id='a'/><!DOCTYPE x>")) == 1
    assert stream.feed("<node id='b'/></graph>") == []
    with pytest.raises(PlanInvalid, match="declarations"):
        stream.finish()


def test_a_stream_stops_at_its_limits() -> None:
    stream = PlanStream(limits=PlanLimits(tasks=3))
    given_out = stream.feed("<plan>\n")
    for number in range(10):
        given_out += stream.feed(f"Task {number}: x | Dependencies: none\n")
    assert len(given_out) == 4
    with pytest.raises(PlanInvalid, match="more than 3 tasks"):
        stream.finish()
    stream = PlanStream(limits=PlanLimits(text_bytes=20))
    assert stream.feed("<plan>\nTask 1: a | Dependencies: none\n</plan>") == []
    with pytest.raises(PlanInvalid) as refused:
        stream.finish()
    assert refused.value.codes == ["too_large"]


@pytest.mark.parametrize(
    "text",
    [
        '{"tasks": [{"id": "a", "goal": "</plan>\\n<plan>"}]}',
        "tasks:\n  - id: a\n    goal: <plan>\n",
        "Task 1: a\nTask 2: b",
    ],
)
def test_other_texts_are_read_at_the_end(text: str) -> None:
    stream = PlanStream()
    assert [task for character in text for task in stream.feed(character)] == []
    assert stream.finish() == parse_plan(text)


def test_one_text_holds_one_plan() -> None:
    for text in (LINES + LINES, GRAPH + "\n" + GRAPH, GRAPH + LINES):
        with pytest.raises(PlanInvalid, match="one text holds one plan"):
            parse_plan(text)
    assert len(parse_plan(f"<plan>\n{GRAPH}\n</plan>")) == 2
