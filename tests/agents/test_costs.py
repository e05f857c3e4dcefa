"""What model calls cost: said by the provider, by the user's prices or the public ones, else not known; and budgets."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from agents_chat_server import ChatServer, Reply, chat, chat_server, event, reply, stream

from agent_forge import Plan, Task, run, tool
from agent_forge.cli import run as command
from agent_forge.errors import ConfigError
from agent_forge.inference import OpenAICompatible, TokenUsage
from agent_forge.inference.prices import cost_of, public_prices
from agent_forge.runtime import Budget, spend
from agent_forge.traces import Store

PRICES = json.dumps({"served-model": {"input": 1_000_000, "output": 2_000_000}})  # a call of 7 + 3 tokens: 13 dollars
CALL = 13.0


def answer(text: str = "done", model: str = "served-model", **usage: Any) -> Reply:
    document = chat(text)
    document["model"] = model
    document["usage"] |= usage
    return reply(document)


def tasks(count: int) -> Plan:
    """Tasks that a model does, one after the other."""
    return Plan(Task(f"t{n}", f"step {n}", depends_on=(f"t{n - 1}",) if n else ()) for n in range(count))


def client(server: ChatServer, name: str = "asked-model") -> OpenAICompatible:
    return OpenAICompatible(server.url, name)


def test_every_public_price_has_a_source_and_a_date() -> None:
    rows = json.loads((Path(__file__).parents[2] / "src/agent_forge/inference/prices.json").read_text())
    names = [name for row in rows for name in row["models"]]
    assert len(names) == len(set(names)) == len(public_prices())
    for row in rows:
        assert row["source"].startswith("https://"), row
        assert date.fromisoformat(row["date"]) <= date.today()
        assert 0 <= row.get("cached_input", 0) <= row["input"] <= row["output"], row


def test_a_cost_is_computed_to_the_cent_and_never_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_FORGE_PRICES", raising=False)
    usage = TokenUsage(1_000_000, 1_000_000, cached_tokens=400_000)
    assert cost_of(usage, "gpt-4o-mini", public=True) == pytest.approx(0.6 * 0.15 + 0.4 * 0.075 + 0.6)
    assert cost_of(usage, "served-7b", "gpt-4o-mini", public=True) == cost_of(usage, "gpt-4o-mini", public=True)
    for names in (("gpt-4o-mini-2030-01-01",), ("GPT-4o-mini",), ("openai/gpt-4o-mini",), ("",), ()):
        assert cost_of(usage, *names, public=True) is None
    assert cost_of(usage, "gpt-4o-mini", public=False) is None, "a model in this process is not OpenAI's"
    assert cost_of(TokenUsage(5, None), "gpt-4o-mini", public=True) is None
    assert cost_of(usage, "gpt-5.4", public=True) is None, "what cached tokens cost is not known"
    assert cost_of(TokenUsage(272_000, 0), "gpt-5.4", public=True) == pytest.approx(0.68)
    assert cost_of(TokenUsage(272_001, 0), "gpt-5.4", public=True) is None, "longer prompts cost more"
    monkeypatch.setenv(
        "AGENT_FORGE_PRICES", '{"gpt-4o-mini": {"input": 1, "output": 1}, "mine": {"input": 0, "output": 3}}'
    )
    assert cost_of(TokenUsage(1_000_000, 1_000_000), "gpt-4o-mini", public=True) == 2.0
    assert cost_of(TokenUsage(1_000_000, 1_000_000), "mine", public=False) == 3.0
    monkeypatch.setenv("AGENT_FORGE_PRICES", '{"mine": {"input": "much"}}')
    with pytest.raises(ConfigError, match=r"prices.mine.input"):
        cost_of(usage, "mine", public=True)


def test_the_provider_knows_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_FORGE_PRICES", PRICES)
    with chat_server(answer(cost=0.25)) as server:
        result = run(tasks(1), model=client(server), home=tmp_path)
    assert result.usage.cost == result.as_dict()["usage"]["cost"] == 0.25
    with chat_server(answer(cost="free")) as server:  # not a number: as if it had said nothing
        assert run(tasks(1), model=client(server), home=tmp_path).usage.cost == CALL


def test_the_cost_is_on_the_spans_in_the_result_and_in_the_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AGENT_FORGE_PRICES", raising=False)
    with chat_server(answer("yes", "gpt-4o-mini-2024-07-18", prompt_tokens=1000, completion_tokens=100)) as server:
        result = run(tasks(2), model=client(server, "gpt-4o-mini"), home=tmp_path)
    once = (1000 * 0.15 + 100 * 0.6) / 1e6
    assert result.usage.cost == pytest.approx(2 * once)
    with Store.open(tmp_path) as store:
        assert [span.cost for span in store.search(kind="model")] == [pytest.approx(once)] * 2
        assert [summary.cost for summary in store.traces()] == [pytest.approx(2 * once)]
    assert command(["traces", "stats", "--json", "--home", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["totals"]["cost"] == pytest.approx(2 * once)
    assert {row["agent"]: row["cost"] for row in document["agents"]} == {"default": pytest.approx(2 * once)}


def test_planning_and_the_answer_cost_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A streamed plan, its tasks and an answer: all of the calls are paid."""
    monkeypatch.setenv("AGENT_FORGE_PRICES", PRICES)
    plan = "<plan>\nTask 1: fetch the sales | Dependencies: none\nTask 2: fetch the costs | Dependencies: none\n"
    plan += "Task 3: compare {task_1} with {task_2} | Dependencies: Task 1, Task 2\n</plan>"
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    written = stream(event({"content": plan}), event({}, "stop"), event(usage=usage))
    with chat_server(written, answer("42")) as server:
        request = "Fetch the sales, fetch the costs, and compare both, then write a report"
        result = run(request, model=client(server), planner="model", home=tmp_path)
    assert result.usage.model_calls == len(server.requests) >= 4
    assert result.usage.cost == CALL * len(server.requests)
    with Store.open(tmp_path) as store:
        assert [span.cost for span in store.search(kind="model")] == [CALL] * len(server.requests)


