"""Legal: find the defects planted in an agreement."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agent_forge.tasks.calls import loose
from agent_forge.tasks.family import Draft, Verdict, task_family
from agent_forge.tasks.findings import judge_findings

KINDS = {
    "blank": "something to be filled in was left empty",
    "unlimited_liability": "a party is liable without limit",
    "missing": "a clause that every agreement must have is not there",
    "one_sided_termination": "only one party may end the agreement",
    "contradiction": "two clauses do not agree",
    "wrong_reference": "a clause refers to one that is not there, or to the wrong one",
    "undefined_term": "a capitalised term is used that is defined nowhere",
    "endless_renewal": "the agreement renews and nobody can stop it",
}
# heading: texts without a defect, and texts with one by its kind. {payment} and so on are references to clauses.
_CLAUSES: dict[str, tuple[tuple[str, ...], dict[str, tuple[str, ...]]]] = {
    "Payment": (
        ("The Customer shall pay the Fees within {days} days of each invoice.",),
        {
            "blank": ("The Customer shall pay the Fees within ____ days of each invoice.",),
            "undefined_term": ("The Customer shall pay the Fees within {days} days of each Milestone.",),
        },
    ),
    "Liability": (
        (
            "Each party's liability is limited to the Fees paid in the {months} months before the claim.",
            "Liability for fraud is not limited. All other liability is limited to {amount} EUR.",
        ),
        {
            "unlimited_liability": (
                "The Supplier is liable for every loss of the Customer, without any limit.",
                "The Customer's liability is limited to {amount} EUR. The Supplier's liability has no limit.",
            ),
            "blank": ("Each party's liability is limited to ____ EUR.",),
        },
    ),
    "Termination": (
        ("Either party may end this Agreement with {notice} days' notice.",),
        {
            "one_sided_termination": (
                "The Supplier may end this Agreement with {notice} days' notice. The Customer may not end it.",
                "Only the Customer may end this Agreement, with {notice} days' notice.",
            ),
        },
    ),
    "Governing law": (
        ("This Agreement is governed by the law of {country}.",),
        {"blank": ("This Agreement is governed by the law of ____.",)},
    ),
    "Definitions": (
        ('"Services" means the {service} in Annex A. "Fees" means the prices in Annex B.',),
        {},
    ),
    "Confidentiality": (
        ("Each party shall keep the other's documents secret for {years} years.",),
        {"undefined_term": ("Each party shall keep the other's Protected Material secret for {years} years.",)},
    ),
    "Invoices": (
        ("Invoices are sent monthly and are due as stated in {payment}.", "Invoices are sent monthly by e-mail."),
        {
            "contradiction": ("Invoices are sent monthly and are due within {other_days} days.",),
            "wrong_reference": ("Invoices are sent monthly and are due as stated in {wrong_payment}.",),
        },
    ),
    "Renewal": (
        ("After {months} months this Agreement renews for a year, unless a party objects {notice} days before.",),
        {
            "endless_renewal": (
                "After {months} months this Agreement renews for a year each time; objections have no effect.",
            ),
        },
    ),
    "Notices": (
        (
            "Notices are sent in writing. Notice to end this Agreement is given as stated in {termination}.",
            "Notices are sent in writing to the addresses in Annex C.",
        ),
        {
            "contradiction": ("Notices are sent in writing. Notice to end this Agreement is {other_notice} days.",),
            "wrong_reference": (
                "Notices are sent in writing. Notice to end this Agreement is given as stated in {wrong_termination}.",
            ),
        },
    ),
    "Data protection": (
        ("The Supplier shall process personal data only as the Customer instructs in writing.",),
        {"undefined_term": ("The Supplier shall process personal data only as the Data Plan allows.",)},
    ),
}
_REQUIRED = ("Payment", "Liability", "Termination", "Governing law")
_PARTNER = {"Invoices": "Payment", "Notices": "Termination"}  # what they contradict, or refer to
SCHEMA = {
    "type": "object",
    "properties": {
        "defects": {
            "type": "array",
            "maxItems": 20,
            "items": {
                "type": "object",
                "properties": {"clause": {"type": ["integer", "string"]}, "kind": {"enum": list(KINDS)}},
                "required": ["clause", "kind"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["defects"],
    "additionalProperties": False,
}


def check(answer: Mapping[str, Any], expected: Mapping[str, Any]) -> Verdict:
    """The F1 of the defects; right if all are named, by number or heading of the clause, and nothing else."""
    return judge_findings(
        [(_place(defect["clause"]), defect["kind"]) for defect in answer["defects"]],
        [(planted["clauses"], planted["kind"]) for planted in expected["planted"]],
    )


def _place(clause: Any) -> str:
    """
    >>> _place(4), _place("Clause 4."), _place("4. Payment"), _place("Governing Law"), _place("clause 4 or 5")
    ('4', '4', '4', 'governing law', 'clause 4 or 5')
    """
    text = loose(clause)
    digits = re.fullmatch(r"(?:clause )?(\d+)(?: [a-z ]+)?", text)
    return digits[1] if digits and " or " not in text else text


def solve(expected: Mapping[str, Any]) -> dict[str, Any]:
    """What was planted."""
    return {"defects": [{"clause": each["clauses"][0], "kind": each["kind"]} for each in expected["planted"]]}


@task_family("legal", check=check, solve=solve, schema=SCHEMA)
def legal(rng: random.Random, level: float) -> Draft:
    """One of three kinds of defect in four clauses at first, then ten clauses with several of eight kinds, or none."""
    kinds = list(KINDS)[: 3 + round(5 * level)]
    headings = list(_REQUIRED) + (["Definitions"] if level > 0.2 else [])
    headings += rng.sample(list(_CLAUSES)[5:], round(5 * level))
    rng.shuffle(headings)
    defects = _defects(rng, kinds, headings, max(1 if level < 0.7 else 0, rng.randrange(1 + round(3 * level))))
    headings = [heading for heading in headings if defects.get(heading) != "missing"]
    values = _values(rng, headings)
    clauses, planted = [], []
    for number, heading in enumerate(headings, 1):
        good, bad = _CLAUSES[heading]
        kind = defects.get(heading)
        texts = bad[kind] if kind else [text for text in good if _refers(text, headings)]
        clauses.append(f"{number}. {heading}. {rng.choice(texts).format(**values)}")
        if kind:
            places = [str(number), heading.lower()]
            if kind == "contradiction":
                partner = _PARTNER[heading]
                places += [str(headings.index(partner) + 1), partner.lower()]
            planted.append({"clauses": places, "kind": kind})
    planted += [{"clauses": [heading.lower()], "kind": kind} for heading, kind in defects.items() if kind == "missing"]
    listing = "\n".join(clauses)
    meanings = "\n".join(f"- {kind}: {KINDS[kind]}" for kind in kinds)
    prompt = (
        f"AGREEMENT between the Supplier and the Customer\n{listing}\n\nEvery agreement must have these clauses: "
        f"{', '.join(_REQUIRED)}.\nFind the defects. Kinds:\n{meanings}\n\nAnswer with the number of the clause "
        "(of a missing one, its heading) and the kind of each defect, and nothing that is in order, as JSON: "
        '{"defects": [{"clause": "1", "kind": "..."}]}'
    )
    return Draft(prompt, {"planted": planted})


def _defects(rng: random.Random, kinds: Sequence[str], headings: Sequence[str], count: int) -> dict[str, str]:
    """Which clause gets which defect. A clause that another one is compared with stays as it is."""
    possible = [
        (heading, kind)
        for heading in headings
        for kind in [*_CLAUSES[heading][1], *(["missing"] if heading in _REQUIRED else [])]
        if kind in kinds and not (kind in ("contradiction", "wrong_reference") and _PARTNER[heading] not in headings)
    ]
    defects: dict[str, str] = {}
    untouched: set[str] = set()
    rng.shuffle(possible)
    for heading, kind in possible:
        partner = _PARTNER.get(heading) if kind in ("contradiction", "wrong_reference") else None
        free = heading not in {*defects, *untouched} and partner not in defects and kind not in defects.values()
        if len(defects) < count and free:
            defects[heading] = kind
            untouched |= {partner} if partner else set()
    return defects


def _refers(text: str, headings: Sequence[str]) -> bool:
    """Whether every clause that the text refers to is there."""
    return all(heading in headings or f"{{{heading.lower()}}}" not in text for heading in _REQUIRED)


def _values(rng: random.Random, headings: Sequence[str]) -> dict[str, Any]:
    days, other_days = rng.sample((7, 10, 14, 21, 30, 45), 2)
    notice, other_notice = rng.sample((20, 40, 60, 80, 90), 2)
    references = {
        heading.lower(): f"clause {headings.index(heading) + 1} ({heading})" if heading in headings else ""
        for heading in _PARTNER.values()
    }
    wrong = {
        f"wrong_{heading.lower()}": f"clause {_other(rng, headings, heading)} ({heading})"
        for heading in _PARTNER.values()
    }
    return {
        "days": days,
        "other_days": other_days,
        "notice": notice,
        "other_notice": other_notice,
        "months": rng.choice((6, 12, 18, 24)),
        "years": rng.randrange(2, 9),
        "amount": rng.randrange(1, 90) * 1000,
        "country": rng.choice(("Norway", "Ireland", "Austria", "Portugal")),
        "service": rng.choice(("cleaning", "translations", "deliveries", "repairs")),
        **references,
        **wrong,
    }


def _other(rng: random.Random, headings: Sequence[str], heading: str) -> int:
    """The number of any other clause, or of one that is not there."""
    return rng.choice([n for n in range(1, len(headings) + 4) if headings[n - 1 : n] != [heading]])
