"""The dashboard in a real browser: clicks, filters, keys, news while a run is in progress, and nothing leaves here."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import server_home

from agent_forge.forge.events import Bus, jsonl_sink
from agent_forge.forge.registry import Registry
from agent_forge.plans import Task
from agent_forge.runtime import Journal, execute

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--disable-extensions",
    "--disable-software-rasterizer", "--disable-gpu-compositing",
]  # fmt: skip
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
PATIENCE_MS = 120_000  # a guard against hanging, not a promise


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not Path(CHROMIUM).exists():
        pytest.skip("there is no Chromium: `apt-get install chromium` brings it")
    with playwright.sync_playwright() as started:
        try:
            made = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=PATIENCE_MS)
        except playwright.Error as error:
            pytest.skip(f"Chromium does not start here: {error}")
        yield made
        made.close()


class Seen:
    """What went on behind a page: words on the console, requests, dialogs."""

    def __init__(self, page: Any) -> None:
        page.set_default_timeout(PATIENCE_MS)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self.requests.append(request.url))

    def check(self, url: str) -> None:
        assert self.complaints == []
        assert {urlsplit(request).netloc for request in self.requests} == {urlsplit(url).netloc}


@pytest.fixture(scope="module")
def tab(browser: Any) -> Iterator[tuple[Any, Seen]]:
    """One for most tests: a new one is a new process of the browser."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    yield page, Seen(page)
    page.close()


@pytest.fixture
def page(tab: tuple[Any, Seen], dashboard: Any) -> Iterator[Any]:
    made, seen = tab
    seen.requests.clear()
    yield made
    seen.check(dashboard.url)
    made.goto("about:blank")
    seen.complaints.clear()


def test_every_page_is_reached_by_clicking(page: Any, dashboard: Any) -> None:
    page.goto(dashboard.url + "/")
    for name in ("Overview", "Runs", "Traces", "Trust", "Forge", "Models", "Data"):
        page.get_by_label("Pages").get_by_role("link", name=name).click()
        page.locator("nav a[aria-current]", has_text=name).wait_for()
        assert page.locator("h1").count() == 1
    for start in ("/runs", "/forge", "/models", "/data", "/sessions", "/traces"):
        page.goto(dashboard.url + start)
        page.locator("main tbody a").first.click()
        page.locator(".crumbs").wait_for()


def test_a_click_on_a_task_shows_it_beside_the_plan(page: Any, dashboard: Any) -> None:
    page.goto(dashboard.url + "/runs/report-1")
    page.locator("svg.graph a[data-node=read_2]").click()
    panel = page.locator("#panel")
    panel.get_by_text("chat read_2").wait_for()
    text = panel.inner_text()
    assert "tokens" in text
    assert "words about read_2" in text
    assert page.locator("a.fall-row.lit[data-node=read_2]").count() == 1  # lit on the time line as well
    page.locator("a.fall-row[data-node=find_3]").click()
    panel.get_by_text("find_3").first.wait_for()
    panel.get_by_role("link", name="read_3").click()  # what needs it is a click away
    panel.locator("h1", has_text="read_3").wait_for()
    page.keyboard.press("Escape")
    assert panel.is_hidden()
    page.locator(".figure", has_text="critical path").locator("summary").click()
    assert page.get_by_text("no schedule can be faster").is_visible()


def test_filters_find_and_say_so_in_the_address(page: Any, dashboard: Any) -> None:
    page.goto(dashboard.url + "/traces")
    page.locator("select[name=agent]").select_option("Hasty")
    page.wait_for_url("**/traces?agent=Hasty")
    agents = page.locator("tbody td:nth-child(3)").all_inner_texts()
    assert set(agents) == {"Hasty"}
    page.locator("main [data-search]").fill("multiplying")
    page.locator("main [data-search]").press("Enter")
    page.wait_for_url("**text=multiplying**")
    assert all("multiplying" in name for name in page.locator("tbody td:nth-child(2)").all_inner_texts())
    page.goto(dashboard.url + "/runs")
    page.get_by_label("state").select_option("failed")
    page.wait_for_url("**/runs?state=failed")
    assert page.locator("tbody tr").count() == 1


def test_two_runs_are_marked_and_compared(page: Any, dashboard: Any) -> None:
    page.goto(dashboard.url + "/runs")
    button = page.get_by_role("button", name="Compare two runs")
    assert button.is_disabled()
    page.get_by_label("Compare run report-1").check()
    page.get_by_label("Compare run report-2").check()
    button.click()
    page.get_by_role("heading", name="Two runs side by side").wait_for()
    assert page.locator("td.mono", has_text="find_4").count() == 1


def test_keys_move_open_search_and_help(page: Any, dashboard: Any) -> None:
    page.goto(dashboard.url + "/runs")
    for key in ("j", "j", "k", "j"):
        page.keyboard.press(key)
    chosen = page.locator("tr[aria-selected=true]")
    name = chosen.locator("a").inner_text()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{name}")
    page.keyboard.press("?")
    assert page.locator("dialog[open]").count() == 1
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/traces")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "text"


