"""The rows that a planner learns from and those it is judged on: read or generated, deduplicated, split, audited."""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from agent_forge.agents.choices import choose_tools
from agent_forge.agents.planner.forged import function_of
from agent_forge.agents.planner.retrieval import SHOWN_TOOLS
from agent_forge.curation.audit import audit_file
from agent_forge.curation.duplicates import exact_groups, near_groups
from agent_forge.errors import DataError, MissingExtraError
from agent_forge.learning.generate import Generator
from agent_forge.learning.logs import FoundRows, read_rows_file, rows_of_traces
from agent_forge.learning.rows import PlanRow, write_plan_rows
from agent_forge.learning.settings import PlannerSettings

PUBLIC = ("sgd", "snips", "seal_tools", "ultratool")
REQUESTS = 24  # per generated sheet: the tools are read once for all of them


@dataclass
class PlannerRows:
    """Rows to train on and to judge on. `dropped` counts what was left out and why, `audit` is that of `curation`."""

    train: list[PlanRow]
    held_out: list[PlanRow]
    dropped: Counter[str] = field(default_factory=Counter)
    audit: dict[str, Any] = field(default_factory=dict)

    def digests(self) -> dict[str, str]:
        return {
            name: hashlib.sha256("\n".join(row.prompt + row.answer for row in rows).encode()).hexdigest()
            for name, rows in (("train", self.train), ("held-out", self.held_out))
        }


def gather(config: PlannerSettings, seed: int) -> PlannerRows:
    """The rows of a configuration. Real rows are split by chance, near duplicates on one side; where too few are
    held out, the planner is judged on generated requests in wordings that training does not have. Raises DataError."""
    found = FoundRows()
    for path in config.data:
        found.extend(read_rows_file(path))
    if config.traces is not None:
        from agent_forge.settings import trace_store
        from agent_forge.traces import Store

        place = trace_store(config.traces)
        if place == config.traces and "://" not in config.traces and not Path(config.traces).expanduser().exists():
            raise DataError("there are no traces", where=config.traces, fix="Name the home folder of earlier runs")
        with Store.open(place) as store:
            found.extend(rows_of_traces(store.each_trace()))
    rows = without_duplicates(found.rows, found.dropped)
    random.Random(seed).shuffle(rows)
    cut = round(config.held_out * len(rows))
    material = PlannerRows(rows[cut:], rows[:cut], found.dropped)
    if config.tools is not None:
        functions = [function_of(tool) for tool in choose_tools(config.tools)]
        material.train += generated(functions, config.generated, seed, held_out=False)
        if len(material.held_out) < 2:  # too few to judge by: learnt from, like the others
            material.train += material.held_out
            material.held_out = generated(functions, config.judged, seed + 1, held_out=True)
    if config.public is not None and not material.held_out:
        material.held_out = public_rows(config, seed)
    if not (material.train or config.public) or len(material.held_out) < 2:
        dropped = ", ".join(f"{count} {reason}" for reason, count in material.dropped.items())
        what = f"{len(rows)} rows are too few to learn from" + (f" (dropped: {dropped})" if dropped else "")
        raise DataError(what, fix="Add rows, or --tools FILE to generate some")
    random.Random(seed).shuffle(material.held_out)
    material.audit = audited(material.train)
    return material


def without_duplicates(rows: Sequence[PlanRow], dropped: Counter[str]) -> list[PlanRow]:
    """The first of each group of rows that say the same, or nearly the same where that can be found."""
    texts = [f"{row.request}\n{row.answer}" for row in rows]
    try:
        groups = near_groups(texts)
    except MissingExtraError:
        groups = exact_groups(texts)
    again = {place for group in groups for place in sorted(group)[1:]}
    if again:
        dropped["duplicates"] += len(again)
    return [row for place, row in enumerate(rows) if place not in again]


def generated(functions: Sequence[Any], count: int, seed: int, held_out: bool | None) -> list[PlanRow]:
    """Rows over a catalogue. Few tools are mostly shown as they are, for so the planner will see them."""
    whole = 0.7 if len(functions) <= SHOWN_TOOLS else 0.0
    generator = Generator(functions, seed=seed, whole=whole, held_out=held_out)
    sheets = (generator.sheet(2 if held_out else REQUESTS) for _ in range(count + 8))
    return list(islice((row for sheet in sheets for row in sheet), count))


def public_rows(config: PlannerSettings, seed: int) -> list[PlanRow]:
    """The rows of the public sets that are held out, as many of each."""
    from agent_forge.learning.datasets import read_set

    rng = random.Random(seed)
    folder, each = Path(str(config.public)), -(-config.judged // len(PUBLIC))
    sets = [read_set(name, folder) for name in PUBLIC]
    return [row for rows in sets for row in rng.sample(rows, min(each, len(rows) // 2))]


def public_groups(config: PlannerSettings, seed: int) -> list[list[PlanRow]]:
    """Sheets of the public sets, as the shipped planner learnt from, without rows held out; [] if none are named."""
    if config.public is None:
        return []
    from agent_forge.learning.mixture import Mixture

    held_out = frozenset(row.id for row in public_rows(config, seed))
    return list(islice(Mixture(Path(config.public), seed, held_out=held_out).groups(), config.sheets))


def audited(rows: Iterable[PlanRow]) -> dict[str, Any]:
    """What `data audit` says of the rows: whether they pass, and their duplicates and personal data."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        if not write_plan_rows(rows, path):
            return {}
        audit = audit_file(path, near=False).as_dict()
    return {"passed": audit["passed"], "rows": audit["rows"], "pii": audit["pii"]["total"], "checks": audit["checks"]}
