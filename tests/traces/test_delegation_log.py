"""The hook in a project's settings, the log as an interchange file, and verdicts on delegations."""

from __future__ import annotations

import json
import random
import shlex
import subprocess
import sys

import pytest

from agent_forge.errors import ConfigError, DataError, TraceError, UsageError
from agent_forge.traces import transcript
from agent_forge.traces.delegation import (
    for_store,
    from_one_shot,
    hook_command,
    install,
    install_commands,
    learned_rules,
    log_path,
    read_log,
    rules_path,
    settings_path,
    to_one_shot,
    uninstall,
    uninstall_files,
    verify,
    write_one_shot,
    write_rules,
)
from agent_forge.traces.dependencies import dependencies
from agent_forge.traces.performance import performance
from agent_forge.traces.reward import exit_code, person
from agent_forge.traces.store import Store
from agent_forge.traces.trajectory import assemble
from agent_forge.traces.trust import TrustTable
from agent_forge.traces.validate import validate_spans

EXISTING = """{
\t"permissions": {"allow": ["Bash(npm test)"]},
\t"hooks": {
\t\t"SubagentStop": [
\t\t\t{"matcher": "reviewer", "hooks": [{"type": "command", "command": "./check.sh", "timeout": 5}]}
\t\t],
\t\t"Stop": [{"hooks": [{"type": "command", "command": "say 'fertig ✓'"}]}]
\t},
\t"model": "opus"
}
"""


@pytest.fixture
def settings(tmp_path):
    path = settings_path(tmp_path)
    path.parent.mkdir()
    return path


def span_line(name, start, session="s", **fields):
    return json.dumps({
        "trace_id": transcript._digest("session", session, 32), "span_id": transcript._digest("agent", name, 16),
        "name": f"delegate to {name}", "kind": "agent", "agent": name, "session": session,
        "start_ns": start * 10**9, "end_ns": (start + 1) * 10**9, **fields,
    })  # fmt: skip


# -- settings ----------------------------------------------------------------------------------------------------------


def test_install_into_nothing_then_again(tmp_path):
    assert install(tmp_path) is True
    path = settings_path(tmp_path)
    (group,) = json.loads(path.read_text())["hooks"]["SubagentStop"]
    assert group == {"hooks": [{"type": "command", "command": hook_command(), "timeout": 10}]}
    before = path.read_bytes()
    assert install(tmp_path) is False
    assert path.read_bytes() == before


def test_what_is_there_stays_as_it_is(tmp_path, settings):
    settings.write_text(EXISTING)
    install(tmp_path)
    text = settings.read_text()
    found, old = json.loads(text), json.loads(EXISTING)
    assert list(found) == list(old)
    assert list(found["hooks"]) == list(old["hooks"])
    assert found["hooks"]["SubagentStop"][0] == old["hooks"]["SubagentStop"][0]
    assert (found["hooks"]["Stop"], found["permissions"], found["model"]) == (
        old["hooks"]["Stop"], old["permissions"], old["model"],
    )  # fmt: skip
    assert "fertig ✓" in text  # not escaped
    assert '\n\t"permissions"' in text  # indented as it was
    assert uninstall(tmp_path) is True
    assert json.loads(settings.read_text()) == old
    assert uninstall(tmp_path) is False


def test_another_kind_of_installation_replaces_ours_only(tmp_path):
    install(tmp_path)
    install(tmp_path, portable=True, keep_text=False)
    (group,) = json.loads(settings_path(tmp_path).read_text())["hooks"]["SubagentStop"]
    assert group["hooks"][0]["command"] == "agent-forge delegation hook --no-text"
    uninstall(tmp_path)
    assert json.loads(settings_path(tmp_path).read_text()) == {}


def test_our_hook_inside_a_group_of_others_leaves_them(tmp_path, settings):
    theirs = {"type": "command", "command": "./check.sh"}
    ours = {"type": "command", "command": "agent-forge delegation hook"}
    settings.write_text(json.dumps({"hooks": {"SubagentStop": [{"hooks": [theirs, ours]}]}}))
    uninstall(tmp_path)
    assert json.loads(settings.read_text()) == {"hooks": {"SubagentStop": [{"hooks": [theirs]}]}}


