"""The state machine: stages, holds, trips, people and faults, on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_arms import DAY_S, Arms, nothing

from agent_forge.errors import StoreError, UsageError
from agent_forge.rollout import Guardrails, Moments, Readings, Rollout, Rollouts, StageReading
from agent_forge.rollout.state import parse_stages


def days(rollouts: Rollouts, arms: Arms, until: int, *, first: int = 0) -> Rollout:
    """Steps once per day, with a day of traffic before each."""
    rollout = rollouts.get("r")
    for day in range(first, until + 1):
        arms.serve(rollout, day * DAY_S)
        rollout = rollouts.step("r", arms, now_s=day * DAY_S)
    return rollout


def test_a_good_candidate_is_promoted_stage_by_stage(rollouts: Rollouts) -> None:
    created = rollouts.create("r", candidate="new", baseline="old", now_s=0)
    assert (created.state, created.stage, created.share) == ("running", 0, 0.1)
    arms = Arms(0.9, 0.9)
    assert days(rollouts, arms, 6).share == 0.1  # enough units, not enough time
    last = rollouts.decisions("r")[-1]
    assert last.action == "hold"
    assert "1.0 of 7 days to go" in last.why
    rollout = days(rollouts, arms, 30, first=7)
    assert (rollout.state, rollout.share) == ("promoted", 1.0)
    promotions = [decision for decision in rollouts.decisions("r") if decision.action == "promote"]
    assert len(promotions) == 2
    for decision in promotions:
        figures = decision.figures["success"]
        assert figures["lower"] > -figures["margin"]
        assert figures["candidate"] == pytest.approx(0.9)
    assert promotions[1].at_s - promotions[0].at_s >= 7 * DAY_S
    assert rollouts.policies()["current"] == "new"
    assert rollouts.create("next", candidate="newer").baseline == "new"


def test_a_worse_candidate_comes_back_and_stays_back(rollouts: Rollouts) -> None:
    rollouts.create("r", candidate="new", baseline="old")
    rollout = days(rollouts, Arms(0.85, 0.9), 10)
    assert (rollout.state, rollout.stage, rollout.share) == ("rolled_back", 0, 0.0)
    last = rollouts.decisions("r")[-1]
    assert last.why.startswith("success is worse")
    assert last.figures["success"]["upper"] < 0
    days(rollouts, Arms(0.99, 0.9), 40, first=11)
    assert rollouts.get("r").state == "rolled_back"
    assert rollouts.decisions("r")[-1] == last
    with pytest.raises(UsageError, match="is rolled back"):
        rollouts.promote("r")


def step_once(readings: Readings, *, now_s: float = 8 * DAY_S, rails: Guardrails | None = None) -> tuple[str, str]:
    """The decision after eight days about readings of the first stage."""
    rollouts = Rollouts(":memory:")
    rollouts.create("r", candidate="new", baseline="old", guardrails=rails)
    rollouts.step("r", nothing, now_s=0)
    rollouts.step("r", lambda rollout, moment: readings, now_s=now_s)
    last = rollouts.decisions("r")[-1]
    return last.action, last.why


def stage(
    success: tuple[int, int] = (1_400, 12_600),
    units: tuple[int, int] = (1_400, 12_600),
    **more: tuple[Moments, Moments],
) -> StageReading:
    moments = (Moments.of_count(0.9 * success[0], success[0]), Moments.of_count(0.9 * success[1], success[1]))
    return StageReading(0, units, {"success": moments, **more})


NOW_S = 8 * DAY_S


@pytest.mark.parametrize(
    ("readings", "why"),
    [
        (Readings(), "there is no data"),
        (Readings((stage(),), NOW_S - 3 * DAY_S), "stale data"),
        (Readings((stage((50, 450), (50, 450)),), NOW_S), "thin data"),
        (Readings((stage((700, 12_600)),), NOW_S), "success is missing: 50% and 100%"),
        (Readings((stage(units=(1_000, 13_000)),), NOW_S), "the arms do not get their shares"),
        (
            Readings((stage(reward=(Moments(), Moments.of_count(9_000, 12_600))),), NOW_S),
            "reward is thin: 0 and 12600",
        ),
        (Readings((stage((400, 3_600), (400, 3_600)),), NOW_S), "success is not yet shown to be within its margin"),
    ],
)
def test_what_is_missing_stale_thin_or_filtered_holds(readings: Readings, why: str) -> None:
    action, said = step_once(readings)
    assert action == "hold"
    assert why in said


def test_enough_of_everything_is_promoted() -> None:
    good = stage(
        reward=(Moments(1_400, 0.7, 14.0), Moments(12_600, 0.7, 126.0)),
        cost=(Moments(1_400, 0.01, 0.01), Moments(12_600, 0.01, 0.1)),
        latency_p95=(Moments.of_count(28, 1_400), Moments.of_count(630, 12_600)),
    )
    assert step_once(Readings((good,), NOW_S))[0] == "promote"


def test_hard_trips_act_at_once_and_compare_with_the_baseline() -> None:
    few = StageReading(0, (15, 135), {})
    unsafe = Readings((few,), 60.0, safety=((1, 15), (0, 135)))
    assert step_once(unsafe, now_s=60.0) == ("rollback", "safety: 1 violations in 15 units, baseline 0 in 135")
    no_worse = Readings((few,), 60.0, safety=((1, 15), (20, 135)))
    assert step_once(no_worse, now_s=60.0)[0] == "hold"
    burst = Readings((few,), 60.0, recent=((12, 15), (13, 135)))
    action, why = step_once(burst, now_s=60.0)
    assert (action, why.startswith("a burst of errors: 12 of 15")) == ("rollback", True)
    both_down = Readings((few,), 60.0, recent=((12, 15), (110, 135)))  # the outage is not the candidate's
    assert step_once(both_down, now_s=60.0)[0] == "hold"


def test_a_soft_trip_needs_several_windows() -> None:
    dear = stage(cost=(Moments(1_400, 0.02, 0.01), Moments(12_600, 0.01, 0.1)))
    rollouts = Rollouts(":memory:")
    rollouts.create("r", candidate="new", baseline="old")

    def source(rollout: Rollout, now_s: float) -> Readings:
        return Readings((dear,), now_s)

    for moment in (0, 10, 20, 3_600):  # three looks in one window are one vote
        assert rollouts.step("r", source, now_s=moment).state == "running"
    assert rollouts.step("r", source, now_s=7_200).state == "rolled_back"
    assert rollouts.decisions("r")[-1].why == "cost is beyond its tolerance in 3 of 3 windows"


def test_people_pause_promote_and_roll_back(rollouts: Rollouts) -> None:
    rollouts.create("r", candidate="new", baseline="old")
    arms = Arms()
    assert rollouts.pause("r").state == "paused"
    assert rollouts.pause("r").state == "paused"
    assert days(rollouts, arms, 10).share == 0.1  # nothing is promoted meanwhile
    assert rollouts.resume("r").state == "running"
    assert rollouts.promote("r").share == 0.5
    assert rollouts.get("r").entered_s is None  # the next step starts the clock of the stage
    assert days(rollouts, arms, 12, first=11).share == 0.5
    assert rollouts.promote("r", "it is Friday").state == "promoted"
    assert rollouts.promote("r").state == "promoted"
    with pytest.raises(UsageError, match="is promoted"):
        rollouts.pause("r")
    assert rollouts.policies()["current"] == "new"
    assert rollouts.rollback("r").share == 0
    assert rollouts.policies()["current"] == "old"
    assert rollouts.policies()["previous"] == "new"
    count = len(rollouts.decisions("r"))
    assert rollouts.rollback("r").state == "rolled_back"
    assert len(rollouts.decisions("r")) == count


def test_a_paused_rollout_and_late_metrics_still_come_back(rollouts: Rollouts) -> None:
    rollouts.create("r", candidate="new", baseline="old")
    rollouts.pause("r")
    assert days(rollouts, Arms(0.5, 0.9), 3).state == "rolled_back"
    rollouts.create("late", candidate="new", baseline="old")
    for _ in range(2):
        rollouts.promote("late")
    assert rollouts.policies()["current"] == "new"
    bad = Readings(
        (StageReading(1, (1_000, 1_000), {"success": (Moments.of_count(700, 1_000), Moments.of_count(900, 1_000))}),),
        0.0,
    )
    assert rollouts.step("late", lambda rollout, now_s: bad, now_s=DAY_S).state == "rolled_back"
    assert rollouts.policies()["current"] == "old"


def test_wrong_calls_change_nothing(rollouts: Rollouts) -> None:
    rollouts.create("r", candidate="new", baseline="old")
    for call in (
        lambda: rollouts.create("r", candidate="x"),
        lambda: rollouts.create("a b/c", candidate="x"),
        lambda: rollouts.create("s", candidate="x", baseline="x"),
        lambda: rollouts.create("s", candidate="x", stages=(1.0,)),
        lambda: rollouts.create("s", candidate="x", stages=(0.5, 0.1, 1.0)),
        lambda: rollouts.step("other", nothing),
        lambda: rollouts.rollback("other"),
        lambda: Guardrails(watch=("success", "speed")),
        lambda: Guardrails(watch=("reward",), primary="reward"),
        lambda: parse_stages("10,x"),
        lambda: parse_stages("10,50"),
    ):
        with pytest.raises(UsageError):
            call()
    assert rollouts.names() == ["r"]
    assert [decision.action for decision in rollouts.decisions("r")] == ["create"]


def test_a_stage_of_nobody_ends_by_time(rollouts: Rollouts) -> None:
    rollouts.create("r", candidate="new", baseline="old", stages=parse_stages("0,10,100"))
    assert rollouts.step("r", nothing, now_s=0).share == 0
    assert rollouts.step("r", nothing, now_s=6 * DAY_S).share == 0
    assert rollouts.step("r", nothing, now_s=7 * DAY_S).share == 0.1
    assert rollouts.step("r", nothing, now_s=99 * DAY_S).share == 0.1


# --- faults -----------------------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_promotes_nothing(rollouts: Rollouts) -> None:
    rollouts.create("r", candidate="new", baseline="old")
    arms = Arms()
    days(rollouts, arms, 2)
    assert rollouts.step("r", arms, now_s=-5 * DAY_S).share == 0.1
    assert "the clock went back" in rollouts.decisions("r")[-1].why
    assert rollouts.step("r", arms, now_s=400 * DAY_S).share == 0.1  # a year ahead: the data is old
    assert "stale" in rollouts.decisions("r")[-1].why


def test_a_step_repeated_is_one_step(rollouts: Rollouts) -> None:
    rollouts.create("r", candidate="new", baseline="old")
    arms = Arms()
    days(rollouts, arms, 7)
    before = rollouts.document("r")
    assert rollouts.step("r", arms, now_s=7 * DAY_S).stage == rollouts.get("r").stage
    assert rollouts.document("r")["share"] == before["share"]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE rollouts SET document = '{'",
        "UPDATE rollouts SET state = 'promoted'",
        "UPDATE rollouts SET document = replace(document, '\"share\": 0.1', '\"share\": 1.0')",
        "UPDATE rollouts SET document = replace(document, '\"stage\": 0', '\"stage\": 7')",
    ],
)
def test_a_damaged_state_is_refused_and_can_be_rolled_back(rollouts: Rollouts, damage: str) -> None:
    from agent_forge.rollout import policy_for

    rollouts.create("r", candidate="new", baseline="old")
    with rollouts.db.write() as cursor:
        cursor.execute(damage)
    for call in (lambda: rollouts.get("r"), lambda: rollouts.step("r", nothing), lambda: rollouts.promote("r")):
        with pytest.raises(StoreError, match="the state of rollout 'r' is damaged"):
            call()
    assignment = policy_for("unit", home=rollouts, rollout="r")
    assert assignment.policy == "old"
    assert "damaged" in (assignment.why or "")
    assert rollouts.rollback("r").share == 0
    assert policy_for("unit", home=rollouts).policy == "old"


def test_two_controllers_make_one_decision_each_time(rollouts: Rollouts, place: str) -> None:
    """Both decide about the same state at the same moment: the barrier is inside the reading of the evidence."""
    other = Rollouts.open(place)
    rollouts.create("r", candidate="new", baseline="old")
    arms = Arms()
    days(rollouts, arms, 6)
    arms.serve(rollouts.get("r"), 7 * DAY_S)
    meet = threading.Barrier(2, timeout=300)
    waited = threading.local()

    def source(rollout: Rollout, now_s: float) -> Readings:
        if not hasattr(waited, "once"):
            waited.once = True
            meet.wait()
        return arms(rollout, now_s)

    threads = [
        threading.Thread(target=lambda store=store: store.step("r", source, now_s=7 * DAY_S))
        for store in (rollouts, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rollouts.get("r").share == 0.5
    assert [decision.action for decision in rollouts.decisions("r")].count("promote") == 1
    other.close()


def test_a_rollback_is_not_lost_when_another_controller_promotes_first(rollouts: Rollouts, place: str) -> None:
    other = Rollouts.open(place)
    rollouts.create("r", candidate="new", baseline="old", stages=(0.5, 1.0))

    def source(rollout: Rollout, now_s: float) -> Readings:
        if rollout.state == "running":
            other.promote("r")  # while this controller reads what will make it roll back
        return Readings(safety=((1, 10), (0, 10)))

    assert rollouts.step("r", source, now_s=1.0).state == "rolled_back"
    assert rollouts.policies()["current"] == "old"
    other.close()


def test_killed_in_the_middle_of_a_promotion_nothing_has_changed(tmp_path: Path) -> None:
    """kill -9 after the new state was written and before the current policy was: both or neither."""
    rollouts = Rollouts.open(tmp_path)
    rollouts.create("r", candidate="new", baseline="old", stages=(0.5, 1.0))
    before = json.dumps(rollouts.document("r"))
    code = (
        "import os, signal, sys\n"
        "from agent_forge.rollout import rollouts\n"
        "rollouts._move_current = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)\n"
        "rollouts.Rollouts.open(sys.argv[1]).promote('r')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    again = Rollouts.open(tmp_path)
    assert json.dumps(again.document("r")) == before
    assert again.current() == "old"
    assert again.promote("r").state == "promoted"
    assert again.current() == "new"


# --- properties -------------------------------------------------------------------------------------------------------

ACTIONS = ("good", "bad", "empty", "repeat", "back", "jump", "promote", "pause", "resume", "rollback")


@given(st.lists(st.sampled_from(ACTIONS), max_size=25))
@settings(max_examples=25)
def test_whatever_happens_the_shares_are_those_of_one_rollout(actions: list[str]) -> None:
    rollouts = Rollouts(":memory:")
    rollout = rollouts.create("r", candidate="new", baseline="old")
    now_s, arms = 0.0, Arms()
    by_hand: dict[str, Callable[[str], Rollout]] = {
        "promote": rollouts.promote, "pause": rollouts.pause, "resume": rollouts.resume, "rollback": rollouts.rollback,
    }  # fmt: skip
    for action in actions:
        before, lines = rollout, rollouts.decisions("r")
        if action in by_hand:
            try:
                rollout = by_hand[action]("r")
            except UsageError:
                assert before.state in ("rolled_back", "promoted")
        elif action in ("good", "bad"):
            arms.rates = (0.9 if action == "good" else 0.6, 0.9)
            now_s += 4 * DAY_S
            arms.serve(rollout, now_s)
            rollout = rollouts.step("r", arms, now_s=now_s)
        else:
            moment = {"back": now_s - DAY_S, "jump": now_s + 300 * DAY_S}.get(action, now_s)
            now_s = max(now_s, moment)
            rollout = rollouts.step("r", nothing if action == "empty" else arms, now_s=moment)
        assert rollout == rollouts.get("r")
        assert rollouts.decisions("r")[: len(lines)] == lines  # the log only grows
        assert rollout.share in (0, before.share) or rollout.share > before.share
        if before.state == "rolled_back":
            assert rollout == before
        if action not in ("good", "bad", "promote", "repeat"):
            assert rollout.share <= before.share  # no data, no promotion
        assert (rollouts.current() == "new") == (rollout.state == "promoted")


@pytest.mark.untraced
def test_simulated_rollouts_keep_their_promises() -> None:
    """A small form of benchmarks/rollout.py, whose figures stand in docs/results/rollout.md."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    try:
        from rollout import simulate
    finally:
        sys.path.pop(0)
    equal = [simulate(0.9, 0.9, seed) for seed in range(10)]
    assert sum(end["state"] == "rolled_back" for end in equal) <= 1
    worse = [simulate(0.85, 0.9, seed) for seed in range(10)]
    assert sum(end["state"] == "rolled_back" and end["stage"] == 0 for end in worse) >= 9
    assert not any(end["state"] == "promoted" for end in worse)
