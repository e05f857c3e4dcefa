"""Packed models say what transformers says, token by token and for whole prompts: without torch, in numpy and compiled,
and from the memory of a torch model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packed_folders import random_folder

torch = pytest.importorskip("torch")
from tests_packed_tiny import cognate, llama, ternarised  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding  # noqa: E402

from agent_forge import native  # noqa: E402
from agent_forge.errors import UsageError  # noqa: E402
from agent_forge.inference.packed import (  # noqa: E402
    PackedModel,
    fast_generate,
    fast_tokens,
    from_torch,
    kernels,
    save_packed,
    why_not,
)
from agent_forge.inference.packed.rotary import angles, rope_of  # noqa: E402

IDS = [int(i) for i in torch.randint(1, 60, (50,), generator=torch.Generator().manual_seed(1))]
MODELS = {
    "llama": (llama, {}),
    "llama with biases and groups": (
        lambda: llama(tie_word_embeddings=False, attention_bias=True, mlp_bias=True),
        {"group": 16},
    ),
    "cognate with memory": (cognate, {}),
    "cognate without": (lambda: cognate(memory_layers=[], embedding_rank=None, qk_norm=False), {"half": True}),
}

pytestmark = pytest.mark.skipif(kernels.decoder() is None, reason="there is no C compiler here")


def packed(make: Any, folder: Path, options: Any, **how: Any) -> Any:
    model = make()
    save_packed(model, folder, ternary=ternarised(model, **options), **how)
    return AutoModelForCausalLM.from_pretrained(folder)


def transformers_logits(model: Any, ids: list[int]) -> Any:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids])).logits[0].numpy()


def agree(logits: Any, expected: Any) -> None:
    """Where sums are taken in another order, an activation may round to its other neighbour: rare, and worth a step (of
    all later tokens, which see it)."""
    error = np.abs(logits - expected).max(-1) / np.abs(expected).max()
    assert np.median(error) < 1e-5
    assert error.max() < 0.05


@pytest.mark.parametrize(("make", "options"), MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(("layout", "embedding"), [("2bit", "int8"), ("1.6bit", "int4"), ("2bit", None)])
def test_the_logits_are_those_of_transformers(
    make: Any, options: Any, layout: str, embedding: Any, tmp_path: Path
) -> None:
    model = packed(make, tmp_path, options, layout=layout, embedding=embedding)
    expected = transformers_logits(model, IDS)
    for alone in (PackedModel.load(tmp_path), from_torch(model)):
        agree(alone.read(alone.history(), IDS, each=len(IDS)), expected)
        history = alone.history()
        for part in (slice(0, 33), slice(33, 34)):
            last = alone.read(history, IDS[part])[0]
            assert np.abs(last - expected[part.stop - 1]).max() < 0.05 * np.abs(expected).max()
    # the weights moved into one piece of memory, and the model still works
    assert np.array_equal(transformers_logits(model, IDS), expected)


@pytest.mark.parametrize("seed", range(24))
def test_random_shapes_say_what_transformers_says(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that numpy wrote: transformers reads them through our modules, PackedModel without torch. All but a few
    of ten short texts agree to 1e-4 (see `agree`); without the rounding of activations, everything does."""
    random_folder(tmp_path, seed)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path)
    compiled = PackedModel.load(tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv(native.SWITCH, "0")
        plain = PackedModel.load(tmp_path)
    assert compiled.why_plain is None
    assert plain.why_plain == "there is no C compiler here"
    texts = [IDS[start : start + 5] for start in range(0, 50, 5)]
    for model in (compiled, plain):
        agree(model.read(model.history(), IDS, each=len(IDS)), transformers_logits(whole, IDS))
        logits = np.stack([model.read(model.history(), text, each=5) for text in texts])
        expected = np.stack([transformers_logits(whole, text) for text in texts])
        error = np.abs(logits - expected).max((1, 2)) / np.abs(expected).max()
        assert (error < 1e-4).sum() >= 7
        assert error.max() < 0.05
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] |= {"activations": None, "head_activations": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    expected = transformers_logits(AutoModelForCausalLM.from_pretrained(tmp_path), IDS)
    model = PackedModel.load(tmp_path)
    np.testing.assert_allclose(model.read(model.history(), IDS, each=len(IDS)), expected, rtol=1e-4, atol=1e-4)


ROPES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 10_000.0},
    {"rope_type": "linear", "rope_theta": 500_000.0, "factor": 4.0},
    {
        "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 512},
    {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 8.0, "original_max_position_embeddings": 300, "beta_fast": 16,
        "beta_slow": 2, "truncate": False,
    },
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "attention_factor": 1.3},
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 9.0, "mscale": 0.7, "mscale_all_dim": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: rope["rope_type"])
@pytest.mark.parametrize("width", [8, 64, 128])
def test_the_angles_are_those_of_transformers(rope: dict[str, Any], width: int, tmp_path: Path) -> None:
    heads = {"hidden_size": 2 * width, "num_attention_heads": 2, "head_dim": width}
    config = LlamaConfig(**heads, max_position_embeddings=2048, rope_parameters=dict(rope))
    expected = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(2048)[None])
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    for found, theirs in zip(angles(rope_of(written), width, 2048), expected, strict=True):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, theirs[0, :, : width // 2].numpy(), atol=3e-4)


def test_rope_settings_as_written_before_transformers_5() -> None:
    old = {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}, "max_position_embeddings": 99}
    new = {"rope_parameters": ROPES[1], "max_position_embeddings": 99}
    assert rope_of(old) == rope_of(new)


