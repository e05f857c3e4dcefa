"""A tool: a typed function that a plan or a model may call by name, with arguments checked before the call."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, overload

from agent_forge.agents.tools.docstring import read_docstring
from agent_forge.agents.tools.schema import Schema, Shape, hints_of, object_schema, shape_of, with_default
from agent_forge.errors import ToolError, ToolTimeout
from agent_forge.runtime.lifetime import leave_behind
from agent_forge.threads import THREADS

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_SHOWN = 80  # characters of a wrong value that an error shows


class ArgumentsInvalid(ToolError):
    """Arguments that do not fit the tool's schema; the tool was not called. `faults` has one line for each."""

    def __init__(self, tool: str, faults: list[str], fix: str | None = None) -> None:
        super().__init__("; ".join(faults), where=f"tool {tool!r}", fix=fix)
        self.faults = faults


@dataclass(frozen=True, repr=False)
class Tool:
    """A function with a name, a description and a JSON Schema; made by the `tool` decorator.

    Calling a Tool calls the function itself. `await tool.call(args)` is how plans and models call it: the arguments
    are checked, a blocking function runs in a thread, and `timeout_s` and `retries` hold for the call. The executor
    enforces `concurrency` (calls at once) and `rate` (calls a second) and keeps `cache=True` results for identical
    calls of one run.
    """

    name: str
    description: str
    schema: Schema
    function: Callable[..., Any]
    side_effects: bool = False
    cache: bool = True
    concurrency: int | None = None
    rate: float | None = None
    timeout_s: float | None = None
    retries: int = 0
    threaded: bool = True
    shapes: Mapping[str, Shape] = field(default_factory=dict)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Tool({self.name!r}, {', '.join(self.schema.get('properties', {})) or 'no arguments'})"

    @property
    def spec(self) -> dict[str, Any]:
        """The tool in the format of the OpenAI API's `tools`."""
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {"type": "function", "function": function}

    @functools.cached_property
    def _validator(self) -> Draft202012Validator:
        from jsonschema import Draft202012Validator
        from referencing import Registry

        # An empty registry: a schema from elsewhere must not make us fetch what its $ref names.
        return Draft202012Validator(self.schema, registry=Registry())

    def check(self, args: Mapping[str, Any]) -> None:
        """Raises ArgumentsInvalid unless the arguments fit the schema."""
        faults = [*self.name_faults(args), *self.value_faults(args)]
        if faults:
            raise ArgumentsInvalid(self.name, faults, fix=f"its arguments are {self.signature}")

    @property
    def signature(self) -> str:
        """The arguments on one line, the optional ones with a question mark: `(a: number, b?: number)`."""
        required = self.schema.get("required", [])
        parts = [
            f"{name}{'' if name in required else '?'}: {_expected(schema)}"
            for name, schema in self.schema.get("properties", {}).items()
        ]
        return f"({', '.join(parts)})"

    def name_faults(self, args: Mapping[str, Any]) -> list[str]:
        """Arguments that are missing, and arguments that the tool does not have."""
        known = self.schema.get("properties", {})
        faults = [f"argument {name!r} is missing" for name in self.schema.get("required", []) if name not in args]
        if self.schema.get("additionalProperties", True) is False:
            faults += [
                f"there is no argument {name!r}{did_you_mean(name, known)}" for name in args if name not in known
            ]
        return faults

    def value_faults(self, args: Mapping[str, Any]) -> list[str]:
        """Values that are not what the schema says, named by their path, with what was expected and what came."""
        from referencing.exceptions import Unresolvable

        try:
            errors = list(self._validator.iter_errors(dict(args)))
        except Unresolvable as error:
            return [f"its schema refers to {error.ref!r}, which it does not contain"]
        # name_faults says it better when an argument of the tool itself is missing or unknown
        by_value = [e for e in errors if e.path or e.validator not in ("required", "additionalProperties")]
        return [_value_fault(error) for error in by_value]

    async def call(self, args: Mapping[str, Any]) -> Any:
        """The function's result, unchanged.

        Raises ArgumentsInvalid before the function is called, ToolTimeout when an attempt took longer than
        `timeout_s`, and otherwise what the function raised in its last attempt.
        """
        self.check(args)
        values = {name: self._value(name, value) for name, value in args.items()}
        for _ in range(self.retries):
            try:
                return await self._attempt(values)
            except (ArgumentsInvalid, asyncio.CancelledError):
                raise
            except Exception:  # noqa: S112  the last attempt below reports its own
                continue
        return await self._attempt(values)

    def _value(self, name: str, value: Any) -> Any:
        return self.shapes[name].value(value) if name in self.shapes else value

    async def _attempt(self, values: dict[str, Any]) -> Any:
        if self.timeout_s is None:
            return await self._invoke(values)
        attempt = asyncio.create_task(self._invoke(values))
        if await _ended(attempt, self.timeout_s):
            return attempt.result()
        raise ToolTimeout(f"no result within {self.timeout_s:g} s", where=f"tool {self.name!r}")

    async def _invoke(self, values: dict[str, Any]) -> Any:
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**values)
        call = functools.partial(self.function, **values)
        result = await THREADS.call(call) if self.threaded else call()
        return await result if inspect.isawaitable(result) else result


async def _ended(attempt: asyncio.Task[Any], timeout_s: float) -> bool:
    """Whether the attempt ended in time; if not, or if the waiter itself is cancelled, the attempt is cancelled.

    Not asyncio.wait_for: a TimeoutError that the tool raised itself must stay the tool's own.
    """
    try:
        done, _ = await asyncio.wait([attempt], timeout=timeout_s)
    except asyncio.CancelledError:
        await _cancel(attempt)
        raise
    if not done:
        await _cancel(attempt)
    return bool(done)


