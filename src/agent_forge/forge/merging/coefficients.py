"""The scalars of the methods, from counts, weights and inner products: shared by torch and the C kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agent_forge.errors import DataError

Gram = Sequence[Sequence[float]]  # inner products <x_i, x_j>
PARALLEL = 0.9995  # above this cosine, mergekit interpolates linearly


def total(numbers: Sequence[float]) -> float:
    """The sum from first to last. (Python's `sum` compensates from 3.12 on, so it would differ by version.)"""
    result = 0.0
    for number in numbers:
        result += number
    return result


def top_count(elements: int, density: float) -> int:
    """How many of the largest elements stay (TIES): at least one."""
    return max(1, int(density * elements))


def band_ends(elements: int, density: float, gamma: float) -> tuple[int, int]:
    """Where the elements that stay begin and end, in ascending order of |x| (Breadcrumbs)."""
    count = int(density * elements)
    low = max(0, elements - count - int(gamma * elements))
    return low, low + count


def rescale_factor(before: float, after: float) -> float:
    """mergekit's rescaling: the factor that restores the L1 norm from before the sparsification."""
    return 1.0 if before < 1e-7 or after < 1e-7 else before / after


def sce_weights(squares: Sequence[float]) -> list[float]:
    """SCE's weight per model: its share of the mean squares."""
    whole = total(squares)
    if abs(whole) < 1e-6:
        return [1.0 / len(squares)] * len(squares)
    return [square / whole for square in squares]


def slerp_coefficients(products: Gram, t: float) -> list[float]:
    """Shoemake's coefficients of two vectors; linear where they are nearly parallel."""
    norms = [math.sqrt(products[i][i]) for i in (0, 1)]
    a, b = (norm if norm > 1e-8 else 1.0 for norm in norms)
    cosine = _cosine(products[0][1], a, b)
    return [1 - t, t] if abs(cosine) > PARALLEL else _on_circle(math.acos(cosine), t)


def nuslerp_coefficients(products: Gram, t: float) -> list[float]:
    """SLERP that turns linear only where the two vectors are parallel up to rounding."""
    a, b = (max(math.sqrt(products[i][i]), 1e-7) for i in (0, 1))
    cosine = _cosine(products[0][1], a, b)
    return [1 - t, t] if 1 - cosine * cosine <= 1e-16 else _on_circle(math.acos(cosine), t)


def _on_circle(angle: float, t: float) -> list[float]:
    return [math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)]


def _cosine(product: float, a: float, b: float) -> float:
    return max(-1.0, min(1.0, product / a / b))


def nuslerp_t(weights: Sequence[float]) -> float:
    """NuSLERP's t from two weights."""
    whole = weights[0] + weights[1]
    return 0.5 if abs(whole) < 1e-6 else weights[1] / whole


def multislerp_coefficients(
    products: Gram, weights: Sequence[float], normalize: bool = True, eps: float = 1e-8
) -> list[float]:
    """mergekit's Multi-SLERP, without the part that is zero.

    With u_i the unit vectors and m the unit vector of sum_i w_i u_i, mergekit adds to m the mean of the tangents
    u_i - <u_i, m> m and follows it on the sphere. That mean is sum_i w_i u_i less its own projection on m: zero.
    What remains is m cos(eps), scaled to the mean norm.
    """
    if normalize:
        whole = total(weights)
        weights = [weight / whole for weight in weights]
    norms = [math.sqrt(products[i][i]) for i in range(len(weights))]
    shares = [weight / (norm + eps) for weight, norm in zip(weights, norms, strict=True)]
    square = total([a * b * products[i][j] for i, a in enumerate(shares) for j, b in enumerate(shares)])
    length = math.sqrt(max(square, 0.0))
    if length < eps:
        if len(weights) == 2:
            return list(weights)
        raise DataError("multislerp: the weighted sum of the inputs is zero", fix="Change the weights")
    size = total([weight * norm for weight, norm in zip(weights, norms, strict=True)]) * math.cos(eps)
    return [part / length * size for part in shares]


def stock_coefficients(products: Gram) -> list[float]:
    """Model Stock's coefficients: of the models, then of the base.

    Where 1 + (N - 1) cos = 0 there is no estimate, and the base stays.
    """
    count = len(products)
    cosines = [
        max(-1.0, min(1.0, products[i][j] / max(math.sqrt(products[i][i]) * math.sqrt(products[j][j]), 1e-6)))
        for i in range(count)
        for j in range(i + 1, count)
    ]
    cosine = total(cosines) / len(cosines)
    below = 1 + (count - 1) * cosine
    t = 0.0 if abs(below) < 1e-6 else count * cosine / below
    return [t / count] * count + [1 - t]
