"""GGUF: what is written is read back by the `gguf` package and run by llama.cpp, with the logits of our own model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests_packed_tiny import cognate, llama, ternarised
from transformers import AutoModelForCausalLM

from agent_forge.errors import ModelError, UsageError
from agent_forge.forge.gguf_export import LLAMA3, export_gguf, splitter_name
from agent_forge.forge.training.tokenizer import train_tokenizer
from agent_forge.inference import llama_gguf
from agent_forge.inference.gguf_file import GgufFile
from agent_forge.inference.llama_gguf import load_gguf
from agent_forge.inference.packed import save_packed, unpack_model

gguf = pytest.importorskip("gguf")

SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 256,
    "intermediate_size": 512,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
}
IDS = [int(i) for i in torch.randint(32, 300, (20,), generator=torch.Generator().manual_seed(1))]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(["the cat sat on the mat and the dog too"] * 20, vocab_size=320)


def packed(folder: Path, model: Any, **options: Any) -> Any:
    save_packed(model, folder, ternary=ternarised(model, half=True, **options), embedding=None)
    return AutoModelForCausalLM.from_pretrained(folder)


def llama_cpp_logits(file: Path) -> np.ndarray[Any, Any]:
    llama_cpp = pytest.importorskip("llama_cpp")
    runner = llama_cpp.Llama(str(file), n_ctx=64, logits_all=True, n_threads=1, verbose=False)
    runner.eval(IDS)
    return np.array(runner.scores[: len(IDS)])


def logits(model: Any) -> np.ndarray[Any, Any]:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([IDS])).logits[0].numpy()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("ternary", ["TQ2_0", "TQ1_0"])
def test_llama_cpp_runs_the_ternary_file(ternary: str, tied: bool, tokenizer: Any, tmp_path: Path) -> None:
    model = packed(tmp_path, llama(**SHAPE, tie_word_embeddings=tied))
    types = export_gguf(model, tokenizer, tmp_path / "m.gguf", ternary=ternary, others="F32", pre="llama-bpe")
    assert list(types.values()).count(ternary) == 14
    assert ("output.weight" in types) != tied
    theirs, ours = llama_cpp_logits(tmp_path / "m.gguf"), logits(model)
    # Both round activations to 8 bits, but not alike: ggml by 256, we by the token. So they differ from each other
    # about as much as either differs from the model whose activations are floats.
    exact = logits(unpack_model(copy.deepcopy(model)))
    assert abs(theirs - ours).max() < 0.1 * abs(exact).max()
    assert np.corrcoef(theirs.ravel(), exact.ravel())[0, 1] > 0.995
    assert abs(theirs - exact).mean() < 2 * abs(ours - exact).mean()


def test_a_plain_model_is_the_same_in_llama_cpp(tokenizer: Any, tmp_path: Path) -> None:
    """No ternary weights, no rounding: the names, the shapes, the rotary halves and the biases must be right."""
    model = llama(**SHAPE, attention_bias=True)
    export_gguf(model, tokenizer, tmp_path / "m.gguf", others="F32", pre="llama-bpe")
    expected = logits(model)
    assert abs(llama_cpp_logits(tmp_path / "m.gguf") - expected).max() < 5e-3 * abs(expected).max()


def test_the_trits_are_exact_in_the_file(tmp_path: Path) -> None:
    model = packed(tmp_path, llama(**SHAPE))
    for ternary in ("TQ2_0", "TQ1_0"):
        export_gguf(model, None, tmp_path / "m.gguf", ternary=ternary)
        stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
        up = stored["blk.1.ffn_up.weight"]
        back = gguf.quants.dequantize(up.data, up.tensor_type)
        assert np.array_equal(back, model.model.layers[1].mlp.up_proj.weight.numpy())


def test_what_no_block_of_256_can_hold_is_written_otherwise(tmp_path: Path) -> None:
    small = packed(tmp_path / "a", llama())
    assert set(export_gguf(small, None, tmp_path / "a.gguf", others="Q8_0").values()) == {"F16", "F32"}  # 48, 72 wide
    grouped = packed(tmp_path / "b", llama(**SHAPE), group=128)
    assert set(export_gguf(grouped, None, tmp_path / "b.gguf", others="Q8_0").values()) == {"Q8_0", "F32"}


def test_the_vocabulary_is_the_tokenizers(tokenizer: Any, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    export_gguf(llama(**SHAPE), tokenizer, tmp_path / "m.gguf", pre="llama-bpe")
    runner = llama_cpp.Llama(str(tmp_path / "m.gguf"), vocab_only=True, verbose=False)
    for text in ("the cat sat on 12345 mats", "Ünïcode  and\ttabs", "<|user|>the dog<|end|>"):
        expected = tokenizer(text)["input_ids"]
        assert runner.tokenize(text.encode(), add_bos=True, special=True) == expected
    assert runner.metadata["tokenizer.chat_template"] == tokenizer.chat_template


@pytest.mark.parametrize(
    "shape",
    [{}, {"attention_bias": True, "mlp_bias": True}, {"head_dim": 48}, {"num_key_value_heads": 4}],
    ids=["plain", "biases", "wide heads", "no shared heads"],
)
def test_our_own_reader_gives_the_model_back(shape: dict[str, Any], tokenizer: Any, tmp_path: Path) -> None:
    model = llama(**{**SHAPE, "hidden_size": 64, "intermediate_size": 96} | shape)
    for bias in (parameter for name, parameter in model.named_parameters() if name.endswith("bias")):
        torch.nn.init.normal_(bias)
    export_gguf(model, tokenizer, tmp_path / "m.gguf", others="F32", pre="llama-bpe")
    again, read = load_gguf(tmp_path / "m.gguf")
    np.testing.assert_allclose(logits(again), logits(model), rtol=1e-5, atol=1e-5)
    for text in ("the cat sat on 12345 mats, didn't it", "Ünïcode  and\ttabs\n\n x", "<|user|>the dog<|end|>"):
        assert read(text)["input_ids"] == tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("setting", "tensor", "match"),
    [
        (("tokenizer.ggml.pre", "qwen2"), None, "the pre-tokenizer 'qwen2' is not supported"),
        (("llama.rope.scaling.type", "linear"), None, "scaled"),
        (("llama.embedding_length", 64), None, "do not fit"),
        (None, "rope_freqs.weight", "the tensor 'rope_freqs.weight' does not belong"),
        (None, None, "the tensor for model.layers.0.mlp.up_proj.weight is missing"),
    ],
    ids=["splitter", "scaled", "width", "tensor more", "tensor less"],
)
def test_what_our_own_reader_would_take_for_another_model_is_refused(
    setting: Any, tensor: str | None, match: str, tokenizer: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    export_gguf(llama(**SHAPE), tokenizer, tmp_path / "m.gguf", pre="llama-bpe")
    file = GgufFile(tmp_path / "m.gguf")
    if setting is not None:
        file.settings[setting[0]] = setting[1]
    else:
        moved = file.tensors.pop("blk.0.ffn_up.weight")
        file.tensors |= {tensor: moved} if tensor else {}
    monkeypatch.setattr(llama_gguf, "GgufFile", lambda path: file)
    with pytest.raises(ModelError, match=match):
        load_gguf(tmp_path / "m.gguf")


def test_the_reader_cuts_words_as_the_writer_names_it() -> None:
    assert llama_gguf.LLAMA3 == LLAMA3


def test_how_words_are_cut_is_named_or_asked_for() -> None:
    level = {"type": "ByteLevel", "use_regex": True}
    assert splitter_name(level) == "gpt-2"
    digits = {"type": "Digits", "individual_digits": True}
    assert splitter_name({"type": "Sequence", "pretokenizers": [digits, level]}) == "smollm"
    split = {"type": "Split", "pattern": {"Regex": LLAMA3}}
    bare = {"type": "ByteLevel", "use_regex": False}
    assert splitter_name({"type": "Sequence", "pretokenizers": [split, bare]}) == "llama-bpe"
    for unknown in (None, bare, {"type": "Whitespace"}):
        with pytest.raises(UsageError, match="pre="):
            splitter_name(unknown)


def test_other_models_and_types_are_refused(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no architecture for a cognate model"):
        export_gguf(cognate(), None, tmp_path / "m.gguf")
    with pytest.raises(UsageError, match="TQ1_0"):
        export_gguf(llama(), None, tmp_path / "m.gguf", ternary="Q4_0")
    scaled = llama()
    scaled.config.rope_parameters = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    with pytest.raises(UsageError, match="linear"):
        export_gguf(scaled, None, tmp_path / "m.gguf")
    with pytest.raises(UsageError, match="sub-norm"):
        export_gguf(packed(tmp_path / "normed", llama(), sub_norm=True), None, tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()
