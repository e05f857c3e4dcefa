"""Two servers with one database and one Redis: a run of one is watched and continued on the other."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from test_server_runs import fetch, follow, start

from agent_forge.errors import MissingExtraError, StoreError, UsageError
from agent_forge.runtime import Journal
from agent_forge.server.events import LIVE, MOST, STREAM, WAITING, RedisEvents
from agent_forge.server.runs.runs import runs_of

Heard = list[tuple[str, Any]]


class Listener:
    """What one server was told by the others."""

    def __init__(self, url: str) -> None:
        self.heard: Heard = []
        self._news = threading.Condition()
        self.events = RedisEvents(url, self._deliver)
        assert self.events._subscribed.wait(30)

    def _deliver(self, topic: str, event: Any) -> None:
        with self._news:
            self.heard.append((topic, event))
            self._news.notify_all()

    def wait_for(self, count: int) -> Heard:
        with self._news:
            assert self._news.wait_for(lambda: len(self.heard) >= count, 60)
            return list(self.heard)


def test_what_one_publishes_the_others_hear_once_and_in_order(redis_url: str) -> None:
    import redis

    one, two = Listener(redis_url), Listener(redis_url)
    sent = [("run:r1", {"kind": "started", "task": "Łódź\n2"}), ("traces", {"kind": "stored", "spans": 3})]
    sent += [("run:r1", {"kind": "done", "at_s": number / 7}) for number in range(50)]
    for topic, event in sent:
        one.events.publish(topic, event)
    two.events.publish("runs", {"kind": "mine"})
    assert one.wait_for(1) == [("runs", {"kind": "mine"})]
    assert two.wait_for(len(sent)) == sent
    kept = two.events.past("run:r1")
    assert [event for _, event in kept] == [event for topic, event in sent if topic == "run:r1"]
    assert [place for place, _ in two.events.past("run:r1", kept[10][0])] == [place for place, _ in kept[11:]]
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys(f"{STREAM}*") == [f"{STREAM}run:r1".encode()], "other topics are not kept"
        assert client.ttl(f"{STREAM}run:r1") > 80_000
        for strange in ("hello", "[]\n{}", '["x", "y"]\nno', json.dumps([1, 2, 3])):
            client.publish(LIVE, strange)
    one.events.publish("runs", {"kind": "after"})
    assert two.wait_for(len(sent) + 1)[-1] == ("runs", {"kind": "after"})
    for listener in (one, two):
        listener.events.close()
    assert MOST > 0


def test_what_waits_is_sent_before_the_end(redis_url: str) -> None:
    one = Listener(redis_url)
    for number in range(200):
        one.events.publish("run:last", {"kind": "step", "number": number})
    one.events.close()
    two = Listener(redis_url)
    assert [event["number"] for _, event in two.events.past("run:last")] == list(range(200))
    two.events.close()


def test_without_redis_a_server_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("redis", reason="redis is not installed: the extra `scale` brings it")
    events = RedisEvents(f"unix://{tmp_path}/nobody", lambda topic, event: None)
    for number in range(WAITING + 10):
        events.publish("run:r", {"number": number})
    assert 0 <= events.dropped <= 10, "there is room for so many, and some are on their way"
    with pytest.raises(StoreError, match="Redis cannot be reached"):
        events.past("run:r")
    events._ended.set()
    events.close()


def test_urls_and_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="events cannot go to http"):
        RedisEvents("http://me:secret@x", lambda topic, event: None)
    monkeypatch.setitem(__import__("sys").modules, "redis", None)
    with pytest.raises(MissingExtraError, match=r"\[scale\]"):
        RedisEvents("redis://x", lambda topic, event: None)


PLAN = {
    "tasks": [
        {"id": "a", "action": "calculator", "args": {"expression": "20 + 1"}},
        {"id": "b", "action": "calculator", "args": {"expression": "{a} * 2"}, "meta": {"approval": True}},
    ]
}


def test_two_servers_share_a_run(
    start_server: Any, redis_url: str, postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    address = f"postgresql://postgres@/%s?host={postgres}"
    with psycopg.connect(address % "postgres", autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS two_servers")
        connection.execute("CREATE DATABASE two_servers")
    monkeypatch.setenv("AGENT_FORGE_STORE", address % "two_servers")
    here, there = (start_server(home=str(tmp_path / name), events=redis_url) for name in ("here", "there"))
    try:
        _watch_and_continue(here, there)
    finally:
        for server in (here, there):
            server.context.close()  # while the database is there


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
