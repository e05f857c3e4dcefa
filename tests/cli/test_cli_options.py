"""One vocabulary across commands: an option means the same everywhere, and its former names go on working, unseen."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from agent_forge.cli import run
from agent_forge.cli._app import app
from agent_forge.cli._options import share, size

# command: former option, option, value (None for a flag), the arguments of the command
RENAMED = [
    ("plan", "--text", "--plan", "p.txt", []),
    ("page", "--output", "--out", "p.html", ["r1"]),
    ("doctor", "--endpoint", "--model", "http://x/v1", []),
    ("delegation ls", "--last", "--limit", "3", []),
    ("data audit", "--output", "--out", "a.json", ["rows"]),
    ("data audit", "--keep", "--save", None, ["rows"]),
    ("data audit", "--target", "--shares", "easy=1", ["rows"]),
    ("data balance", "--target", "--shares", "easy=1", ["rows", "out"]),
    ("data scrub", "--reject", "--rejected", "r.jsonl", ["rows", "out"]),
    ("data dedup", "--threshold", "--similarity", "0.7", ["rows"]),
    ("data leakage", "--run", "--ngram", "9", ["train", "test"]),
    ("quantize", "--rows", "--batch", "4", ["m", "o"]),
    ("quantize", "--judged", "--eval-tokens", "640", ["m", "o"]),
    ("quantize", "--dense", "--dense-out", "d", ["m", "o"]),
    ("compress", "--budget", "--max-size", "6MB", [".", "o"]),
    ("compress", "--recover", "--steps", "5", [".", "o"]),
    ("compress", "--rows", "--calibration-rows", "5", [".", "o"]),
    ("compress", "--measured", "--trials", "1", [".", "o"]),
    ("compress", "--picture", "--svg", "s.svg", [".", "o"]),
]
# Former options and commands with a meaning of their own, tested where they are used.
HIDDEN = {
    "run --list",
    "compress --budget-mb",
    "compress --judged",
    "quantize --max-ppl",
    "data balance --endpoint",
    "forge status",
    "delegation log",
}


def every_command(group: click.Group = app, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    names = {*group.list_commands(context), *group.commands}
    for name in sorted(names):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path}{name}", command
        if isinstance(command, click.Group):
            yield from every_command(command, f"{path}{name} ")


COMMANDS = dict(every_command())


@pytest.mark.parametrize(("name", "former", "now", "value", "arguments"), RENAMED)
def test_a_former_name_is_the_option_and_is_not_mentioned(
    name: str, former: str, now: str, value: str | None, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = COMMANDS[name]
    values = [] if value is None else [value]
    contexts = [command.make_context(name, [*arguments, option, *values]) for option in (former, now)]
    assert contexts[0].params == contexts[1].params != command.make_context(name, list(arguments)).params
    words = command.get_help(contexts[0]).replace(",", " ").split()
    assert now in words
    assert former not in words


def test_every_former_name_is_in_the_table() -> None:
    shown = {name: command for name, command in COMMANDS.items() if not command.hidden}
    table = {row[:2] for row in RENAMED}
    former = {(name, old): p.name for name, c in shown.items() for p in c.params for old in getattr(p, "former", ())}
    assert table <= former.keys()
    for name, old in former.keys() - table:  # the field of a settings class is an option of its own name too
        assert former[name, old].rpartition("__")[2] == old[2:].replace("-", "_")
    options = {f"{name} {p.opts[0]}" for name, c in shown.items() for p in c.params if getattr(p, "hidden", False)}
    assert options | (COMMANDS.keys() - shown.keys()) == HIDDEN


def test_options_of_one_name_take_values_of_one_kind() -> None:
    kinds: dict[str, set[str]] = {}
    for command in COMMANDS.values():
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                kind = option.type.name.removesuffix(" range")
                kinds.setdefault(option.opts[0], set()).add(kind if kind in ("boolean", "integer", "float") else "text")
    # `collect` counts traces and `train` reads them; workers are a number, or where they are; `run` is told what to
    # resume, and `train` finds it in its folder.
    assert {name for name, found in kinds.items() if len(found) > 1} == {"--resume", "--traces", "--workers"}


def test_every_option_has_a_help_text_in_a_sentence() -> None:
    for name, command in COMMANDS.items():
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                text = option.help or ""
                assert text[:1].isupper() or text.split()[0].rstrip(",").islower(), (name, option.opts, text)
                assert text.endswith("."), (name, option.opts, text)


def test_sizes_and_shares() -> None:
    assert (size("800kB"), size("2 KiB"), size("77")) == (800_000, 2048, 77)
    assert [share(text) for text in ("5 %", "0.3", "500%", "1")] == [0.05, 0.3, 5.0, 1.0]
    for function, wrong in ((size, ("", "MB", "-1MB", "0", "3 parsec")), (share, ("", "much", "5"))):
        for text in wrong:
            with pytest.raises(click.BadParameter):
                function(text)


def test_a_typing_error_is_told_by_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compress", ".", "out", "--max-size", "six"]) == 2
    assert "Invalid value for '--max-size': 'six' is not a size. Write for example 6MB" in capsys.readouterr().err
