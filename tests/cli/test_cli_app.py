"""How commands are found and how they end."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import click
import pytest
import yaml

from agent_forge.cli import _app, doctor, run
from agent_forge.errors import StoreError, UsageError
from agent_forge.installed import install_command


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("AGENT_FORGE_HOME", str(tmp_path / "home"))


def script(name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds a command that runs `code` to the tree."""

    @click.command()
    def command() -> object:
        if code == "interrupt":
            raise KeyboardInterrupt
        if code == "usage":
            raise UsageError("that is wrong", fix="do it right")
        if code == "store":
            raise StoreError("the file is damaged", where="traces.db")
        if code == "extra":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        if code == "phase":
            raise UsageError("the phase 'x' cannot be loaded") from ModuleNotFoundError("no torch", name="torch")
        if code == "bug":
            raise IndexError("list index out of range")
        return 7

    module = type(sys)("agent_forge_test_command")
    module.command = command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "agent_forge_test_command", module)
    monkeypatch.setitem(_app.COMMANDS, name, ("agent_forge_test_command", "A test."))


@pytest.mark.parametrize("name", list(_app.COMMANDS))
def test_every_listed_command_is_real(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(import_module(_app.COMMANDS[name][0]).command, click.Command)
    assert run([name, "--help"]) == 0
    assert "Usage: agent-forge " + name in capsys.readouterr().out


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in _app.COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rnu"], "there is no command 'rnu'. Did you mean 'run'?"),
        (["xyzzy"], "`agent-forge --help` lists the commands."),
        (["run", "--no-such-option"], "--no-such-option"),
        (["doctor", "--jsno"], "--json"),
    ],
)
def test_a_wrong_call_exits_2_and_helps(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        ("interrupt", 130, "agent-forge: interrupted\n"),
        ("usage", 2, "agent-forge: that is wrong. do it right.\n"),
        ("store", 1, "agent-forge: traces.db: the file is damaged\n"),
        ("bug", 1, "agent-forge: internal error: IndexError: list index out of range (--debug shows the traceback)\n"),
        ("seven", 7, ""),
    ],
)
def test_how_a_command_ends(
    code: str, exit_code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script("try", code, monkeypatch)
    assert run(["try"]) == exit_code
    assert capsys.readouterr().err.lstrip("\n") == said


@pytest.mark.parametrize(("code", "error"), [("store", StoreError), ("bug", IndexError)])
def test_debug_shows_the_traceback(code: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    script("try", code, monkeypatch)
    with pytest.raises(error):
        run(["--debug", "try"])


def test_a_misspelt_key_in_a_settings_file_names_the_right_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agent-forge.yaml").write_text("modle: smollm2\n")
    assert run(["config", "show"]) == 2
    assert "agent-forge.yaml:1: unknown key 'modle'; did you mean 'model'?" in capsys.readouterr().err
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("concurrency: 0", "agent-forge.yaml:1: concurrency: must be at least 1, got 0"),
        ("concurrency: two", "agent-forge.yaml:1: concurrency: expected a whole number, got 'two'"),
        (
            "planner: rulse",
            "agent-forge.yaml:1: planner: expected one of rules, forged, local, model, got 'rulse'; did",
        ),
    ],
)
def test_a_value_that_is_out_of_range_in_a_settings_file(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent-forge.yaml").write_text(text)
    for command in (["config", "show"], ["run", "Who is older, A or B?"]):
        assert run(command) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "home").exists()
    assert run(["--help"]) == 0
    assert run(["run", "--help"]) == 0
    monkeypatch.setattr(doctor, "_is_installed", lambda _: False)  # torch would be loaded to look for accelerators
    assert run(["doctor", "--json"]) == 1
    out = capsys.readouterr().out
    checks = json.loads(out[out.index("{") :])["checks"]
    (settings,) = [check for check in checks if check["name"] == "settings"]
    assert said in settings["detail"]


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AGENT_FORGE_CONCURRENCY", "many")
    assert run(["config", "show"]) == 2
    assert "environment (AGENT_FORGE_CONCURRENCY)" in capsys.readouterr().err


