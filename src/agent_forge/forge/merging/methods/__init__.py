"""The methods: small pure functions on float64 tensors, one file per family, each with its paper and equation.

They are the definition; the C kernel computes the same numbers faster.
"""

from __future__ import annotations
