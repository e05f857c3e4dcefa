"""Task vectors: a LoRA out of a difference and back, interference by brute force, the picture, and the commands."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests_merge_models import family, llama_tensors, read_model, write_model

from agent_forge.cli import run
from agent_forge.errors import CheckpointError, UsageError
from agent_forge.forge.merging.picture import interference_svg
from agent_forge.forge.merging.vectors import apply_lora, extract_lora, factors, interference, rounded_bytes


@pytest.fixture
def folders(tmp_path):
    return family(tmp_path)


@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (16, 16)])
def test_the_factors_are_the_best_of_their_rank(shape):
    x = np.random.default_rng(0).standard_normal(shape)
    down, up, share = factors(x, 5)
    u, s, v = np.linalg.svd(x, full_matrices=False)
    np.testing.assert_allclose(up @ down, (u[:, :5] * s[:5]) @ v[:5], atol=1e-5)
    assert share == pytest.approx((s[:5] ** 2).sum() / (s**2).sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_what_is_of_low_rank_comes_back(dtype, tmp_path):
    base = {name: x.to(dtype).float() for name, x in llama_tensors().items()}
    tuned = dict(base)
    tensor = "model.layers.1.mlp.up_proj.weight"
    generator = torch.Generator().manual_seed(0)
    tuned[tensor] = (
        base[tensor] + torch.randn(24, 2, generator=generator) @ torch.randn(2, 16, generator=generator) * 0.1
    )
    one, two = write_model(tmp_path / "base", base, dtype), write_model(tmp_path / "tuned", tuned, dtype)
    extraction = extract_lora(str(one), str(two), tmp_path / "lora", rank=16)
    assert extraction.energy == {tensor: pytest.approx(1.0)}
    assert extraction.left_out == ()
    apply_lora(str(one), tmp_path / "lora", tmp_path / "out")
    result, expected = read_model(tmp_path / "out"), read_model(two)
    assert all(torch.equal(result[name], expected[name]) for name in expected if name != tensor)
    torch.testing.assert_close(result[tensor], expected[tensor], rtol=0, atol=1e-6 if dtype == torch.float32 else 4e-3)


def test_an_adapter_loads_where_peft_looks(folders, tmp_path):
    extraction = extract_lora(folders["base"], folders["a"], tmp_path / "lora", rank=4)
    config = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (4, 4, "LORA")
    assert "down_proj" in config["target_modules"]
    assert "model.norm.weight" in extraction.left_out
    names = read_model(tmp_path / "lora")
    assert names["base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"].shape == (4, 16)
    assert names["base_model.model.model.layers.0.mlp.up_proj.lora_B.weight"].shape == (24, 4)


def test_adapters_that_do_not_fit_are_refused(folders, tmp_path):
    extract_lora(folders["base"], folders["a"], tmp_path / "lora", rank=4)
    other = write_model(tmp_path / "other", llama_tensors(layers=1))
    with pytest.raises(CheckpointError, match=r"model\.layers\.1"):
        apply_lora(str(other), tmp_path / "lora", tmp_path / "out")
    with pytest.raises(CheckpointError, match="no matrix"):
        extract_lora(folders["a"], folders["a"], tmp_path / "none")
    with pytest.raises(UsageError, match="something already"):
        extract_lora(folders["base"], folders["a"], tmp_path / "lora")
    (tmp_path / "lora" / "adapter_model.safetensors").write_bytes(b"no")
    with pytest.raises(CheckpointError, match="not a sound safetensors file"):
        apply_lora(folders["base"], tmp_path / "lora", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="something already"):
        extract_lora(folders["base"], folders["a"], tmp_path / "base" / "config.json")


MODULE = "model.layers.1.mlp.up_proj"


def adapter(folder, tensors, **config):
    """An adapter as PEFT writes it (its names and settings; scales as in peft.tuners.lora.layer.update_layer)."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 16, **config}))
    save_file(
        {f"base_model.model.{name}": x.contiguous() for name, x in tensors.items()},
        folder / "adapter_model.safetensors",
    )
    return folder


