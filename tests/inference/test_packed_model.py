"""Packed models without torch: what the compiled decoder and numpy say, how a history is cut and copied, and what is
refused. Where torch is installed, transformers is the judge (test_packed_decoder)."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packed_folders import cognate_folder, llama_folder

from agent_forge import native
from agent_forge.errors import CheckpointError, UsageError
from agent_forge.inference.packed import DecoderBatch, PackedModel, kernels

IDS = np.random.default_rng(1).integers(1, 60, 50).tolist()
MODELS = {
    "llama": lambda folder: llama_folder(folder),
    "five trits, int4 words": lambda folder: llama_folder(folder, kind="1.6bit", embedding="int4", half=True),
    "four levels, untied, biases": lambda folder: llama_folder(folder, kind="4level", tied=False, bias=True),
    "groups, half words": lambda folder: llama_folder(folder, group=16, embedding="fp16"),
    "untied floats": lambda folder: llama_folder(folder, tied=False, embedding=None, head_dim=8),
    "cognate": lambda folder: cognate_folder(folder),
    "cognate without memory": lambda folder: cognate_folder(folder, memory_layers=[], embedding_rank=32, qk_norm=False),
}

needs_compiler = pytest.mark.skipif(kernels.decoder() is None, reason="there is no C compiler here")


def plain(folder: Path, monkeypatch: pytest.MonkeyPatch) -> PackedModel:
    """The model as a machine without a compiler runs it."""
    with monkeypatch.context() as patch:
        patch.setenv(native.SWITCH, "0")
        model = PackedModel.load(folder)
    assert model.why_plain == "there is no C compiler here"
    return model


def agree(one: Any, other: Any) -> None:
    """To 1e-4, but for the few tokens where another order of additions tips an activation to its other neighbour in
    int8: that moves the logits by about one per cent."""
    assert one.shape == other.shape
    error = np.abs(one - other).max(-1) / np.abs(other).max()
    assert np.median(error) < 1e-5
    assert error.max() < 0.05


@needs_compiler
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_numpy_says_what_the_compiled_decoder_says(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path)
    fast, slow = PackedModel.load(folder), plain(folder, monkeypatch)
    assert fast.why_plain is None
    assert fast.vocabulary == slow.vocabulary
    logits = [model.read(model.history(), IDS, each=len(IDS)) for model in (fast, slow)]
    assert logits[0].dtype == logits[1].dtype == np.float32
    agree(*logits)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("make", [llama_folder, cognate_folder])
def test_a_history_goes_on_and_is_copied(
    make: Any, compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path)
    model = PackedModel.load(folder) if compiled else plain(folder, monkeypatch)
    whole = model.read(model.history(), IDS, each=3)
    history = model.history()
    model.read(history, IDS[:20])
    fork = history.copy()
    model.read(fork, IDS[30:])
    assert (history.length, fork.length) == (20, 40)
    agree(model.read(history, IDS[20:], each=3), whole)  # whatever the fork read
    history.cut(0)
    assert np.array_equal(model.read(history, IDS, each=3), whole)
    long = history.copy()
    for _ in range(12):  # beyond the room that a history begins with
        model.read(long, IDS)
    assert long.length == 13 * len(IDS)
    assert np.isfinite(model.read(long, IDS)).all()


def test_what_came_after_is_forgotten_or_cannot_be(tmp_path: Path) -> None:
    model = PackedModel.load(llama_folder(tmp_path / "llama"))
    history = model.history()
    model.read(history, IDS[:30])
    expected = model.read(history, IDS[30:31])
    model.read(history, IDS[31:])
    history.cut(30)
    assert np.array_equal(model.read(history, IDS[30:31]), expected)
    for wrong in (-1, 32):
        with pytest.raises(UsageError, match="31 tokens cannot be cut"):
            history.cut(wrong)
    remembering = PackedModel.load(cognate_folder(tmp_path / "cognate"))
    memory = remembering.history()
    remembering.read(memory, IDS)
    memory.cut(50)
    with pytest.raises(UsageError, match="cannot forget single tokens"):
        memory.cut(49)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("make", [llama_folder, cognate_folder])
def test_sequences_side_by_side_say_what_each_says_alone(
    make: Any, compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit, whoever joins and leaves beside them, and beyond the room that they began with."""
    folder = make(tmp_path)
    model = PackedModel.load(folder) if compiled else plain(folder, monkeypatch)
    prompts = [IDS[:n] for n in (3, 40, 1, 33, 9, 17, 5, 2, 8, 50)]
    batch, written = DecoderBatch(model), [list(prompt) for prompt in prompts]
    running = list(range(len(prompts)))
    last = np.concatenate([batch.join(prompts[:4]), batch.join(prompts[4:])])
    for step in range(250 if compiled else 30):
        for row, logits in zip(running, last, strict=True):
            written[row].append(int(logits.argmax()))
        last = batch.step([written[row][-1] for row in running])
        if step in (2, 3, 20):
            batch.leave([1, len(running) - 1])
            running[1] = running[-2]
            del running[-2:]
            last = batch.step([7] * len(running))
            for row in running:
                written[row].append(7)
    assert batch.count == len(running) == 4
    for row, logits in zip(running, last, strict=True):
        history = model.history()
        model.read(history, prompts[row])
        for token in written[row][len(prompts[row]) :]:
            again = model.read(history, [token])
        assert np.array_equal(again[0], logits)
    assert batch.cells(2, 300) == 2 * batch.cells(1, 257) > batch.cells(2, 256)


