"""Closed forms: what each method must give where the answer is known."""

from __future__ import annotations

import os

import pytest
import torch
from tests_merge_models import llama_tensors, moved

from agent_forge.errors import DataError
from agent_forge.forge.merging import merge_tensors, parse_recipe
from agent_forge.forge.merging.coefficients import multislerp_coefficients, stock_coefficients
from agent_forge.forge.merging.settings import METHODS


class Model(dict):
    """Tensors with a config, as the evolution holds them."""

    config = {"model_type": "llama", "num_hidden_layers": 2, "vocab_size": 30}  # noqa: RUF012


BASE = llama_tensors()
EXPERTS = {name: moved(BASE, seed) for seed, name in enumerate("abc", 1)}
WITH_BASE = [name for name, method in METHODS.items() if method.base != "ignored" and name != "slerp"]
TASK = [name for name, method in METHODS.items() if "rescale" in method.parameters]


def merged(method, models=None, base=True, own=None, dtype=None, **parameters):
    """{name: tensors} merged in memory, on both the kernel and torch, which must agree bit for bit."""
    models = EXPERTS if models is None else models
    recipe = {
        "merge_method": method,
        "models": [{"model": name, "parameters": own or {"weight": 1.0}} for name in models],
    }
    recipe |= {"base_model": "base"} if base else {}
    recipe |= {"parameters": parameters, **({"dtype": dtype} if dtype else {})}
    sources = {"base": Model(BASE), **{name: Model(tensors) for name, tensors in models.items()}}
    before = os.environ.get("AGENT_FORGE_NATIVE")
    try:
        results = []
        for kernel in ("1", "0"):
            os.environ["AGENT_FORGE_NATIVE"] = kernel
            results.append(merge_tensors(parse_recipe(recipe), sources=sources))
    finally:
        os.environ.pop("AGENT_FORGE_NATIVE")
        if before is not None:
            os.environ["AGENT_FORGE_NATIVE"] = before
    for name, x in results[0].items():
        assert torch.equal(x, results[1][name]), f"{name}: kernel and torch differ"
    return results[0]


def close(result, expected, atol=1e-7):
    for name, x in expected.items():
        torch.testing.assert_close(result[name], x, rtol=0, atol=atol)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("passthrough", "dfs", "slerp")])
def test_equal_models_merge_to_themselves(method):
    count = 2 if method == "nuslerp" else 3
    same = dict.fromkeys("abc"[:count], EXPERTS["a"])
    needed = {"lambda": 1.0, "normalize": True}
    base = METHODS[method].base == "required"
    close(merged(method, same, base=base, **needed), EXPERTS["a"])


@pytest.mark.parametrize("method", TASK)
def test_one_model_with_density_one_is_the_model(method):
    close(merged(method, {"a": EXPERTS["a"]}, own={"weight": 1.0, "density": 1.0}), EXPERTS["a"])


@pytest.mark.parametrize("method", TASK)
def test_density_zero_leaves_the_base(method):
    result = merged(method, own={"weight": 1.0, "density": 0.0})
    expected = BASE if METHODS[method].sparsify not in (None, "magnitude") else None
    if method == "ties":
        expected = BASE
    if expected is not None:
        close(result, expected)
    else:
        assert method == "task_arithmetic"  # it does not thin out at all


@pytest.mark.parametrize(("t", "end"), [(0.0, "a"), (1.0, "b")])
def test_slerp_ends_at_its_ends(t, end):
    recipe = {
        "merge_method": "slerp",
        "base_model": "a",
        "models": [{"model": "a"}, {"model": "b"}],
        "parameters": {"t": t},
    }
    result = merge_tensors(parse_recipe(recipe), sources={name: Model(EXPERTS[name]) for name in "ab"})
    for name, x in EXPERTS[end].items():
        assert torch.equal(result[name], x)


def test_slerp_of_orthogonal_unit_vectors_keeps_the_length():
    a, b = dict(BASE), dict(BASE)
    a["model.norm.weight"], b["model.norm.weight"] = torch.eye(16)[0], torch.eye(16)[1]
    recipe = {
        "merge_method": "slerp",
        "base_model": "a",
        "models": [{"model": "a"}, {"model": "b"}],
        "parameters": {"t": 0.5},
    }
    result = merge_tensors(parse_recipe(recipe), sources={"a": Model(a), "b": Model(b)})["model.norm.weight"]
    torch.testing.assert_close(result[:2], torch.full((2,), 0.5**0.5))


def test_ties_by_hand():
    """Trim to one half, elect, mean of those that agree: worked out on paper."""
    base = {**BASE, "model.norm.weight": torch.zeros(4)}
    one = {**BASE, "model.norm.weight": torch.tensor([4.0, -3.0, 1.0, 0.5])}
    two = {**BASE, "model.norm.weight": torch.tensor([-1.0, 5.0, 2.0, -0.5])}
    recipe = {
        "merge_method": "ties",
        "base_model": "base",
        "models": [{"model": name, "parameters": {"weight": 1.0, "density": 0.5}} for name in ("one", "two")],
    }
    sources = {"base": Model(base), "one": Model(one), "two": Model(two)}
    result = merge_tensors(parse_recipe(recipe), sources=sources)["model.norm.weight"]
    assert result.tolist() == [4.0, 5.0, 2.0, 0.0]


def test_task_arithmetic_adds_and_takes_away():
    result = merged("task_arithmetic", own={"weight": 1.0}, **{"lambda": 0.5})
    close(result, {name: x + 0.5 * sum(EXPERTS[e][name] - x for e in "abc") for name, x in BASE.items()}, atol=1e-6)
    gone = merged("task_arithmetic", {"a": EXPERTS["a"]}, own={"weight": -1.0})
    close(gone, {name: 2 * x - EXPERTS["a"][name] for name, x in BASE.items()}, atol=1e-6)


