"""Two servers with one database, with Redis or without: a run of one is watched, decided and continued on the other."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from test_server_runs import fetch, follow, start

from agent_forge.errors import MissingExtraError, StoreError, UsageError
from agent_forge.runtime import Journal
from agent_forge.server.events import WAITING, ServerEvents
from agent_forge.server.postgres_events import DAY_S, PRUNE, PRUNE_S
from agent_forge.server.redis_events import LIVE, STREAM
from agent_forge.server.runs.runs import runs_of

Heard = list[tuple[str, Any]]


class Listener:
    """What one server was told by the others."""

    def __init__(self, url: str) -> None:
        self.heard: Heard = []
        self._news = threading.Condition()
        self.events = ServerEvents(url, self._deliver)
        assert self.events._subscribed.wait(30)

    def _deliver(self, topic: str, event: Any) -> None:
        with self._news:
            self.heard.append((topic, event))
            self._news.notify_all()

    def wait_for(self, count: int) -> Heard:
        with self._news:
            assert self._news.wait_for(lambda: len(self.heard) >= count, 60)
            return list(self.heard)


@pytest.fixture
def database(postgres: str) -> str:
    """The URL of an empty PostgreSQL database."""
    import psycopg

    address = f"postgresql://postgres@/%s?host={postgres}"
    with psycopg.connect(address % "postgres", autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS two_servers WITH (FORCE)")
        connection.execute("CREATE DATABASE two_servers")
    return address % "two_servers"


@pytest.fixture(params=["redis", "postgresql"])
def carrier(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("redis_url" if request.param == "redis" else "database"))


def test_what_one_publishes_the_others_hear_once_and_in_order(carrier: str) -> None:
    one, two = Listener(carrier), Listener(carrier)
    sent = [("run:r1", {"kind": "started", "task": "Łódź\n2"}), ("traces", {"kind": "stored", "spans": 3})]
    sent += [("run:r1", {"kind": "done", "at_s": number / 7}) for number in range(50)]
    for topic, event in sent:
        one.events.publish(topic, event)
    two.events.publish("runs", {"kind": "mine"})
    assert one.wait_for(1) == [("runs", {"kind": "mine"})]
    assert two.wait_for(len(sent)) == sent
    kept = two.events.past("run:r1")
    assert not two.events.has_begun("run:r2")
    one.events.begin("run:r2")
    assert two.events.has_begun("run:r2")
    assert two.events.past("run:r2") == []
    assert [event for _, event in kept] == [event for topic, event in sent if topic == "run:r1"]
    assert [place for place, _ in two.events.past("run:r1", kept[10][0])] == [place for place, _ in kept[11:]]
    (_strange_messages if carrier.startswith("unix") else _old_rows)(carrier)
    one.events.publish("runs", {"kind": "after"})
    assert two.wait_for(len(sent) + 1)[-1] == ("runs", {"kind": "after"})
    for listener in (one, two):
        listener.events.close()


def _strange_messages(url: str) -> None:
    import redis

    with redis.Redis.from_url(url) as client:
        assert client.keys(f"{STREAM}*") == [f"{STREAM}run:r1".encode()], "other topics are not kept"
        assert client.ttl(f"{STREAM}run:r1") > 80_000
        for strange in ("hello", "[]\n{}", '["x", "y"]\nno', json.dumps([1, 2, 3])):
            client.publish(LIVE, strange)


def _old_rows(url: str) -> None:
    """What is removed: after a minute what belongs to no run, after a day the rest."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET search_path TO agent_forge_server_events")
        topics = "SELECT topic, count(*) FROM events WHERE sender = 'test' GROUP BY 1 ORDER BY 1"
        for topic in ("run:old", "traces"):
            for age in (0, 2 * PRUNE_S, 2 * DAY_S):
                row = "INSERT INTO events (topic, sender, at_s) VALUES (%s, 'test', extract(epoch FROM now()) - %s)"
                connection.execute(row, (topic, age))
        connection.execute(PRUNE.replace("?", "%s"), (PRUNE_S, DAY_S))
        assert connection.execute(topics).fetchall() == [("run:old", 2), ("traces", 1)]


def test_a_listener_that_lost_its_connection_misses_nothing(database: str) -> None:
    import psycopg

    one, two = Listener(database), Listener(database)
    others = "FROM pg_stat_activity WHERE datname = 'two_servers' AND pid <> pg_backend_pid()"
    with psycopg.connect(database, autocommit=True) as connection:
        ended = connection.execute(f"SELECT count(pg_terminate_backend(pid)) {others}").fetchone()
        assert ended is not None
        assert ended[0] >= 2
    for number in range(3):
        one.events.publish("runs", {"number": number})
    assert two.wait_for(3) == [("runs", {"number": number}) for number in range(3)]
    for listener in (one, two):
        listener.events.close()


def test_what_waits_is_sent_before_the_end(carrier: str) -> None:
    one = Listener(carrier)
    for number in range(200):
        one.events.publish("run:last", {"kind": "step", "number": number})
    one.events.close()
    two = Listener(carrier)
    assert [event["number"] for _, event in two.events.past("run:last")] == list(range(200))
    two.events.close()


