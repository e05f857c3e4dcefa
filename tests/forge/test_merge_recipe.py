"""mergekit's YAML: what is accepted, what it means, and what is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_forge.errors import ConfigError
from agent_forge.forge.merging import METHODS, parse_recipe, to_yaml
from agent_forge.forge.merging.settings import evaluate

# From mergekit's README and examples, as they stand there (the names of models shortened).
EXAMPLES = {
    "gradient slerp": """
slices:
  - sources:
      - model: psmathur/orca_mini_v3_13b
        layer_range: [0, 40]
      - model: garage-bAInd/Platypus2-13B
        layer_range: [0, 40]
merge_method: slerp
base_model: psmathur/orca_mini_v3_13b
parameters:
  t:
    - filter: self_attn
      value: [0, 0.5, 0.3, 0.7, 1]
    - filter: mlp
      value: [1, 0.5, 0.7, 0.3, 0]
    - value: 0.5 # fallback for rest of tensors
dtype: float16
""",
    "ties": """
models:
  - model: psmathur/orca_mini_v3_13b
    parameters:
      density: [1, 0.7, 0.1] # density gradient
      weight: 1.0
  - model: garage-bAInd/Platypus2-13B
    parameters:
      density: 0.5
      weight: [0, 0.3, 0.7, 1] # weight gradient
  - model: WizardLM/WizardMath-13B-V1.0
    parameters:
      density: 0.33
      weight:
        - filter: mlp
          value: 0.5
        - value: 0
merge_method: ties
base_model: TheBloke/Llama-2-13B-fp16
parameters:
  normalize: true
  int8_mask: true
dtype: float16
""",
    "frankenmerge": """
slices:
  - sources:
    - model: Sao10K/Euryale-1.3-L2-70B
      layer_range: [0, 16]
  - sources:
    - model: Xwin-LM/Xwin-LM-70B-V0.1
      layer_range: [8, 24]
merge_method: passthrough
dtype: float16
""",
    "tokenizer": """
merge_method: linear
models:
  - {model: a, parameters: {weight: 1e-3}}
  - {model: b, parameters: {weight: 0.5}}
tokenizer:
  source: union
  pad_to_multiple_of: 8
  tokens:
    <|im_start|>: {source: a}
    <|end|>: {source: {kind: model_token, model: b, token: </s>}, force: true}
    <pad>: {source: {kind: zero}}
chat_template: auto
out_dtype: bfloat16
""",
    "modules": """
merge_method: linear
modules:
  default:
    models: [{model: a, parameters: {weight: 1}}]
tokenizer_source: base
""",
    "dfs": """
merge_method: dfs
base_model: a
path:
  - {model: a, layer: 0}
  - {model: b, layer: 0, scale: 0.9}
""",
    "stages": """
