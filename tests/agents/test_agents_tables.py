"""The query language against plain Python, CSV against the csv module, and what both refuse."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_forge.agents.tools import query as query_module
from agent_forge.agents.tools.query import query
from agent_forge.agents.tools.tables import query_csv, query_json, read_csv, read_json
from agent_forge.errors import ToolError

SHOP: dict[str, Any] = {
    "name": "corner shop",
    "odd key": {"a-b": 1},
    "orders": [
        {"id": 1, "total": 30, "by": {"name": "Ada"}, "tags": ["new"]},
        {"id": 2, "total": 120.5, "by": {"name": "Alan"}, "tags": ["old", "big"], "paid": True},
        {"id": 3, "total": 250, "by": {"name": "Grace"}, "tags": ["big"], "paid": False},
        {"id": 4, "total": None, "tags": []},
    ],
}
ORDERS = SHOP["orders"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (".", SHOP),
        ("", SHOP),
        (".name", "corner shop"),
        ("name", "corner shop"),
        ('.["odd key"]["a-b"]', 1),
        ('."odd key".a-b', 1),
        (".orders[0].id", 1),
        (".orders[-1].id", 4),
        (".orders[*].id", [1, 2, 3, 4]),
        (".orders[*].by.name", ["Ada", "Alan", "Grace", None]),
        (".orders[*].tags[0]", ["new", "old", "big", None]),
        (".orders[*].tags[*]", ["new", "old", "big", "big"]),
        (".orders[*].tags[*] | unique", ["new", "old", "big"]),
        (".orders[1:3].id", [2, 3]),
        (".orders[:1].id", [1]),
        (".orders[-2:].id", [3, 4]),
        (".orders[? .total > 100].id", [2, 3]),
        (".orders[? .total >= 30 and .total <= 120.5].id", [1, 2]),
        (".orders[? .total < 100 or .total > 200].id", [1, 3]),
        (".orders[? not .paid].id", [1, 3, 4]),
        (".orders[? .paid == true].id", [2]),
        (".orders[? .total == null].id", [4]),
        (".orders[? .total != null].id", [1, 2, 3]),
        (".orders[? .by.name startswith 'A'].id", [1, 2]),
        ('.orders[? .tags contains "big" and not (.id == 3)].id', [2]),
        ('.orders[? "big" in .tags].id', [2, 3]),
        ('.orders[? .by.name contains "a"].id', [1, 2, 3]),
        (".orders[? .by contains 'name'].id", [1, 2, 3]),
        (".orders[? .tags contains .nothing].id", []),
        (".orders[? .total > 'x'].id", []),
        (".orders[? .tags == .tags].id", [1, 2, 3, 4]),
        (".orders | count", 4),
        (".orders[*].total | sum", 400.5),
        (".orders[*].total | max", 250),
        (".orders[*].total | min", 30),
        (".orders[*].total | mean", 133.5),
        (".orders | first", ORDERS[0]),
        (".orders | last", ORDERS[3]),
        (".orders[? false] | first", None),
        (".orders[? .id > 9] | last", None),
        (".orders | sort(.total) | reverse | limit(1)", [ORDERS[2]]),
        (".orders[*].by.name | sort", [None, "Ada", "Alan", "Grace"]),
        (".orders | pick(id, total) | limit(2)", [{"id": 1, "total": 30}, {"id": 2, "total": 120.5}]),
        (".orders | group(.paid) | keys", ["null", "True", "False"]),
        ("orders[0] | values", list(ORDERS[0].values())),
        (".orders | keys", [0, 1, 2, 3]),
        (".orders | values | count", 4),
        ('.["odd key"][*]', [1]),
        (".orders[? .tags[1] == 'big'].id", [2]),
        (r".orders[? .by.name == 'A\da'].id", [1]),
        (".orders[*].id[*]", []),
    ],
)
def test_queries(text: str, expected: Any) -> None:
    assert query(SHOP, text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (".ordrs", "no field 'ordrs', did you mean 'orders'"),
        (".orders.id", r"use \[\*\]"),
        (".name.x", "'x' is a field, but here is a text"),
        (".orders[9]", r"no item \[9\] in a list of 4"),
        (".name[0]", "needs a list, but here is a text"),
        (".name[*]", "needs a list"),
        (".name | count", "count needs a list"),
        (".orders | total", "no function 'total'"),
        (".orders | cuont", "did you mean 'count'"),
        (".orders | count(1)", "'count' takes no argument"),
        (".orders[*].by | sum", "sum needs numbers, but here is an object"),
        (".orders[*].paid | sum", "here is a boolean"),
        (".orders[? .id > 9].id | mean", "mean of nothing"),
        (".orders[? .id > 9].id | max", "max of nothing"),
        (".orders[", "expected"),
        (".orders[]", "a number, a text"),
        (".orders[1.5]", "whole number"),
        (".orders[0", r"'\]' is expected"),
        (".orders[0] x", "is expected, not 'x'"),
        (".orders..id", "a name is expected"),
        (".orders[? .id = 1]", "write == to compare"),
        (".orders[? id > 1]", "a .field, a number"),
        (".orders | ", "a name is expected"),
        (".orders | limit(a)", "whole number"),
        (".a ; .b", "'; .b' is not understood"),
        (".orders[? " + "not " * 30 + ".id]", "nested 20 deep"),
        (".orders[? " + "(" * 30 + ".id" + ")" * 30 + "]", "nested 20 deep"),
        ("." + "a" * 2000, "2001 characters"),
    ],
)
def test_faults_say_what_and_where(text: str, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        query(SHOP, text)


_rows = st.lists(
    st.fixed_dictionaries({"n": st.integers(-50, 50) | st.none(), "s": st.text("abc", max_size=3)}), max_size=15
)


@settings(max_examples=150, deadline=None)
@given(_rows, st.integers(-50, 50), st.text("abc", max_size=2))
def test_filters_agree_with_comprehensions(rows: list[dict[str, Any]], n: int, s: str) -> None:
    got = query(rows, f'[? .n > {n} and .s contains "{s}" or .n == null]')
    assert got == [r for r in rows if (r["n"] is not None and r["n"] > n and s in r["s"]) or r["n"] is None]
    assert query(rows, f"[? .n <= {n}].n | count") == sum(r["n"] is not None and r["n"] <= n for r in rows)
    assert query(rows, "[*].n | sum") == sum(r["n"] or 0 for r in rows)


@settings(max_examples=400, deadline=None)
@given(st.text(max_size=40) | st.text(".[]?*|()\"'ab01=<>, :", max_size=40))
def test_any_text_is_answered_or_refused(text: str) -> None:
    try:
        answer = query(SHOP, text)
    except ToolError:
        return  # refused, with the one error that a tool may raise
    assert json.loads(json.dumps(answer)) == answer


def test_csv_rows() -> None:
    text = '\ufeffname,age,zip,note\r\nAda,36,01234,"likes ""x"", y"\r\n\r\nAlan,41.5,+7,\r\nBob,-3,1e3,1_0\r\n'
    assert read_csv(text) == [
        {"name": "Ada", "age": 36, "zip": "01234", "note": 'likes "x", y'},
        {"name": "Alan", "age": 41.5, "zip": 7, "note": None},
        {"name": "Bob", "age": -3, "zip": 1000.0, "note": "1_0"},
    ]
    assert read_csv("a;b\n1;2\n", ";") == [{"a": 1, "b": 2}]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), min_size=1), min_size=2, max_size=2)
    )
)
def test_csv_reads_what_csv_writes(rows: list[list[str]]) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([["x", "y"], *rows])
    got = read_csv(text.getvalue())
    assert [[str(c) if isinstance(c, str) else c for c in row.values()] for row in got] == [
        [_expected(cell.strip()) for cell in row] for row in rows
    ]


def _expected(cell: str) -> Any:
    import re

    if not cell:
        return None
    if not re.fullmatch(r"[+-]?(0|[1-9][0-9]{0,200})(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?", cell):
        return cell
    return float(cell) if set(cell) & set(".eE") else int(cell)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must name every column"),
        ("a,,c\n", "must name every column"),
        ("a,a\n", "two columns are named 'a'"),
        ("a,b\n1\n", "line 2 of the CSV has 1 cells, the header has 2"),
        ('a,b\n"1,2\n', "not CSV"),
        ("a" * 6_000_000, "5,000,000 are allowed"),
    ],
)
def test_csv_faults(text: str, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        read_csv(text)


def test_other_faults() -> None:
    with pytest.raises(ToolError, match="one character"):
        read_csv("a\n", "")
    with pytest.raises(ToolError, match=r"not JSON: .*line 1 column 2"):
        read_json("{")
    with pytest.raises(ToolError, match="cannot be read as JSON"):
        read_json("[" * 200_000)
    with pytest.raises(ToolError, match="cannot be read as JSON"):
        read_json("1" * 10_000)
    with pytest.raises(ToolError, match=r"limit\(100\)"):
        asyncio.run(query_json.call({"data": ["x" * 1000] * 1000, "query": "."}))


def test_the_tools() -> None:
    def ask(tool: Any, **args: Any) -> Any:
        return asyncio.run(tool.call(args))

    assert ask(query_json, data=SHOP, query=".orders | count") == 4
    assert ask(query_json, data=json.dumps(SHOP), query=".orders | count") == 4
    assert ask(query_csv, data="city,people\nOslo,700\nRome,2800\n", query="[? .people > 1000].city") == ["Rome"]
    assert "path with filters" in query_csv.schema["properties"]["query"]["description"]
    assert "condition = " in (query_module.__doc__ or "")
