"""C kernels: compiled into a wheel for several kinds of processors, or from their source at first use.

A kernel is one C file beside the Python module that calls it. In a wheel its libraries lie there too, one a variant,
and the best one for the processor is loaded. In a source tree it is compiled for this machine. A kernel only makes
things faster: every caller also has the same computation without it, for machines that have neither.
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
import sys
import tempfile
from contextlib import ExitStack, suppress
from functools import cache
from itertools import chain
from pathlib import Path

from agent_forge.files import atomic_write

SWITCH = "AGENT_FORGE_NATIVE"  # 0: behave as if there were no compiler
FLAGS = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-std=gnu11", "-fopenmp-simd", "-shared", "-fPIC")
LOCAL_INCLUDE = re.compile(rb'^#include "([\w.]+)"', re.MULTILINE)
TUNINGS = (("-march=native",), ())  # not every compiler knows the first
X86_64_V3 = frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"])
X86_64_V4 = X86_64_V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
# What a wheel holds, by machine, the best first: name, compiler flags, and instructions as /proc/cpuinfo names them
VARIANTS: dict[str, tuple[tuple[str, tuple[str, ...], frozenset[str]], ...]] = {
    "x86_64": (
        (
            "avx512",
            ("-march=x86-64-v4", "-mavx512vnni", "-mavx512vbmi"),
            X86_64_V4 | {"avx512_vnni", "avx512vbmi"},
        ),
        ("avx2", ("-march=x86-64-v3",), X86_64_V3),
        ("any", (), frozenset()),
    ),
    "aarch64": (
        ("dotprod", ("-march=armv8.2-a+dotprod",), frozenset({"asimddp"})),
        ("any", (), frozenset()),
    ),
}
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # other names of the same
CPUINFO = Path("/proc/cpuinfo")
INSTRUCTIONS = ("flags", "features", "isa")  # the lines of cpuinfo that list what a processor can do
MODEL = ("model", "cpu family", "cpu implementer", "cpu variant", "cpu part", "vendor_id")  # and which one it is


def load(source: str | os.PathLike[str], *flags: str) -> ctypes.CDLL | None:
    """The compiled library of a C file, or None without a compiler, after a failed build, or when switched off.

    A library that came with the wheel is taken where there is one for this source and processor. Otherwise it is
    compiled, with a line on stderr, and cached in the user's cache folder under the digest of everything that goes into
    it (source, flags, compiler, processor): it is built once, and a changed file or another processor never meets a
    stale build. Where the cache cannot be used, each process builds its own.

    Calls into the library release Python's lock.
    """
    if os.environ.get(SWITCH) == "0":
        return None
    return _shipped(Path(source), flags) or _load(Path(source), flags, _compiler())


def _compiler() -> tuple[str, ...]:
    """The command, which may be several words ("ccache gcc"), or none."""
    return tuple((os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), "")).split())


def ship(source: Path, *flags: str, to: Path) -> list[Path]:
    """Compiles every variant of a kernel into a folder, for a wheel. Empty without a compiler; a variant that the
    compiler does not know is left out."""
    compiler = _compiler()
    libraries = []
    for variant, tuning, _ in variants() if compiler else ():
        library = to / _shipped_name(source, flags, variant)
        with suppress(OSError, subprocess.SubprocessError):
            _compile([*compiler, *FLAGS, *tuning, *flags, "-o", str(library), str(source), "-lm"])
            libraries.append(library)
    return libraries


def variants() -> tuple[tuple[str, tuple[str, ...], frozenset[str]], ...]:
    """The variants for this machine, the best first."""
    machine = platform.machine().lower()
    return VARIANTS.get(MACHINES.get(machine, machine), (("any", (), frozenset()),))


def _shipped_name(source: Path, flags: tuple[str, ...], variant: str) -> str:
    """The source is part of the name: a changed file never meets a library of another version."""
    digest = hashlib.sha256(b"\0".join([*_texts(source), repr((FLAGS, flags)).encode()])).hexdigest()[:16]
    return f"{source.stem}-{digest}-{variant}.so"


@cache
def _shipped(source: Path, flags: tuple[str, ...]) -> ctypes.CDLL | None:
    """The library that came with the wheel for this processor, or None."""
    with suppress(OSError):
        here = instructions()
        names = [_shipped_name(source, flags, variant) for variant, _, needed in variants() if needed <= here]
        return next(filter(None, (_open(source.with_name(name)) for name in names)), None)
    return None


@cache
def _load(source: Path, flags: tuple[str, ...], compiler: tuple[str, ...]) -> ctypes.CDLL | None:
    if not compiler:
        return None
    try:
        parts = [*_texts(source), repr((TUNINGS, FLAGS, flags)).encode(), _version(compiler), _processor(compiler)]
        digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]
        folder = cache_folder("native")
        cached = None if folder is None else folder / f"{source.stem}-{digest}.so"
        return _open(cached) or _build(source, flags, compiler, cached)
    except (OSError, subprocess.SubprocessError) as error:
        message = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        logging.getLogger(__name__).warning("%s runs without C: %s", source.name, message[:500] or error)
        return None


def _texts(source: Path) -> list[bytes]:
    """The file and those that it includes from its own folder."""
    text = source.read_bytes()
    return [text, *chain.from_iterable(_texts(source.with_name(name.decode())) for name in LOCAL_INCLUDE.findall(text))]


def _open(library: Path | None) -> ctypes.CDLL | None:
    try:
        return None if library is None else ctypes.CDLL(str(library))
    except OSError:  # missing, damaged, or on a file system mounted noexec
        return None


def _build(source: Path, flags: tuple[str, ...], compiler: tuple[str, ...], cached: Path | None) -> ctypes.CDLL:
    """Compiles in a folder of its own, so that concurrent builds never see each other's half-written files."""
    announce(f"compiling {source.name} for this processor, once (seconds; up to a minute on a busy machine)")
    with ExitStack() as stack:
        built = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-forge-"))) / f"{source.stem}.so"
        for tuning in TUNINGS:
            command = [*compiler, *FLAGS, *tuning, *flags, "-o", str(built), str(source), "-lm"]
            try:
                _compile(command)
                break
            except subprocess.CalledProcessError:
                if tuning == TUNINGS[-1]:
                    raise
        if cached is not None:
            with suppress(OSError), atomic_write(cached, "wb") as file:
                file.write(built.read_bytes())
        if (library := _open(cached)) is None:
            library = ctypes.CDLL(str(built))
            atexit.register(stack.pop_all().close)  # the file must stay: the library may be opened again by name
        return library


