"""Models with random weights, for benchmarks: what they learn means nothing, what they take does."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def random_model(shape: str) -> Any:
    """A Llama of that size with random weights: what it learns means nothing, what it takes does."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    layers, width, inner, heads, groups = {"3b": (28, 3072, 8192, 24, 8), "tiny": (2, 64, 128, 4, 2)}[shape]
    config = LlamaConfig(
        vocab_size=49152, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=groups, max_position_embeddings=8192, eos_token_id=2,
        tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        return LlamaForCausalLM(config)


def quick_base(folder: Path) -> Path:
    """A random model of two layers with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from agent_forge.tasks import family

    words = Tokenizer(models.BPE())
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    words.train_from_iterator([family("support").make(seed).prompt for seed in range(20)], trainer)
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}<end>{% endfor %}assistant: "
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", chat_template=template)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
