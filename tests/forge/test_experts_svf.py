"""Expert vectors against a plain SVD, on three kinds of layers; files that fit one set of weights only; switching."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests_forge_axes import tiny_config  # noqa: E402
from tests_lively import lively  # noqa: E402

from agent_forge import forge  # noqa: E402
from agent_forge.errors import CheckpointError, UsageError  # noqa: E402
from agent_forge.forge.experts.bank import ExpertBank, expert_file, read_experts, weights_digest, write_expert  # noqa: E402
from agent_forge.forge.experts.svf import (  # noqa: E402
    add_scales,
    base_view,
    fold_vectors,
    learnt_vectors,
    matrix_of,
    remove_scales,
    reset_vectors,
    scaled_layers,
    set_learning,
)
from agent_forge.forge.models import CognateForCausalLM  # noqa: E402

INPUTS = torch.tensor([[1, 5, 3, 2, 7, 9], [2, 2, 8, 1, 0, 4]])


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "attention_bias": True}
    config = LlamaConfig(vocab_size=32, num_attention_heads=2, num_key_value_heads=1, **sizes)
    return lively(LlamaForCausalLM(config))


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return lively(GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=16, **ends)))


def cognate() -> Any:
    return lively(CognateForCausalLM(tiny_config(loops=2)))


MODELS = pytest.mark.parametrize("make", [llama, gpt2, cognate], ids=lambda make: make.__name__)


def seeded(make: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    model = make().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model(input_ids=INPUTS, use_cache=False).logits


def drawn_vectors(model: Any, seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: 1 + 0.5 * torch.randn(len(layer.shift_R), generator=generator) for name, layer in scaled_layers(model)
    }


@MODELS
def test_vectors_of_ones_are_the_identity_and_others_are_those_of_a_plain_svd(make: Callable[[], Any]) -> None:
    model, peer = seeded(make), seeded(make)
    names = add_scales(model)
    set_learning(model, True)
    assert torch.allclose(logits(model), logits(peer), atol=1e-5)
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {f"{name}.shift_R" for name in names}

    vectors = drawn_vectors(model, 1)
    with torch.no_grad():
        for name, layer in scaled_layers(model):
            layer.shift_R.copy_(vectors[name] - 1)
            weight = matrix_of(peer.get_submodule(name))
            u, s, vh = torch.linalg.svd(weight.double(), full_matrices=False)
            assert len(s) == len(layer.shift_R)
            weight.copy_(u @ torch.diag(s * vectors[name].double()) @ vh)
    assert torch.allclose(logits(model), logits(peer), atol=1e-4)
    assert not torch.allclose(logits(peer), logits(seeded(make)), atol=1e-2)
    for name, z in learnt_vectors(model).items():
        assert torch.allclose(z, vectors[name])

    folded = seeded(make)
    fold_vectors(folded, vectors)
    assert torch.allclose(logits(folded), logits(peer), atol=1e-4)

    reset_vectors(model)
    assert torch.equal(logits(model), logits(seeded(make)))
    remove_scales(model)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in peer.named_parameters()]
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_the_gradient_of_a_vector_is_that_of_the_plain_form() -> None:
    model = seeded(llama)
    add_scales(model, ["down_proj", "k_proj"])
    set_learning(model, True)
    model(input_ids=INPUTS, labels=INPUTS, use_cache=False).loss.backward()
    for name, layer in scaled_layers(model):
        peer = seeded(llama)
        weight = peer.get_submodule(name).weight
        u, s, vh = torch.linalg.svd(weight.detach(), full_matrices=False)
        peer(input_ids=INPUTS, labels=INPUTS, use_cache=False).loss.backward()
        expected = s * (u.T @ weight.grad @ vh.T).diagonal()  # d loss / d z of U diag(S z) V^T
        assert torch.allclose(layer.shift_R.grad, expected, atol=1e-5)


@MODELS
def test_the_base_can_be_read_beside_the_vectors_without_a_copy(make: Callable[[], Any]) -> None:
    model = seeded(make)
    add_scales(model)
    set_learning(model, True)
    view = base_view(model)
    with torch.no_grad():
        for _, layer in scaled_layers(model):
            layer.shift_R.fill_(0.5)
    assert torch.equal(logits(view), logits(seeded(make)))
    assert not torch.allclose(logits(model), logits(view), atol=1e-2)
    assert {p.data_ptr() for p in view.parameters()} == {p.data_ptr() for p in model.parameters()}
    assert {b.data_ptr() for b in view.buffers()} == {b.data_ptr() for b in model.buffers()}


def test_matrices_are_made_scalable_once_and_only_where_there_are_some() -> None:
    model = seeded(llama)
    with pytest.raises(UsageError, match="no layer is named none"):
        add_scales(model, ["none"])
    assert len(add_scales(model, ["q_proj"])) == 2
    with pytest.raises(UsageError, match="already"):
        add_scales(model)


@MODELS
def test_rows_of_one_batch_are_different_experts_and_the_weights_are_never_copied(make: Callable[[], Any]) -> None:
    model = seeded(make)
    pointers = {parameter.data_ptr() for parameter in model.parameters()}
    add_scales(model)
    experts = {"a": drawn_vectors(model, 1), "b": drawn_vectors(model, 2)}
    bank = ExpertBank(model, experts)
    base = logits(seeded(make))
    assert torch.equal(logits(model), base)
    alone = {}
    for name, vectors in experts.items():
        with bank.using(name):
            alone[name] = logits(model)
        folded = seeded(make)
        fold_vectors(folded, vectors)
        assert torch.allclose(alone[name], logits(folded), atol=1e-4)
    bank.switch(["a", "b"])
    assert torch.allclose(logits(model), torch.stack([alone["a"][0], alone["b"][1]]), atol=1e-5)
    bank.switch([None, {"b": 1.0}])
    assert torch.allclose(logits(model), torch.stack([base[0], alone["b"][1]]), atol=1e-5)
    bank.switch(None)
    assert torch.equal(logits(model), base)
    matrices = {layer.base.weight.data_ptr() for _, layer in scaled_layers(model)}
    assert matrices <= pointers


def test_a_mixture_adds_the_changes_of_its_experts() -> None:
    model = seeded(llama)
    add_scales(model)
    one, two = drawn_vectors(model, 1), drawn_vectors(model, 2)
    bank = ExpertBank(model, {"one": one, "two": two})
    bank.switch({"one": 0.25, "two": 0.5})
    folded = seeded(llama)
    fold_vectors(folded, {name: 1 + 0.25 * (one[name] - 1) + 0.5 * (two[name] - 1) for name in one})
    assert torch.allclose(logits(model), logits(folded), atol=1e-4)
    with pytest.raises(UsageError, match="no expert 'on'") as error:
        bank.switch("on")
    assert "one" in str(error.value)


def test_files_hold_the_vectors_and_are_refused_beside_other_weights(tmp_path: Path) -> None:
    model = seeded(llama)
    model.save_pretrained(tmp_path / "mine")
    digest = weights_digest(tmp_path / "mine")
    add_scales(model)
    experts = {name: drawn_vectors(model, seed) for seed, name in enumerate(("sums", "own:x/y"))}
    for name, vectors in experts.items():
        write_expert(expert_file(tmp_path / "mine", name), name, vectors, digest)
    assert weights_digest(tmp_path / "mine") == digest  # experts beside the weights do not change them
    count = sum(parameter.numel() for parameter in seeded(llama).parameters())
    assert forge.load(tmp_path / "mine").checkpoint.card.parameters == count
    stored = read_experts(tmp_path / "mine")
    assert stored.keys() == experts.keys()
    assert all(torch.equal(stored[name][key], z) for name in experts for key, z in experts[name].items())

    folded = seeded(llama)
    fold_vectors(folded, experts["sums"])
    loaded = forge.load(tmp_path / "mine", expert="sums").model
    assert torch.allclose(logits(loaded), logits(folded), atol=1e-5)
    bank = ExpertBank.open(tmp_path / "mine", forge.load(tmp_path / "mine").model)
    with bank.using("sums") as switched:
        assert torch.allclose(logits(switched), logits(folded), atol=1e-4)
    with pytest.raises(UsageError, match="no expert 'sum'"):
        forge.load(tmp_path / "mine", expert="sum")

    other = seeded(llama)
    with torch.no_grad():
        other.lm_head.weight[0, 0] += 1
    other.save_pretrained(tmp_path / "other")
    expert_file(tmp_path / "other", "sums").parent.mkdir()
    expert_file(tmp_path / "mine", "sums").rename(expert_file(tmp_path / "other", "sums"))
    with pytest.raises(CheckpointError, match="belongs to the weights"):
        read_experts(tmp_path / "other")
    expert_file(tmp_path / "other", "sums").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(CheckpointError, match="expert"):
        read_experts(tmp_path / "other")
