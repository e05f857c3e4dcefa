"""Finance: the exact total of an invoice, what is still owed, and the payments that belong to no invoice."""

from __future__ import annotations

import random
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from agent_forge.tasks.answers import number
from agent_forge.tasks.family import Draft, Verdict, task_family

_GOODS = ("desk lamps", "office chairs", "monitors", "keyboards", "cable sets", "whiteboards", "printers", "notebooks")
_CENT = Decimal("0.01")
_AMOUNT = {"type": ["number", "string"], "maxLength": 20}
SCHEMA = {
    "type": "object",
    "properties": {
        "total": _AMOUNT,
        "outstanding": _AMOUNT,
        "unmatched_payments": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 8},
    },
    "required": ["total", "outstanding", "unmatched_payments"],
    "additionalProperties": False,
}


def solve(expected: Mapping[str, Any]) -> dict[str, Any]:
    """The amounts, computed in cents: each line rounded, then discount and tax on the sum, each rounded half up."""
    net = sum((_cents(Decimal(line["price"]) * line["quantity"]) for line in expected["lines"]), Decimal(0))
    net -= _cents(net * expected["discount_percent"] / 100)
    total = net + _cents(net * expected["tax_percent"] / 100)
    own = [payment for payment in expected["payments"] if payment["invoice"] == expected["invoice"]]
    paid = sum((Decimal(payment["amount"]) for payment in own), Decimal(0))
    return {
        "total": str(total),
        "outstanding": str(total - paid),
        "unmatched_payments": [
            payment["id"] for payment in expected["payments"] if payment["invoice"] != expected["invoice"]
        ],
    }


def check(answer: Mapping[str, Any], expected: Mapping[str, Any]) -> Verdict:
    """Amounts are right to the cent, however they are written; payments in any order."""
    right = solve(expected)
    faults: dict[str, str | None] = {}
    for name in ("total", "outstanding"):
        same = number(answer[name]) == Decimal(right[name])
        faults[name] = None if same else f"{answer[name]} instead of {right[name]}"
    named = sorted(each.strip().upper() for each in answer["unmatched_payments"])
    wrong = named != right["unmatched_payments"]
    faults["unmatched_payments"] = f"expected {right['unmatched_payments']}" if wrong else None
    return Verdict.parts(faults)


@task_family("finance", check=check, solve=solve, schema=SCHEMA)
def finance(rng: random.Random, level: float) -> Draft:
    """More lines, a discount, odd tax rates and payments for invoices with a similar number as the level rises."""
    invoice = f"INV-{rng.randrange(1000, 10_000)}"
    lines = [
        {"item": item, "quantity": rng.randrange(1, 4 + round(20 * level)), "price": _price(rng, level)}
        for item in rng.sample(_GOODS, 1 + round(5 * level))
    ]
    payments = [
        {
            "id": f"P{place + 1}",
            "invoice": invoice if rng.random() < 0.6 else _other_invoice(rng, invoice, level),
            "amount": _price(rng, level),
        }
        for place in range(1 + round(4 * level))
    ]
    expected = {
        "invoice": invoice,
        "lines": lines,
        "discount_percent": rng.choice((0, 0, 5, 10)) if level > 0.3 else 0,
        "tax_percent": rng.choice((7, 19, 20)) if level > 0.15 else 0,
        "payments": payments,
    }
    return Draft(_prompt(expected), expected)


def _prompt(expected: Mapping[str, Any]) -> str:
    lines = "\n".join(f"- {line['quantity']} {line['item']} at {line['price']} EUR each" for line in expected["lines"])
    payments = "\n".join(f"- {each['id']}: {each['amount']} EUR for {each['invoice']}" for each in expected["payments"])
    return (
        f"Invoice {expected['invoice']}:\n{lines}\nDiscount: {expected['discount_percent']} % of the sum. Tax: "
        f"{expected['tax_percent']} % of the sum after discount. Discount and tax are rounded to the cent, half up."
        f"\nPayments received:\n{payments}\n"
        "State the total of the invoice, what is still outstanding on it (negative if overpaid), and as "
        "unmatched_payments the ids of the payments that are for other invoices."
    )


def _price(rng: random.Random, level: float) -> str:
    cents = rng.randrange(100, 2_000 + round(50_000 * level))
    return f"{Decimal(cents - cents % (100 if level < 0.3 else 1)) / 100:.2f}"


def _other_invoice(rng: random.Random, invoice: str, level: float) -> str:
    """Another number; at higher levels one that is easily mistaken for it, with two digits swapped."""
    place = rng.randrange(4, 7)
    swapped = invoice[:place] + invoice[place + 1] + invoice[place] + invoice[place + 2 :]
    if level > 0.5 and swapped != invoice:
        return swapped
    return f"INV-{(int(invoice[4:]) - 1000 + rng.randrange(1, 9000)) % 9000 + 1000}"


def _cents(amount: Decimal) -> Decimal:
    return amount.quantize(_CENT, rounding=ROUND_HALF_UP)
