"""LoRA adapters: a closed form, the peer that invented the files, and training that leaves the base alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from agent_forge.errors import CheckpointError, UsageError  # noqa: E402
from agent_forge.forge.adapters import (  # noqa: E402
    LoraSettings,
    adapted_layers,
    add_adapter,
    load_adapter,
    merge_adapter,
    save_adapter,
)
from agent_forge.forge.merging.vectors import apply_lora  # noqa: E402

INPUTS = torch.tensor([[1, 5, 3, 2, 7, 9]])


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, num_attention_heads=2, num_key_value_heads=1, **sizes)).eval()


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=16)).eval()


def cognate() -> Any:
    from agent_forge.forge.models import CognateConfig, CognateForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return CognateForCausalLM(CognateConfig(vocab_size=32, embedding_rank=8, **sizes)).eval()


def stirred(model: Any) -> None:
    """B is zero at first: random numbers make the adapter visible."""
    torch.manual_seed(1)
    for _, layer in adapted_layers(model):
        torch.nn.init.normal_(layer.lora_B, std=0.3)


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model(input_ids=INPUTS, use_cache=False).logits


@pytest.mark.parametrize("make", [llama, gpt2, cognate])
def test_an_adapter_begins_as_nothing_and_merges_into_what_it_was(make: Any, tmp_path: Path) -> None:
    model = make()
    plain, weights = logits(model), {name: each.clone() for name, each in model.state_dict().items()}
    names = add_adapter(model, LoraSettings(rank=3, alpha=6))
    assert torch.equal(logits(model), plain)
    learning = {name for name, each in model.named_parameters() if each.requires_grad}
    assert learning == {f"{name}.lora_{end}" for name in names for end in "AB"}
    stirred(model)
    layers = {name: (each.lora_A.detach(), each.lora_B.detach()) for name, each in adapted_layers(model)}
    adapted = logits(model)
    assert not torch.allclose(adapted, plain, atol=1e-3)
    save_adapter(model, tmp_path / "adapter")
    merge_adapter(model)
    assert torch.allclose(logits(model), adapted, atol=1e-5)
    for name, before in weights.items():  # the closed form, W + B A alpha / r
        down_up = layers.get(name.removesuffix(".weight"))
        product = 0 if down_up is None else 2.0 * down_up[1] @ down_up[0]
        product = product.T if down_up is not None and make is gpt2 else product
        assert torch.allclose(model.state_dict()[name], before + product, atol=1e-6), name
    again = make()
    assert set(load_adapter(again, tmp_path / "adapter")) == set(names)
    assert torch.allclose(logits(again), adapted, atol=1e-6)


@pytest.mark.parametrize("make", [llama, gpt2])
def test_peft_reads_our_files_and_we_read_those_of_peft(make: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = make()
    model.save_pretrained(tmp_path / "base")
    settings = LoraSettings(rank=2, alpha=5, targets=("q_proj", "down_proj"), last=1)
    names = add_adapter(model, settings if make is llama else LoraSettings(rank=2, targets=("c_attn",)))
    assert names == (["model.layers.1.self_attn.q_proj", "model.layers.1.mlp.down_proj"] if make is llama else names)
    stirred(model)
    save_adapter(model, tmp_path / "ours", base=tmp_path / "base")
    theirs = peft.PeftModel.from_pretrained(make(), tmp_path / "ours")
    assert torch.allclose(logits(theirs), logits(model), atol=1e-6)
    # and the other way round: as PEFT writes it, into a model in memory and into a folder
    theirs.save_pretrained(tmp_path / "theirs")
    back = make()
    load_adapter(back, tmp_path / "theirs")
    assert torch.allclose(logits(back), logits(model), atol=1e-6)
    apply_lora(str(tmp_path / "base"), tmp_path / "theirs", tmp_path / "merged")
    merged = type(model).from_pretrained(tmp_path / "merged")
    assert torch.allclose(logits(merged.eval()), logits(model), atol=1e-5)


def test_an_adapter_learns_while_its_base_stays(tmp_path: Path) -> None:
    model = llama()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    add_adapter(model, LoraSettings(rank=4))
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=0.1)
    losses = []
    for _ in range(20):
        loss = model(input_ids=INPUTS, labels=INPUTS).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1  # the fixed head of a random model leaves little room
    after = model.state_dict()
    for name, each in before.items():
        kept = name if name in after else name.replace(".weight", ".base.weight")
        assert torch.equal(after[kept], each), name


def test_what_an_adapter_refuses(tmp_path: Path) -> None:
    model = llama()
    with pytest.raises(UsageError, match="no layer is named nothing"):
        add_adapter(model, LoraSettings(targets=("nothing",)))
    with pytest.raises(UsageError, match="no adapter to save"):
        save_adapter(model, tmp_path)
    add_adapter(model)
    with pytest.raises(UsageError, match="has an adapter already"):
        add_adapter(model)
    save_adapter(model, tmp_path / "one")
    with pytest.raises(CheckpointError, match="do not fit"):
        load_adapter(gpt2(), tmp_path / "one")
    config = json.loads((tmp_path / "one" / "adapter_config.json").read_text())
    (tmp_path / "one" / "adapter_config.json").write_text(json.dumps({**config, "peft_type": "IA3"}))
    with pytest.raises(CheckpointError, match="IA3"):
        load_adapter(llama(), tmp_path / "one")
