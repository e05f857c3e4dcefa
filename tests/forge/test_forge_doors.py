"""The front doors: the same settings give the same model by command, by pipeline file and in Python."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests_forge_family import make_family, write_rows

from agent_forge import forge
from agent_forge.cli import run
from agent_forge.errors import ConfigError, MissingExtraError, UsageError
from agent_forge.forge.checkpoint import digest_of, load
from agent_forge.forge.opening import find_model
from agent_forge.forge.pipeline import read_pipeline
from agent_forge.forge.registry import Registry
from agent_forge.forge.session import ForgeSession
from agent_forge.runtime.workers import Inline


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("family")
    rows = write_rows(folder, count=80)
    return {**make_family(folder, steps=3), **{f"{name} rows": Path(path) for name, path in rows.items()}}


def by_pipeline(phase: str, config: dict[str, Any], starts: list[Path], home: Path) -> str:
    """The digest of what the phase made, whether or not its gate let it pass."""
    file = home / "pipeline.yaml"
    home.mkdir()
    document = {
        "name": "one",
        "start": [str(start) for start in starts],
        "phases": {"step": {"phase": phase, "config": config}},
    }
    file.write_text(yaml.safe_dump(document))
    registry = Registry(home)
    report = ForgeSession(read_pipeline(str(file)), registry, workers=Inline()).run()
    assert report.state == "completed", report
    (entry,) = registry.ls("step")
    card = json.loads((entry.path / "card.json").read_text())
    assert (card["phase"], card["inputs"]) == ("step", list(dict.fromkeys(load(start).digest for start in starts)))
    return entry.digest


def by_command(*arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert run([*arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_compress_is_one_thing_in_three_places(family, tmp_path: Path, capsys) -> None:
    stories = str(family["stories rows"])
    config = {
        "sources": {stories: {"path": stories}},
        "held_out": 0.3,
        "max_increase": 0.5,
        "codecs": ["integer"],
        "tries": 1,
        "length": 32,
        "recovery_steps": 2,
        "rows": 8,
        "trial_tokens": 96,
        "questions": 8,
        "judged": 16,
    }  # the rest, most of the work too, is left to the defaults
    python = forge.compress(family["base"], tmp_path / "python", **config)
    options = ["--data", stories, "--held-out", "0.3", "--max-ppl-increase", "50%", "--codecs", "integer"]
    options += ["--tries", "1", "--length", "32", "--calibration-rows", "8", "--steps", "2"]
    options += ["--set", "trial_tokens=96", "--questions", "8", "--eval-tokens", "512"]
    command = by_command(
        "compress", str(family["base"]), str(tmp_path / "command"), *options,
        capsys=capsys,
    )  # fmt: skip
    pipeline = by_pipeline("compression", config, [family["base"]], tmp_path / "home")
    assert python.accepted
    assert python.digest == command["digest"] == pipeline == digest_of(tmp_path / "python")
    cards = [load(tmp_path / name).card for name in ("python", "command")]
    assert cards[0] == cards[1]
    assert cards[0].config["measured"] == 0  # resolved: what was measured, not "by the size of the model"


def test_quantize_is_one_thing_in_three_places(family, tmp_path: Path, capsys) -> None:
    stories = str(family["stories rows"])
    config = {
        "sources": {stories: {"path": stories}},
        "held_out": 0.3,
        "recipe": {"steps": 3, "batch_rows": 4, "length": 32, "evaluations": 0, "recoveries": 0},
        "demands": {"perplexity": 0, "accuracy": 0, "ratio": 0},
        "most_judged": 400,
    }
    python = forge.quantize(family["base"], tmp_path / "python", **config)
    options = ["--data", stories, "--held-out", "0.3", "--steps", "3", "--batch", "4", "--length", "32"]
    options += ["--set", "evaluations=0", "--recoveries", "0", "--max-ppl-increase", "any", "--min-accuracy", "0"]
    options += ["--min-ratio", "0", "--eval-tokens", "400"]
    command = by_command("quantize", str(family["base"]), str(tmp_path / "command"), *options, capsys=capsys)
    pipeline = by_pipeline("bitnet", config, [family["base"]], tmp_path / "home")
    assert python.accepted
    assert python.digest == command["digest"] == pipeline == digest_of(tmp_path / "python")
    assert load(tmp_path / "python").card == load(tmp_path / "command").card


def test_merge_is_one_thing_in_three_places(family, tmp_path: Path, capsys) -> None:
    parents = [family["tales"], family["maths"]]
    recipe = {"merge_method": "linear", "dtype": "float32"}
    by_path = [{"model": str(parent), "parameters": {"weight": 0.5}} for parent in parents]
    by_number = [{"model": f"input{n}", "parameters": {"weight": 0.5}} for n in (1, 2)]
    rows = str(family["stories rows"])
    judged = {"sources": {rows: {"path": rows}}, "held_out": 0.3, "length": 32}
    python = forge.merge(parents, tmp_path / "python", recipe={**recipe, "models": by_number}, **judged)
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump({**recipe, "models": by_path}))
    command = by_command(
        "merge", str(file), str(tmp_path / "command"), "--data", rows, "--held-out", "0.3", "--length", "32",
        capsys=capsys,
    )  # fmt: skip
    phase = by_pipeline("merge", {"recipe": {**recipe, "models": by_number}, **judged}, parents, tmp_path / "home")
    assert python.digest == phase == digest_of(tmp_path / "command")
    assert python.gate is not None
    assert command["gate"] == python.gate.as_dict()  # against the best of the two
    with pytest.raises(ConfigError, match="names 'input2', and there are 1 models"):
        forge.merge(parents[:1], tmp_path / "none", recipe={**recipe, "models": by_number})
    with pytest.raises(ConfigError, match="recipe"):
        forge.merge(parents, tmp_path / "none")
    with pytest.raises(ConfigError, match="a merge in a pipeline is judged"):  # before any work
        by_pipeline("merge", {"recipe": {**recipe, "models": by_number}}, parents, tmp_path / "unjudged")


def test_evolve_is_one_thing_in_three_places(family, tmp_path: Path, capsys) -> None:
    data = {name: {"path": str(family[f"{name} rows"])} for name in ("stories", "sums")}
    weights = {"speed": 0.0, "memory": 0.0}  # what is measured with a clock may choose another recipe
    search = {"population": 2, "elites": 1, "techniques": ["linear"]}
    config = {"data": data, "length": 64, "search": {**search, "generations": 1}, "weights": weights}
    parents = [family["tales"], family["maths"]]
    named = {**config, "parents": [str(parent) for parent in parents], "base": str(family["base"])}
    python = forge.evolve(tmp_path / "python", **named)
    file = tmp_path / "evolve.yaml"
    file.write_text(yaml.safe_dump({**named, "search": search}))
    command = by_command("evolve", str(file), str(tmp_path / "command"), "--generations", "1", capsys=capsys)
    phase = by_pipeline("evomerge", config, [family["base"], *parents], tmp_path / "home")
    assert python.digest == command["digest"] == phase == digest_of(tmp_path / "python" / "champion")
    assert str(family["base"].parent) not in (python.out / "recipe.yaml").read_text()
    assert load(python.out).card.phase == "evolve"


def test_train_export_and_load(family, tmp_path: Path) -> None:
    text = {"sources": {"text": {"path": str(family["stories rows"])}}, "length": 32, "held_out": 0.2}
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    shape |= {"intermediate_size": 64, "embedding_rank": 16, "memory_layers": []}
    training = {"steps": 2, "batch_rows": 4}
    base = forge.train(None, tmp_path / "base", vocab_size=300, model=shape, training=training, **text)
    assert base.digest == digest_of(tmp_path / "base") == base.as_dict()["digest"]
    assert base.accepted is base.gate.passed
    child = forge.train(tmp_path / "base", tmp_path / "child", training={**training, "optimizer": "specialise"}, **text)
    assert child.checkpoint.card.inputs == (base.digest,)
    loaded = forge.load(tmp_path / "child", dtype="float16")
    assert (str(loaded.model.dtype), loaded.checkpoint.digest) == ("torch.float16", child.digest)
    assert loaded.tokenizer("the cat")["input_ids"]
    exported = forge.export(tmp_path / "child", tmp_path / "exported")
    assert (exported.path / "README.md").is_file()
    assert exported.missing == (base.digest,)
    with pytest.raises(UsageError, match="exists already"):
        forge.train(None, tmp_path / "base", **text)


def test_an_unknown_field_names_the_nearest(tmp_path: Path) -> None:
    settings = forge.CompressSettings(tries=3)
    with pytest.raises(ConfigError, match="unknown key 'max_incrase'; did you mean 'max_increase'"):
        forge.compress(tmp_path, tmp_path / "out", settings, max_incrase=0.1)
    with pytest.raises(ConfigError, match=r"tries: must be at least 1, got 0"):
        forge.compress(tmp_path, tmp_path / "out", forge.CompressSettings(tries=0))  # also what Python itself lets pass
    with pytest.raises(ConfigError, match=r"unknown key 'recipe\.lrr'; did you mean 'lr'"):
        forge.quantize(tmp_path, tmp_path / "out", recipe={"lrr": 1})


def test_a_default_exists_once() -> None:
    from agent_forge.forge.phases import phase

    classes = {"compression": forge.CompressSettings, "bitnet": forge.QuantizeSettings, "merge": forge.MergeSettings}
    for name, cls in {**classes, "evomerge": forge.Evolve}.items():
        config = phase(name).config  # the compression's has the demands of a last phase beside them
        assert issubclass(config, cls)
        assert all(getattr(config, field.name, None) == getattr(cls, field.name, None) for field in fields(cls))
        assert all(field.metadata.get("help") or field.type for field in fields(cls))


def test_the_doors_are_light_to_import() -> None:
    code = "import sys; from agent_forge import forge; forge.compress, forge.evaluate, forge.CompressSettings(); "
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print('torch' in sys.modules, callable(forge.export))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "True"]


def test_smollm2_is_a_base_by_name(tmp_path: Path) -> None:
    """It is written into the home folder once, not again, and has the size that its authors state."""
    try:
        first = find_model("SmolLM2", tmp_path)
    except MissingExtraError as error:
        pytest.skip(str(error))
    try:
        assert first.path == tmp_path / "models" / "smollm2"
        assert first.card.parameters == 134_515_008
        written = (first.path / "model.safetensors").stat()
        assert find_model("smollm2", tmp_path).digest == first.digest
        assert (first.path / "model.safetensors").stat() == written
    finally:
        shutil.rmtree(first.path)  # half a gigabyte, perhaps of main memory
