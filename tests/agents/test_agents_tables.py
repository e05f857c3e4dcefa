"""Queries against jmespath itself and plain Python, CSV against the csv module, and what both refuse."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import time
from typing import Any

import jmespath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
        ("@", SHOP),
        ("name", "corner shop"),
        ('"odd key"."a-b"', 1),
        ("orders[-1].id", 4),
        ("orders[*].by.name", ["Ada", "Alan", "Grace"]),
        ("orders[].tags[]", ["new", "old", "big", "big"]),
        ("orders[?total >= `30` && total <= `120.5`].id", [1, 2]),
        ("orders[?!paid].id", [1, 3, 4]),
        ("orders[?contains(tags, 'big') && id != `3`].id", [2]),
        ("orders[?starts_with(by.name || '', 'A')].id", [1, 2]),
        ("sum(orders[*].total)", 400.5),
        ("avg(orders[*].total)", 133.5),
        ("max_by(orders[?total], &total).id", 3),
        ("orders[:2].{id: id, total: total}", [{"id": 1, "total": 30}, {"id": 2, "total": 120.5}]),
        ("nothing", None),
    ],
)
def test_queries(text: str, expected: Any) -> None:
    assert query(SHOP, text) == jmespath.search(text, SHOP) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a JMESPath expression"),
        (".orders", r"not a JMESPath expression at character 1\. Write, for example, orders\[\?total > `100`\]"),
        ("orders[?total > 100].id", "at character"),
        ("orders[", "at character 8"),
        ("`[1", "at character 1"),
        ("lenght(orders)", "no function 'lenght', did you mean 'length'"),
        ("length(orders, orders)", "Expected 1 argument for function length"),
        ("length(orders[0].id)", r"length\(\) needs string or array or object, got number 1"),
        ("orders[?total > 'x']", "cannot be evaluated: '>' not supported"),
        ("orders[::0]", "slice step cannot be zero"),
        ("!" * 900 + "a", "nested too deeply"),
        ("a" * 2000, "2000 characters, the limit is 1000"),
    ],
)
def test_faults_say_what_and_where(text: str, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        query(SHOP, text)


@pytest.mark.parametrize(
    "text",
    [
        " | ".join(["[@,@][]"] * 80),  # doubles its length
        " | ".join(["[@,@]"] * 100),  # doubles what it would be as text
        " | ".join(["[@,@]"] * 60) + " | to_string(@)",
        " | ".join(["[@,@]"] * 60) + " | @ == @",
        "[*].name | join('', @) | " + " | ".join(["[@,@] | join('', @)"] * 40),
        " | ".join(["map(&[@,@,@], @)"] * 40),
        "[" + ",".join("@" * 100) + "] | [?" + " && ".join(["@==@"] * 90) + "]",
    ],
)
def test_the_work_of_a_query_is_bounded(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_forge.agents.tools.query.MOST_WORK", 300_000)  # a tenth of the real limit
    rows = [{"name": "x" * 20, "n": n} for n in range(5_000)]
    started = time.process_time()
    with pytest.raises(ToolError, match="more than"):
        asyncio.run(query_json.call({"data": rows, "query": text}))
    assert time.process_time() - started < 20  # a hang guard: it takes a tenth of a second


_rows = st.lists(
    st.fixed_dictionaries({"n": st.integers(-50, 50) | st.none(), "s": st.text("abc", max_size=3)}), max_size=15
)


@settings(max_examples=25, deadline=None)
@given(_rows, st.integers(-50, 50), st.text("abc", min_size=1, max_size=2))
def test_filters_agree_with_comprehensions(rows: list[dict[str, Any]], n: int, s: str) -> None:
    matches = query(rows, f"[?n > `{n}` && contains(s, '{s}') || n == null]")
    assert matches == [r for r in rows if (r["n"] is not None and r["n"] > n and s in r["s"]) or r["n"] is None]
    assert query(rows, f"length([?n <= `{n}`])") == sum(r["n"] is not None and r["n"] <= n for r in rows)
    assert query(rows, "sum([*].n)") == sum(r["n"] or 0 for r in rows)


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=40) | st.text(".[]?*|()\"'`&@!{}ab01=<>, :", max_size=40))
def test_any_text_is_answered_or_refused(text: str) -> None:
    try:
        answer = asyncio.run(query_json.call({"data": SHOP, "query": text}))
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


@settings(max_examples=25, deadline=None)
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
        ("a" * 6_000_000, "limit is 5,000,000"),
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
    with pytest.raises(ToolError, match="more than 200,000 characters"):
        asyncio.run(query_json.call({"data": ["x" * 1000] * 1000, "query": "@"}))
    with pytest.raises(ToolError, match="the result is not JSON"):
        asyncio.run(query_json.call({"data": 0, "query": "to_number('1e999')"}))


def test_the_tools() -> None:
    def ask(tool: Any, **args: Any) -> Any:
        return asyncio.run(tool.call(args))

    assert ask(query_json, data=SHOP, query="length(orders)") == 4
    assert ask(query_json, data=json.dumps(SHOP), query="length(orders)") == 4
    assert ask(query_csv, data="city,people\nOslo,700\nRome,2800\n", query="[?people > `1000`].city") == ["Rome"]
    assert "JMESPath" in query_csv.schema["properties"]["query"]["description"]
