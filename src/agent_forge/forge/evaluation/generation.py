"""Text from a model: greedy, in batches, up to whatever ends an answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from agent_forge.context_length import context_length
from agent_forge.forge.evaluation.text import device_of
from agent_forge.forge.progress import Tell, reporter, silent, track

FENCED = re.compile(r"```[\w+-]*\n(.*?)(?:```|\Z)", re.DOTALL)


@torch.no_grad()
def write_answers(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    most_tokens: int = 128,
    stop: Sequence[str] = (),
    batch: int = 16,
    stage: str = "answers",
    begin: bool | None = None,
    tell: Tell = silent,
) -> list[str]:
    """What the model writes after each prompt, always the likeliest token, up to the first of `stop`.

    Without a tokenizer the model is a client (`agent_forge.inference.model`), which is asked prompt by prompt. An
    answer takes at most half of the context; a prompt that leaves no room for it loses its
    beginning.
    """
    if tokenizer is None:
        return asyncio.run(_ask(model, prompts, most_tokens, stop, batch, reporter(stage, len(prompts), tell)))
    was_training, longest = model.training, context_length(model.config)
    most_tokens = most_tokens if longest is None else min(most_tokens, longest // 2)
    model.eval()
    padding = next(int(t) for t in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if t is not None)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    answers = [""] * len(prompts)
    for start in track(range(0, len(order), batch), stage, tell):
        chosen = order[start : start + batch]
        room = longest and longest - most_tokens
        first = beginning(model, tokenizer, begin)
        tokens, mask = _padded(tokenizer, [prompts[i] for i in chosen], room, padding, first)
        written = model.generate(
            tokens.to(device_of(model)),
            attention_mask=mask.to(device_of(model)),
            do_sample=False,
            max_new_tokens=most_tokens,
            pad_token_id=padding,
            eos_token_id=tokenizer.eos_token_id,
        )
        texts = tokenizer.batch_decode(written[:, tokens.shape[1] :], skip_special_tokens=True)
        for i, text in zip(chosen, texts, strict=True):
            answers[i] = cut(text, stop)
    model.train(was_training)
    return answers


def beginning(model: Any, tokenizer: Any, begin: bool | None) -> int | None:
    """The token in front of a prompt: BOS, or EOS where there is none; none if the tokenizer puts none there itself,
    unless `begin` asks for it or the model is a Cognate, which has learnt to read from there."""
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if begin is None:
        usual = list(tokenizer("a")["input_ids"])
        begin = model.config.model_type == "cognate" or (first is not None and usual[:1] == [first])
    return first if begin else None


async def _ask(
    client: Any,
    prompts: Sequence[str],
    most_tokens: int,
    stop: Sequence[str],
    batch: int,
    report: Callable[[int], None],
) -> list[str]:
    """The answers of an endpoint, `batch` at a time, without sampling. A chat model may fence its code."""
    turn, done = asyncio.Semaphore(batch), 0

    async def answer(prompt: str) -> str:
        nonlocal done
        async with turn:
            messages = [{"role": "user", "content": prompt}]
            completion = await client.complete(messages, temperature=0.0, max_tokens=most_tokens)
        done += 1
        report(done)
        block = FENCED.search(completion.text)
        return block[1] if block else cut(completion.text, stop)

    return list(await asyncio.gather(*map(answer, prompts)))


def cut(text: str, stop: Sequence[str]) -> str:
    """
    >>> cut("42. Question: next", ["Question:", "~"])
    '42. '
    """
    places = [place for mark in stop if (place := text.find(mark)) >= 0]
    return text[: min(places)] if places else text


def _padded(
    tokenizer: Any, prompts: Sequence[str], longest: int | None, padding: int, first: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Left-padded tokens and mask, each [prompts, width]: the end of each prompt, as long as it may
    be. One without a token begins with the padding."""
    begin = [] if first is None else [first]
    encoded = [[*begin, *tokenizer(text, add_special_tokens=False)["input_ids"]] for text in prompts]
    rows = [(row or [padding])[-(longest or len(row)) :] for row in encoded]
    width = max(len(row) for row in rows)
    tokens = torch.full((len(rows), width), padding)
    mask = torch.zeros_like(tokens)
    for place, row in enumerate(rows):
        tokens[place, width - len(row) :] = torch.tensor(row)
        mask[place, width - len(row) :] = 1
    return tokens, mask
