"""A checkpoint is what its digest says, and a folder that is not a sound model is refused with little memory."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from agent_forge.errors import CheckpointError, UsageError
from agent_forge.forge import checkpoint as ck
from agent_forge.forge.checkpoint import Card, Metric, finish, load, staging
from agent_forge.forge.exporting import export_checkpoint, model_card


def fill(folder: Path, value: float = 1.0) -> Path:
    save_file({"w": np.full((2, 3), value, dtype=np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architectures": ["Toy"]}))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def make(models: Path, value: float = 1.0, **card: object) -> ck.Checkpoint:
    with staging(models) as folder:
        return finish(fill(folder, value), Card("toy", {}, **card), models)


def test_the_digest_is_that_of_sha256sum(tmp_path: Path) -> None:
    """`sha256sum` of the sorted files, and SHA-256 of that listing."""
    checkpoint = make(tmp_path)
    names = sorted(file.name for file in checkpoint.path.iterdir() if file.name != "card.json")
    listing = "".join(
        f"{hashlib.sha256((checkpoint.path / name).read_bytes()).hexdigest()}  {name}\n" for name in names
    )
    assert checkpoint.digest == hashlib.sha256(listing.encode()).hexdigest()
    assert checkpoint.path.name == checkpoint.name == f"toy-{checkpoint.digest[:12]}"
    tokenizer = hashlib.sha256(b"{}").hexdigest()
    assert (checkpoint.card.architecture, checkpoint.card.parameters) == ("Toy", 6)
    assert checkpoint.card.tokenizer == tokenizer
    assert load(checkpoint.path, checkpoint.digest) == checkpoint


def test_every_change_is_found(tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "models")
    changes = {
        "a flipped bit": lambda p: (p / "tokenizer.json").write_bytes(b"{|"),
        "an extra file": lambda p: (p / "more.txt").write_text(""),
        "an extra file in a folder": lambda p: ((p / "sub").mkdir(), (p / "sub" / "x").write_text("")),
        "a renamed file": lambda p: (p / "tokenizer.json").rename(p / "tokenizer.jsom"),
        "a missing file": lambda p: (p / "tokenizer.json").unlink(),
    }
    for number, (what, change) in enumerate(changes.items()):
        copy = shutil.copytree(checkpoint.path, tmp_path / str(number))
        change(copy)
        with pytest.raises(CheckpointError, match="do not match the digest"):
            load(copy, checkpoint.digest)
        assert what
    copy = shutil.copytree(checkpoint.path, tmp_path / "link")
    (copy / "link").symlink_to(checkpoint.path / "config.json")
    with pytest.raises(CheckpointError, match=r"this is a link.*cp -rL"):
        load(copy)
    copy = shutil.copytree(checkpoint.path, tmp_path / "pipe")
    os.mkfifo(copy / "pipe")  # reading it would wait for somebody who writes
    with pytest.raises(CheckpointError, match="plain files only"):
        load(copy)


@pytest.mark.parametrize(
    ("card", "message"),
    [
        ("[]", "cannot be read"),
        ('{"phase": "toy"}', "cannot be read"),
        ("\x00", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ({"parameters": 7}, "the card says parameters 7, and the files 6"),
        ({"architecture": "Other"}, "the card says architecture"),
        ({"format": 99}, "reads formats up to 1"),
        ({"metrics": {"loss": {"value": float("nan")}}}, "NaN is not a measured figure"),
        ({"nonsense": 1}, "cannot be read"),
    ],
)
def test_a_card_that_lies_or_is_damaged_is_refused(card: object, message: str, tmp_path: Path) -> None:
    checkpoint = make(tmp_path)
    file = checkpoint.path / "card.json"
    file.write_text(card if isinstance(card, str) else json.dumps({**json.loads(file.read_text()), **card}))
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint.path)
    assert message in str(caught.value)


def test_what_was_not_measured_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be written"):
        make(tmp_path, metrics={"loss": Metric(float("nan"))})
    assert list(tmp_path.iterdir()) == [], "nothing half-made is left"


@pytest.mark.parametrize("phase", ["../up", "a/b", "", ".hidden", "x" * 65])
def test_a_phase_name_cannot_leave_the_folder(phase: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be part"), staging(tmp_path / "models") as folder:
        finish(fill(folder), Card(phase, {}), tmp_path / "models")


def test_finishing_twice_is_one_checkpoint_and_a_damaged_one_is_replaced(tmp_path: Path) -> None:
    first = make(tmp_path, notes="first")
    again = make(tmp_path, notes="again")
    assert (again.digest, again.path) == (first.digest, first.path)
    assert load(first.path).card.notes == "again"
    (first.path / "model.safetensors").write_bytes(b"damaged")
    third = make(tmp_path)
    assert load(third.path, first.digest).path == first.path
    (first.path / "link").symlink_to("config.json")
    assert load(make(tmp_path).path, first.digest).path == first.path
    assert [path.name for path in tmp_path.iterdir()] == [first.path.name]


def test_several_threads_finish_the_same_model_at_once(tmp_path: Path) -> None:
    digests: list[str] = []
    threads = [threading.Thread(target=lambda: digests.append(make(tmp_path).digest)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(digests) == 8
    assert len(set(digests)) == 1
    assert load(next(tmp_path.iterdir()), digests[0])


def header(tensors: object, data: int = 0) -> bytes:
    text = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data)


def tensor(start: int, stop: int, shape: list[object], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


BROKEN = {
    "empty": b"",
    "cut in the length": b"\x01\x00",
    "a header longer than the file": struct.pack("<Q", 1 << 40) + b"{}",
    "the largest length": b"\xff" * 8 + b"{}",
    "not JSON": header(b"{nonsense"),
    "not UTF-8": header(b"\xff\xfe"),
    "a list": header([1]),
    "deeply nested": header(b"[" * 50_000),
    "a name twice": header(b'{"a": {}, "a": {}}'),
    "overlap": header({"a": tensor(0, 8, [2]), "b": tensor(4, 12, [2])}, 12),
    "a gap": header({"a": tensor(0, 8, [2]), "b": tensor(12, 20, [2])}, 20),
    "cut short": header({"a": tensor(0, 8, [2])}, 7),
    "more than the header says": header({"a": tensor(0, 8, [2])}, 9),
    "backwards": header({"a": tensor(0, -8, [2])}, 0),
    "the wrong size for its type": header({"a": tensor(0, 8, [2], "F16")}, 8),
    "a negative shape": header({"a": tensor(0, 8, [-1, -2])}, 8),
    "a shape of text": header({"a": tensor(0, 8, ["2"])}, 8),
    "an immense shape": header({"a": tensor(0, 8, [1 << 62] * 64)}, 8),
    "no offsets": header({"a": {"dtype": "F32", "shape": [2]}}, 8),
    "offsets of three": header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4, 8]}}, 8),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_safetensors_header_is_an_error_and_takes_little_memory(what: str, tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(BROKEN[what])
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="not a sound safetensors file"):
        load(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def test_the_header_reader_agrees_with_the_safetensors_library(tmp_path: Path) -> None:
    arrays = {"a": np.zeros((3, 0), np.float32), "b": np.ones((2, 5), np.int64), "c": np.array(1.0, np.float16)}
    save_file(arrays, tmp_path / "x.safetensors", metadata={"format": "np"})
    header = ck.read_header(tmp_path / "x.safetensors")
    assert {name: tuple(row["shape"]) for name, row in header.items()} == {n: a.shape for n, a in arrays.items()}


@pytest.mark.parametrize("tied", [True, False])
def test_the_parameter_count_is_that_of_transformers(tied: bool, tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=tied,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path, max_shard_size="10KB")  # in several files
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    checkpoint = load(tmp_path)
    assert checkpoint.card.parameters == model.num_parameters()
    assert (checkpoint.card.phase, checkpoint.card.architecture, checkpoint.card.tokenizer) == (
        "imported",
        "LlamaForCausalLM",
        None,
    )


def test_pickled_weights_and_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"it has no config\.json"):
        load(tmp_path)
    fill(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="pickled weights are never read"):
        load(tmp_path)
    fill(tmp_path)
    for broken in ("{", "[]", "{}", '{"architectures": [7]}'):
        (tmp_path / "config.json").write_text(broken)
        with pytest.raises(CheckpointError, match=r"config\.json"):
            load(tmp_path)


def test_an_export_is_whole_and_has_a_readme(tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "models", inputs=("ab" * 32,), data={"text": "cd" * 32}, metrics={"x": Metric(1.5)})
    out = export_checkpoint(checkpoint, tmp_path / "deep" / "out")
    readme = (out / "README.md").read_text()
    assert readme == model_card(checkpoint)
    assert all(word in readme for word in ("6 parameters", "ab" * 32, "cd" * 32, "| x | 1.5 |"))
    for file in checkpoint.path.iterdir():
        assert (out / file.name).read_bytes() == file.read_bytes()
    with pytest.raises(UsageError, match="the folder exists already"):
        export_checkpoint(checkpoint, out)
