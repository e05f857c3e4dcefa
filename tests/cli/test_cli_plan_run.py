"""`agent-forge plan` and `agent-forge run`, as they are called from outside."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import agent_forge
from agent_forge.cli import run
from agent_forge.cli.running import _print as print_result
from agent_forge.plans import Plan, Task

LINES = "<plan>\nTask 1: A | Dependencies: none\nTask 2: B | Dependencies: task 1\n</plan>\n"
GRAPH = '<graph><node id="a">double(2)</node><node id="b">double(3)</node><node id="c">add({a}, {b})</node></graph>'
TOOLS = '''
import time
from agent_forge import tool

@tool
def double(n: int) -> int:
    """Doubles."""
    return 2 * n

@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b

@tool
def broken() -> int:
    """Fails."""
    raise ValueError("no such thing")

@tool
def login(password: str, note: str) -> str:
    """Logs in."""
    return f"welcome, {note}"

@tool
def wait(seconds: float) -> str:
    """Waits."""
    time.sleep(seconds)
    return "waited"
'''
QUESTION = "Who is older, Manuel Antonio or Wilfred MacDonald?"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("AGENT_FORGE_HOME", str(tmp_path / "home"))
    for name in ("MODEL", "PLANNER", "CONCURRENCY"):
        monkeypatch.delenv(f"AGENT_FORGE_{name}", raising=False)
    (tmp_path / "mytools.py").write_text(TOOLS)
    (tmp_path / "plan.txt").write_text(GRAPH)


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = run(list(arguments))
    captured = capsys.readouterr()
    assert captured.out, f"nothing on stdout, exit code {code}: {captured.err}"
    return code, json.loads(captured.out)


@pytest.mark.parametrize(
    "text",
    [
        LINES,
        '<graph><node id="task_1">A</node><node id="task_2" depends="task_1">B</node></graph>',
        '{"tasks": [{"id": "task_1", "goal": "A"}, {"id": "task_2", "goal": "B", "depends_on": ["task_1"]}]}',
        "tasks:\n- {id: task_1, goal: A}\n- {id: task_2, goal: B, depends_on: [task_1]}\n",
    ],
)
def test_a_plan_is_read_in_every_format(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("p").write_text(text)
    code, document = called(capsys, "plan", "--plan", "p", "--json")
    assert code == 0
    assert document["tasks"] == [
        {"id": "task_1", "goal": "A", "depends_on": []},
        {"id": "task_2", "goal": "B", "depends_on": ["task_1"]},
    ]
    assert document["levels"] == [["task_1"], ["task_2"]]
    assert document["critical_path"] == ["task_1", "task_2"]


def test_a_dependency_through_a_reference_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    _, document = called(capsys, "plan", "--plan", "plan.txt", "--json")
    assert document["tasks"][2]["depends_on"] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("<plan>\nTask 1: A | Dependencies: Task 2\nTask 2: B | Dependencies: Task 1\n</plan>", ["cycle"]),
        ("<plan>\nTask 1: A | Dependencies: Task 9\n</plan>", ["unknown_dependency"]),
        ("<plan>\nTask 1: A | Dependencies: none\nTask 1: B | Dependencies: none\n</plan>", ["duplicate_id"]),
        ("<plan>\n</plan>", ["empty_plan"]),
        ("nothing here", ["malformed"]),
    ],
)
def test_a_bad_plan_exits_1_with_all_its_errors(
    text: str, codes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("p").write_text(text)
    code, document = called(capsys, "plan", "--plan", "p", "--json")
    assert code == 1
    assert [error["code"] for error in document["errors"]] == codes
    assert all({"code", "message", "task"} <= set(error) for error in document["errors"])
    assert run(["plan", "--plan", "p"]) == 1
    assert capsys.readouterr().err.startswith("agent-forge: ")
    assert called(capsys, "run", "--plan", "p", "--tools", "mytools.py", "--json")[0] == 1


def test_a_plan_from_stdin(capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent_forge", "plan", "--plan", "-", "--json"],
        input=LINES, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert len(json.loads(done.stdout)["tasks"]) == 2


@pytest.mark.parametrize("shown", ["tree", "lines", "xml", "json", "yaml", "mermaid"])
def test_a_request_in_every_format(shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", QUESTION, "--format", shown]) == 0
    captured = capsys.readouterr()
    assert "date of birth of Manuel Antonio" in captured.out
    assert captured.err == "planned by rules\n"  # whether a graph is worth it decides only what a model is asked
    if shown in {"lines", "xml", "json", "yaml"}:
        Path("again").write_text(captured.out)
        assert len(called(capsys, "plan", "--plan", "again", "--json")[1]["tasks"]) == 3


def test_a_planned_request_says_where_it_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = called(capsys, "plan", QUESTION, "--json")
    assert code == 0
    assert document["planner"] == "rules"
    assert document["complexity"]["graph"] is True
    assert document["levels"] == [["s1", "s2"], ["s3"]]
    assert called(capsys, "plan", "?!", "--json")[1]["errors"][0]["message"].startswith("the request has no words")


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan"],
        ["plan", "x", "--plan", "p"],
        ["run"],
        ["run", "x", "--plan", "p"],
        ["run", "x", "--budget", "apples=3"],
        ["run", "x", "--budget", "calls=many"],
        ["plan", "--plan", "missing"],
        ["plan", "x", "--planner", "oracle"],
    ],
)
def test_wrong_calls_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert capsys.readouterr().out == ""


def test_a_request_without_quotes_says_how_to_quote_it(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("plan", "run"):
        assert run([command, "Don't", "double", "4", "--tools", "mytools.py"]) == 2
        line = capsys.readouterr().err.strip().rpartition("needs quotes: ")[2]
        assert shlex.split(line) == ["agent-forge", command, "Don't double 4"]


def test_run_a_plan_file(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = called(capsys, "run", "--plan", "plan.txt", "--tools", "mytools.py", "--json")
    assert code == 0
    assert document["state"] == "done"
    assert document["tasks"]["c"]["result"] == 10
    assert set(document["tasks"]["a"]) == {"state", "started_s", "ended_s", "result", "error"}
    assert {"run", "state", "wall_s", "critical_path_s", "tasks"} <= set(document)


def test_run_by_module_name_and_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    Path("words").write_text(
        "<plan>\nTask 1: double: 4 | Dependencies: none\nTask 2: broken | Dependencies: none\n</plan>"
    )
    assert run(["run", "--plan", "words", "--tools", "mytools"]) == 1
    captured = capsys.readouterr()
    assert "task_1: 8" in captured.out
    assert "no such thing" in captured.out
    assert "task_2 failed" in captured.err


def test_run_a_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", QUESTION]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Manuel Antonio\n"
    assert "done in" in captured.err
    for unanswered in ("Who is older, Zorg Nobody or Wilfred MacDonald?", "What is the weather in Oslo?"):
        assert run(["run", unanswered]) == 0
        captured = capsys.readouterr()
        assert captured.out == "unknown\n"  # and not the passages that happen to be nearest
        assert "only the bundled passages were searched" in captured.err


def test_several_results_are_shown_where_no_model_puts_them_into_words(capsys: pytest.CaptureFixture[str]) -> None:
    @agent_forge.tool
    def double(n: int) -> int:
        """Twice a number."""
        return 2 * n

    class Twice:
        name = "twice"

        async def plan(self, request: str, *, tools: Any = ()) -> Plan:
            return Plan([Task(f"s{n}", action="double", args={"n": n}) for n in (2, 3)])

    result = agent_forge.run("Double 2 and 3", planner=Twice(), tools=[double], record=False)
    assert result.answer is None
    print_result(result, None)
    assert capsys.readouterr().out == "double(n=2): 4\ndouble(n=3): 6\n"


class _Fixed:
    """A planner of the one plan that it is given."""

    name = "fixed"

    def __init__(self, *tasks: Task) -> None:
        self.tasks = tasks

    async def plan(self, request: str, *, tools: Any = ()) -> Plan:
        return Plan(self.tasks)


def test_a_run_says_what_it_called_as_it_was_called(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = Task("s1", action="double", args={"n": 2}), Task("s2", action="add", args={"a": "{s1}", "b": 3})
    result = agent_forge.run("Double 2 and add 3", planner=_Fixed(*tasks), tools="mytools.py", record=False)
    print_result(result, None)
    captured = capsys.readouterr()
    assert captured.out == "7\n"
    assert captured.err.splitlines()[:2] == ["  s1: double(n=2)", "  s2: add(a=4, b=3)"]
    assert "2 tool calls, 0 model calls" in captured.err


def test_a_failed_run_answers_nothing_and_a_tool_may_return_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    result = agent_forge.run("Break", planner=_Fixed(Task("s1", action="broken")), tools="mytools.py", record=False)
    print_result(result, None)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[0] == "  s1: broken()"
    assert "1 tool call," in captured.err

    @agent_forge.tool
    def ring(times: int) -> None:
        """Rings."""

    ring_twice = _Fixed(Task("s1", action="ring", args={"times": 2}))
    print_result(agent_forge.run("Ring 2 times", planner=ring_twice, tools=[ring], record=False), None)
    assert capsys.readouterr().out == "ring(times=2): None\n"


def test_init_prints_commands_that_work_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "my folder/new"]) == 0
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines()[1:]]
    assert commands[0] == ["cd", "my folder/new"]
    os.chdir("my folder/new")
    assert run(commands[1][1:]) == 0
    assert capsys.readouterr().out == "2.5\n"


def test_limits_on_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    Path("slow").write_text('{"tasks": [{"id": "a", "action": "wait", "args": {"seconds": 30}}]}')
    code, document = called(
        capsys, "run", "--plan", "slow", "--tools", "mytools.py", "--timeout", "0.1", "--concurrency", "1", "--json"
    )
    assert code == 1
    assert document["tasks"]["a"]["state"] == "timed_out"
    code, document = called(
        capsys, "run", "--plan", "plan.txt", "--tools", "mytools.py", "--budget", "calls=2", "--budget", "seconds=60",
        "--json",
    )  # fmt: skip
    assert code == 1
    assert document["state"] == "over_budget"


def test_the_list_of_runs_shows_what_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs", "ls"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("there are no runs yet")
    assert run(["run", QUESTION]) == 0
    capsys.readouterr()
    assert run(["runs", "ls"]) == 0
    assert capsys.readouterr().out.endswith(f"3/3 tasks  {QUESTION}\n")


def test_the_list_of_runs_and_resume(capsys: pytest.CaptureFixture[str]) -> None:
    _, document = called(capsys, "run", "--plan", "plan.txt", "--tools", "mytools.py", "--json")
    for listing in (["runs", "ls"], ["run", "--list"]):  # now, and as it was called before
        assert called(capsys, *listing, "--json")[1]["runs"][0]["run"] == document["run"]
        assert run(listing) == 0
        assert document["run"] in capsys.readouterr().out
    code, again = called(capsys, "run", "--resume", document["run"], "--json")
    assert code == 0
    assert again["tasks"]["c"]["result"] == 10
    assert run(["run", "--resume", "nope"]) == 2


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_interrupted_it_says_what_was_saved_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("slow").write_text(json.dumps({"tasks": [
        {"id": "a", "action": "double", "args": {"n": 2}},
        {"id": "b", "action": "wait", "args": {"seconds": 60}, "depends_on": ["a"]},
    ]}))  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_forge", "run", "--plan", "slow", "--tools", "mytools.py", "--home", "my home"],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "a done" in line
    time.sleep(0.2)  # b has begun or is about to: either way it is not done
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    command = err.split("1 finished task saved; continue with: ")[1].splitlines()[0]  # to be copied as it stands
    assert shlex.split(command)[-2:] == ["--home", "my home"]
    Path("mytools.py").write_text(TOOLS.replace("time.sleep(seconds)", "pass"))
    done = subprocess.run(f"{command} --json", shell=True, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["tasks"]["b"]["result"] == "waited"


def test_a_terminal_gets_a_bar_and_the_failures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("two").write_text(
        '{"tasks": [{"id": "a", "action": "broken"}, {"id": "b", "action": "double", "args": {"n": 1}}]}'
    )
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(["run", "--plan", "two", "--tools", "mytools.py"]) == 1
    captured = capsys.readouterr()
    assert "b: 2" in captured.out
    assert "a failed: ValueError: no such thing" in captured.err
    assert "b done" not in captured.err
    assert "tasks" in captured.err, "the bar"


def test_results_of_tools_cannot_repaint_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hostile.py").write_text(
        "from agent_forge import tool\n@tool\ndef title() -> str:\n    return '\\x1b]0;owned\\x07\\x9b2J'\n"
        "@tool\ndef fail() -> str:\n    raise ValueError('\\x1b[31mred')\n"
    )
    plan = {"tasks": [{"id": "a", "action": "title", "goal": "\x1b[1mbold"}, {"id": "b", "action": "fail"}]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    calls = (["plan"], ["plan", "--format", "mermaid"], ["run", "--tools", "hostile.py"],
             ["run", "--tools", "hostile.py", "--json"])  # fmt: skip
    for call in calls:
        run([*call, "--plan", "plan.json"])
        captured = capsys.readouterr()
        assert captured.out
        assert not set(captured.out + captured.err) & {"\x1b", "\x07", "\x9b"}, call
    assert json.loads(captured.out)["tasks"]["a"]["result"] == "\x1b]0;owned\x07\x9b2J", "JSON has every character"


def test_a_plan_that_is_not_utf_8_is_a_bad_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "plan.txt"
    bad.write_bytes(b"<plan>\nTask 1: caf\xe9 | Dependencies: none\n</plan>")
    for call in (["plan", "--plan", str(bad), "--json"], ["run", "--plan", str(bad), "--json"]):
        assert run(call) == 1
        (fault,) = json.loads(capsys.readouterr().out)["errors"]
        assert fault == {"code": "malformed", "message": "the text is not UTF-8", "task": None, "line": 2}


def test_half_a_character_in_a_result_is_printed(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text('from agent_forge import tool\n@tool\ndef odd() -> str:\n    return "\\ud83d!"\n')
    (tmp_path / "plan.json").write_text('{"tasks": [{"id": "a", "action": "odd"}]}')
    call = [sys.executable, "-m", "agent_forge", "run", "--plan", "plan.json", "--tools", "odd.py", "--home", "home"]
    ran = subprocess.run([*call, "--json"], cwd=tmp_path, capture_output=True, timeout=60, check=True)
    assert json.loads(ran.stdout)["tasks"]["a"]["result"] == "\ud83d!"


def test_a_request_that_cannot_be_planned_is_told_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["plan", " "], ["run", " "], ["run", "?!", "--tools", "mytools.py"]):
        code, document = called(capsys, *arguments, "--json")
        assert code == 1
        assert document["errors"][0]["message"] == "the request has no words. Say what is to be done."


@pytest.mark.parametrize("how", ["default", "option", "file"])
def test_secrets_are_not_in_the_trace(tmp_path: Path, how: str) -> None:
    key = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
    (tmp_path / "login.json").write_text(
        json.dumps(
            {"tasks": [{"id": "a", "action": "login", "args": {"password": "hunter2", "note": f"{key} jo@a.io"}}]}
        )
    )
    if how == "file":
        (tmp_path / "agent-forge.yaml").write_text("mask: pii\n")
    options = ["--mask", "none"] if how == "option" else []
    assert run(["run", "--plan", "login.json", "--tools", "mytools.py", *options]) == 0
    stored = b"".join(path.read_bytes() for path in (tmp_path / "home").glob("traces.db*"))
    kept = {word for word in (b"hunter2", b"ghp_", b"jo@a.io") if word in stored}
    assert kept == {"default": {b"jo@a.io"}, "option": {b"hunter2", b"ghp_", b"jo@a.io"}, "file": set()}[how]


def test_sampling_is_an_option(tmp_path: Path) -> None:
    from agent_forge.traces import Store

    for share, traces in (("0", 0), ("1", 1)):
        assert run(["run", "--plan", "plan.txt", "--tools", "mytools.py", "--sample", share]) == 0
        with Store.open(tmp_path / "home") as store:
            assert len(store.traces()) == traces
    assert run(["run", "--plan", "plan.txt", "--sample", "2"]) == 2
