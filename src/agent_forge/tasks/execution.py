"""Calls functions that a model wrote, in the sandbox: their values come out, the right values never go in.

Nothing in the sandbox knows the right values, so a program gains nothing by exiting early, printing "ok", replacing
`assert` or reading the files around it: the values are compared out here. One sandbox serves many programs, each in
a process of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from agent_forge.runtime.sandbox import SandboxLimits, SandboxResult, run_python

_CPU_S = 2  # for each program
_WALL_S = 10
_HARNESS = """
import builtins, json, os, resource, select, signal, sys, time

BUILT_IN = [kind for kind in vars(builtins).values() if isinstance(kind, type)]

def called(job, out):
    def tell(result):
        os.write(out, (json.dumps(result) + "\\n").encode())
    names = {"__name__": "solution"}
    try:
        exec(compile(job["code"], "solution.py", "exec"), names)
        function = names[job["function"]]
    except BaseException as error:
        return tell({"error": f"the program fails: {type(error).__name__}: {error}"[:300]})
    for arguments in job["inputs"]:
        try:
            value = function(*arguments)
        except Exception as error:
            tell({"raises": [k.__name__ for k in type(error).__mro__ if k in BUILT_IN], "error": str(error)[:200]})
            continue
        try:
            text = json.dumps(value)
            tell({"value": value} if len(text) < 20_000 else {"error": "the result is too long"})
        except (TypeError, ValueError, RecursionError):
            tell({"error": f"the result is not JSON: {type(value).__name__}"})

def run(job):
    back, out = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os.close(back)
            nothing = os.open("/dev/null", os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nothing, stream)
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
            called(job, out)
        finally:
            os._exit(0)
    os.close(out)
    read, end = bytearray(), time.monotonic() + WALL_S
    while (left := end - time.monotonic()) > 0 and select.select([back], [], [], left)[0]:
        block = os.read(back, 65536)
        read += block
        if not block or len(read) > 1_000_000:
            break
    os.close(back)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    os.waitpid(child, 0)
    return read.decode(errors="replace").splitlines()[: len(job["inputs"])]

results = []
for job in json.load(sys.stdin):
    first = job["only_if"]
    results.append([] if first is not None and results[first] != ['{"value": true}'] else run(job))
print(json.dumps(results))
"""


@dataclass(frozen=True, slots=True)
class Calls:
    """A program, the function in it to be called, and the arguments of each call.

    With `only_if` it runs only if the one call of an earlier program, by its place, returned True.
    """

    code: str
    function: str
    inputs: Sequence[Sequence[Any]]
    only_if: int | None = None


def call_all(programs: Sequence[Calls]) -> list[list[dict[str, Any]]]:
    """For each program and call `{"value"}`, `{"raises": [class, base, ...], "error"}` or `{"error"}`.

    Raises SandboxError, without running anything, where the code cannot be isolated.
    """
    if not programs:
        return []
    harness = _HARNESS.replace("CPU_S", str(_CPU_S)).replace("WALL_S", str(_WALL_S))
    limits = SandboxLimits(time_s=20 + _WALL_S * len(programs), output_bytes=4_000_000)
    stdin = json.dumps([asdict(program) for program in programs])
    lines = _lines(_wait(run_python(harness, stdin=stdin, limits=limits)), len(programs))
    if lines is None and len(programs) > 1 and all(program.only_if is None for program in programs):
        return [call_all([program])[0] for program in programs]  # one of them brought the others down
    return [
        [_result(line) for line in own] + [{"error": "it ended or took too long"}] * (len(program.inputs) - len(own))
        for program, own in zip(programs, lines or [[]] * len(programs), strict=True)
    ]


def _lines(ran: SandboxResult, count: int) -> list[list[str]] | None:
    """What each program wrote; None if one of them has killed the harness or written where that writes."""
    try:
        read = json.loads(ran.stdout) if ran.ok else None
    except (ValueError, RecursionError):
        return None
    fits = isinstance(read, list) and len(read) == count and all(isinstance(own, list) for own in read)
    return read if fits else None


def _result(line: Any) -> dict[str, Any]:
    try:
        result = json.loads(line)
    except (TypeError, ValueError, RecursionError):
        result = None
    return result if isinstance(result, dict) else {"error": "its result cannot be read"}


def same_result(expected: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
    """Whether a call did what it should: the same JSON value (1.0 is 1, True is not), or an error of that class."""
    if "raises" in expected:
        return expected["raises"] in result.get("raises", ())
    return "value" in result and same_value(expected["value"], result["value"])


def same_value(one: Any, other: Any) -> bool:
    """
    >>> same_value([1, "a"], [1.0, "a"]), same_value(1, True), same_value([1], [1, 2])
    (True, False, False)
    """
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_value, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_value(one[key], other[key]) for key in one)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _wait(work: Coroutine[Any, Any, SandboxResult]) -> SandboxResult:
    """Waits for a coroutine from anywhere, also from inside a running event loop, which then stands still."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