class Gated:
    """A run whose tasks each wait to be let go, in a thread of its own."""

    def __init__(self, home: Path, name: str) -> None:
        self.turns = {task: threading.Event() for task in ("one", "two")}
        self._thread = threading.Thread(target=self._run, args=(home, name))
        self._thread.start()

    def _run(self, home: Path, name: str) -> None:
        async def wait(task: Task, inputs: dict[str, Any]) -> str:
            await asyncio.to_thread(self.turns[task.id].wait, 600)
            return f"{task.id} was let go"

        journal = Journal.open(home)
        asyncio.run(execute([Task("one"), Task("two", depends_on=["one"])], wait, journal=journal, run_id=name))
        journal.close()

    def finish(self) -> None:
        for turn in self.turns.values():
            turn.set()
        self._thread.join(60)


def test_a_page_follows_a_run_while_it_is_in_progress(page: Any, dashboard: Any) -> None:
    page.goto(dashboard.url + "/runs")
    page.locator("#live-state.on").wait_for()
    run = Gated(Path(dashboard.context.home), "gated")
    try:
        page.get_by_role("link", name="gated").click()  # it has appeared in the list by itself
        page.locator("#live-state.on").wait_for()
        page.locator("svg.graph .is-running", has_text="one").wait_for()
        assert page.locator("svg.graph .is-waiting", has_text="two").count() == 1
        page.evaluate("window.here = true")
        run.turns["one"].set()
        page.locator("svg.graph .is-done", has_text="one").wait_for()
        page.locator("svg.graph .is-running", has_text="two").wait_for()
        run.turns["two"].set()
        page.locator("h1 .state.is-done").wait_for()
        page.get_by_text("finished").wait_for()
        assert page.evaluate("window.here") is True  # the page was never loaded anew
    finally:
        run.finish()


def test_a_page_follows_a_forge_session(page: Any, dashboard: Any) -> None:
    home = Path(dashboard.context.home)
    registry = Registry(home)
    step = {"phase": "cognate", "after": [], "config": {"training": {"steps": 100}}}
    registry.start_session("live-session", {"name": "live", "seed": 1, "parallel": 1, "phases": {"base": step}})
    registry.record_phase("live-session", "base", state="running", started_s=0.0)
    bus = Bus(jsonl_sink(home / "sessions" / "live-session" / "events.jsonl"))
    page.goto(dashboard.url + "/forge/live-session")
    page.locator("#live-state.on").wait_for()
    for n in range(1, 5):
        bus.tell("progress", "base", step=10 * n, loss=4.0 / n)
    page.locator("#phase-base svg.chart").wait_for()
    page.locator("svg.graph", has_text="40 %").wait_for()
    box = page.locator("#phase-base svg.chart").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5)
    assert "step" in page.locator(".reading").text_content()  # the value under the mouse
    registry.record_phase("live-session", "base", state="completed")
    registry.end_session("live-session", "completed")
    page.locator("h1 .state.is-completed").wait_for()


def test_hostile_words_stay_words(page: Any, dashboard: Any) -> None:
    trace = dashboard.context.traces.traces(session=server_home.HOSTILE).items[0].trace_id
    for path in ("/", "/runs/hostile", f"/traces/{trace}", "/traces", "/trust", "/sessions"):
        page.goto(dashboard.url + path)
        assert page.locator("img").count() == 0
    page.goto(dashboard.url + "/runs/hostile")
    page.locator("a.fall-row[data-node=b]").click()
    page.locator("#panel", has_text="alert(2)").wait_for()
    assert page.locator("img, main script, #panel script").count() == 0


def test_phone_dark_and_paper(browser: Any, dashboard: Any, tmp_path: Path) -> None:
    phone = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    seen = Seen(phone)
    for path in ("/", "/runs/report-1", "/traces", "/trust", "/models", "/data/rows"):
        phone.goto(dashboard.url + path)
        assert phone.evaluate("document.documentElement.scrollWidth") <= 390, path  # nothing sticks out
    dark = phone.evaluate("getComputedStyle(document.body).backgroundColor")
    phone.emulate_media(color_scheme="light")
    assert phone.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    phone.goto(dashboard.url + "/runs/report-1")
    phone.emulate_media(media="print")
    assert not phone.locator("nav").is_visible()
    assert phone.pdf()[:5] == b"%PDF-"
    seen.check(dashboard.url)
    phone.close()


def test_a_run_as_one_file_works_from_disk(browser: Any, dashboard: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    with dashboard.client() as client:
        file.write_bytes(client.get("/runs/report-1/page").content)
    page = browser.new_page()
    seen = Seen(page)
    page.goto(file.as_uri())
    page.locator("svg.graph a[data-node=find_2]").click()
    assert page.evaluate("document.querySelector(':target').id") == "find_2"
    colour = page.evaluate("getComputedStyle(document.querySelector('.graph .is-done .stripe')).fill")
    assert colour not in ("", "rgb(0, 0, 0)")  # its own style sheet is allowed by its own policy
    assert seen.complaints == []
    assert {urlsplit(request).scheme for request in seen.requests} == {"file"}
    page.close()


def test_thumbs_score_a_trace(page: Any, dashboard: Any) -> None:
    page.goto(dashboard.url + "/traces")
    page.locator("main tbody a").first.click()
    page.get_by_role("button", name="Good").click()
    page.get_by_text("You gave 1.").wait_for()
    assert page.get_by_role("button", name="Good").get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="Bad").click()
    page.get_by_text("You gave 0.").wait_for()
    page.locator("#credit td", has_text="user").wait_for()
