"""The C kernel beside torch on tensors large enough for its sampling, histograms and long rows: the same bits."""

from __future__ import annotations

import pytest
import torch

from agent_forge.forge.merging import merge_tensors, parse_recipe
from agent_forge.forge.merging.binding import library
from agent_forge.forge.merging.exact import rounded
from agent_forge.forge.merging.methods.task_vectors import add_task_vectors

SHAPES = {"wide.weight": (24, 3001), "flat.weight": (70_001,), "odd.weight": (3, 7, 11), "one.weight": (1,)}
KINDS = {
    "normal": lambda generator, shape: torch.randn(shape, generator=generator) * 0.01,
    "sparse": lambda generator, shape: (
        torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.3)
    ),
    "equal": lambda generator, shape: torch.full(shape, 0.25),
    "heavy tail": lambda generator, shape: torch.randn(shape, generator=generator) ** 9 * 1e-3,
}
METHODS = ("ties", "breadcrumbs_ties", "dare_ties", "dare_linear", "della", "sce", "model_stock", "multislerp")


class Model(dict):
    config = {"model_type": "llama"}  # noqa: RUF012


def parents(kind: str, dtype: torch.dtype) -> dict[str, Model]:
    generator = torch.Generator().manual_seed(1)
    base = Model({name: (torch.randn(shape, generator=generator) * 0.05).to(dtype) for name, shape in SHAPES.items()})
    models = {"base": base}
    for name in "ab":
        models[name] = Model({key: (x.float() + KINDS[kind](generator, x.shape)).to(dtype) for key, x in base.items()})
    return models


@pytest.mark.skipif(library() is None, reason="there is no C compiler")
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *((kind, torch.bfloat16) for kind in KINDS),
        *(("normal", torch.float32), ("heavy tail", torch.float32)),
        *(("sparse", torch.float16), ("equal", torch.float16)),
        *(("normal", torch.float64), ("equal", torch.float64)),
    ],
    ids=str,
)
def test_kernel_and_torch_agree_bit_for_bit(kind, dtype, monkeypatch):
    sources = parents(kind, dtype)
    own = {"weight": 0.6, "density": 0.4, "gamma": 0.1, "epsilon": 0.2}
    models = [{"model": name, "parameters": own} for name in "ab"]
    for method in METHODS:
        recipe = parse_recipe(
            {"merge_method": method, "base_model": "base", "models": models, "parameters": {"select_topk": 0.3}}
        )
        results = []
        for kernel in ("1", "0"):
            monkeypatch.setenv("AGENT_FORGE_NATIVE", kernel)
            results.append(merge_tensors(recipe, sources=sources))
        for name, x in results[0].items():
            assert torch.equal(x, results[1][name]), (method, name)


@pytest.mark.skipif(library() is None, reason="there is no C compiler")
def test_trimming_keeps_the_exact_number_whatever_the_ties():
    for kind in KINDS:
        sources = parents(kind, torch.bfloat16)
        for density in (0.001, 0.2, 0.5, 0.999):
            models = [{"model": "a", "parameters": {"weight": 1.0, "density": density}}]
            recipe = {"merge_method": "ties", "base_model": "base", "models": models, "dtype": "float64"}
            merged = merge_tensors(parse_recipe(recipe), sources=sources)["flat.weight"]
            vector = (sources["a"]["flat.weight"].double() - sources["base"]["flat.weight"].double()).abs()
            order = torch.sort(vector, descending=True, stable=True).indices[: int(density * vector.numel())]
            mask = torch.zeros_like(vector, dtype=torch.bool)
            mask[order] = True
            assert torch.equal(merged != sources["base"]["flat.weight"].double(), mask & (vector > 0)), (kind, density)


def bits_of(x: torch.Tensor) -> torch.Tensor:
    """As integers, so that zeros have a sign; every NaN alike."""
    x = torch.where(x.isnan(), torch.full_like(x, float("nan")), x)
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def on_both(recipe: dict, sources: dict, monkeypatch) -> list[dict[str, torch.Tensor]]:
    results = []
    for kernel in ("1", "0"):
        monkeypatch.setenv("AGENT_FORGE_NATIVE", kernel)
        results.append(merge_tensors(parse_recipe(recipe), sources=sources))
    return results


def odd_parents(dtype: torch.dtype) -> dict[str, Model]:
    """Subnormal, huge, infinite and missing numbers, zeros of both signs, exponents far apart, many equal."""
    generator = torch.Generator().manual_seed(5)
    odd = [0.0, -0.0, 1e-40, -3e-39, 1e-30, 3e38, -3e38, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 2.0**-20]
    models = {}
    for name in ("base", "a", "b"):
        x = torch.randn(70_003, generator=generator) * 2.0 ** torch.randint(-30, 3, (70_003,), generator=generator)
        x[::7] = 0.125
        x[torch.randint(0, 70_003, (40,), generator=generator)] = torch.tensor(odd * 4)[:40]
        plain = x.nan_to_num(0.0, 1.0, -1.0).clamp(-9, 9)
        tensors = {"odd.weight": x, "plain.weight": plain, "short.weight": x[:1].clone(), "none.weight": x[:0].clone()}
        tensors["rows.weight"] = plain[:69_993].reshape(-1, 303).clone()[:, :-1].contiguous()
        models[name] = Model({key: value.to(dtype) for key, value in tensors.items()})
    return models


