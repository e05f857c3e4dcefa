"""The compiled products and the compiled decoder, as Python calls them."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

from agent_forge import native

PRODUCTS, DECODER = (Path(__file__).with_name(name) for name in ("products.c", "decoder.c"))


class CMatrix(ctypes.Structure):
    """`Matrix` of products.c."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("half", ctypes.c_int32),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("packed", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


def kernel(*flags: str) -> Any:
    """The compiled products, or None. `-mno-avx512f` and `-DPLAIN` select the AVX2 and the plain path."""
    library = native.load(PRODUCTS, *flags)
    return None if library is None else _typed(library)


@cache
def _typed(library: Any) -> Any:
    library.products_linear.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
    library.products_path.restype = ctypes.c_char_p
    return library


def decoder() -> Any:
    """The compiled decoder, or None where it cannot be built."""
    library = native.load(DECODER)
    if library is not None:
        i64, pointer = ctypes.c_int64, ctypes.c_void_p
        library.decoder_read.argtypes = (pointer, pointer, i64, i64, pointer, i64, pointer)
    return library
