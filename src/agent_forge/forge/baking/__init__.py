"""Prompt baking: what a prompt does to a model goes into its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_forge.lazy import attach

if TYPE_CHECKING:
    from agent_forge.forge.baking.prompt_baking import BakeReport, BakingError, BakingPrompt, HeldOutAnswers, bake
    from agent_forge.forge.baking.settings import BakeSettings, Baking

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "prompt_baking": "BakeReport BakingError HeldOutAnswers BakingPrompt bake",
        "settings": "BakeSettings Baking",
    },
)