def test_an_unknown_price_leaves_the_cost_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_FORGE_PRICES", raising=False)
    with chat_server(answer(cost=0.5), answer()) as server:
        result = run(tasks(2), model=client(server), home=tmp_path)
    assert result.usage.cost is None, "the part that is known would read as the whole"
    assert run("Where was the director of film Alien born?", home=tmp_path).usage.cost is None


def test_what_tools_report_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_FORGE_PRICES", PRICES)

    @tool
    def paid(x: int) -> int:
        """Costs two dollars."""
        spend(cost=2.0)
        return x

    plan = Plan([Task("a", action="paid", args={"x": 1}), Task("b", "think about it", depends_on=("a",))])
    with chat_server(answer()) as server:
        assert run(plan, tools=[paid], model=client(server), home=tmp_path).usage.cost == 2.0 + CALL


def test_a_budget_on_cost_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENT_FORGE_PRICES", PRICES)
    with chat_server(answer()) as server:
        result = run(tasks(5), model=client(server), budget=Budget(cost=1.5 * CALL), home=tmp_path)
        assert len(server.requests) == 2, "the second call passed the limit, a third was not made"
        assert (result.ok, result.usage.cost) == (False, 2 * CALL)
        assert "budget" in str(result.tasks["t2"].error)
        (tmp_path / "plan.json").write_text(json.dumps({"tasks": [{"id": f"t{n}", "goal": "go"} for n in range(5)]}))
        words = ["run", "--plan", str(tmp_path / "plan.json"), "--model", f"{server.url}#m", "--budget", "cost=5"]
        assert command([*words, "--concurrency", "1", "--json", "--home", str(tmp_path)]) == 1
        assert json.loads(capsys.readouterr().out)["usage"]["cost"] == CALL


def test_a_budget_that_cannot_be_kept_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_FORGE_PRICES", raising=False)
    with chat_server(answer()) as server:
        result = run(tasks(2), model=client(server), budget=Budget(cost=1.0), home=tmp_path)
        assert not result.ok
        assert "the cost of served-model is not known" in str(result.tasks["t0"].error)
        assert run(tasks(2), model=client(server), budget=Budget(tokens=1000), home=tmp_path).ok


def test_prices_come_from_the_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AGENT_FORGE_PRICES", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent-forge.yaml").write_text("prices:\n  served-model: {input: 1000000, output: 2000000}\n")
    (tmp_path / "plan.json").write_text(json.dumps({"tasks": [{"id": "t", "goal": "go"}]}))
    with chat_server(answer()) as server:
        words = ["run", "--plan", "plan.json", "--model", f"{server.url}#m", "--json", "--home", str(tmp_path)]
        assert command(words) == 0
    assert json.loads(capsys.readouterr().out)["usage"]["cost"] == CALL
