"""How much CPU time does `agent-forge --help` take, compared with `python -c pass` in the same run?"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys


def cpu_ms(command: list[str], repeats: int) -> float:
    """The minimum CPU time (user and system) of `command`."""

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    times = []
    for _ in range(repeats):
        before = spent()
        subprocess.run(command, check=True, capture_output=True)
        times.append(1000 * (spent() - before))
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    repeats = 5 if parser.parse_args().quick else 25
    python = [sys.executable]
    bare = cpu_ms([*python, "-c", "pass"], repeats)
    rows = {
        "python -c pass": bare,
        "import agent_forge": cpu_ms([*python, "-c", "import agent_forge"], repeats),
        "import click": cpu_ms([*python, "-c", "import click"], repeats),
        "agent-forge --help": cpu_ms([*python, "-m", "agent_forge", "--help"], repeats),
        "agent-forge --version": cpu_ms([*python, "-m", "agent_forge", "--version"], repeats),
    }
    for name, ms in rows.items():
        print(f"{name:24s} {ms:7.1f} ms CPU   {ms / bare:5.2f} x python -c pass")


if __name__ == "__main__":
    main()
