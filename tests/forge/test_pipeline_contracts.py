"""A handoff names what is unmet, and adapts only what an adapter can."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from agent_forge.errors import HandoffError
from agent_forge.forge.checkpoint import Card, Checkpoint, Metric, finish, staging
from agent_forge.forge.contracts import ANY_NUMBER, Contract, clauses, dtypes_of, format_of, is_tied
from agent_forge.forge.handoff import ADAPTERS, handoff
from agent_forge.inference.packed import TernaryWeight, save_packed


def make(
    models: Path, *, shards: int = 1, scale: float = 1.0, tokenizer: str | None = "{}", name: str = "Toy"
) -> Checkpoint:
    tensors = [{f"w{i}": torch.randn(3, 4) * scale, f"n{i}": torch.arange(3)} for i in range(shards)]
    with staging(models) as folder:
        names = ["model.safetensors"] if shards == 1 else [f"model-{i}.safetensors" for i in range(shards)]
        for file, part in zip(names, tensors, strict=True):
            save_file(part, folder / file)
        if shards > 1:
            total = sum(t.nbytes for part in tensors for t in part.values())
            (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}}))
        (folder / "config.json").write_text(json.dumps({"architectures": [name], "torch_dtype": "float32"}))
        (folder / "sub").mkdir()
        (folder / "sub" / "note.txt").write_text("kept")
        if tokenizer:
            (folder / "tokenizer.json").write_text(tokenizer)
        return finish(folder, Card("toy", {"held_out": 0.1}, metrics={"loss": Metric(2.0)}), models)


SOUND = Contract(architectures=("Toy",), parameters=(1, 100), dtypes=("F32",), tokenizer=True, metrics={"loss": (0, 3)})
UNMET = {
    "checkpoints": replace(SOUND, checkpoints=(2, 3)),
    "architecture": replace(SOUND, architectures=("Other", "Another")),
    "parameters": replace(SOUND, parameters=(16, 20)),
    "metric loss": replace(SOUND, metrics={"loss": (0, 1)}),
    "metric accuracy": replace(SOUND, metrics={"accuracy": ANY_NUMBER}),
}


@pytest.mark.parametrize("name", UNMET)
def test_each_unmet_clause_is_named_alone(name: str, tmp_path: Path) -> None:
    checkpoint = make(tmp_path)
    assert all(clause.met for clause in clauses(SOUND, [checkpoint]))
    unmet = [clause.name for clause in clauses(UNMET[name], [checkpoint]) if not clause.met]
    assert unmet == [name]
    with pytest.raises(HandoffError) as caught:
        handoff(UNMET[name], [checkpoint], "next", tmp_path)
    assert str(caught.value).startswith(f"the handoff to 'next' is refused; unmet: {name}: ")
    assert ";" not in str(caught.value).partition("unmet: ")[2]


def test_tokenizers_must_be_there_and_the_same(tmp_path: Path) -> None:
    one, other = make(tmp_path), make(tmp_path, tokenizer='{"a": 1}')
    bare = [make(tmp_path, tokenizer=None), make(tmp_path, tokenizer=None)]
    same = Contract(checkpoints=(1, 9), same_tokenizer=True)
    assert all(clause.met for clause in clauses(same, [one, make(tmp_path)]))
    for wrong in ([one, other], [one, bare[0]], bare):
        assert [clause.name for clause in clauses(same, wrong) if not clause.met] == ["same tokenizer"]
    assert [c.met for c in clauses(Contract(tokenizer=True), [bare[0]])] == [True, False]


def test_architectures_are_compared_in_full(tmp_path: Path) -> None:
    """Their first letters are often the same."""
    pair = [make(tmp_path, name="XLMRobertaForCausalLM"), make(tmp_path, name="XLMRobertaForMaskedLM")]
    checked = clauses(Contract(checkpoints=(2, 2), same_architecture=True), pair)
    assert [clause.name for clause in checked if not clause.met] == ["same architecture"]
    nobody = replace(pair[0], card=replace(pair[0].card, parameters=None))
    assert "not counted" in str(clauses(Contract(parameters=(1, 2)), [nobody])[1])


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(("stored", "dtype"), [("BF16", torch.bfloat16), ("F16", torch.float16)])
def test_the_dtype_adapter_casts_as_torch_does(stored: str, dtype: torch.dtype, shards: int, tmp_path: Path) -> None:
    checkpoint = make(tmp_path, shards=shards)
    (adapted,), checked = handoff(Contract(dtypes=(stored, "F64")), [checkpoint], "next", tmp_path)
    assert [clause.name for clause in checked if not clause.met] == ["dtype"]
    assert dtypes_of(adapted.path) == {stored}
    assert adapted.card.inputs == (checkpoint.digest,), "its parent"
    assert adapted.card.metrics == {}, "what was measured on other weights is not its own"
    assert adapted.card.config["held_out"] == 0.1
    size = 0
    for file in checkpoint.path.glob("*.safetensors"):
        after = load_file(adapted.path / file.name)
        for name, tensor in load_file(file).items():
            assert torch.equal(after[name], tensor.to(dtype) if tensor.is_floating_point() else tensor)
            size += after[name].nbytes
    config = json.loads((adapted.path / "config.json").read_text())
    assert config == {"architectures": ["Toy"], "dtype": str(dtype).removeprefix("torch.")}
    assert (adapted.path / "sub" / "note.txt").read_text() == "kept"
    if shards > 1:
        assert json.loads((adapted.path / "model.safetensors.index.json").read_text())["metadata"]["total_size"] == size
    (again,), _ = handoff(Contract(dtypes=(stored,)), [adapted], "next", tmp_path)
    assert again == adapted, "what fits is left alone"


def test_weights_that_the_new_type_cannot_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="has values that float16 cannot hold"):
        handoff(Contract(dtypes=("F16",)), [make(tmp_path, scale=1e6)], "next", tmp_path)
    assert not list(tmp_path.glob("adapter-*"))


def test_without_an_adapter_the_dtype_clause_is_unmet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ADAPTERS, "dtype")
    with pytest.raises(HandoffError, match="unmet: dtype: F16, found F32"):
        handoff(Contract(dtypes=("F16",)), [make(tmp_path)], "next", tmp_path)


def tiny_llama(models: Path, *, tied: bool, equal: bool = True) -> Checkpoint:
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=40, tie_word_embeddings=tied, **shape))
    if not tied and equal:
        model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.detach().clone())
    with staging(models) as folder:
        model.save_pretrained(folder)
        return finish(folder, Card("llama", {}), models)


def logits(checkpoint: Checkpoint) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(checkpoint.path).eval()
    with torch.no_grad():
        return model(torch.arange(12)[None]).logits


@pytest.mark.parametrize("tied", [True, False])
def test_the_tying_adapter_keeps_what_the_model_says(tied: bool, tmp_path: Path) -> None:
    checkpoint = tiny_llama(tmp_path, tied=tied)
    assert is_tied(checkpoint.path) is tied
    (adapted,), checked = handoff(Contract(tied=not tied), [checkpoint], "next", tmp_path)
    assert [clause.name for clause in checked if not clause.met] == ["tying"]
    assert is_tied(adapted.path) is (not tied)
    assert adapted.card.parameters - checkpoint.card.parameters == (40 * 16 if tied else -40 * 16)
    assert adapted.card.inputs == (checkpoint.digest,)
    assert torch.equal(logits(adapted), logits(checkpoint))
    head = AutoModelForCausalLM.from_pretrained(adapted.path)
    assert (head.lm_head.weight is head.model.embed_tokens.weight) is (not tied)
    (again,), _ = handoff(Contract(tied=not tied), [adapted], "next", tmp_path)
    assert again == adapted, "what fits is left alone"


def test_a_head_of_its_own_is_not_thrown_away(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="the head differs from the embedding"):
        handoff(Contract(tied=True), [tiny_llama(tmp_path, tied=False, equal=False)], "next", tmp_path)


def test_tying_is_read_off_the_weights_where_the_configuration_is_silent(tmp_path: Path) -> None:
    for tied in (True, False):
        checkpoint = tiny_llama(tmp_path, tied=tied)
        config = json.loads((checkpoint.path / "config.json").read_text())
        del config["tie_word_embeddings"]
        (checkpoint.path / "config.json").write_text(json.dumps(config))
        assert is_tied(checkpoint.path) is tied


def test_a_format_that_nobody_can_read_is_refused_by_name(tmp_path: Path) -> None:
    checkpoint = tiny_llama(tmp_path, tied=True)
    config = json.loads((checkpoint.path / "config.json").read_text())
    (checkpoint.path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "odd"}}))
    assert format_of(checkpoint.path) == "odd"
    with pytest.raises(HandoffError, match="'odd' cannot be made dense"):
        handoff(Contract(formats=("dense",)), [checkpoint], "next", tmp_path)
    with pytest.raises(HandoffError, match="unmet: format: gptq, found odd"):
        handoff(Contract(formats=("gptq",)), [checkpoint], "next", tmp_path)


def test_the_format_adapter_makes_a_packed_model_dense_with_the_same_values(tmp_path: Path) -> None:
    dense = AutoModelForCausalLM.from_pretrained(tiny_llama(tmp_path, tied=False).path)
    name = "model.layers.0.mlp.up_proj"
    scales = torch.full((32, 1), 0.5)
    trits = torch.randint(-1, 2, (32, 16), dtype=torch.int8)
    with staging(tmp_path) as folder:
        save_packed(dense, folder, ternary={name: TernaryWeight(trits, scales)}, layout="2bit", embedding=None)
        packed = finish(folder, Card("packed", {}), tmp_path)
    (adapted,), checked = handoff(Contract(formats=("dense",)), [packed], "next", tmp_path)
    assert [(clause.name, clause.actual) for clause in checked if not clause.met] == [("format", "agent_forge_packed")]
    assert format_of(adapted.path) == "dense"
    after = load_file(adapted.path / "model.safetensors")
    assert torch.equal(after[f"{name}.weight"].float(), trits * scales)
    unchanged = "model.layers.0.mlp.down_proj.weight"
    assert torch.equal(after[unchanged], dense.state_dict()[unchanged])


def test_a_packed_model_counts_its_weights_not_its_bytes(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path, tied=False)
    dense = AutoModelForCausalLM.from_pretrained(source.path)
    weight = TernaryWeight(torch.ones(32, 16, dtype=torch.int8), torch.ones(32, 1))
    with staging(tmp_path) as folder:
        save_packed(dense, folder, ternary={"model.layers.0.mlp.up_proj": weight}, layout="1.6bit", embedding=None)
        packed = finish(folder, Card("packed", {}), tmp_path)
    assert packed.card.parameters == source.card.parameters
