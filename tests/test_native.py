"""The leaf that compiles C at first use.

Compilers that misbehave and other processors are made up here, so that what is tested does not depend on the machine.
"""

from __future__ import annotations

import ast
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_forge import native

REAL = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_compiler = pytest.mark.skipif(REAL is None, reason="no C compiler on this machine")


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(native.SWITCH, raising=False)
    monkeypatch.delenv("CC", raising=False)
    forget()
    yield
    forget()


def forget() -> None:
    """As a new process would be."""
    for function in (native._load, native._shipped, native._version, native._processor, native.cache_folder):
        function.cache_clear()


def write(folder: Path, body: str = "return a + b;") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "sum.c"
    path.write_text(f"#include <stdint.h>\nint64_t sum(int64_t a, int64_t b) {{ {body} }}\n")
    return path


def total(library: Any) -> int:
    library.sum.argtypes, library.sum.restype = (ctypes.c_int64, ctypes.c_int64), ctypes.c_int64
    return int(library.sum(2**40, 1))


def built(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "agent-forge" / "native").glob("*"))


def compiler(folder: Path, script: str) -> str:
    """A program that passes for a compiler; `$REAL` in the script is the true one."""
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\nREAL={REAL or 'false'}\n{script}\n")
    path.chmod(0o755)
    return str(path)


@needs_compiler
def test_a_file_is_compiled_once_and_again_when_it_changes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path)
    assert total(native.load(source)) == 2**40 + 1
    assert capfd.readouterr().err.startswith("agent-forge: compiling sum.c for this processor, once (seconds;")
    (first,) = built(tmp_path)
    stamp = first.stat().st_mtime_ns

    forget()
    native.load(source)
    assert capfd.readouterr().err == ""
    assert built(tmp_path) == [first]
    assert first.stat().st_mtime_ns == stamp

    forget()
    source = write(tmp_path, 'return a - b; }\n#include "more.c"\nint more(void) { return 0;')
    for number, part in enumerate(("int one;", "int another;"), 2):
        (tmp_path / "more.c").write_text(part)
        forget()
        assert native.load(source) is not None
        assert len(built(tmp_path)) == number


@needs_compiler
def test_another_processor_gets_a_library_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home on a network, or an image of a container: the cache moves, the processor's instructions do not."""
    machine = tmp_path / "cpuinfo"
    monkeypatch.setattr(native, "CPUINFO", machine)
    source = write(tmp_path)
    for number, listed in enumerate(
        ("flags : sse2 avx2 avx512f", "flags : sse2 avx2", "Features : fp asimd", "Features : fp asimd asimddp"), 1
    ):
        for model in ("processor : 0\ncpu MHz : 2400", "processor : 0\ncpu MHz : 1800"):  # neither is of interest
            machine.write_text(f"{model}\n{listed}\n")
            forget()
            assert native.load(source) is not None
        assert len(built(tmp_path)) == number


@needs_compiler
def test_where_the_system_lists_no_instructions_the_compiler_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "CPUINFO", tmp_path / "none")
    answers = 'case "$*" in *-dM*) echo "$WOULD_USE";; *) exec $REAL "$@";; esac'
    monkeypatch.setenv("CC", compiler(tmp_path, answers))
    source = write(tmp_path)
    for number, macros in enumerate(("#define __AVX2__ 1", "#define __SSE2__ 1"), 1):
        monkeypatch.setenv("WOULD_USE", macros)
        for _ in range(2):
            forget()
            assert native.load(source) is not None
        assert len(built(tmp_path)) == number


@needs_compiler
def test_code_that_does_not_compile_gives_none_says_why_and_leaves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert native.load(write(tmp_path, "return nonsense;")) is None
    assert "nonsense" in caplog.text
    assert built(tmp_path) == []


BROKEN = {
    "fails": "exit 1",
    "makes nothing": "exit 0",
    "is killed": "kill -9 $$",
    "speaks no UTF-8": r'printf "\377" >&2; exit 1',
    "makes no library": 'while [ $# -gt 1 ]; do [ "$1" = -o ] && echo half > "$2"; shift; done; exit 0',
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_a_compiler_that_fails_gives_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setenv("CC", compiler(tmp_path, script))
    assert native.load(write(tmp_path)) is None


@needs_compiler
def test_a_compiler_that_does_not_know_this_processor_builds_for_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler(tmp_path, 'case "$*" in *native*) exit 1;; *) exec $REAL "$@";; esac'))
    assert total(native.load(write(tmp_path))) == 2**40 + 1


