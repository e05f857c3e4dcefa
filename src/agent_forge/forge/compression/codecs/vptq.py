"""Vector quantisation with second-order weights and residual codebooks (VPTQ, 2409.17066).

Each row is divided by its scale and cut into vectors of `width` weights; a vector is the number of its nearest entry in
a codebook of `entries` that k-means fitted to the matrix, plus, for every further stage, of an entry for what is left.
Nearest is meant in the metric of the error that feedback cannot make good. Sized to the matrix: with 4 x 256 the
codebook is 2 kB; the 65,536 entries that large models use would be larger than a 512 x 512 matrix.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from agent_forge.forge.compression.container import Encoded
from agent_forge.forge.compression.feedback import Cost, order_of, rounded_with_feedback

SAMPLE = 1 << 16


def encode(
    weight: Tensor, cost: Cost, width: int = 4, entries: int = 256, stages: int = 1, turns: int = 20, seed: int = 0
) -> Encoded:
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight.detach().float(), (0, -columns % width))
    logs = (8 * padded.square().mean(1).sqrt().clamp_min(1e-12).log2()).round().clamp(-255, 0)  # eighths of an octave
    scale = _scale(-logs.cpu().numpy())
    source = padded / torch.from_numpy(scale).to(padded)[:, None]
    order = None if cost.hessian is None else order_of(_padded(cost.hessian.to(source.device), width), sort=False)
    metric = _metric(order.upper if order else None, source, width)
    books = _fitted(source, metric, width, entries, stages, turns, seed)
    books = [book.half().float() for book in books]
    codes = torch.zeros(stages, rows, source.shape[1] // width, dtype=torch.long, device=source.device)

    def quantise(piece: Tensor, at: int) -> Tensor:
        found = torch.zeros_like(piece)
        for stage, book in enumerate(books):
            codes[stage, :, at // width] = nearest = _nearest(piece - found, book, metric[at // width])
            found = found + book[nearest]
        return found

    if order is None:
        for at in range(0, source.shape[1], width):
            quantise(source[:, at : at + width], at)
    else:
        rounded_with_feedback(source, order.upper, quantise, width)
    kind = np.uint8 if entries <= 256 else np.uint16
    parts = {"scale": (-logs).to(torch.uint8).cpu().numpy()}
    for stage, book in enumerate(books):
        parts[f"book{stage}"] = book.half().cpu().numpy()
        parts[f"index{stage}"] = codes[stage].cpu().numpy().astype(kind)
    return Encoded("vptq", (rows, columns), parts, {"width": width, "stages": stages})


def _scale(eighths: np.ndarray) -> np.ndarray:
    """2^(-eighths / 8) from a table: the same on every machine."""
    table = np.array([2.0 ** (-k / 8) for k in range(256)], np.float32)
    return table[eighths.astype(np.int64)]


def _padded(hessian: Tensor, width: int) -> Tensor:
    missing = -len(hessian) % width
    return torch.nn.functional.pad(hessian, (0, missing, 0, missing))


def _metric(upper: Tensor | None, source: Tensor, width: int) -> Tensor:
    """[groups, width, width]: the error e of a vector costs |e M|^2."""
    groups = source.shape[1] // width
    eye = torch.eye(width, device=source.device)
    if upper is None:
        return eye.expand(groups, width, width)
    blocks = torch.stack([upper[at : at + width, at : at + width] for at in range(0, groups * width, width)])
    inverse = torch.linalg.inv(blocks).float()
    return inverse / inverse.square().mean().sqrt().clamp_min(1e-12)


def _nearest(vectors: Tensor, book: Tensor, metric: Tensor, rows: int = 1 << 14) -> Tensor:
    seen = book @ metric
    half = seen.square().sum(1) / 2
    return torch.cat([(half - part @ metric @ seen.T).argmin(1) for part in vectors.split(rows)])


def _fitted(
    source: Tensor, metric: Tensor, width: int, entries: int, stages: int, turns: int, seed: int
) -> list[Tensor]:
    """A codebook for each stage by weighted k-means, on a sample of the vectors; the weight is that of the group."""
    vectors = source.reshape(-1, width)
    weights = metric.square().sum((1, 2)).expand(len(source), -1).reshape(-1)
    generator = torch.Generator().manual_seed(seed)
    picked = torch.randperm(len(vectors), generator=generator)[:SAMPLE].to(source.device)
    left, weights = vectors[picked], weights[picked]
    entries = min(entries, len(left))
    eye = torch.eye(width, device=source.device)
    books = []
    for _ in range(stages):
        book = left[torch.randperm(len(left), generator=generator)[:entries].to(left.device)].clone()
        for _ in range(turns):
            book = _moved(left, weights, book, _nearest(left, book, eye), generator)
        books.append(book)
        left = left - book[_nearest(left, book, eye)]
    return books


def _moved(vectors: Tensor, weights: Tensor, book: Tensor, owner: Tensor, generator: torch.Generator) -> Tensor:
    """Entries at the weighted mean of their vectors; an entry without vectors moves to one drawn at random."""
    total = torch.zeros(len(book), device=book.device).index_add_(0, owner, weights)
    sums = torch.zeros_like(book).index_add_(0, owner, vectors * weights[:, None])
    drawn = vectors[torch.randint(len(vectors), (len(book),), generator=generator).to(book.device)]
    return torch.where(total[:, None] > 0, sums / total[:, None].clamp_min(1e-30), drawn)


def decode(encoded: Encoded) -> Tensor:
    rows, columns = encoded.shape
    parts, width = encoded.parts, encoded.settings["width"]
    found = np.zeros((rows, -(-columns // width), width), np.float32)
    for stage in range(encoded.settings["stages"]):
        found += parts[f"book{stage}"].astype(np.float32)[parts[f"index{stage}"]]
    scaled = found.reshape(rows, -1) * _scale(parts["scale"])[:, None]
    return torch.from_numpy(np.ascontiguousarray(scaled[:, :columns]))
