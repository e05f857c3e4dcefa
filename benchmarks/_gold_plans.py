"""The shared gold plan graphs as one shape: a request, the tools it may use, the gold nodes and edges.

Every set is split by a hash of the row's own id, so the split never changes: of 10 rows 6 may be inspected while
writing rules (and copied by the control), 4 are held out and only scored.
"""

from __future__ import annotations

import ast
import csv
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "plan_graph"
HELD_OUT_OF_10 = 4


@dataclass(frozen=True)
class ToolCard:
    """What a planner may know about a tool; there is no function to call."""

    name: str
    description: str = ""
    schema: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GoldPlan:
    set: str
    id: str
    request: str
    nodes: tuple[str, ...]  # text of each step, or the name of its tool when `by_tool`
    edges: frozenset[tuple[int, int]]
    by_tool: bool = False
    tools: tuple[ToolCard, ...] = ()
    durations: tuple[float, ...] | None = None

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(f"{self.set}/{self.id}".encode()).digest()

    @property
    def held_out(self) -> bool:
        return int.from_bytes(self.digest[:4], "big") % 10 < HELD_OUT_OF_10


def load(name: str) -> list[GoldPlan]:
    """The rows of one set, ordered by digest, so that any prefix is a fair sample."""
    return sorted(SETS[name](), key=lambda row: row.digest)


def _text(path: str) -> str:
    plain, packed = DATA / path, DATA / f"{path}.gz"
    if packed.exists():
        with gzip.open(packed, "rt", encoding="utf-8") as file:
            return file.read()
    return plain.read_text(encoding="utf-8")


def _rows(path: str) -> list[dict[str, Any]]:
    text = _text(path)
    return [json.loads(line) for line in text.splitlines() if line.strip()] if "jsonl" in path else json.loads(text)


def _reference_edges(steps: list[str]) -> frozenset[tuple[int, int]]:
    return frozenset(
        (int(n) - 1, i) for i, step in enumerate(steps) for n in re.findall(r"#(\d+)", step) if 0 < int(n) <= i
    )


def _break(path: str, name: str) -> Iterator[GoldPlan]:
    for row in csv.DictReader(_text(path).splitlines()):
        steps = [" ".join(part.split()[1:]) for part in row["decomposition"].split(";")]
        yield GoldPlan(name, row["question_id"], row["question_text"].strip(), tuple(steps), _reference_edges(steps))


def _strategyqa() -> Iterator[GoldPlan]:
    for row in _rows("strategyqa/train.json"):
        steps = row["decomposition"]
        yield GoldPlan("strategyqa", row["qid"], row["question"], tuple(steps), _reference_edges(steps))


def _asynchow() -> Iterator[GoldPlan]:
    for row in _rows("asynchow/asynchow.jsonl"):
        listing = "\n".join(f"{i}. {step}" for i, step in enumerate(row["steps"], 1))
        edges = frozenset((int(a) - 1, int(b) - 1) for a, b in row["edges"])
        seconds = tuple(row["durations_s_minmax"][str(i)][0] for i in range(1, len(row["steps"]) + 1))
        request = f"{row['title']}. The steps are:\n{listing}"
        yield GoldPlan("asynchow", str(row["id"]), request, tuple(row["steps"]), edges, durations=seconds)


def _ultratool() -> Iterator[GoldPlan]:
    tools = tuple(ToolCard(node["id"], node["desc"]) for node in json.loads(_text("ultratool/tool_desc.json"))["nodes"])
    for row in _rows("ultratool/train.jsonl"):
        names = [node["task"] for node in row["task_nodes"]]
        if len(set(names)) < len(names):
            continue  # links name tools, so they are ambiguous where a tool occurs twice
        edges = frozenset((names.index(e["source"]), names.index(e["target"])) for e in row["task_links"])
        yield GoldPlan("ultratool", row["id"], row["user_request"].strip(), tuple(names), edges, True, tools)


