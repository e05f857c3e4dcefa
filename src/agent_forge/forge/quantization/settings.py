"""What `quantize` and the phase `bitnet` are asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agent_forge.config import option
from agent_forge.forge.quantization.bitlinear import INSIDE_BLOCKS
from agent_forge.forge.quantization.gate import Demands
from agent_forge.forge.quantization.levels import Format
from agent_forge.forge.quantization.recipe import QATRecipe


@dataclass(frozen=True)
class QuantizeSettings:
    """The levels, the training, and what the result must keep: the defaults of command, phase and Python."""

    format: Format = field(default_factory=Format)
    recipe: QATRecipe = field(default_factory=QATRecipe)
    demands: Demands = field(default_factory=Demands)
    layers: str = option(INSIDE_BLOCKS, help="Regular expression: the linear layers to quantise")
    layout: Literal["1.6bit", "2bit"] = option("1.6bit", help="Five weights per byte, or four for speed")
