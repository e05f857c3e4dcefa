"""A command as a user calls it, in this process: a new one takes longer to start than most commands run."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from agent_forge.cli import run


def agent_forge(folder: Path, *arguments: str, stdin: str = "", **environment: str) -> CompletedProcess[str]:
    """Runs a command in a folder, by no setting but those of the `environment`. Nothing is a terminal."""
    out, err = io.BytesIO(), io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in [name for name in os.environ if name.startswith("AGENT_FORGE_")]:
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8"))
        patch.setattr(sys, "stdout", io.TextIOWrapper(out, "utf-8", write_through=True))
        patch.setattr(sys, "stderr", io.TextIOWrapper(err, "utf-8", write_through=True))
        code = run(arguments)
        said = out.getvalue().decode(), err.getvalue().decode()
    return CompletedProcess(arguments, code, *said)