def factors_of(rows, columns, rank, dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(rank, columns, generator=generator).to(dtype), torch.randn(rows, rank, generator=generator).to(
        dtype
    )


@pytest.mark.parametrize(
    ("config", "factor"),
    [
        ({}, 16 / 4),  # the rank is the matrix's own, as rank_pattern makes it
        ({"use_rslora": True}, 16 / 4**0.5),
        ({"alpha_pattern": {"q_proj": 1, r"layers\.1\.mlp\.up_proj": 2}}, 2 / 4),
        ({"alpha_pattern": {"proj": 9, "up_proj": 3, "mlp.up_proj": 2}}, 3 / 4),  # whole names, the first that fits
    ],
    ids=["plain", "rank-stabilised", "alpha by layer", "alpha by name"],
)
def test_an_adapter_of_pefts_is_scaled_as_there(config, factor, folders, tmp_path):
    down, up = factors_of(24, 16, 4, torch.bfloat16)
    whole = {f"{MODULE}.lora_A.weight": down, f"{MODULE}.lora_B.weight": up}
    copy = {"lm_head.base_layer.weight": read_model(Path(folders["base"]))["lm_head.weight"]}  # PEFT adds it
    apply_lora(folders["base"], adapter(tmp_path / "lora", {**whole, **copy}, **config), tmp_path / "out")
    base, result = read_model(Path(folders["base"])), read_model(tmp_path / "out")
    expected = base[f"{MODULE}.weight"].double() + factor * (up.double() @ down.double())
    assert torch.equal(result[f"{MODULE}.weight"], expected.float())
    assert all(torch.equal(result[name], x) for name, x in base.items() if name != f"{MODULE}.weight")


@pytest.mark.parametrize(
    "more",
    [
        "lm_head.weight",
        f"{MODULE}.bias",
        f"{MODULE}.lora_B.bias",
        f"{MODULE}.lora_magnitude_vector",
        "model.embed_tokens.lora_embedding_A",
    ],
)
def test_an_adapter_that_is_more_than_products_is_refused_by_name(more, folders, tmp_path):
    down, up = factors_of(24, 16, 4)
    tensors = {f"{MODULE}.lora_A.weight": down, f"{MODULE}.lora_B.weight": up, more: torch.zeros(30, 16)}
    with pytest.raises(CheckpointError, match=more):
        apply_lora(folders["base"], adapter(tmp_path / "lora", tensors), tmp_path / "out")
    with pytest.raises(CheckpointError, match="IA3"):
        apply_lora(folders["base"], adapter(tmp_path / "ia3", tensors, peft_type="IA3"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_matrices_of_gpt2_lie_the_other_way(tmp_path):
    """Conv1D stores [in, out] and PEFT then says fan_in_fan_out; a rank above a matrix's own is filled with zeros."""
    name = "transformer.h.0.attn.c_attn"
    generator = torch.Generator().manual_seed(0)
    first = {f"{name}.weight": torch.randn(16, 48, generator=generator), "transformer.wte.weight": torch.ones(9, 16)}
    second = {f"{name}.weight": torch.randn(16, 48, generator=generator), "transformer.wte.weight": torch.ones(9, 16)}
    for folder, tensors in (("one", first), ("two", second)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text('{"model_type": "gpt2", "n_layer": 1}')
        save_file(tensors, tmp_path / folder / "model.safetensors")
    extract_lora(str(tmp_path / "one"), str(tmp_path / "two"), tmp_path / "lora", rank=20)
    assert json.loads((tmp_path / "lora" / "adapter_config.json").read_text())["fan_in_fan_out"] is True
    lora = read_model(tmp_path / "lora")
    down, up = (lora[f"base_model.model.{name}.lora_{end}.weight"] for end in "AB")
    assert (down.shape, up.shape) == ((20, 16), (48, 20))
    torch.testing.assert_close((up @ down).T, second[f"{name}.weight"] - first[f"{name}.weight"])
    apply_lora(str(tmp_path / "one"), tmp_path / "lora", tmp_path / "out")
    torch.testing.assert_close(read_model(tmp_path / "out")[f"{name}.weight"], second[f"{name}.weight"])


@pytest.mark.parametrize("density", [1.0, 0.3])
def test_interference_by_brute_force(density, folders, tmp_path):
    rows = interference(folders["base"], [folders[name] for name in "abc"], density)
    stored = {name: read_model(tmp_path / name) for name in folders}
    for row in rows[:-1]:
        vectors = [(stored[n][row.name].double() - stored["base"][row.name].double()).reshape(-1) for n in "abc"]
        if density < 1:
            for v in vectors:
                v[v.abs().argsort(descending=True)[max(1, int(density * v.numel())) :]] = 0
        moved = conflicts = 0
        for values in zip(*(v.tolist() for v in vectors), strict=True):
            signs = [value > 0 for value in values if value != 0]
            moved += len(signs) >= 2
            conflicts += len(set(signs)) == 2
        assert row.conflict == (pytest.approx(conflicts / moved) if moved else None)
        if density == 1.0:
            pairs = [
                torch.nn.functional.cosine_similarity(vectors[i], vectors[j], 0) for i, j in ((0, 1), (0, 2), (1, 2))
            ]
            assert row.cosine == pytest.approx(sum(pairs).item() / 3)
    assert rows[-1].name == "all"
    assert rows[-1].elements == sum(row.elements for row in rows[:-1])


def test_a_model_does_not_interfere_with_itself(folders, tmp_path):
    whole = interference(folders["base"], [folders["a"], folders["a"]])[-1]
    assert (whole.conflict, whole.cosine) == (0.0, pytest.approx(1.0))
    still = interference(folders["base"], [folders["base"], folders["base"]])[-1]
    assert (still.conflict, still.cosine) == (None, None)
    with pytest.raises(UsageError, match="two models"):
        interference(folders["base"], [folders["a"]])
    odd = str(write_model(tmp_path / "odd", llama_tensors(vocabulary=31)))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        interference(folders["base"], [folders["a"], odd])


def test_the_picture_shows_every_tensor(folders):
    rows = interference(folders["base"], [folders["a"], folders["b"]])
    svg = ElementTree.fromstring(interference_svg(rows, "two & three"))
    titles = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == len(rows)
    assert any("model.layers.1.mlp.up_proj.weight: conflict 0." in title for title in titles)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F64"])
def test_rounding_in_numpy_is_rounding_in_torch(dtype):
    from agent_forge.forge.merging.exact import rounded

    x = torch.randn(2000, dtype=torch.float64)
    x = torch.cat([x, 1 + 2.0**-8 + torch.tensor([-1, 0, 1], dtype=torch.float64) * 2.0**-40])
    assert rounded_bytes(x.numpy(), dtype) == rounded(x, dtype).view(torch.uint8).numpy().tobytes()


# --- the commands ----------------------------------------------------------------------------------------------------


def test_the_merge_command(folders, tmp_path, capsys):
    config = tmp_path / "linear.yaml"
    config.write_text(
        "merge_method: linear\nmodels:\n- {model: a, parameters: {weight: 1}}\n- {model: b, parameters: {weight: 1}}\n"
    )
    assert run(["merge", str(config), "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert run(["merge", str(config), "--check"]) == 0
    assert "valid" in capsys.readouterr().out
    out = tmp_path / "out"
    assert run(["merge", str(config), str(out), "--json", "--threads", "2"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["method"], report["out"], report["resumed"]) == ("linear", str(out), 0)
    assert run(["merge", str(config), str(tmp_path / "second")]) == 0
    printed = capsys.readouterr()
    assert "linear: " in printed.out
    assert printed.err == ""  # over before a line of progress is due


def test_the_merge_command_says_what_is_wrong(folders, tmp_path, capsys):
    config = tmp_path / "wrong.yaml"
    config.write_text("merge_method: linear\nmodels: [{model: a, parameters: {wight: 1}}]\n")
    assert run(["merge", str(config), str(tmp_path / "out")]) == 2
    assert "unknown key 'wight'" in capsys.readouterr().err
    config.write_text("merge_method: linear\nmodels: [{model: nowhere, parameters: {weight: 1}}]\n")
    assert run(["merge", str(config), str(tmp_path / "out"), "--json"]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert run(["merge", str(config)]) == 2
    assert not (tmp_path / "out").exists()


def test_the_vectors_commands(folders, tmp_path, capsys):
    lora, out, svg = tmp_path / "lora", tmp_path / "applied", tmp_path / "picture.svg"
    assert run(["vectors", "extract", folders["base"], folders["a"], str(lora), "--rank", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rank"] == 3
    assert run(["vectors", "extract", folders["base"], folders["a"], str(tmp_path / "more")]) == 0
    printed = capsys.readouterr()
    assert "energy" in printed.out
    assert "model.norm.weight" in printed.err
    assert run(["vectors", "apply", folders["base"], str(lora), str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["out"] == str(out)
    assert run(["vectors", "apply", folders["base"], str(lora), str(tmp_path / "b2"), "--scale", "0.5"]) == 0
    capsys.readouterr()
    assert run(["vectors", "interference", *(folders[n] for n in ("base", "a", "b")), "--svg", str(svg), "--json"]) == 0
    assert 0 < json.loads(capsys.readouterr().out)["all"]["conflict"] < 1
    assert svg.read_text().startswith("<svg")
    assert run(["vectors", "interference", *(folders[n] for n in ("base", "a", "b")), "--density", "0.2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("all")
    assert Path(out / "config.json").is_file()
