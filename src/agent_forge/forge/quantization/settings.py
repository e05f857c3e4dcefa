"""What `quantize` is asked for: the options of the command, the `config` of its phase, and the Python argument.

Nothing here needs torch: a command lists its options, and a pipeline file is checked, without it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agent_forge.config import option
from agent_forge.errors import ConfigError
from agent_forge.forge.corpus import Source
from agent_forge.forge.quantization.gate import Demands
from agent_forge.forge.quantization.recipe import QATRecipe

Levels = Literal["ternary", "two_bit"]
Granularity = Literal["tensor", "row", "group"]
INSIDE_BLOCKS = r"\.\d+\."  # layers inside a numbered block: neither embedding nor head, nor what is beside them


@dataclass(frozen=True)
class Format:
    """How a model is stored after quantisation."""

    levels: Levels = option("ternary", help="Levels of the linear layers' weights")
    granularity: Granularity = option("row", help="Weights that share a scale", flag="--scales")
    group: int = option(128, help="Columns per group", at_least=8)
    learn_scales: bool | None = option(
        None,
        help="Learn the scales (LSQ), or use the mean of |w| (default: learned, unless one scale serves a matrix)",
        flag="--learn-scales/--mean-scales",
    )
    activations: Literal["int8", "none"] = option("int8", help="Rounding of those layers' inputs, token by token")
    sub_norm: bool = option(False, help="Put an RMS norm in front of each of those layers")
    embedding: Literal["int4", "int8", "none"] = option("int4", help="Type of the embedding and the head")
    embedding_group: int = option(
        0, help="Columns of the embedding that share a scale (0: 32 for int4, the row for int8)", at_least=0
    )

    def __post_init__(self) -> None:
        if self.learn_scales is None:
            object.__setattr__(self, "learn_scales", self.granularity != "tensor")
        if self.learn_scales and self.granularity == "tensor":
            raise ConfigError(
                "one scale for the whole matrix cannot be learned", where="learn_scales", fix="Set it to false"
            )

    def word_group(self, columns: int) -> int:
        """How many columns of an embedding share a scale."""
        return min(columns, self.embedding_group or (32 if self.embedding == "int4" else columns))


@dataclass(frozen=True)
class QuantizeSettings:
    """The levels, the training, and what the result must keep."""

    format: Format = field(default_factory=Format)
    recipe: QATRecipe = field(default_factory=QATRecipe)
    demands: Demands = field(default_factory=Demands)
    layers: str = option(INSIDE_BLOCKS, help="Regular expression: the linear layers to quantize")
    layout: Literal["1.6bit", "2bit"] = option("1.6bit", help="Five weights per byte, or four for speed")
    output: Literal["packed", "dense"] = option(
        "packed", help="What is written: the small model, or its de-quantized form for phases that train on"
    )
    sources: dict[str, Source] = option(
        {}, help="Text to train and judge on (default: bundled text, and text that the model writes itself)"
    )
    held_out: float | None = option(
        None,
        help="Share of the documents kept for judging (default: 0.05, or less where the model was trained with less)",
        above=0,
        at_most=0.5,
    )
    most_judged: int | None = option(
        None,
        help="Held-out tokens to evaluate on (default: about a minute's worth)",
        at_least=64,
        flag="--eval-tokens",
        former="--judged",
    )
    questions: int | None = option(
        None, help="Multiple-choice questions made from them (default: one per 64 tokens)", at_least=16
    )

    def __post_init__(self) -> None:
        if self.output == "dense" and self.format.sub_norm:
            raise ConfigError(
                "layers with a sub-norm have no plain form", where="output", fix="Leave out one of the two"
            )
