"""Perplexity, divergence, scores and multiple choice, against arithmetic done by hand."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests_packed_tiny import llama as tiny_llama
from transformers import LlamaForCausalLM

from agent_forge.errors import UsageError
from agent_forge.forge.evaluation import (
    ChoiceQuestion,
    TaskScore,
    answer_questions,
    divergence,
    measure_text,
    questions_of,
    retention,
    token_scores,
)
from agent_forge.forge.evaluation.choices import MultipleChoice
from agent_forge.forge.quantization import Format, set_strength, settled, to_bitlinear
from agent_forge.forge.training import HeldOut, PackedRows, train_tokenizer

VOCABULARY = 50


def llama(seed: int = 0) -> LlamaForCausalLM:
    shape = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "tie_word_embeddings": False}
    return tiny_llama(seed, vocab_size=VOCABULARY, **shape)


def held_out() -> HeldOut:
    """Three documents: of 9 tokens, of 6 in one row, and of 12 in two rows."""
    rng = np.random.default_rng(3)
    tokens = rng.integers(1, VOCABULARY, size=(4, 10)).astype(np.int32)
    documents = np.array([[0] * 10, [1] * 7 + [-1] * 3, [2] * 10, [2] * 4 + [-1] * 6], dtype=np.int32)
    return HeldOut(PackedRows(tokens, documents), (30, 20, 41))


def by_hand(model: LlamaForCausalLM, text: HeldOut) -> list[list[float]]:
    """The nats of every token of every document, one forward pass a row."""
    nats: list[list[float]] = [[], [], []]
    for tokens, documents in zip(text.rows.tokens, text.rows.documents, strict=True):
        row = torch.tensor(tokens[documents >= 0].astype(np.int64))
        logits = model(row[None]).logits[0].double().log_softmax(-1)
        nats[documents[0]] += [-logits[i, row[i + 1]].item() for i in range(len(row) - 1)]
    return nats


def test_perplexity_and_bits_per_byte_are_those_of_a_plain_loop() -> None:
    model, text = llama(), held_out()
    score, nats = measure_text(model, text, batch_rows=2), by_hand(model, text)
    assert score.tokens.tolist() == [len(document) for document in nats]
    assert score.perplexity == pytest.approx(math.exp(np.mean(np.concatenate(nats))), rel=1e-5)
    assert score.bits_per_byte == pytest.approx(sum(map(sum, nats)) / math.log(2) / 91, rel=1e-5)
    again = score.as_evaluation()
    assert again.bits_per_byte == pytest.approx(score.bits_per_byte, rel=1e-12)  # another order of sums


def test_the_standard_error_is_the_spread_of_the_figure_over_draws_of_documents() -> None:
    model, text = llama(), held_out()
    score = measure_text(model, text)
    rng = np.random.default_rng(0)
    many = [rng.integers(0, 3, size=3) for _ in range(4000)]
    spread = np.std([score.nats[pick].sum() / score.bytes_of[pick].sum() / math.log(2) for pick in many])
    assert score.bits_per_byte_stderr == pytest.approx(spread * math.sqrt(3 / 2), rel=0.3)


def test_text_known_as_tokens_only_has_no_bits_per_byte() -> None:
    score = measure_text(llama(), HeldOut(held_out().rows, (0, 0, 0)))
    assert score.bits_per_byte is None
    assert score.bits_per_byte_stderr is None
    assert score.as_evaluation().loss == score.loss


def test_divergence_is_the_mean_kl_of_the_real_tokens() -> None:
    one, two, text = llama(), llama(1), held_out()
    away = divergence(two, one, text, batch_rows=3)
    kl, same, count = 0.0, 0, 0
    for tokens, documents in zip(text.rows.tokens, text.rows.documents, strict=True):
        row = torch.tensor(tokens[documents >= 0].astype(np.int64))[None]
        goal, mine = (model(row).logits[0, :-1].double().log_softmax(-1) for model in (one, two))
        kl += F.kl_div(mine, goal, log_target=True, reduction="sum").item()
        same += (goal.argmax(-1) == mine.argmax(-1)).sum().item()
        count += len(goal)
    assert away.kl == pytest.approx(kl / count, rel=1e-5)
    assert away.agreement == pytest.approx(same / count)
    none = divergence(copy.deepcopy(one), one, text)
    assert (none.kl, none.agreement) == (pytest.approx(0, abs=1e-6), 1.0)
    with pytest.raises(UsageError, match="vocabularies"):
        divergence(tiny_llama(), one, text)


def test_a_rounded_head_is_measured_with_its_rounded_matrix() -> None:
    model, text = llama(), held_out()
    to_bitlinear(model, Format())
    set_strength(model, 1.0)
    as_trained = measure_text(model, text).perplexity
    with settled(model):
        assert measure_text(model, text).perplexity == pytest.approx(
            as_trained, rel=3e-3
        )  # scales are stored in float16


def test_logits_are_never_held_for_more_than_a_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_forge.forge.evaluation.text.MOST_LOGITS", 1)
    model, batch = llama(), held_out().rows.take(slice(0, 4))
    plain = token_scores(model, batch)
    to_bitlinear(model, Format(embedding="int8"))  # makes the head one that is asked for its logits
    seen: list[int] = []
    model.register_forward_pre_hook(lambda *arguments: seen.append(len(arguments[2]["input_ids"])), with_kwargs=True)
    rounded = token_scores(model, batch)
    assert seen == [1, 1, 1, 1]
    torch.testing.assert_close(rounded[0], plain[0], rtol=1e-4, atol=1e-4)


def test_the_choice_is_the_likeliest_answer() -> None:
    model = llama()
    rng = np.random.default_rng(1)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(int(t) for t in rng.integers(1, VOCABULARY, size=count))

    questions = [
        ChoiceQuestion(
            tokens(int(rng.integers(1, 9))), tuple(tokens(int(rng.integers(1, 6))) for _ in range(3)), (1, 2, 3), 1
        )
        for _ in range(25)
    ]
    expected = []
    for question in questions:
        likely = []
        for answer, size in zip(question.answers, question.sizes, strict=True):
            row = torch.tensor([*question.prompt, *answer])
            logs = model(row[None]).logits[0].log_softmax(-1)
            places = range(len(question.prompt) - 1, len(row) - 1)
            likely.append(sum(logs[i, row[i + 1]].item() for i in places) / size)
        expected.append(float(int(np.argmax(likely)) == 1))
    score = answer_questions(model, questions, rows=7)
    assert score.points == tuple(expected)
    assert score.chance == pytest.approx(1 / 3)


def test_questions_in_words_become_tokens_after_bos() -> None:
    tokenizer = train_tokenizer(["the cat sat on the mat"] * 5, vocab_size=320)
    (question,) = questions_of([MultipleChoice("the cat", (" sat", " mat"), 0)], tokenizer)
    assert question.prompt[0] == tokenizer.bos_token_id
    assert tokenizer.decode(question.answers[1]) == " mat"
    assert question.sizes == (3.0, 3.0)  # characters, without the blank


def test_retention_is_chance_corrected_and_paired() -> None:
    rng = np.random.default_rng(0)
    before = TaskScore("a", tuple((rng.random(400) < 0.7).astype(float)), chance=0.25)
    after = TaskScore("a", tuple(np.where(rng.random(400) < 0.9, before.points, 0.0)), chance=0.25)
    left = retention([before], [after])
    assert left is not None
    assert left.share == pytest.approx((after.value - 0.25) / (before.value - 0.25))
    resampled = []
    one, two = np.array(before.points) - 0.25, np.array(after.points) - 0.25
    for _ in range(2000):
        pick = rng.integers(0, 400, size=400)
        resampled.append(two[pick].sum() / one[pick].sum())
    assert left.stderr == pytest.approx(np.std(resampled), rel=0.15)
    assert left.tasks == ("a",)


def test_a_task_at_chance_says_nothing_about_what_was_kept() -> None:
    guess = TaskScore("g", (1.0, 0.0, 0.0, 0.0) * 20, chance=0.25)
    assert not guess.clear
    assert retention([guess], [guess]) is None
    assert retention([], []) is None
    good = TaskScore("g", (1.0,) * 20, chance=0.25)
    with pytest.raises(UsageError, match="not the same"):
        retention([good], [TaskScore("g", (1.0,) * 19, chance=0.25)])
    with pytest.raises(UsageError, match="nothing to score"):
        TaskScore("empty", ())
    assert TaskScore("one", (1.0,)).stderr is None
