"""The methods: small pure functions on float64 tensors, one file a family, each with its paper and equation.

They are the definition. The C kernel computes the same numbers faster.
"""

from __future__ import annotations
