"""Processors whose bf16 instructions a virtual machine forbids. They are made up here: the probe's child dies by the
signal that a forbidden instruction raises, unless the limit in its environment is low enough."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_forge import bf16, native
from agent_forge.cli import doctor

DIES_ABOVE = """
import os, signal
with open({log!r}, "a") as file:
    file.write(os.environ.get("ONEDNN_MAX_CPU_ISA", "none") + "\\n")
if os.environ.get("ONEDNN_MAX_CPU_ISA") not in {survivors!r}:
    signal.raise_signal(signal.SIGILL)
"""


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in bf16.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(native, "CPUINFO", tmp_path / "cpuinfo")
    cpu(tmp_path, "fpu sse2 avx512_bf16 amx_bf16 amx_tile")
    forget()
    yield
    os.environ.pop(bf16.VARIABLES[0], None)
    forget()


def forget() -> None:
    """As a new process would be."""
    bf16.required_limit.cache_clear()
    bf16.cpu_has_products.cache_clear()
    native.cache_folder.cache_clear()


def cpu(folder: Path, flags: str) -> None:
    (folder / "cpuinfo").write_text(f"processor\t: 0\nmodel name\t: a Xeon\nflags\t\t: {flags}\n")


def probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *survivors: str | None) -> Path:
    """A probe that survives under these limits only; returns the file that lists the limits it ran under."""
    log = tmp_path / "probes"
    monkeypatch.setattr(bf16, "PROBE", DIES_ABOVE.format(log=str(log), survivors=survivors))
    return log


FP16, CORE = bf16.LIMITS
CASES = {
    "all is allowed": ((None,), bf16.UNLIMITED, None, ["none"]),
    "no AMX": ((FP16, CORE), FP16, FP16, ["none", FP16]),
    "no bf16 at all": ((CORE,), CORE, CORE, ["none", FP16, CORE]),
    "nothing helps": ((), bf16.HOPELESS, None, ["none", FP16, CORE]),
}


@pytest.mark.parametrize(("survivors", "answer", "variable", "runs"), CASES.values(), ids=CASES)
def test_the_highest_limit_that_survives_is_set_and_remembered(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    survivors: tuple[str | None, ...],
    answer: str,
    variable: str | None,
    runs: list[str],
) -> None:
    log = probes(tmp_path, monkeypatch, *survivors)
    for _ in range(2):  # the second time as another process, which reads the answer from the cache
        assert bf16.required_limit() == answer
        bf16.limit_instructions()
        assert os.environ.pop(bf16.VARIABLES[0], None) == variable
        forget()
    assert log.read_text().split() == runs
    announced = capfd.readouterr().err
    assert announced.count("ONEDNN_MAX_CPU_ISA=") == (variable is not None)


def test_other_processors_are_not_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = probes(tmp_path, monkeypatch)
    cpu(tmp_path, "fpu sse2 avx2 avx512f avx512_vnni")
    assert bf16.required_limit() is None
    (tmp_path / "cpuinfo").unlink()
    forget()
    assert bf16.required_limit() is None
    bf16.limit_instructions()
    assert not log.exists()
    assert bf16.VARIABLES[0] not in os.environ


@pytest.mark.parametrize("name", bf16.VARIABLES)
def test_a_users_own_setting_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    log = probes(tmp_path, monkeypatch)
    monkeypatch.setenv(name, "AVX2")
    bf16.limit_instructions()
    assert {key: os.environ[key] for key in bf16.VARIABLES if key in os.environ} == {name: "AVX2"}
    assert not log.exists()


DOCTOR = {
    "unlimited": ((None,), True, "works; models that are not tiny train in it"),
    "limited": ((FP16,), True, "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16; models that are not tiny train in it"),
    "no products": ((CORE,), True, "ONEDNN_MAX_CPU_ISA=AVX512_CORE; without instructions for its products"),
    "hopeless": ((), False, "end the process"),
}


@pytest.mark.parametrize(("survivors", "ok", "text"), DOCTOR.values(), ids=DOCTOR)
def test_the_doctor_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survivors: tuple[str | None, ...], ok: bool, text: str
) -> None:
    probes(tmp_path, monkeypatch, *survivors)
    for _ in range(2):  # the second time as where torch has been loaded, and the variable set
        check = doctor._bf16()
        assert check.ok is ok
        assert text in check.detail
        bf16.limit_instructions()
    monkeypatch.setenv(bf16.VARIABLES[0], "AVX2")
    assert doctor._bf16().detail == "ONEDNN_MAX_CPU_ISA=AVX2 is set in the environment and stays"
    monkeypatch.delenv(bf16.VARIABLES[0])
    cpu(tmp_path, "fpu")
    forget()
    assert doctor._bf16().detail.startswith("not probed")


@pytest.mark.parametrize("problem", ["raise SystemExit(1)", "import signal; signal.raise_signal(signal.SIGKILL)"])
def test_another_problem_of_torch_is_not_taken_for_the_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    monkeypatch.setattr(bf16, "PROBE", problem)
    assert bf16.required_limit() is None
    assert not list((tmp_path / "cache" / "agent-forge" / "bf16").iterdir())


def test_another_processor_or_a_damaged_memory_is_probed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = probes(tmp_path, monkeypatch, None)
    bf16.required_limit()
    (memory,) = (tmp_path / "cache" / "agent-forge" / "bf16").iterdir()
    memory.write_text("half an ans")
    forget()
    bf16.required_limit()
    cpu(tmp_path, "fpu avx512_bf16")
    forget()
    bf16.required_limit()
    assert log.read_text().split() == ["none"] * 3


def test_the_probe_itself_runs_and_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run([sys.executable, "-c", bf16.PROBE], capture_output=True, check=False)
    assert done.returncode in (0, -signal.SIGILL), done.stderr


ORDERS = {
    "we first": ("import agent_forge; find_spec('torch'); print('seen'); import torch", ["seen", "limited", "loaded"]),
    "torch first": ("import torch; import agent_forge", ["loaded", "limited"]),  # in time for its first product
}


@pytest.mark.parametrize(("code", "printed"), ORDERS.values(), ids=ORDERS)
def test_the_limit_is_set_when_torch_is_imported(tmp_path: Path, code: str, printed: list[str]) -> None:
    (tmp_path / "torch.py").write_text("print('loaded')")
    stand_ins = f"""
