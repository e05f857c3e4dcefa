"""A tiny Llama with random weights and a byte-level tokenizer, as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tiny_tokenizer(template: str | None = TEMPLATE) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({char: number for number, char in enumerate(alphabet)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|end|>"])
    made = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>")
    made.chat_template = template
    return made


def tiny_model(seed: int = 0, context: int = 1024) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=256,
        pad_token_id=256,
        initializer_range=0.4,
    )
    return LlamaForCausalLM(config).eval()


def tiny_folder(folder: Path, **options: Any) -> Path:
    tiny_model(**options).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def tiny_adapter(folder: Path, seed: int, rank: int = 2, targets: tuple[str, ...] = ("q_proj", "down_proj")) -> Path:
    """An adapter to the tiny model, large enough to change what it writes."""
    import torch

    from agent_forge.forge.adapters import LoraSettings, adapted_layers, add_adapter, save_adapter

    model = tiny_model()
    add_adapter(model, LoraSettings(rank=rank, alpha=2 * rank, targets=targets))
    torch.manual_seed(seed)
    for _, layer in adapted_layers(model):
        torch.nn.init.normal_(layer.lora_A, std=0.25)
        torch.nn.init.normal_(layer.lora_B, std=0.25)
    return save_adapter(model, folder)
