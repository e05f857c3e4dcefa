"""Merges to disk: atomic, resumed, refused before anything is written, the same on any number of threads."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests_merge_models import family, llama_tensors, moved, read_model, write_model

from agent_forge.errors import CheckpointError, ConfigError, MergeError, UsageError
from agent_forge.forge.checkpoint import Card, load
from agent_forge.forge.merging import MergeSettings, merge, merge_tensors, parse_recipe, to_yaml


@pytest.fixture
def folders(tmp_path):
    return family(tmp_path / "models")


def ties(folders, **more):
    models = [{"model": folders[name], "parameters": {"weight": 0.5, "density": 0.5}} for name in "abc"]
    return {"merge_method": "ties", "base_model": folders["base"], "models": models, **more}


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_what_is_written_is_what_is_computed_in_memory(folders, tmp_path):
    recipe = parse_recipe(ties(folders, dtype="bfloat16"))
    calls = []
    report = merge(recipe, tmp_path / "out", progress=lambda *step: calls.append(step))
    merged, memory = read_model(tmp_path / "out"), merge_tensors(recipe)
    assert {name: x.dtype for name, x in merged.items()} == dict.fromkeys(memory, torch.bfloat16)
    for name, x in memory.items():
        assert torch.equal(merged[name], x)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    assert (report.tensors, report.parameters) == (len(memory), sum(x.numel() for x in memory.values()))
    assert calls[-1][:2] == (report.parameters * 2, report.parameters * 2)


def test_threads_shards_and_the_written_recipe_give_the_same_bytes(folders, tmp_path):
    recipe = parse_recipe(ties(folders))
    merge(recipe, tmp_path / "one")
    again = parse_recipe((tmp_path / "one" / "recipe.yaml").read_text())
    assert again == recipe
    merge(again, tmp_path / "two", MergeSettings(threads=4))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    report = merge(recipe, tmp_path / "sharded", MergeSettings(threads=2, shard_gb=2e-6))
    index = json.loads((tmp_path / "sharded" / "model.safetensors.index.json").read_text())
    assert report.shards == len(set(index["weight_map"].values())) > 2
    one, many = read_model(tmp_path / "one"), read_model(tmp_path / "sharded")
    assert one.keys() == many.keys() == index["weight_map"].keys()
    assert all(torch.equal(one[name], many[name]) for name in one)


def test_sharded_inputs_are_read(folders, tmp_path):
    merge(
        parse_recipe({"merge_method": "passthrough", "models": [{"model": folders["a"]}]}),
        tmp_path / "s",
        MergeSettings(shard_gb=1e-6),
    )
    recipe = {"merge_method": "linear", "models": [{"model": str(tmp_path / "s"), "parameters": {"weight": 1}}]}
    merged = merge_tensors(parse_recipe(recipe))
    whole = read_model(Path(folders["a"]))
    assert all(torch.equal(merged[name], whole[name]) for name in whole)


def test_the_card_says_where_it_came_from(folders, tmp_path):
    (Path(folders["base"]) / "tokenizer.json").write_text('{"model": {"vocab": {}}}')
    merge(parse_recipe(ties(folders)), tmp_path / "out", inputs=("d" * 64,))
    checkpoint = load(tmp_path / "out")
    assert isinstance(checkpoint.card, Card)
    assert (checkpoint.card.phase, checkpoint.card.inputs) == ("merge", ("d" * 64,))
    assert checkpoint.card.config["stages"][0]["merge_method"] == "ties"
    assert (tmp_path / "out" / "tokenizer.json").is_file()


def damaged(folder, change):
    file = Path(folder) / "model.safetensors"
    data = bytearray(file.read_bytes())
    change(data)
    file.write_bytes(data)


DAMAGE = {
    "truncated": lambda data: data.__delitem__(slice(len(data) - 100, None)),
    "longer": lambda data: data.extend(b"x"),
    "header": lambda data: data.__setitem__(slice(0, 8), b"\xff" * 8),
    "not json": lambda data: data.__setitem__(9, 0),
    "empty": lambda data: data.clear(),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_weights_are_refused_before_anything_is_written(how, folders, tmp_path):
    damaged(folders["b"], DAMAGE[how])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        merge(parse_recipe(ties(folders)), tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before


def test_tensors_that_do_not_fit_are_named(folders, tmp_path):
    recipe = parse_recipe(ties(folders))
    odd = llama_tensors()
    name = "model.layers.1.mlp.up_proj.weight"
    odd[name] = odd[name][:20]
    write_model(Path(folders["c"]), odd)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        merge(recipe, tmp_path / "out")
    del odd[name]
    write_model(Path(folders["c"]), odd)
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        merge(recipe, tmp_path / "out")
    write_model(Path(folders["c"]), llama_tensors(layers=3))
    with pytest.raises(CheckpointError, match="different numbers of layers"):
        merge(recipe, tmp_path / "out")
    write_model(Path(folders["c"]), llama_tensors(), model_type="gpt2")
    with pytest.raises(CheckpointError, match="differ in model_type"):
        merge(recipe, tmp_path / "out")
    for one, other in ((4, 8), (None, 8)):  # the same shapes, cut into other heads; what is not told is not compared
        write_model(Path(folders["b"]), llama_tensors(), num_attention_heads=one)
        write_model(Path(folders["c"]), llama_tensors(), num_attention_heads=other)
        if one is not None:
            with pytest.raises(CheckpointError, match="differ in num_attention_heads"):
                merge(recipe, tmp_path / "out")
    merge(recipe, tmp_path / "told")
    write_model(Path(folders["c"]), llama_tensors(vocabulary=31))
    with pytest.raises(CheckpointError, match="tokenizer_source: union"):
        merge(recipe, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_there_is_never_overwritten(folders, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    with pytest.raises(UsageError, match="something already"):
        merge(parse_recipe(ties(folders)), tmp_path / "out")
    assert (tmp_path / "out" / "mine").read_text() == "precious"


def test_a_missing_model_and_a_broken_index_are_refused(folders, tmp_path):
    recipe = ties(folders)
    recipe["models"][0]["model"] = "no-such-model"
    with pytest.raises(CheckpointError, match="no-such-model"):
        merge(parse_recipe(recipe), tmp_path / "out")
    (Path(folders["b"]) / "model.safetensors.index.json").write_text('{"weight_map": {"x": "gone.safetensors"}}')
    with pytest.raises(CheckpointError, match=r"gone\.safetensors"):
        merge(parse_recipe(ties(folders)), tmp_path / "out")


def test_tied_heads_meet_untied_ones(tmp_path):
    """A model without lm_head.weight brings its embedding; the result has a head of its own and says so."""
    base = llama_tensors(head=False)
    one = write_model(tmp_path / "tied", base, tie_word_embeddings=True)
    two = write_model(tmp_path / "untied", llama_tensors(seed=1))
    models = [{"model": str(folder), "parameters": {"weight": 0.5}} for folder in (one, two)]
    merged = merge_tensors(parse_recipe({"merge_method": "linear", "models": models}))
    expected = (base["model.embed_tokens.weight"].double() + llama_tensors(seed=1)["lm_head.weight"].double()) / 2
    torch.testing.assert_close(merged["lm_head.weight"], expected.float())
    assert merged.config["tie_word_embeddings"] is False


def test_integers_are_taken_over_if_they_agree(tmp_path):
    tensors = {**llama_tensors(), "model.counts": torch.arange(5)}
    folders = []
    for name in "ab":
        folder = write_model(tmp_path / name, {k: x for k, x in tensors.items() if k != "model.counts"})
        from safetensors.torch import save_file

        save_file(tensors, str(folder / "model.safetensors"))
        folders.append(folder)
    recipe = parse_recipe(
        {"merge_method": "linear", "models": [{"model": str(f), "parameters": {"weight": 1}} for f in folders]}
    )
    merge(recipe, tmp_path / "out")
    assert read_model(tmp_path / "out")["model.counts"].tolist() == [0, 1, 2, 3, 4]
    save_file({**tensors, "model.counts": torch.zeros(5, dtype=torch.int64)}, str(folders[1] / "model.safetensors"))
    with pytest.raises(CheckpointError, match=r"model\.counts"):
        merge(recipe, tmp_path / "other")
    assert not (tmp_path / "other").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from agent_forge.forge.merging import merge, parse_recipe
left = int(sys.argv[3])
def progress(done, total, name):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
merge(parse_recipe(Path(sys.argv[1]).read_text()), sys.argv[2], progress=progress)
"""


