"""Parsers of the plan-graph sets: requests with the graph of steps or tool calls that answers them."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from agent_forge.curation.lines import open_lines
from agent_forge.curation.records import graph


class ParsedRow(NamedTuple):
    """What a parser finds in a row; the data set adds the rest of the record."""

    id: Any
    input: Any
    target: Any
    meta: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    split: str = ""


_NODE = re.compile(r"^[^\S\n]*(\d+)[^\S\n]*[:.]\s*(.+)$", re.MULTILINE)
_EDGE = re.compile(r"\((START|\d+)\s*,\s*(END|\d+)\)")
_HASH = re.compile(r"#(\d+)")
_API_CALL = re.compile(r"API_call_(\d+)")
_VARIABLE = re.compile(r"\$?(var\d+)")


def read_text(path: Path) -> str:
    with open_lines(path) as lines:
        return b"".join(lines).decode("utf-8-sig")


def _json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """The rows of a JSON array or of JSONL."""
    text = read_text(path)
    if text.lstrip().startswith("["):
        yield from enumerate(json.loads(text))
    else:
        yield from enumerate(json.loads(line) for line in text.split("\n") if line.strip())


def asynchow(path: Path) -> Iterator[ParsedRow]:
    for number, row in _json_rows(path):
        plan = graph(row["steps"], [tuple(edge) for edge in row["edges"]])
        meta = {"durations_s": row["durations_s_minmax"], "optimal_time_s": row["optimal_time_s_minmax"]}
        yield ParsedRow(row.get("id", number), row["title"], plan, meta)


def worfbench(path: Path) -> Iterator[ParsedRow]:
    for number, row in _json_rows(path):
        *prompt, answer = row["conversations"]
        nodes = [goal.strip() for _, goal in _NODE.findall(answer["content"].partition("Edge")[0])]
        edges = [(a, b) for a, b in _EDGE.findall(answer["content"]) if a != "START" and b != "END"]
        yield ParsedRow(row.get("id", number), prompt, graph(nodes, edges), {"part": row["source"]})


def ultratool(path: Path) -> Iterator[ParsedRow]:
    for number, row in _json_rows(path):
        names = [node["task"] for node in row["task_nodes"]]
        place = {name: str(at) for at, name in reversed(list(enumerate(names, 1)))}
        edges = [(place[link["source"]], place[link["target"]]) for link in row["task_links"]]
        nodes = [{"id": str(at), "action": name} for at, name in enumerate(names, 1)]
        meta = {"steps": row["task_steps"]}
        yield ParsedRow(row.get("id", number), row["user_request"].strip(), graph(nodes, edges), meta)


def seal_tools(path: Path) -> Iterator[ParsedRow]:
    for number, row in _json_rows(path):
        producers: dict[str, str] = {}
        nodes, edges = [], []
        for at, call in enumerate(row["calling"], 1):
            nodes.append({"id": str(at), "action": call["api"], "args": call["parameters"]})
            used = _API_CALL.findall(json.dumps(call["parameters"]))
            edges += [(producers[name], str(at)) for name in used if name in producers]
            producers |= {name: str(at) for response in call["responses"] for name in _API_CALL.findall(response)}
        yield ParsedRow(row.get("id", number), row["query"], graph(nodes, edges))


def nestful(path: Path) -> Iterator[ParsedRow]:
    for number, row in _json_rows(path):
        producers: dict[str, str] = {}
        nodes, edges = [], []
        for at, call in enumerate((call for call in row["output"] if call["name"] != "var_result"), 1):
            nodes.append({"id": str(at), "action": call["name"], "args": call["arguments"]})
            used = _VARIABLE.findall(json.dumps(call["arguments"]))
            edges += [(producers[name], str(at)) for name in used if name in producers]
            producers[call.get("label", "")] = str(at)
        yield ParsedRow(number, row["input"], graph(nodes, edges))


def restbench(path: Path) -> Iterator[ParsedRow]:
    for number, row in _json_rows(path):
        nodes = [{"id": str(at), "action": call} for at, call in enumerate(row["solution"], 1)]
        edges = [(str(at), str(at + 1)) for at in range(1, len(nodes))]
        yield ParsedRow(number, row["query"], graph(nodes, edges))


def _decomposed(steps: list[str]) -> dict[str, Any]:
    edges = [(used, str(at)) for at, step in enumerate(steps, 1) for used in _HASH.findall(step) if 0 < int(used) < at]
    return graph(steps, edges)


def break_qdmr(path: Path) -> Iterator[ParsedRow]:
    for row in csv.DictReader(io.StringIO(read_text(path), newline="")):
        steps = [step.strip().removeprefix("return ").strip() for step in row["decomposition"].split(";")]
        meta = {"operators": row["operators"]}
        yield ParsedRow(row["question_id"], row["question_text"].strip(), _decomposed(steps), meta)


def strategyqa(path: Path) -> Iterator[ParsedRow]:
    for number, row in _json_rows(path):
        meta = {"plan": _decomposed(row["decomposition"]), "facts": row["facts"]}
        yield ParsedRow(row.get("qid", number), row["question"], "yes" if row["answer"] else "no", meta)


def questions(path: Path) -> Iterator[ParsedRow]:
    """Multi-hop questions with their answers (HotpotQA, 2WikiMultihopQA, movie choices)."""
    for number, row in _json_rows(path):
        yield ParsedRow(row.get("id", number), row["question"], row["answer"])


def requests(path: Path) -> Iterator[ParsedRow]:
    """TaskBench requests, whose graphs are held back."""
    for number, row in _json_rows(path):
        yield ParsedRow(row.get("id", number), row["user_request"], None)