import sys, types
from importlib.util import find_spec
sys.path.insert(0, {str(tmp_path)!r})
sys.modules["agent_forge.bf16"] = types.ModuleType("bf16")
sys.modules["agent_forge.bf16"].limit_instructions = lambda: print("limited")
"""
    done = subprocess.run([sys.executable, "-c", stand_ins + code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == printed


PRODUCTS = {  # flags of the processor, the probe's survivors, the user's own limit, whether bf16 pays
    "all is allowed": ("avx512_bf16 amx_bf16", (None,), None, True),
    "no AMX": ("avx512_bf16 amx_bf16", (FP16, CORE), None, True),
    "no bf16 at all": ("avx512_bf16 amx_bf16", (CORE,), None, False),
    "nothing helps": ("avx512_bf16 amx_bf16", (), None, False),
    "no such instructions": ("avx2 avx512f", (None,), None, False),
    "tiles alone, forbidden": ("amx_bf16 amx_tile", (FP16, CORE), None, False),
    "limited by the user": ("avx512_bf16", (None,), "AVX2", False),
    "limited by the user, enough": ("avx512_bf16", (None,), "AVX512_CORE_BF16", True),
}


@pytest.mark.parametrize(("flags", "survivors", "own", "pays"), PRODUCTS.values(), ids=PRODUCTS)
def test_bf16_is_taken_where_the_processor_has_it_and_the_model_is_not_tiny(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: str,
    survivors: tuple[str | None, ...],
    own: str | None,
    pays: bool,
) -> None:
    torch = pytest.importorskip("torch")
    cpu(tmp_path, flags)
    probes(tmp_path, monkeypatch, *survivors)
    if own is not None:
        monkeypatch.setenv(bf16.VARIABLES[0], own)
    large, tiny = torch.nn.Linear(2000, 2000), torch.nn.Linear(20, 20)
    assert (bf16.is_faster(large), bf16.is_faster(tiny)) == (pays, False)
    with bf16.faster_products(large):
        assert torch.is_autocast_enabled("cpu") == pays
