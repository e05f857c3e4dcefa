"""Support: policies executed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from agent_forge.tasks import family

POLICY: dict[str, Any] = {
    "rules": [
        {
            "when": {"days": 14, "opened": False},
            "resolution": "refund",
            "percent": 100,
            "steps": ["verify_order", "issue_refund", "send_confirmation"],
            "in_order": True,
        },
        {
            "when": {"defective": True, "region": "US"},
            "resolution": "partial_refund",
            "percent": 85,
            "steps": ["request_photo", "issue_refund"],
            "in_order": False,
        },
        {"when": {}, "resolution": "decline", "percent": 0, "steps": ["explain_policy"], "in_order": False},
    ],
    "premium_days": 7,
    "fee": "4.90",
    "approval_above": 100,
    "today": "",
}
FACTS = {"product": "drone", "days": 20, "opened": False, "defective": False, "plan": "basic", "region": "US"}


def case(price: str = "80.00", **facts: Any) -> dict[str, Any]:
    return POLICY | {"facts": FACTS | {"price": price} | facts}


@pytest.mark.parametrize(
    ("expected", "resolution", "amount", "steps"),
    [
        (case(), "decline", 0, ["explain_policy"]),
        (case(days=14), "refund", 75.10, ["verify_order", "issue_refund", "send_confirmation"]),  # the last day counts
        (case(plan="premium", days=21, region="EU"), "refund", 80,
         ["verify_order", "issue_refund", "send_confirmation"]),
        (case(plan="premium", days=22), "decline", 0, ["explain_policy"]),
        (case(price="99.99", defective=True), "partial_refund", "80.09 EUR", ["issue_refund", "request_photo"]),
        (case(price="1234.10", days=2, region="EU"), "refund", "1,234.10",
         ["manager_approval", "verify_order", "issue_refund", "send_confirmation"]),
        (case(price="104.90", days=2), "refund", "100.00", ["verify_order", "issue_refund", "send_confirmation"]),
        (case(days=3, defective=True), "refund", "75.1", ["verify_order", "issue_refund", "send_confirmation"]),
    ],
)  # fmt: skip
def test_policies_executed_by_hand(expected: dict[str, Any], resolution: str, amount: Any, steps: list[str]) -> None:
    answer = {"steps": steps, "refund_amount": amount, "resolution": resolution}
    verdict = family("support").check(answer, expected)
    assert verdict.correct, verdict.why


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"resolution": "partial_refund"}, "resolution: rule 1 applies: refund, not partial_refund"),
        ({"refund_amount": 200}, "refund_amount: 200 instead of 195.10"),  # the fee was forgotten
        ({"refund_amount": "195.1.0"}, "refund_amount: 195.1.0 instead of 195.10"),
        ({"steps": ["verify_order", "issue_refund", "send_confirmation"]}, "steps: manager_approval is missing"),
        (
            {"steps": ["verify_order", "issue_refund", "manager_approval", "send_confirmation"]},
            "steps: manager_approval must come before issue_refund",
        ),
        (
            {"steps": ["manager_approval", "issue_refund", "verify_order", "send_confirmation"]},
            "steps: verify_order must come before issue_refund",
        ),
        (
            {"steps": ["verify_order", "manager_approval", "issue_refund", "issue_refund", "send_confirmation"]},
            "steps: issue_refund is done twice",
        ),
        (
            {"steps": ["verify_order", "manager_approval", "issue_refund", "send_confirmation", "close_ticket"]},
            "steps: close_ticket is not called for",
        ),
    ],
)
def test_what_violates_the_policy_is_named(change: dict[str, Any], why: str) -> None:
    expected = case(price="200.00", days=1)
    right = family("support").solve(expected)
    verdict = family("support").check(right | change, expected)
    assert not verdict.correct
    assert verdict.why == why
    assert 0.6 < verdict.score < 0.7


def test_doing_everything_is_not_doing_right() -> None:
    every = ["verify_order", "request_photo", "issue_refund", "explain_policy", "send_confirmation"]
    verdict = family("support").check({"resolution": "refund", "refund_amount": 80, "steps": every}, case())
    assert verdict.score < 0.01
    assert "request_photo is not called for" in verdict.why
