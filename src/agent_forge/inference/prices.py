"""What a model call costs: what the provider says, else a price of the user's settings, else a public price.

`prices.json` has public prices in US dollars per million tokens, each with its source and a date: when the source says
it checked the price, else when a stored copy of the page was read, which may be older. A price is for the models it
names, letter by letter, and only up to so many input tokens where long prompts cost more (`up_to`). Whatever is not
known has no cost: nothing is guessed from a similar name.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from agent_forge.inference.client import TokenUsage
from agent_forge.settings import ModelPrice, Settings, variable

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class PublicPrice:
    """A public price: where it was read, and when."""

    price: ModelPrice
    up_to: int | None  # input tokens
    source: str
    date: str


@lru_cache(maxsize=1)
def public_prices() -> dict[str, PublicPrice]:
    """The bundled public prices by model.

    >>> public_prices()["gpt-4o-mini"].price
    ModelPrice(input=0.15, output=0.6, cached_input=0.075)
    """
    rows = json.loads((Path(__file__).parent / "prices.json").read_text(encoding="utf-8"))
    return {
        model: PublicPrice(
            ModelPrice(row["input"], row["output"], row.get("cached_input")),
            row.get("up_to"),
            row["source"],
            row["date"],
        )
        for row in rows
        for model in row["models"]
    }


@lru_cache(maxsize=4)
def _user_prices(text: str) -> dict[str, ModelPrice]:
    from agent_forge.config import resolve

    return resolve(Settings, env={"prices": text}, variable=variable).value.prices


def user_prices() -> dict[str, ModelPrice]:
    """The prices in the settings, by model. Raises ConfigError."""
    text = os.environ.get(variable("prices"))
    return _user_prices(text) if text else {}


def cost_of(usage: TokenUsage, *models: str, public: bool) -> float | None:
    """The cost of a call in US dollars, by the first of these names that has a price; None if it is not known.

    >>> round(cost_of(TokenUsage(1_000_000, 100_000), "gpt-4o-mini", public=True), 6)
    0.21
    >>> cost_of(TokenUsage(1_000_000, 100_000), "gpt-4o-mini-tuned", public=True) is None
    True
    """
    own = user_prices()
    for model in models:
        if model in own:
            return _cost(usage, own[model])
    for model in models if public else ():
        if (row := public_prices().get(model)) is not None:
            long = row.up_to is not None and (usage.input_tokens or 0) > row.up_to
            return None if long else _cost(usage, row.price)
    return None


def _cost(usage: TokenUsage, price: ModelPrice) -> float | None:
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    cached = min(usage.cached_tokens or 0, usage.input_tokens)
    if cached and price.cached_input is None:
        return None
    fresh = (usage.input_tokens - cached) * price.input + cached * (price.cached_input or 0.0)
    return (fresh + usage.output_tokens * price.output) / _MILLION