@pytest.mark.parametrize(
    "text",
    ["{", '{"hooks": }', "// a comment\n{}", "[]", '{"hooks": []}', '{"hooks": {"SubagentStop": {}}}',
     '{"hooks": {"SubagentStop": ["x"]}}', '{"hooks": {"SubagentStop": [{"hooks": {}}]}}'],
)  # fmt: skip
def test_settings_that_are_not_understood_are_refused_and_left_alone(tmp_path, settings, text):
    settings.write_text(text)
    with pytest.raises(ConfigError, match=r"[Nn]othing was changed"):
        install(tmp_path)
    assert settings.read_text() == text
    assert [path.name for path in settings.parent.iterdir()] == ["settings.json"]


def test_settings_that_are_not_text_and_projects_that_are_not_there(tmp_path, settings):
    settings.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        install(tmp_path)
    with pytest.raises(UsageError, match="no such project"):
        install(tmp_path / "nowhere")


def test_empty_settings_and_local_settings(tmp_path, settings):
    settings.write_text("\n")
    assert install(tmp_path)
    assert install(tmp_path, local=True)
    assert settings_path(tmp_path, local=True).name == "settings.local.json"


def test_the_installed_command_runs_through_a_shell(tmp_path):
    install(tmp_path)
    (group,) = json.loads(settings_path(tmp_path).read_text())["hooks"]["SubagentStop"]
    payload = {"session_id": "s", "agent_id": "a", "agent_type": "Explore", "cwd": str(tmp_path)}
    command = ["sh", "-c", group["hooks"][0]["command"]]
    done = subprocess.run(command, input=json.dumps(payload).encode(), capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    (span,) = read_log(log_path(tmp_path))
    assert span.agent == "Explore"
    assert shlex.split(group["hooks"][0]["command"])[0] == sys.executable


# -- the log -----------------------------------------------------------------------------------------------------------


def write_log(project, *lines):
    path = log_path(project)
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_later_lines_replace_earlier_ones_and_a_torn_end_is_left_out(tmp_path):
    path = write_log(tmp_path, span_line("B", 5), span_line("A", 1), "", span_line("A", 1, reward=0.5))
    with path.open("a") as file:
        file.write('{"trace_id": "4bf')
    found = read_log(path)
    assert [(span.agent, span.reward) for span in found] == [("A", 0.5), ("B", None)]


@pytest.mark.parametrize(
    "line",
    ["{torn}", "[]", '{"trace_id": "x", "span_id": "y"}', '{"agent_type": "Explore"}', "7", '{"agent": 7}', "\xff"],
)
def test_a_line_that_is_no_span_is_named(tmp_path, line):
    path = write_log(tmp_path, span_line("A", 1), line, span_line("B", 2))
    with pytest.raises(TraceError, match="line 2"):
        read_log(path)


def test_no_log(tmp_path):
    with pytest.raises(DataError, match="install"):
        read_log(log_path(tmp_path))
    log_path(tmp_path).mkdir(parents=True)
    with pytest.raises(DataError, match="cannot be read"):
        read_log(log_path(tmp_path))


def test_a_line_whose_writer_died_does_not_cost_the_others(tmp_path):
    path = write_log(tmp_path, span_line("A", 1))
    with path.open("ab") as file:
        file.write('{"trace_id": "4bf", "name": "日'.encode()[:-1])  # in the middle of a letter
    transcript.append_line(str(path), span_line("B", 2))
    assert [span.agent for span in read_log(path)] == ["A", "B"]


ONE_SHOT = {
    "timestamp": "2026-02-20T10:00:05Z", "span_id": "8b6c", "session_id": "s1", "agent_type": "Explore",
    "model": "haiku", "task_input": "find it", "task_output": "Process crashed and was aborted",
    "tool_sequence": ["Glob", "Read", "Read", "Grep"], "tool_calls_count": 4, "duration_ms": 12340, "result": "success",
    "assessment": {"complexity": "medium", "criticality": "low"}, "reward": 1.0,
}  # fmt: skip


def test_a_one_shot_log_is_read_and_written_back(tmp_path):
    bare = {"timestamp": "2026-02-20T11:00:05+00:00", "agent_type": "Plan", "model": "unknown", "note": "of our own"}
    failed = {**ONE_SHOT, "span_id": "8b6d", "result": "failure", "reward": 0.0, "timestamp": "2026-02-20T10:30:00Z"}
    path = write_log(tmp_path, *map(json.dumps, (ONE_SHOT, failed, bare)))
    one, two, three = spans = read_log(path)
    assert (one.agent, one.model, one.session, one.duration_s) == ("Explore", "haiku", "s1", 12.34)
    assert (one.reward, one.status, two.reward, two.status) == (1.0, "ok", 0.0, "error")
    assert (three.model, three.session, three.duration_s, three.reward) == (None, "unknown", 0, None)
    assert assemble([one]).tools == ["Glob", "Read", "Read", "Grep"]
    out = tmp_path / "back.jsonl"
    assert write_one_shot(spans, out) == 3
    assert [json.loads(line) for line in out.read_text().splitlines()] == [ONE_SHOT, failed, bare]
    verify(tmp_path, one.span_id, exit_code(1))
    (changed, *_) = (to_one_shot(span) for span in read_log(path))
    assert changed == {**ONE_SHOT, "reward": 0.0, "result": "failure"}


def test_what_a_one_shot_line_cannot_say_is_refused():
    with pytest.raises(TraceError, match="timestamp"):
        from_one_shot({"timestamp": "later", "agent_type": "Plan"})
    with pytest.raises(TraceError, match="reward"):
        from_one_shot({**ONE_SHOT, "reward": "high"})


def test_our_own_spans_are_written_as_one_shot_lines_too(tmp_path):
    path = write_log(
        tmp_path, span_line("A", 1, reward=0.5, inputs="x" * 300, attributes={"agent_forge.tools": ["Read"]})
    )
    (line,) = (to_one_shot(span) for span in read_log(path))
    assert (line["agent_type"], line["reward"], line["result"], line["duration_ms"]) == ("A", 0.5, "partial", 1000)
    assert (len(line["task_input"]), line["tool_sequence"]) == (200, ["Read"])
    again = from_one_shot(line)
    assert (again.agent, again.reward, again.start_ns, again.end_ns) == ("A", 0.5, 10**9, 2 * 10**9)


# -- what the log teaches ----------------------------------------------------------------------------------------------


def delegations(rewards, category="code"):
    """Lines of a log: each agent with its rewards, in turn."""
    lines = []
    for agent, values in rewards.items():
        for number, reward in enumerate(values):
            line = span_line(f"{agent}-{number}", number, category=category, model="m", reward=reward)
            lines.append(json.dumps({**json.loads(line), "agent": agent}))
    return lines


def drawn(seed, share, count):
    generator = random.Random(seed)
    return [float(generator.random() < share) for _ in range(count)]


def test_a_planted_difference_changes_the_rules_and_the_routing_as_far_as_counts_allow(tmp_path):
    for count, told in ((4, False), (12, True), (40, True)):  # four each are not enough, whatever they say
        planted = {"ada": [0.0] * count, "bob": [1.0] * count}
        spans = read_log(write_log(tmp_path, *delegations(planted)))
        lines = learned_rules(spans)
        assert len(lines) == told
        if told:
            assert lines[0].startswith("code: give it to bob (m) [")
            assert "not to ada (m) [" in lines[0]
            assert f"n={count}" in lines[0]
        table = TrustTable(explore=0.0, half_life_s=None)
        table.observe_spans(spans)
        chosen = table.choose([("ada", "m"), ("bob", "m")], "code", random.Random(0))
        assert chosen.candidate[0] == ("bob" if told else "ada")


def test_equal_specialists_change_nothing(tmp_path):
    told = moved = 0
    for seed in range(40):
        equal = {"ada": drawn(seed, 0.7, 30), "bob": drawn(seed + 1000, 0.7, 30)}
        spans = read_log(write_log(tmp_path, *delegations(equal)))
        told += len(learned_rules(spans))
        table = TrustTable(explore=0.0, half_life_s=None)
        table.observe_spans(spans)
        moved += table.choose([("ada", "m"), ("bob", "m")], "code", random.Random(0)).candidate[0] != "ada"
    assert told <= 1  # of 40: the bounds hold in 19 of 20 cases each, and both must fail
    assert moved <= 1


# -- commands and rules ------------------------------------------------------------------------------------------------


def test_commands_and_rules_are_ours_to_change_and_others_are_not(tmp_path):
    own = tmp_path / ".claude" / "commands" / "delegation-stats.md"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    changed = install_commands(tmp_path)
    assert [path.name for path in changed] == ["delegation-log.md", "delegation-trajectory.md"]
    assert install_commands(tmp_path) == []
    assert own.read_text() == "mine"
    assert "!`agent-forge delegation trajectory`" in changed[1].read_text()
    assert write_rules(tmp_path, "text\n")
    assert not write_rules(tmp_path, "text\n")
    assert write_rules(tmp_path, "other\n")
    assert {path.name for path in uninstall_files(tmp_path)} == {
        "delegation-log.md", "delegation-trajectory.md", "delegation.md",
    }  # fmt: skip
    assert own.read_text() == "mine"
    rules_path(tmp_path).write_text("my rules")
    with pytest.raises(ConfigError, match="not one that we wrote"):
        write_rules(tmp_path, "text\n")


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_the_last_verdict_counts_and_one_that_tells_nothing_does_not(tmp_path):
    write_log(tmp_path, span_line("A", 1))
    (span,) = read_log(log_path(tmp_path))
    for verdict, reward, status in (("pass", 1.0, "ok"), ("fail", 0.0, "error"), ("partial", 0.5, "ok")):
        found = verify(tmp_path, span.span_id, person(verdict))
        assert (found.reward, found.status) == (reward, status)
    with pytest.raises(UsageError, match="undecided"):
        verify(tmp_path, span.span_id, exit_code(None))
    assert read_log(log_path(tmp_path))[0].reward == 0.5


def test_settings_behind_a_link_are_changed_where_they_are(tmp_path):
    kept = tmp_path / "dotfiles.json"
    kept.write_text('{"a": 1}')
    settings_path(tmp_path).parent.mkdir()
    settings_path(tmp_path).symlink_to(kept)
    assert install(tmp_path)
    assert settings_path(tmp_path).is_symlink()
    assert set(json.loads(kept.read_text())) == {"a", "hooks"}


def test_a_verdict_is_appended_and_gives_the_reward(tmp_path):
    path = write_log(tmp_path, span_line("A", 1), span_line("B", 5))
    first = read_log(path)[0]
    span = verify(tmp_path, first.span_id[:6], exit_code(0, "pytest"))
    assert (span.reward, span.status) == (1.0, "ok")
    assert len(path.read_text().splitlines()) == 3
    again = read_log(path)[0]
    assert again.reward == 1.0
    assert again.attributes["agent_forge.verification"]["evidence"] == "pytest"
    assert verify(tmp_path, first.span_id, person("fail")).reward == 0.0
    assert read_log(path)[0].reward == 0.0


def test_a_verdict_needs_exactly_one_delegation(tmp_path):
    write_log(tmp_path, span_line("A", 1), span_line("B", 5))
    with pytest.raises(UsageError, match="no delegation 'zz'"):
        verify(tmp_path, "zz", person("pass"))
    with pytest.raises(UsageError, match="2 delegations"):
        verify(tmp_path, "", person("pass"))


def test_delegations_and_verdicts_in_the_store(tmp_path):
    path = write_log(tmp_path, span_line("A", 1, category="code"), span_line("B", 5))
    with Store.open(tmp_path) as store:
        assert store.add(for_store(read_log(path))) == 2
        first = read_log(path)[0]
        verify(tmp_path, first.span_id, person("pass"))
        assert store.add(for_store(read_log(path))) == 1  # the verdict that came later, and nothing twice
        assert store.add(for_store(read_log(path))) == 0
        spans = store.trace(first.trace_id)
        assert [row.words() for row in performance(store)] == [
            "A: mean reward 1.00 (n=1), at code 1.00", "B: no verified reward yet (1 span, 0 failed)",
        ]  # fmt: skip
        table = TrustTable()
        assert table.observe_spans([*spans, first]) == 1
        assert table.observe_store(store) == 1
        assert assemble(spans).reward == 1.0
        assert validate_spans(enumerate((span.to_dict() for span in spans), 1)) == []


def test_delegations_of_a_session_make_a_trajectory(tmp_path):
    found = "The rounding happens in src/checkout/total.py, line 41, to one decimal."
    path = write_log(
        tmp_path,
        span_line("Explore", 1, outputs=f"I looked around.\n{found}\nThat is all."),
        span_line("Plan", 5, inputs=f"Make a plan. Known: {found}", reward=1.0),
    )
    trajectory = assemble(read_log(path))
    assert trajectory.critical_path_s == 2
    first, second = trajectory.critical_path
    assert dependencies(trajectory.graph) == {first: [], second: [first]}  # the plan quotes what was explored
    assert trajectory.credit("reuse", outcome=1.0) == {first: 0.5, second: 0.5}
