"""An evolution from its settings: OUT with the report, and the champion in OUT/champion as a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_forge.forge.checkpoint import Checkpoint, digest_of
from agent_forge.forge.evolution.report import markdown_of, write_report
from agent_forge.forge.evolution.run import Evolved, evolve
from agent_forge.forge.evolution.settings import Evolve, task_digests
from agent_forge.forge.gates import GateResult


@dataclass(frozen=True)
class EvolveReport:
    """The champion, whether it beats every parent on held-out data, and everything that was measured."""

    out: Path  # of the champion
    digest: str
    gate: GateResult
    evolved: Evolved
    figures: Mapping[str, Any]

    @property
    def accepted(self) -> bool:
        return self.gate.passed

    def as_dict(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        return {**self.figures, "digest": self.digest}


def evolve_models(
    base: Checkpoint,
    parents: Sequence[Checkpoint],
    out: Path,
    settings: Evolve,
    *,
    seed: int = 0,
    phase: str = "evolve",
    models: Path | None = None,
    tell: Callable[..., None] = lambda **_: None,
) -> EvolveReport:
    """Runs or continues an evolution in the folder `out`; `phase` is the name on the champion's card."""
    folders = tuple(str(parent.path) for parent in parents)
    settings = replace(settings, parents=folders, base=str(base.path), seed=seed)
    evolved = evolve(settings, out, tell, models=models)
    document = write_report(evolved, out)
    inputs = tuple(dict.fromkeys(item.digest for item in (base, *parents)))
    evolved.settle(phase, inputs, task_digests(settings.data), markdown_of(document))
    return EvolveReport(evolved.champion, digest_of(evolved.champion), evolved.verdict.gate, evolved, document)
