"""The C kernel beside torch on tensors large enough for its sampling, histograms and long rows: the same bits."""

from __future__ import annotations

import pytest
import torch

from agent_forge.forge.merging import merge_tensors, parse_recipe
from agent_forge.forge.merging.binding import library

SHAPES = {"wide.weight": (24, 3001), "flat.weight": (70_001,), "odd.weight": (3, 7, 11), "one.weight": (1,)}
KINDS = {
    "normal": lambda made, shape: torch.randn(shape, generator=made) * 0.01,
    "sparse": lambda made, shape: torch.randn(shape, generator=made) * (torch.rand(shape, generator=made) < 0.3),
    "equal": lambda made, shape: torch.full(shape, 0.25),
    "heavy tail": lambda made, shape: torch.randn(shape, generator=made) ** 9 * 1e-3,
}
METHODS = ("ties", "breadcrumbs_ties", "dare_ties", "dare_linear", "della", "sce", "model_stock", "multislerp")


class Model(dict):
    config = {"model_type": "llama"}  # noqa: RUF012


def parents(kind: str, dtype: torch.dtype) -> dict[str, Model]:
    made = torch.Generator().manual_seed(1)
    base = Model({name: (torch.randn(shape, generator=made) * 0.05).to(dtype) for name, shape in SHAPES.items()})
    found = {"base": base}
    for name in "ab":
        found[name] = Model({key: (x.float() + KINDS[kind](made, x.shape)).to(dtype) for key, x in base.items()})
    return found


@pytest.mark.skipif(library() is None, reason="there is no C compiler")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("kind", KINDS)
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
            made = merge_tensors(parse_recipe(recipe), sources=sources)["flat.weight"]
            vector = (sources["a"]["flat.weight"].double() - sources["base"]["flat.weight"].double()).abs()
            order = torch.sort(vector, descending=True, stable=True).indices[: int(density * vector.numel())]
            wanted = torch.zeros_like(vector, dtype=torch.bool)
            wanted[order] = True
            assert torch.equal(made != sources["base"]["flat.weight"].double(), wanted & (vector > 0)), (kind, density)
