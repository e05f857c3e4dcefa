"""The command tree, and how every command ends: its exit code and, where it failed, one sentence."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Iterator
from importlib import import_module

import click

from agent_forge._version import __version__
from agent_forge.errors import AgentForgeError, ConfigError, MissingExtraError

# name: (module that holds `command`, help line). The help line stands here so that `--help` imports none of them.
COMMANDS = {
    "demo": ("agent_forge.cli.demo", "Run the whole loop in miniature, on bundled data."),
    "doctor": ("agent_forge.cli.doctor", "Show what works on this machine, what is missing, and how to get it."),
    "config": ("agent_forge.cli.config", "Show the settings in force and where each comes from."),
    "plan": ("agent_forge.cli.plan", "Show a request, or a plan file, as a graph."),
    "init": ("agent_forge.cli.init", "Make a folder to begin with: tools, an agent, requests to try."),
    "chat": ("agent_forge.cli.chat", "Talk to an agent."),
    "run": ("agent_forge.cli.running", "Plan a request, or take a plan file, and run it."),
    "runs": ("agent_forge.cli.runs", "List the runs in the journal."),
    "page": ("agent_forge.cli.page", "Write a run as a single HTML file to share."),
    "traces": ("agent_forge.cli.traces", "List, show, analyse, import and export traces."),
    "delegation": ("agent_forge.cli.delegation", "Trace the subagents of a coding agent."),
    "agents": ("agent_forge.cli.agents", "List and show the agent profiles; run scenarios."),
    "data": ("agent_forge.cli.data", "Prepare training data: scrub, deduplicate, balance, audit."),
    "forge": ("agent_forge.cli.forge", "Make a model: run a pipeline, follow it, export the result."),
    "train": ("agent_forge.cli.train", "Train a planner for your tools, or the model of an agent on its exercises."),
    "evolve": ("agent_forge.cli.evolve", "Evolve merge recipes and judge the champion on held-out data."),
    "quantize": ("agent_forge.cli.quantize", "Train a model for ternary weights and pack it."),
    "compress": ("agent_forge.cli.compress", "Find the smallest model that is good enough, or the best of a size."),
    "evaluate": ("agent_forge.cli.evaluate", "Evaluate any model, or an endpoint, on tasks with known answers."),
    "merge": ("agent_forge.cli.merge", "Merge models, from mergekit's configuration files."),
    "vectors": ("agent_forge.cli.vectors", "Extract, apply and compare task vectors."),
    "rollout": ("agent_forge.cli.rollout", "Release a policy in stages that pull themselves back; flags; experiments."),
    "models": ("agent_forge.cli.models", "List, show, import, verify and remove checkpoints."),
    "serve": ("agent_forge.cli.serve", "Serve the API, trace intake, metrics and the dashboard."),
    "bench": ("agent_forge.cli.bench", "Run a benchmark of a source checkout."),
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

        closest = nearest(name, COMMANDS)
        hint = f"Did you mean {closest!r}?" if closest else "`agent-forge --help` lists the commands."
        raise click.UsageError(f"there is no command {name!r}. {hint}", ctx=ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--debug", is_flag=True, envvar="AGENT_FORGE_DEBUG", help="Show the traceback of an error.")
@click.version_option(__version__, prog_name="agent-forge")
def app(debug: bool) -> None:
    """Agents that plan in graphs, run in parallel, leave a trace of everything, and learn from it.

    Results go to stdout, progress and remarks to stderr; every command that prints a result takes --json.
    Exit codes: 0 done, 1 the work failed, 2 wrong usage, 130 interrupted.
    """


def run_command(arguments: list[str]) -> int:
    debug = "--debug" in arguments or bool(os.environ.get("AGENT_FORGE_DEBUG"))
    _accept_any_character()
    try:
        with _settings_in_environment(arguments):
            code = app.main(arguments, prog_name="agent-forge", standalone_mode=False)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # None as with `>&-`
                stream.flush()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", 130)
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
        return _fail(*_sentence(error))
    finally:
        _drop_unwritten()


def _sentence(error: Exception) -> tuple[str, int]:
    """An error in one sentence, and its exit code."""
    from agent_forge.cli.doctor import EXTRAS
    from agent_forge.installed import install_command

    missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__
    module = missing.name if isinstance(missing, ModuleNotFoundError) else None
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    if isinstance(error, AgentForgeError):
        fix = "" if extra is None or error.fix else f". Run `{install_command(extra)}`."
        return str(error) + fix, error.exit_code
    if extra is not None:
        return str(MissingExtraError(f"this command (it imports {module})", extra)), 2
    if isinstance(error, OSError):  # a full disk, a read-only folder: not a bug
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error), 1
    return f"internal error: {type(error).__name__}: {error} (--debug shows the traceback)", 1


def _fail(text: str, code: int) -> int:
    from agent_forge.terminal import printable  # messages quote files, plans and answers of others

    with contextlib.suppress(BrokenPipeError):
        print(f"agent-forge: {printable(text, lines=True)}", file=sys.stderr, flush=True)
    return code


def _drop_unwritten() -> None:
    """Drops what could not be written: the interpreter would try again at exit, complain, and change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _accept_any_character() -> None:
    """Makes output never fail on a character that the terminal's encoding, or UTF-8 itself, does not have.

    A machine without a locale reports ASCII, yet its terminal can nearly always show UTF-8: there we write UTF-8.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            ascii_only = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding="utf-8" if ascii_only else None, errors="backslashreplace")


@contextlib.contextmanager
def _settings_in_environment(arguments: list[str]) -> Iterator[None]:
    """Applies the settings files (`files_in_environment`). Broken ones do not stop help, doctor and completion."""
    from agent_forge.settings import files_in_environment

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(files_in_environment())
        except ConfigError:
            command = next((word for word in arguments if not word.startswith("-")), None)
            if command not in (None, "doctor", "completion") and not {"-h", "--help"}.intersection(arguments):
                raise
        yield
