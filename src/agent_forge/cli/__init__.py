"""The command line, `agent-forge`: one module per command, each loaded only when it is called."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn


def main() -> NoReturn:
    """The entry point of the console script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs one command in this process and returns its exit code."""
    from agent_forge.cli._app import run_command

    return run_command(list(arguments))
