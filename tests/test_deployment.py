"""The Dockerfile and the compose file, as far as they can be checked without a Docker daemon: by hadolint, and by
comparing what they name with what is there. Their steps were run by hand (docs/deployment.md)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_forge.settings import Settings, variable

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
STAGES = re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE)


def test_hadolint_has_no_objection() -> None:
    program = shutil.which("hadolint") or shutil.which(str(Path(sys.executable).with_name("hadolint")))
    if program is None:
        pytest.skip("hadolint is not installed: the extra `dev` brings it")
    found = subprocess.run([program, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (found.stdout, found.returncode) == ("", 0)


def test_what_is_copied_is_there_and_not_ignored() -> None:
    let_in = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    copied = [
        name for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE) for name in line.split()
    ]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists() or name not in let_in] == []
    extras = set(re.findall(r"\w+", " ".join(re.findall(r'"\$1\[(.+?)\]"', DOCKERFILE))))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert extras
    assert [extra for extra in extras if f"\n{extra} = [" not in project] == []


def test_the_services_name_what_exists() -> None:
    services = COMPOSE["services"]
    assert set(services) == {"server", "postgres", "redis", "prometheus", "grafana"}
    assert services["server"]["build"]["target"] in STAGES
    mounts = [mount.split(":")[0] for service in services.values() for mount in service.get("volumes", [])]
    missing = [mount for mount in mounts if mount.startswith("./") and not (ROOT / mount).is_file()]
    assert missing == []
    assert {mount for mount in mounts if not mount.startswith("./")} == set(COMPOSE["volumes"])
    needed = {name for service in services.values() for name in service.get("depends_on", [])}
    assert needed <= set(services)
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in ports), "on loopback, until somebody decides otherwise"


def test_the_server_understands_its_command_and_its_variables() -> None:
    from agent_forge.cli.serve import command

    server = COMPOSE["services"]["server"]
    known = {name for parameter in command.params for name in parameter.opts}
    used = re.findall(r"--[\w-]+", " ".join([*server["command"], *re.findall(r"^CMD .+", DOCKERFILE, re.MULTILINE)]))
    assert used
    assert set(used) <= known
    settings = {variable(name) for name in Settings.__dataclass_fields__} | {"AGENT_FORGE_TOKEN"}
    assert set(server["environment"]) <= settings
    assert set(re.findall(r"^ENV (\w+)=", DOCKERFILE, re.MULTILINE)) <= settings


def test_the_figures_that_are_drawn_are_measured() -> None:
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed: the extra `server` brings it")
    from agent_forge.server.context import Context
    from agent_forge.server.metrics import Metrics
    from agent_forge.server.settings import ServerSettings

    board = json.loads((ROOT / "deploy/grafana/agent-forge.json").read_text(encoding="utf-8"))
    drawn = set(re.findall(r"agent_forge_\w+", " ".join(panel["targets"][0]["expr"] for panel in board["panels"])))
    text = (ROOT / "src/agent_forge/server/metrics.py").read_text(encoding="utf-8")
    measured = {metric.name for metric in Metrics(Context(ServerSettings())).registry.collect()}
    measured |= set(re.findall(r'Family\(\s*"(agent_forge_\w+)"', text))
    assert drawn
    assert {re.sub(r"_(total|bucket|count)$", "", name) for name in drawn} <= measured
    sources = yaml.safe_load((ROOT / "deploy/grafana/sources.yml").read_text(encoding="utf-8"))["datasources"]
    assert {panel["datasource"]["uid"] for panel in board["panels"]} == {source["uid"] for source in sources}
