"""Every page as HTML and JSON, its filters and its answers to what is not there, on a home that real runs filled."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
import server_home
from starlette.testclient import TestClient

from agent_forge.cli._app import app
from agent_forge.forge.registry import Registry
from agent_forge.server import dashboard, pages
from agent_forge.server.app import create_app
from agent_forge.server.dashboard import finite, with_query
from agent_forge.server.pages import traces as traces_page
from agent_forge.server.pages.models import compare, relatives
from agent_forge.server.settings import ServerSettings
from agent_forge.traces import Span, Store

HTML = {"accept": "text/html"}


@pytest.fixture(scope="module")
def client(dashboard: Any) -> Iterator[httpx.Client]:
    with dashboard.client(headers=HTML) as client:
        yield client


@pytest.fixture(scope="module")
def home(dashboard: Any) -> Path:
    return Path(dashboard.context.home)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    app = create_app(ServerSettings(home=str(tmp_path_factory.mktemp("empty")), log_level="error"))
    return TestClient(app, base_url="http://127.0.0.1", headers=HTML)


class Tags(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def everywhere(home: Path) -> list[str]:
    with Store.open(home) as store:
        traces = list(store.traces(limit=200))
        biggest = max(traces, key=lambda one: one.spans)
        span = store.trace(biggest.trace_id)[3].span_id
    registry = Registry(home)
    session, models = registry.sessions()[0]["session"], registry.ls()
    return [
        "/", "/runs", "/runs?state=failed", "/runs/report-1", "/runs/report-failed", "/runs/report-1/tasks/read_2",
        "/compare?run=report-1&run=report-2", "/traces", "/traces?agent=Hasty&min_reward=0.5",
        f"/traces/{biggest.trace_id}",
        f"/traces/{biggest.trace_id}/{span}", "/sessions", "/sessions/monday", "/trust", "/forge", f"/forge/{session}",
        "/models", f"/models/{models[0].digest}", f"/models/compare?model={models[0].digest}&model={models[1].digest}",
        "/data", "/data/rows", "/rollouts", "/policies", "/agents",
    ]  # fmt: skip


def beside(path: str) -> str:
    address, _, query = path.partition("?")
    return ("/overview" if address == "/" else address) + ".json" + (f"?{query}" if query else "")


def test_every_page_has_html_and_json_and_leads_nowhere_else(client: httpx.Client, home: Path) -> None:
    for path in everywhere(home):
        page, document = client.get(path), client.get(beside(path))
        assert (path, page.status_code, document.status_code) == (path, 200, 200)
        assert document.headers["content-type"] == "application/json"
        assert re.fullmatch(r"data;dur=[\d.]+, page;dur=[\d.]+", page.headers["server-timing"])
        tags = Tags(page.text)
        addresses = [
            value for _, found in tags.found for key, value in found.items() if key in ("href", "src", "action")
        ]
        assert all(value and value.startswith(("/", "#", "?")) for value in addresses), path
        assert not any("style" in found or any(key.startswith("on") for key in found) for _, found in tags.found), path
        assert all("src" in script for script in tags.all("script")), path
        ids = [found["id"] for _, found in tags.found if "id" in found]
        assert len(ids) == len(set(ids)), path


def test_a_client_that_takes_only_json_gets_it(client: httpx.Client) -> None:
    answer = client.get("/runs/report-1", headers={"accept": "application/json"})
    assert answer.json()["state"] == "done"
    assert answer.json() == {**client.get("/runs/report-1.json").json(), "version": answer.json()["version"]}


def test_the_figures_of_a_run_are_those_of_its_tasks(client: httpx.Client) -> None:
    run = client.get("/runs/report-1.json").json()
    durations = {name: task["duration_s"] for name, task in run["tasks"].items()}
    assert run["times"]["work_s"] == pytest.approx(sum(durations.values()))
    assert run["times"]["critical_path_s"] == pytest.approx(sum(durations[name] for name in run["critical_path"]))
    assert run["times"]["critical_path_s"] <= min(run["times"]["wall_s"], run["times"]["work_s"])
    model_tasks = [
        name for name, task in server_home.REVIEW.tasks.items() if task.action in ("draft", "summarise", "check")
    ]
    assert run["usage"]["output_tokens"] == sum(run["tasks"][name]["output_tokens"] for name in model_tasks)
    assert sum(task["credit"] for task in run["tasks"].values()) == pytest.approx(
        run["credit_from"]["outcome"], abs=0.3
    )
    assert {tuple(edge) for edge in run["edges"]} >= {("outline", "find_1"), ("write", "review")}
    shown = Tags(client.get("/runs/report-1").text)
    assert len([found for found in shown.all("a") if "data-node" in found]) == 2 * len(durations)


def test_a_failed_run_shows_what_failed_and_what_was_left_out(client: httpx.Client) -> None:
    run = client.get("/runs/report-failed.json").json()
    assert run["counts"] == {"done": 9, "failed": 1, "skipped": 3}
    assert "503 Service Unavailable" in Tags(client.get("/runs/report-failed").text).text
    task = client.get("/runs/report-failed/tasks/costs.json").json()
    assert (task["state"], task["waits_for"], task["needed_by"]) == ("skipped", ["read_3", "read_4"], ["write"])
    assert client.get("/runs.json?state=failed").json()["runs"][0]["run"] == "report-failed"


def test_two_runs_side_by_side(client: httpx.Client) -> None:
    found = client.get("/compare.json?run=report-1&run=report-failed").json()
    rows = {row["task"]: row for row in found["tasks"]}
    assert rows["read_3"]["states"] == ["done", "failed"]
    assert rows["costs"]["difference_s"] is None
    assert rows["find_1"]["same_result"] is True
    assert (found["same_plan"], found["same_answer"]) == (True, None)
    assert client.get("/compare?run=report-1").status_code == 400


def test_traces_are_found_by_who_how_and_what(client: httpx.Client) -> None:
    def names(query: str) -> list[str]:
        return [trace["name"] for trace in client.get(f"/traces.json?{query}").json()["traces"]]

    every = names("")
    assert 0 < len(names("status=error")) < len(every)
    assert all("report" in name for name in names("agent=Researcher"))
    assert len(names("session=monday")) == 2
    assert names("text=503+Service") == ["report (report-failed)"]
    assert set(names("kind=plan")) == {
        "Who is older, Manuel Antonio or Wilfred MacDonald?",
        "Where was the director of film Alien born?",
    }
    assert len(names("agent=Hasty&max_reward=0")) == sum(
        1 for name in names("agent=Hasty") if name not in names("agent=Hasty&min_reward=1")
    )
    assert names("since=1h") == every
    assert names("until=2020-01-01") == []
    assert names("category=adding&model=mental-arithmetic&text=nothing+like+it") == []
    for wrong in ("status=x", "kind=x", "min_reward=much", "since=yesterday"):
        assert client.get(f"/traces?{wrong}").status_code == 400, wrong


def test_pages_of_traces_follow_each_other(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces_page, "SHOWN", 7)
    for query in ("", "agent=Hasty", "text=adding"):
        seen, after = [], ""
        while after is not None:
            page = client.get(
                "/traces.json", params={**dict(part.split("=") for part in query.split("&") if part), "after": after}
            )
            seen += [trace["trace_id"] for trace in page.json()["traces"]]
            after = page.json()["next"]
        monkeypatch.setattr(traces_page, "SHOWN", 1_000)
        whole = client.get(f"/traces.json?{query}").json()["traces"]
        monkeypatch.setattr(traces_page, "SHOWN", 7)
        assert seen == [trace["trace_id"] for trace in whole]
        assert len(seen) > 7


def test_a_long_search_stops_shows_what_it_has_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces_page, "SLICE", 10)
    monkeypatch.setattr(traces_page, "SEARCH_S", 0.0)
    with Store.open(tmp_path) as store:
        store.add(
            Span(
                f"{n:032x}", "1" * 16, f"call {n}", start_ns=n * 1000, end_ns=n * 1000 + 5, agent=("even", "odd")[n % 2]
            )
            for n in range(1, 100)
        )
        found, after, steps = [], None, 0
        while True:
            part, after, until = traces_page.search(store, {"agent": "even", "text": "call"}, after)
            found += [one.name for one in part]
            steps += 1
            if after is None:
                break
            assert until is not None
        assert found == [f"call {n}" for n in range(98, 0, -2)]
        assert steps > 3


def test_a_trace_without_its_outermost_span_is_open(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        part = Span("a" * 32, "1" * 16, "inner", parent_id="2" * 16, start_ns=1, end_ns=2, status="ok")
        store.add([part])
        (line,) = (traces_page.trace_line(one) for one in store.traces())
        assert (line["state"], line["name"]) == ("open", None)
        store.add(
            [Span("a" * 32, "2" * 16, "outer", start_ns=0, end_ns=None), replace(part, span_id="3" * 16, end_ns=None)]
        )
        assert traces_page.trace_line(store.traces().items[0])["state"] == "running"
    app = create_app(ServerSettings(home=str(tmp_path), log_level="error"))
    page = TestClient(app, base_url="http://127.0.0.1", headers=HTML).get(f"/traces/{'a' * 32}")
    assert "data-live" in page.text


def test_trust_has_intervals_that_hold_the_mean(client: httpx.Client) -> None:
    found = client.get("/trust.json").json()
    cells = {(cell["agent"], cell["category"]): cell for cell in found["cells"]}
    assert all(cell["low"] <= cell["mean"] <= cell["high"] for cell in cells.values())
    assert cells["Careful", "multiplying"]["low"] > cells["Hasty", "multiplying"]["high"]
    assert {row["agent"] for row in found["table"]} >= {"Careful", "Hasty", "Researcher"}


def test_a_forge_session_shows_gates_curves_and_checkpoints(client: httpx.Client, home: Path) -> None:
    *_, session = client.get("/forge.json").json()["sessions"]  # the first that was run; the browser's may be there too
    assert session["state"] == "completed"
    found = client.get(f"/forge/{session['session']}.json").json()
    phases = {phase["name"]: phase for phase in found["phases"]}
    assert {name: phase["state"] for name, phase in phases.items()} == session["phases"]
    assert phases["base"]["gate"]["verdict"] == "passed"
    assert phases["memory"]["state"] == "no gain"
    charts = {chart["name"]: chart for chart in phases["base"]["series"]}
    assert [line["name"] for line in charts["loss"]["lines"]] == ["loss", "mean_loss"]
    assert len(charts["loss"]["lines"][0]["points"]) == 40
    assert charts["evaluation bits per byte"]["lines"][0]["errors"] == [0.05] * 4
    text = client.get(f"/forge/{session['session']}").text
    gains = re.findall(r'<td class="n">([^<]*)</td><td class="n">([^<]*)</td><td class="n">0.05', text)
    assert "over the control" in text
    assert text.count("<small>of a &lt;toy&gt;</small>") == len(phases), "what else to know about each result"
    assert [over for _, over in gains] == ["−0.25"] * len(phases), "what each phase gained over its control"
    page = Tags(text)
    assert len([svg for svg in page.all("svg") if svg.get("class") == "chart"]) == sum(
        len(p["series"]) for p in phases.values()
    )


def test_models_have_their_lineage_and_are_compared_with_their_errors(client: httpx.Client, home: Path) -> None:
    found = client.get("/models.json").json()
    by_phase = {model["phase"]: model for model in found["models"]}
    assert found["metric"] == "bits per byte"
    join = client.get(f"/models/{by_phase['join']['digest'][:12]}.json").json()
    assert {one["name"] for one in join["relatives"]} == {"join", "base"}  # its inputs were passed on: no gain
    assert join["metrics"]["bits per byte"]["how"].startswith("distance from the truth")
    both = client.get(
        "/models/compare.json", params={"model": [by_phase["join"]["digest"], by_phase["base"]["digest"]]}
    ).json()
    assert both["metrics"][0]["best"] == 0
    assert client.get("/models/compare?model=x").status_code == 400
    assert client.get("/models/zzz").status_code == 404


def test_the_better_model_is_marked_only_beyond_the_errors() -> None:
    def entry(value: float, error: float | None, name: str = "loss") -> dict[str, Any]:
        metrics = {name: {"value": value, "stderr": error}}
        return {
            "metrics": metrics,
            **dict.fromkeys(("digest", "name", "phase", "parameters", "bytes", "created_s", "parents")),
        }

    def best(a: dict[str, Any], b: dict[str, Any]) -> Any:
        return compare([a, b])["metrics"][0]["best"]

    assert best(entry(1.0, 0.3), entry(1.5, 0.3)) is None
    assert best(entry(1.0, 0.1), entry(1.5, 0.1)) == 0
    assert best(entry(0.1, 0.01, "accuracy"), entry(0.5, 0.01, "accuracy")) == 1
    assert best(entry(1.0, None), entry(9.0, None)) is None  # without errors nothing is known
    assert best(entry(1.0, 0.1, "depth"), entry(9.0, 0.1, "depth")) is None  # nor is which side is better
    entries = {
        "c": {"digest": "c", "parents": ["b", "gone"]},
        "b": {"digest": "b", "parents": []},
        "z": {"digest": "z", "parents": []},
    }
    assert set(relatives(entries, "b")) == {"b", "c"}
    assert set(relatives(entries, "c")) == {"b", "c", "gone"}


def test_an_audit_is_listed_and_shown_and_a_broken_one_does_no_harm(client: httpx.Client, home: Path) -> None:
    for name, text in (("bad", "{"), ("other", "{}"), ("wrong", "[]")):
        (home / "audits" / f"{name}.json").write_text(text)
    try:
        listed = {audit["name"]: audit for audit in client.get("/data.json").json()["audits"]}
        assert listed["rows"]["passed"] is False
        assert "cannot be read" in listed["bad"]["error"]
        assert "not an audit report" in listed["other"]["error"]
        assert client.get("/data").status_code == 200
        assert client.get("/data/bad").status_code == 500
        assert "rows.jsonl" in Tags(client.get("/data/rows").text).text
        for path in ("/data/..%2f..%2fetc%2fpasswd", "/data/%2e%2e", "/data/none"):
            assert client.get(path).status_code == 404
    finally:
        for name in ("bad", "other", "wrong"):
            (home / "audits" / f"{name}.json").unlink()


@pytest.mark.parametrize(
    "path",
    ["/runs/none", "/runs/report-1/tasks/none", "/traces/ffff", "/traces/zz", "/sessions/none", "/forge/none",
     "/live/none/x", "/static/x.css", "/static/..%2fpage.py"],
)  # fmt: skip
def test_what_is_not_there(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 404


def test_unknown_words_are_refused_with_a_way_out(client: httpx.Client) -> None:
    answer = client.get("/runs?state=odd")
    assert answer.status_code == 400
    assert "use one of running" in Tags(answer.text).text.lower()
    trace = client.get("/traces.json").json()["traces"][0]["trace_id"]
    assert client.get(f"/traces/{trace}?credit=none").status_code == 404
    assert client.get(f"/traces/{trace}.json?credit=uniform").json()["credit_strategy"] == "uniform"


def test_hostile_names_are_text_everywhere(client: httpx.Client, home: Path) -> None:
    with Store.open(home) as store:
        trace = next(one.trace_id for one in store.traces(session=server_home.HOSTILE))
        spans = [span.span_id for span in store.trace(trace)]
    paths = ["/", "/runs", "/runs/hostile", "/runs/hostile/tasks/a", "/runs/hostile/page", "/traces", "/trust",
             "/sessions", f"/traces/{trace}", *(f"/traces/{trace}/{span}" for span in spans),
             "/traces?text=" + server_home.HOSTILE, "/runs/" + server_home.HOSTILE.replace("/", "%2f")]  # fmt: skip
    for path in paths:
        answer = client.get(path)
        if answer.headers["content-type"] == "application/json":
            continue  # no browser reads it as anything else: nosniff
        tags = Tags(answer.text)
        assert not tags.all("img"), path
        assert all("src" in found for found in tags.all("script")), path
        assert not any(key.startswith("on") for _, found in tags.found for key in found), path


def test_a_run_as_one_file_needs_nothing_else(client: httpx.Client) -> None:
    answer = client.get("/runs/report-1/page")
    assert answer.headers["content-disposition"] == 'attachment; filename="run-report-1.html"'
    tags = Tags(answer.text)
    assert not tags.all("link")
    assert not tags.all("script")
    assert not tags.all("img")
    links = [found["href"] for found in tags.all("a") if found.get("href")]
    ids = {found["id"] for _, found in tags.found if "id" in found}
    assert {link for link in links if link and not link.startswith("#")} == set()
    assert {link[1:] for link in links if link} <= ids
    assert "sha256-" in str(tags.all("meta"))
    assert '"run": "report-1"' in tags.text


def test_empty_pages_name_the_command_that_fills_them(empty: TestClient) -> None:
    commands = {
        "/": "agent-forge demo", "/runs": "agent-forge run", "/traces": "agent-forge traces import",
        "/forge": "agent-forge forge run nano", "/sessions": "agent-forge delegation install",
        "/trust": "agent-forge delegation verify", "/models": "agent-forge forge run nano",
        "/data": "agent-forge data audit", "/rollouts": "agent-forge rollout create",
        "/policies": "agent-forge train agent qa",
    }  # fmt: skip
    for path, command in commands.items():
        html = empty.get(path).text
        assert command in Tags(html).text, path
        for words in re.findall("<code>agent-forge ([^<]+)</code>", html):
            group: click.Command | None = app
            for word in words.split():
                group = group.get_command(click.Context(group), word) if isinstance(group, click.Group) else group
                assert group is not None, f"{path}: there is no command {words!r}"
    assert "No run is failed" in empty.get("/runs?state=failed").text
    assert "No trace matches" in empty.get("/traces?agent=nobody").text


def test_static_files_may_be_kept_for_ever_by_their_content(empty: TestClient) -> None:
    sheet = next(found["href"] for found in Tags(empty.get("/").text).all("link") if found["rel"] == "stylesheet")
    assert "immutable" in empty.get(str(sheet)).headers["cache-control"]
    assert empty.get("/static/forge.css").headers["cache-control"] == "no-cache"
    assert empty.get("/static/forge.js").headers["content-type"].startswith("text/javascript")


def test_a_new_page_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weather.py").write_text(
        "from agent_forge.server.dashboard import DashboardPage, page_routes\n"
        "def data(context, request): return {'error': {'message': 'soon', 'status': 200}}\n"
        "def routes(context): return page_routes(context, '/weather', 'error.html', data)\n"
        "PAGE = DashboardPage('Weather', '/weather', 'w', 52, routes)\n"
    )
    monkeypatch.setattr(pages, "__path__", [*pages.__path__, str(tmp_path)])
    dashboard.pages.cache_clear()
    try:
        client = TestClient(
            create_app(ServerSettings(home=str(tmp_path), log_level="error")), base_url="http://127.0.0.1"
        )
        names = [found.get("data-key") for found in Tags(client.get("/weather", headers=HTML).text).all("a")]
        assert names.index("m") < names.index("w") < names.index("d")
        assert client.get("/weather.json").json()["error"]["message"] == "soon"
    finally:
        monkeypatch.undo()
        dashboard.pages.cache_clear()
        sys.modules.pop("agent_forge.server.pages.rollouts", None)


def test_documents_are_json_whatever_is_in_them() -> None:
    odd = {"a": float("nan"), "b": [float("inf"), (1, 2)], "c": Path("x"), 3: None}
    assert json.loads(json.dumps(finite(odd), allow_nan=False)) == {"a": None, "b": [None, [1, 2]], "c": "x", "3": None}
    assert with_query(None, agent="a b", model=None) == "?agent=a+b"


def test_an_open_page_does_not_keep_the_server_from_ending(tmp_path: Path) -> None:
    from agent_forge.server.serving import Server, config, listen

    settings = ServerSettings(port=0, home=str(tmp_path), log_level="error")
    listening = listen(settings)
    made = config(settings)
    made.timeout_graceful_shutdown = 600  # so long would uvicorn wait for those who look on
    server = Server(made)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/live/overview/all"
    with httpx.stream("GET", url, timeout=60, trust_env=False) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "retry: 2000"
        server.should_exit = True
        list(lines)  # to its proper end: httpx raises for a torn answer
    thread.join(timeout=120)
    assert not thread.is_alive()


def test_the_icon_is_where_browsers_look_for_it(plain: Any) -> None:
    with plain.client(follow_redirects=True) as client:
        answer = client.get("/favicon.ico")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/svg+xml")