@pytest.mark.parametrize("tensors", [1, 7])
def test_killed_it_leaves_nothing_and_goes_on(tensors, folders, tmp_path):
    config, out = tmp_path / "ties.yaml", tmp_path / "out"
    recipe = parse_recipe(ties(folders))
    config.write_text(to_yaml(recipe))
    ran = subprocess.run([sys.executable, "-c", KILLED, str(config), str(out), str(tensors)], check=False, timeout=120)
    assert ran.returncode == -signal.SIGKILL
    assert not out.exists()
    report = merge(recipe, out)
    assert report.resumed == tensors
    merge(recipe, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")
    assert not list(tmp_path.glob(".*"))


def test_two_merges_do_not_write_to_one_output(folders, tmp_path):
    first, second = parse_recipe(ties(folders)), parse_recipe({**ties(folders), "merge_method": "breadcrumbs"})
    refused = []

    def meanwhile(done, total, name):
        for other in (first, second):
            with pytest.raises(UsageError, match="another merge is writing") as error:
                merge(other, tmp_path / "out", MergeSettings(resume=False))
            refused.append(error)

    merge(first, tmp_path / "out", progress=meanwhile)
    merge(first, tmp_path / "alone")
    assert refused
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")
    with pytest.raises(UsageError, match="something already"):
        merge(second, tmp_path / "out")
    assert not list(tmp_path.glob(".*"))


def test_the_output_may_be_a_link_but_not_below_a_file(folders, tmp_path):
    recipe = parse_recipe(ties(folders))
    for name, there in (("to nothing", False), ("to an empty folder", True)):
        target, link = tmp_path / f"made {name}", tmp_path / f"link {name}"
        link.symlink_to(target)
        if there:
            target.mkdir()
        assert merge(recipe, link).out == link
        assert link.is_symlink()
        assert "model.safetensors" in contents(target)
    (tmp_path / "file").write_text("")
    with pytest.raises(MergeError, match="cannot be written"):
        merge(recipe, tmp_path / "file" / "out")
    assert not list(tmp_path.glob(".*"))


def test_what_another_merge_has_left_is_not_used(folders, tmp_path):
    stopped = []

    def stop(done, total, name):
        stopped.append(name)
        if len(stopped) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge(parse_recipe(ties(folders)), tmp_path / "out", progress=stop)
    write_model(Path(folders["a"]), moved(llama_tensors(), 9))  # an input changes
    assert merge(parse_recipe(ties(folders)), tmp_path / "out").resumed == 0
    stopped.clear()
    with pytest.raises(KeyboardInterrupt):
        merge(parse_recipe(ties(folders)), tmp_path / "fresh", progress=stop)
    assert merge(parse_recipe(ties(folders)), tmp_path / "fresh", MergeSettings(resume=False)).resumed == 0


def test_a_full_disk_is_said_before_any_work(folders, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(MergeError, match="cannot be written"):
            merge(parse_recipe(ties(folders)), tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models"]


def test_stages_are_computed_on_the_way(folders, tmp_path):
    """slerp of two, then TIES of that and a third; as documents of one file, and as two merges one after the other."""
    first = {
        "name": "mixed", "merge_method": "slerp", "base_model": folders["a"], "dtype": "float32",
        "models": [{"model": folders["a"]}, {"model": folders["b"]}], "parameters": {"t": 0.5},
    }  # fmt: skip
    second = ties({**folders, "a": "mixed"})
    second["models"] = [second["models"][0], second["models"][2]]
    both = parse_recipe([first, second])
    assert parse_recipe(to_yaml(both)) == both
    merge(both, tmp_path / "both")
    merge(parse_recipe({k: v for k, v in first.items() if k != "name"}), tmp_path / "mixed")
    second["models"][0]["model"] = str(tmp_path / "mixed")
    merge(parse_recipe(second), tmp_path / "apart")
    merged, apart = read_model(tmp_path / "both"), read_model(tmp_path / "apart")
    assert all(torch.equal(merged[name], apart[name]) for name in apart)
    assert merged.keys() == apart.keys()


def test_relative_paths_are_also_looked_for_beside_the_file(folders, tmp_path, monkeypatch):
    recipe = parse_recipe({"merge_method": "passthrough", "models": [{"model": "models/a"}]})
    with pytest.raises(CheckpointError, match="models/a"):
        merge(recipe, tmp_path / "out")
    merge(recipe, tmp_path / "out", beside=tmp_path)
    assert read_model(tmp_path / "out").keys() == read_model(Path(folders["a"])).keys()


def test_a_name_is_looked_up_in_the_hugging_face_cache(folders, tmp_path, monkeypatch):
    snapshot = tmp_path / "hub" / "models--org--small" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    os.symlink(folders["a"], snapshot)
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    merged = merge_tensors(parse_recipe({"merge_method": "passthrough", "models": [{"model": "org/small"}]}))
    assert torch.equal(merged["model.norm.weight"], read_model(Path(folders["a"]))["model.norm.weight"])


def test_values_that_mergekit_stumbles_over_later_are_refused_first(folders, tmp_path):
    recipe = ties(folders, merge_method="della")
    recipe["models"][0]["parameters"] |= {"density": 0.9, "epsilon": 0.2}
    with pytest.raises(ConfigError, match="epsilon"):
        merge(parse_recipe(recipe), tmp_path / "out")
    recipe = {"merge_method": "linear", "models": [{"model": folders[n], "parameters": {"weight": w}} for n, w in zip("ab", (1, -1), strict=True)]}  # fmt: skip  # noqa: E501
    with pytest.raises(ConfigError, match="zero"):
        merge(parse_recipe(recipe), tmp_path / "out")
    del recipe["models"][0]["parameters"]
    with pytest.raises(ConfigError, match="weight"):
        merge(parse_recipe(recipe), tmp_path / "out")


def test_models_of_2_to_the_28_bytes_are_not_mapped_that_far_apart(tmp_path):
    """Their elements would meet in the same lines of the first-level cache."""
    import numpy as np

    from agent_forge.forge.merging.sources import map_file

    maps = []
    for name in "abc":
        with open(tmp_path / name, "wb") as file:
            file.truncate((1 << 28) - 5000)  # no blocks on the disk
        maps.append(map_file(tmp_path / name))
    places = [np.frombuffer(mapped, np.uint8).ctypes.data % (1 << 28) for mapped in maps]
    assert len(set(places)) == 3