def test_dares_expectation_is_the_task_vector():
    """Dividing by the probability is unbiased: the mean over seeds goes to the whole vector."""
    tensor = "model.embed_tokens.weight"
    vector = EXPERTS["a"][tensor] - BASE[tensor]
    draws = torch.stack(
        [
            merged(
                "dare_linear",
                {"a": EXPERTS["a"]},
                own={"weight": 1.0, "density": 0.5},
                seed=s,
                rescale_by="probability",
            )[tensor]
            - BASE[tensor]
            for s in range(24)
        ]
    )
    values = torch.unique((draws / vector).round(decimals=3).abs())
    assert values.tolist() == [0.0, 2.0]  # dropped, or doubled
    off = (draws.mean(0) - vector) / vector.abs()
    assert abs(off.mean().item()) < 4 * (1 / (24 * vector.numel())) ** 0.5


def test_mergekits_rescale_keeps_the_norm_and_the_papers_divides_each():
    tensor = "lm_head.weight"
    vector = EXPERTS["a"][tensor].double() - BASE[tensor].double()
    one = {"a": EXPERTS["a"]}
    for method in ("dare_linear", "della_linear"):
        sparse = (
            merged(method, one, own={"weight": 1.0, "density": 0.4}, dtype="float64")[tensor] - BASE[tensor].double()
        )
        assert sparse.abs().sum().item() == pytest.approx(vector.abs().sum().item(), rel=1e-9)
    own = {"weight": 1.0, "density": 0.5, "epsilon": 0.3}
    paper = (
        merged("della_linear", one, own=own, rescale_by="probability", dtype="float64")[tensor] - BASE[tensor].double()
    )
    stays = paper != 0
    probability = vector[stays] / paper[stays]
    assert probability.min() >= 0.2 - 1e-9
    assert probability.max() <= 0.8 + 1e-9
    assert probability.unique().numel() > 10


def test_trimming_over_the_model_takes_the_largest_of_all_tensors():
    """With the task vector of one tensor ten times larger, most of what stays is in that tensor."""
    big = dict(EXPERTS["a"])
    tensor = "model.layers.0.mlp.up_proj.weight"
    big[tensor] = BASE[tensor] + 10 * (EXPERTS["a"][tensor] - BASE[tensor])
    own = {"weight": 1.0, "density": 0.1}
    result = merged("ties", {"a": big}, own=own, trim="model")
    stays = {name: int((result[name] != BASE[name]).sum()) for name in BASE}
    whole = torch.cat([(big[name] - BASE[name]).double().abs().reshape(-1) for name in BASE])
    assert sum(stays.values()) == int(0.1 * whole.numel())
    least = torch.sort(whole, descending=True).values[sum(stays.values()) - 1]
    for name in BASE:
        assert stays[name] == int(((big[name].double() - BASE[name].double()).abs() >= least).sum())
    apart = merged("ties", {"a": big}, own=own)
    assert int((apart[tensor] != BASE[tensor]).sum()) == max(1, int(0.1 * BASE[tensor].numel()))


def test_breadcrumbs_drops_the_largest_too():
    one = {"a": EXPERTS["a"]}
    result = merged("breadcrumbs", one, own={"weight": 1.0, "density": 0.5, "gamma": 0.25})
    vector = (EXPERTS["a"]["model.norm.weight"] - BASE["model.norm.weight"]).abs()
    order = torch.sort(vector).indices.tolist()
    stays = [i for i in range(16) if result["model.norm.weight"][i] != BASE["model.norm.weight"][i]]
    assert sorted(stays) == sorted(order[4:12])


def test_sce_weighs_by_the_squares():
    """Two vectors of the same sign everywhere: the mean, weighted by their mean squares."""
    vector = torch.rand(16, generator=torch.Generator().manual_seed(1)) + 0.5
    tensor = "model.norm.weight"
    models = {name: {**BASE, tensor: BASE[tensor] + k * vector} for name, k in (("a", 1.0), ("b", 2.0))}
    result = merged("sce", models)
    torch.testing.assert_close(result[tensor], BASE[tensor] + (1 * 1 + 4 * 2) / 5 * vector, rtol=0, atol=1e-5)


def test_model_stock_of_orthogonal_vectors_is_the_base():
    assert stock_coefficients([[1.0, 0.0], [0.0, 1.0]]) == [0.0, 0.0, 1.0]
    assert stock_coefficients([[1.0, 1.0], [1.0, 1.0]]) == [0.5, 0.5, 0.0]
    assert stock_coefficients([[1.0, -1.0], [-1.0, 1.0]]) == [0.0, 0.0, 1.0]  # no estimate


def test_multislerp_refuses_what_has_no_direction():
    third = [[1.0, -0.5, -0.5], [-0.5, 1.0, -0.5], [-0.5, -0.5, 1.0]]
    with pytest.raises(DataError, match="zero"):
        multislerp_coefficients(third, [1.0, 1.0, 1.0])
    assert multislerp_coefficients([[1.0, -1.0], [-1.0, 1.0]], [1.0, 1.0]) == [0.5, 0.5]


def test_multislerp_keeps_the_mean_length():
    result = merged("multislerp", base=False)
    for name, x in result.items():
        expected = sum(EXPERTS[e][name].double().norm() for e in "abc") / 3
        assert x.double().norm().item() == pytest.approx(expected.item(), rel=1e-6)
