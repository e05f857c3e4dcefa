"""Tokens from a model in this process, one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from agent_forge.inference.rows import Rows, rows_for
from agent_forge.inference.sampling import SampledToken, Sampling, choose

if TYPE_CHECKING:
    from agent_forge.inference.local_model import Mask


def sample_tokens(
    rows: Rows, prompt: Sequence[int], most: int, sampling: Sampling, mask: Mask | None = None
) -> Iterator[SampledToken]:
    """At most `most` tokens after the prompt, as the only row of `rows`; the caller may stop at any time."""
    written: list[int] = []
    while len(written) < most:
        logits = rows.step(written[-1:]) if written else rows.join([prompt])
        allowed = logits if mask is None else mask(written, logits[0])[None]
        (token,) = choose(logits, [sampling], allowed=allowed)
        written.append(token.id)
        yield token


def fast_tokens(
    model: Any, prompt: Sequence[int], most: int, *, temperature: float = 0.0, seed: int | None = None
) -> Iterator[int]:
    """New tokens one after another, greedily or at a temperature, until the caller stops or there are `most`.

    A packed model runs in the compiled decoder, any other model by its own forward pass.
    """
    for token in sample_tokens(rows_for(model), prompt, most, Sampling(temperature, seed=seed)):
        yield token.id


def fast_generate(
    model: Any,
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    seed: int | None = None,
    eos_token_id: int | Sequence[int] | None = None,
) -> list[int]:
    """The new tokens, up to and including the one that ends the text (see `fast_tokens`)."""
    ends = {eos_token_id} if isinstance(eos_token_id, int) else set(eos_token_id or ())
    tokens: list[int] = []
    for token in fast_tokens(model, prompt, max_new_tokens, temperature=temperature, seed=seed):
        tokens.append(token)
        if token in ends:
            break
    return tokens
