"""The recursion of TRM (2510.04871), made causal: the same layers read the text again, with their own earlier output.

The state of each position is the input x, an answer y and a latent z, all [B, T, D]. One loop is

    repeat `cycles` times (all but the last without gradient):
        repeat `latent_steps` times:  z = layers(x + y + z)
        y = layers(y + z)             (y = layers(y + x) when there are no latent steps)

Every loop's y is supervised; between loops y and z are detached. `loops=1, latent_steps=0, cycles=1` is y = layers(x):
a plain transformer, the control.

At inference tokens halt one by one. A token that has stopped keeps its answer, and in later loops the others see the
keys, values and memory writes of its last loop. So a token's result depends neither on later tokens nor on how the
sequence was cut into calls.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agent_forge.forge.models.cache import CognateCache
from agent_forge.forge.models.config import CognateConfig

if TYPE_CHECKING:
    from agent_forge.forge.models.aside import Aside


@dataclass
class Reading:
    """What one forward call knows about its tokens, for all layers and passes."""

    cos: Tensor  # [B, 1, T, K/2]
    sin: Tensor
    mask: Any = None  # see `attention_mask`
    valid: Tensor | None = None  # BT, False for padding
    starts: Tensor | None = None  # BT, True where a packed document begins
    cache: CognateCache | None = None
    aside: Aside | None = None  # thoughts beside the text
    slots_per_loop: int = 0
    frozen: Tensor | None = None  # BT, True for tokens that have stopped
    written: dict[tuple[int, str], tuple[Tensor, ...]] | None = None  # by slot, while tokens may stop
    states: list[Tensor] | None = None  # BTD after every layer of every pass, if requested

    def keep(self, slot: int, name: str, new: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """`new`, with what stopped tokens wrote in this slot one loop earlier. Tensors are [B, heads, T, ...]."""
        if self.written is None:
            return new
        if self.frozen is not None:
            old = self.written.pop((slot - self.slots_per_loop, name))
            stopped = self.frozen[:, None, :]  # [B, 1, T], with as many ones appended as each tensor needs
            new = tuple(
                torch.where(stopped.reshape(*stopped.shape, *[1] * (n.dim() - 3)), o, n)
                for o, n in zip(old, new, strict=True)
            )
        self.written[slot, name] = new
        return new


Layers = Callable[[Tensor, Reading, int], Tensor]  # (input BTD, reading, pass) -> normalised output BTD


@dataclass
class Refined:
    """The answer after each loop, and the logits of the halting head."""

    answers: list[Tensor] = field(default_factory=list)  # BTD
    halt_logits: list[Tensor] = field(default_factory=list)  # BT
    depth: Tensor | None = None  # BT, loops that each token used (only at inference with halting)
    loops: int = 0  # loops that ran


def refine(layers: Layers, x: Tensor, reading: Reading, config: CognateConfig, halt: Any = None) -> Refined:
    """All loops, as in training: every loop has an answer."""
    refined = Refined(loops=config.loops)
    y = z = None
    for loop in range(config.loops):
        y, z = _one_loop(layers, x, y, z, reading, config, loop)
        refined.answers.append(y)
        if halt is not None:
            refined.halt_logits.append(halt(y))
        if config.detach_loops and loop + 1 < config.loops:
            y, z = y.detach(), None if z is None else z.detach()
    return refined


def refine_adaptively(layers: Layers, x: Tensor, reading: Reading, config: CognateConfig, halt: Any) -> Refined:
    """Loops until every token has stopped; returns one answer, each token's last."""
    reading.written = {}
    stopped = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    if reading.valid is not None:
        stopped = ~reading.valid
    left = torch.ones(x.shape[:2], device=x.device)  # BT, the probability of not having stopped
    depth = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
    y = z = None
    for loop in range(config.loops):
        reading.frozen = stopped if loop else None
        new_y, new_z = _one_loop(layers, x, y, z, reading, config, loop)
        y, z = _hold(stopped, y, new_y), _hold(stopped, z, new_z)
        depth += ~stopped
        left = torch.where(stopped, left, left * (1 - torch.sigmoid(halt(y))))
        stopped = stopped | (1 - left >= config.halt_threshold)
        if bool(stopped.all()):
            break
    assert y is not None  # loops >= 1
    return Refined([y], depth=depth, loops=loop + 1)


def _hold(stopped: Tensor, old: Tensor | None, new: Tensor | None) -> Tensor | None:
    """`new`, but `old` for stopped tokens."""
    return new if old is None or new is None else torch.where(stopped[..., None], old, new)


def _one_loop(
    layers: Layers, x: Tensor, y: Tensor | None, z: Tensor | None, reading: Reading, config: CognateConfig, loop: int
) -> tuple[Tensor, Tensor | None]:
    number = loop * config.passes_per_loop
    for cycle in range(config.cycles):
        with nullcontext() if cycle + 1 == config.cycles else torch.no_grad():
            for _ in range(config.latent_steps):
                z = layers(_add(x, y, z), reading, number)
                number += 1
            y = layers(_add(y, z if config.latent_steps else x), reading, number)
            number += 1
    assert y is not None  # cycles >= 1
    return y, z


def _add(*parts: Tensor | None) -> Tensor:
    """The sum of the parts that exist: y and z do not before the first loop."""
    present = [part for part in parts if part is not None]
    total = present[0]
    for part in present[1:]:
        total = total + part
    return total
