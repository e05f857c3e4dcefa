"""The leaf that compiles C at first use, with the machine's real compiler."""

from __future__ import annotations

import ctypes
import shutil

import pytest

from agent_forge import native

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(native.SWITCH, raising=False)
    native._load.cache_clear()
    yield
    native._load.cache_clear()


def write(folder, body="return a + b;"):
    path = folder / "sum.c"
    path.write_text(f"#include <stdint.h>\nint64_t sum(int64_t a, int64_t b) {{ {body} }}\n")
    return path


def built(tmp_path):
    return sorted((tmp_path / "cache" / "agent-forge" / "native").glob("*"))


@needs_compiler
def test_a_file_is_compiled_once_and_again_when_it_changes(tmp_path):
    source = write(tmp_path)
    library = native.load(source)
    library.sum.argtypes, library.sum.restype = (ctypes.c_int64, ctypes.c_int64), ctypes.c_int64
    assert library.sum(2**40, 1) == 2**40 + 1
    (first,) = built(tmp_path)
    stamp = first.stat().st_mtime_ns

    native._load.cache_clear()
    native.load(source)
    assert built(tmp_path) == [first]
    assert first.stat().st_mtime_ns == stamp

    native._load.cache_clear()
    native.load(write(tmp_path, "return a - b;"))
    assert len(built(tmp_path)) == 2


@needs_compiler
def test_code_that_does_not_compile_gives_none_and_leaves_nothing(tmp_path):
    assert native.load(write(tmp_path, "return nonsense;")) is None
    assert built(tmp_path) == []


@needs_compiler
def test_a_damaged_library_gives_none(tmp_path, monkeypatch):
    source = write(tmp_path)
    native.load(source)
    native._load.cache_clear()
    (library,) = built(tmp_path)
    elsewhere = tmp_path / "elsewhere"  # under its own name the first one is loaded already, and would be found
    damaged = elsewhere / library.relative_to(tmp_path / "cache")
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"not a library")
    monkeypatch.setenv("XDG_CACHE_HOME", str(elsewhere))
    assert native.load(source) is None


def test_switched_off_or_without_a_compiler_it_is_none(tmp_path, monkeypatch):
    source = write(tmp_path)
    monkeypatch.setenv(native.SWITCH, "0")
    assert native.load(source) is None
    monkeypatch.delenv(native.SWITCH)
    monkeypatch.setenv("CC", str(tmp_path / "no-such-compiler"))
    assert native.load(source) is None
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert native.load(source) is None
