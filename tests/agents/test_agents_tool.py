"""`@tool`: names, schemas, argument checks, threads, time limits."""

from __future__ import annotations

import asyncio
import enum
import sys
import threading
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Optional, TypedDict, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agent_forge.agents import Tool, tool
from agent_forge.agents.tools import ArgumentsInvalid, ToolTimeout, UnsupportedAnnotation
from agent_forge.errors import ToolError


class Unit(enum.Enum):
    METRE = "m"
    FOOT = "ft"


class Address(TypedDict, total=False):
    street: str
    number: int


class Strict(TypedDict):
    unit: Unit


@dataclass
class Point:
    x: float
    y: float = 0.0
    labels: list[str] = field(default_factory=list)


@dataclass
class Line:
    start: Point
    end: Point | None = None


@dataclass
class Tree:
    children: list[Tree]


@tool
def measure(
    length: Annotated[float, "how long"],
    unit: Unit = Unit.METRE,
    mode: Literal["fast", "exact"] = "fast",
    note: Optional[str] = None,  # noqa: UP045  the old spelling is tested on purpose
    tags: list[str] | None = None,
    extra: dict[str, int] = {},  # noqa: B006
) -> Any:
    """Measures a thing.

    More words that a model does not need.

    Args:
        length: overridden by the annotation
        unit: the unit
            of the length
        mode (str): how
    """
    return length, unit, mode, note, tags, extra


def test_schema_says_what_the_signature_says() -> None:
    assert measure.name == "measure"
    assert measure.description == "Measures a thing."
    assert measure.schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["length"],
        "properties": {
            "length": {"type": "number", "description": "how long"},
            "unit": {
                "enum": ["m", "ft"],
                "type": "string",
                "description": "the unit of the length",
                "default": "m",
            },
            "mode": {"enum": ["fast", "exact"], "type": "string", "description": "how", "default": "fast"},
            "note": {"type": ["string", "null"], "default": None},
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
            "extra": {"type": "object", "additionalProperties": {"type": "integer"}, "default": {}},
        },
    }
    Draft202012Validator.check_schema(measure.schema)
    assert measure.spec["function"]["parameters"] is measure.schema
    assert "length: number" in measure.signature
    assert "unit?: one of" in measure.signature


def test_a_result_of_a_type_with_dataclasses_or_enumerations_is_json() -> None:
    @tool
    def find(x: float) -> list[Line]:
        return [Line(Point(x, labels=["a"]))]

    @tool
    async def unit_of(name: str) -> dict[str, Unit] | None:
        return {name: Unit.FOOT} if name else None

    found = asyncio.run(find.call({"x": 1.5}))
    assert found == [{"start": {"x": 1.5, "y": 0.0, "labels": ["a"]}, "end": None}]
    Draft202012Validator(find.returns).validate(found)
    assert find(1.5) == [Line(Point(1.5, labels=["a"]))]  # still the function
    assert asyncio.run(unit_of.call({"name": "rope"})) == {"rope": "ft"}
    assert asyncio.run(unit_of.call({"name": ""})) is None


def test_what_cannot_be_a_tool_is_refused_with_a_reason() -> None:
    def counts(upto: int) -> Any:
        yield from range(upto)

    async def counts_slowly(upto: int) -> Any:
        yield upto

    for function in (counts, counts_slowly):
        with pytest.raises(ToolError, match=f"{function.__name__}.*yields.*Return a list"):
            tool(function)
    with pytest.raises(ToolError, match="3 is not a function"):
        tool(3)  # type: ignore[call-overload]


def test_values_are_built_from_json() -> None:
    @tool
    def draw(line: Line, at: Address, how: Strict, points: list[Point], by: dict[str, Unit], *, n: int) -> Any:
        return line, at, how, points, by, n

    got = asyncio.run(
        draw.call(
            {
                "line": {"start": {"x": 1, "labels": ["a"]}, "end": {"x": 2.5, "y": 3}},
                "at": {"street": "High"},
                "how": {"unit": "ft"},
                "points": [{"x": 0}],
                "by": {"k": "m"},
                "n": 3.0,
            }
        )
    )
    assert got == (
        Line(Point(1, 0.0, ["a"]), Point(2.5, 3)),
        {"street": "High"},
        {"unit": Unit.FOOT},
        [Point(0)],
        {"k": Unit.METRE},
        3,
    )
    assert type(got[5]) is int


