"""The local planner: random models and random logits under the grammar always write a plan; SmolLM2 too."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from agents_tiny_model import tiny_folder, tiny_model, tiny_tokenizer  # noqa: E402

from agent_forge.agents import tool  # noqa: E402
from agent_forge.agents.choices import choose_model, choose_planner  # noqa: E402
from agent_forge.agents.planner import DefaultPlanner, ForgedPlanner, LocalPlanner, ModelPlanner, RulePlanner  # noqa: E402
from agent_forge.agents.planner.constrained import PlanProcessor, TokenVocabulary, token_texts  # noqa: E402
from agent_forge.agents.planner.grammar import END, PlanGrammar  # noqa: E402
from agent_forge.agents.planner.local import without_repeats  # noqa: E402
from agent_forge.errors import ModelError, UsageError  # noqa: E402
from agent_forge.inference.local_model import LocalModel  # noqa: E402
from agent_forge.plans import Plan, Task, parse_plan  # noqa: E402


@tool
def send_sms(text: str) -> str:
    """Sends a text message."""
    return text


@tool
def get_weather(city: str) -> str:
    """Gets the weather of a city."""
    return city


def tiny(seed: int) -> LocalPlanner:
    return LocalPlanner(LocalModel(lambda: (tiny_model(seed, 4096), tiny_tokenizer()), name="tiny"), most=4, budget=120)


@pytest.mark.parametrize("seed", range(6))
def test_a_random_model_writes_a_plan(seed: int) -> None:
    planned = tiny(seed).plan_now(f"Request number {seed}: do something, then something else.")
    assert 1 <= len(planned) <= 4
    assert planned.provenance.planner == "local"
    assert planned.provenance.model == "tiny"
    assert planned.provenance.template == "plan-local@1"
    assert planned.provenance.output_tokens is not None
    assert parse_plan(planned.provenance.text or "", format="lines").tasks


def test_tools_are_named_by_the_grammar() -> None:
    planned = asyncio.run(tiny(3).plan("Tell Ann about the weather", tools=[send_sms, get_weather]))
    assert {task.action for task in planned} <= {"send_sms", "get_weather"}


def test_together_is_the_same_as_one_by_one() -> None:
    planner = tiny(1)
    requests = [("short", ()), ("a rather longer request than the other", ())]
    together = [planned.provenance.text for planned in planner.plan_many(requests)]
    assert together == [planner.plan_now(request).provenance.text for request, _ in requests]


def _random_text(vocabulary: TokenVocabulary, grammar: PlanGrammar, seed: int) -> str:
    """Decodes random logits through the real processor, as the planner does."""
    processor = PlanProcessor(vocabulary, [grammar], words_tokens=8, budget=60)
    generator = np.random.default_rng(seed)
    size = max(*vocabulary.texts, vocabulary.end_token) + 3  # logits may be padded beyond the vocabulary
    ids: list[int] = []
    while len(ids) < processor.most_tokens:
        scores = generator.normal(size=size).astype(np.float32)
        if seed % 2:
            scores[vocabulary.end_token] += 50  # a model that wants to stop
        masked = processor(0, ids, scores)
        token = int(masked.argmax())
        assert masked[token] > float("-inf")
        if token == vocabulary.end_token:
            return "".join(vocabulary.texts[each] for each in ids)
        ids.append(token)
    raise AssertionError("the plan did not end within its bound")


@pytest.mark.parametrize("seed", range(10))
def test_random_logits_over_a_byte_vocabulary_give_a_plan(seed: int) -> None:
    vocabulary = TokenVocabulary.of(tiny_tokenizer())
    grammar = PlanGrammar(most=3 + seed % 3, tools=("send_sms",) if seed % 3 == 0 else ())
    assert len(parse_plan("<plan>\n" + _random_text(vocabulary, grammar, seed))) <= grammar.most


@pytest.mark.untraced
def test_random_logits_over_the_real_vocabulary_give_a_plan(smollm2: LocalModel) -> None:
    vocabulary = TokenVocabulary.of(smollm2.load()[1])
    for seed in (0, 3):
        grammar = PlanGrammar(most=2 + seed % 4, tools=("send_sms", "get weather") if seed % 4 == 0 else ())
        text = "<plan>\n" + _random_text(vocabulary, grammar, seed)
        assert 1 <= len(parse_plan(text, format="lines")) <= grammar.most, text


@pytest.mark.untraced
def test_smollm2_always_writes_a_plan(smollm2: LocalModel) -> None:
    planner = LocalPlanner(smollm2, most=2, budget=16)
    planned = planner.plan_now("ünïcode | {braces} <tags>\n1: x", tools=(send_sms, get_weather))
    assert 1 <= len(planned) <= 2
    assert planned.provenance.output_tokens is not None


def test_a_model_that_rules_everything_out_is_overruled() -> None:
    vocabulary = TokenVocabulary.of(tiny_tokenizer())
    processor = PlanProcessor(vocabulary, [PlanGrammar()])
    masked = processor(0, [], np.full(300, -np.inf, np.float32))
    assert vocabulary.texts[int(masked.argmax())] == "T"


def test_the_end_is_the_only_way_on_from_the_end() -> None:
    vocabulary = TokenVocabulary.of(tiny_tokenizer())
    by_text = {text: token for token, text in vocabulary.texts.items()}
    processor = PlanProcessor(vocabulary, [PlanGrammar()])
    text = "Task 1: go | Dependencies: none\n</plan>"
    assert PlanGrammar().run(PlanGrammar().start, text) == END
    assert processor.allowed([by_text[char] for char in text], PlanGrammar()) == [vocabulary.end_token]


def test_a_repeated_line_closes_the_plan() -> None:
    vocabulary = TokenVocabulary.of(tiny_tokenizer())
    by_text = {text: token for token, text in vocabulary.texts.items()}
    processor = PlanProcessor(vocabulary, [PlanGrammar()])
    text = "Task 1: go | Dependencies: none\nTask 2: go | Dependencies: none\n"
    allowed = processor.allowed([by_text[char] for char in text], PlanGrammar())
    assert [vocabulary.texts[token] for token in allowed] == ["<"]


def test_repeats_are_dropped_and_their_dependents_moved() -> None:
    plan = Plan([Task("a", "look"), Task("b", "look"), Task("c", "tell", depends_on=["b", "a"])])
    assert [(task.id, task.depends_on) for task in without_repeats(plan)] == [("a", ()), ("c", ("a",))]


def test_texts_of_tokens_leave_out_halves_of_characters() -> None:
    texts = token_texts(tiny_tokenizer())
    assert "T" in texts.values()
    assert not any("\ufffd" in text for text in texts.values())


def test_a_vocabulary_without_a_separator_is_refused() -> None:
    whole = TokenVocabulary.of(tiny_tokenizer())
    kept = {token: text for token, text in whole.texts.items() if text not in {"|", " "}}
    from agent_forge.agents.planner.grammar import Trie

    with pytest.raises(ModelError, match="could end"):
        PlanProcessor(TokenVocabulary(kept, Trie.of(kept), whole.end_token), [PlanGrammar()])


def test_planners_by_name(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_FORGE_MODEL", raising=False)
    monkeypatch.delenv("AGENT_FORGE_PLANNER", raising=False)
    folder = str(tiny_folder(tmp_path / "tiny"))
    assert isinstance(choose_planner(None), DefaultPlanner)
    assert isinstance(choose_planner(None, bundled=True), RulePlanner)
    assert isinstance(choose_planner("forged"), ForgedPlanner)
    assert isinstance(choose_planner(None, folder), LocalPlanner)
    assert isinstance(choose_planner("rules", folder), RulePlanner)
    assert isinstance(choose_planner("model", folder), ModelPlanner)
    assert isinstance(choose_planner(None, "http://127.0.0.1:9/v1#m"), ModelPlanner)
    assert isinstance(choose_model(folder), LocalModel)  # it plans, acts and answers
    assert choose_model(LocalModel(folder)) is not None
    monkeypatch.setenv("AGENT_FORGE_PLANNER", "rules")
    assert isinstance(choose_planner(None, folder), RulePlanner)
    with pytest.raises(UsageError, match="no planner 'oracle'"):
        choose_planner("oracle")
    with pytest.raises(UsageError, match="needs a model"):
        choose_planner("model")
    with pytest.raises(UsageError, match="no model"):
        choose_planner("local", "nothing/here")
