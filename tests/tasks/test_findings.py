"""Planted vulnerabilities and defects: found exactly or not, with an independent look at what was planted."""

from __future__ import annotations

import ast
import copy
import random
import re
from typing import Any

import pytest
from tasks_checking import LEVELS, exercises, missed

from agent_forge.tasks import Exercise, family
from agent_forge.tasks.findings import judge_findings


@pytest.mark.parametrize(
    ("reported", "planted", "score"),
    [
        ([], [], 1),
        ([(1, "a")], [((1,), "a")], 1),
        ([(2, "a"), (1, "a")], [((1, 2), "a")], 1),  # the same one by both of its lines
        ([(1, "a"), (2, "b")], [((2,), "b"), ((1,), "a")], 1),
        ([(1, "b")], [((1,), "a")], 0),
        ([(2, "a")], [((1,), "a")], 0),
        ([(1, "a")], [], 0),
        ([], [((1,), "a")], 0),
        ([(1, "a"), (2, "a"), (3, "a"), (4, "a")], [((2,), "a")], 0.4),  # everything named: precision 1/4
        ([(1, "a")], [((1,), "a"), ((2,), "a")], 2 / 3),
    ],
)
def test_findings(reported: list[Any], planted: list[Any], score: float) -> None:
    assert judge_findings(reported, planted).score == pytest.approx(score)


# The same look for vulnerabilities, by rules over the code alone: what a reviewer knows, not what was planted.
RULES = {
    "code_eval": r"(?<![.\w])(?:eval|exec)\(",
    "hardcoded_secret": r"(?:API_KEY = |password=)\"",
    "sql_injection": r"SELECT[^\"]*'\{(?!\w+S\})|SELECT[^\"]*\" \+ ",
    "shell_injection": r"os\.system\(.* \+ |run\(f\".*shell=True",
    "path_traversal": r"open\(\"[^\"]*\" \+ |os\.path\.join\(",
    "weak_hash": r"md5\((?!.*usedforsecurity=False)|\"sha1\"",
    "unsafe_deserialization": r"pickle\.loads|UnsafeLoader",
    "weak_random": r"random\.randrange|join\(random",
    "tls_disabled": r"verify=False|_unverified_",
}


def reviewed(prompt: str) -> list[dict[str, Any]]:
    lines = dict(re.findall(r"^(\d+): (.*)$", prompt, re.MULTILINE))
    found = [
        {"line": int(n), "kind": kind}
        for n, line in lines.items()
        for kind, rule in RULES.items()
        if re.search(rule, line)
    ]
    for n, line in lines.items():
        if re.match(r"def (?:delete|rename)_\w+\(user", line) and ".owner" not in lines.get(str(int(n) + 2), ""):
            found.append({"line": int(n), "kind": "missing_check"})
    return found


def test_vulnerabilities_are_where_a_review_by_rules_finds_them() -> None:
    for exercise in exercises("security", 150):
        verdict = exercise.check({"findings": reviewed(exercise.prompt)})
        assert verdict.correct, (exercise.prompt, verdict)


def test_the_code_is_python() -> None:
    for exercise in exercises("security", 50):
        ast.parse("\n".join(re.findall(r"^\d+: (.*)$", exercise.prompt, re.MULTILINE)))


