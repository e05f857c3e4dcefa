"""The commands: what they print, their JSON, and their exit codes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from understand_graphs import TRACE, make, sid

from agent_forge import run as run_request
from agent_forge.cli.traces_analysis import commands
from agent_forge.errors import DataError, UsageError
from agent_forge.traces import export_traces
from agent_forge.traces.files import import_file
from agent_forge.traces.store import Store

FIXTURES = Path(__file__).parent / "fixtures"


@click.group()
def traces():
    pass


for one in commands:
    traces.add_command(one)


@pytest.fixture
def home(tmp_path):
    spans = [
        make(
            "a0", 0, 10, kind="agent", agent="Explore", session="s1", category="codebase_search", reward=0.94, model="m"
        ),
        make("a1", 0, 3, "a0"),
        make("a2", 0, 5, "a0"),
        make("a3", 5, 9, "a0", links=["a1", "a2"]),
    ]
    spans[0].model = "m"
    other = make("b0", 20, 22, kind="agent", agent="Explore", session="s1", category="synthesis", reward=0.61)
    other.trace_id = "2" * 32
    with Store.open(tmp_path) as store:
        store.add([*spans, other])
    return str(tmp_path)


def run(*arguments, home=None):
    return traces.main([*arguments, *(["--home", home] if home else [])], standalone_mode=False)


def document(capsys):
    return json.loads(capsys.readouterr().out)


def test_calibration_counts_rewards_inside_a_trace_too(tmp_path, capsys):
    inside = [
        make("c1", 1, 2, "c0", kind="agent", agent="A", reward=1.0),
        make("c2", 3, 4, "c0", kind="agent", agent="A", reward=0.5),
    ]
    with Store.open(tmp_path) as store:
        store.add([make("c0", 0, 10), *inside])
    run("stats", "--json", "--calibration", home=str(tmp_path))
    assert document(capsys)["calibration"]["count"] == 2


def test_many_faults_are_told_in_short(tmp_path, capsys):
    lost = [make(f"d{n}", n, n + 1, "ffff") for n in range(30)]
    with Store.open(tmp_path) as store:
        store.add(lost)
    run("trajectory", TRACE, home=str(tmp_path))
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 11
    assert told[-1] == "and 20 more such faults: --json lists them"


# -- trajectory --------------------------------------------------------------------------------------------------------


def test_trajectory_json(home, capsys):
    run("trajectory", TRACE[:6], "--json", home=home)
    found = document(capsys)
    assert found["critical_path"] == [sid("a2"), sid("a3")]
    assert (found["critical_path_s"], found["total_s"]) == (9, 10)
    assert len(found["spans"]) == 4
    assert sum(found["credit"].values()) == pytest.approx(0.94)
    run("trajectory", TRACE, "--json", "--credit", "uniform", "--outcome", "3", home=home)
    assert document(capsys)["credit"][sid("a1")] == pytest.approx(1)


def test_trajectory_of_a_session_as_a_waterfall(home, capsys):
    run("trajectory", "--session", "s1", home=home)
    text = capsys.readouterr().out
    assert "critical path 11.000 s: a2 → a3 → b0" in text
    assert "█" in text


def test_trajectory_faults_go_to_stderr(tmp_path, capsys):
    with Store.open(tmp_path) as store:
        store.add([make("a0", 0, 3), make("a1", 2, 6, links=["a0"])])
    run("trajectory", TRACE, home=str(tmp_path))
    captured = capsys.readouterr()
    assert "overlapping_link" in captured.err
    assert "overlapping_link" not in captured.out


@pytest.mark.parametrize("arguments", [["f00"], ["--session", "nobody"], [], [TRACE, "--session", "s1"]])
def test_trajectory_of_what_is_not_there(home, arguments):
    with pytest.raises(UsageError):
        run("trajectory", *arguments, home=home)


# -- stats -------------------------------------------------------------------------------------------------------------


def test_stats_in_words(home, capsys):
    run("stats", "--trust", "--calibration", home=home)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Explore: mean reward 0.77 (n=2), best at codebase_search 0.94, worst at synthesis 0.61"
    assert any(line.startswith("trust Explore with m at codebase_search:") for line in lines)
    assert any(line.startswith("calibration: Brier score") for line in lines)
    assert any(line.startswith("  predicted") for line in lines)


def test_stats_json(home, capsys):
    run("stats", "--json", "--trust", "--calibration", home=home)
    found = document(capsys)
    (agent,) = found["agents"]
    assert (agent["agent"], agent["n"], agent["mean_reward"]) == ("Explore", 2, pytest.approx(0.775))
    assert [row["category"] for row in agent["categories"]] == ["codebase_search", "synthesis"]
    assert found["totals"]["spans"] == 5
    assert found["trust"][0]["lower_bound"] is None
    assert found["calibration"]["count"] == 2
    run("stats", "--json", "--since", "1980-01-01", home=home)
    assert document(capsys) == {
        "agents": [], "totals": {"spans": 0, "errors": 0, "seconds": 0, "rewards": 0, "cost": None, "kinds": {}},
    }  # fmt: skip


def test_stats_of_nothing(tmp_path, capsys):
    run("stats", "--calibration", "--trust", home=str(tmp_path))
    captured = capsys.readouterr()
    assert "no agent" in captured.err
    assert "no verified reward" in captured.out


def test_real_exports_have_no_faults(capsys):
    assert run("validate", *(str(file) for file in sorted((FIXTURES / "otlp").glob("*.json")))) == 0
    assert capsys.readouterr().out == ""


def test_our_own_runs_have_no_faults(tmp_path, capsys):
    request = "Who is older, Georg Wenker or Ida Turay?"
    run_request(request, home=tmp_path)
    run_request(request, home=tmp_path, team=True)
    files = [str(tmp_path / "spans.jsonl"), str(tmp_path / "spans.json")]
    with Store.open(tmp_path) as store:
        export_traces(store.each_trace(), "jsonl", files[0])
        export_traces(store.each_trace(), "otlp", files[1])
    assert run("validate", *files) == 0
    assert capsys.readouterr().out == ""


def test_an_agent_that_another_program_did_not_name_is_listed(tmp_path, capsys):
    file = FIXTURES / "otlp" / "openinference-langchain.json"
    with Store.open(tmp_path) as store:
        import_file(store, file)
    run("stats", "--json", home=str(tmp_path))
    assert [agent["agent"] for agent in document(capsys)["agents"]] == ["weather_agent"]


# -- validate ----------------------------------------------------------------------------------------------------------


def test_validate_prints_one_line_a_fault_and_returns_1(capsys):
    valid, broken = str(FIXTURES / "valid_trace.jsonl"), str(FIXTURES / "invalid" / "cycle.jsonl")
    assert run("validate", valid) == 0
    assert capsys.readouterr().out == ""
    assert run("validate", valid, broken) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"{broken}:") and ": cycle: " in line for line in lines)
    assert run("validate", broken, "--json") == 1
    found = document(capsys)
    assert (found["valid"], {fault["code"] for fault in found["faults"]}) == (False, {"cycle"})


# -- collect -----------------------------------------------------------------------------------------------------------

SCENARIOS = """
from agent_forge.traces.collect import Scenario
from agent_forge.traces.reward import exit_code

