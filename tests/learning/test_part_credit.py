"""Credit for the parts of an answer: against brute force, the unbiased gradient, and the samples that a toy needs."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_forge.learning.part_credit import PartCredit, json_parts, part_credits, token_credits

texts = st.text(st.characters(codec="utf-8"), max_size=6)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=20
)
RIGHT = {"a": 1, "b": "x", "c": [2, 3]}


@given(values, st.sampled_from([None, 2]), st.booleans())
def test_every_part_spans_its_own_text(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = " " + json.dumps(value, indent=indent, ensure_ascii=ascii_only) + "\n"
    parts = json_parts(text)

    def count(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return 1 + sum(map(count, inner))

    assert len(parts) == count(value)
    for part in parts:
        expected = value
        for step in part.path:
            expected = expected[step]
        assert json.loads(text[part.start : part.end]) == expected
        assert text[part.start : part.end].strip() == text[part.start : part.end]


def test_what_was_computed_in_a_working_is_one_part() -> None:
    text = '{"answers": [{"working": "2+3=5", "answer": 5}, 7, {"answer": [1]}]}'
    steps = [(), (0,), (1,), (2,), (2, "answer"), (2, "answer", 0)]
    assert [part.path for part in json_parts(text)][1:] == [("answers", *step) for step in steps]
    assert [part.path for part in json_parts('{"answer": 5, "working": ""}')] == [()]


DEEP, LONG = "[" * 60 + "]" * 60, str([1] * 300)


@pytest.mark.parametrize("text", ["", "no", '{"a": 1', '{"a": 1} and more', "[" * 5000 + "]" * 5000, DEEP, LONG])
def test_what_is_not_json_or_too_large_has_no_parts(text: str) -> None:
    assert json_parts(text) == []


fields = st.fixed_dictionaries({
    "a": st.integers(0, 2), "b": st.sampled_from("xy"), "c": st.lists(st.integers(2, 4), min_size=2, max_size=2),
})  # fmt: skip


@given(st.lists(fields | st.just("not JSON"), min_size=2, max_size=6))
def test_of_a_sum_each_part_has_its_own_advantage(answers: list[Any]) -> None:
    """The reward counts how many of four values are right: the credit of each is what GRPO would give to a reward for
    it alone, among the answers that are JSON; the credit of the whole is GRPO's advantage."""
    leaves = [("a",), ("b",), ("c", 0), ("c", 1)]

    def at(value: Any, path: tuple[Any, ...]) -> Any:
        for step in path:
            value = value[step]
        return value

    def right(value: Any, path: tuple[Any, ...]) -> int:
        return int(isinstance(value, dict) and at(value, path) == at(RIGHT, path))

    def reward(value: Any) -> float:
        return float(sum(right(value, path) for path in leaves))

    written = [answer if isinstance(answer, str) else json.dumps(answer, indent=1) for answer in answers]
    rewards = [reward(answer) for answer in answers]
    credits = part_credits(
        written, rewards, lambda variants: [reward(json.loads(text)) for _, text in variants], most=99
    )
    objects = [answer for answer in answers if isinstance(answer, dict)]
    for text, value, own, credit in zip(written, answers, rewards, credits, strict=True):
        if not isinstance(value, dict):
            assert credit == []
            continue
        by_path = {part.path: each.credit for part, each in zip(json_parts(text), credit, strict=True)}
        assert by_path[()] == pytest.approx(own - sum(rewards) / len(rewards))
        for path in leaves:
            mean = sum(right(other, path) for other in objects) / len(objects)
            alone = len(objects) == 1  # nothing to compare with: that of what it stands in
            assert by_path[path] == pytest.approx(by_path[()] if alone else right(value, path) - mean)


@given(st.lists(st.lists(st.integers(1, 4), max_size=3, unique=True), min_size=2, max_size=5), st.integers(0, 1))
def test_lists_of_different_lengths_are_compared_as_wholes(lists: list[list[int]], other: int) -> None:
    """Only [3] is right. Whether a 1 stands before the 3 is what the items decide, so they must have the credit."""

    def reward(text: str) -> float:
        value = json.loads(text)
        return float(value["ids"] == [3]) + float(value["b"] == 1)

    written = [json.dumps({"ids": ids, "b": (place + other) % 2}) for place, ids in enumerate(lists)]
    credits = part_credits(written, [reward(t) for t in written], lambda v: [reward(t) for _, t in v])
    mean = sum(ids == [3] for ids in lists) / len(lists)
    for ids, text, own in zip(lists, written, credits, strict=True):
        by_path = {part.path: each.credit for part, each in zip(json_parts(text), own, strict=True)}
        assert by_path["ids",] == pytest.approx((ids == [3]) - mean)
        if len({*map(len, lists)}) > 1:
            assert all(by_path["ids", place] == by_path["ids",] for place in range(len(ids)))


