"""Text from a model: greedy, in batches, cut at what ends an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from agent_forge.forge.evaluation.text import device_of, positions_of


@torch.no_grad()
def write_answers(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    most_tokens: int = 128,
    stop: Sequence[str] = (),
    batch: int = 16,
) -> list[str]:
    """What the model writes after each prompt by taking the likeliest token, up to the first of `stop`.

    An answer takes at most half of what the model can read; a prompt that leaves it no room loses its beginning.
    """
    was_training, longest = model.training, positions_of(model.config)
    most_tokens = most_tokens if longest is None else min(most_tokens, longest // 2)
    model.eval()
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    answers = [""] * len(prompts)
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        tokens, mask = _padded(model, tokenizer, [prompts[i] for i in chosen], longest and longest - most_tokens)
        written = model.generate(
            tokens,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=most_tokens,
            pad_token_id=_padding(tokenizer),
            eos_token_id=tokenizer.eos_token_id,
        )
        texts = tokenizer.batch_decode(written[:, tokens.shape[1] :], skip_special_tokens=True)
        for i, text in zip(chosen, texts, strict=True):
            answers[i] = cut(text, stop)
    model.train(was_training)
    return answers


def cut(text: str, stop: Sequence[str]) -> str:
    """
    >>> cut("42. Question: next", ["Question:", "~"])
    '42. '
    """
    places = [place for mark in stop if (place := text.find(mark)) >= 0]
    return text[: min(places)] if places else text


def _padding(tokenizer: Any) -> int:
    found = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(int(token) for token in found if token is not None)


def _padded(
    model: Any, tokenizer: Any, prompts: Sequence[str], longest: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Left-padded rows: of each prompt the end, as long as it may be. One without a token begins with the padding."""
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    found = [[*begin, *tokenizer(text, add_special_tokens=False)["input_ids"]] for text in prompts]
    rows = [(row or [_padding(tokenizer)])[-(longest or len(row)) :] for row in found]
    width = max(len(row) for row in rows)
    tokens = torch.full((len(rows), width), _padding(tokenizer))
    mask = torch.zeros_like(tokens)
    for place, row in enumerate(rows):
        tokens[place, width - len(row) :] = torch.tensor(row)
        mask[place, width - len(row) :] = 1
    device = device_of(model)
    return tokens.to(device), mask.to(device)
