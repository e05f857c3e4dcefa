"""Levels, straight-through gradients and BitLinear, against plain float64 arithmetic."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from agent_forge.errors import ConfigError, UsageError
from agent_forge.forge.quantization import (
    BitLinear,
    Format,
    fit_scales,
    level_codes,
    level_scales,
    linear_names,
    round_inputs,
    set_strength,
    settled,
    spread,
    stored_weights,
    to_bitlinear,
    to_dense,
    whole_numbers,
)

SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 37), st.integers(1, 5), st.integers(0, 10_000))


def plain_levels(weight: np.ndarray, granularity: str, group: int, levels: str) -> np.ndarray:
    """One weight at a time, in float64, straight from the papers' equations."""
    levels_RC = np.empty_like(weight, dtype=np.float64)
    rows, columns = weight.shape
    for r in range(rows):
        for c in range(columns):
            first = c - c % group
            share = {"tensor": weight, "row": weight[r], "group": weight[r, first : first + group]}[granularity]
            scale = max(np.abs(share.astype(np.float64)).mean(), 1e-5) * (1.25 if levels == "two_bit" else 1.0)
            steps = weight[r, c] / scale
            if levels == "ternary":
                levels_RC[r, c] = scale * np.clip(np.rint(steps), -1, 1)
            else:
                levels_RC[r, c] = scale * np.clip(np.floor(steps) + 0.5, -1.5, 1.5)
    return levels_RC


@pytest.mark.parametrize("levels", ["ternary", "two_bit"])
@pytest.mark.parametrize("granularity", ["tensor", "row", "group"])
@settings(max_examples=15, deadline=None)
@given(SHAPES)
def test_levels_are_those_of_the_papers_on_any_shape(granularity: str, levels: str, shape) -> None:
    rows, columns, _, seed = shape
    weight = torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, columns)))
    format = Format(levels=levels, granularity=granularity, group=8, learn_scales=False)
    scales = level_scales(weight, format)
    ours = level_codes(weight, scales, levels, 8) * spread(scales, columns, 8)
    np.testing.assert_allclose(ours.numpy(), plain_levels(weight.numpy(), granularity, 8, levels), rtol=1e-12)


@settings(max_examples=20, deadline=None)
@given(SHAPES)
def test_the_straight_through_gradient_is_that_of_the_layer_without_rounding(shape) -> None:
    """dL/dW = g^T Q8(x) and dL/dx = g Q(W), with nothing for the rounding itself."""
    rows, columns, tokens, seed = shape
    torch.manual_seed(seed)
    layer = BitLinear.of(
        nn.Linear(columns, rows, dtype=torch.float64), Format(granularity="group", group=8, learn_scales=False)
    )
    layer.strength.fill_(1.0)
    x = torch.randn(2, tokens, columns, dtype=torch.float64, requires_grad=True)
    slope = torch.randn(2, tokens, rows, dtype=torch.float64)
    layer(x).backward(slope)
    weight = layer.weight.detach().numpy()
    stored = plain_levels(weight, "group", 8, "ternary")
    unit = np.maximum(np.abs(x.detach().numpy()).max(-1, keepdims=True), 1e-5) / 127
    seen = np.rint(x.detach().numpy() / unit) * unit
    np.testing.assert_allclose(x.grad.numpy(), slope.numpy() @ stored, rtol=1e-3, atol=1e-3)  # scales are float16
    expected = np.einsum("btr,btc->rc", slope.numpy(), seen)
    np.testing.assert_allclose(layer.weight.grad.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("strength", [0.0, 0.25, 1.0])
def test_strength_moves_from_the_shadow_weight_to_the_levels(strength: float) -> None:
    linear = nn.Linear(20, 5, dtype=torch.float64)
    x = torch.randn(7, 20, dtype=torch.float64)
    layer = BitLinear.of(linear, Format(activations="none", learn_scales=False))
    layer.strength.fill_(strength)
    stored = torch.from_numpy(plain_levels(linear.weight.detach().numpy(), "row", 128, "ternary"))
    between = linear.weight + strength * (stored - linear.weight)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, between, linear.bias), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("levels", ["ternary", "two_bit"])
