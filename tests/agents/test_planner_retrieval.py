"""Which of many tools a planner is shown."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest

from agent_forge.agents.planner import ForgedPlanner, forged, retrieval
from agent_forge.agents.planner.batch import SchemaTool
from agent_forge.agents.planner.retrieval import LENGTH, SATURATION, Catalogue
from agent_forge.tasks.words import content_words


def tool_of(name: str, description: str, **parameters: Any) -> SchemaTool:
    return SchemaTool(name, description, {"type": "object", "properties": parameters, "required": []})


def filler(count: int) -> list[SchemaTool]:
    rng = random.Random(1)
    words = ["archive", "budget", "canvas", "dial", "engine", "fabric", "garden", "hotel", "index", "journal", "kettle"]
    return [
        tool_of(f"{'_'.join(rng.sample(words, 2))}_{n}", f"Handle the {' '.join(rng.sample(words, 4))}")
        for n in range(count)
    ]


NEEDED = [
    tool_of("getWeather", "Current weather in a city", city={"type": "string"}),
    tool_of("sendMail", "Send an e-mail to a person", recipient={"type": "string"}),
    tool_of("convert", "Convert an amount", to={"type": "string", "enum": ["euro", "dollar", "yen"]}),
    tool_of("bookTable", "Reserve a place", restaurant={"type": "string", "description": "where to have dinner"}),
]
REQUEST = "Tell me the weather in Oslo, then mail it to Bob. Convert 20 dollars to yen. Finally, find dinner for two."


def test_each_thing_that_a_request_asks_for_finds_its_tool() -> None:
    others = filler(300)
    tools = [*others[:150], *NEEDED, *others[150:]]
    shown = Catalogue.of(tools).nearest(REQUEST, 8)
    assert len({tool.name for tool in shown}) == 8
    assert {tool.name for tool in NEEDED} <= {tool.name for tool in shown}


def test_the_scores_are_those_of_bm25_written_out() -> None:
    tools = [tool_of("x", text) for text in ("red fox", "red red wine", "blue wine glass and more wine", "")]
    texts = [Counter(["x"] * 3 + content_words(tool.description) * 2) for tool in tools]
    mean = sum(text.total() for text in texts) / len(texts)
    for place, score in Catalogue.of(tools)._scores("wine red wine").items():
        expected = 0.0
        for word, times in Counter(content_words("wine red wine")).items():
            holding = sum(word in text for text in texts)
            if texts[place][word]:
                count, length = texts[place][word], texts[place].total()
                rarity = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
                full = SATURATION * (1 - LENGTH + LENGTH * length / mean)
                expected += rarity * count / (count + full) * (1 + math.log(times))
        assert score == pytest.approx(expected)


@pytest.mark.parametrize("request_", ["", "???", "zzz qqq", "the of and", "Ω " * 500])
def test_a_request_without_known_words_still_gets_tools(request_: str) -> None:
    assert len(Catalogue.of(NEEDED).nearest(request_, 3)) == 3
    assert Catalogue.of([]).nearest(request_, 3) == []


def test_a_large_catalogue_is_indexed_once_and_its_tools_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    planner, tools = ForgedPlanner(), [*filler(40), *NEEDED]
    model = forged.plan_model(planner.folder)
    read: list[int] = []
    inner = model.model.read
    monkeypatch.setattr(model.model, "read", lambda history, ids: read.append(len(ids)) or inner(history, ids))
    first = planner.plan_now("Get the weather in Oslo.", tools=tools)
    before, read[:] = max(read), []
    index = retrieval._latest[0]
    again = planner.plan_now("Get the weather in Oslo.", tools=list(tools))
    assert retrieval._latest[0] is index
    assert [dict(task.args) for task in again] == [dict(task.args) for task in first]
    # The tools' part of the prompt is not read a second time: the longest piece left is the request.
    request = len(model.tokenizer.encode(forged.request_text("Get the weather in Oslo."), add_special_tokens=False).ids)
    assert before > 5 * request
    assert max(read) == request
