"""Staged rollouts: a state machine that survives its controllers.

A change of state, the decision that made it and the policy that is `current` are one transaction, so whoever is killed
in the middle has changed nothing. Two controllers may run: a decision that was made about an older state is made again,
except a rollback, which always stands. There is one number per rollout, the share of the candidate; the baseline has
the rest, so both can never have everything.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from agent_forge.database import MEMORY, Cursor, Schema, is_url, open_database
from agent_forge.errors import StoreError, UsageError
from agent_forge.home import home as home_folder
from agent_forge.rollout.decision import decide
from agent_forge.rollout.metrics import Guardrails
from agent_forge.rollout.policies import FolderOf, fingerprint
from agent_forge.rollout.readings import Readings
from agent_forge.rollout.state import Rollout, RolloutDecision, check_stages, iso
from agent_forge.settings import trace_store

FILE = "rollout.db"
CURRENT = "current"
NAME = re.compile(r"[\w.-]{1,100}")
Source = Callable[[Rollout, float], Readings]

SCHEMA = Schema(
    name="rollout store",
    application_id=0x4146726F,  # "AFro"
    migrations=(
        (
            """CREATE TABLE rollouts (
                 id {serial}, name TEXT NOT NULL UNIQUE, state TEXT NOT NULL, version {int} NOT NULL,
                 document TEXT NOT NULL)""",
            """CREATE TABLE decisions (
                 id {serial}, rollout TEXT NOT NULL, at_s {real} NOT NULL, action TEXT NOT NULL, why TEXT NOT NULL,
                 figures TEXT NOT NULL)""",
            "CREATE INDEX decisions_rollout ON decisions (rollout, id)",
            """CREATE TABLE policies (
                 slot TEXT NOT NULL PRIMARY KEY, policy TEXT, previous TEXT, at_s {real} NOT NULL) {packed}""",
            "CREATE TABLE flags (name TEXT NOT NULL PRIMARY KEY, document TEXT NOT NULL) {packed}",
            """CREATE TABLE experiments (
                 id {serial}, name TEXT NOT NULL UNIQUE, state TEXT NOT NULL, document TEXT NOT NULL)""",
            """CREATE TABLE audit (
                 id {serial}, at_s {real} NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL, before TEXT, after TEXT)""",
        ),
    ),
    page_size=4096,
)


class Rollouts:
    """The rollouts of a home folder, or of a PostgreSQL database. Safe to use from several threads and processes.

    >>> rollouts = Rollouts(":memory:")
    >>> rollouts.create("forged", candidate="forged", baseline="rules").share
    0.1
    >>> rollouts.rollback("forged", "it felt wrong").share
    0.0
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        """Raises StoreError for a file or database that is not a rollout store."""
        self.db = open_database(place, SCHEMA)

    @classmethod
    def open(cls, home: str | os.PathLike[str] | None = None) -> Rollouts:
        """Those at `home`, a folder, a `postgresql://` URL or ":memory:"; else at the setting `store`; else in the home
        folder."""
        place = trace_store(home)
        if place is not None and (is_url(place) or place == MEMORY):
            return cls(place)
        return cls(home_folder(place) / FILE)

    @property
    def where(self) -> str:
        return self.db.where

    def close(self) -> None:
        self.db.close()

    # Reading

    def names(self) -> list[str]:
        """All rollouts, the latest first."""
        with self.db.read() as cursor:
            return [row[0] for row in cursor.execute("SELECT name FROM rollouts ORDER BY id DESC").fetchall()]

    def get(self, name: str) -> Rollout:
        """Raises UsageError if there is no such rollout, StoreError if its state is damaged."""
        with self.db.read() as cursor:
            return self._get(cursor, name)

    def active(self) -> Rollout | None:
        """The latest rollout that is running or paused: the one that decides where none is named."""
        with self.db.read() as cursor:
            row = cursor.execute(
                "SELECT name FROM rollouts WHERE state IN ('running', 'paused') ORDER BY id DESC LIMIT 1"
            ).fetchone()
            return None if row is None else self._get(cursor, row[0])

    def decisions(self, name: str) -> list[RolloutDecision]:
        """Every decision about a rollout, the oldest first."""
        with self.db.read() as cursor:
            rows = cursor.execute(
                "SELECT at_s, action, why, figures FROM decisions WHERE rollout = ? ORDER BY id", (name,)
            ).fetchall()
        return [RolloutDecision(at_s, action, why, json.loads(figures)) for at_s, action, why, figures in rows]

    def document(self, name: str) -> dict[str, Any]:
        """A rollout as `agent-forge rollout status --json` prints it."""
        rollout = self.get(name)
        return {
            "name": name,
            "state": rollout.state,
            "stage": rollout.stage,
            "share": rollout.share,
            "candidate": rollout.candidate,
            "baseline": rollout.baseline,
            "stages": list(rollout.stages),
            "entered": None if rollout.entered_s is None else iso(rollout.entered_s),
            "decisions": [decision.to_json() for decision in self.decisions(name)],
        }

    def _get(self, cursor: Cursor, name: str) -> Rollout:
        row = cursor.execute("SELECT state, version, document FROM rollouts WHERE name = ?", (name,)).fetchone()
        if row is None:
            fix = "`agent-forge rollout ls` lists them"
            raise UsageError(f"there is no rollout {name!r}", where=self.where, fix=fix)
        try:
            document = json.loads(row[2])
        except ValueError:
            document = None
        return Rollout.from_json(name, row[0], row[1], document, self.where)

    # Changing

    def create(
        self,
        name: str,
        *,
        candidate: str,
        baseline: str = CURRENT,
        stages: tuple[float, ...] = (0.1, 0.5, 1.0),
        guardrails: Guardrails | None = None,
        folder_of: FolderOf | None = None,
        now_s: float | None = None,
    ) -> Rollout:
        """A new rollout in its first stage. `current` as a baseline is the policy that is current now.

        `folder_of` finds the folders of registered models, to notice later that one has changed (see `policies`).
        Raises UsageError if there is one of that name, or if it would compare a policy with itself.
        """
        if not NAME.fullmatch(name):
            raise UsageError(f"{name[:100]!r} is not a valid rollout name", fix="Use letters, digits, _ . and -")
        check_stages(stages)
        if baseline == CURRENT:
            baseline = self.current() or CURRENT
        if candidate == baseline:
            raise UsageError(f"candidate and baseline are both {candidate!r}", fix="Name another --candidate")
        known = {each: fingerprint(each, folder_of) for each in (candidate, baseline)}
        rollout = Rollout(name, candidate, baseline, stages, guardrails or Guardrails(), fingerprints=known)
        if rollout.share == 1:
            raise UsageError("a rollout needs a stage below 100 %", fix="Write for example --stages 10,50,100")
        at_s = time.time() if now_s is None else now_s
        figures = {"stages": list(stages), "candidate": candidate, "baseline": baseline}
        why = f"{candidate} against {baseline}, {rollout.share:.0%} to begin with"
        with self.db.write() as cursor:
            if cursor.execute("SELECT 1 FROM rollouts WHERE name = ?", (name,)).fetchone():
                raise UsageError(f"there is a rollout {name!r} already", fix="Choose another name")
            cursor.execute(
                "INSERT INTO rollouts (name, state, version, document) VALUES (?, ?, 0, ?)",
                (name, rollout.state, json.dumps(rollout.to_json())),
            )
            _note(cursor, name, RolloutDecision(at_s, "create", why, figures))
            if baseline not in (CURRENT, self._current(cursor)):  # so that it also serves after a rollback
                _move_current(cursor, baseline, self._current(cursor), at_s)
        return rollout

    def step(self, name: str, source: Source, *, now_s: float | None = None) -> Rollout:
        """Looks at the evidence and acts on it: hold, promote or roll back. Repeating it changes nothing more."""
        at_s = time.time() if now_s is None else now_s
        while True:
            rollout = self.get(name)
            if rollout.state == "rolled_back":
                return rollout
            if (decision := self._too_early(rollout, at_s)) is None:
                decision = decide(rollout, source(rollout, at_s), at_s)
            if self._apply(rollout, decision, at_s):
                return self.get(name)

    def _too_early(self, rollout: Rollout, now_s: float) -> RolloutDecision | None:
        """A clock that went back decides nothing."""
        if rollout.stepped_s is not None and now_s < rollout.stepped_s:
            why = f"the clock went back: the latest step was at {iso(rollout.stepped_s)}"
            return RolloutDecision(now_s, "hold", why, {"share": rollout.share}, rollout.votes)
        return None

    def promote(self, name: str, why: str = "by hand", *, now_s: float | None = None) -> Rollout:
        """The next stage, without asking the evidence. Raises UsageError after a rollback."""
        return self._by_hand(name, "promote", why, now_s)

    def pause(self, name: str, why: str = "by hand", *, now_s: float | None = None) -> Rollout:
        """Keeps the share where it is. A paused rollout still comes back when it must."""
        return self._by_hand(name, "pause", why, now_s)

    def resume(self, name: str, why: str = "by hand", *, now_s: float | None = None) -> Rollout:
        return self._by_hand(name, "resume", why, now_s)

    def rollback(self, name: str, why: str = "by hand", *, now_s: float | None = None) -> Rollout:
        """Gives everyone the baseline, whatever the state, even a damaged one."""
        decision = RolloutDecision(time.time() if now_s is None else now_s, "rollback", why)
        with self.db.write() as cursor:
            self._roll_back(cursor, name, decision)
        return self.get(name)

    def _by_hand(self, name: str, action: str, why: str, now_s: float | None) -> Rollout:
        at_s = time.time() if now_s is None else now_s
        while True:
            rollout = self.get(name)
            done = {"promote": ("promoted",), "pause": ("paused",), "resume": ("running",)}[action]
            if rollout.state in done:
                return rollout
            if rollout.state == "rolled_back" or (rollout.state == "promoted" and action != "promote"):
                fix = "Create another rollout" if rollout.state == "rolled_back" else "`rollback` takes it back"
                raise UsageError(f"rollout {name!r} is {rollout.state.replace('_', ' ')}", fix=fix)
            if self._apply(rollout, RolloutDecision(at_s, action, why, {"share": rollout.share}), now_s):
                return self.get(name)

    def _apply(self, seen: Rollout, decision: RolloutDecision, clock: float | None) -> bool:
        """Writes a decision about the state that was seen; False if that is no longer the state. Without a `clock` the
        next step starts that of a new stage."""
        with self.db.write() as cursor:
            if decision.action == "rollback":
                self._roll_back(cursor, seen.name, decision)
                return True
            if self._get(cursor, seen.name).version != seen.version:
                return False
            after = _after(seen, decision, clock)
            self._save(cursor, after, decision)
            if after.state == "promoted" != seen.state:
                _move_current(cursor, seen.candidate, self._current(cursor), decision.at_s)
        return True

    def _roll_back(self, cursor: Cursor, name: str, decision: RolloutDecision) -> None:
        try:
            rollout = self._get(cursor, name)
        except StoreError:  # damaged: nothing in it is to be believed, but the way back is known
            (version,) = cursor.execute("SELECT version FROM rollouts WHERE name = ?", (name,)).fetchone()
            self._save(cursor, Rollout(name, "unknown", CURRENT, state="rolled_back", version=version), decision)
            return
        if rollout.state == "rolled_back":
            return
        self._save(cursor, replace(rollout, state="rolled_back", votes={}), decision)
        if rollout.state == "promoted" and self._current(cursor) == rollout.candidate:
            _move_current(cursor, rollout.baseline, rollout.candidate, decision.at_s)

    def _save(self, cursor: Cursor, rollout: Rollout, decision: RolloutDecision) -> None:
        cursor.execute(
            "UPDATE rollouts SET state = ?, version = ?, document = ? WHERE name = ?",
            (rollout.state, rollout.version + 1, json.dumps(rollout.to_json()), rollout.name),
        )
        _note(cursor, rollout.name, decision)

    # Policies

    def current(self) -> str | None:
        """The policy that serves whoever is in no rollout: the latest baseline or promoted candidate, if any."""
        with self.db.read() as cursor:
            return self._current(cursor)

    def fingerprint(self, policy: str) -> dict[str, Any]:
        """What the latest rollout with this policy recorded about it; empty where that is nothing."""
        for name in self.names():
            with suppress(StoreError):  # a damaged rollout says nothing
                if found := self.get(name).fingerprints.get(policy):
                    return dict(found)
        return {}

    def policies(self) -> dict[str, Any]:
        """The current policy, the one before it, and when that changed."""
        with self.db.read() as cursor:
            row = cursor.execute("SELECT policy, previous, at_s FROM policies WHERE slot = ?", (CURRENT,)).fetchone()
        policy, previous, at_s = row or (None, None, None)
        return {"current": policy, "previous": previous, "at": None if at_s is None else iso(at_s)}

    def _current(self, cursor: Cursor) -> str | None:
        row = cursor.execute("SELECT policy FROM policies WHERE slot = ?", (CURRENT,)).fetchone()
        return None if row is None else row[0]