@needs_compiler
def test_the_compiler_may_be_several_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", f"env {REAL}")
    assert total(native.load(write(tmp_path))) == 2**40 + 1


@needs_compiler
@pytest.mark.parametrize("place", ["a file", "relative", "read only"])
def test_where_nothing_can_be_kept_the_process_builds_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    cache = tmp_path / "cache"
    if place == "a file":
        cache.write_text("")
    elif place == "read only":
        cache.mkdir(mode=0o500)
        if os.access(cache, os.W_OK):
            cache.rmdir()
            pytest.skip("the superuser writes everywhere")
    else:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    library = native.load(write(tmp_path))
    assert total(library) == 2**40 + 1
    assert total(ctypes.PyDLL(library._name)) == 2**40 + 1  # it can be opened again by its name
    assert built(tmp_path) == []


@needs_compiler
def test_a_damaged_library_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path)
    native.load(source)
    (library,) = built(tmp_path)
    elsewhere = tmp_path / "elsewhere"  # under its own name the first one is loaded already, and would be found
    damaged = elsewhere / library.relative_to(tmp_path / "cache")
    damaged.parent.mkdir(parents=True, mode=0o700)
    damaged.write_bytes(b"not a library")
    monkeypatch.setenv("XDG_CACHE_HOME", str(elsewhere))
    forget()
    assert total(native.load(source)) == 2**40 + 1
    assert damaged.read_bytes() == library.read_bytes()


@needs_compiler
def test_a_cache_from_which_nothing_may_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a file system needs a mount; a folder in the library's place cannot be opened as one either."""
    source = write(tmp_path)
    native.load(source)
    (library,) = built(tmp_path)
    other = tmp_path / "other"
    (other / library.relative_to(tmp_path / "cache")).mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(other))
    forget()
    assert total(native.load(source)) == 2**40 + 1


UNSAFE = {
    "of another user": (lambda folder: os.chown(folder, 12345, -1), "belongs to user 12345"),
    "open to a group": (lambda folder: folder.chmod(0o770), "chmod go-w"),
    "open to all": (lambda folder: folder.chmod(0o707), "chmod go-w"),
}


@needs_compiler
@pytest.mark.parametrize(("spoil", "reason"), UNSAFE.values(), ids=UNSAFE)
def test_nothing_is_loaded_from_a_cache_that_others_control(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], spoil: Any, reason: str
) -> None:
    """The library there would answer 7; ours is built anew, outside of that folder."""
    source = write(tmp_path)
    native.load(source)
    (library,) = built(tmp_path)
    evil = write(tmp_path / "elsewhere", "return 7;")
    subprocess.run([str(REAL), "-shared", "-fPIC", "-o", str(library), str(evil)], check=True)
    try:
        spoil(library.parent)
    except PermissionError:
        pytest.skip("only the superuser can give a folder away")
    capfd.readouterr()
    forget()
    assert total(native.load(source)) == 2**40 + 1
    lines = capfd.readouterr().err.splitlines()
    assert reason in lines[0]
    assert "compiling" in lines[1]
    assert library.read_bytes()[:4] == b"\x7fELF"  # what was there stays as it was


