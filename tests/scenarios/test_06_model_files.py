"""Scenario 6: model files of every format, made by someone who means harm. Each is refused with a typed error, within
the memory of a small process, and nothing in it ever runs."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from commands import agent_forge
from scenario import report, times

from agent_forge.errors import AgentForgeError, CheckpointError, ModelError
from agent_forge.inference.gguf_file import GgufFile
from agent_forge.inference.loading import check_folder, load_model, load_tokenizer
from agent_forge.inference.safetensors_file import read_header

PLANTED = "import pathlib\npathlib.Path({mark!r}).write_text('ran')\n"


def safetensors(tensors: dict[str, Any], data: bytes, length: int | None = None) -> bytes:
    header = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(shape: list[Any], start: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 8,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound folder as far as `check_folder` is concerned."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(safetensors({"a": entry([64], 0, 256)}, bytes(256)))
    check_folder(tmp_path)  # the control: what is refused below differs from this in one thing
    return tmp_path


HEADERS: dict[str, bytes] = {
    "empty": b"",
    "no header": struct.pack("<Q", 0),
    "header longer than the file": safetensors({}, b"", 1 << 40),
    "header of 2^63": safetensors({}, b"", (1 << 64) - 1),
    "not JSON": safetensors(b"{" * 50, b""),
    "nested": safetensors(b"[" * 100_000, b""),
    "a list": safetensors(b"[]", b""),
    "one name twice": safetensors(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}', b""),
    "negative size": safetensors({"a": entry([-1], 0, 4)}, bytes(4)),
    "huge size": safetensors({"a": entry([1 << 62, 1 << 62], 0, 4)}, bytes(4)),
    "a size that is text": safetensors({"a": entry(["1"], 0, 4)}, bytes(4)),
    "a thousand dimensions": safetensors({"a": entry([1] * 1000, 0, 4)}, bytes(4)),
    "offsets beyond the file": safetensors({"a": entry([1], 0, 4)}, b""),
    "offsets backwards": safetensors({"a": entry([1], 4, 0)}, bytes(4)),
    "overlap": safetensors({"a": entry([1], 0, 4), "b": entry([1], 2, 6)}, bytes(6)),
    "a gap": safetensors({"a": entry([1], 4, 8)}, bytes(8)),
    "no type": safetensors({"a": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "a pickle": b"\x80\x04cposix\nsystem\n(S'touch /tmp/never'\ntR.",
}  # fmt: skip


@pytest.mark.parametrize("case", HEADERS)
def test_a_hostile_safetensors_file_is_refused(tmp_path: Path, case: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(HEADERS[case])
    with pytest.raises(CheckpointError):
        read_header(tmp_path / "model.safetensors")


CONFIGS: dict[str, Any] = {
    "auto_map": {"auto_map": {"AutoConfig": "planted.Config", "AutoModelForCausalLM": "planted.Model"}},
    "nested auto_map": {"text_config": {"auto_map": {"AutoConfig": "planted.Config"}}},
    "kernels": {"_attn_implementation": "someone/kernels"},
    "hidden_size": {"hidden_size": 10**9},
    "vocab_size": {"vocab_size": 10**10},
    "layers": {"num_hidden_layers": 10**6},
    "text layers": {"text_config": {"num_hidden_layers": 10**6}},
    "experts": {"num_experts": 10**6},
    "negative": {"hidden_size": -(10**12)},
    "two sizes": {"hidden_size": 20_000, "vocab_size": 20_000},
    "head_dim": {"head_dim": 10**9},
}
TEXTS = {
    "deep": b'{"a":' * 100_000,
    "deep but sound": b'{"a":' * 500 + b"1" + b"}" * 500,
    "a list": b"[]",
    "long number": b'{"hidden_size": ' + b"9" * 10_000 + b"}",
    "not UTF-8": b'{"a": "\xff"}',
    "empty": b"",
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config_that_brings_code_or_absurd_sizes_is_refused(folder: Path, case: str) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **CONFIGS[case]}))
    with pytest.raises(CheckpointError):
        load_model(folder)


@pytest.mark.parametrize("case", TEXTS)
def test_a_config_that_is_no_config_is_refused(folder: Path, case: str) -> None:
    (folder / "config.json").write_bytes(TEXTS[case])
    with pytest.raises(CheckpointError):
        load_model(folder)


@pytest.mark.parametrize("name", ["/etc/passwd", "../model.safetensors", "sub/x.safetensors", "..", "gone.safetensors"])
def test_an_index_may_name_files_of_its_own_folder_only(folder: Path, name: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match="which is not there"):
        check_folder(folder)


def test_a_tensor_in_two_files_is_refused(folder: Path) -> None:
    (folder / "b.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    index = {"weight_map": {"a": "model.safetensors", "b": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="same name"):
        check_folder(folder)


def test_a_tokenizer_brings_no_code_either(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["planted.T", null]}}')
    with pytest.raises(CheckpointError, match="never run"):
        load_tokenizer(folder)


def test_quantize_runs_nothing_of_a_folder_with_auto_map(folder: Path) -> None:
    """From outside, with a yes on standard input: transformers would ask there whether to run the code."""
    mark = folder / "mark"
    (folder / "planted.py").write_text(PLANTED.format(mark=str(mark)))
    document = {
        **CONFIG,
        "model_type": "planted",
        "auto_map": {"AutoConfig": "planted.C", "AutoModelForCausalLM": "planted.M"},
    }
    (folder / "config.json").write_text(json.dumps(document))
    command = ["quantize", str(folder), str(folder / "out"), "--levels", "ternary"]
    ran = agent_forge(folder, *command, stdin="y\n" * 10)
    assert ran.returncode == 1, ran.stderr
    assert "never run" in ran.stderr
    assert not mark.exists()
    exec(compile((folder / "planted.py").read_text(), "planted", "exec"))  # the control: it would have left its mark
    assert mark.exists()


def gguf(settings: bytes = b"", tensors: bytes = b"", counts: tuple[int, int] = (0, 0), version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, counts[1], counts[0]) + settings + tensors


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def tensor(name: bytes, shape: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


ALIGNMENT = text(b"general.alignment") + struct.pack("<II", 4, 0)
GGUFS: dict[str, bytes] = {
    "empty": b"",
    "only the magic": b"GGUF",
    "version 9": gguf(version=9),
    "2^60 settings": gguf(counts=(1 << 60, 0)),
    "2^60 tensors": gguf(counts=(0, 1 << 60)),
    "alignment 0": gguf(ALIGNMENT, counts=(1, 0)),
    "alignment that is text": gguf(text(b"general.alignment") + struct.pack("<I", 8) + text(b"x"), counts=(1, 0)),
    "nested arrays": gguf(text(b"a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000, counts=(1, 0)),
    "long string": gguf(struct.pack("<Q", 1 << 62), counts=(1, 0)),
    "long array": gguf(text(b"a") + struct.pack("<IIQ", 9, 0, 1 << 50), counts=(1, 0)),
    "unknown type": gguf(text(b"a") + struct.pack("<I", 77), counts=(1, 0)),
    "no dimensions": gguf(tensors=tensor(b"a", []), counts=(0, 1)),
    "a dimension of 0": gguf(tensors=tensor(b"a", [4, 0]), counts=(0, 1)),
    "a hundred dimensions": gguf(tensors=tensor(b"a", [1] * 100), counts=(0, 1)),
    "a name twice": gguf(tensors=tensor(b"a", [1]) * 2, counts=(0, 2)),
    "a setting twice": gguf((text(b"a") + struct.pack("<IB", 0, 1)) * 2, counts=(2, 0)),
    "a name that is not UTF-8": gguf(tensors=tensor(b"\xff", [1]), counts=(0, 1)),
}
READS: dict[str, bytes] = {
    "beyond the end": gguf(tensors=tensor(b"a", [1 << 40]), counts=(0, 1)),
    "more than memory": gguf(tensors=tensor(b"a", [1 << 62, 1 << 62]), counts=(0, 1)),
    "offset beyond the end": gguf(tensors=tensor(b"a", [1], offset=1 << 62), counts=(0, 1)),
    "unknown kind": gguf(tensors=tensor(b"a", [1], kind=999), counts=(0, 1)) + bytes(64),
    "half a block": gguf(tensors=tensor(b"a", [5], kind=2), counts=(0, 1)) + bytes(64),
}


@pytest.mark.parametrize("case", GGUFS)
def test_a_hostile_gguf_header_is_refused(tmp_path: Path, case: str) -> None:
    (tmp_path / "m.gguf").write_bytes(GGUFS[case])
    with pytest.raises(ModelError):
        GgufFile(tmp_path / "m.gguf")


@pytest.mark.parametrize("case", READS)
def test_a_hostile_gguf_tensor_is_refused(tmp_path: Path, case: str) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "m.gguf").write_bytes(READS[case])
    with pytest.raises(ModelError):
        GgufFile(tmp_path / "m.gguf").tensor("a")


def test_a_sound_gguf_file_is_read(tmp_path: Path) -> None:
    """The control for both."""
    pytest.importorskip("gguf")
    head = gguf(tensors=tensor(b"a", [2]), counts=(0, 1))
    (tmp_path / "m.gguf").write_bytes(head + bytes(-len(head) % 32) + struct.pack("<2f", 1, 2))
    assert GgufFile(tmp_path / "m.gguf").tensor("a").tolist() == [1, 2]


def mutations(sound: bytes, count: int) -> list[bytes]:
    import random

    draw = random.Random(6)
    made = []
    for _ in range(count):
        damaged = bytearray(sound)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        made.append(bytes(damaged[: draw.randint(1, len(damaged))] if draw.random() < 0.3 else damaged))
    return made


@pytest.mark.untraced
@pytest.mark.parametrize("read", [GgufFile, read_header], ids=["gguf", "safetensors"])
def test_damaged_files_are_read_or_refused(
    tmp_path: Path, read: Callable[[Path], Any], request: pytest.FixtureRequest
) -> None:
    keys = text(b"a") + struct.pack("<IIQ3I", 9, 4, 3, 1, 2, 3) + text(b"b") + struct.pack("<I", 8) + text(b"c")
    sound = {
        GgufFile: gguf(keys, tensor(b"t", [2, 3]) + tensor(b"u", [4]), counts=(2, 2)) + bytes(128),
        read_header: safetensors({"a": entry([2, 2], 0, 16), "b": entry([3], 16, 28)}, bytes(28)),
    }[read]
    file = tmp_path / "m"
    file.write_bytes(sound)
    read(file)
    held = 0
    for damaged in mutations(sound, times(500, 20_000)):
        file.write_bytes(damaged)
        with suppress(AgentForgeError):
            read(file)
        held += 1
    report(6, f"damaged headers: {request.node.callspec.id}", held, held, "read or refused with a typed error")
