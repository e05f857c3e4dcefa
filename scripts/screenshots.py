"""Pictures of the dashboard's pages, in light, dark and at the width of a phone.

    python scripts/screenshots.py HOME OUT [--all]

HOME is a home folder with runs, a forge session and an audit; the PNG files go to OUT. Without --all, only those that
the documentation shows. Needs Playwright, Pillow and Chromium (at $CHROMIUM, else /usr/bin/chromium).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextmanager
def served(home: str) -> Iterator[str]:
    """A server on a free port, for the duration of the block."""
    import uvicorn

    from agent_forge.server.serving import config, listen
    from agent_forge.server.settings import ServerSettings

    settings = ServerSettings(port=0, home=home, log_level="error")
    listening = listen(settings)
    server = uvicorn.Server(config(settings))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=30)


def places(home: str) -> dict[str, str]:
    """The addresses of the pages, by the name of the picture."""
    from agent_forge.forge.registry import Registry
    from agent_forge.runtime import Journal
    from agent_forge.traces import Store

    lines, _ = Journal.open(home).page(50)
    runs = sorted(lines, key=lambda line: (line.state != "done", -(line.tasks or 0)))
    traces = sorted(Store.open(home).traces(limit=2_000), key=lambda one: -one.spans)
    registry = Registry(home)
    sessions, models = registry.sessions(), registry.ls()
    audits = sorted(Path(home, "audits").glob("*.json"))
    child = max(models, key=lambda entry: len(entry.parents), default=None)
    pages = {"overview": "/", "runs": "/runs", "traces": "/traces", "sessions": "/sessions", "trust": "/trust"}
    pages |= {"forge": "/forge", "models": "/models", "data": "/data"}
    if runs:
        pages["run"] = f"/runs/{runs[0].run}"
    if len(runs) > 1:
        pages["compare"] = f"/compare?run={runs[0].run}&run={runs[1].run}"
    if traces:
        pages["trace"] = f"/traces/{traces[0].trace_id}"
    if sessions:
        pages["session"] = f"/forge/{sessions[-1]['session']}"
    if child is not None:
        pages["model"] = f"/models/{child.digest}"
        pages["models-compare"] = "/models/compare?" + "&".join(f"model={one.digest}" for one in models[:3])
    if audits:
        pages["audit"] = f"/data/{audits[0].stem}"
    return pages


WIDE, PHONE = {"width": 1240, "height": 820}, {"width": 390, "height": 780}
STYLES = {
    "": {"viewport": WIDE, "color_scheme": "light"},
    "-dark": {"viewport": WIDE, "color_scheme": "dark"},
    "-phone": {"viewport": PHONE, "color_scheme": "light"},
}
SHOWN = {"-dark": ("run", "session"), "-phone": ("run", "overview")}  # in the documentation, besides the light ones


def take(browser: Any, address: str, file: Path, opened: bool, **style: Any) -> None:
    """Takes one picture, of what is visible without scrolling."""
    page = browser.new_page(**style)
    page.goto(address)
    page.wait_for_load_state("load")
    if opened:
        page.locator("svg.graph a[data-node]").nth(6).click()
        page.locator("#panel h1").wait_for()
    page.wait_for_timeout(300)
    page.screenshot(path=file)
    page.close()
    shrink(file)


def shrink(file: Path) -> None:
    """Reduces the colours of the picture, and so its bytes."""
    from PIL import Image

    with Image.open(file) as picture:
        picture.convert("RGB").quantize(160, dither=Image.Dither.NONE).save(file, optimize=True)


def main(home: str, target: str, everything: bool) -> None:
    from playwright.sync_api import sync_playwright

    out = Path(target)
    out.mkdir(parents=True, exist_ok=True)
    with served(home) as url, sync_playwright() as playwright:
        chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        for name, address in places(home).items():
            for suffix, style in STYLES.items():
                if everything or not suffix or name in SHOWN[suffix]:
                    opened = name == "run" and suffix == "-dark"
                    take(browser, url + address, out / f"dashboard-{name}{suffix}.png", opened, **style)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "--all" in sys.argv[3:])
