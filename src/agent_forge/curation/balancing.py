"""Balances a data set to given shares of easy, medium and hard rows.

Rows are dropped (the least informative first) and, with an endpoint, generated. No row is ever relabelled: what is
missing is reported as missing.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent_forge.curation.difficulties import STRATA, Difficulty, difficulty
from agent_forge.curation.duplicates import diversity_order
from agent_forge.curation.generate import Endpoint, Intake, Judge, prompt_for
from agent_forge.curation.lines import Row, open_lines, read_rows, same_file, text_of, write_lines
from agent_forge.errors import DataError, ModelError, UsageError

_LEAST_OF_BEST = 0.2
_TRIES_PER_ROW = 4
_MOST_FAILURES = 3  # of the endpoint, one after the other


@dataclass(slots=True)
class Stratum:
    """Rows of one difficulty: how many there are, are wanted, kept, dropped, generated, and still missing."""

    have: int
    target: float
    wanted: int
    kept: int = 0
    dropped: int = 0
    generated: int = 0
    shortfall: int = 0


@dataclass(slots=True)
class BalanceReport:
    """What balancing did. `basis` counts the sources of difficulty, `to_generate` the rows that would fill the gaps."""

    rows_in: int
    rows_out: int
    strata: dict[str, Stratum]
    basis: dict[str, int]
    shares: dict[str, float] = field(default_factory=dict)
    shortfall: int = 0
    to_generate: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def parse_target(text: str) -> dict[str, float]:
    """Shares such as "easy=0.3,medium=0.45,hard=0.25"; they add up to 1.

    >>> parse_target("easy=0.3,medium=0.45,hard=0.25")["hard"]
    0.25
    """
    shares: dict[str, float] = dict.fromkeys(STRATA, 0.0)
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name.strip() not in shares:
            raise UsageError(
                f"there is no difficulty {name.strip()!r}", where="--shares", fix=f"Use {', '.join(STRATA)}"
            )
        try:
            shares[name.strip()] = float(value)
        except ValueError:
            raise UsageError(f"{value!r} is not a number", where="--shares", fix="Write for example easy=0.3") from None
    if not all(0 <= share <= 1 for share in shares.values()) or abs(sum(shares.values()) - 1) > 1e-6:
        raise UsageError(f"the shares add up to {sum(shares.values()):g}, not to 1", where="--shares")
    return shares


def wanted_rows(have: Mapping[str, int], target: Mapping[str, float], *, generating: bool) -> dict[str, int]:
    """How many rows of each stratum to aim at.

    The total that drops and adds the fewest rows is the weighted median of have/share. Selection alone can meet the
    target exactly with as many rows as the scarcest stratum allows; unless that would drop most of what could be
    kept, in which case the rest is a shortfall.

    >>> shares = {"easy": 0.3, "medium": 0.45, "hard": 0.25}
    >>> wanted_rows({"easy": 3903, "medium": 2740, "hard": 22}, shares, generating=True)
    {'easy': 1827, 'medium': 2740, 'hard': 1522}
    """
    totals = sorted((have[name] / share, share) for name, share in target.items() if share > 0)
    covered, best = 0.0, 0.0
    for total, share in totals:
        best, covered = total, covered + share
        if covered >= 0.5:
            break
    best = best or totals[-1][0]  # most strata are empty: keep what there is, the rest is a shortfall
    exact = totals[0][0]
    total = best if generating or exact < _LEAST_OF_BEST * best else exact
    return {name: int(total * share + 0.5) for name, share in target.items()}


def balance(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    target: Mapping[str, float],
    *,
    by: str = "auto",
    endpoint: Endpoint | None = None,
    judge: Judge | None = None,
    seed: int = 0,
) -> BalanceReport:
    """Writes the rows of `source` that meet `target`, in order, followed by generated ones.

    Generated rows are collected in `OUT.generated.jsonl`; a run that was interrupted, or ended short, continues from
    there. Raises ModelError when the endpoint fails repeatedly.
    """
    if same_file(source, out):
        raise UsageError("the output would overwrite the input", where=str(source), fix="Name another file")
    rows = list(read_rows(source))
    if not rows:
        raise DataError("there are no rows to balance", where=str(source))
    difficulties = [difficulty(row, by=by) for row in rows]
    have = Counter(item.stratum for item in difficulties)
    wanted = wanted_rows({name: have[name] for name in STRATA}, target, generating=endpoint is not None)
    selected = _select(rows, [item.stratum for item in difficulties], wanted)
    report = _report(rows, have, target, wanted, selected, difficulties)
    ledger = Path(f"{os.fspath(out)}.generated.jsonl")
    generated: list[Row] = []
    if endpoint is not None:
        generated = _fill(ledger, rows, difficulties, report, endpoint, judge, seed)
    _write(source, out, selected, generated)
    _sum_up(report, generated, target, have)
    if endpoint is not None and not report.shortfall:
        ledger.unlink(missing_ok=True)
    return report


def _select(rows: Sequence[Row], strata: Sequence[str], wanted: Mapping[str, int]) -> set[int]:
    """The numbers of the rows to keep: of a stratum with too many, the most diverse."""
    selected: set[int] = set()
    for name in STRATA:
        members = [number for number, stratum in enumerate(strata) if stratum == name]
        if len(members) > wanted[name]:
            order = diversity_order([text_of(rows[number]) for number in members])
            members = [members[place] for place in order[: wanted[name]]]
        selected.update(members)
    return selected


def _report(
    rows: Sequence[Row],
    have: Mapping[str, int],
    target: Mapping[str, float],
    wanted: Mapping[str, int],
    selected: set[int],
    difficulties: Sequence[Difficulty],
) -> BalanceReport:
    strata = {name: Stratum(have[name], target[name], wanted[name]) for name in STRATA}
    for number in selected:
        strata[difficulties[number].stratum].kept += 1
    for stratum in strata.values():
        stratum.dropped = stratum.have - stratum.kept
        stratum.shortfall = max(0, stratum.wanted - stratum.kept)
    return BalanceReport(len(rows), len(selected), strata, dict(Counter(item.basis for item in difficulties)))


def _fill(
    ledger: Path,
    rows: Sequence[Row],
    difficulties: Sequence[Difficulty],
    report: BalanceReport,
    endpoint: Endpoint,
    judge: Judge | None,
    seed: int,
) -> list[Row]:
    """Generates missing rows, first for the stratum that lacks the largest part of its share."""
    generated = _reused(list(read_rows(ledger)) if ledger.exists() else [], report)
    intake = Intake(rows[:8], judge) if judge else Intake(rows[:8])
    intake.remember(rows)
    intake.remember(generated)
    tries = {name: _TRIES_PER_ROW * stratum.shortfall + 4 for name, stratum in report.strata.items()}
    failures, number, rng = 0, len(generated), random.Random(seed)
    with open(ledger, "a", encoding="utf-8") as file:
        while open_strata := [n for n in STRATA if report.strata[n].shortfall and tries[n] > 0]:
            name = max(open_strata, key=lambda n: report.strata[n].shortfall / max(1, report.strata[n].wanted))
            tries[name] -= 1
            number += 1
            try:
                answer = endpoint.complete(prompt_for(name, _examples(rows, difficulties, name, rng)), seed + number)
                failures = 0
            except ModelError:
                failures += 1
                if failures >= _MOST_FAILURES:
                    raise
                continue
            row = intake.take(answer, name)
            if row is not None:
                generated.append(row)
                report.strata[name].generated += 1
                report.strata[name].shortfall -= 1
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()
    report.refused = dict(sorted(intake.refused.items()))
    return generated


def _reused(earlier: list[Row], report: BalanceReport) -> list[Row]:
    """Those rows of an earlier run that are still missing; they count towards their stratum."""
    used = []
    for row in earlier:
        stratum = report.strata.get(str(row.get("difficulty")))
        if stratum is not None and stratum.shortfall:
            stratum.shortfall -= 1
            stratum.generated += 1
            used.append(row)
    return used


def _examples(rows: Sequence[Row], difficulties: Sequence[Difficulty], name: str, rng: random.Random) -> list[Row]:
    """Two rows of the stratum, or of the nearest one that has rows."""
    for stratum in sorted(STRATA, key=lambda other: abs(STRATA.index(other) - STRATA.index(name))):
        members = [row for row, item in zip(rows, difficulties, strict=True) if item.stratum == stratum]
        if members:
            return rng.sample(members, min(2, len(members)))
    return []


def _write(
    source: str | os.PathLike[str], out: str | os.PathLike[str], selected: set[int], generated: Iterable[Row]
) -> None:
    """Writes the selected lines byte for byte, then the generated rows."""
    with open_lines(source) as lines, write_lines(out) as file:
        for number, line in enumerate(line for line in lines if line.strip()):
            if number in selected:
                file.write(line if line.endswith(b"\n") else line + b"\n")
        for row in generated:
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def _sum_up(
    report: BalanceReport, generated: Sequence[Row], target: Mapping[str, float], have: Mapping[str, int]
) -> None:
    report.rows_out += len(generated)
    report.shortfall = sum(stratum.shortfall for stratum in report.strata.values())
    report.shares = {
        name: round((stratum.kept + stratum.generated) / max(1, report.rows_out), 4)
        for name, stratum in report.strata.items()
    }
    full = wanted_rows({name: have[name] for name in STRATA}, target, generating=True)
    report.to_generate = {name: max(0, full[name] - have[name] - report.strata[name].generated) for name in STRATA}
