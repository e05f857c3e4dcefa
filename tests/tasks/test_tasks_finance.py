"""Finance: invoices by hand, to the cent."""

from __future__ import annotations

from typing import Any

import pytest

from agent_forge.tasks import family

# 3 x 33.35 + 1 x 1100.05 = 1200.10; less 5 % (60.005, half up 60.01) = 1140.09; plus 19 % (216.6171) = 1356.71.
INVOICE: dict[str, Any] = {
    "invoice": "INV-1234",
    "lines": [
        {"item": "lamps", "quantity": 3, "price": "33.35"},
        {"item": "desks", "quantity": 1, "price": "1100.05"},
    ],
    "discount_percent": 5,
    "tax_percent": 19,
    "payments": [
        {"id": "P1", "invoice": "INV-1234", "amount": "1400.00"},
        {"id": "P2", "invoice": "INV-1243", "amount": "56.71"},
        {"id": "P3", "invoice": "INV-9999", "amount": "1.00"},
    ],
}


def check(total: Any = 1356.71, outstanding: Any = -43.29, unmatched: Any = ("P2", "P3")) -> tuple[float, str]:
    answer = {"unmatched_payments": list(unmatched), "outstanding": outstanding, "total": total}
    verdict = family("finance").check(answer, INVOICE)
    return round(verdict.score, 2), verdict.why


@pytest.mark.parametrize("total", [1356.71, "1356.71", "1,356.71", "1,356.71 EUR", "€1'356.71", "1.35671e3"])
@pytest.mark.parametrize(("outstanding", "unmatched"), [(-43.29, ["P2", "P3"]), ("-43.290 EUR", ["p3", "P2"])])
def test_an_amount_may_be_written_in_many_ways(total: Any, outstanding: Any, unmatched: list[str]) -> None:
    assert check(total, outstanding, unmatched) == (1.0, "")


@pytest.mark.parametrize(
    "total", [1356.70, 1356.72, "1.356,71", "1356,71", "1356", "1356.71 or 1356.70", "", "total", -1356.71]
)
def test_another_amount_is_wrong(total: Any) -> None:
    assert check(total=total) == (0.67, f"total: {total} instead of 1356.71")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"outstanding": 43.29}, "outstanding: 43.29 instead of -43.29"),
        ({"outstanding": 0}, "outstanding: 0 instead of -43.29"),  # as if P2 were for this invoice
        ({"unmatched": ["P3"]}, "unmatched_payments: expected ['P2', 'P3']"),
        ({"unmatched": ["P1", "P2", "P3"]}, "unmatched_payments: expected ['P2', 'P3']"),
        ({"unmatched": ["P2", "P2", "P3"]}, "unmatched_payments: expected ['P2', 'P3']"),
        ({"unmatched": ["P2, P3"]}, "unmatched_payments: expected ['P2', 'P3']"),
    ],
)
def test_what_is_wrong_is_named(answer: dict[str, Any], why: str) -> None:
    assert check(**answer) == (0.67, why)


@pytest.mark.parametrize(
    "text", ['{"total": 1356.71}', "1356.71", '{"total": true, "outstanding": 0, "unmatched_payments": []}']
)
def test_another_form_is_unreadable(text: str) -> None:
    verdict = family("finance").check(text, INVOICE)
    assert not verdict.readable
    assert verdict.score == 0


def test_json_in_a_sentence_or_a_fence_is_read() -> None:
    answer = '{"outstanding": "-43.29", "unmatched_payments": ["P2", "P3"], "total": 1356.71}'
    for text in (answer, f"```json\n{answer}\n```", f"The result is {answer}.", f"Sure:\n```\n{answer}\n```\nDone."):
        assert family("finance").check(text, INVOICE).correct
