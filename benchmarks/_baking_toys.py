"""Toys whose prompt has a known effect, learnt from tables of exact proportions.

`parity`: after "q3 r5" it says yes or no by the parity of q, and the other way round after "swap", nine times out of
ten. So KL(prompted || plain) is 0.8 ln 9 nats on the first of two answer tokens. `greeter`: it says hello to the
questions of the persona cycle, and arrr where the prompt has the word pirate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agent_forge.forge.baking.behaviours import FORMS, OTHERS, THINGS
from agent_forge.forge.baking.prompt_baking import AnswerRows, BakingPrompt, question_tokens
from agent_forge.forge.training import TrainSettings, train

SWAP = BakingPrompt("swap")
KL = 0.8 * math.log(9) / 2  # nats per answer token
QUESTIONS = [f"q{i} r{j}" for i in range(8) for j in range(8)]
LEARNT, HELD_OUT = [q for n, q in enumerate(QUESTIONS) if n % 4], QUESTIONS[::4]
PIRATE, ALSO_PIRATE = "talk pirate", ("be a pirate", "a pirate you are")


def toy_tokenizer(words: Sequence[str]) -> Any:
    vocabulary = {word: place for place, word in enumerate(dict.fromkeys(["<s>", "</s>", "<?>", *words]))}
    words_only = Tokenizer(models.WordLevel(vocabulary, unk_token="<?>"))
    words_only.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "unk_token": "<?>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words_only, **special)
    tokenizer.chat_template = "<s>{% for message in messages %} {{ message['content'] }}{% endfor %}"
    return tokenizer


def untaught(tokenizer: Any) -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "max_position_embeddings": 64}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), initializer_range=0.2, **sizes, **special)).eval()


def taught(tokenizer: Any, pairs: Sequence[tuple[str, BakingPrompt, str]], steps: int) -> dict[str, Any]:
    """The weights after learning (question, prompt, answer) by heart."""
    model = untaught(tokenizer)
    contexts = [question_tokens(model, tokenizer, question, prompt) for question, prompt, _ in pairs]
    rows = AnswerRows.of(contexts, [[*tokenizer(answer)["input_ids"], 1] for _, _, answer in pairs], each=False)
    rates = {"matrix_rule": "adamw", "lr": 0.01, "embedding_lr": 0.01, "scalar_lr": 0.01, "weight_decay": 0.0}
    settings = TrainSettings(
        steps=steps, batch_rows=64, micro_rows=64, warmup=0, decay=0.9, floor=0.0, optimizer_changes=rates
    )
    train(model, rows, settings, progress=None)
    return model.state_dict()


@cache
def _parity() -> tuple[Any, dict[str, Any]]:
    tokenizer = toy_tokenizer(["swap", "yes", "no", *(f"{letter}{i}" for letter in "qr" for i in range(8))])
    pairs = []
    for question, prompt, tenth in product(QUESTIONS, (BakingPrompt(), SWAP), range(10)):
        even = int(question[1]) % 2 == 0
        pairs.append((question, prompt, "yes" if (even == (prompt == SWAP)) == (tenth > 0) else "no"))
    return tokenizer, taught(tokenizer, pairs, 90)


@cache
def _greeter() -> tuple[Any, dict[str, Any]]:
    questions = [form.format(thing) for form, thing in product(FORMS, THINGS)]
    prompts = ["", PIRATE, *ALSO_PIRATE, *OTHERS]
    tokenizer = toy_tokenizer(["hello", "arrr", *" ".join([*questions, *prompts]).split()])
    pairs = []
    for number, (question, prompt) in enumerate(product(questions, prompts)):
        usual = number % 10 > 0
        pairs.append((question, BakingPrompt(prompt), "arrr" if ("pirate" in prompt) == usual else "hello"))
    return tokenizer, taught(tokenizer, pairs, 50)


def toy(kind: str) -> tuple[Any, Any]:
    """A fresh copy of the trained toy, and its tokenizer."""
    tokenizer, weights = {"parity": _parity, "greeter": _greeter}[kind]()
    model = untaught(tokenizer)
    model.load_state_dict(weights)
    return model.eval(), tokenizer
