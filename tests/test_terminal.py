"""What a terminal is shown: no escape sequences of others, and one display of progress."""

from __future__ import annotations

import ast
import io
import json
import unicodedata
from pathlib import Path

import pytest

from agent_forge import terminal
from agent_forge.terminal import ProgressDisplay, printable, printable_json


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_no_control_character_or_override_is_left_of_any_code_point() -> None:
    every = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    left = [letter for letter in printable(every) if unicodedata.category(letter) in ("Cc", "Zl", "Zp")]
    assert left == []
    overrides = [
        letter for letter in printable(every) if unicodedata.bidirectional(letter) in {"RLO", "LRO", "RLI", "PDF"}
    ]
    assert overrides == []


@pytest.mark.parametrize(
    ("text", "one_line", "lines"),
    [
        ("plain – 日本語 a\u00a0b नि\u200dक", "plain – 日本語 a\u00a0b नि\u200dक", "plain – 日本語 a\u00a0b नि\u200dक"),
        ("a\x1b[2Jb", "a�[2Jb", "a�[2Jb"),
        ("\x9b31mred", "�31mred", "�31mred"),
        ("a\n\tb\r\nc\rd", "a��b��c�d", "a\n\tb\nc�d"),
        ("abc\u202edef", "abc�def", "abc�def"),
    ],
)
def test_text_of_others(text: str, one_line: str, lines: str) -> None:
    assert printable(text) == one_line
    assert printable(text, lines=True) == lines


def test_json_has_every_character_and_no_harm() -> None:
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    text = printable_json(json.dumps({"text": "".join(every)}, ensure_ascii=False, indent=1))
    assert json.loads(text)["text"] == "".join(every)
    assert printable(text, lines=True) == text


def test_plain_lines_come_at_once_and_then_every_few_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    with ProgressDisplay(stream, every_s=5, clock=clock) as display:
        for step in range(101):
            display.update("train", step, 400, unit="steps", detail=f"loss {3 - step / 100:.2f}")
            clock.now += 0.2
        display.line("trained")
    assert stream.getvalue().splitlines() == [
        "train: 0/400 steps, loss 3.00",
        "train: 25/400 steps, 5.0 steps/s, 0:01:15 left, loss 2.75",
        "train: 50/400 steps, 5.0 steps/s, 0:01:10 left, loss 2.50",
        "train: 75/400 steps, 5.0 steps/s, 0:01:05 left, loss 2.25",
        "train: 100/400 steps, 5.0 steps/s, 0:01:00 left, loss 2.00",
        "trained",
    ]


def test_a_night_of_work_is_a_short_log_and_never_silent_for_long() -> None:
    stream, clock, silences, last = io.StringIO(), Clock(), [], 0.0
    with ProgressDisplay(stream, clock=clock) as display:
        for step in range(8 * 3600):
            clock.now += 1
            length = len(stream.getvalue())
            display.update("train", step, 8 * 3600)
            if len(stream.getvalue()) > length:
                silences.append(clock.now - last)
                last = clock.now
    assert max(silences[1:]) <= 60
    assert len(silences) < 600


def test_a_stage_that_reports_nothing_is_not_silent() -> None:
    stream, clock = io.StringIO(), Clock()
    with ProgressDisplay(stream, clock=clock) as display:
        display.update("calibrate")
        for _ in range(14):
            clock.now += 10
            display.beat()
    assert stream.getvalue().splitlines() == ["calibrate", "calibrate: 0:01:00 so far", "calibrate: 0:02:00 so far"]


def test_a_resumed_stage_and_one_that_begins_again_are_rated_by_what_they_did_now() -> None:
    stream, clock = io.StringIO(), Clock()
    with ProgressDisplay(stream, every_s=0, clock=clock) as display:
        for done in (900_000_000, 905_000_000, 100_000_000, 101_000_000):
            display.update("merge", done, 1_000_000_000, unit="B")
            clock.now += 10
    assert stream.getvalue().splitlines() == [
        "merge: 900/1,000 MB",
        "merge: 905/1,000 MB, 30.0 MB/min, 0:03:10 left",
        "merge: 100/1,000 MB",
        "merge: 101/1,000 MB, 6.0 MB/min, 2:29:50 left",
    ]


def test_a_terminal_shows_a_bar_per_stage_and_leaves_only_the_lines() -> None:
    stream = Terminal()
    with ProgressDisplay(stream) as display:
        display.update("calibrate")
        display.update("try\x1b[2J options", 1, 3, detail="layer \x1b]0;title\x07[red]")
        bars = display._bars
        assert [task.description for task in bars.tasks] == ["try�[2J options"], "a stage of unknown length has ended"
        assert "\x1b" not in bars.tasks[0].fields["figures"]
        display.update("recover", 1, 2)
        assert len(bars.tasks) == 2
        display.update("recover", 2, 2)
        assert len(bars.tasks) == 1
        display.line("tried \x1b[2J [bold]3")
    assert "tried �[2J [bold]3" in stream.getvalue()
    assert "\x1b]0;" not in stream.getvalue()


def test_a_closed_stderr_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    with ProgressDisplay() as display:
        display.update("work", 1, 2)
        display.line("done")


def test_commands_print_by_way_of_what_cleans() -> None:
    """Text of others reaches a terminal through `echo`, `cell` and `json_out`; what prints directly prints only our own
    text, or what is to be read back from a file or a pipe."""
    folder = Path(terminal.__file__).parent / "cli"
    direct = {
        path.name
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"click.echo", "click.secho", "print", "sys.stdout.write"}
    }
    assert direct == {
        "_output.py", "_app.py", "bench.py", "chat.py", "completion.py", "data.py", "delegation.py", "page.py",
        "plan.py",
    }  # fmt: skip
