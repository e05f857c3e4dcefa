"""Arithmetic as it is written down before an answer: who states a sum at once, guesses it.

A family whose answers must be computed lets them begin with a `working`, which nobody judges. Models learn to write it
from the family's `work`, and a small one computes what it could not otherwise (docs/results/reinforcement.md).
"""

from __future__ import annotations

from decimal import Decimal

LONGEST = 450  # characters; a digit is a token in many models, and an answer has 512 by default
WORKING = {"type": "string", "maxLength": LONGEST}


def product(value: int | Decimal, times: int) -> str:
    """A product, that by a number of several digits in parts.

    >>> product(17, 4), product(47, 23), product(Decimal("33.50"), 20)
    ('17*4=68', '47*23=940+141=1081', '33.50*20=670.00')
    """
    ones = times % 10
    parts = f"{value * (times - ones)}+{value * ones}=" if times > 10 and ones else ""
    return f"{value}*{times}={parts}{value * times}"


def quotient(value: int, divisor: int, places: int) -> str:
    """A long division digit by digit, so many of them behind the point, each with what remains.

    >>> quotient(249, 11, 3)  # 22.636
    '249/11=2r2,2r7.6r4,3r7,6r4'
    """
    digits, rest, whole, behind = str(value), 0, list[str](), list[str]()
    for place, digit in enumerate(digits + "0" * places):
        share, rest = divmod(rest * 10 + int(digit), divisor)
        if place >= len(digits):
            behind.append(f"{share}r{rest}")
        elif share or whole or place == len(digits) - 1:  # no zeros in front
            whole.append(f"{share}r{rest}")
    return f"{value}/{divisor}={','.join(whole)}.{','.join(behind)}"
