"""Merges without a kernel, block by block, beside their definition on whole float64 tensors: the same bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from agent_forge.forge.merging import blocks, merge_tensors, parse_recipe
from agent_forge.forge.merging.blocks import near, thinned
from agent_forge.forge.merging.blocks.cuts import WIDE, bits_of, trims

COUNT = WIDE + 70_003  # two blocks, the second one not full


class Model(dict):
    config = {"model_type": "llama"}  # noqa: RUF012


def tensor(kind: str, made: torch.Generator) -> torch.Tensor:
    x = torch.randn(COUNT, generator=made) * 0.02
    if kind == "sparse":
        x *= torch.rand(COUNT, generator=made) < 0.4
    if kind == "wide":  # exponents far apart, subnormal numbers, zeros of both signs
        x *= 2.0 ** torch.randint(-60, 3, (COUNT,), generator=made)
        x[::11], x[1::13], x[2::17] = 0.0, -0.0, 3e-40
    if kind == "coarse":
        x = (x * 128).round() / 128
    return x


def family(kind: str) -> dict[str, Model]:
    """A base and two models beside it, in bfloat16; `far` ones have nothing in common."""
    made = torch.Generator().manual_seed(3)
    base = tensor("plain" if kind == "far" else kind, made)
    found = {"base": base}
    for name in "ab":
        change = tensor(kind, made) * (1.0 if kind in ("far", "wide", "coarse") else 0.2)
        found[name] = change if kind == "far" else base + change
    return {name: Model({"w": x.to(torch.bfloat16)}) for name, x in found.items()}


KINDS = ["plain", "sparse", "wide", "coarse", "far"]


def both_ways(recipe: dict, sources: dict[str, Model], monkeypatch) -> list[torch.Tensor]:
    monkeypatch.setenv("AGENT_FORGE_NATIVE", "0")
    made = merge_tensors(parse_recipe(recipe), sources=sources)["w"]
    with monkeypatch.context() as patched:
        patched.setattr(blocks, "can", lambda *_: False)
        defined = merge_tensors(parse_recipe(recipe), sources=sources)["w"]
    return [made, defined]


def same_bits(made: torch.Tensor, defined: torch.Tensor) -> bool:
    return torch.equal(made.view(torch.int16), defined.view(torch.int16))


def recipe_of(method: str, own: list[dict], more: dict) -> dict:
    models = [{"model": name, "parameters": values} for name, values in zip("ab", own, strict=True)]
    return {"merge_method": method, "base_model": "base", "models": models, "parameters": more, "dtype": "bfloat16"}


@pytest.mark.parametrize("kind", KINDS)
def test_ties_is_its_definition(kind, monkeypatch):
    sources = family(kind)
    for own, more in [
        ([{"weight": 0.5, "density": 0.5}] * 2, {}),
        ([{"weight": 4.0, "density": 0.03}, {"weight": 4.0, "density": 0.9}], {}),
        ([{"weight": 0.5, "density": 0.5}] * 2, {"lambda": 0.7}),
        ([{"weight": 0.4, "density": 0.5}, {"weight": 0.7, "density": 0.2}], {"normalize": False, "lambda": -1.0}),
        ([{"weight": 0.6, "density": 0.5}, {"weight": 0.3, "density": 0.5}], {}),
    ]:
        assert same_bits(*both_ways(recipe_of("ties", own, more), sources, monkeypatch)), (own, more)


@pytest.mark.parametrize("kind", KINDS)
def test_dare_is_its_definition(kind, monkeypatch):
    sources = family(kind)
    for own, more in [
        ([{"weight": 0.5, "density": 0.5}] * 2, {}),
        ([{"weight": 0.3, "density": 0.2}, {"weight": 0.3, "density": 0.7}], {"lambda": 0.8}),
        ([{"weight": 0.5, "density": 0.5}] * 2, {"rescale": False}),
        ([{"weight": 0.5, "density": 0.4}] * 2, {"rescale_by": "probability", "normalize": False}),
        ([{"weight": 0.6, "density": 0.5}, {"weight": 0.3, "density": 0.5}], {}),
    ]:
        assert same_bits(*both_ways(recipe_of("dare_ties", own, more), sources, monkeypatch)), (own, more)


@pytest.mark.parametrize("kind", KINDS)
def test_slerp_is_its_definition(kind, monkeypatch):
    sources = family(kind)
    for t in (0.0, 0.3, 0.5, 0.9):
        recipe = {"merge_method": "slerp", "base_model": "base", "models": [{"model": "base"}, {"model": "a"}]}
        recipe |= {"parameters": {"t": t}, "dtype": "bfloat16"}
        assert same_bits(*both_ways(recipe, sources, monkeypatch)), t


@pytest.mark.parametrize("wrong", [1e-7, 1e-5])
def test_sums_that_are_not_known_well_enough_are_taken_as_defined(wrong, monkeypatch):
    """With a bound that leaves doubts in float64, everything is done again."""
    sources = family("plain")
    monkeypatch.setattr(blocks, "SUMS", wrong)
    monkeypatch.setattr(thinned, "SUMS", wrong)
    seen = []
    for method, made in list(blocks._WAYS.items()):
        monkeypatch.setitem(
            blocks._WAYS,
            method,
            lambda output, tensors, sure, made=made: (seen.append(sure), made(output, tensors, sure))[1],
        )
    dare = recipe_of("dare_ties", [{"weight": 0.5, "density": 0.5}] * 2, {})
    slerp = {"merge_method": "slerp", "base_model": "base", "models": [{"model": "base"}, {"model": "a"}]}
    for recipe in (dare, slerp | {"parameters": {"t": 0.4}, "dtype": "bfloat16"}):
        assert same_bits(*both_ways(recipe, sources, monkeypatch))
    assert seen == [False, True, False, True]


def test_infinite_and_missing_numbers_take_the_slow_way(monkeypatch):
    sources = family("plain")
    for name, place, value in (("a", 5, math.inf), ("base", WIDE + 9, -math.inf), ("b", 77, math.nan)):
        sources[name]["w"][place] = value
    for method in ("ties", "dare_ties"):
        recipe = recipe_of(method, [{"weight": 0.5, "density": 0.5}] * 2, {})
        made, defined = both_ways(recipe, sources, monkeypatch)
        assert torch.equal(made.isnan(), defined.isnan())
        assert same_bits(made.nan_to_num(0.0), defined.nan_to_num(0.0)), method


@pytest.mark.parametrize("kind", KINDS)
def test_a_trim_keeps_what_a_stable_sort_does(kind):
    sources = family(kind)
    base, x = sources["base"]["w"], sources["a"]["w"]
    keys = (x.double() - base.double()).abs()
    order = torch.sort(keys, descending=True, stable=True).indices
    for density in (0.0001, 0.2, 0.5, 0.97):
        count = int(density * COUNT)
        found = trims([x], base, [count])
        assert found is not None
        wanted = torch.zeros(COUNT, dtype=torch.bool)
        wanted[order[:count]] = True
        mask = found[0].among(x, base)
        stays = torch.from_numpy(np.concatenate([mask(0, WIDE).copy(), mask(WIDE, COUNT)]))
        assert torch.equal(stays & (keys > 0), wanted & (keys > 0)), density
        at = torch.arange(COUNT)
        by_cut = (keys > found[0].low) | ((keys == found[0].low) & (at <= found[0].last))
        assert torch.equal(by_cut & (keys > 0), wanted & (keys > 0)), density


def test_an_interval_marks_all_that_might_round_otherwise():
    made = torch.Generator().manual_seed(7)
    x = torch.randn(WIDE, generator=made).double()
    out = torch.empty(WIDE, dtype=torch.bfloat16)
    error = 1e-5
    marks = near.Interval().round(x.float(), error, out)
    for moved in (-0.99 * error, 0.0, 0.99 * error):
        other = (x + moved).float().to(torch.bfloat16)
        assert not ((bits_of(other) != bits_of(out)) & ~marks).any()
    assert 0 < marks.mean() < 0.05


def test_sums_in_any_order_are_within_their_bound():
    made = torch.Generator().manual_seed(9)
    x, y = (torch.randn(COUNT, generator=made).to(torch.bfloat16) for _ in range(2))
    found = near.products(x, y)
    exact = math.fsum((x.double() * y.double()).tolist())
    assert abs(found[0][1] - exact) <= near.SUMS * math.fsum((x.double() * y.double()).abs().tolist())
    mask = torch.rand(COUNT, generator=made).numpy() < 0.3
    ((before, after),) = near.norms([x], y, [lambda start, end: mask[start:end]])
    keys = (x.double() - y.double()).abs()
    assert before == pytest.approx(math.fsum(keys.tolist()), rel=near.SUMS)
    assert after == pytest.approx(math.fsum(keys[torch.from_numpy(mask)].tolist()), rel=near.SUMS)
