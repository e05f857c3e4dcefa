"""The compiled kernel as Python sees it: its structures, the signatures of its functions, and how to load it."""

from __future__ import annotations

import ctypes
import logging
import os
from functools import cache
from pathlib import Path
from typing import Any

from agent_forge.native import SWITCH, load


class Input(ctypes.Structure):
    """A tensor in memory: the address of its elements, and the code of their type (`native.CODES`)."""

    _fields_ = (("data", ctypes.c_void_p), ("type", ctypes.c_int64))


class KeepRule(ctypes.Structure):
    """Which elements of a task vector stay, and how they are rescaled: `Rule` in kernel.c."""

    _fields_ = (
        ("kind", ctypes.c_int64),
        ("low", ctypes.c_double),
        ("high", ctypes.c_double),
        ("low_at", ctypes.c_int64),
        ("high_at", ctypes.c_int64),
        ("mask", ctypes.c_void_p),
        ("probability", ctypes.c_void_p),
        ("mask_at", ctypes.c_int64),
        ("divide", ctypes.c_double),
        ("factor", ctypes.c_double),
        ("weight", ctypes.c_double),
    )


_INT, _REAL, _AT = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
INPUTS, _RULES = ctypes.POINTER(Input), ctypes.POINTER(KeepRule)
_OPTIONS = (_INT, _INT, _INT, _REAL, _REAL, _AT)  # inputs, elect, normalize, total, scale, late weights
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "task_vectors": (INPUTS, INPUTS, _RULES, *_OPTIONS, _INT, _INT, _INT, _AT),
    "to_file": (INPUTS, INPUTS, _RULES, _AT, *_OPTIONS, _INT, _INT, _INT, _AT, _INT, _INT),
    "combination": (INPUTS, INPUTS, _AT, _INT, _REAL, _INT, _INT, _INT, _AT),
    "gram": (INPUTS, INPUTS, _INT, _AT, _INT, _AT),
    "random_bits": (ctypes.c_uint64, ctypes.c_uint64, _INT, _INT, _AT),
    "norms": (INPUTS, INPUTS, _RULES, _INT, _INT, _AT),
    "select_key": (INPUTS, INPUTS, _INT, _INT, _INT, _INT, _AT, _AT),
    "histogram": (INPUTS, INPUTS, _INT, _INT, _INT, ctypes.c_uint64, _AT),
    "occurrence": (INPUTS, INPUTS, _INT, _INT, _REAL, _INT),
    "nonzero": (INPUTS, INPUTS, _INT, _INT),
    "mask_above": (INPUTS, INPUTS, _INT, _INT, _REAL, _INT, _AT),
    "magprune": (INPUTS, INPUTS, _INT, _INT, _INT, _REAL, _REAL, ctypes.c_uint64, _AT, _AT, _AT, _AT),
}


def library() -> Any:
    """The compiled kernel, or None where there is none. Called for every tensor, so it is looked up once."""
    return _library(*map(os.environ.get, (SWITCH, "CC", "PATH")))


@cache
def _library(*_environment: str | None) -> Any:
    kernel: Any = load(Path(__file__).with_name("kernel.c"), "-fno-trapping-math")
    if kernel is None:
        logging.getLogger(__name__).warning(
            "merging without the compiled kernel: torch computes the same numbers, 10 to 60 times slower"
        )
    elif kernel.gram.argtypes is None:
        for name, types in _SIGNATURES.items():
            function = getattr(kernel, name)
            function.argtypes = types
            function.restype = _INT if name in ("occurrence", "nonzero") else ctypes.c_int
    return kernel
