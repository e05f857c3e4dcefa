"""Flags: what wins over what, kills and audit, a broken file, and OpenFeature both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_forge.cli import run as cli
from agent_forge.errors import ConfigError, UsageError
from agent_forge.rollout import Flag, Flags, bucket
from agent_forge.rollout.flags import FlagRule

FILE = """
flags:
  search:
    type: string
    default: old
    rules:
      - {when: {country: [DE, FR]}, value: european}
      - {share: 0.25, value: new}
    environments:
      staging:
        value: newest
        rules: [{when: {unit: tester}, value: tested}]
  retries: {type: integer, default: 3}
"""


@pytest.fixture
def flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flags:
    for name in ("GAP_ENABLED", "AGENT_FORGE_FLAGS", "AGENT_FORGE_ENVIRONMENT", "AGENT_FORGE_STORE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "flags.yaml").write_text(FILE)
    return Flags(tmp_path)


def test_rules_shares_environments_and_defaults(flags: Flags, tmp_path: Path) -> None:
    assert flags.evaluate("search", unit="x", country="FR").reason == "TARGETING_MATCH"
    units = [str(number) for number in range(400)]
    chosen = {unit for unit in units if flags.value("search", "", unit=unit) == "new"}
    assert chosen == {unit for unit in units if bucket("search", unit) < 0.25}
    assert flags.evaluate("search").value == "old"
    staging = Flags(tmp_path, "staging")
    assert staging.value("search", "", unit="tester") == "tested"
    assert staging.evaluate("search").value == "newest"
    assert flags.value("unknown", 17) == 17


def test_what_wins_over_what(flags: Flags, monkeypatch: pytest.MonkeyPatch) -> None:
    flags.set("search", "set", who="ada")
    assert flags.value("search", "", country="DE") == "set"
    flags.set("search", "here", environment="production")
    assert flags.value("search", "") == "here"
    monkeypatch.setenv("AGENT_FORGE_FLAG_SEARCH", "from the environment")
    assert flags.value("search", "") == "from the environment"
    flags.kill("search")
    assert flags.evaluate("search", country="DE").reason == "DISABLED"
    flags.revive("search")
    monkeypatch.setenv("AGENT_FORGE_FLAG_RETRIES", "many")  # not of its type: as if it were not there
    assert flags.value("retries", 0) == 3
    for call in (lambda: flags.set("retries", "x"), lambda: flags.set("retries", True), lambda: flags.kill("unknown")):
        with pytest.raises(UsageError):
            call()


def test_a_kill_is_seen_by_the_next_request_of_another_process_and_written_down(flags: Flags, tmp_path: Path) -> None:
    other = Flags(tmp_path)
    flags.set("search", "new", who="ada")
    assert other.value("search", "") == "new"
    flags.kill("search", who="grace")
    assert other.value("search", "") == "old"
    lines = [(line["who"], line["what"]) for line in other.audit()]
    assert lines == [("ada", "set search"), ("grace", "kill search")]
    assert other.audit()[0]["after"]["values"] == {"": "new"}
    (tmp_path / "flags.yaml").write_text(FILE.replace("default: old", "default: older"))
    assert other.value("search", "") == "older"
    assert other.audit()[-1]["what"].startswith("edit ")


def test_a_broken_file_changes_nothing(flags: Flags, tmp_path: Path) -> None:
    for text in ("flags: [", "flags: {search: {type: string, default: 3}}", "flags: {search: {tpye: string}}"):
        (tmp_path / "flags.yaml").write_text(text)
        assert flags.value("search", "", country="DE") == "european"
        with pytest.raises(ConfigError):
            Flags(tmp_path)


def test_gap_enabled_is_read_from_the_variable_of_the_seeds(flags: Flags, monkeypatch: pytest.MonkeyPatch) -> None:
    assert flags.evaluate("gap_enabled").reason == "DEFAULT"
    for text, value in (("true", True), ("0", False)):
        monkeypatch.setenv("GAP_ENABLED", text)
        assert (flags.evaluate("gap_enabled").value, flags.evaluate("gap_enabled").reason) == (value, "STATIC")


def test_users_of_openfeature_read_ours_and_we_read_theirs(flags: Flags) -> None:
    from openfeature import api
    from openfeature.evaluation_context import EvaluationContext
    from openfeature.provider.in_memory_provider import InMemoryFlag, InMemoryProvider

    from agent_forge.rollout.openfeature_provider import ClientFlags, ForgeProvider

    flags.define("on", Flag(default=False, rules=(FlagRule(True, {"plan": "pro"}),)))
    flags.define("ratio", Flag(default=1, type="float"))
    flags.define("table", Flag(default={"a": 1}, type="object"))
    api.set_provider(ForgeProvider(flags), domain="ours")
    client = api.get_client("ours")
    assert client.get_boolean_value("on", False, EvaluationContext("u", {"plan": "pro"})) is True
    assert client.get_boolean_details("on", True).reason == "DEFAULT"
    assert client.get_string_value("search", "", EvaluationContext("u", {"country": "FR"})) == "european"
    assert client.get_integer_value("retries", 0) == 3
    assert client.get_float_value("ratio", 0.0) == 1.0
    assert client.get_object_value("table", {}) == {"a": 1}
    assert client.get_integer_details("search", 9).error_code == "TYPE_MISMATCH"
    assert client.get_integer_details("nothing", 9).error_code == "FLAG_NOT_FOUND"
    flags.kill("on")
    assert client.get_boolean_value("on", False, EvaluationContext("u", {"plan": "pro"})) is False

    theirs = {"on": InMemoryFlag("yes", {"yes": True, "no": False}), "size": InMemoryFlag("s", {"s": "small"})}
    api.set_provider(InMemoryProvider(theirs), domain="theirs")
    adapter = ClientFlags(api.get_client("theirs"))
    assert adapter.value("on", False, unit="u") is True
    assert adapter.value("size", "") == "small"
    assert adapter.value("absent", 2.5) == 2.5
    assert adapter.evaluate("on").reason == "STATIC"
    assert adapter.evaluate("absent").reason == "ERROR"


def test_the_command(flags: Flags, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def call(*words: str) -> Any:
        code = cli(["rollout", "flag", *words, "--home", str(tmp_path), "--json"])
        out = capsys.readouterr().out
        return json.loads(out) if code == 0 else code

    assert call("get", "search", "--attribute", "country=DE")["value"] == "european"
    assert call("set", "retries", "5", "--environment", "production")["value"] == 5
    assert call("kill", "retries") == {"name": "retries", "value": 3, "reason": "DISABLED", "killed": True}
    assert call("revive", "retries")["value"] == 5
    assert {row["name"] for row in call("ls")["flags"]} == {"gap_enabled", "retries", "search"}
    assert [line["what"] for line in call("audit")["audit"]][-1] == "revive retries"
    assert call("get", "absent") == 2
    assert call("set", "retries", "many") == 2
    assert cli(["rollout", "flag", "ls", "--home", str(tmp_path)]) == 0
    assert cli(["rollout", "flag", "audit", "--home", str(tmp_path)]) == 0
    assert "retries" in capsys.readouterr().out