def defects_read(exercise: Exercise) -> list[dict[str, str]]:
    """The defects of an agreement, from its text alone."""
    clauses = {n: (h, t) for n, h, t in re.findall(r"^(\d+)\. ([A-Z][a-z ]+)\. (.*)$", exercise.prompt, re.MULTILINE)}
    numbers = {heading: n for n, (heading, _) in clauses.items()}
    found = [
        {"clause": h, "kind": "missing"}
        for h in ("Payment", "Liability", "Termination", "Governing law")
        if h not in numbers
    ]
    days = re.search(r"within (\d+) days", clauses[numbers["Payment"]][1]) if "Payment" in numbers else None
    notice = re.search(r"(\d+) days' notice", clauses[numbers["Termination"]][1]) if "Termination" in numbers else None
    for n, (heading, text) in clauses.items():
        other = re.search(r"(?:due within|is) (\d+) days", text)
        right = days if heading == "Invoices" else notice
        found += [
            {"clause": n, "kind": kind}
            for kind, bad in (
                ("blank", "____" in text),
                ("unlimited_liability", "without any limit" in text or "has no limit" in text),
                ("one_sided_termination", "may not end" in text or "Only the" in text),
                ("contradiction", other is not None and right is not None and other[1] != right[1]),
                (
                    "wrong_reference",
                    any(numbers.get(h) != to for to, h in re.findall(r"clause (\d+) \(([^)]*)\)", text)),
                ),
                ("undefined_term", re.search(r"Milestone|Protected Material|Data Plan", text) is not None),
                ("endless_renewal", "no effect" in text),
            )
            if bad
        ]
    return found


def test_defects_are_where_a_reader_finds_them() -> None:
    kinds = set()
    for exercise in exercises("legal", 250):
        verdict = exercise.check({"defects": defects_read(exercise)})
        assert verdict.correct, (exercise.prompt, verdict)
        kinds |= {planted["kind"] for planted in exercise.expected["planted"]}
    assert len(kinds) == 8


def test_a_clause_may_be_named_in_many_ways() -> None:
    expected = {
        "planted": [{"clauses": ["4", "payment"], "kind": "blank"}, {"clauses": ["liability"], "kind": "missing"}]
    }
    for first in (4, "4", "Clause 4", "clause 4.", "4. Payment", "Payment"):
        answer = {"defects": [{"clause": "Liability", "kind": "missing"}, {"clause": first, "kind": "blank"}]}
        assert family("legal").check(answer, expected).correct, first
    for wrong in (5, "14", "clause 4 or 5", "Payments", "", "4, 5", "all"):
        answer = {"defects": [{"clause": "Liability", "kind": "missing"}, {"clause": wrong, "kind": "blank"}]}
        assert not family("legal").check(answer, expected).correct, wrong


def altered(answer: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A fault gone, moved far away, of another kind, or one too many."""
    answer = copy.deepcopy(answer)
    ((name, faults),) = answer.items()
    kinds = family("security" if name == "findings" else "legal").schema["properties"][name]["items"]["properties"][
        "kind"
    ]["enum"]  # type: ignore[index]
    where = "line" if name == "findings" else "clause"
    far: Any = rng.randrange(50, 90) if where == "line" else rng.choice(["31", "clause 44", "Warranty", "42"])
    roll = rng.randrange(4) if faults else 3
    if roll == 3:
        faults.insert(rng.randrange(len(faults) + 1), {where: far, "kind": rng.choice(kinds)})
        return answer
    fault = rng.choice(faults)
    if roll == 0:
        faults.remove(fault)
    elif roll == 1:
        fault[where] = far
    else:
        fault["kind"] = rng.choice([kind for kind in kinds if kind != fault["kind"]])
    return answer


@pytest.mark.parametrize("name", ["security", "legal"])
def test_changed_answers_are_refused(name: str) -> None:
    assert missed(name, altered) == []


@pytest.mark.parametrize("name", ["security", "legal"])
def test_naming_everything_does_not_pay(name: str) -> None:
    for exercise in exercises(name, 20):
        kinds = exercise.prompt.count("\n- ")
        answer = {
            "findings": [{"line": line, "kind": "code_eval"} for line in range(1, 30)],
            "defects": [{"clause": str(n), "kind": "blank"} for n in range(1, 20)],
        }
        key = "findings" if name == "security" else "defects"
        assert exercise.check({key: answer[key]}).score < 0.2
        assert kinds >= 3


@pytest.mark.parametrize("name", ["security", "legal"])
def test_there_is_more_to_read_at_higher_levels(name: str) -> None:
    sizes = [sum(len(family(name).make(seed, level).prompt) for seed in range(10)) for level in LEVELS]
    assert sizes == sorted(sizes)
    assert sizes[-1] > 1.8 * sizes[0]
