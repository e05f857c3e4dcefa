"""Parsers of the plan-graph sets: requests with the graph of steps or tool calls that answers them."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_forge.curation.lines import open_lines
from agent_forge.curation.records import graph

Fields = dict[str, Any]
_NODE = re.compile(r"^\s*(\d+)\s*[:.]\s*(.+)$", re.MULTILINE)
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


def asynchow(path: Path) -> Iterator[Fields]:
    for number, row in _json_rows(path):
        plan = graph(row["steps"], [tuple(edge) for edge in row["edges"]])
        meta = {"durations_s": row["durations_s_minmax"], "optimal_time_s": row["optimal_time_s_minmax"]}
        yield {"id": row.get("id", number), "input": row["title"], "target": plan, "meta": meta}


def worfbench(path: Path) -> Iterator[Fields]:
    for number, row in _json_rows(path):
        *prompt, answer = row["conversations"]
        nodes = [goal.strip() for _, goal in _NODE.findall(answer["content"].partition("Edge")[0])]
        edges = [(a, b) for a, b in _EDGE.findall(answer["content"]) if a != "START" and b != "END"]
        yield {
            "id": row.get("id", number),
            "input": prompt,
            "target": graph(nodes, edges),
            "meta": {"part": row["source"]},
        }


def ultratool(path: Path) -> Iterator[Fields]:
    for number, row in _json_rows(path):
        names = [node["task"] for node in row["task_nodes"]]
        place = {name: str(at) for at, name in reversed(list(enumerate(names, 1)))}
        edges = [(place[link["source"]], place[link["target"]]) for link in row["task_links"]]
        nodes = [{"id": str(at), "action": name} for at, name in enumerate(names, 1)]
        meta = {"steps": row["task_steps"]}
        yield {
            "id": row.get("id", number),
            "input": row["user_request"].strip(),
            "target": graph(nodes, edges),
            "meta": meta,
        }


def seal_tools(path: Path) -> Iterator[Fields]:
    for number, row in _json_rows(path):
        producers: dict[str, str] = {}
        nodes, edges = [], []
        for at, call in enumerate(row["calling"], 1):
            nodes.append({"id": str(at), "action": call["api"], "args": call["parameters"]})
            used = _API_CALL.findall(json.dumps(call["parameters"]))
            edges += [(producers[name], str(at)) for name in used if name in producers]
            producers |= {name: str(at) for response in call["responses"] for name in _API_CALL.findall(response)}
        yield {"id": row.get("id", number), "input": row["query"], "target": graph(nodes, edges), "meta": {}}


def nestful(path: Path) -> Iterator[Fields]:
    for number, row in _json_rows(path):
        producers: dict[str, str] = {}
        nodes, edges = [], []
        for at, call in enumerate((call for call in row["output"] if call["name"] != "var_result"), 1):
            nodes.append({"id": str(at), "action": call["name"], "args": call["arguments"]})
            used = _VARIABLE.findall(json.dumps(call["arguments"]))
            edges += [(producers[name], str(at)) for name in used if name in producers]
            producers[call.get("label", "")] = str(at)
        yield {"id": number, "input": row["input"], "target": graph(nodes, edges), "meta": {}}


def restbench(path: Path) -> Iterator[Fields]:
    for number, row in _json_rows(path):
        nodes = [{"id": str(at), "action": call} for at, call in enumerate(row["solution"], 1)]
        edges = [(str(at), str(at + 1)) for at in range(1, len(nodes))]
        yield {"id": number, "input": row["query"], "target": graph(nodes, edges), "meta": {}}


def _decomposed(steps: list[str]) -> dict[str, Any]:
    edges = [(used, str(at)) for at, step in enumerate(steps, 1) for used in _HASH.findall(step) if 0 < int(used) < at]
    return graph(steps, edges)


def break_qdmr(path: Path) -> Iterator[Fields]:
    for row in csv.DictReader(io.StringIO(read_text(path), newline="")):
        steps = [step.strip().removeprefix("return ").strip() for step in row["decomposition"].split(";")]
        meta = {"operators": row["operators"]}
        yield {
            "id": row["question_id"],
            "input": row["question_text"].strip(),
            "target": _decomposed(steps),
            "meta": meta,
        }


def strategyqa(path: Path) -> Iterator[Fields]:
    for number, row in _json_rows(path):
        meta = {"plan": _decomposed(row["decomposition"]), "facts": row["facts"]}
        yield {
            "id": row.get("qid", number),
            "input": row["question"],
            "target": "yes" if row["answer"] else "no",
            "meta": meta,
        }


def questions(path: Path) -> Iterator[Fields]:
    """Multi-hop questions with their answers (HotpotQA, 2WikiMultihopQA, movie choices)."""
    for number, row in _json_rows(path):
        yield {"id": row.get("id", number), "input": row["question"], "target": row["answer"], "meta": {}}


def requests(path: Path) -> Iterator[Fields]:
    """TaskBench requests, whose graphs are held back."""
    for number, row in _json_rows(path):
        yield {"id": row.get("id", number), "input": row["user_request"], "target": None, "meta": {}}