def _after(rollout: Rollout, decision: RolloutDecision, clock: float | None) -> Rollout:
    """The state after a decision other than a rollback."""
    if decision.action in ("pause", "resume"):
        return replace(rollout, state="paused" if decision.action == "pause" else "running")
    if decision.action == "promote":
        stage = rollout.stage + 1
        state = "promoted" if rollout.stages[stage] == 1 else "running"
        return replace(rollout, state=state, stage=stage, entered_s=clock, stepped_s=clock, votes={})
    latest = max(decision.at_s, rollout.stepped_s or decision.at_s)
    entered_s = decision.at_s if rollout.entered_s is None else rollout.entered_s
    return replace(rollout, votes=dict(decision.votes), entered_s=entered_s, stepped_s=latest)


def _note(cursor: Cursor, name: str, decision: RolloutDecision) -> None:
    """One line per decision. The same one at the same moment, by a second controller, is the same line."""
    last = cursor.execute(
        "SELECT at_s, action, why FROM decisions WHERE rollout = ? ORDER BY id DESC LIMIT 1", (name,)
    ).fetchone()
    if last is not None and tuple(last) == (decision.at_s, decision.action, decision.why):
        return
    cursor.execute(
        "INSERT INTO decisions (rollout, at_s, action, why, figures) VALUES (?, ?, ?, ?, ?)",
        (name, decision.at_s, decision.action, decision.why, json.dumps(dict(decision.figures))),
    )


def _move_current(cursor: Cursor, policy: str, previous: str | None, at_s: float) -> None:
    policy_or_none = None if policy == CURRENT else policy
    cursor.execute("DELETE FROM policies WHERE slot = ?", (CURRENT,))
    cursor.execute("INSERT INTO policies VALUES (?, ?, ?, ?)", (CURRENT, policy_or_none, previous, at_s))
