"""The mini-experiment of the original: collect 100 traces, train on them, evaluate, and write it up.

    python examples/train_on_traces.py --base-model FOLDER [--agent support] [--traces 100] [--out experiment]

Half of the traces are right answers and half are wrong ones to the same exercises. Three policies come from the same
base: one learns the right ones (SFT), one prefers them to the wrong ones (DPO), and one makes its own attempts (GRPO,
after as many supervised steps). `experiment/README.md` holds the table.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from agent_forge.agents.profiles import AgentProfile, roster
from agent_forge.learning.agents import AgentReport, train_agent
from agent_forge.learning.exercises import Examinee, collect_exercises
from agent_forge.traces import Recorder, Store
from agent_forge.traces.collect import Target


def collect(home: Path, profile: AgentProfile, count: int) -> int:
    """Scored traces in the home folder's store: of each training exercise one with the reference solver's answer, and
    one with the right answer to another exercise. `agent-forge traces collect --agents support` does the same."""
    with Store.open(home) as store, Recorder(store) as recorder:
        models = [Examinee("reference"), Examinee("random")]
        return collect_exercises([profile], models, Target(count), recorder).traces


def write_up(reports: dict[str, AgentReport], traces: int, settings: dict[str, Any]) -> str:
    """The table of the experiment, as Markdown."""
    lines = [f"# {traces} traces, three policies", "", f"Settings: {settings}", ""]
    lines += ["| policy | before | after | gain | right before | right after |", "|---|---|---|---|---|---|"]
    for name, report in reports.items():
        before, after = report.as_dict()["before"], report.as_dict()["after"]
        figures = [f"{one['mean']:.3f} ± {one['stderr'] or 0:.3f}" for one in (before, after)]
        gain = f"{after['mean'] - before['mean']:+.3f}"
        lines.append(f"| {name} | {' | '.join(figures)} | {gain} | {before['correct']:.2f} | {after['correct']:.2f} |")
    return "\n".join(lines) + "\n"


def experiment(base: str, profile: AgentProfile, count: int, out: Path, **settings: Any) -> str:
    """Collects, trains, evaluates; returns what it wrote."""
    out.mkdir(parents=True)
    home = out / "home"
    traces = collect(home, profile, count)
    steps = settings.pop("iterations", 50)
    ways: dict[str, dict[str, Any]] = {
        "SFT on the right traces": {"algorithm": "sft", "traces": str(home), "learning_rate": 1e-3},
        "DPO on right against wrong": {"algorithm": "dpo", "traces": str(home), "learning_rate": 1e-4},
        "warm-up and GRPO": {"algorithm": "grpo"},
    }
    reports = {
        name: train_agent(profile, base, out / way["algorithm"], home=home, **{"iterations": steps, **way, **settings})
        for name, way in ways.items()
    }
    text = write_up(reports, traces, {"agent": profile.name, "iterations": steps, **settings})
    (out / "README.md").write_text(text, encoding="utf-8")
    return text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-model", required=True)
    parser.add_argument("--agent", default="support")
    parser.add_argument("--traces", type=int, default=100)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("experiment"))
    options = parser.parse_args()
    profile = roster("genesis")[options.agent]
    print(experiment(options.base_model, profile, options.traces, options.out, iterations=options.iterations))
