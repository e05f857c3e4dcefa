"""A data set with the shares of easy, medium and hard rows that were asked for.

Rows are dropped (the least telling ones first) and, where an endpoint is given, generated. No row is ever relabelled:
what is missing is reported as missing.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent_forge.curation.difficulties import STRATA, difficulty
from agent_forge.curation.duplicates import diversity_order
from agent_forge.curation.generate import Endpoint, Intake, Judge, prompt_for
from agent_forge.curation.lines import Row, open_lines, read_rows, same_file, text_of, write_lines
from agent_forge.errors import DataError, ModelError, UsageError

_LEAST_OF_BEST = 0.2
_TRIES_A_ROW = 4
_FAILURES_IN_A_ROW = 3


@dataclass(slots=True)
class Stratum:
    """One share: how many rows there were, how many are wanted, kept, dropped, generated, and still missing."""

    have: int
    target: float
    wanted: int
    kept: int = 0
    dropped: int = 0
    generated: int = 0
    shortfall: int = 0


@dataclass(slots=True)
class BalanceReport:
    """What balancing did. `basis` says on what the difficulty rests, `to_generate` what would fill it up."""

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
            raise UsageError(f"'{name.strip()}' is no stratum", where="--target", fix=f"one of {', '.join(STRATA)}")
        try:
            shares[name.strip()] = float(value)
        except ValueError:
            raise UsageError(f"'{value}' is no number", where="--target", fix="for example easy=0.3") from None
    if not all(0 <= share <= 1 for share in shares.values()) or abs(sum(shares.values()) - 1) > 1e-6:
        raise UsageError(f"the shares add up to {sum(shares.values()):g}, not to 1", where="--target")
    return shares


def wanted_rows(have: Mapping[str, int], target: Mapping[str, float], *, generating: bool) -> dict[str, int]:
    """How many rows of each stratum to aim at.

    The total that drops and adds the fewest rows is the weighted median of have/share. With selection alone the target
    can be met exactly with as many rows as the scarcest stratum allows; that is taken unless it would throw away most
    of what could be kept, in which case the rest is a shortfall.

    >>> shares = {"easy": 0.3, "medium": 0.45, "hard": 0.25}
    >>> wanted_rows({"easy": 3903, "medium": 2740, "hard": 22}, shares, generating=True)
    {'easy': 1827, 'medium': 2740, 'hard': 1522}
    """
    totals = sorted((have[name] / share, share) for name, share in target.items() if share > 0)
    seen, best = 0.0, 0.0
    for total, share in totals:
        best, seen = total, seen + share
        if seen >= 0.5:
            break
    best = best or totals[-1][0]  # most strata are empty: what is there stays, and the rest is a shortfall
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
    """Writes the rows of `source` that meet `target`, in their order, and generated ones behind them.

    Generated rows are kept in `OUT.generated.jsonl` as they come; a run that was interrupted, or ended short, goes on
    from there and fills the deficit of each stratum. Raises ModelError when the endpoint fails again and again.
    """
    if same_file(source, out):
        raise UsageError("the output would overwrite the input", where=str(source), fix="name another file")
    rows = list(read_rows(source))
    if not rows:
        raise DataError("there are no rows to balance", where=str(source))
    judged = [difficulty(row, by=by) for row in rows]
    have = Counter(item.stratum for item in judged)
    wanted = wanted_rows({name: have[name] for name in STRATA}, target, generating=endpoint is not None)
    kept = _select(rows, [item.stratum for item in judged], wanted)
    report = _report(rows, have, target, wanted, kept, judged)
    made: list[Row] = []
    if endpoint is not None:
        made = _fill(Path(f"{os.fspath(out)}.generated.jsonl"), rows, judged, report, endpoint, judge, seed)
    _write(source, out, kept, made)
    _sum_up(report, made, target, have)
    if endpoint is not None and not report.shortfall:
        with suppress(FileNotFoundError):
            Path(f"{os.fspath(out)}.generated.jsonl").unlink()
    return report


def _select(rows: Sequence[Row], strata: Sequence[str], wanted: Mapping[str, int]) -> set[int]:
    """The numbers of the rows to keep: of a stratum that has too many, the most diverse."""
    kept: set[int] = set()
    for name in STRATA:
        members = [number for number, stratum in enumerate(strata) if stratum == name]
        if len(members) > wanted[name]:
            order = diversity_order([text_of(rows[number]) for number in members])
            members = [members[place] for place in order[: wanted[name]]]
        kept.update(members)
    return kept


def _report(
    rows: Sequence[Row],
    have: Mapping[str, int],
    target: Mapping[str, float],
    wanted: Mapping[str, int],
    kept: set[int],
    judged: Sequence[Any],
) -> BalanceReport:
    strata = {name: Stratum(have[name], target[name], wanted[name]) for name in STRATA}
    for number in kept:
        strata[judged[number].stratum].kept += 1
    for stratum in strata.values():
        stratum.dropped = stratum.have - stratum.kept
        stratum.shortfall = max(0, stratum.wanted - stratum.kept)
    return BalanceReport(len(rows), len(kept), strata, dict(Counter(item.basis for item in judged)))


def _fill(
    ledger: Path,
    rows: Sequence[Row],
    judged: Sequence[Any],
    report: BalanceReport,
    endpoint: Endpoint,
    judge: Judge | None,
    seed: int,
) -> list[Row]:
    """Rows for what is missing, the stratum that lacks the largest part of its share first."""
    made = _trimmed(list(read_rows(ledger)) if ledger.exists() else [], report)
    intake = Intake(rows[:8], judge) if judge else Intake(rows[:8])
    intake.remember(rows)
    intake.remember(made)
    tries = {name: _TRIES_A_ROW * stratum.shortfall + 4 for name, stratum in report.strata.items()}
    failures, number, rng = 0, len(made), random.Random(seed)
    with open(ledger, "a", encoding="utf-8") as file:
        while open_strata := [n for n in STRATA if report.strata[n].shortfall and tries[n] > 0]:
            name = max(open_strata, key=lambda n: report.strata[n].shortfall / max(1, report.strata[n].wanted))
            tries[name] -= 1
            number += 1
            try:
                answer = endpoint.complete(prompt_for(name, _examples(rows, judged, name, rng)), seed + number)
                failures = 0
            except ModelError:
                failures += 1
                if failures >= _FAILURES_IN_A_ROW:
                    raise
                continue
            row = intake.take(answer, name)
            if row is not None:
                made.append(row)
                report.strata[name].generated += 1
                report.strata[name].shortfall -= 1
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()
    report.refused = dict(sorted(intake.refused.items()))
    return made


def _trimmed(made: list[Row], report: BalanceReport) -> list[Row]:
    """The rows an earlier run made, as far as they are still missing; they count towards their stratum."""
    used = []
    for row in made:
        stratum = report.strata.get(str(row.get("difficulty")))
        if stratum is not None and stratum.shortfall:
            stratum.shortfall -= 1
            stratum.generated += 1
            used.append(row)
    return used


def _examples(rows: Sequence[Row], judged: Sequence[Any], name: str, rng: random.Random) -> list[Row]:
    """Two rows of the stratum, or of the nearest one that has rows."""
    near = sorted(STRATA, key=lambda other: abs(STRATA.index(other) - STRATA.index(name)))
    for stratum in near:
        members = [row for row, item in zip(rows, judged, strict=True) if item.stratum == stratum]
        if members:
            return rng.sample(members, min(2, len(members)))
    return []


def _write(source: str | os.PathLike[str], out: str | os.PathLike[str], kept: set[int], made: Iterable[Row]) -> None:
    """The kept lines byte for byte, then the generated rows."""
    with open_lines(source) as lines, write_lines(out) as file:
        number = -1
        for line in lines:
            if not line.strip():
                continue
            number += 1
            if number in kept:
                file.write(line if line.endswith(b"\n") else line + b"\n")
        for row in made:
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def _sum_up(report: BalanceReport, made: Sequence[Row], target: Mapping[str, float], have: Mapping[str, int]) -> None:
    report.rows_out += len(made)
    report.shortfall = sum(stratum.shortfall for stratum in report.strata.values())
    report.shares = {
        name: round((stratum.kept + stratum.generated) / max(1, report.rows_out), 4)
        for name, stratum in report.strata.items()
    }
    full = wanted_rows({name: have[name] for name in STRATA}, target, generating=True)
    report.to_generate = {name: max(0, full[name] - have[name] - report.strata[name].generated) for name in STRATA}
