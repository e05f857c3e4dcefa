"""The pages of rollouts, policies and agents, and the buttons: who may press them, and what they do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from agent_forge.rollout import Experiment, Moments, Readings, Rollout, Rollouts, StageReading, expose, policy_for
from agent_forge.rollout.experiments import create_experiment
from agent_forge.server.app import create_app
from agent_forge.server.settings import ServerSettings
from agent_forge.traces import Recorder

DAY_S = 86_400.0
HTML = {"Accept": "text/html"}


def readings(rollout: Rollout, now_s: float) -> Readings:
    days = 1 + int(now_s // DAY_S)
    counts = (Moments.of_count(180 * days, 200 * days), Moments.of_count(1_620 * days, 1_800 * days))
    return Readings((StageReading(0, (200 * days, 1_800 * days), {"success": counts}),), now_s)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    rollouts = Rollouts.open(folder)
    rollouts.create("good", candidate="new<b>", baseline="old", now_s=0)
    for day in range(3):
        rollouts.step("good", readings, now_s=day * DAY_S)
    rollouts.create("bad", candidate="other", baseline="old", now_s=0)
    rollouts.rollback("bad", "it was worse", now_s=5)
    rollouts.create("broken", candidate="x", baseline="old", now_s=0)
    with rollouts.db.write() as cursor:
        cursor.execute("UPDATE rollouts SET document = '{}' WHERE name = 'broken'")
    create_experiment(rollouts, Experiment("ab", {"rules": 1, "forged": 1}))
    with Recorder(folder) as recorder:
        for number in range(12):
            with recorder.span("request", "run", agent="researcher"):
                expose(recorder, policy_for(f"u{number}", rollout="ab", home=rollouts))
    return folder


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[TestClient]:
    with TestClient(create_app(ServerSettings(home=str(home))), base_url="http://127.0.0.1", headers=HTML) as client:
        yield client


def test_the_pages_show_what_the_store_holds(client: TestClient) -> None:
    page = client.get("/rollouts").text
    for text in ("good", "bad", "is damaged", "hold: the stage has", "new&lt;b&gt;", "ab"):
        assert text in page
    assert "<b>new" not in page
    document = client.get("/rollouts/good.json").json()
    assert [decision["action"] for decision in document["decisions"]] == ["create", "hold", "hold", "hold"]
    page = client.get("/rollouts/good").text
    assert page.count("<svg class") + page.count("<polyline") >= 3  # the gain and its bounds
    for button in ("pause", "promote", "rollback"):
        assert f'data-post="{button}"' in page
    assert "data-post=" not in client.get("/rollouts/bad").text
    assert client.get("/rollouts/nothing").status_code == 404
    policies = client.get("/policies.json").json()
    assert policies["current"] == "old"
    assert {row["policy"] for row in policies["policies"]} == {"new<b>", "old", "other"}
    assert client.get("/policies").status_code == 200
    agents = {row["name"]: row for row in client.get("/agents.json").json()["agents"]}
    assert agents["researcher"]["measured"]["spans"] >= 12
    assert agents["researcher"]["profile"]["description"]
    assert "researcher" in client.get("/agents").text
    experiment = client.get("/rollouts/experiments/ab.json").json()
    assert sum(experiment["units"].values()) == 12
    assert "<circle" in client.get("/rollouts/experiments/ab").text
    assert client.get("/rollouts/experiments/none").status_code == 404
    assert client.get("/v1/rollouts").json()["rollouts"] == ["broken", "bad", "good"]


def test_buttons_act_and_refuse(client: TestClient) -> None:
    assert client.get("/v1/rollouts/good").json()["state"] == "running"
    assert client.post("/v1/rollouts/good/pause", json={"why": "lunch"}).json()["state"] == "paused"
    assert client.post("/v1/rollouts/good/resume", json={}).json()["state"] == "running"
    assert client.post("/v1/rollouts/good/promote", json={}).json()["share"] == 0.5
    done = client.post("/v1/rollouts/good/rollback", json={}).json()
    assert (done["state"], done["share"]) == ("rolled_back", 0.0)
    assert [decision["why"] for decision in done["decisions"]][-4:-2] == ["lunch", "from the dashboard"]
    assert client.post("/v1/rollouts/good/promote", json={}).status_code == 409
    assert client.post("/v1/rollouts/other/pause", json={}).status_code == 404
    assert client.post("/v1/rollouts/bad/explode", json={}).status_code == 404
    assert client.post("/v1/rollouts/bad/pause", json={"now": 3}).status_code == 400
    assert (
        client.post("/v1/rollouts/bad/pause", content="why=x", headers={"Content-Type": "text/plain"}).status_code
        == 415
    )
    assert client.get("/v1/rollouts/bad/pause").status_code == 405


def test_others_may_not_press_them(home: Path) -> None:
    settings = ServerSettings(home=str(home), token="a-token-of-some-length")
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        assert client.post("/v1/rollouts/bad/rollback", json={}).status_code == 401
        key = {"Authorization": "Bearer a-token-of-some-length"}
        foreign = {**key, "Origin": "https://evil.example"}
        assert client.post("/v1/rollouts/bad/rollback", json={}, headers=foreign).status_code == 403
        assert client.post("/v1/rollouts/bad/rollback", json={}, headers=key).status_code == 200