async def _cancel(attempt: asyncio.Task[Any]) -> None:
    attempt.cancel()
    await asyncio.wait([attempt], timeout=1.0)
    if not attempt.done():  # it swallowed its cancellation
        leave_behind(attempt)
    elif not attempt.cancelled():
        attempt.exception()


def did_you_mean(name: str, known: Any) -> str:
    """`, did you mean 'x'?`, `, known: a, b`, or nothing.

    >>> did_you_mean("serach", ["search", "answer"])
    ", did you mean 'search'?"
    """
    names = [str(item) for item in known]
    close = get_close_matches(name, names, n=1) or [item for item in names if item.lower() == name.lower()]
    if close:
        return f", did you mean {close[0]!r}?"
    return f", known: {', '.join(names[:20])}" if names else ""


def _value_fault(error: Any) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path).lstrip(".")
    got = json.dumps(error.instance, ensure_ascii=False, default=repr)
    shown = got if len(got) <= _SHOWN else f"{got[:_SHOWN]}…"
    if error.validator in ("type", "enum", "anyOf", "const"):
        return f"argument {path!r} must be {_expected(error.schema)}, got {_kind(error.instance)} {shown}"
    return f"argument {path!r}: {error.message[:200]}"


def _expected(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return f"one of {', '.join(json.dumps(value, ensure_ascii=False) for value in schema['enum'])}"
    if "anyOf" in schema:
        return " or ".join(_expected(option) for option in schema["anyOf"])
    named = schema.get("type", "any")
    return " or ".join(named) if isinstance(named, list) else str(named)


def _kind(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return "" if value is None else kinds.get(type(value), type(value).__name__)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    side_effects: bool = False,
    cache: bool | None = None,
    concurrency: int | None = None,
    rate: float | None = None,
    timeout_s: float | None = None,
    retries: int = 0,
    threaded: bool = True,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(function: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any) -> Any:
    """Makes a Tool of a typed function, sync or async.

    >>> @tool
    ... def add(a: float, b: float = 1.0) -> float:
    ...     "Adds two numbers."
    ...     return a + b
    >>> add(1, 2), add.schema["required"], asyncio.run(add.call({"a": 4}))
    (3, ['a'], 5.0)

    Options: `name` (else the function's), `side_effects` (it changes the world: never cached, at most once after a
    crash), `cache` (identical calls of one run share a result; True unless it has side effects), `concurrency` and
    `rate` (calls at once, calls a second), `timeout_s` and `retries` for one call, `threaded` (False: a blocking
    function that is quick enough to run on the event loop).

    Raises UnsupportedAnnotation or ToolError for a function that cannot be a tool.
    """
    if function is None:
        return lambda wrapped: _make(wrapped, name, options)
    return _make(function, name, options)


def _make(function: Callable[..., Any], name: str | None, options: dict[str, Any]) -> Tool:
    named = str(name or getattr(function, "__name__", ""))
    if not _NAME.fullmatch(named):
        raise ToolError(f"{named!r} is not a name for a tool", fix="letters, digits, _ . - and at most 64 of them")
    description, notes = read_docstring(function.__doc__)
    shapes = _parameters(function, named, notes)
    made = Tool(
        named,
        description,
        object_schema({key: shape.schema for key, (shape, _) in shapes.items()}, _required(shapes)),
        function,
        shapes={key: shape for key, (shape, _) in shapes.items()},
        **_options(named, options),
    )
    vars(made).update(__doc__=function.__doc__, __name__=named, __module__=function.__module__, __wrapped__=function)
    return made


def _options(named: str, options: dict[str, Any]) -> dict[str, Any]:
    side_effects = bool(options.get("side_effects"))
    if options.get("cache") and side_effects:
        raise ToolError("a tool with side effects cannot share results", where=f"tool {named!r}", fix="drop cache=True")
    for key in ("concurrency", "rate", "timeout_s"):
        if options.get(key) is not None and not options[key] > 0:
            raise ToolError(f"{key} must be above 0, got {options[key]!r}", where=f"tool {named!r}")
    if options.get("retries", 0) < 0:
        raise ToolError(f"retries must not be negative, got {options['retries']!r}", where=f"tool {named!r}")
    cache = options.get("cache")
    return {**options, "cache": not side_effects if cache is None else cache}


def _required(shapes: Mapping[str, tuple[Shape, bool]]) -> list[str]:
    return [key for key, (_, required) in shapes.items() if required]


def _parameters(function: Callable[..., Any], named: str, notes: dict[str, str]) -> dict[str, tuple[Shape, bool]]:
    hints = hints_of(function, f"tool {named!r}")
    return {
        parameter.name: _parameter(parameter, hints, f"tool {named!r}, argument {parameter.name!r}", notes)
        for parameter in inspect.signature(function).parameters.values()
    }


def _parameter(
    parameter: inspect.Parameter, hints: dict[str, Any], where: str, notes: dict[str, str]
) -> tuple[Shape, bool]:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ToolError(f"{parameter} cannot be given by name", where=where, fix="give every argument a name")
    if parameter.name not in hints:
        raise ToolError("it has no type", where=where, fix="annotate it, for example with str")
    shape = shape_of(hints[parameter.name], where=where)
    schema, required = shape.schema, parameter.default is parameter.empty
    if parameter.name in notes and "description" not in schema:
        schema = {**schema, "description": notes[parameter.name]}
    return Shape(schema if required else with_default(schema, parameter.default), shape.build), required
