"""Public data sets as records, read from a local folder."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_forge.curation import plan_sets
from agent_forge.curation.plan_sets import ParsedRow, read_text
from agent_forge.curation.records import Record
from agent_forge.errors import DataError, UsageError

Parser = Callable[[Path], Iterator[ParsedRow]]


def _jsonl(path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(read_text(path).split("\n")):  # U+2028 may stand in a JSON string
        if line.strip():
            yield number, json.loads(line)


def gsm8k(path: Path) -> Iterator[ParsedRow]:
    for number, row in _jsonl(path):
        worked, _, answer = row["answer"].partition("####")
        steps = [line for line in worked.splitlines() if line.strip()]
        meta = {"solution": worked.strip(), "steps": steps}
        yield ParsedRow(number, row["question"], answer.strip().replace(",", ""), meta)


def _fill(text: str, numbers: list[str]) -> str:
    return re.sub(r"\bnumber(\d+)\b", lambda hit: f"{float(numbers[int(hit[1])]):g}", text)


def svamp(path: Path) -> Iterator[ParsedRow]:
    """The published CSV splits, or SVAMP.json itself."""
    if path.name.startswith("SVAMP"):
        for number, row in enumerate(json.loads(read_text(path))):
            question = f"{row['Body'].strip()} {row['Question'].strip()}"
            yield ParsedRow(number, question, f"{row['Answer']:g}", {"equation": row["Equation"]})
        return
    for number, row in enumerate(csv.DictReader(io.StringIO(read_text(path), newline=""))):
        numbers = row["Numbers"].split()
        meta = {"equation": _fill(row["Equation"], numbers)}
        yield ParsedRow(number, _fill(row["Question"], numbers), f"{float(row['Answer']):g}", meta)


def choice(path: Path) -> Iterator[ParsedRow]:
    """ARC and PIQA as question, choices and the number of the right one; also ARC's own published form."""
    for number, row in _jsonl(path):
        if "answerKey" in row:
            labels = [item["label"] for item in row["question"]["choices"]]
            question, answer = row["question"]["stem"], labels.index(row["answerKey"])
            choices = [item["text"] for item in row["question"]["choices"]]
        else:
            question, choices, answer = row.get("question") or row["goal"], row["choices"], row["answer"]
        lettered = "\n".join(f"{chr(65 + at)}. {text}" for at, text in enumerate(choices))
        meta = {"question": question, "choices": choices}
        yield ParsedRow(row.get("id", number), f"{question}\n{lettered}", chr(65 + answer), meta)


def piqa_published(path: Path) -> Iterator[ParsedRow]:
    """PIQA's own form: goal, sol1, sol2, with the labels in a file beside it."""
    labels = read_text(path.with_name(path.name.replace(".jsonl", "-labels.lst"))).split()
    for (number, row), label in zip(_jsonl(path), labels, strict=True):
        choices = [row["sol1"], row["sol2"]]
        lettered = f"A. {choices[0]}\nB. {choices[1]}"
        meta = {"question": row["goal"], "choices": choices}
        yield ParsedRow(number, f"{row['goal']}\n{lettered}", "AB"[int(label)], meta)


def mbpp(path: Path) -> Iterator[ParsedRow]:
    for number, row in _jsonl(path):
        task = row.get("task_id", number)
        meta = {"tests": row["test_list"], "setup": row.get("test_setup_code", "")}
        yield ParsedRow(task, row["text"], row["code"], meta, _mbpp_split(int(task)))


def _mbpp_split(task: int) -> str:
    """The official split by number: 1-10 prompts, 11-510 test, 511-600 validation, 601-974 train."""
    return "prompt" if task <= 10 else "test" if task <= 510 else "validation" if task <= 600 else "train"


def humaneval(path: Path) -> Iterator[ParsedRow]:
    for number, row in _jsonl(path):
        meta = {"tests": row["test"], "entry_point": row["entry_point"]}
        yield ParsedRow(row.get("task_id", number), row["prompt"], row["canonical_solution"], meta)


@dataclass(frozen=True, slots=True)
class Part:
    """Files of a data set: how they are called in its folder (`*` allowed), their split, how they are read."""

    pattern: str
    split: str
    parse: Parser


@dataclass(frozen=True, slots=True)
class DataSet:
    """A public data set: what it is, under which licence, where it comes from and what its files are called."""

    name: str
    task: str
    licence: str
    source: str
    parts: tuple[Part, ...]
    folder: str = ""


