"""Tools as other people describe theirs: some ten thousand functions from the documents inside Python packages.

`botocore` carries the operations of every AWS service, `google-api-python-client` the methods of every Google API (both
Apache-2.0), and the docstrings of scientific packages (BSD, MIT) say what their functions take. Only parameters with
plain types are kept. None of these has anything to do with BFCL.
"""

from __future__ import annotations

import ast
import gzip
import html
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Tool = dict[str, Any]
MOST = 25  # of one service or module
PARAMETERS = 5
ABOUT, SAID = range(15, 161), 110  # letters of a tool's description, most of a parameter's
PAGING = {"alt", "clienttoken", "dryrun", "fields", "key", "marker", "maxresults", "nexttoken", "pagesize", "pagetoken",
          "prettyprint", "quotauser", "readmask", "requestid", "updatemask"}  # fmt: skip
PLAIN = {"string": "string", "timestamp": "string", "boolean": "boolean", "integer": "integer", "long": "integer",
         "number": "number", "float": "number", "double": "number"}  # fmt: skip
NUMPY = (("int", "integer"), ("float", "number"), ("scalar", "number"), ("bool", "boolean"), ("str", "string"))


def api_tools(folder: Path, seed: int = 0) -> list[Tool]:
    """The tools of all packages that were unpacked into a folder, at most MOST of each service or module."""
    rng, found = random.Random(seed), dict[tuple[str, str], Tool]()
    for tool in [*aws(folder / "botocore" / "data"), *google(folder / "googleapiclient"), *python(folder)]:
        found.setdefault((tool["name"], tool["description"]), tool)
    fields: dict[str, list[Tool]] = {}
    for tool in found.values():
        fields.setdefault(tool["field"], []).append(tool)
    return [tool for tools in fields.values() for tool in rng.sample(tools, min(len(tools), MOST))]


def tools_of(
    field: str, name: str, about: str, given: Mapping[str, Tool | None], required: Sequence[str]
) -> Iterator[Tool]:
    """The tool, if it can be said in a line and all that it requires is plain."""
    parameters = {key: schema for key, schema in given.items() if schema and key.replace("_", "") not in PAGING}
    needed = [key for key in required if key.replace("_", "") not in PAGING]
    if len(about) not in ABOUT or not about.isascii() or len(name) > 48 or not parameters:
        return
    if len(needed) > PARAMETERS or not set(needed) <= set(parameters) or not all(key.isidentifier() for key in given):
        return
    shown = [*needed, *(key for key in parameters if key not in needed)][:PARAMETERS]
    schema = {"type": "object", "properties": {key: parameters[key] for key in shown}, "required": needed or shown[:1]}
    yield {"name": name, "description": about, "parameters": schema, "field": field}


def aws(folder: Path) -> Iterator[Tool]:
    for file in sorted(folder.glob("*/*/service-2.json*")):
        document = json.loads(gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes())
        shapes = document["shapes"]
        for name, operation in document["operations"].items():
            members = shapes[operation["input"]["shape"]] if "input" in operation else {}
            given = {
                snake(key): plain({**shapes[member["shape"]], **member}, shapes)
                for key, member in members.get("members", {}).items()
            }
            required = [snake(key) for key in members.get("required", ())]
            yield from tools_of(file.parts[-3], snake(name), sentence(operation.get("documentation")), given, required)


def google(folder: Path) -> Iterator[Tool]:
    for file in sorted(folder.glob("discovery_cache/documents/*.json")):
        document = json.loads(file.read_bytes())
        for method in methods(document):
            body = document.get("schemas", {}).get(method.get("request", {}).get("$ref"), {}).get("properties", {})
            written = {key: each for key, each in body.items() if not read_only(each)}
            every = {**written, **method.get("parameters", {})}
            given = {snake(key): plain(each) for key, each in every.items()}
            required = [snake(key) for key, each in every.items() if each.get("required") is True]
            name = snake("_".join(method["id"].split(".")[-2:]))
            yield from tools_of(document["name"], name, sentence(method.get("description")), given, required)


