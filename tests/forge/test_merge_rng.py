"""Random numbers of merges: the same from numpy and C, uniform, and independent of each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agent_forge.forge.merging import merge_tensors, parse_recipe
from agent_forge.forge.merging.binding import library
from agent_forge.forge.merging.rng import PAGE, digits_of, key_of, random_mask, random_words

KEYS = [key_of(0, "x", 0), key_of(0, "x", 1), key_of(1, "x", 0), (0, 0), (1, 0)]


def test_probabilities_keep_sixteen_significant_bits():
    assert digits_of(0.5) == (1, 1)
    assert digits_of(0.0) == (0, 0)
    assert digits_of(1.0) == (1, 0)
    for probability in (0.3, 0.1, 0.999, 1e-3, 1e-9, 1 / 3):
        value, digits = digits_of(probability)
        assert value % 2 == 1
        assert abs(value / 2.0**digits - probability) <= probability * 2.0**-16


def test_the_first_words_are_those_of_numpys_generator():
    """An independent reading of the definition: lane 2 of page 1, seeded by splitmix64, after 12 discarded words."""
    start, golden, low = 7 | 9 << 32, 0x9E3779B97F4A7C15, (1 << 64) - 1
    seeds = []
    for i in range(3 * (8 + 2) + 1, 3 * (8 + 2) + 4):
        z = (start + i * golden) & low
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & low
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & low
        seeds.append(z ^ (z >> 31))
    a, b, c, step = (*seeds, 1)
    for _ in range(14):
        drawn = (a + b + step) & low
        a, b, c, step = b ^ (b >> 11), (c + (c << 3)) & low, ((c << 24 | c >> 40) + drawn) & low, step + 1
    words = random_words((7, 9), PAGE, 64).numpy().astype(np.uint16).view("<u8")
    assert int(words[8 + 2]) == drawn  # the second step


def test_words_can_be_begun_anywhere():
    whole = random_words(KEYS[0], 0, PAGE + 5000)
    assert whole.min() >= 0
    assert whole.max() < 1 << 16
    for start, count in ((0, 10), (1234, 100), (PAGE - 3, 7), (PAGE + 7, 1), (5, 0)):
        assert torch.equal(random_words(KEYS[0], start, count), whole[start : start + count])


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_every_bit_and_every_value_is_uniform(key):
    words = random_words(key, 0, 400_000).numpy()
    for bit in range(16):
        assert abs(np.mean(words >> bit & 1) - 0.5) < 4.5 * 0.5 / words.size**0.5
    for shift in (0, 8):
        counts = np.bincount(words >> shift & 255, minlength=256)
        chi = ((counts - words.size / 256) ** 2).sum() / (words.size / 256)
        assert 140 < chi < 400, chi  # 255 degrees of freedom: 5 and 6 standard deviations


def test_lanes_pages_keys_and_models_do_not_resemble_each_other():
    """Correlation of bits between keys that differ by one, between pages, and between near and far neighbours."""
    streams = [random_words(key, 0, 2 * PAGE).numpy().astype(np.uint16) for key in KEYS]
    parts = [part for stream in streams for part in (stream[:PAGE], stream[PAGE:])]
    parts += [np.roll(parts[0], shift) for shift in (1, 4, 8, 32, 64, 512)]
    bits = PAGE * 16
    for i, x in enumerate(parts):
        for y in parts[:i]:
            same = bits - int(np.bitwise_count(x ^ y).sum()) if hasattr(np, "bitwise_count") else _same(x, y)
            assert abs(same / bits - 0.5) < 5 * 0.5 / bits**0.5


def _same(x, y):
    return x.size * 16 - int(np.unpackbits((x ^ y).view(np.uint8)).sum())


@pytest.mark.parametrize("probability", [0.5, 0.25, 0.7, 0.9, 0.01])
def test_a_mask_keeps_its_share_and_masks_are_independent(probability):
    n = PAGE + 100_000
    masks = [random_mask(key, n, probability) for key in KEYS[:3]]
    error = (probability * (1 - probability) / n) ** 0.5
    square = probability**2
    for mask in masks:
        assert abs(mask.mean() - probability) < 4.5 * error
        assert abs((mask[1:] & mask[:-1]).mean() - square) < 5 * (square * (1 + 2 * probability) / n) ** 0.5
    for i, mask in enumerate(masks):
        for other in masks[:i]:
            assert abs((mask & other).mean() - square) < 4.5 * (square * (1 - square) / n) ** 0.5


@pytest.mark.skipif(library() is None, reason="there is no C compiler")
@pytest.mark.parametrize("probability", [0.5, 0.75, 0.3, 0.001])
def test_masks_of_the_kernel_are_the_same(probability):
    value, digits = digits_of(probability)
    for n in (1, 511, 513, PAGE, PAGE + 1000):
        for key in KEYS[:2]:
            bits = np.zeros(n // 8 + 1024, np.uint8)
            library().random_bits(key[0] | key[1] << 32, value, digits, n, bits.ctypes.data)
            drawn = np.unpackbits(bits, bitorder="little", count=n).astype(bool)
            assert np.array_equal(drawn, random_mask(key, n, probability))


class Model(dict):
    config = {"model_type": "llama"}  # noqa: RUF012


@pytest.mark.skipif(library() is None, reason="there is no C compiler")
@pytest.mark.parametrize("by", ["norm", "probability"])
def test_words_of_the_kernel_are_the_same_beyond_a_page(by, monkeypatch):
    generator = torch.Generator().manual_seed(3)
    sources = {name: Model({"x.weight": torch.randn(331, 1009, generator=generator)}) for name in ("base", "a")}
    own = {"weight": 1.0, "density": 0.5, "epsilon": 0.2}
    recipe = {"merge_method": "della", "base_model": "base", "models": [{"model": "a", "parameters": own}]}
    recipe["parameters"] = {"rescale_by": by}
    results = []
    for kernel in ("1", "0"):
        monkeypatch.setenv("AGENT_FORGE_NATIVE", kernel)
        results.append(merge_tensors(parse_recipe(recipe), sources=sources)["x.weight"])
    assert torch.equal(*results)
