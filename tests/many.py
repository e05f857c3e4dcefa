"""Many small cases as one test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def in_one_test(cases: Iterable[Any]) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """A test that goes through all cases, where a test for each would take longer than the case itself."""

    def as_test(check: Callable[[Any], None]) -> Callable[[], None]:
        def test() -> None:
            for case in cases:
                check(case)

        test.__name__, test.__qualname__, test.__doc__ = check.__name__, check.__qualname__, check.__doc__
        return test

    return as_test
