"""How close do the planners come to gold plan graphs, compared with copying the plan of the most similar request?

    python benchmarks/planner.py                 the rule planner and the control, every held-out row of every set
    python benchmarks/planner.py --local 20      also SmolLM2-135M-Instruct under the plan grammar, 20 rows of each set
    python benchmarks/planner.py --quick         100 rows of four sets

For every set: node F1, edge F1, exact match and parallelism regret (planned over gold critical path; 1.0 is as parallel
as gold, below 1 the plan is missing steps), mean ± standard error over the held-out rows (4 of 10, by a hash of the
row's id). Nodes match by tool name if the gold names tools, else greedily by word F1 >= 0.3; see
agent_forge/tasks/plan_score.py. The control copies the plan of the most similar row that is not held out (TF-IDF).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

from _gold_plans import DATA, SETS, GoldPlan, load

from agent_forge import Plan
from agent_forge.agents.complexity import complexity
from agent_forge.agents.planner import LocalPlanner, RulePlanner
from agent_forge.tasks.plan_score import Graph, PlanScore, score
from agent_forge.tasks.words import content_words

METRICS = ("node_f1", "edge_f1", "exact", "regret")
QUICK = ("break_high", "ultratool", "nestful", "asynchow")
LOCAL = ("break_high", "strategyqa", "ultratool", "seal_tools", "nestful", "worf_toolbench")
BATCH = 10


def graph_of(plan: Plan, gold: GoldPlan) -> Graph:
    index = {name: number for number, name in enumerate(plan.tasks)}
    edges = frozenset((index[before], index[name]) for name, needs in plan.dependencies.items() for before in needs)
    return Graph(tuple((task.action or "") if gold.by_tool else task.goal for task in plan), edges)


def tools_of(gold: GoldPlan) -> tuple:
    return gold.tools if gold.by_tool else ()


class Nearest:
    """The control: the plan of the most similar request."""

    def __init__(self, examples: Sequence[GoldPlan]) -> None:
        self.examples = examples
        texts = [Counter(content_words(row.request)) for row in examples]
        frequency = Counter(word for text in texts for word in text)
        self.idf = {word: math.log(1 + len(texts) / count) for word, count in frequency.items()}
        self.postings: dict[str, list[tuple[int, float]]] = {}
        for number, text in enumerate(texts):
            for word, weight in self._vector(text).items():
                self.postings.setdefault(word, []).append((number, weight))

    def _vector(self, text: Counter[str]) -> dict[str, float]:
        weights = {word: count * self.idf.get(word, 0.0) for word, count in text.items()}
        norm = math.sqrt(sum(weight**2 for weight in weights.values())) or 1.0
        return {word: weight / norm for word, weight in weights.items()}

    def graph(self, gold: GoldPlan) -> Graph:
        scores: dict[int, float] = {}
        for word, weight in self._vector(Counter(content_words(gold.request))).items():
            for number, other in self.postings.get(word, ()):
                scores[number] = scores.get(number, 0.0) + weight * other
        best = max(scores, key=lambda number: (scores[number], -number)) if scores else 0
        return Graph(self.examples[best].nodes, self.examples[best].edges)


def scored(graph: Graph, gold: GoldPlan) -> PlanScore:
    return score(graph, Graph(gold.nodes, gold.edges), by_tool=gold.by_tool, durations=gold.durations)


def table_row(scores: Sequence[PlanScore]) -> dict[str, tuple[float, float]]:
    """Mean and standard error of each metric."""
    figures = {}
    for metric in METRICS:
        values = [getattr(one, metric) for one in scores]
        mean = sum(values) / len(values)
        spread = math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1))
        figures[metric] = (mean, spread / math.sqrt(len(values)))
    return figures


def show(name: str, planner: str, scores: Sequence[PlanScore], seconds: float) -> dict[str, object]:
    row = table_row(scores)
    cells = "  ".join(f"{mean:5.3f} ± {error:.3f}" for mean, error in row.values())
    print(f"{name:17} {planner:8} {len(scores):5}  {cells}  {1000 * seconds / len(scores):9.2f}", flush=True)
    return {"set": name, "planner": planner, "n": len(scores), "ms_per_plan": 1000 * seconds / len(scores), **row}


def timed(work: Callable[[], list[Graph]]) -> tuple[list[Graph], float]:
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def compare(
    name: str, rows: Sequence[GoldPlan], examples: Sequence[GoldPlan], local: LocalPlanner | None
) -> list[dict]:
    rules, nearest = RulePlanner(), Nearest(examples)
    figures = []
    planners: dict[str, Callable[[], list[Graph]]] = {
        "rules": lambda: [graph_of(rules.plan_now(row.request, tools=tools_of(row)), row) for row in rows],
        "nearest": lambda: [nearest.graph(row) for row in rows],
    }
    if local is not None:
        planners["smollm2"] = lambda: plan_locally(local, rows)
    for planner, work in planners.items():
        graphs, seconds = timed(work)
        figures.append(show(name, planner, [scored(g, row) for g, row in zip(graphs, rows, strict=True)], seconds))
    return figures


def plan_locally(local: LocalPlanner, rows: Sequence[GoldPlan]) -> list[Graph]:
    graphs = []
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        planned = local.plan_many([(row.request, tools_of(row)) for row in part])
        graphs += [graph_of(one, row) for one, row in zip(planned, part, strict=True)]
    return graphs


def decide(names: Sequence[str], limit: int | None) -> list[dict]:
    """The complexity rule: graph or no graph, against whether the gold plan has three steps or more."""
    print(
        "\nThe complexity rule: three steps or more?\n"
        "set                  n  accuracy (se)    always the majority  |steps off|"
    )
    figures = []
    for name in names:
        rows = [row for row in load(name) if row.held_out][:limit]
        right = [complexity(row.request).graph == (len(row.nodes) >= 3) for row in rows]
        many = sum(len(row.nodes) >= 3 for row in rows) / len(rows)
        off = sum(abs(complexity(row.request).steps - len(row.nodes)) for row in rows) / len(rows)
        mean = sum(right) / len(right)
        error = math.sqrt(mean * (1 - mean) / len(right))
        print(f"{name:17} {len(rows):5}  {mean:.3f} ± {error:.3f}   {max(many, 1 - many):.3f}              {off:.2f}")
        figures.append(
            {"set": name, "n": len(rows), "accuracy": mean, "se": error, "majority": max(many, 1 - many), "off": off}
        )
    return figures


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100 rows of four sets")
    parser.add_argument(
        "--local", type=int, default=0, metavar="N", help="also SmolLM2, on the first N rows of each set"
    )
    parser.add_argument("--sets", nargs="*", default=None, choices=list(SETS), metavar="SET")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to FILE")
    return parser.parse_args()


def main() -> int:
    chosen = options()
    if not DATA.is_dir():
        print(f"the gold plans are not at {DATA}", file=sys.stderr)
        return 1
    names = chosen.sets or (QUICK if chosen.quick else tuple(SETS))
    limit = 100 if chosen.quick else None
    heads = "  ".join(f"{metric:^13}" for metric in METRICS)
    print(f"{'set':17} planner      n  {heads}  ms per plan")
    figures = []
    for name in names:
        rows = load(name)
        test, examples = [row for row in rows if row.held_out][:limit], [row for row in rows if not row.held_out]
        figures += compare(name, test, examples, None)
    if chosen.local:
        print(f"\nThe first {chosen.local} held-out rows of each set, SmolLM2-135M-Instruct under the grammar, greedy")
        local = LocalPlanner.smollm2()
        for name in chosen.sets or LOCAL:
            rows = load(name)
            test = [row for row in rows if row.held_out][: chosen.local]
            figures += [
                {**row, "sample": True} for row in compare(name, test, [r for r in rows if not r.held_out], local)
            ]
    decisions = decide(names, limit)
    if chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump({"plans": figures, "complexity": decisions}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
