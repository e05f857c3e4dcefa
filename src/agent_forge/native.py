"""C code that comes as source and is compiled for this machine when it is first used.

A kernel is one C file beside the Python module that calls it. It is an acceleration only: whoever loads one also has
the same computation without it, for machines that have no C compiler.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
import tempfile
from contextlib import ExitStack, suppress
from functools import cache
from itertools import chain
from pathlib import Path

from agent_forge.files import atomic_write

SWITCH = "AGENT_FORGE_NATIVE"  # 0: behave as if there were no compiler
FLAGS = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-std=gnu11", "-shared", "-fPIC")
INCLUDED = re.compile(rb'^#include "([\w.]+)"', re.MULTILINE)
TUNINGS = (("-march=native",), ())  # not every compiler knows the first
PROCESSOR = Path("/proc/cpuinfo")
INSTRUCTIONS = ("flags", "features", "isa")  # lines of it that say what a processor can do
KIND = ("model", "cpu family", "cpu implementer", "cpu variant", "cpu part", "vendor_id")  # and which one it is


def load(source: str | os.PathLike[str], *flags: str) -> ctypes.CDLL | None:
    """The compiled library of a C file, or None where it cannot be had: no compiler, a failed build, or switched off.

    The result of a build is kept under the user's cache folder by the digest of all that goes into it (source, flags,
    compiler, processor), so it is built once, and a changed file or another processor never meets a stale library.
    Where the cache cannot be written, or nothing may be run from there, each process builds its own.
    Calls into it release Python's lock.
    """
    if os.environ.get(SWITCH) == "0":
        return None
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), "")
    return _load(Path(source), flags, tuple(compiler.split())) if compiler else None  # "ccache gcc" is two words


@cache
def _load(source: Path, flags: tuple[str, ...], compiler: tuple[str, ...]) -> ctypes.CDLL | None:
    try:
        name = f"{source.stem}-{_digest(source, flags, compiler)}.so"
        kept = _folder()
        if kept is not None and (library := _opened(kept / name)) is not None:
            return library
        return _made(source, flags, compiler, None if kept is None else kept / name)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        logging.getLogger(__name__).warning("%s runs without C: %s", source.name, said[:500] or error)
        return None


def _digest(source: Path, flags: tuple[str, ...], compiler: tuple[str, ...]) -> str:
    parts = [*_texts(source), repr((TUNINGS, FLAGS, flags)).encode(), _version(compiler), _processor(compiler)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


def _texts(source: Path) -> list[bytes]:
    """The file, and those that it includes from its own folder."""
    text = source.read_bytes()
    return [text, *chain.from_iterable(_texts(source.with_name(name.decode())) for name in INCLUDED.findall(text))]


def _opened(library: Path) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(library))
    except OSError:  # not there, damaged, or on a file system from which nothing may be run
        return None


def _made(source: Path, flags: tuple[str, ...], compiler: tuple[str, ...], kept: Path | None) -> ctypes.CDLL | None:
    """Builds in a folder of its own, so that processes that build at once do not see each other's half."""
    with ExitStack() as stack:
        made = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-forge-"))) / f"{source.stem}.so"
        _build(source, flags, compiler, made)
        if kept is not None and _keep(made, kept) and (library := _opened(kept)) is not None:
            return library
        library = ctypes.CDLL(str(made))
        atexit.register(stack.pop_all().close)  # not before: a library may be opened by its name again
        return library


def _build(source: Path, flags: tuple[str, ...], compiler: tuple[str, ...], made: Path) -> None:
    for tuning in TUNINGS:
        command = [*compiler, *FLAGS, *tuning, *flags, "-o", str(made), str(source), "-lm"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=300)
            return
        except subprocess.CalledProcessError:
            if tuning == TUNINGS[-1]:
                raise


def _keep(made: Path, kept: Path) -> bool:
    """Puts the library into the cache, whole or not at all."""
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with atomic_write(kept, "wb") as file:
            file.write(made.read_bytes())
        return True
    return False


def _folder() -> Path | None:
    """The cache; None where there is no home folder (a container that runs under a number without a name)."""
    given = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        place = given.expanduser()
    except RuntimeError:
        return None
    return place / "agent-forge" / "native" if place.is_absolute() else None


@cache
def _version(compiler: tuple[str, ...]) -> bytes:
    asked = subprocess.run([*compiler, "--version"], check=False, capture_output=True, timeout=60)
    return repr(compiler).encode() + asked.stdout


@cache
def _processor(compiler: tuple[str, ...]) -> bytes:
    """What -march=native depends on: the kind of processor and the instructions it has.

    A library with instructions that a processor lacks ends the process, and a cache may move: a home on a network, an
    image of a container. So where the system does not list the instructions, the compiler is asked what it would use.
    """
    text = ""
    with suppress(OSError):
        text = PROCESSOR.read_text(encoding="utf-8", errors="replace")
    told = sorted({line for line in text.splitlines() if line.lower().startswith(INSTRUCTIONS + KIND)})
    if any(line.lower().startswith(INSTRUCTIONS) for line in told):
        return "\n".join(told).encode()
    command = [*compiler, *TUNINGS[0], "-dM", "-E", "-x", "c", os.devnull]
    asked = subprocess.run(command, check=False, capture_output=True, timeout=60)
    return platform.machine().encode() + asked.stdout
