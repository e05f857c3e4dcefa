"""Smaller models: the cut tokenizer reads any text, and what is kept computes what it did before."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

from agent_forge.errors import UsageError  # noqa: E402
from agent_forge.forge.pruning import (  # noqa: E402
    cut_embeddings,
    cut_tokenizer,
    keep_layers,
    kept_words,
    layer_influence,
)

TALK = ["the weather in Oslo is mild and the weather in Rome is warm", "send the report to Bob, then book a table"] * 4


def byte_level(size: int = 360) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<end>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*TALK, "an unrelated sentence about geometry, algebra and topology"], trainer)
    return str(tokenizer.to_str())


WORDS = byte_level()
KEPT = kept_words(WORDS, TALK, 290)
CUT = Tokenizer.from_str(cut_tokenizer(WORDS, KEPT))
WHOLE = Tokenizer.from_str(WORDS)


def tiny_llama(vocabulary: int, layers: int = 4, tied: bool = True) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=tied, bos_token_id=0, eos_token_id=0,
        pad_token_id=1,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_the_cut_tokenizer_reads_and_writes_any_text(text: str) -> None:
    assert CUT.decode(CUT.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


@given(
    st.lists(st.sampled_from([*TALK[0].split(), *TALK[1].split(), "geometry", "algebra"]), max_size=12).map(" ".join)
)
def test_a_text_of_kept_words_has_the_same_tokens(text: str) -> None:
    whole = WHOLE.encode(text, add_special_tokens=False)
    new = {old: number for number, old in enumerate(KEPT)}
    if set(whole.ids) <= set(KEPT):
        assert CUT.encode(text, add_special_tokens=False).ids == [new[each] for each in whole.ids]
    else:
        assert len(CUT.encode(text, add_special_tokens=False).ids) > len(whole.ids)


def test_what_is_kept() -> None:
    assert sorted(set(KEPT)) == KEPT
    assert len(KEPT) <= 290 < WHOLE.get_vocab_size()
    document = json.loads(WORDS)
    ids = document["model"]["vocab"]
    kept = {word for word, number in ids.items() if number in set(KEPT)}
    assert {"<end>", "<pad>"} <= kept
    assert all(letter in kept for letter in pre_tokenizers.ByteLevel.alphabet())
    assert any(len(word) > 2 for word in kept)
    made = {
        "".join(merge) if isinstance(merge, list) else merge.replace(" ", "") for merge in document["model"]["merges"]
    }
    reachable = Tokenizer.from_str(cut_tokenizer(WORDS, KEPT))
    for word in kept & made:  # each kept word is still made of kept parts
        text = decoders.ByteLevel().decode([word])
        assert reachable.token_to_id(word) is not None
        if "�" not in text:
            assert reachable.encode(text, add_special_tokens=False).tokens == [word]


def test_the_special_tokens_keep_their_meaning() -> None:
    ids = CUT.encode("Oslo<end>").ids
    assert CUT.id_to_token(ids[-1]) == "<end>"
    assert KEPT[ids[-1]] == WHOLE.token_to_id("<end>")


def test_too_few_words_or_another_kind_of_vocabulary_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot be left out"):
        kept_words(WORDS, TALK, 100)
    document = json.loads(WORDS)
    document["model"]["type"] = "Unigram"
    with pytest.raises(UsageError, match="Unigram"):
        kept_words(json.dumps(document), TALK, 290)


@pytest.mark.parametrize("tied", [True, False])
def test_kept_words_have_the_same_logits(tied: bool) -> None:
    whole, small = tiny_llama(360, tied=tied), tiny_llama(360, tied=tied)
    cut_embeddings(small, KEPT)
    ids = torch.randint(len(KEPT), (2, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = whole(input_ids=torch.tensor(KEPT)[ids]).logits[..., torch.tensor(KEPT)]
        actual = small(input_ids=ids).logits
    torch.testing.assert_close(actual, expected)
    assert (small.get_output_embeddings().weight is small.get_input_embeddings().weight) == tied
    assert small.config.vocab_size == len(KEPT)
    assert KEPT[small.config.eos_token_id] == whole.config.eos_token_id
    assert KEPT[small.config.pad_token_id] == whole.config.pad_token_id


def test_a_cut_model_is_saved_and_loaded(tmp_path: Any) -> None:
    from transformers import LlamaForCausalLM

    model = tiny_llama(360)
    cut_embeddings(model, KEPT)
    keep_layers(model, [0, 3])
    model.save_pretrained(tmp_path)
    loaded = LlamaForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded(input_ids=ids).logits, model(input_ids=ids).logits)


@pytest.mark.parametrize("kept", [[0, 1, 2, 3], [0, 3], [2], [1, 2]])
def test_kept_layers_are_a_model_of_those_layers(kept: list[int]) -> None:
    whole, small = tiny_llama(50), tiny_llama(50)
    keep_layers(small, kept)
    built = tiny_llama(50, layers=len(kept))
    state = {name: value for name, value in whole.state_dict().items() if ".layers." not in name}
    for new, old in enumerate(kept):
        of_layer = whole.base_model.layers[old].state_dict()
        state |= {f"model.layers.{new}.{name}": value for name, value in of_layer.items()}
    built.load_state_dict(state)
    ids = torch.arange(24)[None]
    with torch.no_grad():
        torch.testing.assert_close(small(input_ids=ids).logits, built(input_ids=ids).logits)
        cached = small(input_ids=ids[:, :20], use_cache=True)  # the cache counts layers anew
        step = small(input_ids=ids[:, 20:], past_key_values=cached.past_key_values).logits
        torch.testing.assert_close(step, built(input_ids=ids).logits[:, 20:])
    assert small.config.num_hidden_layers == len(kept)


@pytest.mark.parametrize("idle", range(4))
def test_the_influence_of_a_layer_that_does_nothing_is_nothing(idle: int) -> None:
    """The last one too, whatever the norm after it does."""
    model = tiny_llama(50)
    with torch.no_grad():
        model.base_model.norm.weight.normal_()
        for part in (model.base_model.layers[idle].self_attn.o_proj, model.base_model.layers[idle].mlp.down_proj):
            part.weight.zero_()
    influence = layer_influence(model, torch.arange(2, 26)[None])  # 1 is padding: nothing, without a direction
    assert len(influence) == 4
    assert [each == pytest.approx(0, abs=1e-6) for each in influence] == [number == idle for number in range(4)]
