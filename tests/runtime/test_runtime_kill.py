"""kill -9 at random moments: no finished task is repeated, and the end is that of an undisturbed run."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from runtime_plans import fresh_url
from runtime_victim import quiet, victim_plan

from agent_forge.runtime import Journal, execute

HERE = Path(__file__).parent
KILLS = {"sqlite": 50, "postgresql": 10}


def lives(log: Path) -> list[list[str]]:
    """The lines of the log, one list for each process."""
    found: list[list[str]] = []
    for line in log.read_text().splitlines() if log.exists() else []:
        if line == "begin":
            found.append([])
        else:
            found[-1].append(line)
    return found


class Victims:
    """A process that has everything imported and forks one victim after the other."""

    def __init__(self, log: Path) -> None:
        path = os.pathsep.join([str(HERE), *sys.path])
        environment = {**os.environ, "VICTIM_LOG": str(log), "PYTHONPATH": path}
        command = [sys.executable, str(HERE / "runtime_victim.py")]
        self.parent = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def start(self, home: str) -> int:
        assert self.parent.stdin is not None
        self.parent.stdin.write(f"{home}\n")
        return self._number()

    def wait(self) -> int:
        return self._number()

    def _number(self) -> int:
        assert self.parent.stdout is not None
        return int(self.parent.stdout.readline())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork and no SIGKILL on this system")
@pytest.mark.parametrize("database", KILLS)
def test_kills_at_random_moments(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rng = random.Random(5)
    log = tmp_path / "log"
    victims = Victims(log)
    kills = rounds = 0
    while kills < KILLS[database]:
        rounds += 1
        home = str(tmp_path / f"home{rounds}")
        if database == "postgresql":
            home = fresh_url(request.getfixturevalue("postgres"))
        kills += kill_until_done(victims, rng, log, home, KILLS[database] - kills)
        check_round(log, home)
        log.unlink()
    victims.parent.communicate(timeout=30)
    assert kills >= KILLS[database]


def kill_until_done(victims: Victims, rng: random.Random, log: Path, home: str, most: int) -> int:
    """Starts the victim, kills it after it has made some progress, and starts it again until it ends by itself."""
    kills = 0
    while True:
        known = len(lives(log))
        pid = victims.start(home)
        if kills < most:
            kill_after(pid, log, known, rng.choice([0, 1, rng.randint(1, 12), rng.randint(1, 12)]), rng)
        code = victims.wait()
        if code == 0:
            return kills
        assert code == -signal.SIGKILL
        kills += 1


def kill_after(pid: int, log: Path, known: int, lines: int, rng: random.Random) -> None:
    """Kills a victim soon after it has written so many lines, unless it ended before."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        now = lives(log)
        if len(now) > known and (len(now[-1]) >= lines or now[-1][-1:] == ["end done"]):
            time.sleep(rng.random() * 0.002)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.0005)
    raise AssertionError("the victim made no progress")


def check_round(log: Path, home: str) -> None:
    plan = victim_plan()
    effects = {task.id for task in plan if task.meta}
    processes = lives(log)
    done: set[str] = set()
    started_effects: list[str] = []
    for lines in processes:
        started = {line.split()[1] for line in lines if line.startswith("start")}
        assert not started & done, "a task whose end was reported was started again"
        started_effects += [
            line.split()[1] for line in lines if line.startswith("start") and line.split()[1] in effects
        ]
        done |= {line.split()[1] for line in lines if line.startswith("done")}
    assert len(started_effects) == len(set(started_effects)), "a side effect happened twice"
    assert processes[-1][-1] == "end done"
    journal = Journal.open(home)
    undisturbed = asyncio.run(execute(plan, quiet))
    assert journal.load("r").results == undisturbed.results
    journal.close()