@pytest.mark.skipif(library() is None, reason="there is no C compiler")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_odd_numbers_come_out_alike(dtype, monkeypatch):
    sources = odd_parents(dtype)
    for method, own, more in [
        ("linear", {"weight": 0.5}, {}),
        ("linear", {"weight": 0.3}, {}),
        ("task_arithmetic", {"weight": 0.5}, {}),
        ("ties", {"weight": 0.5, "density": 0.5}, {}),
        ("ties", {"weight": 0.3, "density": 0.2}, {}),
        ("ties", {"weight": 0.3, "density": 0.2}, {"trim": "model"}),
        ("breadcrumbs", {"weight": 0.5, "density": 0.5, "gamma": 0.01}, {}),
        ("sce", {}, {"select_topk": 0.3}),
        ("dare_ties", {"weight": 0.5, "density": 0.4}, {}),
        ("dare_ties", {"weight": 0.7, "density": 0.4}, {"rescale_by": "probability"}),
        ("della", {"weight": 0.5, "density": 0.5, "epsilon": 0.2}, {}),
    ]:
        models = [{"model": name, "parameters": own} for name in "ab"]
        recipe = {"merge_method": method, "models": models, "parameters": more}
        recipe |= {} if method == "linear" else {"base_model": "base"}
        kernel, torch_ = on_both(recipe, sources, monkeypatch)
        for name, x in kernel.items():
            if method == "della" and name == "odd.weight":
                continue  # how a row with NaN in it is ranked is not defined
            differ = int((bits_of(x) != bits_of(torch_[name])).sum())
            assert differ == 0, (method, own, name, differ)


@pytest.mark.skipif(library() is None, reason="there is no C compiler")
@pytest.mark.parametrize("weight", [0.25, 1.0, 2.0])
def test_float32_where_it_is_exact_gives_float64s_bits(weight, monkeypatch):
    """Weights that are powers of two take another way, in C and in torch; exponents far apart leave it."""
    settings = [{}, {"normalize": False}, {"lambda": 0.5}, {"lambda": -4.0}]
    for place, kind in enumerate(KINDS):
        sources = parents(kind, torch.bfloat16)
        for more in settings[place % 2 :: 2]:
            own = {"weight": weight, "density": 0.37}
            models = [{"model": name, "parameters": own} for name in "ab"]
            recipe = {"merge_method": "ties", "base_model": "base", "models": models, "parameters": more}
            kernel, torch_ = on_both(recipe, sources, monkeypatch)
            for name in ("wide.weight", "flat.weight"):
                assert torch.equal(bits_of(kernel[name]), bits_of(torch_[name])), (kind, more, name)
                x = {key: sources[key][name].double().reshape(-1) for key in ("base", "a", "b")}
                vectors = []
                for key in "ab":
                    vector = x[key] - x["base"]
                    order = torch.sort(vector.abs(), descending=True, stable=True).indices[: int(0.37 * vector.numel())]
                    vectors.append(torch.zeros_like(vector).index_copy_(0, order, vector[order]))
                merged = add_task_vectors(
                    x["base"], vectors, [weight] * 2, True, more.get("normalize", True), more.get("lambda", 1.0)
                )
                assert torch.equal(kernel[name].reshape(-1), rounded(merged, "BF16")), (kind, more, name)


def test_a_merge_without_the_kernel_says_so_once(monkeypatch, caplog):
    monkeypatch.setenv("AGENT_FORGE_NATIVE", "0")
    monkeypatch.setenv("CC", "no-such-compiler")  # the kernel is looked up once per environment
    recipe = parse_recipe({"merge_method": "passthrough", "models": [{"model": "a"}]})
    for _ in range(2):
        merge_tensors(recipe, sources=parents("normal", torch.float32))
    assert caplog.text.count("without the compiled kernel") == 1


def test_without_a_kernel_inputs_stay_as_they_are(monkeypatch):
    monkeypatch.setenv("AGENT_FORGE_NATIVE", "0")
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        sources = parents("normal", dtype)
        before = {name: {key: x.clone() for key, x in model.items()} for name, model in sources.items()}
        for method in ("linear", "slerp", "ties", "dare_ties"):
            models = [{"model": name, "parameters": {"weight": 0.5, "density": 0.4}} for name in "ab"]
            recipe = {"merge_method": method, "models": models, "parameters": {"t": 0.3}}
            recipe |= {} if method == "linear" else {"base_model": "a" if method == "slerp" else "base"}
            merge_tensors(parse_recipe(recipe), sources=sources)
        for name, model in before.items():
            assert all(torch.equal(sources[name][key], x) for key, x in model.items())
