from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: E402

from agent_forge.inference.grouped_attention import grouped_attention  # noqa: E402


@pytest.mark.parametrize("mask", ["none", "bool", "float"])
@pytest.mark.parametrize(("heads", "shared"), [(9, 3), (4, 1), (4, 4)])
@pytest.mark.parametrize("length", [1, 3])
def test_it_is_the_attention_of_transformers(mask: str, heads: int, shared: int, length: int) -> None:
    torch.manual_seed(0)
    rows, columns, width = 3, 11, 8
    query = torch.randn(rows, heads, length, width)
    key, value = torch.randn(2, rows, shared, columns, width)
    seen = torch.rand(rows, 1, length, columns) < 0.7
    seen[..., -1] = True
    masks = {"none": None, "bool": seen, "float": torch.zeros(seen.shape).masked_fill(~seen, -1e9)}
    module = SimpleNamespace(num_key_value_groups=heads // shared, is_causal=False, training=False)
    ours, _ = grouped_attention(module, query, key, value, masks[mask], scaling=0.3)
    theirs, _ = sdpa_attention_forward(module, query, key, value, masks[mask], scaling=0.3)
    assert ours.shape == (rows, length, heads, width)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