@pytest.mark.parametrize("columns", [8, 19])
def test_learned_scales_have_the_gradients_of_lsq(levels: str, columns: int) -> None:
    """Against the equations written out for every element in float64."""
    format = Format(levels=levels, granularity="group", group=8, learn_scales=True, activations="none")
    layer = BitLinear.of(nn.Linear(columns, 3, bias=False, dtype=torch.float64), format)
    layer.strength.fill_(1.0)
    x, slope = torch.randn(4, columns, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    layer(x).backward(slope)
    on_weight = slope.T @ x
    top = 1.0 if levels == "ternary" else 1.5
    scale_grad, weight_grad = torch.zeros_like(layer.scales), torch.zeros_like(on_weight)
    for r in range(3):
        for c in range(columns):
            scale, steps = layer.scales[r, c // 8].item(), (layer.weight[r, c] / layer.scales[r, c // 8]).item()
            code = np.clip(np.rint(steps), -1, 1) if levels == "ternary" else np.clip(np.floor(steps) + 0.5, -1.5, 1.5)
            inside = abs(steps) <= top
            weight_grad[r, c] = on_weight[r, c] * inside
            scale_grad[r, c // 8] += on_weight[r, c] * (code - steps if inside else code) / (8 * top) ** 0.5
            assert scale > 0
    torch.testing.assert_close(layer.weight.grad, weight_grad)
    torch.testing.assert_close(layer.scales.grad, scale_grad)


@settings(max_examples=20, deadline=None)
@given(SHAPES)
def test_fitting_scales_lowers_the_weighted_error_from_round_to_round(shape) -> None:
    rows, columns, _, seed = shape
    rng = np.random.default_rng(seed)
    weight = torch.from_numpy(rng.normal(size=(rows, columns)))
    importance = torch.from_numpy(rng.uniform(0.1, 3.0, size=columns))
    format = Format(granularity="row")

    def error(scales: torch.Tensor) -> torch.Tensor:
        stored = level_codes(weight, scales, "ternary", 128) * scales
        return (importance * (weight - stored) ** 2).sum(1)

    errors = [error(fit_scales(weight, format, importance, rounds=rounds)) for rounds in range(6)]
    torch.testing.assert_close(errors[0], error(level_scales(weight, format)))
    assert all((after <= before + 1e-12).all() for before, after in pairwise(errors))


def test_fitted_scales_of_a_gaussian_have_the_error_of_lloyd_max() -> None:
    """Relative mean squared errors of symmetric quantisers on a Gaussian: 0.190 on three levels, 0.119 on four."""
    weight = torch.randn(64, 4096, dtype=torch.float64)
    for levels, error in (("ternary", 0.190), ("two_bit", 0.1188)):
        format = Format(levels=levels)
        scales = fit_scales(weight, format, rounds=60)
        stored = level_codes(weight, scales, levels, 128) * scales
        assert ((weight - stored) ** 2).mean().item() == pytest.approx(error, abs=0.002)


@settings(max_examples=20, deadline=None)
@given(SHAPES, st.sampled_from([7, 127]))
def test_whole_numbers_stay_within_half_a_step_and_do_not_move_twice(shape, most: int) -> None:
    rows, columns, _, seed = shape
    weight = torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32))
    once = whole_numbers(weight, most, group=8)
    padded = nn.functional.pad(weight.abs(), (0, -columns % 8)).unflatten(1, (-1, 8)).amax(-1)
    step = (padded / most).repeat_interleave(8, 1)[:, :columns]
    assert ((once - weight).abs() <= step * 0.51 + 1e-6 + weight.abs() * 1e-3).all()
    torch.testing.assert_close(whole_numbers(once, most, group=8), once, rtol=2e-3, atol=1e-6)


def test_inputs_are_rounded_token_by_token() -> None:
    x = torch.randn(3, 5, 16) * torch.tensor([1.0, 100.0, 1e-9]).view(3, 1, 1)
    rounded = round_inputs(x)
    unit = x.double().abs().amax(-1, keepdim=True).clamp_min(1e-5) / 127
    torch.testing.assert_close(rounded.double(), (x.double() / unit).round() * unit, rtol=1e-5, atol=1e-9)
    assert round_inputs(torch.zeros(2, 4)).tolist() == [[0.0] * 4] * 2


class Tiny(nn.Module):
    """Two numbered blocks, an embedding tied to a head, and a gate that is too thin to quantise."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(24, 16)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"up": nn.Linear(16, 32), "gate": nn.Linear(16, 2)}) for _ in range(2)
        )
        self.beside = nn.Linear(32, 16)
        self.head = nn.Linear(16, 24, bias=False)
        self.head.weight = self.words.weight

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = x + self.beside(layer["up"](x).relu()) * layer["gate"](x).mean(-1, keepdim=True)
        return self.head(x)


def test_layers_are_chosen_by_name_and_the_rest_is_left_alone() -> None:
    model = Tiny()
    assert to_bitlinear(model, Format(learn_scales=False)) == ["layers.0.up", "layers.1.up"]
    assert type(model.beside) is nn.Linear
    assert type(model.layers[0]["gate"]) is nn.Linear
    assert model.head.weight is model.words.weight
    assert linear_names(Tiny(), "beside") == ["beside"]
    assert [name for name, _ in Tiny().named_parameters()] == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("pattern", ["nothing", "("])
def test_a_pattern_that_finds_no_layer_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError):
        to_bitlinear(Tiny(), Format(), pattern)


def test_nothing_changes_until_the_strength_is_raised() -> None:
    model, tokens = Tiny(), torch.arange(24)[None]
    before = model(tokens)
    to_bitlinear(model, Format())
    torch.testing.assert_close(model(tokens), before, rtol=0, atol=0)
    set_strength(model, 1.0)
    assert (model(tokens) - before).abs().max() > 1e-3


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("embedding", ["int4", "int8", "none"])
def test_settled_training_and_dense_forms_compute_the_same(learn: bool, embedding: str) -> None:
    model, tokens = Tiny(), torch.arange(24)[None]
    to_bitlinear(model, Format(learn_scales=learn, embedding=embedding, activations="none"))
    set_strength(model, 1.0)
    training, shadow = model(tokens), model.layers[0]["up"].weight.detach().clone()
    with settled(model):
        torch.testing.assert_close(model(tokens), training, rtol=2e-3, atol=2e-3)
        stored = {name: model.get_parameter(name).detach().clone() for name in stored_weights(model)}
    torch.testing.assert_close(model.layers[0]["up"].weight, shadow, rtol=0, atol=0)
    to_dense(model)
    assert type(model.layers[0]["up"]) is nn.Linear
    assert type(model.words) is nn.Embedding
    assert {name: torch.equal(model.get_parameter(name), weight) for name, weight in stored.items()} == dict.fromkeys(
        stored, True
    )
    assert len(model.layers[0]["up"].weight[0].unique()) <= 3
    torch.testing.assert_close(model(tokens), training, rtol=2e-3, atol=2e-3)


def test_a_sub_norm_makes_the_scale_of_the_input_not_matter_and_has_no_plain_form() -> None:
    model = Tiny()
    to_bitlinear(model, Format(sub_norm=True))
    set_strength(model, 1.0)
    layer, x = model.layers[0]["up"], torch.randn(3, 16)
    torch.testing.assert_close(layer(x), layer(x * 50), rtol=1e-2, atol=1e-2)
    with pytest.raises(UsageError, match="sub-norm"):
        to_dense(model)


def test_one_scale_for_a_matrix_is_not_learned() -> None:
    with pytest.raises(ConfigError):
        Format(granularity="tensor", learn_scales=True)
