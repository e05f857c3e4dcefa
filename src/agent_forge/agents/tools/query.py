"""JMESPath (https://jmespath.org) over JSON values, with a bound on the work that one query may do.

Queries come from models, and a short one can be expensive: `[@,@][] | [@,@][] | …` doubles its result at every step.
The interpreter therefore counts every node that it visits, compares, copies or passes to a function, and stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from agent_forge.agents.tools.tool import did_you_mean
from agent_forge.errors import ToolError

MOST_CHARACTERS = 1000
MOST_WORK = 3_000_000  # values; about a second
EXAMPLES = "orders[?total > `100`].id, length(orders), sort_by(orders, &total)[-1]"


def query(data: Any, text: str) -> Any:
    """The value of a JMESPath expression.

    >>> orders = {"orders": [{"id": 1, "total": 30}, {"id": 2, "total": 120}, {"id": 3, "total": 250}]}
    >>> query(orders, "orders[?total > `100`].id")
    [2, 3]
    >>> query(orders, "avg(orders[*].total)")
    133.33333333333334

    As in the specification, a missing field is null. Raises ToolError for a malformed expression, a function applied
    to a value of the wrong type, and a query that is too long or does too much.
    """
    import jmespath

    if len(text) > MOST_CHARACTERS:
        raise ToolError(f"the query has {len(text)} characters, the limit is {MOST_CHARACTERS}")
    where = f"query {text!r}"
    try:
        return _interpreter()(data, jmespath.compile(text).parsed)
    except jmespath.exceptions.JMESPathError as error:
        what, fix = _explained(error)
        raise ToolError(what, where=where, fix=fix) from error
    except RecursionError as error:
        raise ToolError("the query is nested too deeply", where=where) from error
    except (TypeError, ValueError, OverflowError) as error:
        raise ToolError(f"it cannot be evaluated: {error}", where=where) from error


def _explained(error: Exception) -> tuple[str, str | None]:
    """What is wrong with a query, on one line and without the data, and how to repair it."""
    from jmespath import exceptions, functions

    if isinstance(error, exceptions.UnknownFunctionError):
        name = str(error).removeprefix("Unknown function: ").removesuffix("()")
        return f"there is no function {name!r}{did_you_mean(name, functions.Functions.FUNCTION_TABLE)}", None
    if isinstance(error, exceptions.JMESPathTypeError):
        types, value = " or ".join(error.expected_types), repr(error.current_value)[:80]
        return f"{error.function_name}() needs {types}, got {error.actual_type} {value}", None
    if isinstance(error, exceptions.ArityError):
        return str(error), None
    at = getattr(error, "lex_position", None)
    place = "" if at is None else f" at character {at + 1}"
    return f"not a JMESPath expression{place}", f"Write, for example, {EXAMPLES}"


@cache
def _interpreter() -> Callable[[Any, Any], Any]:
    """Runs a parsed expression on a value. Built on first use: importing jmespath takes longer than most queries."""
    from jmespath.functions import Functions
    from jmespath.visitor import Options, TreeInterpreter

    class CountingFunctions(Functions):
        def __init__(self, charge: Callable[..., None]) -> None:
            self.charge = charge

        def call_function(self, function_name: str, resolved_args: Iterable[Any]) -> Any:
            self.charge(*resolved_args)
            return super().call_function(function_name, resolved_args)

    class CountingInterpreter(TreeInterpreter):
        def __init__(self) -> None:
            super().__init__(Options(custom_functions=CountingFunctions(self.charge)))
            self.work = 0
            tests = {name: self.charged(test) for name, test in TreeInterpreter.COMPARATOR_FUNC.items()}
            self.COMPARATOR_FUNC = tests  # type: ignore[misc]

        def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
            result = super().visit(node, *args, **kwargs)
            if node["type"] in ("multi_select_list", "multi_select_dict"):
                self.charge(result)  # the nodes that can multiply what is there
            else:
                self.add(1 + len(result) if isinstance(result, list) else 1)
            return result

        def charged(self, test: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
            def compare(left: Any, right: Any) -> Any:
                self.charge(left, right)
                return test(left, right)

            return compare

        def charge(self, *values: Any) -> None:
            """Counts everything inside the values; what is shared counts as often as it occurs."""
            waiting = list(values)
            while waiting:
                value = waiting.pop()
                if isinstance(value, list):
                    self.add(len(value))
                    waiting.extend(value)
                elif isinstance(value, dict):
                    self.add(len(value))
                    waiting.extend(value.values())
                elif isinstance(value, str):
                    self.add(len(value) // 8)
            self.add(len(values))

        def add(self, values: int) -> None:
            self.work += values
            if self.work > MOST_WORK:
                raise ToolError(f"the query visits more than {MOST_WORK:,} values", fix="Filter before you combine")

    return lambda data, tree: CountingInterpreter().visit(tree, data)
