"""Scenario 3: the disk is full. Clear errors, nothing damaged or half written, and all goes on when there is room."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from scenario import Serve, report, spans_of_a_trace

from agent_forge.traces import Store
from agent_forge.traces.otlp import write_request

pytestmark = pytest.mark.own_mounts

PAGES = ("/", "/runs", "/traces", "/models", "/v1/runs", "/v1/models", "/v1/runs/some")


def post_spans(client: Any, count: int = 3, size: int = 0) -> tuple[list[Any], Any]:
    spans = spans_of_a_trace(count, size)
    return spans, client.post("/v1/traces", json=write_request(spans))


@pytest.mark.parametrize("state", ["empty", "used"])
def test_a_server_that_starts_on_a_full_disk(small_disk: Callable[[int], Any], state: str) -> None:
    """It says so on every route, with Retry-After and in its log, and serves as soon as there is room."""
    disk = small_disk(8)
    home, kept = disk.path / "home", spans_of_a_trace(3)
    home.mkdir()
    if state == "used":
        with Store.open(home) as store:
            store.add(kept)
    disk.fill()
    with pytest.raises(OSError, match="No space"):  # the control: the disk is full for everyone
        (disk.path / "note").write_text("x" * 10_000)
    held = attempts = 0
    with Serve(home) as server, server.client() as client:
        assert client.get("/healthz").status_code == 200
        ready = client.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["checks"] == {"disk": "the disk is full", "traces": "the disk is full"}
        responses = [(path, client.get(path)) for path in PAGES]
        responses += [("POST /v1/runs", client.post("/v1/runs", json={"request": "What is 2 + 3?"}))]
        responses += [("POST /v1/traces", post_spans(client)[1])]
        for path, response in responses:
            attempts += 1
            told = response.status_code == 503 and response.headers.get("retry-after") == "5"
            held += told and "the disk is full" in response.text
            assert told, (path, response.status_code, response.text[:300])
        disk.clear()
        (disk.path / "note").unlink(missing_ok=True)
        assert client.get("/readyz").status_code == 200
        for path in PAGES[:-1]:
            assert client.get(path).status_code == 200
        spans, response = post_spans(client)
        assert response.status_code == 200
        server.stop()
        causes = [line["cause"] for line in server.log if line.get("status") == 503 and "cause" in line]
    assert len(causes) >= len(responses)
    assert all("the disk is full" in cause for cause in causes)
    with Store.open(home) as store:
        assert len(store.trace(spans[0].trace_id)) == 3
        assert len(store.trace(kept[0].trace_id)) == (3 if state == "used" else 0)
        assert store.check() == []
    report(3, f"server started on a full disk ({state} home): every route", attempts, held)


def test_a_disk_that_fills_while_spans_come_in(small_disk: Callable[[int], Any]) -> None:
    """What was acknowledged is there, what was refused is not, and all is taken when there is room again."""
    disk = small_disk(8)
    home = disk.path / "home"
    with Serve(home) as server, server.client() as client:
        taken, refused = [], []
        while len(refused) < 5:
            spans, response = post_spans(client, 50, 2_000)
            (taken if response.status_code == 200 else refused).append(spans)
            assert response.status_code in (200, 503)
        assert response.headers["retry-after"] == "5"
        assert "the disk is full" in response.json()["message"]
        assert client.get("/readyz").json()["checks"]["disk"] == "the disk is full"
        assert client.get("/traces").status_code == 200  # what is stored can still be read
        # No ballast here: the store itself has filled the disk. Room comes from a larger disk.
        import subprocess

        subprocess.run(["mount", "-o", "remount,size=64m", str(disk.path)], check=True)
        assert client.get("/readyz").status_code == 200
        again = [client.post("/v1/traces", content=json.dumps(write_request(spans)), headers=JSON) for spans in refused]
        assert [response.status_code for response in again] == [200] * 5
        server.stop()
    with Store.open(home) as store:
        assert store.check() == []
        held = sum(len(store.trace(spans[0].trace_id)) == 50 for spans in taken + refused)
        assert store.count() == 50 * len(taken + refused)
    report(3, "disk fills during intake: acknowledged batches complete", len(taken + refused), held)


JSON = {"Content-Type": "application/json"}
