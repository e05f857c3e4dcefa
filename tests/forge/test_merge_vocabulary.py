"""Models with different tokenizers: every token finds its row, whoever has it."""

from __future__ import annotations

import json

import pytest
import torch
from tests_merge_models import llama_tensors, read_model, write_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from agent_forge.errors import CheckpointError, ConfigError
from agent_forge.forge.merging import merge, merge_tensors, parse_recipe

WORDS = {"a": ["<unk>", "red", "green", "blue"], "b": ["<unk>", "blue", "red", "gold", "iron"]}


@pytest.fixture
def folders(tmp_path):
    paths = {}
    for seed, (name, words) in enumerate(WORDS.items()):
        tensors = llama_tensors(vocabulary=len(words), seed=seed)
        folder = write_model(tmp_path / name, tensors)
        tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
        tokenizer.pre_tokenizer = Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
        paths[name] = str(folder)
    return paths


def linear(folders, **more):
    models = [{"model": folder, "parameters": {"weight": 0.5}} for folder in folders.values()]
    return parse_recipe({"merge_method": "linear", "models": models, **more})


def rows(tmp_path, tensor="model.embed_tokens.weight"):
    return {
        name: {word: read_model(tmp_path / name)[tensor][i] for i, word in enumerate(words)}
        for name, words in WORDS.items()
    }


@pytest.mark.parametrize("kernel", ["1", "0"], ids=["C", "torch"])
def test_a_union_has_every_token_once(folders, tmp_path, kernel, monkeypatch):
    monkeypatch.setenv("AGENT_FORGE_NATIVE", kernel)
    merge(linear(folders, tokenizer_source="union"), tmp_path / "out")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "out")
    vocabulary = tokenizer.get_vocab()
    assert vocabulary == {"<unk>": 0, "red": 1, "green": 2, "blue": 3, "gold": 4, "iron": 5}
    merged, own = read_model(tmp_path / "out")["model.embed_tokens.weight"], rows(tmp_path)
    for word, number in vocabulary.items():
        donors = [own[name][word] for name in "ab" if word in own[name]]
        expected = sum(x.double() for x in donors) / len(donors)
        torch.testing.assert_close(merged[number], expected.float())
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] == 6
    assert tokenizer("gold red iron").input_ids == [4, 1, 5]


def test_the_base_keeps_its_tokens_and_fills_in_for_others(folders, tmp_path):
    models = [{"model": folders["b"], "parameters": {"weight": 1.0}}]
    recipe = {
        "merge_method": "task_arithmetic",
        "base_model": folders["a"],
        "models": models,
        "tokenizer_source": "base",
    }
    merged = merge_tensors(parse_recipe(recipe))["model.embed_tokens.weight"]
    own = rows(tmp_path)
    torch.testing.assert_close(merged[1], own["b"]["red"])  # base + (b - base), from b's own row
    assert torch.equal(merged[2], own["a"]["green"])  # b has no green: its task vector is zero there
    assert merged.shape[0] == 4


def test_without_a_base_all_models_that_have_a_token_fill_in(folders, tmp_path):
    """As in mergekit, where random recipes beside it showed that we once took the first model for the base here."""
    third = write_model(tmp_path / "c", llama_tensors(vocabulary=1, seed=9))
    tokenizer = Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(third)
    weights = {folders["a"]: 0.5, folders["b"]: 0.125, str(third): 0.375}
    models = [{"model": folder, "parameters": {"weight": weight}} for folder, weight in weights.items()]
    recipe = {"merge_method": "linear", "models": models, "tokenizer_source": folders["a"]}
    merged, own = merge_tensors(parse_recipe(recipe))["model.embed_tokens.weight"], rows(tmp_path)
    a, b = own["a"]["red"].double(), own["b"]["red"].double()
    torch.testing.assert_close(merged[1], (0.5 * a + 0.125 * b + 0.375 * (a + b) / 2).float())


def test_the_tokens_of_one_model_and_padding(folders, tmp_path):
    merged = merge_tensors(linear(folders, tokenizer={"source": folders["b"], "pad_to_multiple_of": 8}))
    table, own = merged["model.embed_tokens.weight"], rows(tmp_path)
    assert table.shape[0] == merged.config["vocab_size"] == 8
    torch.testing.assert_close(table[3], own["b"]["gold"])
    torch.testing.assert_close(table[5], table[:5].mean(0), rtol=1e-5, atol=1e-7)


def test_tokens_with_a_source_of_their_own(folders, tmp_path):
    tokens = {
        "red": {"source": folders["b"], "force": True},
        "<new>": {"source": {"kind": "model_token", "model": folders["a"], "token": "green"}},
        "<other>": {"source": {"kind": "model_token", "model": folders["a"], "token_id": 3}},
        "<zero>": {"source": {"kind": "zero"}},
    }
    recipe = linear(folders, tokenizer={"source": "union", "tokens": tokens})
    merge(recipe, tmp_path / "out")
    vocabulary = PreTrainedTokenizerFast.from_pretrained(tmp_path / "out").get_vocab()
    table, own = read_model(tmp_path / "out")["model.embed_tokens.weight"], rows(tmp_path)
    assert torch.equal(table[vocabulary["red"]], own["b"]["red"])
    assert torch.equal(table[vocabulary["<new>"]], own["a"]["green"])
    assert torch.equal(table[vocabulary["<other>"]], own["a"]["blue"])
    assert not table[vocabulary["<zero>"]].any()


def test_what_cannot_be_mapped_is_named(folders, tmp_path):
    tokens = {"x": {"source": {"kind": "model_token", "model": folders["a"], "token": "purple"}}}
    with pytest.raises(ConfigError, match="no token 'purple'"):
        merge_tensors(linear(folders, tokenizer={"tokens": tokens}))
    with pytest.raises(ConfigError, match="not one of the models"):
        merge_tensors(linear(folders, tokenizer={"tokens": {"x": {"source": "elsewhere"}}}))
    (tmp_path / "b" / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        merge_tensors(linear(folders, tokenizer_source="union"))


def test_the_chat_template_of_most(folders, tmp_path):
    (tmp_path / "b" / "chat_template.jinja").write_text("{{ messages }}\n")
    merge(linear(folders, tokenizer_source="base", chat_template="auto"), tmp_path / "auto")
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path / "auto").chat_template == "{{ messages }}"
    merge(
        linear(folders, tokenizer_source="base", chat_template="{% for m in messages %}{% endfor %}"), tmp_path / "own"
    )
    assert "for m in messages" in PreTrainedTokenizerFast.from_pretrained(tmp_path / "own").chat_template
    with pytest.raises(ConfigError, match="Jinja"):
        merge(linear(folders, tokenizer_source="base", chat_template="chatml"), tmp_path / "none")
