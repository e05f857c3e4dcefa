"""The C files of this room, where this machine can compile them. Each has a twin in Python that gives the same."""

from __future__ import annotations

import ctypes
import gc
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_forge.native import load
from agent_forge.traces.span import COMMON

SLOTS = (*COMMON, "clock", "rare")  # of a span, in the order in which the C files name them


def function(file: str, name: str, arguments: int) -> Callable[..., Any] | None:
    """A function of a C file that takes and gives Python objects; None where it cannot be had."""
    # The C files rely on CPython's interpreter lock.
    fits = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
    headers = sysconfig.get_path("include")
    library = load(Path(__file__).with_name(file), f"-I{headers}") if fits and headers else None
    if library is None:
        return None
    # It makes Python objects, so it keeps the interpreter lock; what it raises is raised here.
    found = getattr(ctypes.PyDLL(library._name), name)
    found.argtypes, found.restype = [ctypes.py_object] * arguments, ctypes.py_object
    called: Callable[..., Any] = found
    return called


@contextmanager
def no_collection() -> Iterator[None]:
    """Keeps the garbage collector from walking through objects that are just being made."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