_PLAN = "plan_graph"
DATASETS: dict[str, DataSet] = {
    item.name: item
    for item in (
        DataSet(
            "gsm8k", "arithmetic", "MIT", "https://github.com/openai/grade-school-math",
            (Part("train.jsonl*", "train", gsm8k), Part("test.jsonl*", "test", gsm8k)),
        ),
        DataSet(
            "svamp", "arithmetic", "MIT; ASDiv part CC BY-NC 4.0", "https://github.com/arkilpatel/SVAMP",
            (
                Part("*train.csv*", "train", svamp),
                Part("*dev.csv*", "validation", svamp),
                Part("SVAMP.json*", "test", svamp),
            ),
        ),
        DataSet(
            "arc_easy", "multiple_choice", "CC BY-SA 4.0", "https://allenai.org/data/arc",
            (
                Part("*[tT]rain.jsonl*", "train", choice),
                Part("*[dD]ev.jsonl*", "validation", choice),
                Part("*[tT]est.jsonl*", "test", choice),
            ),
        ),
        DataSet(
            "arc_challenge", "multiple_choice", "CC BY-SA 4.0", "https://allenai.org/data/arc",
            (
                Part("*[tT]rain.jsonl*", "train", choice),
                Part("*[dD]ev.jsonl*", "validation", choice),
                Part("*[tT]est.jsonl*", "test", choice),
            ),
        ),
        DataSet(
            "piqa", "multiple_choice", "AFL 3.0", "https://yonatanbisk.com/piqa",
            (Part("valid_half.jsonl*", "validation", choice), Part("valid.jsonl*", "validation", piqa_published)),
        ),
        DataSet(
            "mbpp", "code", "CC BY 4.0", "https://github.com/google-research/google-research/tree/master/mbpp",
            (Part("mbpp.jsonl*", "", mbpp),),
        ),
        DataSet(
            "humaneval", "code", "MIT", "https://github.com/openai/human-eval",
            (Part("HumanEval.jsonl*", "test", humaneval),),
        ),
        DataSet(
            "asynchow", "plan", "MIT", "https://github.com/fangru-lin/graph-llm-asynchow-plan",
            (Part("asynchow.jsonl*", "train", plan_sets.asynchow),), _PLAN,
        ),
        DataSet(
            "worfbench", "plan", "MIT", "https://github.com/zjunlp/WorfBench",
            (Part("*.json*", "train", plan_sets.worfbench),), _PLAN,
        ),
        DataSet(
            "ultratool", "plan", "MIT", "https://github.com/JoeYing1019/UltraTool",
            (Part("train.jsonl*", "train", plan_sets.ultratool),), _PLAN,
        ),
        DataSet(
            "seal_tools", "plan", "Apache-2.0", "https://github.com/fairyshine/Seal-Tools",
            (Part("dev.jsonl*", "validation", plan_sets.seal_tools),), _PLAN,
        ),
        DataSet(
            "nestful", "plan", "Apache-2.0", "https://github.com/IBM/NESTFUL",
            (Part("*-data.json*", "train", plan_sets.nestful),), _PLAN,
        ),
        DataSet(
            "restbench", "plan", "MIT", "https://github.com/Yifan-Song793/RestGPT",
            (Part("tmdb.json*", "train", plan_sets.restbench),), _PLAN,
        ),
        DataSet(
            "break_qdmr", "plan", "MIT", "https://github.com/allenai/Break",
            (Part("QDMR*_dev.csv*", "validation", plan_sets.break_qdmr),), _PLAN,
        ),
        DataSet(
            "strategyqa", "multi_hop", "MIT", "https://github.com/eladsegal/strategyqa",
            (Part("train.json*", "train", plan_sets.strategyqa),), _PLAN,
        ),
        DataSet(
            "llmcompiler", "multi_hop", "MIT; HotpotQA text CC BY-SA 4.0", "https://github.com/SqueezeAILab/LLMCompiler",
            (
                Part("hotpotqa_comparison.json*", "validation", plan_sets.questions),
                Part("movie_recommendations_formatted.json*", "validation", plan_sets.questions),
            ), _PLAN,
        ),
        DataSet(
            "mhqa", "multi_hop", "Apache-2.0; CC BY-SA 4.0", "https://hotpotqa.github.io",
            (Part("*_dev_*.json*", "validation", plan_sets.questions),), _PLAN,
        ),
        DataSet(
            "taskbench", "plan", "MIT", "https://github.com/microsoft/JARVIS/tree/main/taskbench",
            (Part("*/user_requests.json*", "train", plan_sets.requests),), _PLAN,
        ),
    )
}  # fmt: skip
_ALIASES = {"taskbench": "taskbench_nolabels"}


def dataset(name: str) -> DataSet:
    """The data set called `name`. Raises UsageError."""
    try:
        return DATASETS[name]
    except KeyError:
        raise UsageError(f"there is no data set {name!r}", fix=f"Use one of {', '.join(DATASETS)}") from None


def load(name: str, folder: str | os.PathLike[str], *, split: str | None = None) -> Iterator[Record]:
    """The records of a data set whose files lie in `folder` (or in `folder/name`, `folder/plan_graph/name`).

    Raises UsageError for an unknown name, DataError if the folder has none of its files, a file has another shape, or
    no row belongs to the `split`.
    """
    info = dataset(name)
    files = _files(info, Path(folder))
    if not files:
        patterns = ", ".join(part.pattern for part in info.parts)
        raise DataError(
            f"there are no files of {name} ({patterns})", where=str(folder), fix=f"They are published at {info.source}"
        )
    empty = True
    for path, part in files:
        for record in _records(info, path, part, split):
            empty = False
            yield record
    if split is not None and empty:
        raise DataError(f"{name} has no split {split!r}", where=str(folder), fix="Leave out --split")


def _files(info: DataSet, folder: Path) -> list[tuple[Path, Part]]:
    alias = _ALIASES.get(info.name, info.name)
    for place in (folder / alias, folder / info.folder / alias, folder):
        files = [(path, part) for part in info.parts for path in sorted(place.glob(part.pattern)) if path.is_file()]
        if files:
            return files
    return []


def _records(info: DataSet, path: Path, part: Part, split: str | None) -> Iterator[Record]:
    stem = path.name.partition(".")[0]
    stem = f"{path.parent.name}-{stem}" if "/" in part.pattern else stem
    seen: Counter[str] = Counter()
    try:
        for row in part.parse(path):
            place = row.split or part.split
            seen[str(row.id)] += 1
            if split in (None, place):
                again = f"#{seen[str(row.id)]}" if seen[str(row.id)] > 1 else ""  # the source repeats a few ids
                identity = f"{info.name}/{stem}/{row.id}{again}"
                yield Record(identity, info.task, row.input, row.target, place, info.licence, info.source, row.meta)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError(
            f"the file does not have the shape of {info.name} ({type(error).__name__}: {error})", where=str(path)
        ) from error