def run(recorder, seed):
    with recorder.span("step", kind="tool"):
        return exit_code(seed % 3)

SCENARIOS = [Scenario("one", "A", run, "code"), Scenario("two", "B", run)]
"""


def test_collect_from_a_file_and_again(tmp_path, capsys):
    path = tmp_path / "scenarios.py"
    path.write_text(SCENARIOS)
    run("collect", str(path), "--traces", "10", "--per-agent", "5", "--json", home=str(tmp_path))
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["traces"], found["agents"], found["added"]) == (10, {"A": 5, "B": 5}, 10)
    assert 0 < found["mean_reward"] < 1
    run("collect", str(path), "--traces", "12", home=str(tmp_path))
    assert "12 traces in 'collection', 2 new" in capsys.readouterr().out


def test_collect_plans(tmp_path, capsys):
    (tmp_path / "sum.json").write_text(
        json.dumps({"tasks": [{"id": "a", "action": "calculator", "args": {"expression": "2 + 3"}}]})
    )
    run("collect", "--plan", str(tmp_path / "sum.json"), "--traces", "2", "--json", home=str(tmp_path))
    assert document(capsys)["mean_reward"] == 1.0
    with Store.open(tmp_path) as store:
        kinds = {span.kind for trace in store.each_trace() for span in trace}
    assert {"agent", "run", "task"} <= kinds


def test_collect_from_nowhere(tmp_path, home):
    (tmp_path / "empty.py").write_text("")
    for source in ("no.such.module", str(tmp_path / "empty.py"), str(tmp_path / "none.py")):
        with pytest.raises(UsageError, match="cannot be loaded"):
            run("collect", source, home=home)
    with pytest.raises(UsageError, match="needs scenarios"):
        run("collect", home=home)


def test_collect_shows_a_bar_on_a_terminal(tmp_path, capsys, monkeypatch):
    (tmp_path / "scenarios.py").write_text(SCENARIOS)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    run("collect", str(tmp_path / "scenarios.py"), "--traces", "3", home=str(tmp_path))
    assert "3 traces" in capsys.readouterr().out


# -- delegation, through the real command tree -------------------------------------------------------------------------


def agent_forge(*arguments, cwd, stdin=""):
    command = [sys.executable, "-m", "agent_forge", *arguments]
    return subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=120, check=False)


def test_a_delegation_from_installation_to_trust(tmp_path):
    project, store = tmp_path / "shop", tmp_path / "store"
    project.mkdir()
    transcripts = (FIXTURES / "claude_project").as_posix()
    payload = (FIXTURES / "claude_subagent_stop.json").read_text()
    payload = payload.replace("{transcripts}", transcripts).replace("{project}", project.as_posix())
    assert agent_forge("delegation", "install", "--portable", cwd=project).returncode == 0
    assert "already" in agent_forge("delegation", "install", "--portable", cwd=project).stderr
    done = agent_forge("delegation", "hook", cwd=project, stdin=payload)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    logged = json.loads(agent_forge("delegation", "log", "--json", cwd=project).stdout)["delegations"]
    assert [span["agent"] for span in logged] == ["Explore"]
    assert "not verified" in agent_forge("delegation", "log", cwd=project).stdout
    span_id = logged[0]["span_id"]
    assert "reward 0.50" in agent_forge("delegation", "verify", span_id[:5], "--tests", "1/2", cwd=project).stdout
    stats = agent_forge("delegation", "stats", cwd=project).stdout
    assert stats.startswith("Explore: mean reward 0.50 (n=1), at codebase_search 0.50")
    found = json.loads(agent_forge("delegation", "trajectory", "--json", cwd=project).stdout)
    assert found["credit"] == {span_id: 0.5}
    assert agent_forge("delegation", "import", "--home", str(store), cwd=project).returncode == 0
    again = json.loads(agent_forge("delegation", "import", "--home", str(store), "--json", cwd=project).stdout)
    assert again["added"] == 0


@pytest.fixture
def project(tmp_path, monkeypatch):
    from agent_forge.traces.delegation import log_path

    path = log_path(tmp_path)
    path.parent.mkdir()
    lines = [make("d0", 1, 3, kind="agent", agent="Explore", session="old", status="error"),
             make("d1", 5, 9, kind="agent", agent="Plan", session="new", reward=0.2)]  # fmt: skip
    path.write_text("".join(json.dumps(span.to_dict()) + "\n" for span in lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def delegation(*arguments):
    from agent_forge.cli.delegation import command

    return command.main(list(arguments), standalone_mode=False)


def test_delegation_log_filters(project, capsys):
    for arguments, agents in [
        ([], ["Explore", "Plan"]), (["--last", "1"], ["Plan"]), (["--session", "old"], ["Explore"]),
        (["--failed"], ["Explore", "Plan"]), (["--failed", "--session", "new"], ["Plan"]),
    ]:  # fmt: skip
        delegation("log", "--json", *arguments)
        assert [span["agent"] for span in document(capsys)["delegations"]] == agents
    delegation("log")
    assert "failed" in capsys.readouterr().out


def test_delegation_trajectory_is_of_the_last_session(project, capsys):
    delegation("trajectory", "--json")
    assert document(capsys)["session"] == "new"
    delegation("trajectory", "--session", "old")
    assert "failed" in capsys.readouterr().out
    with pytest.raises(UsageError, match="no session"):
        delegation("trajectory", "--session", "none")


def test_rules_and_commands_follow_the_log(project, capsys):
    from agent_forge.traces.delegation import log_path, rules_path

    delegation("install", "--json")
    files = document(capsys)["files"]
    assert [file.rsplit("/", 1)[1] for file in files] == [
        "delegation-log.md", "delegation-stats.md", "delegation-trajectory.md", "delegation.md",
    ]  # fmt: skip
    before = rules_path(project).read_text()
    delegation("rules")
    assert before.endswith(capsys.readouterr().out)  # two delegations teach nothing
    spans = [
        make(f"{letter}{number}", number, number + 1, kind="agent", agent=agent, category="code", reward=reward)
        for letter, agent, reward in (("a", "Plan", 0.1), ("b", "Explore", 0.9))
        for number in range(20)
    ]
    log_path(project).write_text("".join(json.dumps(span.to_dict()) + "\n" for span in spans))
    delegation("rules", "--write")
    after = rules_path(project).read_text()
    assert after.startswith(before)
    assert "- code: give it to Explore [0.77, n=20, 0.62 to 0.90], not to Plan [0.23, n=20" in after
    delegation("export", "out.jsonl", "--json")
    assert document(capsys)["delegations"] == 40
    delegation("install", "--remove")
    assert not rules_path(project).exists()


def test_delegation_stats_json(project, capsys):
    delegation("stats", "--json")
    found = document(capsys)
    assert found["delegations"] == 2
    assert [row["agent"] for row in found["agents"]] == ["Plan", "Explore"]
    assert found["calibration"]["count"] == 1


@pytest.mark.parametrize(
    ("option", "reward"),
    [
        (["--exit-code", "0"], 1.0),
        (["--grade", "0.3"], 0.3),
        (["--verdict", "partial"], 0.5),
        (["--tests", "3/4"], 0.75),
    ],
)
def test_delegation_verify(project, capsys, option, reward):
    delegation("verify", sid("d0"), *option, "--evidence", "seen", "--json")
    assert document(capsys)["reward"] == reward


@pytest.mark.parametrize("options", [[], ["--grade", "1", "--verdict", "pass"], ["--tests", "all"], ["--tests", "5/4"]])
def test_delegation_verify_needs_one_look(project, options):
    with pytest.raises(UsageError):
        delegation("verify", sid("d0"), *options)


def test_a_project_whose_subagents_never_stopped_yet_has_no_log(tmp_path):
    delegation("install", "--project", str(tmp_path))
    with pytest.raises(DataError, match="It is started when a subagent stops"):
        delegation("log", "--project", str(tmp_path))


def test_delegation_install_and_remove(project, capsys):
    delegation("install", "--json", "--local", "--no-text")
    assert document(capsys)["changed"] is True
    delegation("install", "--local", "--remove")
    assert "was removed from" in capsys.readouterr().err
    delegation("install", "--local", "--remove")
    assert "there was no hook" in capsys.readouterr().err


def test_delegation_import_in_words(project, capsys):
    delegation("import", "--home", str(project / "store"))
    assert "2 delegations, 3 new spans" in capsys.readouterr().err


def test_delegation_hook_in_process(project, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert delegation("hook", "--no-text") == 0
    assert capsys.readouterr().out == ""


def test_rules_for_coding_agents_agree_with_the_code(capsys):
    from agent_forge.traces import transcript

    delegation("rules")
    text = capsys.readouterr().out
    found = transcript._stated(text)
    assert found["category"] == "codebase_search"
    assert found["assessment"] == {"complexity": "medium", "criticality": "low", "uncertainty": "low"}
    for verb in ("ls", "verify", "stats"):
        assert f"agent-forge delegation {verb}" in text
