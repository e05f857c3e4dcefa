"""The sandbox: what runs in it and how long. Attempts to get out are scenario 11."""

from __future__ import annotations

import asyncio
import struct

import pytest

from agent_forge.errors import SandboxError, UsageError
from agent_forge.runtime import SandboxLimits, SandboxResult, run_python, sandbox, sandbox_available
from agent_forge.runtime.seccomp import ALLOW, KILL, MACHINES, REFUSE, program, refused_calls

POSSIBLE, REASON = sandbox_available()
needs_sandbox = pytest.mark.skipif(not POSSIBLE, reason=f"no sandbox on this machine: {REASON}")


def run(code: str, stdin: str = "", **limits: float) -> SandboxResult:
    return asyncio.run(run_python(code, stdin=stdin, limits=SandboxLimits(**limits)))  # type: ignore[arg-type]


@needs_sandbox
def test_ordinary_code_runs() -> None:
    result = run("import json, math, sys; print(json.dumps([math.pi, sys.stdin.read()]))", stdin="hello")
    assert result.ok
    assert result.stdout == '[3.141592653589793, "hello"]\n'
    assert not result.stderr
    failed = run("import sys; print('so far'); sys.exit(3)")
    assert (failed.state, failed.exit_code, failed.stdout) == ("failed", 3, "so far\n")
    raised = run("1 / 0")
    assert raised.state == "failed"
    assert "ZeroDivisionError" in raised.stderr
    assert run("open('/tmp/x', 'w').write('mine'); print(open('/tmp/x').read())").stdout == "mine\n"


@needs_sandbox
@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(1000)",
        "import os, time\nos.close(1); os.close(2)\ntime.sleep(1000)",
        "import os, time\nif os.fork() == 0:\n    time.sleep(1000)\n",
    ],
    ids=["busy", "asleep", "silent", "left behind"],
)
def test_time_is_limited(code: str) -> None:
    result = asyncio.run(asyncio.wait_for(run_python(code, limits=SandboxLimits(time_s=1)), 30))
    assert result.state in ("timed_out", "done")
    assert result.state == "timed_out" or "fork" in code
    assert result.wall_s < 20


@needs_sandbox
def test_output_is_limited() -> None:
    result = run("while True: print('x' * 1000)", output_bytes=5000)
    assert result.state == "output_limit"
    assert len(result.stdout) == 5000
    assert run("print('x' * 4999)", output_bytes=5000).state == "done"
    assert run("import sys\nwhile True: sys.stderr.write('y' * 1000)", output_bytes=500).state == "output_limit"


@needs_sandbox
def test_a_cancelled_call_leaves_no_process() -> None:
    async def scenario() -> float:
        call = asyncio.ensure_future(run_python("import time; time.sleep(1000)", limits=SandboxLimits(time_s=900)))
        await asyncio.sleep(0.3)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return 1.0

    assert asyncio.run(asyncio.wait_for(scenario(), 30)) == 1.0


def test_without_a_sandbox_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox_available.cache_clear()
    monkeypatch.setattr("shutil.which", lambda name: None)
    try:
        possible, reason = sandbox_available()
        assert not possible
        assert "bubblewrap" in reason
        with pytest.raises(SandboxError, match="was not run"):
            asyncio.run(run_python("print('never')"))
    finally:
        sandbox_available.cache_clear()


@pytest.mark.parametrize("which", ["/bin/false", "/nonexistent/bwrap"])
def test_a_bubblewrap_that_does_not_work_counts_as_none(monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    sandbox_available.cache_clear()
    monkeypatch.setattr("shutil.which", lambda name: which)
    try:
        assert not sandbox_available()[0]
        monkeypatch.setattr("sys.platform", "darwin")
        sandbox_available.cache_clear()
        assert "Linux" in sandbox_available()[1]
    finally:
        sandbox_available.cache_clear()


def test_limits_are_checked() -> None:
    with pytest.raises(UsageError):
        SandboxLimits(memory_mb=1)


def simulate(code: bytes, number: int, architecture: int, first: int = 0) -> int:
    """An interpreter of the few BPF instructions the filter uses, written from the kernel's documentation."""
    data = struct.pack("<IIQ", number, architecture, 0) + struct.pack("<Q", first) + bytes(40)
    accumulator = place = 0
    while True:
        operation, if_true, if_false, value = struct.unpack_from("<HBBI", code, 8 * place)
        place += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif operation == 0x06:
            return int(value)
        else:
            tests = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}
            place += if_true if tests[operation] else if_false


@pytest.mark.parametrize("machine", list(MACHINES))
def test_the_filter_refuses_what_it_should_and_nothing_else(machine: str) -> None:
    architecture, clone, socket, column = MACHINES[machine]
    refused = refused_calls(column)
    code = program(machine)
    assert code is not None
    assert simulate(code, 1, 0x40000003) == KILL, "another architecture"
    assert simulate(code, 1 | 0x40000000, architecture) == REFUSE + 1
    assert simulate(code, 435, architecture) == REFUSE + 38
    for number in range(500):
        if number in refused:
            assert simulate(code, number, architecture) == REFUSE + 1
        elif number not in (clone, socket, 435):
            assert simulate(code, number, architecture) == ALLOW
    assert simulate(code, clone, architecture, 0x01200011) == ALLOW, "an ordinary fork"
    assert simulate(code, clone, architecture, 0x10000000) == REFUSE + 1
    for family in range(50):
        assert simulate(code, socket, architecture, family) == (ALLOW if family in (1, 2, 10) else REFUSE + 1)


def test_the_module_is_public() -> None:
    assert sandbox.run_python is run_python