@pytest.mark.parametrize("kind", ["redis", "psycopg"])
def test_without_its_carrier_a_server_goes_on(kind: str, tmp_path: Path) -> None:
    pytest.importorskip(kind, reason=f"{kind} is not installed: the extra `scale` brings it")
    urls = {"redis": f"unix://{tmp_path}/nobody", "psycopg": f"postgresql://postgres@/x?host={tmp_path}"}
    events = ServerEvents(urls[kind], lambda topic, event: None)
    for number in range(WAITING + 10):
        events.publish("run:r", {"number": number})
    assert 0 <= events.dropped <= 10, "there is room for so many, and some are on their way"
    assert not events.has_begun("run:r")
    with pytest.raises(StoreError, match="cannot be reached"):
        events.past("run:r")
    events._ended.set()
    events.close()


def test_urls_and_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="events cannot go to http"):
        ServerEvents("http://me:secret@x", lambda topic, event: None)
    for module, url in (("redis", "redis://x"), ("psycopg", "postgresql://x")):
        monkeypatch.setitem(__import__("sys").modules, module, None)
        with pytest.raises(MissingExtraError, match=r"\[scale\]"):
            ServerEvents(url, lambda topic, event: None)


PLAN = {
    "tasks": [
        {"id": "a", "action": "calculator", "args": {"expression": "20 + 1"}},
        {"id": "b", "action": "calculator", "args": {"expression": "{a} * 2"}, "meta": {"approval": True}},
    ]
}


@pytest.mark.parametrize("kind", ["redis", "postgresql"])
def test_two_servers_share_a_run(
    kind: str,
    start_server: Any,
    request: pytest.FixtureRequest,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGENT_FORGE_STORE", database)
    events = (
        request.getfixturevalue("redis_url") if kind == "redis" else None
    )  # without Redis, the database carries them
    here, there = (start_server(home=str(tmp_path / name), events=events) for name in ("here", "there"))
    try:
        _decide_elsewhere(here, there)
        _watch_and_continue(here, there)
    finally:
        for server in (here, there):
            server.context.close()  # while the database is there


def _decide_elsewhere(here: Any, there: Any) -> None:
    """A run that is active on one server is approved, and another one stopped, through the other server."""
    started = start(here, plan=PLAN)
    for name, _ in follow(there, started):
        if name == "waiting_for_approval":
            with there.client() as client:
                assert runs_of(there.context).waiting(started["run"]) == {
                    "b": {"tool": "calculator", "args": {"expression": "21 * 2"}}
                }
                refused = client.post(f"{started['url']}/approve", json={"task": "a", "approved": True})
                assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_waiting")
                changed = {"task": "b", "approved": True, "args": {"expression": "5 + 5"}}
                assert client.post(f"{started['url']}/approve", json=changed).is_success
    assert fetch(here, started)["tasks"]["b"]["result"] == 10

    started = start(here, plan=PLAN)
    for name, event in follow(there, started):
        if name == "waiting_for_approval":
            with there.client() as client:
                assert client.post(f"{started['url']}/cancel").status_code == 202
        elif name == "finished":
            assert event["state"] == "cancelled"
    with there.client() as client:
        assert client.post(f"{started['url']}/cancel").status_code == 404, "it is over"
        assert client.post("/v1/runs/nobody/cancel").status_code == 404


def _watch_and_continue(here: Any, there: Any) -> None:
    # Watched on the other server, from the first event to the result.
    started, seen = start(here, plan=PLAN), []
    for name, event in follow(there, started):
        seen.append((name, event))
        if name == "waiting_for_approval":
            with here.client() as client:
                assert client.post(f"{started['url']}/approve", json={"task": "b", "approved": True}).is_success
    names = [name for name, _ in seen]
    assert names[0] == "run_started"
    assert names[-2:] == ["finished", "result"]
    assert [name for name, _ in follow(here, started)] == names
    assert seen[-1][1]["tasks"]["b"]["result"] == fetch(here, started)["tasks"]["b"]["result"]
    # A browser that lost its connection goes on where it was, on either server.
    again = [name for name, _ in follow(there, started, **{"last-event-id": str(len(names) - 3)})]
    assert again == names[-2:]

    # Its server goes while it waits; the other one continues it, and does nothing twice.
    started = start(here, plan=PLAN)
    for name, _ in follow(there, started):
        if name == "waiting_for_approval":
            runs_of(here.context).close()
    assert fetch(there, started)["state"] == "waiting"
    with there.client() as client:
        assert client.post(f"{started['url']}/approve", json={"task": "b", "approved": True}).is_success
    result = list(follow(there, started))[-1][1]
    assert (result["state"], result["tasks"]["b"]["state"]) == ("done", "done")
    stored = Journal.open().load(started["run"])
    assert stored.tasks["a"].attempts == 1
    with there.client() as client:
        assert client.get("/v1/runs/nobody/events").status_code == 404