def test_tokens_have_the_credit_of_the_innermost_part() -> None:
    text = '{"a": 12, "b": ["é", "y"]}'
    parts = {part.path: part for part in json_parts(text)}
    values = {(): 0.0, ("a",): 1.0, ("b",): 2.0, ("b", 0): 3.0, ("b", 1): 4.0}
    credits = [PartCredit(parts[path].start, parts[path].end, value) for path, value in values.items()]
    pieces = ['{"', "a", '":', " 1", "2", ', "', "b", '": [', '"é', '",', ' "', "y", '"]', "}", ""]
    expected = [0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 3.0, 3.0, 4.0, 4.0, 4.0, 0.0, 0.0]
    assert "".join(pieces) == text
    assert token_credits(pieces, credits, 0.0) == expected


# -- with a policy -----------------------------------------------------------------------------------------------------


def test_the_gradient_is_that_of_the_expected_reward() -> None:
    """Two independent choices of three, and a reward that is no sum: the mean of (credit × gradient) over all groups of
    three answers, each weighted by its probability, is the gradient of the expected reward times (n - 1) / n, since an
    answer is compared with itself too (as in GRPO)."""
    torch = pytest.importorskip("torch")
    logits = torch.tensor([[0.3, -0.2, 0.1], [0.0, 0.5, -0.4]], dtype=torch.double, requires_grad=True)
    table = torch.tensor([[1.0, 0.0, 0.2], [0.0, 0.0, 0.7], [0.3, 0.9, 0.0]], dtype=torch.double)
    probs = logits.softmax(-1)
    (truth,) = torch.autograd.grad((probs[0][:, None] * probs[1][None] * table).sum(), logits)

    def earn(variants: Any) -> list[float]:
        return [float(table[json.loads(text)["a"], json.loads(text)["b"]]) for _, text in variants]

    answers = list(itertools.product(range(3), range(3)))
    estimate = torch.zeros_like(truth)
    slopes = torch.eye(3, dtype=torch.double) - probs.detach()[:, None]  # [choice, value, logit]
    for group in itertools.product(answers, repeat=3):
        weight = 1.0
        for a, b in group:
            weight *= float(probs.detach()[0, a] * probs.detach()[1, b])
        written = [json.dumps({"a": a, "b": b}) for a, b in group]
        credits = part_credits(written, [float(table[a, b]) for a, b in group], earn)
        for (a, b), own in zip(group, credits, strict=True):
            estimate[0] += weight / 3 * own[1].credit * slopes[0, a]
            estimate[1] += weight / 3 * own[2].credit * slopes[1, b]
    assert torch.allclose(estimate, truth * 2 / 3, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_parts_learn_in_fewer_samples_than_one_number_per_answer(seed: int) -> None:
    """24 fields of one in eight, the reward is the share that is right, each side with its best of three rates.
    Measured until that share is 0.9: 40 to 56 answers by parts, 280 to 352 otherwise."""
    torch = pytest.importorskip("torch")
    from agent_forge.forge.training.policy import group_advantages, policy_loss
    from agent_forge.forge.training.settings import PolicySettings

    def samples_needed(by_parts: bool, rate: float) -> int:
        random_numbers = torch.Generator().manual_seed(seed)
        right, every = torch.randint(8, (24,), generator=random_numbers), torch.arange(24)

        def earn(variants: Any) -> list[float]:
            return [float((torch.tensor(json.loads(text)) == right).float().mean()) for _, text in variants]

        logits, step = torch.zeros(24, 8, requires_grad=True), 0
        while float(logits.softmax(-1)[every, right].detach().mean()) < 0.9 and step < 100:
            log_probs = logits.log_softmax(-1)
            choices = torch.multinomial(log_probs.detach().exp(), 8, replacement=True, generator=random_numbers).T
            rewards = (choices == right).float().mean(1)
            advantages = group_advantages(rewards, torch.zeros(8), scale=False)[:, None].expand(8, 24)
            if by_parts:
                written = [json.dumps(row) for row in choices.tolist()]
                credits = part_credits(written, rewards.tolist(), earn, most=8)
                advantages = torch.tensor([[each.credit for each in own[1:]] for own in credits])
            new = log_probs[every, choices]
            loss = policy_loss(new, new.detach(), advantages, torch.ones(8, 24), PolicySettings()).loss
            (slope,) = torch.autograd.grad(loss, logits)
            with torch.no_grad():
                logits -= rate * slope
            step += 1
        return step * 8

    by_parts, whole = (min(samples_needed(kind, rate) for rate in (300, 1000, 3000)) for kind in (True, False))
    assert by_parts * 3 < whole


def test_sampled_tokens_get_the_credit_of_their_part(tmp_path: Path) -> None:
    """A collector's advantages, token by token, with a real tokenizer, against swapping the fields by hand."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from turning import PROFILE, WORDS, tiny_base

    from agent_forge.forge.training.settings import ReinforceSettings
    from agent_forge.learning.agents import prepare
    from agent_forge.learning.attempts import AnswerCollector, AnswerGrammar, SamplingCopy
    from agent_forge.learning.exercises import rules_of
    from agent_forge.learning.practice import Practice, judging
    from agent_forge.tasks import Draft, Verdict, task_family

    def check(answer: Any, expected: Any) -> Verdict:
        return Verdict((answer["go"] == expected["go"]) * 0.25 + (answer["then"] == expected["then"]) * 0.5)

    fields = {name: {"enum": list(WORDS)} for name in ("go", "then")}
    schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}

    @task_family("turning-twice", check=check, schema=schema)
    def twice(rng: Any, level: float) -> Draft:
        return Draft(f"{rng.randrange(100_000)}", {"go": rng.choice(WORDS), "then": rng.choice(WORDS)})

    profile = replace(PROFILE, family="turning-twice")
    model, tokenizer = prepare(tiny_base(tmp_path, layers=1))
    practice = Practice.of(profile, model, tokenizer)
    settings = ReinforceSettings(prompts=4, copies=6, max_tokens=40, seed=1, resample=0, normalise=False)
    with judging(profile, 1) as judges:
        policy, grammar = SamplingCopy(model), AnswerGrammar.of(practice)
        collector = AnswerCollector(policy, practice, judges, settings, grammar, by_parts=True)
        experience = collector.answers(collector.draw(0), 0)
        scaled = replace(collector, settings=replace(settings, normalise=True)).answers(collector.draw(0), 0)
    assert experience.advantages is not None
    weight = rules_of(profile).weights.correctness
    rows = [(tokens[mask].tolist(), row[mask].tolist()) for tokens, mask, row in
            zip(experience.tokens, experience.mask.bool(), experience.advantages, strict=True)]  # fmt: skip
    answers = [json.loads(practice.text(ids)) for ids, _ in rows]
    right = torch.zeros(24, 2)
    for row, answer in enumerate(answers):
        expected = collector.draw(0)[row // 6].expected
        right[row] = torch.tensor([float(answer[name] == expected[name]) for name in fields])
    of_field = weight * torch.tensor([0.25, 0.5]) * (right.view(4, 6, 2) - right.view(4, 6, 2).mean(1, True))
    assert (of_field != 0).sum() > 12, "the answers are too much alike"
    for (ids, advantages), by_hand in zip(rows, of_field.view(24, 2).tolist(), strict=True):
        text, at = practice.text(ids), 0
        values = [text.index('"', text.index(f'"{name}"') + len(name) + 2) for name in fields]  # where they begin
        for piece, advantage in zip(practice.pieces(ids, text), advantages, strict=True):
            first = at + len(piece) - len(piece.lstrip())
            inside = [place for place, start in enumerate(values) if start <= first < text.index('"', start + 1) + 1]
            expected = by_hand[inside[0]] if inside and piece else sum(by_hand)
            assert advantage == pytest.approx(expected, abs=1e-6), (text, piece)
            at += len(piece)
    assert scaled.advantages is not None
    for group in range(4):  # the same, divided by their spread in the group
        rows_of, mask = slice(6 * group, 6 * group + 6), experience.mask[6 * group : 6 * group + 6].bool()
        spread = experience.advantages[rows_of][mask].square().mean().sqrt()
        assert torch.allclose(scaled.advantages[rows_of] * (spread + 1e-4), experience.advantages[rows_of], atol=1e-6)


def test_tokens_inside_a_character_do_not_move_what_follows(tmp_path: Path) -> None:
    """The pieces of tokens make up their text, also where a token by itself says nothing or bytes are invalid."""
    pytest.importorskip("transformers")
    from turning import PROFILE, tiny_base

    from agent_forge.learning.agents import prepare
    from agent_forge.learning.practice import Practice

    model, tokenizer = prepare(tiny_base(tmp_path, layers=1))
    practice = Practice.of(PROFILE, model, tokenizer)
    said = '{"go": "é😀漢", "then": "up"}'
    ids = tokenizer(said, add_special_tokens=False)["input_ids"]
    assert "".join(practice.text([token]) for token in ids) != said
    pieces = practice.pieces(ids, said)
    assert "".join(pieces) == said
    assert pieces[-4:] == [practice.text([token]) for token in ids[-4:]]
    emoji = tokenizer("😀", add_special_tokens=False)["input_ids"]
    for broken in ([*emoji[:2], *ids], [*emoji[1:], *emoji[:1], *emoji[:3], *ids], [*ids, *emoji[:3]]):
        text = practice.text(broken)
        assert "�" in text
        assert "".join(practice.pieces(broken, text)) == text
