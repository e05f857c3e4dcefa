"""The command tree, and how every command ends: its exit code and its one sentence."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import click

from agent_forge._version import __version__
from agent_forge.errors import AgentForgeError, ConfigError, MissingExtraError, UsageError

# name: (module that holds `command`, help line). The help line stands here so that `--help` imports none of them.
COMMANDS = {
    "demo": ("agent_forge.cli.demo", "The whole loop in miniature, on what is embedded."),
    "doctor": ("agent_forge.cli.doctor", "What works on this machine, what is missing, and how to get it."),
    "config": ("agent_forge.cli.config", "The settings in force and where each comes from."),
    "plan": ("agent_forge.cli.plan", "Show a request, or a plan file, as a graph."),
    "run": ("agent_forge.cli.running", "Plan a request, or take a plan file, and carry it out."),
    "page": ("agent_forge.cli.page", "One run as a single HTML file to send to a colleague."),
    "traces": ("agent_forge.cli.traces", "What happened: list, show, analyse, import and export traces."),
    "delegation": ("agent_forge.cli.delegation", "Traces of a coding agent's subagents."),
    "agents": ("agent_forge.cli.agents", "The agent profiles."),
    "data": ("agent_forge.cli.data", "Training data: scrub, deduplicate, balance, audit."),
    "forge": ("agent_forge.cli.forge", "Make a model: run the pipeline, see where it stands, export."),
    "evolve": ("agent_forge.cli.evolve", "Breed merge recipes, and judge the champion on held-out data."),
    "quantize": ("agent_forge.cli.quantize", "Put a model on three levels, trained for and packed."),
    "compress": ("agent_forge.cli.compress", "The smallest model that is good enough, or the best in a byte budget."),
    "merge": ("agent_forge.cli.merge", "One model of several, by mergekit's configuration files."),
    "vectors": ("agent_forge.cli.vectors", "Task vectors: extract a LoRA, apply it, see where models contradict."),
    "models": ("agent_forge.cli.models", "The checkpoints in the registry."),
    "serve": ("agent_forge.cli.serve", "The API, the intake of traces, metrics and the dashboard."),
    "bench": ("agent_forge.cli.bench", "Run one of the benchmarks of a source checkout."),
    "completion": ("agent_forge.cli.completion", "Print a completion script for your shell."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, not when they are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in COMMANDS or name.startswith("-"):
            return super().resolve_command(ctx, args)
        from agent_forge.config import nearest

        near = nearest(name, COMMANDS)
        hint = f"did you mean {near!r}?" if near else "`agent-forge --help` lists the commands."
        raise click.UsageError(f"there is no command {name!r}; {hint}", ctx=ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--debug", is_flag=True, envvar="AGENT_FORGE_DEBUG", help="Show the traceback of an error.")
@click.version_option(__version__, prog_name="agent-forge")
def app(debug: bool) -> None:
    """Agents that plan in graphs, run in parallel, leave a trace of everything, and learn from it.

    Data goes to stdout and talk to stderr; every command that prints a result takes --json. Exit codes: 0 done, 1 the
    work failed, 2 the call was wrong, 130 interrupted.
    """


def run_command(arguments: list[str]) -> int:
    debug = "--debug" in arguments or bool(os.environ.get("AGENT_FORGE_DEBUG"))
    _write_any_text()
    try:
        with _settings_in_environment(arguments):
            code = app.main(arguments, prog_name="agent-forge", standalone_mode=False)
        _flush()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, click.Abort):
        return _say("interrupted", 130)
    except BrokenPipeError:  # the reader has gone
        return 1
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except Exception as error:
        if debug:
            raise
        return _say(*_told(error))
    finally:
        _drop_unwritten()


def _told(error: Exception) -> tuple[str, int]:
    """An error in one sentence, and its exit code."""
    missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__
    extra = _extra_of(missing.name) if isinstance(missing, ModuleNotFoundError) else None
    if isinstance(error, AgentForgeError):
        fix = "" if extra is None or error.fix else f". pip install 'agent-forge[{extra}]'."
        return str(error) + fix, error.exit_code
    if extra is not None:
        return str(MissingExtraError(f"this command (it imports {error.name})", extra)), 2  # type: ignore[attr-defined]
    if isinstance(error, OSError):  # a full disk, a folder that may not be written: no fault of ours
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error), 1
    return f"internal error: {type(error).__name__}: {error} (--debug shows where)", 1


def _extra_of(module: str | None) -> str | None:
    """The extra that brings a module, if one does."""
    from agent_forge.cli.doctor import EXTRAS

    return next((extra for extra, modules in EXTRAS.items() if module in modules), None)


def _say(text: str, code: int) -> int:
    with contextlib.suppress(BrokenPipeError):
        print(f"agent-forge: {text}", file=sys.stderr, flush=True)
    return code


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # as with `>&-`
            stream.flush()


def _drop_unwritten() -> None:
    """What could not be written is dropped: the interpreter would try again at exit, complain, and change the code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _write_any_text() -> None:
    """Makes output never fail on a character that the terminal's encoding, or UTF-8 itself, does not have.

    ASCII is what a machine without a locale says, and hardly ever what its terminal can show: there we write UTF-8.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            plain = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding="utf-8" if plain else None, errors="backslashreplace")


@contextlib.contextmanager
def _settings_in_environment(arguments: list[str]) -> Iterator[None]:
    """The settings files, as `files_in_environment` has them. Where they are broken, help still helps."""
    from agent_forge.settings import files_in_environment

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(files_in_environment())
        except ConfigError:
            asked = next((word for word in arguments if not word.startswith("-")), None)
            if asked not in (None, "doctor", "completion") and not {"-h", "--help"}.intersection(arguments):
                raise
        yield


def json_out(document: Any) -> None:
    """Prints one JSON document on stdout."""
    import json

    unicode = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"
    click.echo(json.dumps(document, ensure_ascii=not unicode, indent=2, allow_nan=False))


def require_bytes(path: str) -> bytes:
    """The content of a file or, for '-', of stdin. Raises UsageError."""
    try:
        if path == "-":
            return b"" if sys.stdin is None else sys.stdin.buffer.read()  # None, as with `<&-`: nothing to read
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=path) from error


def decoded(content: bytes) -> str:
    """UTF-8 text with any kind of line end. Raises UnicodeDecodeError."""
    return io.TextIOWrapper(io.BytesIO(content), "utf-8").read()


def require_file(path: str) -> str:
    """The text of a file or, for '-', of stdin, which is UTF-8 whatever the locale. Raises UsageError."""
    try:
        return decoded(require_bytes(path))
    except UnicodeDecodeError as error:
        raise UsageError("is not UTF-8 text", where=path) from error


home_option = click.option(
    "--home", envvar="AGENT_FORGE_HOME", metavar="DIR", help="Where traces, journals and models are kept."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