def methods(node: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield from node.get("methods", {}).values()
    for inner in node.get("resources", {}).values():
        yield from methods(inner)


def read_only(schema: Mapping[str, Any]) -> bool:
    return bool(schema.get("readOnly")) or "Output only" in schema.get("description", "")


def plain(schema: Mapping[str, Any], shapes: Mapping[str, Any] | None = None) -> Tool | None:
    """A parameter of AWS's or Google's as JSON Schema; None if it is an object."""
    kind = schema.get("type")
    inner = schema.get("items") or (shapes or {}).get((schema.get("member") or {}).get("shape"), {})
    if kind in ("array", "list") and inner.get("type") in PLAIN:
        made: Tool = {"type": "array", "items": {"type": PLAIN[inner["type"]]}}
    elif kind in PLAIN:
        made = {"type": "integer" if "int" in str(schema.get("format")) else PLAIN[kind]}
    else:
        return None
    values = [value for value in schema.get("enum", ()) if "UNSPECIFIED" not in value]
    if 2 <= len(values) <= 8 and made["type"] == "string":
        made["enum"] = values
    return described(made, schema.get("documentation") or schema.get("description"))


def python(folder: Path) -> Iterator[Tool]:
    """Functions whose docstrings follow numpydoc."""
    for file in sorted(folder.rglob("*.py")):
        if "test" in str(file.relative_to(folder)):
            continue
        for node in parsed(file):
            text = (ast.get_docstring(node) or "") if isinstance(node, ast.FunctionDef) else ""
            section = re.search(r"Parameters\n-+\n(.*?)(?:\n\n?\w[\w ]*\n-+\n|\Z)", text, re.S)
            if section and isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                entries = [entry.partition("\n") for entry in re.split(r"\n(?=\w)", section[1])]
                heads = [(head.partition(":"), rest) for head, _, rest in entries]
                given = {head[0].strip(): numpy_type(head[2].strip().lower(), rest) for head, rest in heads}
                required = [head[0].strip() for head, _ in heads if not re.search("optional|default", head[2])]
                yield from tools_of(
                    f"{file.parent.name}.{file.stem}", snake(node.name), sentence(text), given, required
                )


def parsed(file: Path) -> list[ast.stmt]:
    try:
        return ast.parse(file.read_bytes()).body
    except SyntaxError:  # a template, or another Python
        return []


def numpy_type(kind: str, about: str) -> Tool | None:
    values = re.findall(r"['\"]([^'\"]+)['\"]", kind.partition("}")[0]) if kind.startswith("{") else []
    name = next((name for start, name in NUMPY if kind.startswith(start)), None)
    if len(values) > 1:
        return described({"type": "string", "enum": values[:8]}, about)
    if name is None and re.match(r"array|list|sequence|1-?d", kind):
        return described({"type": "array", "items": {"type": "string" if "str" in kind else "number"}}, about)
    return described({"type": name}, about) if name else None


def described(schema: Tool, text: str | None) -> Tool:
    about = sentence(text)
    return {**schema, "description": about} if 0 < len(about) <= SAID else schema


def sentence(text: str | None) -> str:
    """The first sentence of a text with tags, without what the schema says anyway."""
    bare = re.sub(r"\s+", " ", re.sub(r"<[^>]+>|`+|:\w+:", " ", html.unescape(text or ""))).strip()
    bare = re.sub(r"^(required|optional|immutable|identifier)[.:] *", "", bare, flags=re.IGNORECASE)
    return re.split(r"(?<=[.!?]) ", bare)[0].strip()


def snake(name: str) -> str:
    """
    >>> snake("DescribeDBInstances"), snake("files.list")
    ('describe_db_instances', 'files_list')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|\W+", "_", name).lower().strip("_")
