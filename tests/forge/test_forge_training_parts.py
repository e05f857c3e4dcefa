"""Loss, packing, tokenizer, schedules, averages and evaluation, each against an independent calculation."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_forge_axes import tiny_config
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from agent_forge.errors import ConfigError, DataError, UsageError
from agent_forge.forge.evaluation.choices import MultipleChoice, answer_questions, questions_of
from agent_forge.forge.models import CognateForCausalLM, cross_entropy
from agent_forge.forge.models.cross_entropy import IGNORE
from agent_forge.forge.quantization import distillation
from agent_forge.forge.training import (
    SPECIAL_TOKENS,
    HeldOut,
    TrainSettings,
    WeightAverage,
    chunked_cross_entropy,
    encode,
    evaluate,
    pack,
    schedule_factor,
    train_tokenizer,
)
from agent_forge.forge.training.evaluation import ratio
from agent_forge.forge.training.objective import has_plain_head, losses_and_hits, objective
from agent_forge.forge.training.speed import Meter, matrix_rate, training_flops

TEXT = [
    "The quick brown fox jumps over the lazy dog. ",
    "Pack my box with 5 dozen liquor jugs! ",
    "Füße, naïve, 東京\n",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([line * 30 for line in TEXT], vocab_size=400)


class TestCrossEntropy:
    @pytest.mark.parametrize("chunk", [1, 7, 64])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_it_is_torchs_and_so_are_its_gradients(self, chunk, weighted):
        targets = torch.randint(0, 33, (20,))
        targets[::6] = -100
        weights = torch.rand(20) if weighted else torch.ones(20)
        inputs = [torch.randn(20, 8), torch.randn(33, 8), weights]
        ours = [x.clone().requires_grad_() for x in inputs]
        theirs = [x.clone().requires_grad_() for x in inputs]
        chunked = chunked_cross_entropy(ours[0], ours[1], targets, ours[2] if weighted else None, chunk)
        full = (F.cross_entropy(theirs[0] @ theirs[1].T, targets, reduction="none") * theirs[2]).sum()
        torch.testing.assert_close(chunked, full)
        (chunked * 0.7).backward()
        (full * 0.7).backward()
        for a, b in list(zip(ours, theirs, strict=True))[: 3 if weighted else 2]:
            torch.testing.assert_close(a.grad, b.grad)

    def test_without_gradients_it_only_computes_the_loss(self):
        hidden, head, targets = torch.randn(5, 4), torch.randn(9, 4), torch.arange(5)
        weights = torch.rand(5, requires_grad=True)
        loss = chunked_cross_entropy(hidden, head, targets, weights, chunk=2)
        loss.backward()
        torch.testing.assert_close(weights.grad, F.cross_entropy(hidden @ head.T, targets, reduction="none"))

    @pytest.mark.parametrize("frozen", ["head", "hidden"])
    def test_what_is_frozen_costs_no_gradient_and_changes_no_other(self, frozen):
        """Below an adapter the head is frozen: nothing of its size [V, D] may be computed or kept for it."""
        inputs = {"hidden": torch.randn(20, 8), "head": torch.randn(33, 8)}
        targets = torch.randint(0, 33, (20,))
        (learnt,) = set(inputs) - {frozen}
        inputs[learnt].requires_grad_()
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.shape) or x, lambda x: x):
            loss = chunked_cross_entropy(inputs["hidden"], inputs["head"], targets, chunk=7)
        loss.backward()
        assert inputs[learnt].shape in kept
        assert inputs[frozen].shape not in kept
        assert inputs[frozen].grad is None
        full = F.cross_entropy(inputs["hidden"] @ inputs["head"].T, targets, reduction="sum")
        (expected,) = torch.autograd.grad(full, inputs[learnt])
        torch.testing.assert_close(inputs[learnt].grad, expected, atol=1e-6, rtol=1e-5)

    def test_under_autocast_the_logits_are_low_and_the_sums_are_not(self):
        hidden, head = torch.randn(64, 16, requires_grad=True), torch.randn(50, 16, requires_grad=True)
        targets = torch.randint(0, 50, (64,))
        with torch.autocast("cpu", torch.bfloat16):
            loss = chunked_cross_entropy(hidden, head, targets, chunk=8)
        loss.backward()
        assert loss.dtype == head.grad.dtype == hidden.grad.dtype == torch.float32
        torch.testing.assert_close(
            loss, F.cross_entropy(hidden @ head.T, targets, reduction="sum"), rtol=5e-3, atol=0.1
        )

    @pytest.mark.parametrize("module", [cross_entropy, distillation])
    def test_what_is_compiled_for_a_gpu_sees_few_sizes_and_computes_the_same(self, module, monkeypatch):
        seen = set()

        def compiled(function, dynamic):
            def call(logits, *others):
                seen.add(len(logits))
                return function(logits, *others)

            return call

        monkeypatch.setattr(torch, "compile", compiled)
        step = module._step_of.__wrapped__("cuda")
        rng = np.random.default_rng(2)
        for count in (1, 40, 511, 512, 513, 700, 1000, 1024, 1500, 2000):
            logits, others = torch.randn(count, 12), torch.randn(count, 12)
            targets = torch.from_numpy(rng.choice([IGNORE, 0, 3, 11], count))
            more = (torch.rand(count),) if module is cross_entropy else (0.3, 2.0)
            inputs = (logits, targets, *more) if module is cross_entropy else (logits, others, targets, *more)
            loss, slope = step(*inputs)
            expected_loss, expected_slope = module._loss_and_slope(*inputs)
            torch.testing.assert_close(loss, expected_loss)
            assert torch.equal(slope, expected_slope)
        assert seen == {512, 1024, 2048}

    def test_models_with_other_heads_get_their_own_logits(self):
        config = LlamaConfig(
            vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
        )
        model = LlamaForCausalLM(config).eval()
        rows = pack([np.arange(3, 30)], 16, bos=1)
        batch = rows.take(slice(None))
        assert has_plain_head(model)
        chunked, (losses, hits) = objective(model, batch), losses_and_hits(model, batch)
        model.config.logit_scale = 2.0
        assert not has_plain_head(model)
        torch.testing.assert_close(chunked, objective(model, batch))
        again, hits_again = losses_and_hits(model, batch)
        torch.testing.assert_close(losses, again)
        assert torch.equal(hits, hits_again)


class TestPacking:
    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.integers(0, 70), min_size=1, max_size=40), st.integers(4, 24))
    def test_every_token_is_in_exactly_one_place(self, sizes, length):
        documents = [np.arange(size) + 1000 * (n + 1) for n, size in enumerate(sizes)]
        if not any(sizes):
            with pytest.raises(DataError, match="no text"):
                pack(documents, length, bos=7)
            return
        rows = pack(documents, length, bos=7, pad=0)
        tokens = rows.tokens[(rows.documents >= 0) & (rows.tokens != 7)]
        assert sorted(tokens.tolist()) == sorted(np.concatenate(documents).tolist())
        assert (rows.tokens[:, 0] == 7).all()
        assert rows.tokens.shape[1] == length + 1

    def test_real_sizes_leave_hardly_any_padding(self):
        sizes = np.random.default_rng(0).lognormal(6, 1.2, 3000).astype(int) + 1
        rows = pack([np.ones(size, dtype=np.int32) for size in sizes], 256, bos=0)
        assert rows.used > 0.995

    def test_targets_never_cross_a_boundary(self):
        rows = pack([np.arange(10, 15), np.arange(20, 24), np.arange(30, 33)], length=15, bos=1, pad=0)
        batch = rows.take(slice(None))
        for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
            for token, target in zip(inputs.tolist(), targets.tolist(), strict=True):
                if target != -100:
                    assert target == token + 1 or (token == 1 and target in (10, 20, 30))
        assert (batch.targets != -100).sum() == 12

    def test_an_epoch_takes_every_row_once_and_depends_on_the_step_alone(self):
        rows = pack([np.full(9, n) for n in range(12)], length=9, bos=99)
        seen = torch.cat([rows.batch(step, 4, seed=5).inputs[:, 1] for step in range(3)])
        assert sorted(seen.tolist()) == list(range(12))
        assert torch.equal(rows.batch(7, 4, 5).inputs, rows.batch(7, 4, 5).inputs)
        assert not torch.equal(rows.batch(0, 12, 5).inputs, rows.batch(1, 12, 5).inputs)
        assert len(rows.batch(0, 30, 5)) == 30

    def test_a_batch_is_shared_out_without_overlap(self):
        batch = pack([np.full(9, n) for n in range(8)], length=9, bos=99).batch(0, 8, 0)
        halves = torch.cat([batch.every(2, rank).inputs for rank in range(2)])
        assert sorted(halves[:, 1].tolist()) == list(range(8))
        assert torch.equal(torch.cat([part.inputs for part in batch.split(3)]), batch.inputs)
        with pytest.raises(UsageError, match="8 rows cannot be shared by 9 processes"):
            batch.every(9, 0)


class TestTokenizer:
    @settings(max_examples=25, deadline=None)
    @given(text=st.text(max_size=60))
    def test_any_text_comes_back(self, tokenizer, text):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == text

    def test_it_is_saved_in_the_layout_transformers_reads(self, tokenizer, tmp_path):
        tokenizer.save_pretrained(tmp_path)
        loaded = AutoTokenizer.from_pretrained(tmp_path)
        assert loaded(TEXT[0])["input_ids"] == tokenizer(TEXT[0])["input_ids"]
        assert len(loaded) == len(tokenizer) <= 400
        assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (0, 1, 2)
        assert loaded.padding_side == "left"

    def test_special_tokens_are_single_and_never_made_by_text(self, tokenizer):
        for number, token in enumerate(SPECIAL_TOKENS):
            assert tokenizer.convert_tokens_to_ids(token) == number
            assert tokenizer(token, add_special_tokens=False)["input_ids"] == [number]
        assert {"<|startofthought|>", "<|tool_call|>", "<|plan|>"} <= set(SPECIAL_TOKENS)

    def test_the_chat_template(self, tokenizer):
        pytest.importorskip("jinja2")
        chat = [{"role": "user", "content": "Hi"}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert text == "<|bos|><|user|>Hi<|end|><|assistant|>"

    def test_too_small_a_vocabulary_is_refused(self):
        with pytest.raises(UsageError, match="too small"):
            train_tokenizer(["text"], vocab_size=256)

    def test_encoding_adds_the_end(self, tokenizer):
        (with_end,), (without,) = encode(tokenizer, ["dog"]), encode(tokenizer, ["dog"], eos=False)
        assert with_end.tolist() == [*without.tolist(), 1]

    @pytest.mark.parametrize("split", [False, True])
    def test_encoding_gives_the_tokens_of_transformers(self, tokenizer, split):
        texts = [*TEXT, "", " ", "a <|eos|> b<|user|>", "x" * 3000, "\n\t é 12345678"] * 70
        asked = copy.deepcopy(tokenizer)
        asked.backend_tokenizer.enable_truncation(5)  # what a tokenizer's file may say, and a call does not mean
        asked.backend_tokenizer.enable_padding()
        asked.split_special_tokens = split
        expected = tokenizer(texts, add_special_tokens=False, split_special_tokens=split)["input_ids"]
        assert [ids.tolist() for ids in encode(asked, texts, eos=False)] == expected

    def test_a_tokenizer_in_python_is_simply_called(self):
        class InPython:
            eos_token_id = 1

            def __call__(self, texts, add_special_tokens):
                return {"input_ids": [[ord(letter) for letter in text] for text in texts]}

        assert [ids.tolist() for ids in encode(InPython(), ["ab", ""])] == [[97, 98, 1], [1]]


class TestSchedule:
    def test_wsd_warms_up_stays_and_falls_in_a_line(self):
        factors = [schedule_factor(step, 100, "wsd", warmup=10, decay=0.4, floor=0.1) for step in range(101)]
        assert factors[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
        assert set(factors[10:61]) == {1.0}
        assert np.diff(factors[60:101]) == pytest.approx(np.full(40, -0.9 / 40))

    def test_cosine_is_half_a_cosine(self):
        factors = [schedule_factor(step, 110, "cosine", warmup=10, floor=0.1) for step in (10, 60, 110, 200)]
        assert factors == pytest.approx([1.0, 0.55, 0.1, 0.1])

    def test_an_unknown_one_is_refused(self):
        with pytest.raises(UsageError, match="wsd"):
            schedule_factor(0, 10, "linear")


def test_the_average_of_weights():
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
        average = WeightAverage(model, decay=0.5)
        expected = 0.0
        for step, value in enumerate([4.0, 8.0, 2.0], start=1):
            model.weight.fill_(value)
            average.update(model)
            decay = min(0.5, step / (step + 10))
            expected = decay * expected + (1 - decay) * value
    with average.applied(model):
        assert model.weight.item() == pytest.approx(expected)
    assert model.weight.item() == 2.0
    average.settle(model)
    assert model.weight.item() == pytest.approx(expected)


class TestEvaluation:
    def test_bits_per_byte_is_the_sum_of_the_surprises_over_the_bytes(self, tokenizer):
        torch.manual_seed(0)
        model = CognateForCausalLM(tiny_config(vocab_size=400)).eval()
        texts = [TEXT[0] * 3, TEXT[2], TEXT[1]]
        evaluation = evaluate(model, HeldOut.of(tokenizer, texts, length=16), batch_rows=2)
        bits, tokens = 0.0, 0
        for text in texts:
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            for start in range(0, len(ids), 16):
                piece = torch.tensor([[0, *ids[start : start + 16]]])
                loss = F.cross_entropy(model(piece).logits[0, :-1], piece[0, 1:], reduction="sum")
                bits, tokens = bits + loss.item() / math.log(2), tokens + piece.shape[1] - 1
        size = sum(len(text.encode()) for text in texts)
        assert evaluation.bits_per_byte == pytest.approx(bits / size, rel=1e-5)
        assert (evaluation.tokens, evaluation.bytes, evaluation.documents) == (tokens, size, 3)
        assert evaluation.loss == pytest.approx(bits * math.log(2) / tokens, rel=1e-5)

    def test_the_standard_error_is_that_of_repeated_sampling(self):
        """The delta method against 4,000 samples of 200 documents."""
        rng = np.random.default_rng(0)
        estimates, errors = [], []
        for _ in range(4000):
            size = rng.integers(50, 500, 200).astype(float)
            bits = size * 1.2 + rng.normal(0, 40, 200)
            value, error = ratio(bits, size)
            estimates.append(value)
            errors.append(error)
        assert np.mean(errors) == pytest.approx(np.std(estimates), rel=0.1)
        assert math.isnan(ratio(np.ones(1), np.ones(1))[1])

    def test_choices_are_scored_by_likelihood_per_character(self, tokenizer):
        torch.manual_seed(0)
        model = CognateForCausalLM(tiny_config(vocab_size=400)).eval()
        with torch.no_grad():
            model.lm_head.weight.normal_()

        def likelihood(prompt: str, answer: str) -> float:
            ids = torch.tensor([[0, *tokenizer(prompt, add_special_tokens=False)["input_ids"]]])
            more = torch.tensor([tokenizer(answer, add_special_tokens=False)["input_ids"]])
            logs = model(torch.cat([ids, more], 1)).logits[0, ids.shape[1] - 1 : -1].log_softmax(-1)
            return (logs.gather(1, more[0][:, None]).sum() / len(answer.strip())).item()

        answers = (" lazy dog", " 5 jugs", " 東京")
        questions = []
        for right, prompt in enumerate(["The", "Pack my", "jumps over"]):
            best = max(range(3), key=lambda i, prompt=prompt: likelihood(prompt, answers[i]))
            questions.append(MultipleChoice(prompt, answers, best if right < 2 else (best + 1) % 3))
        score = answer_questions(model, questions_of(questions, tokenizer), rows=2)
        assert score.value == pytest.approx(2 / 3)
        assert score.stderr == pytest.approx(math.sqrt(2 / 9 / 2))


class TestSpeed:
    def test_flops_follow_the_weights_the_window_and_the_passes(self):
        def flops(**changes):
            return training_flops(CognateForCausalLM(tiny_config(memory_layers=[], **changes)), 64)

        body, ends = 2 * (32 * 64 + 32 * 32 + 2 * 32 * 64), 2 * 16 * 32 + 64 * 16
        seen = sum(min(t + 1, 8) for t in range(64)) / 64
        assert flops() == pytest.approx(6 * (body + ends) + 12 * 32 * 2 * seen)
        assert flops(loops=3) - flops(loops=2) == pytest.approx(6 * body + 12 * 32 * 2 * seen)

    @pytest.mark.parametrize("trained", [1, 2, 4])
    def test_flops_of_a_partly_frozen_model_are_those_that_torch_counts(self, trained):
        size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=100, **size, attn_implementation="eager"))
        model.requires_grad_(False)
        for layer in model.model.layers[-trained:]:
            layer.requires_grad_(True)
        ids = torch.randint(0, 100, (1, 64))
        with FlopCounterMode(display=False) as counted:
            model(ids, labels=ids).loss.backward()
        expected = counted.get_total_flops() / 64
        assert training_flops(model, 64) == pytest.approx(expected, rel=0.12)  # eager attention also reads the future

    def test_the_meter_counts_since_it_was_read(self):
        assert matrix_rate("cpu", False) > 1e6
        meter = Meter(CognateForCausalLM(tiny_config()), 16, torch.device("cpu"), False)
        meter.add(1000)
        first = meter.read()
        assert first["tokens_per_s"] > 0
        assert first["mfu"] > 0
        assert meter.read()["tokens_per_s"] == 0


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"micro_rows": 0}, {"precision": "fp8"}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TrainSettings(**wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps is 0, not 1 or more"),
        ({"qk_clip_every": 0}, "qk_clip_every is 0"),
        ({"warmup": -1, "ema": 1.0}, "warmup is -1, not 0 or more; ema is 1.0, not from 0 to below 1"),
        ({"decay": 1.5}, "decay is 1.5, not from 0 to 1"),
        ({"clip": float("nan")}, "clip is nan"),
        ({"divergence": 0.0}, "divergence is 0.0, not above 0"),
        ({"precision": "int8"}, "precision is 'int8', not auto, bf16 or float32"),
    ],
)
def test_settings_that_cannot_work_are_all_named(change, message):
    with pytest.raises(ConfigError, match=message):
        TrainSettings(**change)
