"""Every task of a team's run has an agent, trust that was measured decides between agents, and failures count."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent_forge import Plan, Task, feedback, run, tool
from agent_forge.agents.profiles import AgentProfile
from agent_forge.agents.routing import Assigned
from agent_forge.agents.team import Team, task_type, team_router
from agent_forge.agents.tools import Toolbox
from agent_forge.agents.work import Worker
from agent_forge.traces import Recorder, Store

QUESTION = "Which film has the director who was born first, Piccoli Fuochi or The Nice Guys?"


def rewarded(home: Path, agent: str, category: str, reward: float, count: int) -> None:
    recorder = Recorder(home)
    for _ in range(count):
        with recorder.span("work", "agent") as span:
            span.agent, span.category, span.reward = agent, category, reward
    recorder.close()


def test_the_spans_of_a_run_say_who_did_what_and_why(tmp_path: Path) -> None:
    result = run(QUESTION, team=True, home=tmp_path)
    assert result.answer == "Piccoli Fuochi"
    assert result.usage.tool_calls == 4
    with Store.open(tmp_path) as store:
        tasks = [span for span in store.trace(result.trace_id) if span.kind == "task"]
    assert sorted((span.agent, span.category) for span in tasks) == [
        ("analyst", "compare"),
        *[("researcher", "search")] * 4,
    ]
    assert all("capability match" in span.attributes["routing"] for span in tasks)


def test_a_roster_is_a_team(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from agent_forge.cli._app import run_command

    result = run(QUESTION, team="genesis", home=tmp_path)
    assert result.answer == "Piccoli Fuochi"
    with Store.open(tmp_path) as store:
        assert {span.agent for span in store.trace(result.trace_id) if span.kind == "task"} == {"analyst"}
    call = ["run", QUESTION, "--roster", "genesis", "--home", str(tmp_path), "--json"]
    assert run_command([*call, "--team"]) == 0
    assert '"answer": "Piccoli Fuochi"' in capsys.readouterr().out
    assert run_command(call) == 2
    assert "--team" in capsys.readouterr().err


def test_trust_from_the_store_decides_between_equals(tmp_path: Path) -> None:
    pair = {name: AgentProfile(name=name, task_types=("search",)) for name in ("ada", "bob")}
    rewarded(tmp_path, "ada", "search", 0.1, 30)
    rewarded(tmp_path, "bob", "search", 0.9, 30)
    assert team_router(pair, home=tmp_path).decide({"task_type": "search"}).agent == "bob"
    rewarded(tmp_path, "ada", "search", 1.0, 2000)
    assert team_router(pair, home=tmp_path).decide({"task_type": "search"}).agent == "ada"


def test_judged_runs_count_for_an_agent_with_the_model_that_its_profile_names(tmp_path: Path) -> None:
    @tool
    def double(x: int) -> int:
        """Twice as much."""
        return 2 * x

    def profile(name: str, model: str | None = None) -> AgentProfile:
        url = None if model is None else f"http://ann:secret@127.0.0.1:9/v1#{model}"  # nobody is asked
        return AgentProfile(name=name, task_types=("sums",), model=url)

    plan = Plan([Task("a", action="double", args={"x": 4}, meta={"task_type": "sums"})])
    for name, model, reward in [("ada", "small", 0.1), ("bob", "large", 0.9), ("cyd", None, 0.5)]:
        for _ in range(12):
            result = run(plan, tools=[double], team={name: profile(name, model)}, home=tmp_path)
            feedback(result, reward)
    with Store.open(tmp_path) as store:
        [task] = [span for span in store.trace(result.trace_id) if span.kind == "task"]
        models = {row.agent: row.model for row in store.credits()}
    assert (task.agent, task.model) == ("cyd", None)
    assert models == {"ada": "small", "bob": "large", "cyd": None}

    def chosen(*team: AgentProfile) -> str:
        decision = team_router({one.name: one for one in team}, home=tmp_path).decide({"task_type": "sums"})
        assert isinstance(decision, Assigned)
        return f"{decision.agent}: {decision.explanation}"

    measured = chosen(profile("ada", "small"), profile("bob", "large"), profile("cyd"))
    assert measured.startswith("bob: ")
    assert "trust 0." in measured
    assert "trust not measured" in chosen(profile("bob", "other"))


def test_a_failing_agent_is_left_alone_and_its_load_released(tmp_path: Path) -> None:
    @tool
    def broken(x: int) -> int:
        """Always fails."""
        raise ValueError("no")

    profiles = {"ada": AgentProfile(name="ada", task_types=("answer",), max_concurrent=1)}
    router = team_router(profiles, home=tmp_path)
    team = Team(router, profiles, Worker(Toolbox([broken]), reads=False))

    async def fail() -> None:
        for _ in range(5):
            with pytest.raises(ValueError, match="no"):
                await team(Task("a", action="broken", args={"x": 1}), {})

    asyncio.run(fail())
    assert router.decide({"task_type": "answer"}).code == "all_down"


def test_a_plan_runs_with_a_team_of_ones_own(tmp_path: Path) -> None:
    @tool
    def double(x: int) -> int:
        """Twice as much."""
        return 2 * x

    profiles = {"sam": AgentProfile(name="sam", task_types=("sums",))}
    plan = Plan([Task("a", action="double", args={"x": 4}, meta={"task_type": "sums"})])
    result = run(plan, tools=[double], team=profiles, home=tmp_path)
    assert result.tasks["a"].result == 8
    unknown = Plan([Task("a", action="double", args={"x": 4}, meta={"task_type": "cooking"})])
    refused = run(unknown, tools=[double], team=profiles, home=tmp_path)
    assert "cooking" in str(refused.tasks["a"].error)


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        (Task("a", action="calculator"), "calculate"),
        (Task("a", "write a poem"), "answer"),
        (Task("a", action="search", meta={"task_type": "review"}), "review"),
    ],
)
def test_what_kind_of_work_a_task_is(task: Task, kind: str) -> None:
    assert task_type(task) == kind
