"""Agent profiles: strict loading, and the built-in ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_forge.agents.profiles import (
    AgentProfile,
    builtin_profiles,
    choose_profile,
    find_profile,
    load_profile,
    load_profiles,
    roster,
)
from agent_forge.agents.routing import Assigned, Router
from agent_forge.errors import ConfigError, UsageError


def test_the_built_in_profiles_are_complete_and_distinct() -> None:
    profiles = builtin_profiles()
    assert {"planner", "researcher", "analyst", "writer", "checker"} <= set(profiles)
    for name, profile in profiles.items():
        assert profile.name == name
        assert profile.description.endswith(".")
        assert profile.instructions
        assert profile.task_types
    router = Router(profiles.values())
    for kind, expected in [("search", "researcher"), ("compare", "analyst"), ("answer", "writer"), ("plan", "planner")]:
        answer = router.decide({"task_type": kind})
        assert isinstance(answer, Assigned)
        assert answer.agent == expected


def test_the_fifteen_of_genesis_are_complete_and_can_do_what_a_team_is_asked() -> None:
    from agent_forge.agents.team import TYPE_OF_ACTION, WRITERS

    profiles = roster("genesis")
    assert len(profiles) == 15
    for name, profile in profiles.items():
        assert profile.name == profile.family == profile.reward == name
        assert profile.description.endswith(".")
        assert profile.instructions
        assert profile.skills
    router = Router(profiles.values(), fallback=[name for name in WRITERS if name in profiles])
    for kind in {*TYPE_OF_ACTION.values(), "answer", "cooking"}:
        assert isinstance(router.decide({"task_type": kind}), Assigned), kind
    assert choose_profile("genesis:analyst") is profiles["analyst"]
    assert choose_profile("analyst") is builtin_profiles()["analyst"]
    with pytest.raises(UsageError, match="no roster"):
        choose_profile("exodus:analyst")


def test_built_in_tools_exist() -> None:
    from agent_forge.agents.tools.calculator import calculator
    from agent_forge.agents.tools.tables import query_csv, query_json

    known = {calculator.name, query_csv.name, query_json.name, "search", "fetch", "search_files", "read_file", "python"}
    for profile in [*builtin_profiles().values(), *roster("genesis").values()]:
        assert set(profile.tools) <= known


def test_a_profile_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "name: ada\ntask_types: [x, y]\nmax_concurrent: 2\ncost_tier: cheap\nmodel: smollm2\n", encoding="utf-8"
    )
    assert load_profile(path) == AgentProfile(
        name="ada", task_types=("x", "y"), max_concurrent=2, cost_tier="cheap", model="smollm2"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: ada\ntask_type: [x]\n", "task_types"),
        ("task_types: [x]\n", "name"),
        ("name: ada\nmax_concurrent: many\n", "max_concurrent"),
        ("name: ada\nmax_concurrent: 0\n", "at least 1"),
        ("name: ada\ncost_tier: free\n", "cost_tier"),
        ("name: Ada Lovelace\n", "not a valid agent name"),
        ("name: ada\ntask_types: x\n", "task_types"),
        ("- a\n", "a.yaml"),
        ("name: [\n", "a.yaml"),
        ("name: !!python/object:os.system x\n", "a.yaml"),
    ],
)
def test_profiles_that_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=words):
        load_profile(path)


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no agent profiles"):
        load_profiles(tmp_path)
    (tmp_path / "a.yaml").write_text("name: ada\n", encoding="utf-8")
    assert set(load_profiles(tmp_path)) == {"ada"}
    (tmp_path / "b.yaml").write_text("name: ada\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"b.yaml: there are two agents named 'ada'"):
        load_profiles(tmp_path)


def test_finding_one() -> None:
    assert find_profile("writer").name == "writer"
    with pytest.raises(UsageError, match="Did you mean 'researcher'"):
        find_profile("reseacher")
    with pytest.raises(UsageError, match="Choose one of ada"):
        find_profile("zzz", {"ada": AgentProfile(name="ada")})
