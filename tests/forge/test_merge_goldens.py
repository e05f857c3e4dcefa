"""Against mergekit 0.1.5: what it computed in float32 on small models (goldens/), tensor for tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tests_merge_models import write_model

from agent_forge.forge.merging import merge_tensors, parse_recipe
from agent_forge.forge.merging.coefficients import rescale_factor
from agent_forge.forge.merging.exact import tree_sum
from agent_forge.forge.merging.methods.sparsify import keep_probabilities
from agent_forge.forge.merging.methods.task_vectors import add_task_vectors, masked
from agent_forge.forge.merging.settings import METHODS

HERE = Path(__file__).parent / "goldens"
RECIPES = yaml.safe_load((HERE / "merge_recipes.yaml").read_text())
RANDOM = [name for name, recipe in RECIPES.items() if METHODS[recipe["merge_method"]].sparsify in ("random", "ranked")]


@pytest.fixture(scope="module")
def goldens():
    return load_file(str(HERE / "merge.safetensors"))


@pytest.fixture(scope="module")
def folders(goldens, tmp_path_factory):
    """The models that mergekit was given."""
    paths = {}
    for name in ("base", "a", "b", "c"):
        tensors = {key.partition("/")[2]: x for key, x in goldens.items() if key.startswith(f"{name}/")}
        paths[name] = str(write_model(tmp_path_factory.mktemp("golden") / name, tensors))
    return paths


def recipe_of(name, folders):
    text = yaml.safe_dump(RECIPES[name])
    for model, folder in folders.items():
        text = text.replace("{" + model + "}", folder)
    return parse_recipe(text)


def expected(goldens, name):
    start = f"{name}/"
    return {key[len(start) :]: x for key, x in goldens.items() if key.startswith(start) and "/mask/" not in key}


@pytest.mark.parametrize("kernel", ["1", "0"], ids=["C", "torch"])
@pytest.mark.parametrize("name", [name for name in RECIPES if name not in RANDOM])
def test_our_merge_is_mergekits(name, kernel, goldens, folders, monkeypatch):
    monkeypatch.setenv("AGENT_FORGE_NATIVE", kernel)
    ours, theirs = merge_tensors(recipe_of(name, folders)), expected(goldens, name)
    assert ours.keys() == theirs.keys()
    for tensor, x in theirs.items():
        torch.testing.assert_close(ours[tensor], x, rtol=0, atol=1e-6, msg=lambda text, t=tensor: f"{t}: {text}")


@pytest.mark.parametrize("name", RANDOM)
def test_given_mergekits_masks_we_get_its_merge(name, goldens, folders):
    """DARE and DELLA: the masks that mergekit drew, our arithmetic after them."""
    recipe = RECIPES[name]
    method, theirs = METHODS[recipe["merge_method"]], expected(goldens, name)
    models = [part["model"].strip("{}") for part in recipe["models"]]
    weights = [part["parameters"]["weight"] for part in recipe["models"]]
    normalize = recipe.get("parameters", {}).get("normalize", method.parameters["normalize"].default)
    for tensor, x in theirs.items():
        masks = sorted(
            (k for k in goldens if k.startswith(f"{name}/mask/{tensor}/")), key=lambda k: int(k.split("/")[-1])
        )
        base = goldens[f"base/{tensor}"].double()
        vectors = []
        for model, mask in zip(models, masks, strict=True):
            whole = goldens[f"{model}/{tensor}"].double() - base
            sparse = masked(whole, goldens[mask].reshape(whole.shape))
            vectors.append(sparse * rescale_factor(tree_sum(whole.abs()), tree_sum(sparse.abs())))
        ours = add_task_vectors(base, vectors, weights, method.elect, normalize)
        torch.testing.assert_close(ours.float(), x, rtol=0, atol=1e-6)


def test_the_share_that_mergekit_keeps_is_the_one_that_we_aim_at(goldens):
    """Over all tensors of the DELLA golden, the masks keep about the sum of our probabilities."""
    own = RECIPES["della"]["models"][0]["parameters"]
    count = expectation = variance = 0.0
    for key, mask in goldens.items():
        if key.startswith("della/mask/") and int(key.split("/")[-1]) % 2 == 0:
            tensor = key.split("/")[2]
            vector = goldens[f"a/{tensor}"].double() - goldens[f"base/{tensor}"].double()
            p = keep_probabilities(vector, own["density"], own["epsilon"])
            count, expectation, variance = (
                count + int(mask.sum()),
                expectation + float(p.sum()),
                variance + float((p * (1 - p)).sum()),
            )
    assert abs(count - expectation) < 4 * variance**0.5
