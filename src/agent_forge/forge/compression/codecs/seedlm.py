"""SeedLM (2410.10714): a block of weights as the seed of a shift register and a few coefficients.

A block w of `width` weights is U(s) t: U(s) is the width x rank matrix that a linear-feedback shift register gives from
seed s, t the least-squares coefficients in 4 bits each with a shared 4-bit exponent. All seeds are tried. 8 weights in
16 + 4 + 3 x 4 bits are 4 bits a weight; 12 weights in 16 + 4 + 4 x 4 are 3. Our register moves on by its whole
length between two numbers, because states one step apart share all bits but one and make poor bases.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from agent_forge.forge.compression.container import Encoded
from agent_forge.forge.compression.feedback import Cost, order_of, rounded_with_feedback

# taps of maximal-length registers (Xilinx XAPP 052)
TAPS = {8: (8, 6, 5, 4), 10: (10, 7), 12: (12, 6, 4, 1), 14: (14, 5, 3, 1), 16: (16, 15, 13, 4)}
SHORTLIST = 16  # seeds whose coefficients are rounded and compared exactly
COEFFICIENT = 7
EXPONENTS = 16


@lru_cache(maxsize=8)
def bases(width: int, rank: int, length: int) -> np.ndarray:
    """[2^length - 1, width, rank]: the matrix of every seed from 1, with entries in [-1, 1]."""
    state = np.arange(1, 1 << length, dtype=np.uint32)
    half = (1 << (length - 1)) - 1
    found = np.empty((len(state), width * rank), np.float32)
    for place in range(width * rank):
        for _ in range(length):
            bit = np.bitwise_xor.reduce([(state >> (length - tap)) & 1 for tap in TAPS[length]])
            state = (state >> 1) | (bit << (length - 1))
        found[:, place] = (state.astype(np.float32) - np.float32(half + 1)) / np.float32(half)
    return found.reshape(-1, width, rank)


def encode(weight: Tensor, cost: Cost, width: int = 8, rank: int = 3, length: int = 16) -> Encoded:
    rows, columns = weight.shape
    source = torch.nn.functional.pad(weight.detach().float(), (0, -columns % width))
    bank = torch.from_numpy(bases(width, rank, length)).to(source.device)
    frames, upper = torch.linalg.qr(bank)
    blocks = source.shape[1] // width
    base = int(np.floor(np.log2(max(float(source.abs().max()), 1e-30)))) - EXPONENTS + 2
    seeds = torch.zeros(rows, blocks, dtype=torch.long, device=source.device)
    powers = torch.zeros_like(seeds)
    coefficients = torch.zeros(rows, blocks, rank, dtype=torch.long, device=source.device)

    def quantise(piece: Tensor, at: int) -> Tensor:
        parts = [_best(part, bank, frames, upper, base) for part in piece.split(_rows(frames))]
        seed, power, t = (torch.cat(found) for found in zip(*parts, strict=True))
        seeds[:, at // width], powers[:, at // width], coefficients[:, at // width] = seed, power, t
        return _blocks(bank[seed], t.float(), power, base)

    if cost.hessian is None:
        for at in range(0, source.shape[1], width):
            quantise(source[:, at : at + width], at)
    else:
        missing = -columns % width
        hessian = torch.nn.functional.pad(cost.hessian.to(source.device), (0, missing, 0, missing))
        rounded_with_feedback(source, order_of(hessian, sort=False).upper, quantise, width)
    seed = seeds.cpu().numpy()
    parts = {
        "high": (seed >> 8).astype(np.uint8),  # seeds are as good as random: two bytes, no table of 65,535 entries
        "low": (seed & 255).astype(np.uint8),
        "power": powers.cpu().numpy().astype(np.uint8),
        "coefficients": (coefficients.cpu().numpy() + COEFFICIENT + 1).astype(np.uint8),
    }
    return Encoded("seedlm", (rows, columns), parts, {"width": width, "rank": rank, "length": length, "base": base})


def _rows(frames: Tensor) -> int:
    return max(1, (1 << (28 if frames.is_cuda else 24)) // frames[..., 0, :].numel())


def _best(piece: Tensor, bank: Tensor, frames: Tensor, upper: Tensor, base: int) -> tuple[Tensor, Tensor, Tensor]:
    """Seed number, exponent and coefficients for each block: first by projection, the short list then exactly."""
    within = (piece @ frames.permute(1, 0, 2).flatten(1)).view(len(piece), len(bank), -1)  # Q^T w
    listed = within.square().sum(-1).topk(min(SHORTLIST, len(bank)), dim=1).indices
    projected = within.gather(1, listed[..., None].expand(-1, -1, within.shape[-1]))
    t = torch.linalg.solve_triangular(upper[listed], projected[..., None], upper=True)[..., 0]
    power = torch.ceil(torch.log2(t.abs().amax(-1).clamp_min(1e-30) / (COEFFICIENT + 0.5))) - base
    power = power.clamp(0, EXPONENTS - 1)
    rounded = torch.round(t / torch.exp2(power + base)[..., None]).clamp(-COEFFICIENT - 1, COEFFICIENT)
    decoded = _blocks(bank[listed], rounded, power, base)
    best = (decoded - piece[:, None]).square().sum(-1).argmin(1, keepdim=True)
    chosen = rounded.gather(1, best[..., None].expand(-1, -1, rounded.shape[-1]))[:, 0]
    return listed.gather(1, best)[:, 0], power.gather(1, best)[:, 0].long(), chosen.long()


def _blocks(basis: Tensor, coefficients: Tensor, power: Tensor, base: int) -> Tensor:
    """[..., width, rank] x [..., rank], added up in a fixed order."""
    scaled = coefficients * torch.exp2(power.float() + base)[..., None]
    total = basis[..., 0] * scaled[..., None, 0]
    for place in range(1, basis.shape[-1]):
        total = total + basis[..., place] * scaled[..., None, place]
    return total


def decode(encoded: Encoded) -> Tensor:
    rows, columns = encoded.shape
    settings, parts = encoded.settings, encoded.parts
    seed = (parts["high"].astype(np.int64) << 8) | parts["low"]
    bank = torch.from_numpy(bases(settings["width"], settings["rank"], settings["length"]))
    t = torch.from_numpy(parts["coefficients"].astype(np.float32)) - (COEFFICIENT + 1)
    power = torch.from_numpy(parts["power"].astype(np.int64))
    found = _blocks(bank[torch.from_numpy(seed)], t, power, settings["base"])
    return found.reshape(rows, -1)[:, :columns].contiguous()