def test_union_builds_the_member_that_fits() -> None:
    @tool
    def f(v: Union[Point, Unit, int, None], w: Any = None) -> Any:  # noqa: UP007  the old spelling on purpose
        return v

    for given_, expected in [({"x": 1}, Point(1)), ("ft", Unit.FOOT), (2, 2), (None, None)]:
        assert asyncio.run(f.call({"v": given_})) == expected


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, ["argument 'length' is missing"]),
        ({"length": 1, "untis": "m"}, ["no argument 'untis'", "did you mean 'unit'"]),
        ({"length": "long"}, ["'length' must be number", 'string "long"']),
        ({"length": True}, ["'length' must be number", "boolean true"]),
        ({"length": 1, "unit": "mile"}, ["'unit' must be one of", '"ft"', '"mile"']),
        ({"length": 1, "note": 3}, ["'note' must be string or null", "integer 3"]),
        ({"length": 1, "tags": ["a", 2]}, ["'tags' must be array or null"]),
        ({"length": 1, "extra": {"a": "x" * 500}}, ["'extra.a' must be integer", "…"]),
        ({"nope": 1, "mode": "slow"}, ["'length' is missing", "no argument 'nope'", "'mode' must be"]),
    ],
)
def test_wrong_arguments_are_named(args: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ArgumentsInvalid) as caught:
        asyncio.run(measure.call(args))
    for word in words:
        assert word in str(caught.value)
    assert "tool 'measure'" in str(caught.value)
    assert "Its arguments are (length: number" in str(caught.value)


def test_nested_faults_have_a_path() -> None:
    @tool
    def f(points: list[Point]) -> int:
        return len(points)

    with pytest.raises(ArgumentsInvalid, match=r"points\[1\].x"):
        asyncio.run(f.call({"points": [{"x": 1}, {"x": "a"}]}))
    with pytest.raises(ArgumentsInvalid, match=r"'points\[0\]'.*'x' is a required property"):
        asyncio.run(f.call({"points": [{}]}))


def test_the_function_is_not_called_with_wrong_arguments() -> None:
    calls: list[int] = []

    @tool(retries=3)
    def f(n: int) -> None:
        calls.append(n)

    with pytest.raises(ArgumentsInvalid):
        asyncio.run(f.call({"n": "1"}))
    assert calls == []


class Opaque:
    pass


@pytest.mark.parametrize("annotation", [Opaque, bytes, set[int], tuple[int, int], dict[int, str], Tree, complex])
def test_unsupported_types_are_refused_when_the_tool_is_made(annotation: Any) -> None:
    def f(x): ...  # type: ignore[no-untyped-def]

    f.__annotations__ = {"x": annotation}
    with pytest.raises(UnsupportedAnnotation, match=r"argument 'x'"):
        tool(f)