@pytest.mark.parametrize(
    "call",
    [
        lambda model, history: model.read(history, [101]),
        lambda model, history: model.read(history, [5, -1]),
        lambda model, history: model.read(history, []),
        lambda model, history: model.read(history, [5], each=2),
        lambda model, history: model.step([history], [101]),
    ],
)
def test_a_wrong_call_reads_nothing(call: Any, tmp_path: Path) -> None:
    model = PackedModel.load(llama_folder(tmp_path))
    history = model.history()
    with pytest.raises(UsageError):
        call(model, history)
    assert history.length == 0
    assert model.read(history, [5], each=0).shape == (0, 101)


def test_floats_and_sub_norms_run_without_rounding(tmp_path: Path) -> None:
    """The compiled decoder rounds activations, so numpy runs these; with rounding the logits are near, not the same."""
    rounded = PackedModel.load(llama_folder(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] |= {"activations": None, "head_activations": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    exact = PackedModel.load(tmp_path)
    assert "does not round" in str(exact.why_plain)
    one, other = (model.read(model.history(), IDS) for model in (rounded, exact))
    assert 0 < np.abs(one - other).max() < 0.2 * np.abs(one).max()


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    file = llama_folder(tmp_path) / "model.safetensors"
    sound = file.read_bytes()
    flipped = bytearray(sound)
    flipped[-1000] ^= 1
    for bad in (bytes(flipped), sound[:-10], sound[:100], b"", sound + b"x"):
        file.write_bytes(bad)
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            PackedModel.load(tmp_path)
    file.unlink()
    with pytest.raises(CheckpointError, match="missing"):
        PackedModel.load(tmp_path)


CHANGES: dict[str, Any] = {
    "more layers": {"num_hidden_layers": 3},
    "other heads": {"num_attention_heads": 6},
    "wider heads": {"head_dim": 16},
    "no heads": {"num_attention_heads": 0},
    "a width of another kind": {"hidden_size": "48"},
    "a negative group": {"num_key_value_heads": -2},
    "angles without their settings": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_config_that_does_not_fit_the_weights_is_refused(change: Any, tmp_path: Path) -> None:
    llama_folder(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(CheckpointError):
        PackedModel.load(tmp_path)


def test_a_matrix_that_is_described_wrongly_is_refused(tmp_path: Path) -> None:
    llama_folder(tmp_path)
    sound = json.loads((tmp_path / "config.json").read_text())
    name = "model.layers.0.self_attn.q_proj"
    entry = sound["quantization_config"]["matrices"][name]
    for change in ({"rows": 64}, {"columns": 40}, {"kind": "int8"}, {"group": 8}, {"scales": "float16"}, {"rows": -1}):
        config = json.loads(json.dumps(sound))
        config["quantization_config"]["matrices"][name] = entry | change
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(CheckpointError, match="does not fit"):
            PackedModel.load(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"quantization_config": {"quant_method": "gptq"}}'])
def test_a_folder_of_another_kind_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match="not a packed model"):
        PackedModel.load(tmp_path)
    with pytest.raises(CheckpointError, match="not a packed model"):
        PackedModel.load(tmp_path / "nowhere")


def test_a_newer_format_and_another_architecture_say_what_to_do(tmp_path: Path) -> None:
    llama_folder(tmp_path, model_type="gpt2")
    with pytest.raises(UsageError, match=r"gpt2.*\[forge\]"):
        PackedModel.load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["format"] = 99
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="Update agent-forge"):
        PackedModel.load(tmp_path)


def test_the_size_is_counted(tmp_path: Path) -> None:
    model = PackedModel.load(llama_folder(tmp_path))
    per_layer = 48 * 48 * 2 + 24 * 48 * 2 + 3 * 48 * 72 + 2 * 48
    assert model.parameters == 101 * 48 + 2 * per_layer + 48
    assert 0 < model.bytes < model.parameters * 4


@needs_compiler
def test_every_variant_of_a_wheel_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder as a wheel brings it, without a compiler, for each kind of processor that this one is."""
    folder = llama_folder(tmp_path / "model")
    here = PackedModel.load(folder)
    expected = here.read(here.history(), IDS, each=len(IDS))
    package = tmp_path / "package"
    shutil.copytree(kernels.DECODER.parent, package, ignore=shutil.ignore_patterns("*.py", "__pycache__", "*.so"))
    runnable = [variant for variant in native.variants() if variant[2] <= native.instructions()]
    monkeypatch.setattr(native, "variants", lambda: runnable)
    native.ship(package / kernels.DECODER.name, to=package)
    monkeypatch.setattr(kernels, "DECODER", package / kernels.DECODER.name)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    for _, _, needed in runnable:
        monkeypatch.setattr(native, "instructions", lambda needed=needed: needed)
        native._shipped.cache_clear()
        model = PackedModel.load(folder)
        assert model.why_plain is None
        agree(model.read(model.history(), IDS, each=len(IDS)), expected)
    native._shipped.cache_clear()


def test_threads_may_share_a_model(tmp_path: Path) -> None:
    model = PackedModel.load(llama_folder(tmp_path))
    texts = [IDS[start : start + 20] for start in range(16)]
    expected = [model.read(model.history(), text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            found = list(pool.map(lambda text: model.read(model.history(), text), texts))
            assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
