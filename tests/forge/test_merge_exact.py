"""Computed in float64 and rounded once: no element differs from a plain reference, in any type, kernel or torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_merge_models import family, read_model

from agent_forge.forge.merging import merge_tensors, parse_recipe
from agent_forge.forge.merging.exact import rounded, tree_sum
from agent_forge.forge.merging.methods.sparsify import bernoulli, keep_probabilities, largest
from agent_forge.forge.merging.rng import key_of

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
DENSITY = {"a": 0.5, "b": 0.3, "c": 0.45}
WEIGHT = {"a": 0.5, "b": 0.3, "c": 0.4}


def nearest(x: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Rounding by looking: of a number's two neighbours in the type the nearer; of two equally near, the even."""
    wide = torch.from_numpy(x)
    first = wide.to(dtype)
    result = first.clone()
    bits = {torch.float32: torch.int32}.get(dtype, torch.int16)
    best = (first.double() - wide).abs()
    for step in (-1, 1):
        other = (first.view(bits) + step).view(dtype)
        off = (other.double() - wide).abs()
        better = (off < best) | ((off == best) & (other.view(bits) & 1 == 0) & (result.view(bits) & 1 == 1))
        better &= (other.sign() == first.sign()) | (first == 0)
        result, best = torch.where(better, other, result), torch.where(better, off, best)
    return result


def trim(vector: np.ndarray, density: float) -> np.ndarray:
    flat = vector.reshape(-1)
    order = np.argsort(-np.abs(flat), kind="stable")[: max(1, int(density * flat.size))]
    sparse = np.zeros_like(flat)
    sparse[order] = flat[order]
    return sparse.reshape(vector.shape)


def ties(base: np.ndarray, vectors: list[np.ndarray], weights: list[float], normalize: bool = True) -> np.ndarray:
    weighted = [vector * weight for vector, weight in zip(vectors, weights, strict=True)]
    sign = np.where(sum(weighted) >= 0, 1.0, -1.0)
    mixed, below = np.zeros_like(base), np.zeros_like(base)
    for part, weight in zip(weighted, weights, strict=True):
        agrees = np.sign(part) == sign
        mixed[agrees] += part[agrees]
        below[agrees] += weight
    return base + (mixed / np.where(below == 0, 1.0, below) if normalize else mixed)


def slerp(a: np.ndarray, b: np.ndarray, t: float) -> np.ndarray:
    angle = math.acos(float((a * b).sum()) / math.sqrt(float((a * a).sum())) / math.sqrt(float((b * b).sum())))
    return math.sin((1 - t) * angle) / math.sin(angle) * a + math.sin(t * angle) / math.sin(angle) * b


def stock(base: np.ndarray, others: list[np.ndarray]) -> np.ndarray:
    v = [other - base for other in others]
    cosines = [
        (v[i] * v[j]).sum() / math.sqrt((v[i] ** 2).sum() * (v[j] ** 2).sum()) for i in range(3) for j in range(i)
    ]
    cosine = sum(cosines) / 3
    t = 3 * cosine / (1 + 2 * cosine)
    return t * sum(others) / 3 + (1 - t) * base


def reference(method: str, x: dict[str, np.ndarray]) -> np.ndarray:
    vectors = {name: x[name] - x["base"] for name in "abc"}
    if method == "linear":
        return sum(x[name] * WEIGHT[name] for name in "abc") / (0.5 + 0.3 + 0.4)
    if method == "slerp":
        return slerp(x["a"], x["b"], 0.3)
    if method == "model_stock":
        return stock(x["base"], [x[name] for name in "abc"])
    if method == "task_arithmetic":
        return x["base"] + sum(vectors[name] * WEIGHT[name] for name in "abc")
    return ties(x["base"], [trim(vectors[name], DENSITY[name]) for name in "abc"], list(WEIGHT.values()))


def recipe_for(method: str, folders: dict[str, str], dtype: str):
    names = "ab" if method == "slerp" else "abc"
    models = [{"model": folders[n], "parameters": {"weight": WEIGHT[n], "density": DENSITY[n]}} for n in names]
    base = {} if method == "linear" else {"base_model": folders["a" if method == "slerp" else "base"]}
    return parse_recipe({"merge_method": method, "models": models, "dtype": dtype, "parameters": {"t": 0.3}, **base})


@pytest.mark.parametrize("kernel", ["1", "0"], ids=["C", "torch"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_not_one_element_differs_from_a_float64_reference(dtype, kernel, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_FORGE_NATIVE", kernel)
    folders = family(tmp_path, DTYPES[dtype], vocabulary=200)
    stored = {name: read_model(tmp_path / name) for name in folders}
    for method in ("linear", "task_arithmetic", "ties", "slerp", "model_stock"):
        merged = merge_tensors(recipe_for(method, folders, dtype))
        for tensor, result in merged.items():
            x = {name: stored[name][tensor].double().numpy() for name in folders}
            expected = nearest(reference(method, x), DTYPES[dtype])
            assert int((result != expected).sum()) == 0, (method, tensor)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=40), st.sampled_from(["BF16", "F16", "F32"]))
def test_rounding_goes_to_the_nearest(numbers, dtype):
    kinds = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
    x = torch.tensor(numbers, dtype=torch.float64)
    result = rounded(x, dtype)
    inside = x.abs() < torch.finfo(kinds[dtype]).max  # beyond, nearest() does not know infinity
    assert torch.equal(result[inside], nearest(x.numpy(), kinds[dtype])[inside])


def test_rounding_twice_would_differ():
    just_above_the_middle = torch.tensor([1 + 2.0**-8 + 2.0**-40], dtype=torch.float64)
    assert just_above_the_middle.to(torch.bfloat16).item() == 1.0
    assert rounded(just_above_the_middle, "BF16").item() == 1 + 2.0**-7


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 5000), st.integers(0, 2**31))
def test_the_sum_by_halving_is_a_sum(count, seed):
    x = torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert tree_sum(x) == pytest.approx(math.fsum(x.tolist()), abs=1e-11)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=60), st.data())
def test_the_largest_are_exactly_as_many_and_ties_go_to_the_first(values, data):
    count = data.draw(st.integers(0, len(values)))
    keys = torch.tensor(values, dtype=torch.float64).abs()
    order = torch.sort(keys, descending=True, stable=True).indices[:count]
    assert sorted(largest(keys, count).nonzero()[:, 0].tolist()) == sorted(order.tolist())


def test_a_bernoulli_mask_keeps_its_share_and_models_are_independent():
    n = 200_000
    masks = [bernoulli(torch.zeros(n), 0.3, key_of(0, "x", place)) for place in range(2)]
    for mask in masks:
        assert abs(mask.double().mean().item() - 0.3) < 4 * (0.3 * 0.7 / n) ** 0.5
    both = (masks[0] & masks[1]).double().mean().item()
    assert abs(both - 0.09) < 4 * (0.09 * 0.91 / n) ** 0.5
    neighbours = (masks[0][1:] & masks[0][:-1]).double().mean().item()
    assert abs(neighbours - 0.09) < 5 * (0.09 * 0.91 / n) ** 0.5


def test_dellas_probabilities_rise_with_the_rank_in_a_row():
    vector = torch.tensor([[0.3, -0.1, 0.2], [5.0, 4.0, -6.0]], dtype=torch.float64)
    expected = torch.tensor([[0.7, 0.3, 0.5], [0.5, 0.3, 0.7]], dtype=torch.float64)
    torch.testing.assert_close(keep_probabilities(vector, 0.5, 0.2), expected)
