"""Layers that move: frankenmerges and data-flow paths, on Llama and on Cognate, as the models compute them."""

from __future__ import annotations

import json

import pytest
import torch
from tests_merge_models import family, llama_tensors, read_model, write_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from agent_forge.errors import CheckpointError, ConfigError
from agent_forge.forge.merging import merge, merge_tensors, parse_recipe


@pytest.fixture(scope="module")
def llamas(tmp_path_factory):
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=False, rms_norm_eps=1e-12,
    )  # fmt: skip
    models = {}
    for seed, name in enumerate("ab"):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.3)
        folder = tmp_path_factory.mktemp("llamas") / name
        model.save_pretrained(folder)
        models[name] = (str(folder), model)
    return models


def by_hand(llamas, path, tokens):
    """The path as the paper says it: the state, scaled, goes through layer after layer of either model."""
    donor = llamas["a"][1].model
    states = donor.embed_tokens(tokens)
    positions = torch.arange(tokens.shape[1])[None]
    rotary = donor.rotary_emb(states, positions)
    causal = torch.full((tokens.shape[1],) * 2, float("-inf")).triu(1)[None, None]
    for name, layer, scale in path:
        block = llamas[name][1].model.layers[layer]
        states = block(states * scale, attention_mask=causal, position_embeddings=rotary)
        states = states[0] if isinstance(states, tuple) else states
    return llamas["a"][1].lm_head(donor.norm(states))


def test_a_data_flow_path_computes_what_the_paper_says(llamas, tmp_path):
    path = [("a", 0, 1.0), ("b", 1, 0.6), ("a", 1, 1.5), ("a", 1, 0.8), ("b", 2, 2.0)]
    steps = [{"model": llamas[name][0], "layer": layer, "scale": scale} for name, layer, scale in path]
    merge(parse_recipe({"merge_method": "dfs", "base_model": llamas["a"][0], "path": steps}), tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, by_hand(llamas, path, tokens), rtol=1e-4, atol=1e-4)
    assert model.config.num_hidden_layers == 5


