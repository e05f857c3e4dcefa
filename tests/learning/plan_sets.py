"""A data folder in the formats of the real plan sets, small, and the tools that generators are tried on."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

SGD_TOOLS = [
    {
        "name": name,
        "service": service,
        "description": f"{name} for the user",
        "parameters": {"city": {"description": "Where"}, "kind": {"description": "Which", "enum": ["big", "small"]}},
        "required": ["city"],
        "returns": ["place_id", "city"],
        "side_effects": False,
    }
    for service, name in [("Hotels_1", "FindHotel"), ("Rides_1", "GetRide"), ("Buses_1", "FindBus")]
]
BOOKING = {
    "name": "BookHotel",
    "service": "Hotels_1",
    "description": "Book a room",
    "parameters": {"place_id": {}, "nights": {}},
    "required": ["place_id"],
    "returns": ["place_id"],
    "side_effects": True,
}
SEAL_FIELDS = {
    "getWeather": "Weather/Today",
    "getTide": "Weather/Sea",
    "findNurse": "Health/Staff",
    "getPulse": "Health/Body",
}


def write_sets(folder: Path) -> Path:
    """Writes all sets below a folder; some packed, as the real ones are."""
    _sgd(folder / "plan_graph/sgd")
    snips = [
        {
            "id": f"snips-{n}",
            "request": f"Play song number {n} by Artist{n}",
            "tool": f"Tool{n % 7}",
            "args": {"artist": f"Artist{n}"} | ({"track": f"song number {n}"} if n % 2 else {}),
        }
        for n in range(70)
    ]
    _lines(folder / "snips/train.jsonl", snips)
    _seal(folder / "plan_graph/seal_tools")
    _nestful(folder / "plan_graph/nestful")
    _ultratool(folder / "plan_graph/ultratool")
    rows = [
        f'break-{n},"Who wrote book {n}, then?",return book {n} ;return the  writer of #1,[],dev' for n in range(10)
    ]
    text = "question_id,question_text,decomposition,operators,split\n" + "\n".join(rows) + "\n"
    _write(folder / "plan_graph/break_qdmr/QDMR-high-level_dev.csv", text)
    return folder


def _sgd(folder: Path) -> None:
    _write(folder / "train_tools.json", json.dumps([*SGD_TOOLS, BOOKING]))
    renamed = [
        {
            "split": split,
            "variant": variant,
            "service": tool["service"],
            "intents": {tool["name"]: {"name": f"{tool['name']}V{variant}", "description": "In other words"}},
            "slots": {"city": {"name": f"town_{variant}", "description": "The town"}},
        }
        for split in ("train", "dev")
        for variant in (1, 2)
        for tool in SGD_TOOLS
    ]
    _lines(folder / "renamed.jsonl", renamed)
    rows = [
        {
            "id": f"sgd-{n}",
            "services": [tool["service"]],
            "request": f"I want to go to Town{n}",
            "calls": [{"tool": tool["name"], "service": tool["service"], "args": {"kind": "big", "city": f"Town{n}"}}],
        }
        for n in range(12)
        for tool in [SGD_TOOLS[n % 3]]
    ]
    chain = {
        "id": "sgd-chain",
        "services": ["Hotels_1"],
        "request": "Find a hotel in Oslo and book it for 2 nights",
        "calls": [
            {"tool": "FindHotel", "service": "Hotels_1", "args": {"city": "Oslo"}},
            {"tool": "BookHotel", "service": "Hotels_1", "args": {"nights": "2", "place_id": "{1.place_id}"}},
        ],
    }
    _lines(folder / "train.jsonl", [*rows, chain], packed=True)


def _seal(folder: Path) -> None:
    tools = [
        {
            "api_name": name,
            "api_description": f"Tells what {name} says",
            "field": field,
            "parameters": {
                "place": {"type": "str", "description": "Where"},
                "days": {"type": "int", "description": "How many"},
            },
            "required": ["place"],
            "responses": {"report": {"type": "str"}, "place": {"type": "str"}},
        }
        for name, field in SEAL_FIELDS.items()
    ]
    _lines(folder / "tool.jsonl", tools, packed=True)
    rows: list[dict[str, Any]] = [
        {
            "id": f"seal-{name}-{n}",
            "query": f"What does {name} say of Port{n} for {n} days?",
            "calling": [
                {
                    "api": name,
                    "parameters": {"days": str(n), "place": f"Port{n}"},
                    "responses": ["API_call_0", "API_call_1"],
                }
            ],
        }
        for name in SEAL_FIELDS
        for n in range(1, 4)
    ]
    rows.append(
        {
            "id": "seal-chain",
            "query": "The tide where the weather of Rome is",
            "calling": [
                {"api": "getWeather", "parameters": {"place": "Rome"}, "responses": ["API_call_0", "API_call_1"]},
                {"api": "getTide", "parameters": {"place": "API_call_1"}, "responses": ["API_call_2", "API_call_3"]},
            ],
        }
    )
    rows.append(
        {"id": "seal-unknown", "query": "?", "calling": [{"api": "nowhere", "parameters": {}, "responses": []}]}
    )
    _lines(folder / "dev.jsonl", rows)


def _nestful(folder: Path) -> None:
    glaive = [
        {
            "name": "get_route",
            "description": "A route",
            "query_parameters": {"places": {"type": "list", "required": True}},
            "output_parameters": {"distance": {"type": "number"}},
        },
        {
            "name": "get_pace",
            "description": "A pace",
            "query_parameters": {"km": {"type": "float", "required": True}, "all": {"type": "list"}},
            "output_parameters": {"pace": {"type": "number"}},
        },
    ]
    data = [
        {
            "input": f"The pace of the route from Oslo to Town{n}",
            "output": [
                {"name": "get_route", "arguments": {"places": ["Oslo", f"Town{n}"]}, "label": "var1"},
                {"name": "get_pace", "arguments": {"km": "$var1.distance$", "all": ["$var1$", 2]}, "label": "var2"},
                {"name": "var_result", "arguments": {"pace": "$var2.pace$"}},
            ],
        }
        for n in range(4)
    ]
    _write(folder / "non-executable-glaive-spec.json", json.dumps(glaive))
    _write(folder / "non-executable-glaive-data.json", json.dumps(data), packed=True)
    bus = {
        "name": "Buses.FindBus",
        "description": "Find a bus",
        "arguments": {
            "origin": {"description": "From", "required": True, "allowed_values": []},
            "fare": {"required": False, "default_value": "Economy", "allowed_values": ["Economy", "Flexible"]},
        },
    }
    trip = {
        "input": "A bus from Oslo",
        "output": [{"name": "Buses.FindBus", "arguments": {"origin": "Oslo"}, "label": "var_1"}],
    }
    _write(folder / "non-executable-sgd-spec.json", json.dumps([bus]))
    _write(folder / "non-executable-sgd-data.json", json.dumps([trip]))


def _ultratool(folder: Path) -> None:
    nodes = [
        {"id": f"{verb}_{noun}", "desc": f"{verb} a {noun}", "domain": []}
        for verb in ("read", "send")
        for noun in ("mail", "file")
    ]
    _write(folder / "tool_desc.json", json.dumps({"nodes": nodes}))
    rows = [
        {
            "id": str(n),
            "user_request": f"Read file {n} and send it.\n",
            "task_steps": [],
            "task_nodes": [{"task": "read_file"}, {"task": "send_file"}],
            "task_links": [{"source": "read_file", "target": "send_file"}],
            "n_tools": 2,
            "type": "chain",
        }
        for n in range(4)
    ]
    _lines(folder / "train.jsonl", rows)


def _lines(path: Path, rows: list[Any], packed: bool = False) -> None:
    _write(path, "".join(json.dumps(row) + "\n" for row in rows), packed)


def _write(path: Path, text: str, packed: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if packed:
        with gzip.open(f"{path}.gz", "wt", encoding="utf-8") as file:
            file.write(text)
    else:
        path.write_text(text, encoding="utf-8")


def function(
    name: str, description: str, required: list[str], returns: Any = None, **properties: Any
) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "description": description, "parameters": schema} | ({"returns": returns} if returns else {})


TEXT, WHOLE, REAL = {"type": "string"}, {"type": "integer"}, {"type": "number"}
CATALOGUE = [
    function(
        "getWeather",
        "Gets the weather of a city",
        ["city"],
        ["temperature", "city_id"],
        city=TEXT,
        unit={"enum": ["C", "F"]},
    ),
    function("send_mail", "Send an e-mail", ["to", "text"], to={**TEXT, "description": "e-mail address"}, text=TEXT),
    function(
        "book_hotel",
        "Books a hotel",
        ["city_id", "nights"],
        ["booking_id"],
        city_id=TEXT,
        nights={**WHOLE, "minimum": 1, "maximum": 30},
    ),
    function("cancel_booking", "Cancels a booking", ["booking_id"], booking_id=TEXT, refund={"type": "boolean"}),
    function(
        "interest", "Computes interest", ["principal", "rate"], ["amount"], principal=REAL, rate=REAL, years=WHOLE
    ),
    function("plot", "Plots numbers", ["values"], None, values={"type": "array", "items": REAL}, title=TEXT),
    function(
        "find_flights",
        "Find flights",
        ["origin", "date"],
        ["flight_id"],
        origin=TEXT,
        date={**TEXT, "description": "YYYY-MM-DD"},
        stops=WHOLE,
    ),
    function("force_of", "Computes a force", ["force"], None, force=WHOLE, voltage=WHOLE),
    function(
        "add_contact",
        "",
        ["person"],
        None,
        person={"type": "object", "properties": {"name": TEXT, "phone": TEXT}, "required": ["name"]},
    ),
    function(
        "translate",
        "Translate a text",
        ["text", "language"],
        None,
        text=TEXT,
        language={**TEXT, "description": "e.g., French, German or Thai"},
    ),
    function("ping", "Checks that the server is up", []),
]
# what a user's own tools may look like
ODD = [
    {"name": "bare"},
    {"name": "nothing", "description": None, "parameters": None},
    function(
        "odd", "Does odd things", ["a", "absent"], {"type": "string"}, a=True, b={}, c={"type": ["string", "null"]}
    ),
    function(
        "optional",
        "Sets the level",
        [],
        None,
        level={"anyOf": [{"type": "integer", "minimum": 3, "maximum": 9}, {"type": "null"}], "default": None},
    ),
    function(
        "strict",
        "Looks a part up",
        ["part"],
        None,
        part={"type": "string", "pattern": "^[A-Z]"},
        share={"type": "number", "minimum": 40, "maximum": 41},
    ),
    function("fixed", "Sets the mode", ["mode"], {"mode": "which"}, mode={"const": "fast"}, items={"type": "array"}),
]
