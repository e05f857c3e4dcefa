"""Sampled answers: drawn from the model's distribution, with its log-probabilities, whatever the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests_forge_axes import tiny_config
from tests_policy_toys import OnlySome, tiny_llama

from agent_forge.errors import UsageError
from agent_forge.forge.models import CognateForCausalLM
from agent_forge.forge.training import sample, sampling, token_log_probs, train_tokenizer

PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13], [1, 2]]
OPTIONS = {"copies": 5, "max_tokens": 12, "end": [3, 4], "seed": 1}


@pytest.mark.parametrize("kind", ["llama", "cognate"])
def test_log_probs_are_those_that_learning_computes(kind):
    model = tiny_llama(std=0.3) if kind == "llama" else CognateForCausalLM(tiny_config(vocab_size=16))
    model.train()
    samples = sample(model, PROMPTS, temperature=0.8, **OPTIONS)
    assert model.training
    lengths = samples.mask.sum(1)
    assert lengths.min() < 12  # some rows ended early, and the others went on
    assert samples.prompt_of.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    new = token_log_probs(model, samples.tokens, samples.mask, temperature=0.8).detach()
    torch.testing.assert_close(samples.log_probs, new, atol=2e-5, rtol=1e-4)
    for answer, ended, length in zip(samples.answers(), samples.ended, lengths, strict=True):
        assert len(answer) == length - int(ended)
        assert not {3, 4} & set(answer)


def test_answers_depend_on_the_seed_and_not_on_the_batch(monkeypatch):
    model = tiny_llama(std=0.3)
    together = sample(model, PROMPTS, **OPTIONS)
    assert torch.equal(together.tokens, sample(model, PROMPTS, **OPTIONS).tokens)
    assert torch.equal(together.tokens, sample(model, PROMPTS, batch=5, **OPTIONS).tokens)
    monkeypatch.setattr(sampling, "LEAVE", 0)  # ended rows stay in the batch
    assert torch.equal(together.tokens, sample(model, PROMPTS, **OPTIONS).tokens)
    assert not torch.equal(together.tokens, sample(model, PROMPTS, **{**OPTIONS, "seed": 2}).tokens)


def test_tokens_are_drawn_from_the_distribution():
    model = tiny_llama(std=0.3)
    samples = sample(model, [[5, 6]], copies=4000, max_tokens=1, temperature=1.5)
    counts = torch.bincount(samples.tokens[:, 2], minlength=16)
    chances = (model(torch.tensor([[5, 6]])).logits[0, -1] / 1.5).softmax(-1).detach()
    assert float(((counts - 4000 * chances) ** 2 / (4000 * chances)).sum()) < 50  # chi-square, 15 degrees: 99.999 %


def test_the_likeliest_tokens_are_those_of_generate():
    model = tiny_llama(std=0.3)
    samples = sample(model, PROMPTS[:1], max_tokens=12, temperature=0.0, end=3)
    expected = model.generate(
        torch.tensor(PROMPTS[:1]), max_new_tokens=12, do_sample=False, eos_token_id=3, pad_token_id=0
    )
    assert samples.tokens[0].tolist() == expected[0].tolist()


def test_when_memory_runs_out_fewer_rows_are_sampled_at_once(monkeypatch):
    model = tiny_llama(std=0.3)
    expected = sample(model, PROMPTS, **OPTIONS).tokens
    write, sizes = sampling._write, []

    def scarce(model, prompts, *rest):
        sizes.append(len(prompts))
        write(model, prompts, *rest)
        if len(prompts) > 1:
            raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(sampling, "_write", scarce)
    assert torch.equal(sample(model, PROMPTS, **OPTIONS).tokens, expected)
    assert sizes == [4, 2, 1, 1, 1, 1]


def test_in_main_memory_the_cache_has_a_limit(monkeypatch):
    """There nothing says that memory runs out: the process is killed. Two layers of two heads of eight numbers, twice
    four bytes each, for the longest prompt and twelve tokens."""
    model = tiny_llama(std=0.3)
    expected = sample(model, PROMPTS, **OPTIONS).tokens
    longest = max(map(len, PROMPTS)) + OPTIONS["max_tokens"]
    monkeypatch.setattr(sampling, "CACHE", 2 * OPTIONS["copies"] * longest * 2 * 2 * 8 * 2 * 4)  # two prompts' rows
    write, sizes = sampling._write, []
    monkeypatch.setattr(
        sampling, "_write", lambda model, prompts, *rest: (sizes.append(len(prompts)), write(model, prompts, *rest))
    )
    assert torch.equal(sample(model, PROMPTS, **OPTIONS).tokens, expected)
    assert sizes == [2, 2]


def test_a_constraint_gives_the_log_probs_of_the_constrained_distribution():
    model = tiny_llama(std=0.3)
    walks = {0: lambda: OnlySome({4, 5, 6}, {7}, {4, 5, 3}, vocab=16), 1: lambda: None}
    options = {"copies": 6, "max_tokens": 5, "end": 3, "seed": 4}
    samples = sample(model, [[5, 6], [9]], constraint=lambda i: walks[i](), **options)
    for row in range(6):
        answer = samples.tokens[row, 2:][samples.mask[row, 2:] == 1].tolist()
        assert answer[0] in {4, 5, 6}
        assert answer[1] == 7
        assert set(answer[2:]) <= {4, 5, 3}
        assert float(samples.log_probs[row, 3]) == 0.0  # forced
    new = token_log_probs(model, samples.tokens, samples.mask, allowed_BLV=samples.allowed).detach()
    torch.testing.assert_close(samples.log_probs, new, atol=2e-5, rtol=1e-4)
    free = token_log_probs(model, samples.tokens, samples.mask).detach()
    torch.testing.assert_close(samples.log_probs[6:], free[6:], atol=2e-5, rtol=1e-4)  # the second prompt is free
    assert (samples.log_probs[:6, 2] > free[:6, 2]).all()


def test_a_grammar_constrains_the_answers():
    pytest.importorskip("llguidance")
    from agent_forge.inference.grammar import GrammarVocabulary, schema_grammar

    tokenizer = train_tokenizer(["yes no maybe"] * 3, 300)
    model = tiny_llama(len(tokenizer))
    vocabulary = GrammarVocabulary(tokenizer, ends=[tokenizer.eos_token_id])
    grammar = schema_grammar({"enum": ["yes", "no"]})
    options = {"copies": 8, "max_tokens": 16, "end": tokenizer.eos_token_id}
    samples = sample(model, [[40, 41]], constraint=lambda _: vocabulary.start(grammar), **options)
    assert {tokenizer.decode(answer) for answer in samples.answers()} == {'"yes"', '"no"'}
    assert samples.ended.all()


def test_bad_input_is_refused():
    model = tiny_llama()
    with pytest.raises(UsageError, match="at least one token"):
        sample(model, [[1], []], max_tokens=2)
    with pytest.raises(UsageError, match="allows no token"):
        sample(model, [[1]], max_tokens=2, constraint=lambda _: OnlySome(set(), vocab=16))


def test_a_token_of_probability_0_is_never_drawn():
    logits = torch.full((3, 4), -torch.inf)
    logits[:, 1] = 0.0
    points = torch.tensor([0.0, 0.5, np.nextafter(1.0, 0.0)], dtype=torch.double)
    tokens, log_probs = sampling.draw(logits, points, 1.0, None)
    assert tokens.tolist() == [1, 1, 1]
    assert log_probs.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("words", [1, 255, 256, 257, 1000])
def test_what_is_drawn_is_what_one_sum_over_all_tokens_finds(words):
    generator = torch.Generator().manual_seed(words)
    logits = 5 * torch.randn(500, words, generator=generator)
    allowed = torch.rand(500, words, generator=generator) < 0.3
    allowed[:, 0] = True
    points = torch.rand(500, generator=generator, dtype=torch.double)
    points[:3] = torch.tensor([0.0, np.nextafter(0.0, 1.0), np.nextafter(1.0, 0.0)])
    tokens, log_probs = sampling.draw(logits, points, 0.7, allowed)
    chances = (logits.double() / 0.7).masked_fill(~allowed, -torch.inf).softmax(-1)
    total = chances.cumsum(-1)
    chosen = chances.gather(1, tokens[:, None])[:, 0]
    after = total.gather(1, tokens[:, None])[:, 0]
    assert bool((chosen > 0).all())
    assert bool((points < after + 1e-6).all() and (points >= after - chosen - 1e-6).all())
    torch.testing.assert_close(log_probs.double(), chosen.log(), atol=1e-5, rtol=0)
