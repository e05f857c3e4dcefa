"""`agent-forge doctor` tells the truth about this machine."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from agent_forge.cli import doctor, run
from agent_forge.installed import NAME, install_command


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, dict[str, object]]]:
    code = run(["doctor", "--json", *arguments])
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is (code == 0)
    return code, {check["name"]: check for check in document["checks"]}


def test_a_healthy_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, checks = report(capsys, "--home", str(tmp_path / "home"))
    assert code == 0
    assert checks["python"]["ok"]
    assert checks["base"]["ok"]
    assert "click" in str(checks["base"]["detail"])
    assert checks["home"]["ok"]
    assert list((tmp_path / "home").iterdir()) == []


def test_every_cross_has_a_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(doctor.EXTRAS, "forge", ("no_such_package",))
    monkeypatch.setitem(doctor.EXTRAS, "otel", ("no_such_package.inner",))
    code, checks = report(capsys, "--home", str(tmp_path), "--model", "http://127.0.0.1:9/v1")
    assert code == 0, "what is missing from an extra is not an error"
    assert checks["extra forge"]["fix"] == install_command("forge")
    assert "not reachable" in str(checks["endpoint http://127.0.0.1:9/v1"]["detail"])
    assert all(check["fix"] for check in checks.values() if check["ok"] is False)


def test_an_unusable_home_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    code, checks = report(capsys, "--home", str(tmp_path / "file"))
    assert code == 1
    assert not checks["home"]["ok"]


def test_a_command_is_shown_whole_however_narrow_the_terminal_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    command = f"pip install 'agent-forge @ file:///{'folder/' * 12}agent_forge.whl'"
    doctor._show([doctor.Finding("extra data", False, "missing: rensa", command)])
    assert "".join(command.split()) in "".join(capsys.readouterr().out.split())


def test_a_missing_base_package_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "BASE", ("no_such_package",))
    assert report(capsys, "--home", str(tmp_path))[0] == 1


def test_the_table_for_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(doctor.EXTRAS, "forge", ("no_such_package",))
    assert run(["doctor", "--home", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"→ {install_command('forge')}"[:40] in " ".join(out.split())
    assert "✓" in out


class Models(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "ok", "said"), [(200, True, "HTTP 200"), (401, False, "refused"), (500, False, "500")]
)
def test_an_endpoint_is_really_asked(
    status: int,
    ok: bool,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler = type("Handler", (Models,), {"status": status})
    server = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    monkeypatch.setenv("AGENT_FORGE_MODEL", f"{url}#tiny")
    try:
        _, checks = report(capsys, "--home", str(tmp_path))
    finally:
        server.shutdown()
        server.server_close()
    assert checks[f"endpoint {url}"]["ok"] is ok
    assert said in str(checks[f"endpoint {url}"]["detail"])


def test_an_endpoint_is_asked_with_the_key_that_models_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Guarded(Models):
        def do_GET(self) -> None:
            self.status = 200 if self.headers.get("Authorization") == "Bearer right" else 401
            super().do_GET()

    server = HTTPServer(("127.0.0.1", 0), Guarded)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    monkeypatch.setenv("OPENAI_API_KEY", "right")  # not for this host
    _, refused = report(capsys, "--home", str(tmp_path), "--model", url)
    monkeypatch.setenv("AGENT_FORGE_API_KEY", "right")
    _, taken = report(capsys, "--home", str(tmp_path), "--model", url)
    server.shutdown()
    server.server_close()
    assert refused[f"endpoint {url}"]["fix"] == "Set AGENT_FORGE_API_KEY"
    assert taken[f"endpoint {url}"]["ok"] is True


def test_the_extras_are_those_of_the_project() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    listed = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    for extra, modules in doctor.EXTRAS.items():
        wanted = listed.partition(f"\n{extra} = [")[2].partition("]\n")[0]
        names = set(re.findall(r'"([A-Za-z_-][\w-]*)(?=[>"\[])', wanted)) - {NAME}
        assert {doctor.DISTRIBUTION.get(module, module) for module in modules} == names, extra
    known = set(re.findall(r"^([a-z]+) = \[", listed, re.MULTILINE))
    assert known - {"all", "dev"} == set(doctor.EXTRAS)