def test_it_writes_the_likeliest_tokens(tmp_path: Path) -> None:
    """Judged by transformers' logits on what was written: the best token, or one that a rounding makes the best."""
    model = packed(llama, tmp_path, {})
    written = fast_generate(model, IDS, 12)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([IDS + written])).logits[0, len(IDS) - 1 : -1]
    best = logits.amax(1)
    assert ((best - logits[range(12), written]) < 0.02 * best.abs()).all()
    assert fast_generate(model, IDS, 12, eos_token_id=written[4]) == written[: written.index(written[4]) + 1]
    assert fast_generate(model, IDS, 12, eos_token_id=[written[4]]) == written[: written.index(written[4]) + 1]
    alone = from_torch(model)
    assert fast_generate(alone, IDS, 12) == fast_generate(alone, IDS, 12) == written
    assert fast_generate(PackedModel.load(tmp_path), IDS, 12) == written
    some = fast_generate(model, IDS, 20, temperature=1.5, seed=3)
    assert some == list(fast_tokens(alone, IDS, 20, temperature=1.5, seed=3))
    assert some != fast_generate(model, IDS, 20, temperature=1.5, seed=4)
    assert len(fast_generate(model, IDS, 5, temperature=1.0)) == 5


def test_what_it_does_not_run_transformers_does(tmp_path: Path) -> None:
    model = packed(llama, tmp_path, {})
    whole = model.generate(torch.tensor([IDS]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    model.config.model_type = "another"
    assert fast_generate(model, IDS, 12) == whole[0, len(IDS) :].tolist()


def test_what_it_cannot_run_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = packed(llama, tmp_path, {})
    model.model.layers[0].mlp.up_proj.sub_norm = True
    assert "sub-norm" in str(why_not(model))
    model.config.hidden_act = "gelu"
    assert "gelu" in str(why_not(model))
    assert "loops" in str(why_not(cognate(loops=2)))
    stretched = cognate()
    stretched.config.rope_parameters = {"rope_type": "dynamic"}
    assert "dynamic" in str(why_not(stretched))
    assert why_not(cognate()) is None  # plain weights are run as they are
    assert "main memory" in str(why_not(cognate().to("meta")))
    model.config.model_type = "gpt2"
    with pytest.raises(UsageError, match="gpt2"):
        from_torch(model)
    monkeypatch.setattr(kernels, "decoder", lambda: None)
    assert why_not(cognate()) == "there is no C compiler here"


def test_it_runs_plain_models_too(tmp_path: Path) -> None:
    model = llama()
    alone = from_torch(model)
    logits = alone.read(alone.history(), IDS, each=len(IDS))
    np.testing.assert_allclose(logits, transformers_logits(model, IDS), rtol=1e-3, atol=1e-4)