def test_a_frankenmerge_runs_the_layers_that_it_names(llamas, tmp_path):
    slices = [
        {"sources": [{"model": llamas["a"][0], "layer_range": [0, 2]}]},
        {"sources": [{"model": llamas["b"][0], "layer_range": [1, 3]}]},
    ]
    merge(parse_recipe({"merge_method": "passthrough", "slices": slices}), tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    weights = [layer.mlp.up_proj.weight for layer in model.model.layers]
    donors = [("a", 0), ("a", 1), ("b", 1), ("b", 2)]
    for weight, (name, layer) in zip(weights, donors, strict=True):
        assert torch.equal(weight, llamas[name][1].model.layers[layer].mlp.up_proj.weight)
    assert torch.equal(model.lm_head.weight, llamas["b"][1].lm_head.weight)
    assert torch.equal(model.model.embed_tokens.weight, llamas["a"][1].model.embed_tokens.weight)


def test_cognates_memory_moves_with_its_layer(tiny, tmp_path):
    names = {}
    for seed, name in enumerate("ab"):
        torch.manual_seed(seed)
        tiny(memory_layers=[1], num_hidden_layers=2).save_pretrained(tmp_path / name)
        names[name] = str(tmp_path / name)
    order = [("a", 1, 1.0), ("b", 0, 0.9), ("b", 1, 1.1), ("a", 0, 1.0)]
    path = [{"model": names[name], "layer": layer, "scale": scale} for name, layer, scale in order]
    merge(parse_recipe({"merge_method": "dfs", "base_model": names["a"], "path": path}), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["memory_layers"] == [0, 2]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    parent = AutoModelForCausalLM.from_pretrained(names["b"])
    assert torch.equal(model.model.layers[2].up_proj.weight, parent.model.layers[1].up_proj.weight)
    torch.testing.assert_close(model.model.layers[2].o_proj.weight, parent.model.layers[1].o_proj.weight / (0.9 * 1.1))
    with torch.no_grad():
        assert torch.isfinite(model(torch.tensor([[1, 2, 3]])).logits).all()


def test_lists_by_layer_follow_their_layers(tmp_path):
    kinds = {"a": ["full", "sliding"], "b": ["sliding", "full"]}
    names = {name: str(write_model(tmp_path / name, llama_tensors(), layer_types=kinds[name])) for name in "ab"}
    path = [{"model": names[name], "layer": layer} for name, layer in (("a", 1), ("b", 1), ("a", 0))]
    merged = merge_tensors(parse_recipe({"merge_method": "dfs", "path": path}))
    assert merged.config["layer_types"] == ["sliding", "full", "full"]
    assert merged.config["num_hidden_layers"] == 3


def test_a_layer_that_is_not_there_and_one_that_cannot_be_scaled(tmp_path):
    folders = family(tmp_path)
    with pytest.raises(CheckpointError, match="there is no layer 5"):
        merge_tensors(parse_recipe({"merge_method": "dfs", "path": [{"model": folders["a"], "layer": 5}]}))
    tensors = llama_tensors()
    tensors["model.layers.0.post_feedforward_layernorm.weight"] = torch.ones(16)
    odd = str(write_model(tmp_path / "odd", tensors))
    with pytest.raises(CheckpointError, match="post_feedforward_layernorm"):
        merge_tensors(parse_recipe({"merge_method": "dfs", "path": [{"model": odd, "layer": 0, "scale": 0.5}]}))
    del tensors["model.layers.0.mlp.up_proj.weight"]
    holes = {name: x for name, x in tensors.items() if not name.startswith("model.layers.0.")}
    gap = str(write_model(tmp_path / "gap", holes))
    with pytest.raises(CheckpointError, match="layer 0 are missing"):
        merge_tensors(parse_recipe({"merge_method": "passthrough", "models": [{"model": gap}]}))


def test_a_list_by_layer_that_a_parent_lacks(tmp_path):
    one = str(write_model(tmp_path / "one", llama_tensors(), layer_types=["full", "full"]))
    two = str(write_model(tmp_path / "two", llama_tensors()))
    path = [{"model": one, "layer": 0}, {"model": two, "layer": 0}]
    with pytest.raises(ConfigError, match="layer_types"):
        merge_tensors(parse_recipe({"merge_method": "dfs", "path": path}))


def test_held_tensors_and_folders_give_the_same(tmp_path):
    """What the evolution does: parents opened once, merged in memory, a merge handed on as a parent."""
    folders = family(tmp_path)
    recipe = parse_recipe({"merge_method": "linear", "models": [{"model": folders[n], "parameters": {"weight": 1}} for n in "ab"]})  # fmt: skip  # noqa: E501
    held = {folders[name]: read_model(tmp_path / name) for name in "ab"}
    first, second = merge_tensors(recipe), merge_tensors(recipe, sources=held, device="cpu")
    assert all(torch.equal(first[name], second[name]) for name in first)
    onward = parse_recipe({"merge_method": "passthrough", "models": [{"model": "merged"}]})
    again = merge_tensors(onward, sources={"merged": first})
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert again.config["num_hidden_layers"] == 2


def test_two_stacks_of_layers_keep_all_their_tensors(tmp_path):
    """An encoder and a decoder whose layers have tensors of the same name; and a buffer that only one model stores."""
    tensors = llama_tensors()
    stacks = {name: x for name, x in tensors.items() if ".layers." not in name}
    for name, x in tensors.items():
        if ".layers." in name:
            stacks[name.replace("model.layers", "model.encoder.layers")] = x
            stacks[name.replace("model.layers", "model.decoder.layers")] = x + 1
    one = str(write_model(tmp_path / "one", {**stacks, "model.decoder.layers.0.rotary_emb.inv_freq": torch.ones(3)}))
    two = str(write_model(tmp_path / "two", stacks))
    models = [{"model": name, "parameters": {"weight": 1}} for name in (one, two)]
    merged = merge_tensors(parse_recipe({"merge_method": "linear", "models": models}))
    assert merged.keys() == stacks.keys()
    assert all(torch.equal(merged[name], stacks[name]) for name in stacks)
    with pytest.raises(CheckpointError, match="several stacks"):
        merge_tensors(parse_recipe({"merge_method": "dfs", "path": [{"model": two, "layer": 0}]}))
