"""A tool: a typed function that a plan or a model calls by name, with arguments checked before the call."""

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
from agent_forge.agents.tools.schema import Schema, Shape, hints_of, json_value, object_schema, shape_of, with_default
from agent_forge.errors import ToolError, ToolTimeout
from agent_forge.runtime.lifetime import leave_behind
from agent_forge.threads import THREADS

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_SHOWN = 80  # characters of a wrong value in an error
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {  # values that certainly have a type of JSON Schema
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


class ArgumentsInvalid(ToolError):
    """Arguments that do not match the tool's schema; the tool was not called. `faults` has one line per fault."""

    def __init__(self, tool: str, faults: list[str], fix: str | None = None) -> None:
        super().__init__("; ".join(faults), where=f"tool {tool!r}", fix=fix)
        self.faults = faults


@dataclass(frozen=True, repr=False)
class Tool:
    """A function with a name, a description and a JSON Schema, created by the `tool` decorator.

    Calling a Tool calls the function itself. Plans and models use `await tool.call(args)`: it checks the arguments,
    runs a blocking function in a thread, and applies `timeout_s` and `retries`. The executor enforces `concurrency`
    (calls at the same time) and `rate` (calls per second); with `cache=True` identical calls in a run share a result.
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
    fallback: str | None = None
    pure: bool = False
    version: str = ""
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

    @property
    def returns(self) -> Schema | None:
        """The JSON Schema of a result, as far as the type hint of the function tells."""
        return self._result.schema or None

    @functools.cached_property
    def _result(self) -> Shape:
        try:
            return shape_of(hints_of(self.function, self.name).get("return", Any), where=self.name)
        except ToolError:  # it need not be JSON
            return Shape({})

    @functools.cached_property
    def _validator(self) -> Draft202012Validator:
        from jsonschema import Draft202012Validator
        from referencing import Registry

        # An empty registry: the $refs of a foreign schema must not be fetched.
        return Draft202012Validator(self.schema, registry=Registry())

    @functools.cached_property
    def _is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @functools.cached_property
    def _plain(self) -> dict[str, tuple[type, ...]] | None:
        """The Python types of each argument, if the schema says nothing more about any of them; None otherwise."""
        more = self.schema.keys() - {"type", "properties", "required", "additionalProperties", "title", "description"}
        properties = self.schema.get("properties", {})
        simple = all(
            isinstance(each, Mapping)
            and each.keys() <= {"type", "title", "description", "default"}
            and isinstance(each.get("type"), str)
            and each["type"] in _PYTHON_TYPES
            for each in properties.values()
        )
        if more or not simple or self.schema.get("type") != "object":
            return None
        return {name: _PYTHON_TYPES[each["type"]] for name, each in properties.items()}

    def check(self, args: Mapping[str, Any]) -> None:
        """Raises ArgumentsInvalid unless the arguments match the schema."""
        faults = [*self.name_faults(args), *self.value_faults(args)]
        if faults:
            raise ArgumentsInvalid(self.name, faults, fix=f"Its arguments are {self.signature}")

    @property
    def signature(self) -> str:
        """The arguments on one line, optional ones with a question mark: `(a: number, b?: number)`."""
        required = self.schema.get("required", [])
        parts = [
            f"{name}{'' if name in required else '?'}: {_expected(schema)}"
            for name, schema in self.schema.get("properties", {}).items()
        ]
        return f"({', '.join(parts)})"

    def name_faults(self, args: Mapping[str, Any]) -> list[str]:
        """Missing and unknown arguments."""
        properties = self.schema.get("properties", {})
        faults = [f"argument {name!r} is missing" for name in self.schema.get("required", []) if name not in args]
        if self.schema.get("additionalProperties", True) is False:
            unknown = [name for name in args if name not in properties]
            faults += [f"there is no argument {name!r}{did_you_mean(name, properties)}" for name in unknown]
        return faults

    def value_faults(self, args: Mapping[str, Any]) -> list[str]:
        """Values that do not match the schema, by path, with the expected and the actual value."""
        plain = self._plain  # without jsonschema, which takes longer than all else that is done for a short call
        if plain is not None and all(type(value) in plain.get(name, ()) for name, value in args.items()):
            return []
        from referencing.exceptions import Unresolvable

        try:
            errors = list(self._validator.iter_errors(dict(args)))
        except Unresolvable as error:
            return [f"its schema refers to {error.ref!r}, which it does not contain"]
        # name_faults reports missing and unknown arguments of the tool itself, with better messages
        by_value = [e for e in errors if e.path or e.validator not in ("required", "additionalProperties")]
        return [fault_of(error) for error in by_value]

    async def call(self, args: Mapping[str, Any]) -> Any:
        """The function's result; where its type hint has dataclasses or enumerations, as JSON, so that plans can refer
        to its fields and pass it on.

        Raises ArgumentsInvalid before the function is called, ToolTimeout if the last attempt took longer than
        `timeout_s`, and otherwise what the function raised in the last attempt.
        """
        self.check(args)
        values = {
            name: self.shapes[name].value(value) if name in self.shapes else value for name, value in args.items()
        }
        for _ in range(self.retries):
            try:
                return await self._attempt(values)
            except (ArgumentsInvalid, asyncio.CancelledError):
                raise
            except Exception:  # noqa: S112  the last attempt below raises
                continue
        return await self._attempt(values)

    async def _attempt(self, values: dict[str, Any]) -> Any:
        if self.timeout_s is None:
            return await self._invoke(values)
        attempt = asyncio.create_task(self._invoke(values))
        if await _ends_within(attempt, self.timeout_s):
            return attempt.result()
        raise ToolTimeout(f"no result within {self.timeout_s:g} s", where=f"tool {self.name!r}")

    async def _invoke(self, values: dict[str, Any]) -> Any:
        if self._is_async:
            result = await self.function(**values)
        else:
            call = functools.partial(self.function, **values)
            result = await THREADS.call(call) if self.threaded else call()
            result = await result if inspect.isawaitable(result) else result
        return result if self._result.build is None else json_value(result)


async def _ends_within(attempt: asyncio.Task[Any], timeout_s: float) -> bool:
    """Whether the attempt ends in time; if not, or if the waiter is cancelled, the attempt is cancelled.

    Not asyncio.wait_for: a TimeoutError raised by the tool itself must not look like ours.
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


def described(name: str, description: str, schema: Mapping[str, Any]) -> Tool:
    """A tool of which only the description is there: plans can be made for it, and calling it is a ToolError."""
    if not _NAME.fullmatch(name):
        raise ToolError(f"{name!r} is not a valid tool name", fix="Use letters, digits, _ . and -, at most 64")

    def absent(**args: Any) -> Any:
        raise ToolError("only its description is known, so it cannot be called", where=f"tool {name!r}")

    return Tool(name, description, dict(schema), absent)


def by_name(tool: Tool, args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name: the positional values of a call such as `add(2, 3)` come as the list `args`."""
    values = args.get("args")
    if not isinstance(values, (list, tuple)) or "args" in tool.schema.get("properties", {}):
        return dict(args)
    properties = list(tool.schema.get("properties", {}))
    rest = {name: value for name, value in args.items() if name != "args"}
    free = [name for name in properties if name not in rest]
    return {**dict(zip(free, values, strict=False)), **rest} if len(values) <= len(free) else dict(args)


def did_you_mean(name: str, options: Any) -> str:
    """`, did you mean 'x'?`, `, known: a, b`, or nothing.

    >>> did_you_mean("serach", ["search", "answer"])
    ", did you mean 'search'?"
    """
    names = [str(option) for option in options]
    close = get_close_matches(name, names, n=1) or [item for item in names if item.lower() == name.lower()]
    if close:
        return f", did you mean {close[0]!r}?"
    return f", known: {', '.join(names[:20])}" if names else ""


def fault_of(error: Any, root: str = "") -> str:
    """An error of `jsonschema` in one line; `root` names the value itself, where it has no path."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path).lstrip(".")
    named = f"argument {path!r}" if not root else f"{root} {path!r}" if path else f"the {root}"
    got = json.dumps(error.instance, ensure_ascii=False, default=repr)
    shown = got if len(got) <= _SHOWN else f"{got[:_SHOWN]}…"
    if error.validator in ("type", "enum", "anyOf", "const"):
        return f"{named} must be {_expected(error.schema)}, got {_kind(error.instance)} {shown}"
    return f"{named}: {error.message[:200]}"


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
    fallback: str | None = None,
    pure: bool = False,
    version: str = "",
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(function: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any) -> Any:
    """Turns a typed function, sync or async, into a Tool.

    >>> @tool
    ... def add(a: float, b: float = 1.0) -> float:
    ...     "Adds two numbers."
    ...     return a + b
    >>> add(1, 2), add.schema["required"], asyncio.run(add.call({"a": 4}))
    (3, ['a'], 5.0)

    Options: `name` (default: the function's), `side_effects` (it changes the world: it waits for an approval, is never
    cached and not repeated after a crash), `fallback` (the tool that is called with the same arguments if this one
    fails), `cache` (identical calls in a run share a result; True unless it has side effects), `concurrency` and
    `rate` (calls at the same time, calls per second), `timeout_s` and `retries` per call, `threaded` (False for a
    blocking function that is quick enough for the event loop), `pure` (its result follows from its arguments alone:
    with `run(cache=True)` it is kept for later runs) and `version` (of what it computes; a digest of its source by
    default).

    Raises UnsupportedAnnotation or ToolError for a function that cannot be a tool.
    """
    if function is None:
        return lambda wrapped: _build(wrapped, name, options)
    return _build(function, name, options)


def _build(function: Callable[..., Any], name: str | None, options: dict[str, Any]) -> Tool:
    if not callable(function):
        raise ToolError(f"{function!r} is not a function", fix="A tool is a typed function: put @tool above it")
    name = str(name or getattr(function, "__name__", ""))
    if not _NAME.fullmatch(name):
        raise ToolError(f"{name!r} is not a valid tool name", fix="Use letters, digits, _ . and -, at most 64")
    where = f"tool {name!r}"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ToolError("it yields, but a result is needed as a whole", where=where, fix="Return a list")
    description, notes = read_docstring(function.__doc__)
    hints = hints_of(function, where)
    parameters = {
        parameter.name: _parameter(parameter, hints, f"{where}, argument {parameter.name!r}", notes)
        for parameter in inspect.signature(function).parameters.values()
    }
    required = [key for key, (_, is_required) in parameters.items() if is_required]
    built = Tool(
        name,
        description,
        object_schema({key: shape.schema for key, (shape, _) in parameters.items()}, required),
        function,
        shapes={key: shape for key, (shape, _) in parameters.items()},
        **_options(where, options),
    )
    vars(built).update(__doc__=function.__doc__, __name__=name, __module__=function.__module__, __wrapped__=function)
    return built


def _options(where: str, options: dict[str, Any]) -> dict[str, Any]:
    side_effects = bool(options.get("side_effects"))
    if options.get("cache") and side_effects:
        raise ToolError("a tool with side effects cannot share results", where=where, fix="Drop cache=True")
    if options.get("pure") and side_effects:
        raise ToolError("a tool with side effects is not pure", where=where, fix="Drop pure=True")
    for key in ("concurrency", "rate", "timeout_s"):
        if options.get(key) is not None and not options[key] > 0:
            raise ToolError(f"{key} must be above 0, got {options[key]!r}", where=where)
    if options.get("retries", 0) < 0:
        raise ToolError(f"retries must not be negative, got {options['retries']!r}", where=where)
    cache = options.get("cache")
    return {**options, "cache": not side_effects if cache is None else cache}


def _parameter(
    parameter: inspect.Parameter, hints: dict[str, Any], where: str, notes: dict[str, str]
) -> tuple[Shape, bool]:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ToolError(f"{parameter} cannot be passed by name", where=where, fix="Give every argument a name")
    if parameter.name not in hints:
        raise ToolError("it has no type", where=where, fix="Annotate it, for example with str")
    shape = shape_of(hints[parameter.name], where=where)
    schema, required = shape.schema, parameter.default is parameter.empty
    if parameter.name in notes and "description" not in schema:
        schema = {**schema, "description": notes[parameter.name]}
    return Shape(schema if required else with_default(schema, parameter.default), shape.build), required
