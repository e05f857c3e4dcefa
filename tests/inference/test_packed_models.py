"""Packed models: saved, loaded by transformers, generating, unpacked; damaged files refused."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from tests_packed_tiny import cognate, llama, ternarised
from torch import nn
from transformers import AutoModelForCausalLM

from agent_forge import native
from agent_forge.errors import CheckpointError, UsageError
from agent_forge.forge.models.norm import rms_norm
from agent_forge.inference.packed import (
    PackedEmbedding,
    PackedHead,
    PackedLinear,
    PackedShape,
    TernaryWeight,
    round_rows,
    save_packed,
    unpack_model,
)

IDS = torch.arange(3, 21).view(2, 9)
MODELS = {
    "tied llama": llama,
    "untied llama with biases": lambda: llama(tie_word_embeddings=False, attention_bias=True, mlp_bias=True),
    "cognate with memory": cognate,
    "cognate without a float left": lambda: cognate(memory_layers=[]),
    "cognate, whole embedding": lambda: cognate(embedding_rank=None),
}


def loaded(model: Any, folder: Path, **options: Any) -> Any:
    save_packed(model, folder, ternary=options.pop("ternary", None) or ternarised(model), **options)
    return AutoModelForCausalLM.from_pretrained(folder)


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=IDS).logits


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(
    ("layout", "embedding"), [("2bit", "int8"), ("1.6bit", "int4"), ("2bit", "fp16"), ("1.6bit", None)]
)
def test_a_round_trip_is_exact_and_the_model_writes(make: Any, layout: str, embedding: Any, tmp_path: Path) -> None:
    model = make()
    ternary = ternarised(model)
    size = save_packed(model, tmp_path, ternary=ternary, layout=layout, embedding=embedding)
    assert size == sum(file.stat().st_size for file in tmp_path.iterdir())
    packed = AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, weight in ternary.items():
        layer = packed.get_submodule(name)
        assert isinstance(layer, PackedLinear)
        assert torch.equal(layer.matrix.values(), weight.trits)
        assert torch.equal(layer.matrix.row_scales(), weight.scales)
    words = packed.get_input_embeddings()
    assert isinstance(words, PackedEmbedding if embedding in ("int8", "int4") else nn.Embedding)
    out = packed.generate(IDS, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert out.shape == (2, 13)
    again = packed.generate(IDS, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0, use_cache=False)
    assert torch.equal(out, again)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_unpacked_it_is_the_dense_model_with_these_weights(make: Any, tmp_path: Path) -> None:
    """An independent reference: the original model with the de-quantised weights put in by hand."""
    model = make()
    ternary = ternarised(model)
    packed = loaded(model, tmp_path / "packed", ternary=ternary, embedding="int8")
    by_hand = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in ternary.items():
            by_hand.get_submodule(name).weight.copy_(weight.dense())
        by_hand.get_input_embeddings().weight.copy_(round_rows(model.get_input_embeddings().weight, "int8").dense())
        if not model.config.tie_word_embeddings:
            by_hand.lm_head.weight.copy_(round_rows(model.lm_head.weight, "int8").dense())
    expected = logits(by_hand)
    difference = (logits(packed) - expected).abs().max() / expected.abs().max()
    assert difference < 0.1  # int8 activations, and nothing else
    dense = packed.dequantize()
    assert not hasattr(dense.config, "quantization_config")
    assert (dense.lm_head.weight is dense.get_input_embeddings().weight) == model.config.tie_word_embeddings
    torch.testing.assert_close(logits(dense), expected, rtol=1e-4, atol=1e-5)
    dense.save_pretrained(tmp_path / "dense")
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "dense")), logits(dense))


def test_without_a_compiler_a_model_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = loaded(cognate(), tmp_path, ternary=ternarised(cognate(), group=16))
    expected = logits(packed)
    monkeypatch.setenv(native.SWITCH, "0")
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path)), expected)


def test_another_precision_leaves_trits_and_scales_alone(tmp_path: Path) -> None:
    model = llama()
    ternary = ternarised(model)
    loaded(model, tmp_path)
    packed = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert packed.dtype == torch.bfloat16
    assert logits(packed).dtype == torch.bfloat16
    for name, weight in ternary.items():
        assert torch.equal(packed.get_submodule(name).matrix.row_scales(), weight.scales)


def test_a_copy_works_and_holds_its_own_head(tmp_path: Path) -> None:
    packed = loaded(llama(), tmp_path)
    expected = logits(packed)
    for copied in (copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))):
        assert isinstance(copied.lm_head, PackedHead)
        assert copied.lm_head.table is copied.get_input_embeddings()
        assert copied.lm_head.table is not packed.lm_head.table
        assert torch.equal(logits(copied), expected)
    assert unpack_model(copied).lm_head.weight.shape == (101, 48)


def test_groups_sub_norms_and_four_levels(tmp_path: Path) -> None:
    model = llama()
    ternary = ternarised(model, group=16, half=True, sub_norm=True)
    four = "model.layers.0.mlp.down_proj"
    values = torch.tensor([-3, -1, 1, 3])[torch.randint(0, 4, (48, 72))]
    ternary[four] = TernaryWeight(values, torch.rand(48))
    packed = loaded(model, tmp_path, ternary=ternary)
    layer = packed.model.layers[1].mlp.up_proj
    x = torch.randn(5, 48)
    plain = PackedLinear(layer.shape, torch.float16).hold(layer.matrix)
    torch.testing.assert_close(layer(x), plain(rms_norm(x)))
    assert not torch.allclose(layer(x), plain(x))
    assert packed.get_submodule(four).shape.kind == "4level"
    assert torch.equal(packed.get_submodule(four).weight, ternary[four].dense())
    assert "kind=4level" in repr(packed)
    with pytest.raises(UsageError, match="sub-norm has no plain form"):
        unpack_model(packed)


def test_activations_may_stay_floats(tmp_path: Path) -> None:
    packed = loaded(llama(attention_bias=True), tmp_path, activations=None, head_activations=None, embedding="int8")
    torch.testing.assert_close(logits(packed), logits(unpack_model(copy.deepcopy(packed))), rtol=1e-4, atol=1e-5)


def test_a_tied_head_with_a_bias_keeps_it(tmp_path: Path) -> None:
    model = llama()
    model.lm_head.bias = nn.Parameter(torch.randn(101))
    save_packed(model, tmp_path, ternary=ternarised(model))
    head = PackedHead(
        PackedEmbedding(PackedShape("int8", 101, 48, 48)).hold(round_rows(model.lm_head.weight, "int8")), True
    )
    head.bias.data.copy_(model.lm_head.bias.data)  # type: ignore[union-attr]
    x = torch.randn(2, 48)
    assert (head(x) - model.lm_head(x)).abs().max() < 0.05 * model.lm_head(x).abs().max()


def test_the_rest_may_be_written_in_half_precision(tmp_path: Path) -> None:
    model = cognate()
    ternary = {name: weight for name, weight in ternarised(model).items() if "memory" not in name}
    sizes = [
        save_packed(model, tmp_path / str(rest), ternary=ternary, embedding=None, rest=rest)
        for rest in ("fp16", "fp32", None)
    ]
    assert sizes[0] < sizes[1] == sizes[2]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "fp16").dtype == torch.float32


def test_rounding_a_table_twice_changes_nothing() -> None:
    table = torch.randn(30, 100)
    for kind, steps in (("int8", 127), ("int4", 7)):
        for group in (None, 32, 100):
            once = round_rows(table, kind, group).dense()
            assert torch.equal(round_rows(once, kind, group).dense(), once)
            width = group or (32 if kind == "int4" else 100)
            unit = torch.nn.functional.pad(table.abs(), (0, -100 % width)).unflatten(1, (-1, width)).amax(-1) / steps
            assert ((once - table).abs() <= 0.51 * unit.repeat_interleave(width, 1)[:, :100]).all()


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    loaded(llama(), tmp_path)
    file = tmp_path / "model.safetensors"
    sound = file.read_bytes()
    flipped = bytearray(sound)
    flipped[-1000] ^= 1
    for bad in (bytes(flipped), sound[:-10], sound[:100], b"", sound + b"x"):
        file.write_bytes(bad)
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            AutoModelForCausalLM.from_pretrained(tmp_path)
    file.write_bytes(sound)
    AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_config_that_says_something_else_is_refused(tmp_path: Path) -> None:
    loaded(llama(), tmp_path)
    sound = json.loads((tmp_path / "config.json").read_text())
    matrices = sound["quantization_config"]["matrices"]
    name = next(iter(matrices))
    for changes in (
        {"format": 99},
        {"matrices": matrices | {"model.nowhere": matrices[name]}},
        {"matrices": matrices | {name: {"kind": "2bit"}}},
        {"files": {}},
    ):
        changed = sound | {"quantization_config": sound["quantization_config"] | changes}
        (tmp_path / "config.json").write_text(json.dumps(changed))
        with pytest.raises(CheckpointError):
            AutoModelForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"layout": "3bit"},
        {"embedding": "int2"},
        {"ternary": {"model.norm": TernaryWeight(torch.zeros(4, 4), torch.ones(1))}},
        {"ternary": {"model.layers.0.self_attn.q_proj": TernaryWeight(torch.zeros(4, 4), torch.ones(1))}},
        {"ternary": {"nowhere": TernaryWeight(torch.zeros(4, 4), torch.ones(1))}},
    ],
)
def test_what_cannot_be_saved_is_refused_before_anything_is_written(options: Any, tmp_path: Path) -> None:
    model = llama()
    with pytest.raises(UsageError):
        save_packed(model, tmp_path / "out", **{"ternary": ternarised(model)} | options)
    assert not (tmp_path / "out").exists()


def test_an_embedding_of_another_kind_is_refused(tmp_path: Path) -> None:
    model = llama()
    packed = loaded(model, tmp_path)
    with pytest.raises(UsageError, match="cannot be packed"):
        save_packed(packed, tmp_path / "again", ternary={})
