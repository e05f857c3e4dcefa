"""Products in bf16: where they are faster than in float32, and what keeps them from killing the process on a CPU.

Some virtual machines show a processor's AMX and AVX-512 flags but do not allow the instructions. oneDNN, with which
torch multiplies, trusts the flags, and the first bf16 product dies of an illegal instruction. `ONEDNN_MAX_CPU_ISA`
tells it which instructions to stay below. Whether that is needed is probed once in a child process, and only where the
flags make it possible.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from typing import Any

from agent_forge.files import atomic_write
from agent_forge.native import announce, cache_folder, cpuinfo, instructions

VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")  # the second is its former name
LIMITS = ("AVX512_CORE_FP16", "AVX512_CORE")  # the highest that works is taken: all but AMX, or no bf16 at all
UNLIMITED, HOPELESS = "unlimited", "hopeless"
RISKY = {"amx_bf16", "amx_tile", "avx512_bf16"}  # flags of the instructions that may turn out to be forbidden
WORTH = 4_000_000  # weights: below, the conversions take what the products save
PROBE = """
import torch
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # dying is the answer: no core file
except ImportError:
    pass  # Windows writes none
x = torch.ones(96, 96, dtype=torch.bfloat16)
x @ x, x @ x[0], torch.bmm(x[None], x[None]), torch.nn.functional.linear(x, x, x[0])
"""


def limit_instructions() -> None:
    """Sets `ONEDNN_MAX_CPU_ISA` where this machine needs it; a user's own setting stays. Called before torch loads."""
    if not any(name in os.environ for name in VARIABLES) and (limit := required_limit()) in LIMITS:
        os.environ[VARIABLES[0]] = limit


@cache
def required_limit() -> str | None:
    """The limit that keeps bf16 products alive here: one of LIMITS, or UNLIMITED, or HOPELESS where none does.

    None where no probe is needed, or none can be made (torch does not import).
    """
    lines = cpuinfo()
    if RISKY.isdisjoint(word for line in lines for word in line.split()):
        return None
    try:
        key = "\n".join([*lines, importlib.metadata.version("torch"), PROBE, *LIMITS])
    except importlib.metadata.PackageNotFoundError:
        return None
    folder = cache_folder("bf16")
    memory = None if folder is None else folder / hashlib.sha256(key.encode()).hexdigest()[:32]
    with suppress(OSError, ValueError):  # ValueError: not UTF-8
        if memory is not None and (answer := memory.read_text()) in (UNLIMITED, HOPELESS, *LIMITS):
            return answer
    result = _probe()
    if result is not None and memory is not None:
        with suppress(OSError), atomic_write(memory) as file:
            file.write(result)
    return result


def _probe() -> str | None:
    """Multiplies in child processes, with lower and lower limits until one survives."""
    for limit in (None, *LIMITS):
        environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        if limit is not None:
            environment[VARIABLES[0]] = limit
        try:
            child = subprocess.run(
                [sys.executable, "-c", PROBE], env=environment, capture_output=True, timeout=300, check=False
            )
        except (OSError, subprocess.SubprocessError):
            return None
        if child.returncode == 0:
            if limit is not None:
                announce(f"this machine forbids some bf16 instructions: torch runs with {VARIABLES[0]}={limit}")
            return limit or UNLIMITED
        if child.returncode != -signal.SIGILL:
            return None  # torch has another problem, which its own import will report
    return HOPELESS


@cache
def cpu_has_products() -> bool:
    """Whether this processor has instructions for bf16 products that it may use. Without them, bf16 is emulated."""
    limit = next((os.environ[name] for name in VARIABLES if name in os.environ), None) or required_limit()
    if limit in (None, HOPELESS):
        return False
    tiles = "AMX" in limit or limit in (UNLIMITED, "ALL", "DEFAULT")  # the last two are oneDNN's names for it
    allowed = {"amx_bf16", "avx512_bf16"} if tiles else {"avx512_bf16"} if limit.endswith(("BF16", "FP16")) else set()
    return not allowed.isdisjoint(instructions())


def is_faster(model: Any) -> bool:
    """Whether the products of a torch model are faster in bf16 than in float32 where it is: on a GPU; and on a CPU with
    instructions for them if the model is not tiny (1.5 to 2.6 times as fast in training, docs/experiments.md)."""
    weights = [*model.parameters(), *model.buffers()]
    if not weights or weights[0].device.type != "cpu":
        return bool(weights) and weights[0].device.type == "cuda"
    return sum(weight.numel() for weight in weights) >= WORTH and cpu_has_products()


def faster_products(model: Any) -> AbstractContextManager[object]:
    """bf16 products over float32 weights, where they are faster: for calibration and training."""
    import torch

    return torch.autocast(next(model.parameters()).device.type, torch.bfloat16) if is_faster(model) else nullcontext()