def test_functions_that_cannot_be_tools() -> None:
    def untyped(x): ...  # type: ignore[no-untyped-def]
    def many(*x: int) -> None: ...
    def options(**x: int) -> None: ...
    def positional(x: int, /) -> None: ...
    def unknown(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def literal(x: Literal[b"y"]) -> None: ...
    def unhashable(x: [int]) -> None: ...  # type: ignore[valid-type]

    for function in (untyped, many, options, positional, unknown, literal, unhashable):
        with pytest.raises(ToolError):
            tool(function)
    with pytest.raises(ToolError, match="not a valid tool name"):
        tool(lambda: None)
    with pytest.raises(ToolError, match="not a valid tool name"):
        tool(name="a b")(lambda: None)


@pytest.mark.parametrize(
    "options",
    [
        {"side_effects": True, "cache": True},
        {"concurrency": 0},
        {"rate": -1},
        {"timeout_s": 0},
        {"retries": -1},
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ToolError):
        tool(**options)(lambda_with_name)


def lambda_with_name() -> str:
    return "ok"


def test_options_are_kept() -> None:
    made = tool(name="send", side_effects=True, concurrency=2, rate=5.0, timeout_s=3, retries=1)(lambda_with_name)
    assert isinstance(made, Tool)
    assert (made.name, made.side_effects, made.cache, made.concurrency, made.rate) == ("send", True, False, 2, 5.0)
    assert (made.timeout_s, made.retries) == (3, 1)
    assert tool(lambda_with_name).cache is True
    assert repr(made) == "Tool('send', no arguments)"
    assert made() == "ok"
    assert made.__doc__ is None
    assert made.__wrapped__ is lambda_with_name  # type: ignore[attr-defined]


def test_an_async_tool_runs_on_the_loop_and_a_sync_one_in_a_daemon_thread() -> None:
    where = ContextVar("where", default="nobody")

    @tool
    async def on_loop() -> tuple[bool, str]:
        return threading.current_thread() is threading.main_thread(), where.get()

    @tool
    def in_thread() -> tuple[bool, str]:
        return threading.current_thread().daemon, where.get()

    @tool(threaded=False)
    def quick() -> bool:
        return threading.current_thread() is threading.main_thread()

    async def main() -> None:
        where.set("main")
        assert await on_loop.call({}) == (True, "main")
        assert await in_thread.call({}) == (True, "main")
        assert await quick.call({})

    asyncio.run(main())


def test_more_blocking_tools_run_at_once_than_there_are_cores() -> None:
    barrier = threading.Barrier(40, timeout=20)

    @tool
    def meet(n: int) -> int:
        barrier.wait()
        return n

    async def main() -> list[int]:
        return await asyncio.gather(*(meet.call({"n": n}) for n in range(40)))

    assert asyncio.run(main()) == list(range(40))


def test_a_tool_that_hangs_ends_in_time_and_the_program_goes_on() -> None:
    release = threading.Event()

    @tool(timeout_s=0.05)
    def hang() -> None:
        release.wait(20)

    @tool(timeout_s=0.05)
    async def hang_async() -> None:
        await asyncio.sleep(20)

    @tool(timeout_s=20)
    async def own_timeout() -> None:
        raise TimeoutError("the tool's own")

    start = time.monotonic()
    with pytest.raises(ToolTimeout, match=r"tool 'hang': no result within 0.05 s"):
        asyncio.run(hang.call({}))
    with pytest.raises(ToolTimeout):
        asyncio.run(hang_async.call({}))
    assert time.monotonic() - start < 15
    release.set()
    with pytest.raises(TimeoutError, match="the tool's own"):
        asyncio.run(own_timeout.call({}))


def test_cancelling_the_call_cancels_the_tool() -> None:
    seen: list[str] = []

    @tool(timeout_s=30)
    async def wait() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main() -> None:
        call = asyncio.ensure_future(wait.call({}))
        await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(main())
    assert seen == ["cancelled"]


def test_retries_until_it_works_and_the_last_error_is_kept() -> None:
    left = [2]

    @tool(retries=2)
    def flaky() -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(f"attempt with {left[0]} left")
        return "done"

    assert asyncio.run(flaky.call({})) == "done"
    left[0] = 3
    with pytest.raises(OSError, match="0 left"):
        asyncio.run(flaky.call({}))


def test_a_tool_cannot_end_the_program() -> None:
    @tool
    def leave() -> None:
        sys.exit(3)

    @tool
    def stop() -> None:
        raise StopIteration

    for each in (leave, stop):
        with pytest.raises(RuntimeError, match="the function raised"):
            asyncio.run(each.call({}))


def test_numpy_and_sphinx_docstrings() -> None:
    @tool
    def numpy_style(a: int, b: int) -> int:
        """Adds.

        Parameters
        ----------
        a : int
            the first
            of two
        b
            the second

        Returns
        -------
        int
            the sum
        """
        return a + b

    @tool
    def sphinx_style(a: int, b: int) -> int:
        """Adds.
        :param int a: the first
            of two
        :param b: the second
        :returns: the sum
        """
        return a + b

    for each in (numpy_style, sphinx_style):
        assert each.description == "Adds."
        descriptions = {name: schema["description"] for name, schema in each.schema["properties"].items()}
        assert descriptions == {"a": "the first of two", "b": "the second"}


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.sampled_from(["line", "unit", "n", "other"]), _json, max_size=4))
def test_any_json_is_accepted_as_the_schema_says_or_refused(args: dict[str, Any]) -> None:
    @tool(threaded=False)
    def f(line: Line | None = None, unit: Unit | str = "m", n: int | None = None) -> bool:
        assert line is None or isinstance(line, Line)
        return n is None or type(n) is int

    if Draft202012Validator(f.schema).is_valid(args):
        assert asyncio.run(f.call(args)) is True
    else:
        with pytest.raises(ArgumentsInvalid):
            asyncio.run(f.call(args))


def test_a_tool_that_ignores_its_cancellation_does_not_keep_the_loop() -> None:
    @tool(timeout_s=0.05)
    async def stubborn() -> None:
        "Never stops."
        while True:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                continue

    async def main() -> None:
        with pytest.raises(ToolTimeout):
            await stubborn.call({})

    asyncio.run(main())  # which waits for every task that it can see


_TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null"])
_VALUES = st.one_of(
    st.text(max_size=3), st.integers(), st.floats(), st.booleans(), st.none(), st.just([]), st.just({}), st.just(1.0)
)


@given(
    st.dictionaries(st.sampled_from("abc"), _TYPES), st.dictionaries(st.sampled_from("abcd"), _VALUES), st.booleans()
)
@settings(max_examples=25)
def test_the_short_way_to_check_values_agrees_with_jsonschema(types: Any, args: Any, closed: bool) -> None:
    from jsonschema import Draft202012Validator

    schema = {"type": "object", "properties": {name: {"type": kind} for name, kind in types.items()}}
    if closed:
        schema["additionalProperties"] = False
    made = Tool("t", "", schema, lambda **values: None)
    errors = [error for error in Draft202012Validator(schema).iter_errors(args) if error.path]
    assert len(made.value_faults(args)) == len(errors)
