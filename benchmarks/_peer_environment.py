"""A virtual environment for the systems the executor is compared with; the package itself never depends on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from _random_graphs import Graph

PACKAGES = ("langgraph==1.2.20", "dask[distributed]==2026.8.0")
FOLDER = Path(os.environ.get("AGENT_FORGE_PEERS", Path(tempfile.gettempdir()) / "agent-forge-peers"))


def python() -> Path:
    """The environment's Python; the packages are installed the first time."""
    found = FOLDER / "bin" / "python"
    ready = FOLDER / "ready"
    if not ready.exists():
        print(f"installing {', '.join(PACKAGES)} into {FOLDER} …", file=sys.stderr)
        venv.create(FOLDER, with_pip=True)
        subprocess.run([str(found), "-m", "pip", "install", "-q", *PACKAGES], check=True)
        ready.write_text("\n".join(PACKAGES))
    return found


def run(engine: str, graphs: list[Graph]) -> list[dict[str, float]]:
    """Wall and CPU seconds of an engine on each graph."""
    request: dict[str, Any] = {
        "engine": engine,
        "graphs": [{"needs": graph.needs, "durations": graph.durations} for graph in graphs],
    }
    script = Path(__file__).with_name("_executor_peers.py")
    ran = subprocess.run(
        [str(python()), str(script)], input=json.dumps(request), capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise SystemExit(f"{engine} failed:\n{ran.stderr[-2000:]}")
    results: list[dict[str, float]] = json.loads(ran.stdout.splitlines()[-1])
    return results