def _compile(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=300)


def announce(message: str) -> None:
    """Prints a line on stderr for whoever waits."""
    print(f"agent-forge: {message}", file=sys.stderr, flush=True)


@cache
def cache_folder(name: str) -> Path | None:
    """The folder `name` of our cache, made if needed. None where it cannot be made, or must not be trusted.

    What is loaded from there runs as us. So a folder that belongs to another user, or that others may write to, is not
    used, and a line on stderr says why.
    """
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        if not base.is_absolute():
            return None
        folder = base / "agent-forge" / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
    except (OSError, RuntimeError):  # RuntimeError: no home folder, as for a user ID without a name in a container
        return None
    if not hasattr(os, "geteuid"):  # Windows, where the folders of a user are closed to others
        return folder
    if status.st_uid != os.geteuid():
        announce(f"the cache {folder} is not used: it belongs to user {status.st_uid}. Set XDG_CACHE_HOME elsewhere")
        return None
    if status.st_mode & 0o022:
        announce(f"the cache {folder} is not used: others may write to it. Run `chmod go-w {folder}`")
        return None
    return folder


@cache
def _version(compiler: tuple[str, ...]) -> bytes:
    answer = subprocess.run([*compiler, "--version"], check=False, capture_output=True, timeout=60)
    return repr(compiler).encode() + answer.stdout


@cache
def _processor(compiler: tuple[str, ...]) -> bytes:
    """What -march=native depends on: the model of the processor and its instructions.

    A library with instructions that a processor lacks ends the process, and a cache may move: a home on a network, a
    container image. So where the system does not list the instructions, the compiler says what it would use.
    """
    lines = cpuinfo()
    if any(line.lower().startswith(INSTRUCTIONS) for line in lines):
        return "\n".join(lines).encode()
    command = [*compiler, *TUNINGS[0], "-dM", "-E", "-x", "c", os.devnull]
    answer = subprocess.run(command, check=False, capture_output=True, timeout=60)
    return platform.machine().encode() + answer.stdout


def cpuinfo() -> list[str]:
    """The lines of /proc/cpuinfo that tell processors apart: model and instructions. Empty without that file."""
    text = ""
    with suppress(OSError):
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    return sorted({line for line in text.splitlines() if line.lower().startswith(INSTRUCTIONS + MODEL)})


def instructions() -> frozenset[str]:
    """The instructions of this processor, as /proc/cpuinfo names them; on a Mac, those that all of its kind have."""
    if sys.platform == "darwin":
        return frozenset({"asimddp"})
    words = (line.partition(":") for line in cpuinfo() if line.lower().startswith(INSTRUCTIONS))
    return frozenset(word for _, _, rest in words for word in rest.split())
