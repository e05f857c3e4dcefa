"""Byte-level BPE, saved as transformers expects it, with a chat template and the tokens that later phases need."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from agent_forge.errors import UsageError

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
SPECIAL_TOKENS = (
    *(BOS, EOS, PAD),
    *("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),  # chat
    *("<|startofthought|>", "<|endofthought|>"),  # phase 3
    *("<|tool_call|>", "<|tool_result|>", "<|plan|>", "<|graph|>"),  # phases 5 and 6, the planner
    *(f"<|reserved_{i}|>" for i in range(19)),
)
# Words with their leading space, digits in groups of at most three, punctuation, runs of white space: the GPT-4 pattern
# with shorter numbers, so that arithmetic sees regular pieces.
PIECES = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = 32768) -> PreTrainedTokenizerFast:
    """A tokenizer of `vocab_size` tokens, special ones first. Any text survives encoding and decoding unchanged.

    Raises UsageError if the vocabulary cannot hold the bytes and the special tokens.

    >>> tokenizer = train_tokenizer(["the cat sat on the mat"] * 10, vocab_size=320)
    >>> tokenizer.decode(tokenizer("the café")["input_ids"], skip_special_tokens=True)
    'the café'
    """
    smallest = 256 + len(SPECIAL_TOKENS)
    if vocab_size < smallest:
        raise UsageError(f"a vocabulary of {vocab_size} is too small", fix=f"Use {smallest} or more")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=list(SPECIAL_TOKENS[3:]),
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
