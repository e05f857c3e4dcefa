"""Arithmetic as it is written down: a small model that states a sum or a mean at once guesses it."""

from __future__ import annotations


def product(value: int, times: int) -> str:
    """A product, that by a number of several digits in parts.

    >>> product(17, 4), product(47, 23), product(33, 20)
    ('17*4=68', '47*23=940+141=1081', '33*20=660')
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
