"""`agent-forge forge export`: folders that load, GGUF files, and a card with results and controls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests_packed_tiny import cognate, llama, ternarised
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_forge.cli import run as cli
from agent_forge.errors import UsageError
from agent_forge.files import file_digest
from agent_forge.forge.checkpoint import Card, Checkpoint, Metric, finish, load, staging
from agent_forge.forge.compression import folder as folder_of
from agent_forge.forge.compression.codecs import encode
from agent_forge.forge.compression.container import pack
from agent_forge.forge.exporting import export_checkpoint, export_to_gguf
from agent_forge.forge.registry import Registry
from agent_forge.forge.training import train_tokenizer
from agent_forge.inference.packed import save_packed

IDS = torch.tensor([[3, 4, 5]])


def registered(home: Path, model: Any, phase: str, packed: bool = False, **card: Any) -> Checkpoint:
    registry = Registry(home)
    with staging(registry.models) as folder:
        save_packed(model, folder, ternary=ternarised(model)) if packed else model.save_pretrained(folder)
        checkpoint = finish(folder, Card(phase=phase, config={}, **card), registry.models)
    registry.add(checkpoint)
    return checkpoint


def test_a_packed_checkpoint_as_it_is_and_dense(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    before = registered(home, llama(), "base", metrics={"bits per byte": Metric(1.25, 0.01, 40, "held-out text")})
    after = registered(
        home,
        llama(),
        "bitnet",
        packed=True,
        inputs=(before.digest,),
        notes="Ternary.",
        metrics={"bits per byte": Metric(1.3, 0.01, 40, "held-out text"), "tokens/s": Metric(900.0)},
    )
    out = tmp_path / "as-it-is"
    assert cli(["forge", "export", after.digest, str(out), "--home", str(home), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"path": str(out), "format": "hf", "bytes": sum(f.stat().st_size for f in out.iterdir())}
    readme = (out / "README.md").read_text()
    assert f"| how | {before.name} |" in readme
    assert "| bits per byte | 1.3 | 0.01 | 40 | held-out text | 1.25 ± 0.01 |" in readme
    assert "| tokens/s | 900 |  |  |  | not measured |" in readme
    assert f"{sum(weight.numel() for weight in llama().parameters()):,} parameters" in readme
    assert "import agent_forge.forge" in readme
    assert "--dense" in readme
    packed = AutoModelForCausalLM.from_pretrained(out)
    dense = tmp_path / "dense"
    assert cli(["forge", "export", str(after.path), str(dense), "--dense", "--home", str(home)]) == 0
    plain = AutoModelForCausalLM.from_pretrained(dense)
    assert "vllm serve" in (dense / "README.md").read_text()
    assert plain.dtype == torch.float16
    assert "quantization_config" not in json.loads((dense / "config.json").read_text())
    up = "model.layers.0.mlp.up_proj"
    assert torch.equal(plain.get_submodule(up).weight, packed.get_submodule(up).weight.half())


def test_a_compressed_checkpoint_is_made_dense_with_its_tokenizer(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["the cat sat on the mat"] * 9, 300)
    plain = tmp_path / "plain"
    model = llama(vocab_size=len(tokenizer))
    model.save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    registry = Registry(tmp_path / "home")
    with staging(registry.models) as folder:
        weights = load_file(plain / "model.safetensors")
        folder_of.write_weights(folder, {name: pack(encode("raw", weight)) for name, weight in weights.items()}, {})
        folder_of.write_config(plain, folder)
        folder_of.write_tokenizer(plain, folder, ["the cat"])
        checkpoint = finish(folder, Card("compressed", {}), registry.models)
    registry.add(checkpoint)
    assert (checkpoint.path / "tokenizer.xz").is_file()
    out = tmp_path / "dense"
    export_checkpoint(checkpoint, out, dense=True)
    again = load(out)  # with a card that holds for these files
    assert again.card.tokenizer == file_digest(out / "tokenizer.json")
    assert not (out / "tokenizer.xz").exists()
    read = AutoTokenizer.from_pretrained(out)
    assert read("the cat<|end|>")["input_ids"] == tokenizer("the cat<|end|>")["input_ids"]
    dense = AutoModelForCausalLM.from_pretrained(out)
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    for name, weight in AutoModelForCausalLM.from_pretrained(checkpoint.path).state_dict().items():
        assert torch.equal(dense.state_dict()[name], weight.half())


def test_a_file_for_llama_cpp(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    home = tmp_path / "home"
    checkpoint = registered(home, llama(hidden_size=256, intermediate_size=256), "bitnet", packed=True)
    out = tmp_path / "out"
    options = ["--format", "gguf", "--ternary", "TQ1_0", "--home", str(home)]
    command = ["forge", "export", checkpoint.digest, str(out), *options]
    assert cli(command) == 0
    (file,) = out.glob("*.gguf")
    kinds = {tensor.tensor_type.name for tensor in gguf.GGUFReader(file).tensors}
    assert kinds == {"TQ1_0", "F16", "F32"}
    assert f"llama-cli -m {file.name}" in (out / "README.md").read_text()
    assert (out / "card.json").read_bytes() == (checkpoint.path / "card.json").read_bytes()


def test_our_own_architecture_says_who_loads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    checkpoint = registered(home, cognate(), "cognate", inputs=("ab" * 32,))
    assert cli(["forge", "export", checkpoint.digest, str(tmp_path / "out"), "--home", str(home)]) == 0
    assert "no figures to compare with" in capsys.readouterr().err
    assert "vLLM and llama.cpp do not know it" in (tmp_path / "out" / "README.md").read_text()
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out")(input_ids=IDS).logits.shape == (1, 3, 64)
    command = ["forge", "export", checkpoint.digest, str(tmp_path / "g"), "--format", "gguf", "--home", str(home)]
    assert cli(command) == 2
    assert "no architecture for a cognate model" in capsys.readouterr().err
    assert not (tmp_path / "g").exists()
    with pytest.raises(UsageError, match="exists already"):
        export_to_gguf(checkpoint, tmp_path / "out")
    with pytest.raises(UsageError, match="exists already"):
        export_checkpoint(checkpoint, tmp_path / "out", dense=True)
