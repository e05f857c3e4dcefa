"""Public plan sets as rows: each loader reads the files of one set, as their publishers or our data folder have them.

BFCL has no loader here: it is a yardstick, and never trained on (`benchmarks/forged_planner.py` reads it).
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agent_forge.agents.grounding import as_number
from agent_forge.agents.tools.schemas import JSON_TYPES
from agent_forge.errors import DataError
from agent_forge.learning.rows import PlanRow

_SGD_REFERENCE = re.compile(r"\{(\d+)\.(\w+)\}")
_NESTFUL_REFERENCE = re.compile(r"\$var_?(\d+)(?:\.([\w.\[\]]+))?\$")
_SEAL_REFERENCE = re.compile(r"API_call_(\d+)")


def read_set(name: str, folder: Path) -> list[PlanRow]:
    """The rows of a set by its name, from the data folder. Raises DataError."""
    if name not in SETS:
        raise DataError(f"there is no plan set {name!r}", fix=f"One of {', '.join(SETS)}")
    try:
        return [row for row in SETS[name](folder) if not row.faults()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"the plan set {name!r} cannot be read: {error}", where=str(folder)) from error


def function_of(
    name: str, description: str, parameters: Mapping[str, Any], required: list[str], returns: Any
) -> dict[str, Any]:
    """A function schema from a flat table of parameters with types in any of the usual spellings."""
    properties = {key: parameter_schema(each) for key, each in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": [key for key in required if key in properties]}
    return {"name": name, "description": description, "parameters": schema} | ({"returns": returns} if returns else {})


def parameter_schema(parameter: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a parameter that names its type as Python or another language does."""
    kind = str(parameter.get("type") or "string").lower()
    schema: dict[str, Any] = {"type": JSON_TYPES.get(kind, kind)}
    schema |= {key: parameter[key] for key in ("description", "enum", "default") if parameter.get(key) is not None}
    if isinstance(parameter.get("items"), Mapping):
        schema["items"] = parameter_schema(parameter["items"])
    return schema


def sgd_tools(folder: Path, split: str) -> dict[tuple[str, str], dict[str, Any]]:
    """SGD's intents as functions, by service and name."""
    tools = json.loads(_text(folder / "plan_graph/sgd" / f"{split}_tools.json"))
    return {
        (tool["service"], tool["name"]): function_of(
            tool["name"], tool["description"], tool["parameters"], tool["required"], tool["returns"]
        )
        for tool in tools
    }


def sgd_names(folder: Path, split: str) -> dict[str, list[Mapping[str, Any]]]:
    """SGD-X: the paraphrased names and descriptions of each service."""
    variants = defaultdict(list)
    for entry in _lines(folder / "plan_graph/sgd/renamed.jsonl"):
        if entry["split"] == split:
            variants[entry["service"]].append(entry)
    return variants


def read_sgd(folder: Path, split: str = "train") -> Iterator[PlanRow]:
    tools = sgd_tools(folder, split)
    by_service: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for (service, _), function in tools.items():
        by_service[service].append(function)
    for entry in _lines(folder / f"plan_graph/sgd/{split}.jsonl"):
        shown = {function["name"]: function for service in entry["services"] for function in by_service[service]}
        calls = []
        for call in entry["calls"]:
            order = shown[call["tool"]]["parameters"]["properties"]
            args = {name: _sgd_value(call["args"][name]) for name in order if name in call["args"]}
            calls.append({"tool": call["tool"], "args": args})
        meta = {"services": entry["services"], "service_of": [call["service"] for call in entry["calls"]]}
        yield PlanRow(entry["id"], entry["request"], tuple(shown.values()), tuple(calls), source="sgd", meta=meta)


def _sgd_value(value: str) -> Any:
    match = _SGD_REFERENCE.fullmatch(value)
    return {"ref": int(match[1]), "field": match[2]} if match else value


def read_snips(folder: Path) -> Iterator[PlanRow]:
    entries = list(_lines(folder / "snips/train.jsonl"))
    parameters: dict[str, dict[str, Any]] = defaultdict(dict)
    for entry in entries:
        for name in entry["args"]:
            parameters[entry["tool"]].setdefault(name, {"type": "string"})
    tools = tuple(function_of(name, "", each, [], None) for name, each in sorted(parameters.items()))
    for entry in entries:
        args = {name: entry["args"][name] for name in parameters[entry["tool"]] if name in entry["args"]}
        yield PlanRow(entry["id"], entry["request"], tools, ({"tool": entry["tool"], "args": args},), source="snips")


def seal_tools(folder: Path) -> dict[str, dict[str, Any]]:
    """Seal-Tools' functions by name; `field` is the domain, by which rows are split."""
    tools = {}
    for entry in _lines(folder / "plan_graph/seal_tools/tool.jsonl"):
        function = function_of(
            entry["api_name"],
            entry["api_description"],
            entry["parameters"],
            entry["required"],
            list(entry["responses"]),
        )
        tools[entry["api_name"]] = {**function, "field": entry["field"]}
    return tools


