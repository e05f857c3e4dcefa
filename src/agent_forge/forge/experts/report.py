"""The report of the experts phase, inside its checkpoint: JSON, a Markdown page, and the front as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agent_forge.forge.checkpoint import Metric
from agent_forge.forge.compression.report import scatter
from agent_forge.forge.experts.domains import Domain
from agent_forge.forge.experts.job import DomainResult, ExpertsOutcome
from agent_forge.forge.experts.search import SearchOutcome, front
from agent_forge.forge.practice.measuring import paired_error


def document_of(outcome: ExpertsOutcome) -> dict[str, Any]:
    """All figures as JSON."""
    chosen = {result.domain for result in outcome.results}
    return {
        "gate": outcome.gate.as_dict(),
        "domains": [domain_row(result) for result in outcome.results],
        "self_test": [self_test_row(domain, domain in chosen) for domain in outcome.tested],
        **outcome.figures,
        "search": None if outcome.search is None else outcome.search.as_dict(),
    }


def domain_row(result: DomainResult) -> dict[str, Any]:
    gate = result.gate()
    return {
        "domain": result.domain.name,
        "level": result.domain.level,
        "base": gate.before,
        "expert": gate.after,
        "expert_by_seed": result.expert.mean(1).tolist(),
        "lora": gate.control,
        "lora_by_seed": result.control.mean(1).tolist(),
        "gain_stderr": gate.stderr,
        "over_lora_stderr": paired_error(result.expert - result.control),
        "n": result.base.size,
        "verdict": gate.verdict,
    }


def self_test_row(domain: Domain, chosen: bool) -> dict[str, Any]:
    figures = {"success": domain.success, "stderr": domain.stderr}
    return {"family": domain.name, "level": domain.level, **figures, "chosen": chosen}


def metrics_of(outcome: ExpertsOutcome) -> dict[str, Metric]:
    """What goes into the card."""
    metrics = {"domains": Metric(float(len(outcome.results)))}
    for result in outcome.results:
        row, n = domain_row(result), result.base.size
        how = f"{len(result.expert)} seeds, greedy, held-out exercises"
        metrics[f"success {row['domain']}"] = Metric(row["expert"], row["gain_stderr"], n, how)
        metrics[f"success {row['domain']} base"] = Metric(row["base"], n=n, how="greedy, held-out exercises")
        metrics[f"success {row['domain']} lora"] = Metric(row["lora"], n=n, how=how)
    if outcome.results:
        metrics["expert_bytes"] = Metric(4.0 * outcome.figures["vector_numbers"])
    return metrics


def write_report(outcome: ExpertsOutcome, folder: Path) -> None:
    """Writes report.json, report.md and, after a search, front.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    document = document_of(outcome)
    (folder / "report.json").write_text(json.dumps(document, indent=1, allow_nan=False), encoding="utf-8")
    (folder / "report.md").write_text(markdown_of(document), encoding="utf-8")
    if outcome.search is not None:
        (folder / "front.svg").write_text(draw_fronts(outcome.search), encoding="utf-8")


def draw_fronts(search: SearchOutcome) -> str:
    """Both fronts as an SVG: NSGA-II's designs in green, those of random search in orange."""
    points = [
        (figures.latency, figures.accuracy, design.label, good)
        for trials, good in ((search.nsga, True), (search.random, False))
        for design, figures in front(trials)
        if figures.accuracy > 0
    ]
    if not points:  # nothing was ever right
        points = [(figures.latency, 1e-3, "no right answer", False) for _, figures in search.nsga[:1]]
    return scatter(points, "seconds per exercise (green: NSGA-II, orange: random search)", "success")


def markdown_of(document: dict[str, Any]) -> str:
    """The report as Markdown."""
    gate = document["gate"]
    lines = ["# Experts", "", f"**{gate['verdict']}**" + (f" ({gate['note']})" if "note" in gate else "")]
    if not document["domains"]:
        lines[-1] += ": the self-test found too few domains in which the model is right sometimes, but not always."
    else:
        lines += ["", "| domain (level) | base | expert | LoRA of as many numbers | verdict |", "|---|---|---|---|---|"]
        for row in document["domains"]:
            expert = f"{row['expert']:.3f} (gain ± {row['gain_stderr']:.3f})"
            lora = f"{row['lora']:.3f} (distance ± {row['over_lora_stderr']:.3f})"
            name = f"{row['domain']} ({row['level']:g})"
            lines.append(f"| {name} | {row['base']:.3f} | {expert} | {lora} | {row['verdict']} |")
        lines += ["", *_choice_lines(document)]
    lines += ["", "| family | level | success in the self-test | |", "|---|---|---|---|"]
    for row in document["self_test"]:
        figure = f"{row['success']:.3f} ± {row['stderr']:.3f}"
        lines.append(f"| {row['family']} | {row['level']:g} | {figure} | {'domain' if row['chosen'] else ''} |")
    if document["search"]:
        lines += ["", *_search_lines(document["search"])]
    return "\n".join(lines) + "\n"


def _choice_lines(document: dict[str, Any]) -> list[str]:
    ways = document["dispatch"]
    lines = [
        f"An expert has {document['vector_numbers']:,} numbers, the adapter {document['control_numbers']:,}.",
        "",
        "| domain | named by prompt | success | named by classifier | success | CEM mixture | success |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in ways["prompt"]:
        cells = [f"{ways[way][name][key]:.3f}" for way in ("prompt", "classifier") for key in ("named", "success")]
        mixture = document["mixtures"].get(name)
        if mixture:
            cells += [" ".join(f"{weight:.2f}" for weight in mixture["weights"]), f"{mixture['success']:.3f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _search_lines(search: dict[str, Any]) -> list[str]:
    """The front of NSGA-II, and how the two methods compare."""
    shares = f"{search['random_beaten_by_nsga2']:.0%} of random search's front is beaten by NSGA-II's, "
    shares += f"{search['nsga2_beaten_by_random']:.0%} the other way round"
    lines = [f"{search['evaluations_each']} evaluations each: {shares}.", "", "![fronts](front.svg)", ""]
    lines += ["| weights | temperature | answers | success | seconds | bytes |", "|---|---|---|---|---|---|"]
    for row in search["fronts"]["nsga2"]:
        weights = " ".join(f"{weight:g}" for weight in row["weights"])
        figures = f"{row['accuracy']:.3f} | {row['latency']:.3g} | {row['memory']:,.0f}"
        lines.append(f"| {weights} | {row['temperature']:g} | {row['thoughts']} | {figures} |")
    return lines
