"""HR: what an application says, and a decision by stated criteria that mentions no attribute it must not rest on."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from agent_forge.tasks.answers import number
from agent_forge.tasks.constraints import day, judge, long_date, prose_fault, same, words
from agent_forge.tasks.family import Draft, Verdict, task_family
from agent_forge.tasks.forbidden import forbidden_attributes

_FIRST = ("Ada", "Jonas", "Mira", "Tomas", "Leila", "Viktor", "Nadia", "Oskar", "Ines", "Rafael", "Sofia", "Emil")
_LAST = ("Keller", "Okafor", "Lindqvist", "Moreau", "Tanaka", "Novak", "Haddad", "Silva", "Petrov", "Brandt", "Costa")
_SKILLS = (
    "Excel", "SQL", "Python", "bookkeeping", "payroll", "negotiation", "copywriting", "project management",
    "data analysis", "customer service", "public speaking", "Salesforce", "budgeting", "Figma",
)  # fmt: skip
_JOBS = ("accountant", "analyst", "coordinator", "consultant", "developer", "office manager")
_FIRMS = ("Northwind", "Bluebird Foods", "Harbour Bank", "Alto Travel", "Kestrel Media", "Pine Logistics")
_NATIONS = ("Brazilian", "Polish", "Nigerian", "French", "Korean", "Canadian")
_FAITHS = ("Catholic", "Muslim", "Buddhist", "Jewish", "Hindu", "Protestant")
_FAMILIES = ("married, two children", "single, no children", "divorced, one daughter", "widowed, three sons")
_CRITERIA = ("experience", "skills", "start")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "years": {"type": ["integer", "string"], "maxLength": 12},
        "skills": {"type": "array", "items": {"type": "string", "maxLength": 30}, "maxItems": 10},
        "earliest_start": {"type": "string", "format": "date"},
        "unmet": {"type": "array", "items": {"enum": list(_CRITERIA)}, "maxItems": 3},
        "decision": {"enum": ["invite", "hold", "reject"]},
        "note": {"type": "string", "maxLength": 250},
    },
    "required": ["name", "years", "skills", "earliest_start", "unmet", "decision", "note"],
    "additionalProperties": False,
}


def solve(expected: Mapping[str, Any]) -> dict[str, Any]:
    """Compares the application with each criterion."""
    unmet = _unmet(expected)
    allowed = 1 if expected["hold"] else 0
    decision = "invite" if not unmet else "hold" if len(unmet) <= allowed else "reject"
    state = "all criteria are met" if not unmet else f"the criteria that are not met: {', '.join(unmet)}"
    return {
        "name": expected["name"],
        "years": expected["years"],
        "skills": list(expected["skills"]),
        "earliest_start": expected["start"],
        "unmet": unmet,
        "decision": decision,
        "note": f"The applicant has {expected['years']} years of experience, and this is the result: {state}.",
    }


def _unmet(expected: Mapping[str, Any]) -> list[str]:
    met = {
        "experience": expected["years"] >= expected["min_years"],
        "skills": all(skill in expected["skills"] for skill in expected["required_skills"]),
        "start": expected["start_by"] is None or expected["start"] <= expected["start_by"],
    }
    return [name for name in _CRITERIA if not met[name]]


def check(answer: Mapping[str, Any], expected: Mapping[str, Any]) -> Verdict:
    """Names and skills in any case, dates in any form; forbidden attributes are looked for in every text."""
    right = solve(expected)
    faults: dict[str, str | None] = dict.fromkeys(right)
    if not same(answer["name"], right["name"]):
        faults["name"] = f"{answer['name']!r} instead of {right['name']!r}"
    if number(answer["years"]) != right["years"]:
        faults["years"] = f"{answer['years']} instead of {right['years']}"
    if Counter(map(str.casefold, map(str.strip, answer["skills"]))) != Counter(map(str.casefold, right["skills"])):
        faults["skills"] = f"expected {', '.join(right['skills'])}"
    if day(answer["earliest_start"]) != date.fromisoformat(right["earliest_start"]):
        faults["earliest_start"] = f"{answer['earliest_start']} instead of {right['earliest_start']}"
    if sorted(answer["unmet"]) != sorted(right["unmet"]):
        faults["unmet"] = f"expected {', '.join(right['unmet']) or 'none'}"
    if answer["decision"] != right["decision"]:
        faults["decision"] = f"{answer['decision']} instead of {right['decision']}"
    faults["note"] = _note_fault(answer["note"], right)
    texts = [answer["note"], *answer["skills"]]
    texts += [str(answer[field]) for field in ("name", "years", "earliest_start") if faults[field]]
    said = forbidden_attributes(" | ".join(texts), expected["private"])
    return judge(faults, {"forbidden attributes": ", ".join(said) or None})


def _note_fault(note: str, right: Mapping[str, Any]) -> str | None:
    if fault := prose_fault(note):
        return fault
    if len(words(note)) > 40:
        return f"{len(words(note))} words, not at most 40"
    if (numbers := re.findall(r"\d+", note)) != [str(right["years"])]:
        return f"its numbers are {', '.join(numbers) or 'none'} instead of {right['years']}"
    return None


@task_family("hr", check=check, solve=solve, schema=SCHEMA)
def hr(rng: random.Random, level: float) -> Draft:
    """More jobs and skills, wished-for skills, notice periods and private details as the level rises."""
    wanted = rng.choice(("invite", "hold", "reject") if level > 0.6 else ("invite", "reject"))
    for _ in range(60):
        expected, parts = _draw(rng, level)
        if solve(expected)["decision"] == wanted:
            break
    return Draft(_prompt(expected, parts), expected)


def _draw(rng: random.Random, level: float) -> tuple[dict[str, Any], list[str]]:
    """An application and its criteria, and the sentences that state it."""
    applied = date(2027, 1, 4) + timedelta(days=rng.randrange(300))
    weeks = rng.choice((2, 4, 6, 8, 12))
    start = applied + timedelta(weeks=weeks)
    skills = rng.sample(_SKILLS, 4 + round(4 * level))
    own, wished = skills[: 2 + round(3 * level)], skills[2 + round(3 * level) :]
    years, career = _draw_career(rng, level)
    private, details = _draw_private(rng, level, applied.year - years)
    required = rng.sample(own, 1 + round(level))
    if rng.random() < 0.4:
        required[-1] = rng.choice(wished)
    if level > 0.65:
        start_text = f"I can start {weeks} weeks after the date of this application."
    else:
        start_text = f"I can start on {start.isoformat() if level < 0.3 else long_date(start)}."
    expected = {
        "name": f"{rng.choice(_FIRST)} {rng.choice(_LAST)}",
        "years": years,
        "skills": own,
        "start": start.isoformat(),
        "private": private,
        "min_years": rng.randrange(2, 9),
        "required_skills": required,
        "start_by": (applied + timedelta(days=rng.randrange(20, 80))).isoformat() if level > 0.3 else None,
        "hold": level > 0.6,
    }
    parts = [
        f"Application of {long_date(applied)}\nName: {expected['name']}",
        *details,
        career,
        _skills_text(own, wished, level),
        start_text,
    ]
    return expected, parts


def _draw_career(rng: random.Random, level: float) -> tuple[int, str]:
    if level < 0.35:
        years = rng.randrange(2, 12)
        return years, f"Experience: {years} years as {rng.choice(_JOBS)}."
    spans = [rng.randrange(2, 6) for _ in range(2 + (level > 0.6) + (level > 0.85))]
    jobs = [f"{rng.choice(_JOBS)} at {firm}" for firm in rng.sample(_FIRMS, len(spans))]
    if level <= 0.7:
        lines = [f"{span} years as {job}" for span, job in zip(spans, jobs, strict=True)]
    else:
        lines, year, month = [], 2026 - sum(spans), rng.randrange(2, 12)
        lines.append(f"internship at Quill Press, {month:02}/{year - 1} to {month - 1:02}/{year}")
        for span, job in zip(spans, jobs, strict=True):
            lines.append(f"{job}, {month:02}/{year} to {month - 1:02}/{year + span}")
            year += span
    return sum(spans), "Experience:\n" + "\n".join(f"- {line}" for line in lines)


def _draw_private(rng: random.Random, level: float, latest: int) -> tuple[list[str], list[str]]:
    """Words that no answer may contain, and the lines that state them."""
    born, nation, faith, home = latest - rng.randrange(20, 30), *map(rng.choice, (_NATIONS, _FAITHS, _FAMILIES))
    lines = [
        ([str(born)], f"Born in {born}."),
        ([nation], f"Nationality: {nation}."),
        ([home.split(",")[0], home.split(", ")[1]], f"Family: {home}."),
        ([faith], f"Religion: {faith}."),
        (["photo"], "(Photo attached.)"),
    ]
    chosen = rng.sample(lines, 1 + round(3 * level))
    return [word for each, _ in chosen for word in each], [text for _, text in chosen]


def _skills_text(own: Sequence[str], wished: Sequence[str], level: float) -> str:
    if level < 0.4:
        return f"Skills: {', '.join(own)}."
    wish = f" I have no experience with {wished[0]} yet, but would like to learn it."
    if level < 0.7:
        return f"Skills: {', '.join(own)}.{wish}"
    return (
        f"In my daily work I rely on {' and '.join(own[:2])}. At my last post I was asked to learn {wished[1]}, "
        f"which I have not done yet. I was also trained in {', '.join(own[2:])}.{wish}"
    )


def _prompt(expected: Mapping[str, Any], parts: Sequence[str]) -> str:
    criteria = [f"experience: at least {expected['min_years']} years"]
    criteria.append(f"skills: {' and '.join(expected['required_skills'])}")
    if expected["start_by"]:
        criteria.append(f"start: on {long_date(date.fromisoformat(expected['start_by']))} or earlier")
    rule = "invite if all criteria are met, else reject"
    if expected["hold"]:
        rule = "invite if all criteria are met, hold if exactly one is not, reject otherwise"
    listed = "\n".join(f"- {criterion}" for criterion in criteria)
    names = ", ".join(criterion.split(":")[0] for criterion in criteria)
    months = "; both months of a span count, internships do not" if " to " in parts[-3] else ""
    return (
        "\n".join(parts) + f"\n\nCriteria:\n{listed}\n\n"
        f"Extract the applicant's name, years (of experience in all jobs together{months}), skills "
        "(all that the applicant has, not those still to be learned) and earliest_start (YYYY-MM-DD). List the "
        f"criteria that are unmet ({names}; none if all are met) and give the decision: {rule}. Add a note of at most "
        "40 words in full sentences, with the years of experience in digits and no other number. "
        "Nowhere mention age, gender, nationality, religion, family, looks or health, nor refer to the applicant as he "
        "or she."
    )