def read_seal(folder: Path) -> Iterator[PlanRow]:
    tools = seal_tools(folder)
    for entry in _lines(folder / "plan_graph/seal_tools/dev.jsonl"):
        if any(call["api"] not in tools for call in entry["calling"]):
            continue
        origin: dict[str, dict[str, Any]] = {}  # what each numbered response is: a call and one of its fields
        calls = []
        for number, call in enumerate(entry["calling"], 1):
            function = tools[call["api"]]
            kinds = function["parameters"]["properties"]
            args = {
                name: _seal_value(call["parameters"][name], kinds[name]["type"], origin)
                for name in kinds
                if name in call["parameters"]
            }
            calls.append({"tool": call["api"], "args": args})
            for label, field in zip(call["responses"], function["returns"], strict=False):
                origin[label] = {"ref": number, "field": field}
        shown = tuple({call["tool"]: tools[call["tool"]] for call in calls}.values())
        yield PlanRow(entry["id"], entry["query"], shown, tuple(calls), source="seal_tools")


def _seal_value(value: Any, kind: str, origin: Mapping[str, Mapping[str, Any]]) -> Any:
    if isinstance(value, str):
        match = _SEAL_REFERENCE.fullmatch(value.strip())
        if match:
            return origin.get(value.strip(), value)
        if kind in ("integer", "number"):
            number = as_number(value.strip().lstrip("$"))
            return value if number is None else number
        if kind == "boolean":
            return value.strip().lower() == "true"
    return value


def nestful_tools(folder: Path, name: str) -> dict[str, dict[str, Any]]:
    tools = {}
    for entry in json.loads(_text(folder / f"plan_graph/nestful/{name}-spec.json")):
        parameters = entry.get("query_parameters") or entry.get("arguments") or {}
        table = {
            key: {
                "type": each.get("type"), "description": each.get("description"),
                "enum": each.get("allowed_values") or None, "default": each.get("default_value"),
            }
            for key, each in parameters.items()
        }  # fmt: skip
        required = [key for key, each in parameters.items() if each.get("required")]
        returns = list(entry.get("output_parameters") or ())
        tools[entry["name"]] = function_of(entry["name"], entry["description"], table, required, returns)
    return tools


def read_nestful(folder: Path) -> Iterator[PlanRow]:
    for name in ("non-executable-glaive", "non-executable-sgd"):
        tools = nestful_tools(folder, name)
        for index, entry in enumerate(json.loads(_text(folder / f"plan_graph/nestful/{name}-data.json"))):
            output = [call for call in entry["output"] if call["name"] != "var_result"]
            if any(call["name"] not in tools for call in output):
                continue
            numbers = {call["label"].replace("_", ""): number for number, call in enumerate(output, 1)}
            calls = [
                {
                    "tool": call["name"],
                    "args": {key: _nestful_value(each, numbers) for key, each in call["arguments"].items()},
                }
                for call in output
            ]
            shown = tuple({call["tool"]: tools[call["tool"]] for call in calls}.values())
            yield PlanRow(f"{name}-{index}", entry["input"], shown, tuple(calls), source="nestful")


def _nestful_value(value: Any, numbers: Mapping[str, int]) -> Any:
    if isinstance(value, list):
        return [_nestful_value(each, numbers) for each in value]
    match = _NESTFUL_REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return {"ref": numbers[f"var{match[1]}"], "field": match[2]} if match else value


def ultratool_tools(folder: Path) -> dict[str, dict[str, Any]]:
    nodes = json.loads(_text(folder / "plan_graph/ultratool/tool_desc.json"))["nodes"]
    return {node["id"]: function_of(node["id"], node["desc"], {}, [], None) for node in nodes}


def read_ultratool(folder: Path) -> Iterator[PlanRow]:
    tools = ultratool_tools(folder)
    for entry in _lines(folder / "plan_graph/ultratool/train.jsonl"):
        names = [node["task"] for node in entry["task_nodes"]]
        place = {name: number for number, name in enumerate(names, 1)}
        calls = [
            {
                "tool": name,
                "args": {},
                "after": [place[link["source"]] for link in entry["task_links"] if link["target"] == name],
            }
            for name in names
        ]
        shown = tuple(tools[name] for name in dict.fromkeys(names))
        yield PlanRow(f"ultratool-{entry['id']}", entry["user_request"], shown, tuple(calls), source="ultratool")


def read_break(folder: Path, name: str = "QDMR-high-level_dev") -> Iterator[PlanRow]:
    for entry in csv.DictReader(io.StringIO(_text(folder / f"plan_graph/break_qdmr/{name}.csv"))):
        steps = [" ".join(step.split()).removeprefix("return ") for step in entry["decomposition"].split(";")]
        yield PlanRow(entry["question_id"], entry["question_text"], steps=tuple(steps), source="break")


def _text(path: Path) -> str:
    packed = path.with_name(path.name + ".gz")
    if packed.exists():
        with gzip.open(packed, "rt", encoding="utf-8") as file:
            return file.read()
    return path.read_text(encoding="utf-8")


def _lines(path: Path) -> Iterator[Any]:
    for line in _text(path).splitlines():
        if line.strip():
            yield json.loads(line)


SETS: dict[str, Callable[[Path], Iterator[PlanRow]]] = {
    "sgd": read_sgd,
    "snips": read_snips,
    "seal_tools": read_seal,
    "nestful": read_nestful,
    "ultratool": read_ultratool,
    "break": read_break,
}


def split_rows(rows: list[PlanRow], share: float, seed: int) -> tuple[list[PlanRow], list[PlanRow]]:
    """Training and validation rows, by a seeded shuffle."""
    order = random.Random(seed).sample(rows, len(rows))
    cut = round(len(order) * share)
    return order[cut:], order[:cut]
