"""C code that comes as source and is compiled for this machine when it is first used.

A kernel is one C file beside the Python module that calls it. It is an acceleration only: whoever loads one also has
the same computation without it, for machines that have no C compiler.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SWITCH = "AGENT_FORGE_NATIVE"  # 0: behave as if there were no compiler
FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-std=gnu11", "-shared", "-fPIC")


def load(source: str | os.PathLike[str], *flags: str) -> ctypes.CDLL | None:
    """The compiled library of a C file, or None where it cannot be had: no compiler, a failed build, or switched off.

    The result of a build is kept under the user's cache folder by the digest of all that goes into it (source, flags,
    compiler, processor), so it is built once, and a changed file or another processor never meets a stale library.
    Calls into it release Python's lock.
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if os.environ.get(SWITCH) == "0" or compiler is None:
        return None
    return _load(Path(source), FLAGS + flags, compiler)


@cache
def _load(source: Path, flags: tuple[str, ...], compiler: str) -> ctypes.CDLL | None:
    parts = [source.read_bytes(), repr(flags).encode(), _version(compiler).encode(), _processor().encode()]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]
    library = _folder() / f"{source.stem}-{digest}.so"
    try:
        if not library.exists():
            _build(source, flags, compiler, library)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.SubprocessError):
        return None


def _build(source: Path, flags: tuple[str, ...], compiler: str, library: Path) -> None:
    """Compiles to a name of its own, then renames: processes that build at once do not see each other's half."""
    library.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        command = [compiler, *flags, "-o", str(made), str(source), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        made.replace(library)


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "agent-forge" / "native"


@cache
def _version(compiler: str) -> str:
    try:
        asked = subprocess.run([compiler, "--version"], check=False, capture_output=True, text=True, timeout=60)
    except OSError:
        return compiler
    return f"{compiler} {asked.stdout}"


@cache
def _processor() -> str:
    """What -march=native depends on: the kind of processor and the instructions it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