name: first
merge_method: linear
models: [{model: a, parameters: {weight: 1}}, {model: b, parameters: {weight: 1}}]
---
merge_method: task_arithmetic
base_model: c
models: [{model: first, parameters: {weight: 1}}]
""",
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_recipe_survives_writing_and_reading(name):
    recipe = parse_recipe(EXAMPLES[name], where=name)
    assert parse_recipe(to_yaml(recipe)) == recipe


def test_stages_and_models_are_told_apart():
    recipe = parse_recipe(EXAMPLES["stages"])
    assert recipe.models_on_disk() == ["a", "b", "c"]
    assert recipe.references() == ["c", "first"]


LINEAR = {"merge_method": "linear", "models": [{"model": "a", "parameters": {"weight": 1}}]}
WRONG = {
    "method": ({**LINEAR, "merge_method": "tiess"}, "Did you mean 'ties'"),
    "no method": ({"models": []}, "merge_method is missing"),
    "key": ({**LINEAR, "base_modle": "x"}, "base_modle.*Did you mean 'base_model'"),
    "parameter": ({**LINEAR, "parameters": {"wieght": 1}}, "wieght.*Did you mean 'weight'"),
    "model key": ({**LINEAR, "models": [{"model": "a", "wheight": 1}]}, "wheight"),
    "both": ({**LINEAR, "slices": [{"sources": [{"model": "a", "layer_range": [0, 1]}]}]}, "exactly one"),
    "neither": ({"merge_method": "linear"}, "exactly one"),
    "dtype": ({**LINEAR, "dtype": "int8"}, "int8"),
    "not a number": ({**LINEAR, "parameters": {"weight": "heavy"}}, "heavy"),
    "infinite": ({**LINEAR, "parameters": {"weight": float("inf")}}, "inf"),
    "empty list": ({**LINEAR, "parameters": {"weight": []}}, "empty"),
    "condition": ({**LINEAR, "parameters": {"weight": {"filter": "mlp"}}}, "condition"),
    "nested condition": ({**LINEAR, "parameters": {"weight": {"value": {"value": 1}}}}, "must be a number or"),
    "word": ({**LINEAR, "parameters": {"trim": "all"}}, "tensor, model"),
    "bool": ({**LINEAR, "parameters": {"normalize": 3}}, "bool"),
    "model": ({**LINEAR, "models": [{"model": 7}]}, "a model must be the path of a folder"),
    "adapter": ({**LINEAR, "models": [{"model": "a+lora"}]}, "vectors apply"),
    "twice": ({**LINEAR, "models": LINEAR["models"] * 2}, "twice"),
    "list": ({**LINEAR, "models": "a"}, "must be a list"),
    "mapping": ({**LINEAR, "models": ["a"]}, "must be a mapping"),
    "text": ({**LINEAR, "chat_template": 3}, "must be text"),
    "two tokenizers": ({**LINEAR, "tokenizer_source": "base", "tokenizer": {}}, "not both"),
    "padding": ({**LINEAR, "tokenizer": {"pad_to_multiple_of": 0}}, "above 0"),
    "token": (
        {**LINEAR, "tokenizer": {"tokens": {"x": {"source": {"kind": "model_token", "model": "a"}}}}},
        "token_id",
    ),
    "modules": ({"merge_method": "linear", "modules": {"a": {}, "b": {}}}, "one module"),
    "no base": ({**LINEAR, "merge_method": "ties"}, "requires a base_model"),
    "slerp of one": ({**LINEAR, "merge_method": "slerp", "base_model": "a"}, "at least 2"),
    "slerp of three": (
        {"merge_method": "slerp", "base_model": "c", "models": [{"model": "a"}, {"model": "b"}]},
        "at most 2",
    ),
    "nuslerp of one": ({**LINEAR, "merge_method": "nuslerp"}, "2 models besides"),
    "stock of one": ({**LINEAR, "merge_method": "model_stock", "base_model": "b"}, "at least 3"),
    "dfs without path": ({**LINEAR, "merge_method": "dfs"}, "path"),
    "path without dfs": ({"merge_method": "linear", "path": [{"model": "a", "layer": 0}]}, "models or slices"),
    "negative layer": ({"merge_method": "dfs", "path": [{"model": "a", "layer": -1}]}, "layer must be a number"),
    "scale": ({"merge_method": "dfs", "path": [{"model": "a", "layer": 0, "scale": 0}]}, "scale must be a number"),
    "range": (
        {"merge_method": "passthrough", "slices": [{"sources": [{"model": "a", "layer_range": [3]}]}]},
        "two numbers",
    ),
    "empty range": (
        {"merge_method": "passthrough", "slices": [{"sources": [{"model": "a", "layer_range": [3, 3]}]}]},
        "contains no layer",
    ),
    "no sources": ({"merge_method": "passthrough", "slices": [{"sources": []}]}, "no sources"),
    "residual": (
        {"merge_method": "passthrough", "slices": [{"sources": [], "residual_weight": 0.5}]},
        "residual_weight",
    ),
    "nothing": ([], "is empty"),
    "no mapping": (["x"], "a recipe must be a mapping"),
    "unnamed stage": ([LINEAR, LINEAR], "must have a name"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name):
    given_, message = WRONG[name]
    with pytest.raises(ConfigError, match=message) as caught:
        parse_recipe(given_, where="my.yaml")
    assert str(caught.value).startswith("my.yaml")


@pytest.mark.parametrize("text", ["merge_method: [", "a: 1\na: 2", "- 1", "!!python/object:os.system {}", "\x00"])
def test_text_that_is_no_recipe(text):
    with pytest.raises(ConfigError):
        parse_recipe(text)


def test_slices_of_different_length_and_a_base_that_is_not_there():
    sources = [{"model": "a", "layer_range": [0, 2]}, {"model": "b", "layer_range": [0, 3]}]
    with pytest.raises(ConfigError, match="same number of layers"):
        parse_recipe({"merge_method": "slerp", "base_model": "a", "slices": [{"sources": sources}]})
    sources[1]["layer_range"] = [1, 3]
    with pytest.raises(ConfigError, match="not among the sources"):
        parse_recipe({"merge_method": "slerp", "base_model": "c", "slices": [{"sources": sources}]})


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=1, max_size=6), st.floats(0, 1))
def test_a_gradient_is_linear_between_its_stops(stops, t):
    value = evaluate(stops, "any", t)
    place = t * (len(stops) - 1)
    low, high = stops[int(place)], stops[min(int(place) + 1, len(stops) - 1)]
    assert min(low, high) - 1e-9 <= value <= max(low, high) + 1e-9
    assert evaluate(stops, "any", 0.0) == stops[0]
    assert evaluate(stops, "any", 1.0) == stops[-1]


numbers = st.one_of(st.floats(-5, 5), st.lists(st.floats(-5, 5), min_size=1, max_size=3))
conditions = st.lists(st.fixed_dictionaries({"filter": st.sampled_from(["mlp", "*"]), "value": numbers}), min_size=1)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(set(METHODS) - {"dfs", "passthrough", "slerp", "nuslerp"})), st.one_of(numbers, conditions)
)
def test_any_recipe_comes_back_from_its_yaml(method, weight):
    models = [{"model": name, "parameters": {"weight": weight}} for name in "abc"]
    recipe = parse_recipe({"merge_method": method, "base_model": "base", "models": models})
    assert parse_recipe(to_yaml(recipe)) == recipe


def test_a_key_that_occurs_twice_among_many_is_found() -> None:
    """Counted in one pass: with list.count, 40,000 keys took a minute."""
    keys = "".join(f"k{number}: 1\n" for number in range(40_000))
    with pytest.raises(ConfigError, match="'k7' occurs twice"):
        parse_recipe(f"merge_method: linear\n{keys}k7: 2\n")
