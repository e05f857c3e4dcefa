"""The C kernel as Python sees it: its structures, the signatures of its functions, and how it is had."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

from agent_forge.native import SWITCH, load


class Input(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("type", ctypes.c_int64))


class Rule(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int64),
        ("low", ctypes.c_double),
        ("high", ctypes.c_double),
        ("low_at", ctypes.c_int64),
        ("high_at", ctypes.c_int64),
        ("given", ctypes.c_void_p),
        ("probability", ctypes.c_void_p),
        ("given_at", ctypes.c_int64),
        ("divide", ctypes.c_double),
        ("factor", ctypes.c_double),
        ("weight", ctypes.c_double),
    )


_INT, _REAL, _AT = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
ONE = ctypes.POINTER(Input)
_SIGNATURES = {
    "task_vectors": (ONE, ONE, ctypes.POINTER(Rule), _INT, _INT, _INT, _REAL, _REAL, _AT, _INT, _INT, _INT, _AT),
    "to_file": (
        ONE,
        ONE,
        ctypes.POINTER(Rule),
        _AT,
        _INT,
        _INT,
        _INT,
        _REAL,
        _REAL,
        _AT,
        _INT,
        _INT,
        _INT,
        _AT,
        _INT,
        _INT,
    ),
    "combination": (ONE, ONE, _AT, _INT, _REAL, _INT, _INT, _INT, _AT),
    "gram": (ONE, ONE, _INT, _AT, _INT, _AT),
    "random_bits": (ctypes.c_uint64, ctypes.c_uint64, _INT, _INT, _AT),
    "norms": (ONE, ONE, ctypes.POINTER(Rule), _INT, _INT, _AT),
    "select_key": (ONE, ONE, _INT, _INT, _INT, _INT, _AT, _AT),
    "histogram": (ONE, ONE, _INT, _INT, _INT, ctypes.c_uint64, _AT),
    "occurrence": (ONE, ONE, _INT, _INT, _REAL, _INT),
    "nonzero": (ONE, ONE, _INT, _INT),
    "mask_above": (ONE, ONE, _INT, _INT, _REAL, _INT, _AT),
    "magprune": (ONE, ONE, _INT, _INT, _INT, _REAL, _REAL, ctypes.c_uint64, _AT, _AT, _AT, _AT),
}


_ENVIRONMENT = SWITCH, "CC", "PATH"


def library() -> Any:
    """The kernel, or None where it cannot be had."""
    return _found(*map(os.environ.get, _ENVIRONMENT))


@cache
def _found(*_environment: str | None) -> Any:
    """Asked for each tensor, so it is looked for once in each environment."""
    found: Any = load(Path(__file__).with_name("kernel.c"), "-fno-trapping-math")
    if found is not None and found.gram.argtypes is None:
        for name, types in _SIGNATURES.items():
            function = getattr(found, name)
            function.argtypes = types
            function.restype = _INT if name in ("occurrence", "nonzero") else ctypes.c_int
    return found
