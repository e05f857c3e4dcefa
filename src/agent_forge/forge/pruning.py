"""A smaller model of the same kind: fewer words, fewer layers.

A byte-level BPE stays sound when it loses words: what was one token becomes the two it was merged from. So a vocabulary
can be cut to what a field uses, as long as the parts of every kept word are kept.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from agent_forge.errors import UsageError


def kept_words(tokenizer_json: str, texts: Iterable[str], size: int) -> list[int]:
    """The ids to keep, in their old order: single bytes, special tokens, the most frequent words of the texts, and the
    parts they are merged from. Raises UsageError for a tokenizer that is no byte-level BPE, or too small a size."""
    from tokenizers import Tokenizer

    document = json.loads(tokenizer_json)
    model = document["model"]
    if model.get("type") != "BPE":
        raise UsageError(f"the tokenizer is of type {model.get('type')}", fix="Only BPE vocabularies can be cut")
    ids = model["vocab"]
    parts = {ids[a + b]: (ids[a], ids[b]) for a, b in map(_pair, model["merges"]) if a + b in ids}
    needed = {token["id"] for token in document.get("added_tokens", ())} | {n for n in ids.values() if n not in parts}
    if len(needed) > size:
        raise UsageError(f"{len(needed):,} tokens cannot be left out", fix=f"Keep more than {size:,}")
    counts: Counter[int] = Counter()
    tokenizer = Tokenizer.from_str(tokenizer_json)
    for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False):
        counts.update(encoding.ids)
    for word, _ in counts.most_common():
        branch = _with_parts(word, parts) - needed
        if len(needed) + len(branch) <= size:
            needed |= branch
    return sorted(needed)


def _with_parts(word: int, parts: dict[int, tuple[int, int]]) -> set[int]:
    branch: set[int] = set()
    waiting = [word]
    while waiting:
        each = waiting.pop()
        if each not in branch:
            branch.add(each)
            waiting += parts.get(each, ())
    return branch


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second


def cut_tokenizer(tokenizer_json: str, kept: Sequence[int]) -> str:
    """The tokenizer with only these words, numbered anew in the same order."""
    document = json.loads(tokenizer_json)
    new = {old: number for number, old in enumerate(kept)}
    model = document["model"]
    words = {word: new[number] for word, number in model["vocab"].items() if number in new}
    merges = [merge for merge in model["merges"] if all(w in words for w in (*_pair(merge), "".join(_pair(merge))))]
    model["vocab"], model["merges"] = words, merges
    document["added_tokens"] = [
        {**each, "id": new[each["id"]]} for each in document.get("added_tokens", ()) if each["id"] in new
    ]
    return json.dumps(document, ensure_ascii=False)


def cut_embeddings(model: Any, kept: Sequence[int]) -> None:
    """Keeps the rows of these words in the embedding and the head, in place."""
    rows = torch.tensor(kept)
    words, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = head is not None and head.weight is words.weight
    words.weight = nn.Parameter(words.weight.detach()[rows].clone())
    words.num_embeddings = len(kept)
    if head is not None:
        head.weight = words.weight if tied else nn.Parameter(head.weight.detach()[rows].clone())
        head.out_features = len(kept)
    model.config.vocab_size = model.vocab_size = len(kept)
    new = {old: number for number, old in enumerate(kept)}
    for config in (model.config, getattr(model, "generation_config", None)):
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            if isinstance(getattr(config, name, None), int):
                setattr(config, name, new.get(getattr(config, name)))


@torch.no_grad()
def layer_influence(model: Any, inputs: Tensor) -> list[float]:
    """How much each layer changes what passes through it: 1 - cosine of its input and output, averaged over tokens of
    `inputs` [rows, tokens] (ShortGPT's block influence). The layers with the least can go first."""
    layers = model.base_model.layers
    influence: list[float] = []

    def note(_: Any, inputs: tuple[Tensor, ...], output: Tensor | tuple[Tensor, ...]) -> None:
        after = output if isinstance(output, Tensor) else output[0]
        influence.append(float((1 - torch.cosine_similarity(inputs[0].float(), after.float(), dim=-1)).mean()))

    # not `output_hidden_states`, whose last one has been through the norm after the layers
    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        model(input_ids=inputs, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return influence


def keep_layers(model: Any, kept: Sequence[int]) -> None:
    """Keeps these layers of a Llama-shaped model, in place."""
    layers = model.base_model.layers
    model.base_model.layers = nn.ModuleList([layers[number] for number in kept])
    for number, layer in enumerate(model.base_model.layers):
        if hasattr(layer, "self_attn") and hasattr(layer.self_attn, "layer_idx"):
            layer.self_attn.layer_idx = number
    model.config.num_hidden_layers = len(kept)
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = [model.config.layer_types[number] for number in kept]