def test_the_cache_folder_is_made_for_us_alone(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        folder = native.cache_folder("native")
    finally:
        os.umask(before)
    assert folder is not None
    assert folder.stat().st_mode & 0o777 == 0o700


@needs_compiler
def test_without_a_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container under a number that has no name: HOME is unset and the list of users does not help."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "~")  # what expanduser makes of it is the same as without an entry
    assert native.cache_folder("native") is None
    assert total(native.load(write(tmp_path))) == 2**40 + 1


@needs_compiler
def test_processes_that_build_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Both are in the compiler when either one ends: each waits there until the other has come."""
    wait = (
        'case "$*" in *-shared*) touch here.$$; n=0; '
        "while [ $(ls here.* | wc -l) -lt 2 ] && [ $n -lt 600 ]; do sleep 0.05; n=$((n+1)); done;; esac; "
        'exec $REAL "$@"'
    )
    code = (
        "import ctypes, sys; from agent_forge import native; library = native.load(sys.argv[1]); "
        "library.sum.restype = ctypes.c_int64; print(library.sum(20, 22))"
    )
    command = [sys.executable, "-c", code, str(write(tmp_path))]
    at_work = {**os.environ, "CC": compiler(tmp_path, wait), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    both = [subprocess.Popen(command, cwd=tmp_path, env=at_work, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [one.communicate(timeout=120)[0].strip() for one in both] == ["42", "42"]
    assert len(list(tmp_path.glob("here.*"))) == 2
    assert len(built(tmp_path)) == 1


def test_switched_off_or_without_a_compiler_it_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path)
    monkeypatch.setenv(native.SWITCH, "0")
    assert native.load(source) is None
    monkeypatch.delenv(native.SWITCH)
    monkeypatch.setenv("CC", str(tmp_path / "no-such-compiler"))
    assert native.load(source) is None
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert native.load(source) is None


@needs_compiler
def test_without_the_source_or_a_place_to_build_it_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.load(tmp_path / "absent.c") is None
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    assert native.load(write(tmp_path)) is None


MADE_UP = (  # the best first
    ("wide", ("-DMORE=2",), frozenset({"avx9", "avx2"})),
    ("strange", ("-march=no-such-processor",), frozenset({"avx2"})),
    ("middle", ("-DMORE=1",), frozenset({"avx2"})),
    ("any", ("-DMORE=0",), frozenset()),
)


@needs_compiler
def test_a_wheel_brings_a_library_for_every_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a compiler, and without a line about compiling. What the compiler does not know is left out."""
    monkeypatch.setattr(native, "variants", lambda: MADE_UP)
    monkeypatch.setattr(native, "CPUINFO", tmp_path / "cpuinfo")
    source = write(tmp_path / "package", "return a + b + MORE;")
    shipped = native.ship(source, "-DUNUSED", to=source.parent)
    assert [file.stem.rpartition("-")[2] for file in shipped] == ["wide", "middle", "any"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert native.ship(source, to=source.parent) == []
    for listed, more in (("avx2 avx9", 2), ("avx2", 1), ("avx9", 0), ("", 0)):
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : sse2 {listed}\n")
        forget()
        assert total(native.load(source, "-DUNUSED")) == 2**40 + 1 + more
        assert native.load(source) is None  # other flags, another library
        monkeypatch.setenv(native.SWITCH, "0")
        assert native.load(source, "-DUNUSED") is None
        monkeypatch.delenv(native.SWITCH)
    assert capfd.readouterr().err == ""
    assert built(tmp_path) == []
    write(source.parent, "return a + b + 7;")  # a source that these were not made from
    forget()
    assert native.load(source, "-DUNUSED") is None


@pytest.mark.skipif(REAL is None, reason="no C compiler on this machine")
def test_the_variants_for_this_machine_compile_and_one_of_them_runs(tmp_path: Path) -> None:
    source = write(tmp_path / "package")
    shipped = native.ship(source, to=source.parent)
    assert [file.stem.rpartition("-")[2] for file in shipped] == [name for name, _, _ in native.variants()]
    assert total(native._shipped(source, ())) == 2**40 + 1


def test_a_wheel_holds_every_kernel_with_the_flags_that_it_is_loaded_with(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    import numpy as np

    from agent_forge.forge.compression import entropy
    from agent_forge.forge.merging import binding
    from agent_forge.inference.packed import kernels

    root = Path(__file__).parents[1]
    hook = ast.parse((root / "hatch_build.py").read_text(encoding="utf-8"))
    table = next(node for node in hook.body if isinstance(node, ast.AnnAssign))
    shipped = {root / "src/agent_forge" / name: flags for name, flags in ast.literal_eval(table.value or table).items()}
    loaded: dict[Path, tuple[str, ...]] = {}
    with monkeypatch.context() as patch:
        patch.setattr(native, "_shipped", lambda source, flags: loaded.setdefault(source, flags) and None)
        patch.setattr(native, "_load", lambda *_: None)
        for load in (kernels.kernel, kernels.decoder, binding._library.__wrapped__):
            load()
        entropy.pack_symbols(np.array([0, 0, 1, 0] * 500))
    assert loaded == shipped
    sources = set((root / "src").rglob("*.c"))
    texts = [(file, file.read_bytes()) for file in sources]
    included = {file.with_name(name.decode()) for file, text in texts for name in native.LOCAL_INCLUDE.findall(text)}
    assert sources - included | {kernels.PRODUCTS} == set(shipped)
