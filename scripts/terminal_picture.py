"""Makes a picture of a real run in a terminal: `python scripts/terminal_picture.py OUT.svg COMMAND…`.

The command runs under a pseudo-terminal, so it behaves as in a terminal; rich draws what it leaves on the screen.
"""

from __future__ import annotations

import os
import pty
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 92


def screen(command: list[str]) -> str:
    """What the command leaves on the screen, with colours and without live parts."""
    chunks: list[bytes] = []

    def read(fd: int) -> bytes:
        data = os.read(fd, 4096)
        chunks.append(data)
        return data

    os.environ.update(COLUMNS=str(WIDTH), TERM="xterm-256color", FORCE_COLOR="1")
    if pty.spawn(command, read):
        sys.exit("the command failed")
    return _settled(b"".join(chunks).decode("utf-8", "replace"))


def _settled(text: str) -> str:
    """Replays upward cursor movement and line erasing, which is all that rich's live displays use."""
    lines = [""]
    at = 0
    for part in re.split(r"(\x1b\[\d*[A-HJKfsu]|\x1b\[\?\d+[hl]|\r\n|\n|\r)", text):
        if part in ("\n", "\r\n"):
            at += 1
            lines.extend([""] * (at + 1 - len(lines)))
        elif up := re.fullmatch(r"\x1b\[(\d*)A", part):
            at = max(0, at - int(up[1] or 1))
        elif re.fullmatch(r"\x1b\[2?K", part):
            lines[at] = ""
        elif part == "\r":
            continue
        elif not re.match(r"\x1b\[\??\d*[B-HJKfhlsu]", part):
            lines[at] += part
    return "\n".join(lines)


def main() -> None:
    out, *command = sys.argv[1:]
    text = screen(command)
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(Text("$ " + " ".join(Path(part).name for part in command), style="bold"))
    console.print(Text.from_ansi(text.rstrip()))
    console.save_svg(out, title="agent-forge demo")


if __name__ == "__main__":
    main()
