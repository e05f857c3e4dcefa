"""Plans in words by the forged planner: Break's high-level questions that training did not see.

    python benchmarks/planner_words.py --data DIR [--rows 100]

The model writes one step a line under no grammar, as it learnt to from Break; node and edge F1 by
`agent_forge.tasks.plan_score`, beside the rules, the nearest known question's plan, and the request as the only step.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _gold_plans import GoldPlan, _reference_edges
from _planner_tests import held_out_ids
from planner import Nearest, graph_of, scored, show, tools_of

from agent_forge.agents.planner import RulePlanner
from agent_forge.agents.planner.forged import SHIPPED, PlanModel
from agent_forge.agents.planner.script import request_text
from agent_forge.learning.datasets import read_set
from agent_forge.tasks.plan_score import Graph

MOST = 120  # tokens of a plan


def written(model: PlanModel, request: str) -> Graph:
    """The steps that the model writes, greedily, and their references."""
    history, ends = model.model.history(), set(model.vocabulary.ends)
    ids = model.tokenizer.encode(request_text(request), add_special_tokens=False).ids
    tokens: list[int] = []
    while len(tokens) < MOST:
        token = int(model.model.read(history, ids)[-1].argmax())
        if token in ends:
            break
        tokens.append(token)
        ids = [token]
    steps = [re.sub(r"^\d+ ", "", line) for line in model.vocabulary.text(tokens).splitlines() if line.strip()]
    return Graph(tuple(steps or [request]), _reference_edges(steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=SHIPPED)
    parser.add_argument("--quick", action="store_true", help="a check that it can be called")
    options = parser.parse_args()
    if options.data is None:
        print("nothing to judge: name the folder of the public sets with --data")
        return
    held = held_out_ids(options.data)
    every = [
        (row.id, GoldPlan("break", row.id, row.request.strip(), row.steps, _reference_edges(list(row.steps))))
        for row in read_set("break", options.data)
        if row.steps
    ]
    rows = [gold for name, gold in every if name in held][: options.rows]
    rules, nearest = RulePlanner(), Nearest([gold for name, gold in every if name not in held])
    model = PlanModel(options.folder)
    arms: dict[str, Callable[[Any], Graph]] = {
        "rules": lambda gold: graph_of(rules.plan_now(gold.request, tools=tools_of(gold)), gold),
        "nearest": nearest.graph,
        "copy": lambda gold: Graph((gold.request,), frozenset()),
        "forged": lambda gold: written(model, gold.request),
    }
    compare(rows, arms)


def compare(rows: Sequence[GoldPlan], arms: dict[str, Callable[[Any], Graph]]) -> None:
    for name, plan in arms.items():
        begun = time.process_time()
        scores = [scored(plan(gold), gold) for gold in rows]
        show("break_high", name, scores, time.process_time() - begun)


if __name__ == "__main__":
    main()
