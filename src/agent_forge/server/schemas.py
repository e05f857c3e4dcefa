"""The JSON Schemas of request bodies, for validation and for the OpenAPI document."""

from __future__ import annotations

from typing import Any

JSON = dict[str, Any]
OBJECT: JSON = {"type": "object"}
TEXT: JSON = {"type": "string"}
NAME: JSON = {"type": "string", "minLength": 1, "maxLength": 200}


def closed(properties: JSON, *required: str) -> JSON:
    """An object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def nullable(schema: JSON) -> JSON:
    """A value that may be null, which means absent."""
    return {"anyOf": [schema, {"type": "null"}]}


_STOP: JSON = {
    "anyOf": [
        {"type": "string", "minLength": 1, "maxLength": 500},
        {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 500}, "maxItems": 16},
    ]
}
# Fields of both completion APIs. Penalties and biases are not implemented, so only neutral values are accepted.
_SAMPLING: JSON = {
    "model": NAME,
    "max_tokens": nullable({"type": "integer", "minimum": 1, "maximum": 1_000_000}),
    "temperature": nullable({"type": "number", "minimum": 0, "maximum": 2}),
    "top_p": nullable({"type": "number", "minimum": 0, "maximum": 1}),
    "n": nullable({"type": "integer", "minimum": 1, "maximum": 16}),
    "stop": nullable(_STOP),
    "seed": nullable({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}),
    "stream": nullable({"type": "boolean"}),
    "stream_options": nullable(
        closed({"include_usage": {"type": "boolean"}, "include_obfuscation": {"type": "boolean"}})
    ),
    "user": nullable(TEXT),
    "presence_penalty": nullable({"type": "number", "enum": [0]}),
    "frequency_penalty": nullable({"type": "number", "enum": [0]}),
    "logit_bias": nullable({"type": "object", "maxProperties": 0}),
}
_PART = {"type": "object", "properties": {"type": TEXT, "text": TEXT}, "required": ["type"]}
_CALL = {
    "type": "object",
    "properties": {
        "id": TEXT,
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": TEXT, "arguments": TEXT}, "required": ["name"]},
    },
    "required": ["function"],
}
MESSAGE: JSON = {
    "type": "object",
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"anyOf": [TEXT, {"type": "null"}, {"type": "array", "items": _PART, "maxItems": 1000}]},
        "name": nullable(TEXT),
        "tool_calls": nullable({"type": "array", "items": _CALL, "maxItems": 128}),
        "tool_call_id": nullable(TEXT),
    },
    "required": ["role"],
}
TOOL: JSON = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"},
                "description": nullable(TEXT),
                "parameters": nullable(OBJECT),
                "strict": nullable({"type": "boolean"}),
            },
            "required": ["name"],
        },
    },
    "required": ["type", "function"],
}
_CHOICE: JSON = {
    "anyOf": [
        {"enum": ["none", "auto", "required"]},
        closed({"type": {"const": "function"}, "function": closed({"name": TEXT}, "name")}, "type", "function"),
    ]
}
_FORMAT: JSON = {
    "anyOf": [
        closed({"type": {"enum": ["text", "json_object"]}}, "type"),
        closed(
            {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object",
                    "properties": {
                        "name": TEXT,
                        "description": nullable(TEXT),
                        "schema": OBJECT,
                        "strict": nullable({"type": "boolean"}),
                    },
                    "required": ["schema"],
                },
            },
            "type",
            "json_schema",
        ),
    ]
}
CHAT = closed(
    {
        **_SAMPLING,
        "messages": {"type": "array", "items": MESSAGE, "minItems": 1, "maxItems": 10_000},
        "max_completion_tokens": _SAMPLING["max_tokens"],
        "logprobs": nullable({"type": "boolean"}),
        "top_logprobs": nullable({"type": "integer", "minimum": 0, "maximum": 20}),
        "tools": nullable({"type": "array", "items": TOOL, "maxItems": 128}),
        "tool_choice": nullable(_CHOICE),
        "parallel_tool_calls": nullable({"type": "boolean"}),
        "response_format": nullable(_FORMAT),
        "metadata": nullable(OBJECT),
        "store": nullable({"type": "boolean"}),
        "service_tier": nullable(TEXT),
        "reasoning_effort": nullable(TEXT),
    },
    "model",
    "messages",
)
_IDS: JSON = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "maxItems": 1_000_000}
COMPLETION = closed(
    {
        **_SAMPLING,
        "prompt": {
            "anyOf": [
                TEXT,
                {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 64},
                _IDS,
                {"type": "array", "items": _IDS, "minItems": 1, "maxItems": 64},
            ]
        },
        "logprobs": nullable({"type": "integer", "minimum": 0, "maximum": 20}),
        "echo": nullable({"type": "boolean"}),
        "best_of": nullable({"enum": [1]}),
        "suffix": {"type": "null"},
    },
    "model",
    "prompt",
)
_SECONDS: JSON = {"type": "number", "exclusiveMinimum": 0, "maximum": 86_400}
RUN = closed(
    {
        "request": {"type": "string", "minLength": 1, "maxLength": 100_000},
        "plan": {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 1_000_000}, OBJECT]},
        "planner": nullable({"enum": ["rules", "forged", "local", "model"]}),
        "model": nullable(NAME),
        "concurrency": nullable({"type": "integer", "minimum": 1, "maximum": 10_000}),
        "timeout_s": nullable(_SECONDS),
        "on_failure": nullable({"enum": ["skip", "fail_fast", "continue"]}),
        "team": nullable({"type": "boolean"}),
        "unit": nullable(NAME),
        "approve": nullable({"enum": ["ask", "all", "none"]}),
        "repairs": nullable({"type": "integer", "minimum": 0, "maximum": 20}),
        "budget": nullable(
            closed(
                {
                    "tokens": {"type": "integer", "minimum": 0},
                    "calls": {"type": "integer", "minimum": 0},
                    "cost": {"type": "number", "minimum": 0},
                    "seconds": _SECONDS,
                }
            )
        ),
    }
)
APPROVAL = closed({"task": NAME, "approved": {"type": "boolean"}, "args": nullable(OBJECT)}, "task", "approved")
_UNIT: JSON = {"type": "number", "minimum": 0, "maximum": 1}
REWARD = closed(
    {
        "value": _UNIT,
        "span": nullable({"type": "string", "pattern": "^[0-9a-fA-F]{1,16}$"}),
        "by": nullable({"type": "string", "minLength": 1, "maxLength": 100}),
        "components": nullable({"type": "object", "additionalProperties": _UNIT, "maxProperties": 100}),
        "comment": nullable({"type": "string", "maxLength": 10_000}),
    },
    "value",
)
ROLLOUT = closed({"why": nullable({"type": "string", "maxLength": 500})})

BODIES = {
    "chat": CHAT,
    "completion": COMPLETION,
    "run": RUN,
    "approval": APPROVAL,
    "reward": REWARD,
    "rollout": ROLLOUT,
}