def test_flag_over_environment_over_project_over_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "xdg" / "agent-forge").mkdir(parents=True)
    (tmp_path / "xdg" / "agent-forge" / "config.yaml").write_text("model: user\nplanner: rules\nconcurrency: 3\n")
    (tmp_path / "agent-forge.yaml").write_text("model: project\nplanner: local\n")
    monkeypatch.setenv("AGENT_FORGE_MODEL", "variable")
    assert run(["config", "show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["model"] == {"value": "variable", "origin": "environment (AGENT_FORGE_MODEL)"}
    assert shown["planner"] == {"value": "local", "origin": "agent-forge.yaml:2"}
    assert shown["concurrency"] == {"value": 3, "origin": f"{tmp_path}/xdg/agent-forge/config.yaml:3"}
    assert shown["home"]["origin"] == "environment (AGENT_FORGE_HOME)"
    assert "AGENT_FORGE_PLANNER" not in os.environ
    assert run(["config", "show", "--origin"]) == 0
    lines = capsys.readouterr().out
    assert "AGENT_FORGE_MODEL" in lines
    assert yaml.safe_load(lines) == {key: entry["value"] for key, entry in shown.items()}
    assert run(["config", "show"]) == 0
    assert "model: variable" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert "_AGENT_FORGE_COMPLETE" in capsys.readouterr().out


def test_the_shell_can_ask_for_completions() -> None:
    env = {**os.environ, "_AGENT_FORGE_COMPLETE": "bash_complete", "COMP_WORDS": "agent-forge trac", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-m", "agent_forge"], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "plain,traces\n"


def test_bench_lists_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench"]) == 0
    assert "startup" in capsys.readouterr().out.split()
    assert run(["bench", "startpu"]) == 2
    assert "Did you mean 'startup'?" in capsys.readouterr().err


def test_bench_runs_one(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "startup", "--help"]) == 0
    assert capfd.readouterr().out.startswith("usage: startup.py")
    assert run(["bench", "startup", "--quick"]) == 0
    assert "x python -c pass" in capfd.readouterr().out


def test_a_closed_pipe_is_no_traceback() -> None:
    command = f"{sys.executable} -m agent_forge --help | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_ctrl_c_exits_130(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import asyncio\nfrom agent_forge import tool\n\n@tool\nasync def wait() -> str:\n"
        '    """Waits."""\n    print("waiting", flush=True)\n    await asyncio.sleep(60)\n    return "done"\n'
    )
    (tmp_path / "plan.json").write_text('{"tasks": [{"id": "a", "goal": "wait", "action": "wait"}]}')
    command = [sys.executable, "-m", "agent_forge", "run", "--plan", "plan.json", "--tools", "slow.py"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in err


def test_traces_go_where_the_setting_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_forge.settings import trace_store

    assert trace_store("here") == "here"
    monkeypatch.setenv("AGENT_FORGE_STORE", "postgresql:///forge")
    assert trace_store("here") == "postgresql:///forge"
    assert trace_store("postgresql:///other") == "postgresql:///other", "a flag is stronger than the environment"


def test_no_command_takes_the_place_of_a_function(capsys: pytest.CaptureFixture[str]) -> None:
    """A module is an attribute of its package as soon as it is imported, and would hide a function of that name."""
    import agent_forge.cli
    from agent_forge.cli._app import COMMANDS

    assert agent_forge.cli.run(["run", "--help"]) == 0
    assert callable(agent_forge.cli.run)
    assert {module.rpartition(".")[2] for module, _ in COMMANDS.values()}.isdisjoint({"run", "main"})


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_text_is_printed_in_any_encoding(encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(r'{"tasks": [{"id": "a", "goal": "日本 → \ud83d\ude00"}]}', encoding="utf-8")
    as_json, shown = io.BytesIO(), io.BytesIO()
    for output, option in ((as_json, ["--json"]), (shown, [])):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding))
            assert run(["plan", "--plan", str(plan), *option]) == 0
            sys.stdout.detach()
    assert json.loads(as_json.getvalue())["tasks"][0]["goal"] == "日本 → 😀"
    assert ("日本".encode() in shown.getvalue()) == (encoding != "latin-1")


@pytest.mark.parametrize(("tasks", "unbuffered"), [(1, ""), (1, "1"), (5000, "")])  # less than a buffer, and more
def test_a_closed_or_full_output_is_one_sentence(tmp_path: Path, tasks: int, unbuffered: str) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"tasks": [{"id": f"a{number}"} for number in range(tasks)]}))
    call = f"{sys.executable} -m agent_forge plan --plan plan.json --json"

    def said(redirection: str) -> tuple[int, str]:
        ended = subprocess.run(
            ["sh", "-c", f"{call} {redirection}"],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
        return ended.returncode, ended.stderr

    assert said(">&-") == (0, "")
    if Path("/dev/full").exists():
        assert said("> /dev/full") == (1, "agent-forge: No space left on device\n")
    assert said("| true")[1] == ""


@pytest.mark.parametrize(
    ("code", "said"), [("extra", "torch) needs packages that are not installed"), ("phase", "the phase 'x' cannot be")]
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    code: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script("try", code, monkeypatch)
    assert run(["try"]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.endswith(f". Run `{install_command('forge')}`.\n")
