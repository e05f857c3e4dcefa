"""The report of the curriculum phase, inside its checkpoint: JSON and a Markdown page; and its figures on the card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from agent_forge.forge.checkpoint import Metric
from agent_forge.forge.curriculum.job import (
    COURSE,
    METRIC,
    UNIFORM,
    WITHOUT,
    ArmFigures,
    CurriculumOutcome,
    forgetting,
)
from agent_forge.forge.practice.measuring import paired_error


def document_of(outcome: CurriculumOutcome) -> dict[str, Any]:
    """All figures as JSON."""
    levels = {name: {"level": a.level, "success": a.success} for name, a in outcome.assessments.items()}
    rows: dict[str, Any] = {"gate": outcome.gate.as_dict(), "assessment": levels}
    if not outcome.ours:
        return rows
    courses = [{course.family: course.history for course in arm.courses} for arm in outcome.ours]
    rows |= {"courses": courses, "rounds": [arm.rounds for arm in outcome.ours]}
    rows["walls"] = [{"family": name, "level": level} for name, level in outcome.walls]
    rows["arms"] = {name: arm_row(outcome, figures) for name, figures in arms_of(outcome).items()}
    if outcome.without:
        rows["self_modelling"] = self_modelling(outcome)
    rows["replay, first seed"] = {name: arm_row(outcome, [arm]) for name, arm in outcome.replays.items()}
    return rows


def arms_of(outcome: CurriculumOutcome) -> dict[str, list[ArmFigures]]:
    arms = {COURSE: outcome.ours, UNIFORM: outcome.control, WITHOUT: outcome.without}
    return {name: figures for name, figures in arms.items() if figures}


def self_modelling(outcome: CurriculumOutcome) -> dict[str, float]:
    """What self-modelling changed, by the same seeds with and without it."""
    ours, without = (np.stack([arm.right for arm in arms]) for arms in (outcome.ours, outcome.without))
    nats = np.stack([arm.nats - other.nats for arm, other in zip(outcome.ours, outcome.without, strict=True)])
    lost, error = forgetting(np.zeros(nats.shape[1]), nats, outcome.tokens)
    gain, stderr = float((ours - without).mean()), paired_error(ours - without)
    return {"gain": gain, "gain_stderr": stderr, "forgetting": lost, "forgetting_stderr": error}


def arm_row(outcome: CurriculumOutcome, arms: list[ArmFigures]) -> dict[str, Any]:
    """Accuracy and forgetting of one or more seeds."""
    right = np.stack([arm.right for arm in arms])
    lost, error = forgetting(outcome.base.nats, np.stack([arm.nats for arm in arms]), outcome.tokens)
    return {
        "accuracy": float(right.mean()),
        "by_seed": right.mean(1).tolist(),
        "gain_stderr": paired_error(right - outcome.base.right),
        "n": right.shape[1],
        "forgetting": lost,
        "forgetting_stderr": error,
    }


def metrics_of(outcome: CurriculumOutcome) -> dict[str, Metric]:
    """What goes into the card."""
    n = outcome.base.right.size
    metrics = {f"{METRIC} before": Metric(float(outcome.base.right.mean()), n=n, how="greedy")}
    for name, found in outcome.assessments.items():
        metrics[f"start level {name}"] = Metric(found.level, how=f"success {found.success:.2f}")
    if not outcome.ours:
        return metrics
    for name, arms in arms_of(outcome).items():
        row, how = arm_row(outcome, arms), f"{len(arms)} seeds, greedy"
        metrics[f"{METRIC} {name}"] = Metric(row["accuracy"], row["gain_stderr"], n, how)
        of = f"nats per token of earlier text, {len(arms)} seeds"
        metrics[f"forgetting {name}"] = Metric(row["forgetting"], row["forgetting_stderr"], outcome.tokens.size, of)
    for name, arm in outcome.replays.items():
        row = arm_row(outcome, [arm])
        of = "nats per token of earlier text, first seed"
        metrics[f"forgetting replay {name}"] = Metric(
            row["forgetting"], row["forgetting_stderr"], outcome.tokens.size, of
        )
        metrics[f"{METRIC} replay {name}"] = Metric(row["accuracy"], row["gain_stderr"], n, "first seed, greedy")
    metrics["rounds"] = Metric(float(np.mean([arm.rounds for arm in outcome.ours])))
    return metrics


def notes_of(outcome: CurriculumOutcome) -> str:
    """What the card says in words."""
    if not outcome.ours:
        return "The model is at the target level already: there was nothing to practise."
    return " ".join(f"Hard wall: {name} ended at level {level:.2f}." for name, level in outcome.walls)


def markdown_of(outcome: CurriculumOutcome) -> str:
    """The report as a page."""
    rows = document_of(outcome)
    notes = " ".join(filter(None, (outcome.gate.note, notes_of(outcome))))
    lines = [f"# Curriculum: {outcome.gate.verdict}", "", notes, ""]
    for name, found in rows["assessment"].items():
        lines.append(f"{name}: {found['success']:.0%} right at level {found['level']:.2f}, where the course begins.")
    if outcome.ours:
        lines += ["", "| | accuracy | stderr of the gain | forgetting, nats per token | stderr |"]
        lines += ["|---|---:|---:|---:|---:|", f"| before | {outcome.base.right.mean():.3f} | | | |"]
        tables = {
            **rows["arms"],
            **{f"course, replay {k}, first seed": v for k, v in rows["replay, first seed"].items()},
        }
        for name, row in tables.items():
            figures = ("accuracy", "gain_stderr", "forgetting", "forgetting_stderr")
            lines.append(f"| {name} | " + " | ".join(f"{row[key]:.3f}" for key in figures) + " |")
        if change := rows.get("self_modelling"):
            gain, lost = (f"{change[key]:+.3f} ± {change[f'{key}_stderr']:.3f}" for key in ("gain", "forgetting"))
            lines += ["", f"Self-modelling changed accuracy by {gain} and forgetting by {lost}."]
        lines += ["", "| family | level | rounds | success | |", "|---|---:|---:|---:|---|"]
        for name, levels in rows["courses"][0].items():
            lines += [
                f"| {name} | {x['level']:.2f} | {x['rounds']} | {x['success']:.2f} | {x['how']} |" for x in levels
            ]
    return "\n".join(lines) + "\n"


def write_report(outcome: CurriculumOutcome, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(document_of(outcome), indent=1), encoding="utf-8")
    (folder / "report.md").write_text(markdown_of(outcome), encoding="utf-8")
