"""Distillation: the chunked divergence against torch's own, and training that follows a teacher."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests_packed_tiny import llama as tiny_llama
from transformers import LlamaForCausalLM

from agent_forge.errors import UsageError
from agent_forge.forge.quantization import Distillation, Format, chunked_divergence, distil, set_strength, to_bitlinear
from agent_forge.forge.training import Batch, PackedRows, TrainSettings


@pytest.fixture
def llama() -> LlamaForCausalLM:
    return tiny_llama(vocab_size=96)


def rows_of(count: int = 12, length: int = 16) -> PackedRows:
    tokens = np.random.default_rng(0).integers(3, 96, size=(count, length + 1)).astype(np.int32)
    return PackedRows(tokens, np.zeros_like(tokens))


@pytest.mark.parametrize(("hard", "temperature"), [(0.0, 1.0), (0.3, 1.0), (0.25, 2.0), (1.0, 1.0)])
def test_the_chunked_divergence_and_its_gradients_are_those_of_torch(hard: float, temperature: float) -> None:
    torch.manual_seed(1)
    hidden, head = torch.randn(13, 6, dtype=torch.float64), torch.randn(11, 6, dtype=torch.float64)
    teacher = torch.randn(13, 9, dtype=torch.float64), torch.randn(11, 9, dtype=torch.float64)
    targets = torch.randint(0, 11, (13,))
    targets[[2, 5]] = -100
    ours = [hidden.clone().requires_grad_(), head.clone().requires_grad_()]
    theirs = [hidden.clone().requires_grad_(), head.clone().requires_grad_()]
    loss = chunked_divergence((ours[0], ours[1]), teacher, targets, hard, temperature, chunk=4)
    logits = theirs[0] @ theirs[1].T
    goal = F.log_softmax(teacher[0] @ teacher[1].T / temperature, -1)
    kl = F.kl_div(F.log_softmax(logits / temperature, -1), goal, log_target=True, reduction="none").sum(-1)
    plain = F.cross_entropy(logits, targets, reduction="sum", ignore_index=-100)
    expected = (1 - hard) * temperature**2 * kl[targets != -100].sum() + hard * plain
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    expected.backward()
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, reference.grad, rtol=1e-4, atol=1e-5)


def test_a_copy_of_the_teacher_has_no_divergence_and_different_vocabularies_are_refused(llama) -> None:
    batch = rows_of().take(slice(0, 4))
    assert Distillation(llama, hidden=1.0)(copy.deepcopy(llama), batch).item() == pytest.approx(0.0, abs=1e-5)
    with pytest.raises(UsageError, match="tokenizer"):
        chunked_divergence(
            (torch.ones(1, 2), torch.ones(3, 2)), (torch.ones(1, 2), torch.ones(4, 2)), torch.ones(1).long()
        )


def test_a_head_that_is_more_than_a_matrix_is_asked_for_its_logits(llama) -> None:
    batch = rows_of().take(slice(0, 3))
    plain = Distillation(llama, hard=0.5)(llama, batch).item()
    capped = copy.deepcopy(llama)
    capped.config.final_logit_softcapping = 30.0  # makes the objective go by the model's own logits
    assert Distillation(llama, hard=0.5)(capped, batch).item() == pytest.approx(plain, rel=1e-4)


def test_hidden_states_need_the_same_blocks(llama) -> None:
    with pytest.raises(UsageError, match="blocks"):
        Distillation(llama, hidden=0.5)(tiny_llama(vocab_size=96, num_hidden_layers=1), rows_of().take(slice(0, 2)))


def test_a_student_with_fewer_blocks_is_compared_where_its_blocks_end() -> None:
    # three layers: the state behind the last one has gone through the norm
    batch, teacher = rows_of().take(slice(0, 2)), tiny_llama(vocab_size=96, num_hidden_layers=3).eval()
    student = copy.deepcopy(teacher)
    student.model.layers = student.model.layers[:1]
    _, first, second, *_ = teacher(batch.inputs, output_hidden_states=True).hidden_states
    plain = Distillation(teacher)(student, batch)
    beside = Distillation(teacher, hidden=1.0, blocks=[(0, 1)])(student, batch) - plain
    assert beside.item() == pytest.approx(((first - second).square().mean() / second.square().mean()).item(), rel=1e-4)
    assert Distillation(teacher, hidden=1.0, blocks=[(0, 0)])(student, batch).item() == pytest.approx(plain.item())


@pytest.mark.parametrize("learn", [False, True])
def test_a_ternary_student_comes_nearer_to_its_teacher(llama, learn: bool, tmp_path) -> None:
    student, rows = copy.deepcopy(llama), rows_of()
    to_bitlinear(student, Format(learn_scales=learn))
    set_strength(student, 1.0)
    batch: Batch = rows.take(slice(0, 8))
    before = Distillation(llama)(student, batch).item()
    seen: list[int] = []
    settings = TrainSettings(steps=25, batch_rows=4, micro_rows=2, optimizer="bitnet", warmup=2, log_every=5)
    reports: list[dict] = []
    distil(
        student,
        llama,
        rows,
        25,
        settings=settings,
        folder=tmp_path,
        on_step=seen.append,
        tell=lambda **r: reports.append(r),
    )
    assert seen == list(range(25))
    assert [record["step"] for record in reports if "step" in record] == [5, 10, 15, 20, 25]
    assert reports[0] == {"stage": "distil", "done": 0, "total": 25}  # before the first record of the loss
    assert Distillation(llama)(student, batch).item() < 0.7 * before
    distil(student, llama, rows, 25, settings=settings, folder=tmp_path, on_step=seen.append)  # finished: nothing to do
    assert len(seen) == 25


def test_only_what_requires_a_gradient_is_trained(llama) -> None:
    student = copy.deepcopy(llama)
    student.model.layers.requires_grad_(False)
    with torch.no_grad():
        student.model.embed_tokens.weight += 0.1 * torch.randn_like(student.model.embed_tokens.weight)
    frozen = student.model.layers[0].mlp.up_proj.weight.clone()
    words = student.model.embed_tokens.weight.clone()
    distil(student, llama, rows_of(), 3, settings=TrainSettings(steps=3, batch_rows=2, optimizer="compression"))
    assert torch.equal(student.model.layers[0].mlp.up_proj.weight, frozen)
    assert not torch.equal(student.model.embed_tokens.weight, words)
    with pytest.raises(UsageError, match="steps"):
        distil(student, llama, rows_of(), 4, settings=TrainSettings(steps=3))


def test_every_answer_of_a_looped_model_is_taught(tiny) -> None:
    teacher = tiny(loops=2)
    student = copy.deepcopy(teacher).train()
    tokens = torch.randint(0, teacher.config.vocab_size, (2, 12))
    batch = Batch(tokens[:, :-1], tokens[:, 1:], torch.zeros_like(tokens[:, 1:]))
    first, last = student.model(batch.inputs, use_cache=False).answers
    goal = teacher(batch.inputs).logits.log_softmax(-1).flatten(0, 1)
    expected = [
        F.kl_div(
            student.lm_head(student.head_down(x)).log_softmax(-1).flatten(0, 1), goal, log_target=True, reduction="sum"
        )
        for x in (first, last)
    ]
    actual = Distillation(teacher)(student, batch).item()
    assert actual == pytest.approx(sum(w.item() for w in expected) / 2 / batch.targets.numel(), rel=1e-3, abs=1e-6)
