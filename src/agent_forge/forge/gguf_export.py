"""A Llama-shaped model, plain or packed, as a GGUF file for llama.cpp.

Ternary matrices become TQ1_0 or TQ2_0, which keep their trits exactly and their scales as float16. Those types have
blocks of 256 columns with one scale each, so a matrix whose width is not a multiple of 256, or whose groups are
smaller, is written in the type of the other weights instead. The result says which tensor has which type.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent_forge.errors import MissingExtraError, UsageError
from agent_forge.inference.packed.quantizer import refuse_sub_norms

BLOCK = 256  # columns of a TQ block
TERNARY = ("TQ2_0", "TQ1_0")
OTHERS = ("F16", "F32", "Q8_0")
LAYER_PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
# llama.cpp's names of pre-tokenizers, by the regular expression of the splitter
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITTERS = {LLAMA3: "llama-bpe"}


def export_gguf(
    model: Any,
    tokenizer: Any,
    path: str | os.PathLike[str],
    *,
    ternary: str = "TQ2_0",
    others: str = "F16",
    pre: str | None = None,
) -> dict[str, str]:
    """Writes `model` to `path`; returns the GGUF type of every tensor.

    `pre` is llama.cpp's name of the pre-tokenizer, for tokenizers where it cannot be derived. Raises UsageError for a
    model that is not of llama.cpp's `llama` architecture.
    """
    try:
        import gguf
    except ImportError as error:
        raise MissingExtraError("GGUF export", "local") from error
    if ternary not in TERNARY or others not in OTHERS:
        raise UsageError(
            f"there is no type {ternary!r} for ternary or {others!r} for other weights",
            fix=f"Ternary: {', '.join(TERNARY)}; others: {', '.join(OTHERS)}",
        )
    _check(model)
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, model.config, Path(path).stem)
    if tokenizer is not None:
        _add_tokenizer(writer, tokenizer, model.config.vocab_size, pre)
    types = {}
    for name, tensor, is_ternary in _tensors(model):
        kind = _type(tensor, is_ternary, ternary, others)
        types[name] = kind
        number = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, gguf.quants.quantize(tensor, number), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return types


def _check(model: Any) -> None:
    """Raises UsageError for a model that llama.cpp would read wrongly."""
    config = model.config
    if config.model_type != "llama" or config.hidden_act != "silu":
        raise UsageError(
            f"llama.cpp has no architecture for a {config.model_type} model",
            fix="Export a folder for transformers instead: GGUF is for Llama-shaped models",
        )
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default":
        raise UsageError(f"rotary positions of type {rope['rope_type']!r} cannot be written to GGUF")
    refuse_sub_norms(model)


def _describe(writer: Any, config: Any, name: str) -> None:
    rope = getattr(config, "rope_parameters", None) or {}
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_name(name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(float(rope.get("rope_theta", getattr(config, "rope_theta", 10000.0))))
    writer.add_rope_dimension_count(width)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_vocab_size(config.vocab_size)


def _tensors(model: Any) -> Any:
    """(GGUF name, float32 array, whether a TQ type can hold it) of every tensor; tied weights once."""
    config = model.config
    outside = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    tied = config.tie_word_embeddings
    for name, module in model.named_modules():
        if name in outside:
            if not (tied and name == "lm_head"):
                yield f"{outside[name]}.weight", _array(module.weight), False
            continue
        prefix, _, part = name.removeprefix("model.layers.").partition(".")
        if not name.startswith("model.layers.") or part not in LAYER_PARTS:
            continue
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(LAYER_PARTS[part])
        for kind in ("weight", "bias"):
            tensor = getattr(module, kind, None)
            if tensor is not None:
                array = _array(tensor)
                rows = array if heads is None else _interleaved(array, heads)
                yield f"blk.{prefix}.{LAYER_PARTS[part]}.{kind}", rows, kind == "weight" and _fits_blocks(module)


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.detach().to(torch.float32).cpu().contiguous().numpy()


def _interleaved(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """transformers stores the two halves of the rotary pairs one after the other, ggml stores the pairs interleaved."""
    pairs = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])  # [heads, halves, pairs, ...]
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows.shape))


def _fits_blocks(module: Any) -> bool:
    """Whether a TQ type can hold the matrix: trits in whole blocks of 256 with one scale each."""
    shape = getattr(module, "shape", None)
    if shape is None or shape.kind not in ("2bit", "1.6bit"):
        return False
    return shape.columns % BLOCK == 0 and (shape.groups == 1 or shape.group % BLOCK == 0)


def _type(tensor: np.ndarray[Any, Any], is_ternary: bool, ternary: str, others: str) -> str:
    if tensor.ndim == 1:
        return "F32"
    if is_ternary:
        return ternary
    return "F16" if others == "Q8_0" and tensor.shape[1] % 32 else others


def _add_tokenizer(writer: Any, tokenizer: Any, size: int, pre: str | None) -> None:
    """A byte-level BPE vocabulary (llama.cpp's "gpt2")."""
    document = json.loads(tokenizer.backend_tokenizer.to_str())
    if document["model"]["type"] != "BPE":
        raise UsageError(
            f"a {document['model']['type']} vocabulary cannot be written to GGUF", fix="Use byte-level BPE"
        )
    added = {token["id"]: token for token in document["added_tokens"]}
    tokens = {number: text for text, number in document["model"]["vocab"].items()}
    tokens |= {number: token["content"] for number, token in added.items()}
    names = [tokens.get(i, f"[unused {i}]") for i in range(size)]
    # ggml's token types: 1 normal, 3 control, 4 user-defined, 5 unused
    kinds = [(3 if added[i]["special"] else 4) if i in added else 1 if i in tokens else 5 for i in range(size)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in document["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre or splitter_name(document["pre_tokenizer"]))
    writer.add_token_list(names)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    for name in ("bos", "eos", "unk", "pad"):
        number = getattr(tokenizer, f"{name}_token_id")
        if number is not None:
            getattr(writer, f"add_{name}_token_id")(number)
    writer.add_add_bos_token(bool(tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]))
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def splitter_name(splitter: Any) -> str:
    """llama.cpp's name for a pre-tokenizer of `tokenizers`. Raises UsageError if it has no known one.

    >>> splitter_name({"type": "ByteLevel", "use_regex": True})
    'gpt-2'
    """
    parts = splitter["pretokenizers"] if splitter and splitter["type"] == "Sequence" else [splitter or {"type": None}]
    kinds = [part["type"] for part in parts]
    if kinds == ["ByteLevel"] and parts[0].get("use_regex", True):
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and parts[0]["individual_digits"] and parts[1].get("use_regex", True):
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and parts[0]["pattern"].get("Regex") in SPLITTERS:
        return SPLITTERS[parts[0]["pattern"]["Regex"]]
    raise UsageError(
        "the tokenizer's way of splitting words has no known name in llama.cpp",
        fix="Name the closest one with pre=..., for example llama-bpe, and compare the tokens",
    )
