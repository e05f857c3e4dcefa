"""The fallback chain: three tries, never the same one twice, then a person; and its trace."""

from __future__ import annotations

import asyncio

import pytest

from agent_forge.agents.assessment import Assessment
from agent_forge.agents.fallback import Declined, Strategy, carry_out, with_fallback
from agent_forge.errors import UsageError
from agent_forge.traces.recorder import Recorder
from agent_forge.traces.reward import grader, share_passed
from agent_forge.traces.store import Store
from agent_forge.traces.trust import TrustTable

SAFE = Assessment("medium", "low", "low")


def answering(name, answer, log=None):
    async def work(task, before):
        if log is not None:
            log.append((name, len(before)))
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Strategy(name, work, agent=name, model="m")


def is_even(result):
    return share_passed(int(result % 2 == 0), int(result % 2 == 1))


async def helpful(task, attempts):
    return f"done by hand after {len(attempts)}"


def chain(strategies, **options):
    return asyncio.run(with_fallback("task", strategies, **options))


def test_the_first_verified_result_is_taken():
    log = []
    outcome = chain([answering("a", 3, log), answering("b", 4, log), answering("c", 6, log)], checks=[is_even])
    assert (outcome.state, outcome.result) == ("done", 4)
    assert log == [("a", 0), ("b", 1)]  # each knows what was tried before
    assert [attempt.reward for attempt in outcome.attempts] == [0.0, 1.0]


def test_after_three_tries_a_person():
    outcome = chain([answering(name, ValueError(name)) for name in "abcd"], person=helpful)
    assert (outcome.state, outcome.result) == ("person", "done by hand after 3")
    assert [attempt.error for attempt in outcome.attempts] == ["ValueError: a", "ValueError: b", "ValueError: c"]


def test_without_a_person_it_stays_unresolved_and_a_person_may_decline():
    async def no(task, attempts):
        return Declined("not today")

    assert chain([answering("a", 1)], checks=[is_even]).state == "unresolved"
    outcome = chain([answering("a", 1)], checks=[is_even], person=no)
    assert (outcome.state, outcome.result.reason) == ("declined", "not today")


def test_a_result_that_could_not_be_verified_is_not_accepted():
    outcome = chain([answering("a", 1), answering("b", 2)], checks=[lambda result: grader(None)])
    assert outcome.state == "unresolved"
    assert [attempt.reward for attempt in outcome.attempts] == [None, None]


def test_without_checks_a_result_is_taken_as_it_is_and_has_no_reward():
    outcome = chain([answering("a", "Process crashed and was aborted")])
    assert outcome.state == "done"
    assert outcome.attempts[0].reward is None


def test_the_strategy_must_change():
    with pytest.raises(UsageError, match="differ"):
        chain([answering("a", 1), answering("a", 2)])
    with pytest.raises(UsageError, match="needs strategies"):
        chain([])


def test_tries_are_spans_that_link_back_and_feed_trust(tmp_path):
    with Recorder(Store.open(tmp_path)) as recorder:
        with recorder.span("work", kind="task") as outer:

            async def inside():
                return await with_fallback(
                    {"task": 1}, [answering("a", 3), answering("b", TimeoutError("slow")), answering("c", 4)],
                    checks=[is_even], recorder=recorder, category="arithmetic", assessment=SAFE,
                )  # fmt: skip

            asyncio.run(inside())
        recorder.flush()
        spans = {span.name: span for span in recorder.store.trace(outer.trace_id)}
    first, second, third = spans["try a"], spans["try b"], spans["try c"]
    assert [span.parent_id for span in (first, second, third)] == [outer.span_id] * 3
    assert [len(span.links) for span in (first, second, third)] == [0, 1, 2]
    assert third.links == [(outer.trace_id, first.span_id), (outer.trace_id, second.span_id)]
    assert [(span.status, span.reward) for span in (first, second, third)] == [
        ("error", 0.0), ("error", None), ("ok", 1.0),
    ]  # fmt: skip
    assert second.error == "TimeoutError: slow"
    assert third.assessment == SAFE.to_json()
    assert third.category == "arithmetic"
    table = TrustTable()
    assert table.observe_spans([first, second, third]) == 2


# -- the whole protocol ------------------------------------------------------------------------------------------------


def protocol(assessment, log, *, inline=None, delegates=None, **options):
    return asyncio.run(
        carry_out(
            "task",
            assessment,
            inline=inline or answering("inline", 2, log),
            delegates=delegates if delegates is not None else [answering("explore", 4, log)],
            **options,
        )
    )


def test_simple_work_stays_inline_and_the_rest_is_delegated():
    log = []
    assert protocol(Assessment("low", "low", "low"), log).result == 2
    assert protocol(SAFE, log).result == 4
    assert log == [("inline", 0), ("explore", 0)]


def test_inline_is_the_last_resort_of_delegated_work():
    log = []
    broken = [answering(name, ValueError(name), log) for name in ("x", "y", "z")]
    outcome = protocol(SAFE, log, delegates=broken)
    assert (outcome.state, outcome.result) == ("done", 2)
    assert log == [("x", 0), ("y", 1), ("inline", 2)]
    assert outcome.decision.route == "delegate"


def test_critical_work_begins_with_a_checkpoint_or_not_at_all():
    log = []

    async def checkpoint(task):
        log.append("checkpoint")

    critical = Assessment("high", "high", "low")
    assert protocol(critical, log).state == "unresolved"
    assert log == []
    assert protocol(critical, log, checkpoint=checkpoint).result == 4
    assert log == ["checkpoint", ("explore", 0)]


def test_what_cannot_be_undone_and_is_unclear_needs_a_person_first():
    log = []
    dangerous = Assessment("high", "high", "high")

    async def checkpoint(task):
        log.append("checkpoint")

    async def yes(task, attempts):
        log.append("asked")

    async def no(task, attempts):
        return Declined()

    assert protocol(dangerous, log, checkpoint=checkpoint).state == "unresolved"
    assert protocol(dangerous, log, checkpoint=checkpoint, person=no).state == "declined"
    assert log == []
    assert protocol(dangerous, log, checkpoint=checkpoint, person=yes).state == "done"
    assert log == ["asked", "checkpoint", ("explore", 0)]
