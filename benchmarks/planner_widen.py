"""Requests without plans for the planner's distillation, answered by its teacher.

python benchmarks/planner_widen.py tools --packages DIR --out tools.json.gz                                # CPU
python benchmarks/planner_widen.py prompts --data DIR --tools tools.json.gz --tokenizer FOLDER --out prompts.npz
python benchmarks/planner_widen.py answers --teacher DIR --prompts prompts.npz --out sheets.npz            # GPU

A student that is distilled on the training sets alone says what its teacher says there (KL .01 per token), and
something else on tools and wordings from elsewhere (KL .1 to .4). No labels are needed to mend that: requests are shown
tools, and the teacher writes what it would. Half of the prompts are generated over some ten thousand functions that are
documented in Python packages (`_api_tools.py` says which). The others are requests of other sets (tasks without labels,
word problems, questions, programs to write) with tools of all catalogues, some near, some random, under changing names.
`planner_gpu.py shrink --sheets-file` takes the result.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

LENGTH = 1024  # of a row; what is longer with its answer is left out
ANSWER = 160  # longest answer, in tokens
STYLES = ("as it is", "as it is", "snake", "camel", "pascal", "dotted")


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file that holds one per line, or a list of them."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        text = file.read()
    yield from json.loads(text) if text.lstrip().startswith("[") else map(json.loads, text.splitlines())


def requests_of(data: Path) -> dict[str, list[str]]:
    """Requests by source. None of them has a plan; BFCL is not among them."""
    from _planner_tests import held_out_ids

    from agent_forge.learning.datasets import read_set

    graph, judged = data / "plan_graph", held_out_ids(data)
    found = {
        f"taskbench {part.name}": [each["user_request"] for each in lines_of(part / "user_requests.json.gz")]
        for part in sorted((graph / "taskbench_nolabels").iterdir())
        if part.is_dir()
    }
    for name, path, key in (
        ("gsm8k", data / "gsm8k" / "train.jsonl.gz", "question"),
        ("mbpp", data / "mbpp" / "mbpp.jsonl.gz", "text"),
        ("strategyqa", graph / "strategyqa" / "train.json.gz", "question"),
        ("2wiki", graph / "mhqa" / "2wiki_dev_12576.json.gz", "question"),
    ):
        found[name] = [str(each[key]) for each in lines_of(path) if each.get(key)]
    for name in ("sgd", "snips", "seal_tools", "nestful"):  # over tools that they were not written for
        found[name] = [row.request for row in read_set(name, data) if row.id not in judged]
    return found


def catalogue(data: Path) -> list[dict[str, Any]]:
    """The tools of all sets that are trained on, and TaskBench's."""
    from _planner_tests import held_out_fields

    from agent_forge.learning.datasets import nestful_tools, seal_tools, sgd_tools, ultratool_tools

    hidden = held_out_fields(data)
    tools = [tool for tool in seal_tools(data).values() if tool["field"] not in hidden]
    tools += [*sgd_tools(data, "train").values(), *ultratool_tools(data).values()]
    for part in ("non-executable-glaive", "non-executable-sgd"):
        tools += nestful_tools(data, part).values()
    described = data / "plan_graph" / "taskbench_nolabels" / "dailylifeapis" / "tool_desc.json"
    for each in json.loads(described.read_text(encoding="utf-8"))["nodes"]:
        given = {p["name"]: {"type": "string", "description": p["desc"]} for p in each["parameters"]}
        schema = {"type": "object", "properties": given, "required": list(given)}
        tools.append({"name": each["id"], "description": each["desc"], "parameters": schema})
    return [{key: value for key, value in tool.items() if key != "field"} for tool in tools]


