"""Scenario 9: a wrong Host, a foreign Origin, no token, on every route and method; and a foreign page in a browser."""

from __future__ import annotations

import http.server
import os
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scenario import LONG, Serve, report, times

from agent_forge.server.app import create_app
from agent_forge.server.settings import ServerSettings

TOKEN = "correct-horse-battery-staple"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
OPEN = ("/healthz", "/readyz")
HOSTS = ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "")
ORIGINS = ("https://evil.example", "null", "http://localhost:1", "http://[")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"


def all_paths(document: dict[str, Any]) -> list[str]:
    """Every path of the OpenAPI description and every route of the application, with a name for each parameter."""
    paths = set(document["paths"])
    paths |= {route.path for route in create_app(ServerSettings(home=".")).routes}  # type: ignore[attr-defined]
    return sorted({re.sub(r"{[^}]*}", "some", path) for path in paths})


def test_every_route_asks_who_calls(tmp_path: Path) -> None:
    attempts = held = 0
    wrong = []
    with Serve(tmp_path, "--host", "0.0.0.0", "--token", TOKEN) as server, server.client() as client:
        key = {"Authorization": f"Bearer {TOKEN}"}
        document = client.get("/openapi.json", headers=key).json()
        paths = all_paths(document)
        for number, path in enumerate(paths):
            for method in METHODS if LONG else [METHODS[number % len(METHODS)]]:  # in turn, so that every one is tried
                tries = [({"Host": host, **key}, (403,)) for host in HOSTS[: times(1, 4)]]
                tries += [({"Origin": origin, **key}, (400, 403)) for origin in ORIGINS[: times(1, 4)]]
                if path not in OPEN:
                    tries += [({}, (401,))]
                for headers, expected in tries:
                    attempts += 1
                    status = client.request(method, path, headers=headers).status_code
                    held += status in expected
                    if status not in expected:
                        wrong.append((method, path, headers, status))
        assert client.get("/v1/models", headers=key).status_code == 200  # the control: with the token it is open
        assert client.get("/v1/runs", headers=key).json() == {"runs": []}
        server.stop()
        assert TOKEN not in "".join(server.lines)
    assert wrong == []
    report(9, f"Host, Origin and token on {len(paths)} routes × {len(METHODS)} methods", attempts, held)


PAGE = """<!doctype html><title>other</title><img src="{url}/v1/runs"><script>
const body = JSON.stringify({{plan: {{tasks: [{{id: "a", goal: "x"}}]}}}});
const send = (options) =>
  fetch("{url}/v1/runs", {{method: "POST", body, ...options}}).then(r => r.status, () => "refused");
Promise.all([
  send({{mode: "no-cors"}}),
  send({{mode: "no-cors", headers: {{"Content-Type": "text/plain"}}}}),
  send({{mode: "cors", headers: {{"Content-Type": "application/json"}}}}),
  send({{mode: "cors", credentials: "include"}}),
  fetch("{url}/v1/runs").then(r => r.text(), () => "refused"),
]).then(results => {{ document.title = "done " + JSON.stringify(results); }});
</script><form id="f" method="post" enctype="text/plain" action="{url}/v1/runs" target="frame">
<input name='{{"request": "x", "a' value='": 1}}'>
</form><iframe name="frame"></iframe><script>document.getElementById("f").submit()</script>"""


@contextmanager
def foreign_site(url: str) -> Iterator[str]:
    """A web site of another origin, whose page calls the server in every way a page can."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(PAGE.format(url=url).encode())

        def log_message(self, *arguments: Any) -> None:
            pass

    site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{site.server_port}"
    finally:
        site.shutdown()
        site.server_close()


def called_by_a_foreign_page(browser: Any, home: Path, allowed: bool) -> tuple[str, list[Any]]:
    """What the page says it got, and the runs that there are then."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]  # known before the server starts, to write it into the page
    with foreign_site(f"http://127.0.0.1:{port}") as site:
        options = ["--allow-origin", site] if allowed else []
        with Serve(home, "--port", str(port), *options) as server, server.client() as client:
            page = browser.new_page()
            page.goto(site)
            page.wait_for_function("document.title.startsWith('done')", timeout=120_000)
            title = page.title()
            page.close()
            return title, client.get("/v1/runs").json()["runs"]


def test_a_foreign_page_starts_nothing(tmp_path: Path) -> None:
    """In a real browser. The control allows its origin: then the same page does start a run."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not Path(CHROMIUM).exists():
        pytest.skip("there is no Chromium: `apt-get install chromium` brings it")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        found = {
            allowed: called_by_a_foreign_page(browser, tmp_path / f"{allowed}", allowed) for allowed in (False, True)
        }
        browser.close()
    for allowed, (title, _) in found.items():
        assert ("202" in title, '{\\"runs\\"' in title) == (allowed, allowed), title  # started, and read what is there
    assert found[False][1] == []
    report(9, "a foreign page in Chromium: forms, images, fetch in all modes", 7, 7, "no run started, nothing read")
