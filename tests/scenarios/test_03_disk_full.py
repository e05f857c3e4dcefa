"""Scenario 3: the disk is full. Clear errors, nothing damaged or half written, and all goes on when there is room."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scenario import Serve, report, spans_of_a_trace

from agent_forge.cli import run
from agent_forge.errors import AgentForgeError
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


def left_over(folder: Path) -> list[str]:
    """What lies in a folder besides the ballast."""
    return sorted(path.name for path in folder.iterdir() if path.name not in ("ballast", "home"))


@pytest.mark.parametrize("what", ["run", "export", "scrub"])
def test_commands_say_so_and_leave_nothing_half(
    small_disk: Callable[[int], Any], what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run, an export and a scrub that do not fit: exit code 1 and the reason, no file; then all go through."""
    disk = small_disk(8)
    home, source = tmp_path / "home", tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({"text": f"mail jo{n}@corp.io " + "x" * 2000}) + "\n" for n in range(500)))
    with Store.open(home) as store:
        for _ in range(20):
            store.add(spans_of_a_trace(20, 2_000))
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"tasks": [{"id": "a", "action": "calculator", "args": {"expression": "2 + 3"}}]}))
    command = {
        "run": ["run", "--plan", str(plan), "--home", str(disk.path / "home")],
        "export": ["traces", "export", str(disk.path / "out.jsonl"), "--home", str(home)],
        "scrub": ["data", "scrub", str(source), str(disk.path / "out.jsonl")],
    }[what]
    disk.fill(4096)
    with pytest.raises(OSError, match="No space"):  # the control: a plain write is cut off, and leaves its beginning
        (disk.path / "plain").write_text("x" * 100_000)
    assert 0 < (disk.path / "plain").stat().st_size < 100_000
    (disk.path / "plain").unlink()
    assert run(command) == 1
    said = capsys.readouterr().err
    assert "full" in said or "No space" in said, said
    assert left_over(disk.path) == []
    disk.clear()
    assert run(command) == 0
    report(3, f"disk full for {what}: reason, nothing half written, then through", 1, 1)


@pytest.mark.parametrize("what", ["merge", "checkpoint"])
def test_models_are_whole_or_absent(small_disk: Callable[[int], Any], what: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: the extra `forge` brings it")
    sys.path.insert(0, str(Path(__file__).parents[1] / "forge"))
    from tests_merge_models import llama_tensors, moved, write_model

    from agent_forge.forge import checkpoint
    from agent_forge.forge.merging import merge, parse_recipe

    disk, base = small_disk(8), llama_tensors(vocabulary=40_000)
    folders = [write_model(tmp_path / name, moved(base, seed)) for seed, name in enumerate(("a", "b"))]
    recipe = parse_recipe({"merge_method": "linear", "models": [{"model": str(folder), "parameters": {"weight": 0.5}}
                                                                for folder in folders]})  # fmt: skip

    def work() -> Any:
        if what == "merge":
            return merge(recipe, disk.path / "out")
        with checkpoint.staging(disk.path) as folder:
            for file in folders[0].iterdir():
                (folder / file.name).write_bytes(file.read_bytes())
            return checkpoint.finish(folder, checkpoint.Card(phase="toy", config={}), disk.path)

    disk.fill(1 << 20)
    with pytest.raises((AgentForgeError, OSError)) as failed:
        work()
    assert "No space" in str(failed.value) or "cannot be written" in str(failed.value) or "full" in str(failed.value)
    assert not (disk.path / "out").exists()
    disk.clear()
    work()
    report(3, f"disk full for {what}: no half model, then through", 1, 1)