class Prompts:
    """Prompts of all sources in turn, each with one to eight tools; `more` are tools that training does not know."""

    def __init__(self, data: Path, more: list[dict[str, Any]], seed: int) -> None:
        from _planner_tests import held_out_ids

        from agent_forge.agents.planner.tools import ToolIndex
        from agent_forge.learning.datasets import read_set
        from agent_forge.learning.generate import Generator
        from agent_forge.learning.mixture import values_of

        self.rng = random.Random(seed)
        self.requests = requests_of(data)
        rows = [row for name in ("sgd", "snips", "seal_tools") for row in read_set(name, data)]
        judged = held_out_ids(data)
        seen = values_of([row for row in rows if row.id not in judged])
        self.generator = Generator(more, seed=seed, seen=seen, restyle=True) if more else None
        self.tools = catalogue(data) + [{key: each for key, each in tool.items() if key != "field"} for tool in more]
        self.index = ToolIndex.of([type("Spec", (), tool) for tool in self.tools])  # type: ignore[misc]

    def texts(self) -> Iterator[str]:
        from agent_forge.agents.planner.script import request_text, tools_text
        from agent_forge.learning.generate import Styled, alike

        names = [name for name in self.requests for _ in range(2 if name.startswith("taskbench") else 1)]
        while True:
            if self.generator is not None and self.rng.random() < 0.5:
                for row in self.generator.sheet(self.rng.choice((1, 2, 3))):
                    yield tools_text(row.tools) + request_text(row.request)
                continue
            request = self.rng.choice(self.requests[self.rng.choice(names)])
            shown: list[Any] = []
            for tool in self.candidates(request, self.rng.choice((1, 1, 2, 3, 4, 6, 8))):
                if not any(alike(tool, other) for other in shown):
                    shown.append(tool)
            self.rng.shuffle(shown)
            style = self.rng.choice(STYLES)
            styled = [Styled.of(tool, style, self.rng).function for tool in shown]
            if len({tool["name"] for tool in styled}) == len(styled):
                yield tools_text(styled) + request_text(request)

    def candidates(self, request: str, count: int) -> list[dict[str, Any]]:
        """Mostly the nearest tools, sometimes any."""
        if self.rng.random() < 0.25:
            return self.rng.sample(self.tools, count)
        scores = self.index.scores(request)
        near = sorted(scores, key=lambda place: -scores[place])[: 2 * count]
        chosen = near[:1] + self.rng.sample(near[1:], min(len(near) - 1, count - 1)) if near else []
        return [self.tools[place] for place in chosen] or self.rng.sample(self.tools, count)


def tools(options: argparse.Namespace) -> None:
    from _api_tools import api_tools

    found = api_tools(options.packages)
    with gzip.open(options.out, "wt", encoding="utf-8") as file:
        json.dump(found, file)
    print(f"{len(found):,} tools of {len({tool['field'] for tool in found}):,} services and modules")


def prompts(options: argparse.Namespace) -> None:
    import numpy as np
    from tokenizers import Tokenizer

    words = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
    kept: list[Any] = []
    more = list(lines_of(options.tools)) if options.tools else []
    for text in Prompts(options.data, more, options.seed).texts():
        ids = words.encode(text, add_special_tokens=False).ids
        if len(ids) <= LENGTH - ANSWER:
            kept.append(np.array(ids, np.uint16))
        if len(kept) == options.count:
            break
    np.savez_compressed(options.out, tokens=np.concatenate(kept), lengths=np.array([len(each) for each in kept]))
    print(f"{len(kept):,} prompts of {np.mean([len(each) for each in kept]):.0f} tokens")


def answers(options: argparse.Namespace) -> None:
    """The teacher's plans, sampled: half of them greedily."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    from agent_forge.forge.training.sampling import sample
    from agent_forge.learning.sheets import fill_sheets, pack_sheets

    begun = time.perf_counter()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(options.teacher / "model", dtype=dtype).to(device).eval()
    end = json.loads((options.teacher / "kept.json").read_text()).index(2)
    file = np.load(options.prompts)
    tokens, ends = file["tokens"], file["lengths"].cumsum()  # once: each look into the file unpacks it again
    rows = [part.tolist() for part in np.split(tokens, ends[:-1])]
    rows.sort(key=len)
    parts = [rows[at : at + options.batch] for at in range(0, len(rows), options.batch)]
    random.Random(options.seed).shuffle(parts)  # of like length each, and any when the time is up
    made: list[Any] = []
    for number, part in enumerate(parts):
        samples = sample(model, part, max_tokens=ANSWER, temperature=float(number % 2), end=end, seed=number)
        for prompt, answer, ended in zip(part, samples.answers(), samples.ended.tolist(), strict=True):
            if ended:
                made += fill_sheets([], [(prompt, [*answer, end])], LENGTH)
        if time.perf_counter() - begun > options.seconds:
            break
    data = pack_sheets(made, LENGTH)
    arrays = {name: getattr(data, name) for name in ("documents", "positions", "learnt")}
    np.savez(options.out, tokens=data.tokens.astype(np.uint16), **arrays)
    print(f"{len(made):,} answers, {len(data):,} rows of {LENGTH}, {time.perf_counter() - begun:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("tools", "prompts", "answers"))
    for name in ("packages", "data", "tools", "tokenizer", "teacher", "prompts", "out"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--count", type=int, default=60_000)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.what is None:
        print("nothing to do: name `tools`, `prompts` or `answers`")
        return
    {"tools": tools, "prompts": prompts, "answers": answers}[options.what](options)


if __name__ == "__main__":
    main()
