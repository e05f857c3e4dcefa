"""The graph format: calls, tolerance, and attacks."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agent_forge.plans import Plan, PlanInvalid, Task, parse_plan, read_call, to_xml, write_call
from agent_forge.plans.calls import NotACall


def graph(*nodes: str) -> Plan:
    return parse_plan("<graph>\n" + "\n".join(nodes) + "\n</graph>")


def test_the_example_of_the_format() -> None:
    plan = graph(
        '<node id="s1">search("capital of France")</node>',
        '<node id="s2" depends="s1">search("population of {s1} | area of {s1}")</node>',
        '<node id="s3" depends="s1,s2">compare({s1}, {s2.queries[0]})</node>',
        "<node id='s4'>Tell the result of {s3}</node>",
    )
    assert [(task.action, task.args) for task in plan] == [
        ("search", {"query": "capital of France"}),
        ("search", {"queries": ["population of {s1}", "area of {s1}"]}),
        ("compare", {"args": ["{s1}", "{s2.queries[0]}"]}),
        (None, {}),
    ]
    assert plan["s1"].goal == 'search("capital of France")'
    assert plan.levels() == [["s1"], ["s2"], ["s3"], ["s4"]]


@pytest.mark.parametrize(
    ("call", "action", "args"),
    [
        ('search("a")', "search", {"query": "a"}),
        ("search('it\\'s')", "search", {"query": "it's"}),
        ('search("a|b | c")', "search", {"queries": ["a", "b", "c"]}),
        ('search("a", "b")', "search", {"queries": ["a", "b"]}),
        ('search(query="a|b")', "search", {"query": "a|b"}),
        ("search(capital of France)", "search", {"query": "capital of France"}),
        ('search("the film "Alien" director")', "search", {"query": 'the film "Alien" director'}),
        ("search({s1})", "search", {"query": "{s1}"}),
        ("search({s1} and {s2})", "search", {"query": "{s1} and {s2}"}),
        ('answer("42")', "answer", {"text": "42"}),
        ("answer()", "answer", {}),
        ('think("a|b")', "think", {"text": "a|b"}),
        ('f({s1}, {s2.a[0]["b c"]}, 3, [1, "{x}"], {"k": null}, k=true,)', "f", None),
        ("f(a=1, b='two')", "f", {"a": 1, "b": "two"}),
        ("f ( {} )", "f", {"args": [{}]}),
        ("tools.web:get-page(url='x')", "tools.web:get-page", {"url": "x"}),
    ],
)
def test_calls(call: str, action: str, args: dict[str, Any] | None) -> None:
    found = read_call(call)
    assert found[0] == action
    if args is None:
        args = {"args": ["{s1}", '{s2.a[0]["b c"]}', 3, [1, "{x}"], {"k": None}], "k": True}
    assert found[1] == args
    written = write_call(*found)
    assert written is not None
    assert read_call(written) == found


@pytest.mark.parametrize(
    "call",
    [
        "f(s1)",
        "f(1",
        "f(1 2)",
        "f(a=1, a=2)",
        "f(1, args=[2])",
        "f(1) and g(2)",
        "f({)",
        "1f()",
        'search("a||b")',
        'search("a',
        "f('x)",
    ],
)
def test_what_is_no_call(call: str) -> None:
    with pytest.raises(NotACall):
        read_call(call)


def test_calls_that_cannot_be_written_are_none() -> None:
    assert write_call("odd name", {}) is None
    assert write_call("f", {"odd key": 1}) is None


@pytest.mark.parametrize(
    "text",
    [
        '<graph><node id="a" depends="none">x & y < 3 &amp; z</node><node id="b" depends="a">y</node></graph>',
        '<think>Task 1: x</think><plan>\n<graph>\n<node id="a">x & y < 3 &#38; z</node>'
        '<node id="b" depends_on="a">y</node></graph>\n</plan>',
        "prose <GRAPH>\n<!-- c --><Node id=a depends='-'>x &#x26; y &lt; 3 & z</Node>"
        "<NODE ID='b' deps=a>y</NODE></GRAPH> prose",
        '<graph><node id="a"><![CDATA[x & y < 3 & z]]></node><node id="b" depends=\'["a"]\' description="y"/></graph>',
        '<?xml version="1.0"?><graph><node id=" a " goal="x &amp; y &lt; 3 &amp; z"/><?pi x?>'
        '<node id="b" depends="a" goal="y"></node></graph>',
        '```xml\n<graph><node id="a">"x & y < 3 & z"</node><node id="b" depends="a">y</node></graph>\n```',
    ],
)
def test_ways_to_write_the_same_graph(text: str) -> None:
    assert list(parse_plan(text)) == [Task("a", "x & y < 3 & z"), Task("b", "y", depends_on=["a"])]


def test_nodes_in_nodes_are_groups() -> None:
    plan = graph(
        '<node id="g" goal="all"><node id="a">x y</node>', '<node id="b" depends="a"/></node><node id="c" depends="g"/>'
    )
    assert plan.composites == ("g",)
    assert plan.dependencies == {"a": (), "b": ("a",), "c": ("b",)}


@pytest.mark.parametrize(
    ("node", "says"),
    [
        ("<node>x</node>", "no id"),
        ('<node id="b" after="a">x</node>', "no attribute 'after'"),
        ('<node id="b" id="c">x</node>', "twice"),
        ('<node id="b" depends>x</node>', "not an attribute"),
        ('<node id="b" depends=\'"\'>x</node>', "not a list of ids"),
        ('<node id="b" limit="few">x</node>', "whole number"),
        ('<node id="b" args="[1]">x</node>', "object"),
        ('<node id="b" meta="{">x</node>', "not JSON"),
        ('<node id="b" goal="x">y</node>', "attribute goal"),
        ('<node id="b" action="f">g(1)</node>', "attributes action"),
        ('<node id="b">f(s1)</node>', "not a value"),
        ('<node id="b">&unknown;</node>', "not defined"),
        ('<node id="b">&#xD800;</node>', "not a character"),
        ('<node id="b">&#0;</node>', "not a character"),
        ("<edge from='a' to='b'/>", "not a part of a graph"),
        ("stray", "between the nodes"),
        ("</node>", "without a <node>"),
        ('<node id="b">', "comes inside node 'b'"),
        ("<!DOCTYPE x>", "declarations"),
        ('<!ENTITY x "y">', "declarations"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(node: str, says: str) -> None:
    with pytest.raises(PlanInvalid) as refused:
        graph('<node id="a">x</node>', node)
    fault = refused.value.errors[0]
    assert (fault.code, fault.line) == ("malformed", 4 if node == '<node id="b">' else 3)
    assert says in fault.message


LAUGHS = '<!ENTITY l0 "lol">' + "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"<!DOCTYPE x [{LAUGHS}]><graph><node id='a'>&l9;</node></graph>", "malformed"),
        (f"<graph>{LAUGHS}<node id='a'>&l9;</node></graph>", "malformed"),
        ("<graph><node id='a'>&l9;</node></graph>", "malformed"),
        ('<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><graph><node id="a">&f;</node></graph>', "malformed"),
        ("<graph>" + "".join(f"<node id='n{i}'>" for i in range(200_000)), "too_large"),
        ("<graph>" + "<x>" * 1000 + "</graph>", "malformed"),
        (f"<graph><node id='{'x' * 3_000_000}'>a</node></graph>", "malformed"),
        ("<graph><node id='a' " + "y='1' " * 100_000 + ">a</node></graph>", "malformed"),
        ("<graph><node id='a'>" + "<" * 2_000_000, "malformed"),
        ("<graph><node id='a'>" + "<a " * 500_000, "malformed"),
        ("<graph>" + "<!--" * 500_000, "malformed"),
        ("<graph><node id='a'>f(" + "{" * 200_000 + ")</node></graph>", "malformed"),
        ("<graph><node id='a'>f(" + "[" * 200_000 + ")</node></graph>", "malformed"),
        ("<graph><node id='a' depends='" + '"' * 100_001 + "'>x</node></graph>", "malformed"),
        ("<graph>" + "<node id='a'/>" * 10_001 + "</graph>", "too_large"),
    ],
    ids=range(15),
)
def test_attacks_are_refused_quickly(text: str, code: str) -> None:
    started = time.process_time()
    with pytest.raises(PlanInvalid) as refused:
        parse_plan(text)
    assert code in refused.value.codes
    assert time.process_time() - started < 20  # a hang guard


def test_goals_with_anything_in_them_are_written_plainly_where_that_is_enough() -> None:
    plan = Plan([Task("a", "x < y & z"), Task("b", "call(1)"), Task("c", "\x00")])
    assert to_xml(plan).splitlines()[1:-1] == [
        '  <node id="a">x &lt; y &amp; z</node>',
        '  <node id="b" goal="call(1)"/>',
        '  <node id="c" goal="&quot;\\u0000&quot;"/>',
    ]
