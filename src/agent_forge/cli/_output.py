"""What commands read and print: text without escape sequences, JSON, files and stdin."""

from __future__ import annotations

import io
import sys
from typing import Any

import click

from agent_forge.errors import UsageError


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Prints text that may come from others: a tool's result must not be able to repaint a terminal."""
    from agent_forge.terminal import printable

    click.echo(printable(text, lines=True), err=err, nl=nl)


def cell(text: object) -> str:
    """Text of others for a rich table, tree or console: neither escape sequences nor markup. None is empty."""
    from rich.markup import escape

    from agent_forge.terminal import printable

    return "" if text is None else escape(printable(str(text)))


def json_out(document: Any) -> None:
    """Prints one JSON document on stdout. What a terminal would obey is written as \\u escapes."""
    import json

    from agent_forge.terminal import printable_json

    unicode = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"
    text = json.dumps(document, ensure_ascii=not unicode, indent=2, allow_nan=False)
    click.echo(printable_json(text))


def read_bytes(path: str) -> bytes:
    """The content of a file or, for '-', of stdin. Raises UsageError."""
    try:
        if path == "-":
            return b"" if sys.stdin is None else sys.stdin.buffer.read()  # None, as with `<&-`: nothing to read
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=path) from error


def decode(content: bytes) -> str:
    """UTF-8 text with any kind of line end. Raises UnicodeDecodeError."""
    return io.TextIOWrapper(io.BytesIO(content), "utf-8").read()


def read_text(path: str) -> str:
    """The text of a file or, for '-', of stdin, which is UTF-8 whatever the locale. Raises UsageError."""
    try:
        return decode(read_bytes(path))
    except UnicodeDecodeError as error:
        raise UsageError("is not UTF-8 text", where=path) from error


def call_again(*arguments: str, home: str | None = None) -> str:
    """A command line of this program that works as printed, in this folder: where `agent-forge` is not on the PATH,
    by its path; with --home where the environment does not name that home already."""
    import os
    import shlex
    import shutil
    from pathlib import Path

    ours = shutil.which("agent-forge", path=Path(sys.executable).parent)
    if ours is None:
        program = f"{shlex.quote(sys.executable)} -m agent_forge"
    elif shutil.which("agent-forge") == ours:
        program = "agent-forge"
    else:
        relative = os.path.relpath(ours)
        program = shlex.quote(ours if relative.startswith(os.pardir) else relative)
    stated = [] if home in (None, os.environ.get("AGENT_FORGE_HOME")) else ["--home", str(home)]
    return f"{program} {shlex.join([*arguments, *stated])}"