def _seal_tools() -> Iterator[GoldPlan]:
    tools = tuple(
        ToolCard(t["api_name"], t["api_description"], {"properties": t["parameters"], "required": t["required"]})
        for t in _rows("seal_tools/tool.jsonl")
    )
    for row in _rows("seal_tools/dev.jsonl"):
        maker = {label: i for i, call in enumerate(row["calling"]) for label in call["responses"]}
        edges = set()
        for i, call in enumerate(row["calling"]):
            used = re.findall(r"API_call_\d+", json.dumps(call["parameters"]))
            edges |= {(maker[label], i) for label in used if maker.get(label, i) < i}
        names = tuple(call["api"] for call in row["calling"])
        yield GoldPlan("seal_tools", row["id"], row["query"], names, frozenset(edges), True, tools)


def _nestful_tool(spec: dict[str, Any]) -> ToolCard:
    parameters = spec.get("query_parameters") or spec.get("arguments") or {}
    required = [name for name, value in parameters.items() if value.get("required")]
    schema = {"properties": parameters, "required": required, "outputs": list(spec.get("output_parameters", {}))}
    return ToolCard(spec["name"], spec["description"], schema)


def _nestful() -> Iterator[GoldPlan]:
    for part in ("glaive", "sgd"):
        tools = tuple(map(_nestful_tool, json.loads(_text(f"nestful/non-executable-{part}-spec.json"))))
        for number, row in enumerate(_rows(f"nestful/non-executable-{part}-data.json")):
            calls = [call for call in row["output"] if call["name"] != "var_result"]
            label = {call["label"]: i for i, call in enumerate(calls)}
            edges = {
                (label[v], i)
                for i, call in enumerate(calls)
                for v in re.findall(r"\$(var\d+)", json.dumps(call["arguments"]))
                if label.get(v, i) < i
            }
            names = tuple(call["name"] for call in calls)
            yield GoldPlan("nestful", f"{part}-{number}", row["input"], names, frozenset(edges), True, tools)


_NODE = re.compile(r"^\s*(\d+)\s*[:.]\s*(.+)$", re.MULTILINE)
_EDGE = re.compile(r"\((\d+)\s*,\s*(\d+)\)")
_TOOL_LIST = re.compile(r"(?:api_list|api list you can use|tool list you can select from)\s*:\s*(\[.*)", re.DOTALL)
_TASK = re.compile(r"(?:Task:|Your task is to:|My problem is:|Instruction: \[SEP\])\s*(.*)", re.DOTALL)
_TAIL = re.compile(
    r"(The api list|api_list:|Output:\s|The tool list|The action list|The database tables|\[SEP\] Search).*", re.DOTALL
)


def _worf_tools(user: str) -> tuple[ToolCard, ...]:
    match = _TOOL_LIST.search(user)
    if not match:
        return ()
    try:
        tools = ast.literal_eval(match.group(1).strip())
    except (ValueError, SyntaxError):
        return ()
    return tuple(
        ToolCard(t.get("name") or t.get("api_name"), t.get("description") or t.get("api_description") or "")
        for t in tools
    )


def _worfbench(part: str) -> Iterator[GoldPlan]:
    for row in json.loads(_text(f"worfbench/{part}.json")):
        user, gold = (message["content"] for message in row["conversations"][-2:])
        head, _, tail = gold.partition("Edge")
        nodes = {int(n): text.strip() for n, text in _NODE.findall(head)}
        index = {n: i for i, n in enumerate(nodes)}
        edges = frozenset(
            (index[int(a)], index[int(b)]) for a, b in _EDGE.findall(tail) if {int(a), int(b)} <= index.keys()
        )
        request = _TAIL.sub("", (_TASK.search(user) or re.search(r"(.*)", user, re.DOTALL)).group(1)).strip()
        if nodes:
            yield GoldPlan(f"worf_{part}", row["id"], request, tuple(nodes.values()), edges, tools=_worf_tools(user))


SETS: dict[str, Callable[[], Iterator[GoldPlan]]] = {
    "break_high": lambda: _break("break_qdmr/QDMR-high-level_dev.csv", "break_high"),
    "break_low": lambda: _break("break_qdmr/QDMR_dev.csv", "break_low"),
    "strategyqa": _strategyqa,
    "asynchow": _asynchow,
    "ultratool": _ultratool,
    "seal_tools": _seal_tools,
    "nestful": _nestful,
    **{
        f"worf_{part}": (lambda part=part: _worfbench(part))
        for part in ("lumos", "toolbench", "toolalpaca", "seal_tools", "intercodesql", "webshop", "alfworld", "os")
    },
}
