"""Policies: registered with a manifest, verified before use, and left to the baseline when anything has changed."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))
from agents_tiny_model import tiny_adapter, tiny_folder, tiny_model  # noqa: E402

from agent_forge.agents.policies import assign  # noqa: E402
from agent_forge.cli import run as cli  # noqa: E402
from agent_forge.errors import AgentForgeError, CheckpointError  # noqa: E402
from agent_forge.forge.adapters import load_adapter  # noqa: E402
from agent_forge.forge.policies import open_policy, register_policy  # noqa: E402
from agent_forge.forge.registry import Entry, Registry  # noqa: E402
from agent_forge.inference import Completion, model, use_recorder  # noqa: E402
from agent_forge.inference.local_model import LocalModel  # noqa: E402
from agent_forge.inference.policy import why_not  # noqa: E402
from agent_forge.model_files import digest_of, file_digest, known_digest  # noqa: E402
from agent_forge.rollout import Rollouts, policy_for  # noqa: E402
from agent_forge.traces import Recorder, Store  # noqa: E402

REPORT = {"before": {"mean": 0.1, "stderr": 0.02}, "after": {"mean": 0.4, "stderr": 0.03}}
QUESTION = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A base and an adapter to it; tests work on copies."""
    folder = tmp_path_factory.mktemp("made")
    return tiny_folder(folder / "base"), tiny_adapter(folder / "adapter", 1)


@pytest.fixture
def base(made: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made[0], tmp_path / "base"))


@pytest.fixture
def entry(made: tuple[Path, Path], base: Path, tmp_path: Path) -> Entry:
    return register_policy(made[1], base, "qa", REPORT, reward="qa-3", data="d1", home=tmp_path / "home")


def answer(client: Any) -> Completion:
    completion: Completion = asyncio.run(client.complete(QUESTION, max_tokens=12))
    return completion


def test_the_manifest_names_everything_by_digest(entry: Entry, made: tuple[Path, Path], base: Path) -> None:
    manifest = json.loads((entry.path / "policy.json").read_text())
    assert entry.name == "qa@1"
    assert entry.digest == digest_of(entry.path)
    assert manifest["base"] == {"folder": str(base), "digest": digest_of(base)}
    assert manifest["tokenizer"] == file_digest(base / "tokenizer.json")
    assert manifest["adapter"] == digest_of(made[1])
    assert manifest["template"] is not None
    assert (manifest["agent"], manifest["version"], manifest["reward"], manifest["data"]) == ("qa", 1, "qa-3", "d1")
    assert manifest["report"] == REPORT
    assert entry.parents == (digest_of(base),)
    registry = Registry(entry.path.parents[1])
    assert registry.find("qa@1") == registry.find(entry.digest[:12]) == registry.find(entry.name) == entry
    assert registry.find(entry.parents[0]).path == base  # beside its base, which stays where it was
    again = register_policy(made[1], base, "qa", home=registry)
    assert (again.name, again.digest == entry.digest) == ("qa@2", False)
    assert register_policy(made[1], base, "ops", home=registry).name == "ops@1"
    assert not set(registry.gc(dry=True, now_s=4e9).checkpoints) & {entry.digest, again.digest, entry.parents[0]}


def test_a_policy_answers_as_its_adapter_on_its_base(entry: Entry, made: tuple[Path, Path], base: Path) -> None:
    def adapted() -> tuple[Any, Any]:
        loaded, tokenizer = LocalModel(base).load()
        load_adapter(loaded, made[1])
        return loaded, tokenizer

    client = open_policy("qa@1", home=entry.path.parents[1], keep_tokens=True)
    expected = answer(LocalModel(adapted, keep_tokens=True))
    with Recorder(Store.open(":memory:")) as recorder, use_recorder(recorder):
        found = answer(client)
        recorder.flush()
        (span,) = recorder.store.search(kind="model", limit=9)
    assert (found.text, found.output_ids) == (expected.text, expected.output_ids)
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert found.text != answer(LocalModel(base)).text
    assert (client.name, client.policy, span.policy, span.model) == ("qa@1",) * 4
    assert [model(f"http://localhost/v1#{name}").policy for name in ("qa@1", "llama-3@main")] == ["qa@1", None]
    assert span.output_ids == list(found.output_ids or ())


def rewritten(file: str, old: bytes, new: bytes) -> Callable[[Path, Path], None]:
    def change(policy: Path, base: Path) -> None:
        path = (policy if file.startswith(("adapter", "policy")) else base) / file
        assert old in path.read_bytes()
        path.write_bytes(path.read_bytes().replace(old, new, 1))

    return change


def flipped(policy: Path, base: Path) -> None:
    data = bytearray((policy / "adapter_model.safetensors").read_bytes())
    data[-1] ^= 1
    (policy / "adapter_model.safetensors").write_bytes(data)


def another_base(policy: Path, base: Path) -> None:
    tiny_model(seed=5).save_pretrained(base)


CHANGES = {
    "one bit of the adapter": (flipped, "the adapter of qa@1"),
    "its settings": (rewritten("adapter_config.json", b'"lora_alpha": 4', b'"lora_alpha": 5'), "the adapter of qa@1"),
    "a file more": (lambda policy, base: (policy / "more.txt").write_text("x"), "the adapter of qa@1"),
    "other weights of the base": (another_base, "the base of qa@1 is another model"),
    "the base's tokenizer": (rewritten("tokenizer.json", b'"<|end|>"', b'"<|END|>"'), "the tokenizer of qa@1"),
    "the base's template": (rewritten("chat_template.jinja", b"m.role", b"m.rule"), "the template of qa@1"),
    "no base": (lambda policy, base: shutil.rmtree(base), "the base of qa@1 is not there"),
    "the manifest's claims": (rewritten("policy.json", b'"agent"', b'"argent"'), "the manifest cannot be read"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_was_changed_is_refused_and_the_baseline_serves(
    what: str, entry: Entry, base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    home = tmp_path / "home"
    assert cli(["models", "verify", "qa@1", "--home", str(home)]) == 0
    assert why_not(entry.path) is None
    change, why = CHANGES[what]
    change(entry.path, base)
    with pytest.raises(AgentForgeError, match=why):
        LocalModel(entry.path).load()
    with pytest.raises(AgentForgeError):
        open_policy("qa@1", home=home)
    baseline = LocalModel(lambda: (None, None), name="baseline")
    with caplog.at_level(logging.WARNING):
        assert open_policy("qa@1", baseline, home=home) is baseline
    assert "the baseline serves instead of qa@1" in caplog.text
    capsys.readouterr()
    assert cli(["models", "verify", entry.digest, "--home", str(home), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_a_rollout_serves_a_policy_until_it_is_changed(
    entry: Entry, base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    created = ["rollout", "create", "r", "--candidate", "qa@1", "--baseline", "rules", "--stages", "99.9,100"]
    assert cli([*created, "--home", str(home), "--json"]) == 0

    def served() -> tuple[Any, Any]:
        assignment, planner, _, chosen = assign("user-1", None, home, None, "auto", None)
        assert assignment is not None
        return (assignment.policy, assignment.why), chosen or planner

    assert served() == (("qa@1", None), str(entry.path))
    assert LocalModel(served()[1]).policy == "qa@1"
    with closing(Rollouts.open(home)) as rollouts:
        rollouts.promote("r")
    assert served() == (("qa@1", None), str(entry.path))  # and after it was promoted
    size = (base / "model.safetensors").stat().st_size
    another_base(entry.path, base)  # as large as before: only its bytes tell
    assert (base / "model.safetensors").stat().st_size == size
    (policy, why), serving = served()
    assert (policy, serving) == (None, None)
    assert "the base of qa@1 is another model" in why
    assert "the defaults serve instead of qa@1" in caplog.text
    with closing(Rollouts.open(home)) as rollouts:
        rollouts.create("next", candidate="qa@1", baseline="rules", stages=(0.999, 1.0))
    (policy, why), serving = served()
    assert (policy, serving) == ("rules", "rules")
    assert policy_for("user-1", home=home).policy == "qa@1"  # names and sizes alone do not tell


def test_the_command_line_takes_a_policy_by_its_name(entry: Entry, tmp_path: Path) -> None:
    import click

    from agent_forge.cli._options import home_option, model_option

    @click.command()
    @model_option
    @home_option
    def named(model: str | None, home: str | None) -> str | None:
        return model

    where = ["--home", str(tmp_path / "home")]
    for words, expected in [(["--model", "qa@1"], str(entry.path)), (["--model", "smollm2"], "smollm2"), ([], None)]:
        assert named.main([*words, *where], standalone_mode=False) == expected
    with pytest.raises(AgentForgeError, match="no checkpoint 'qa@9'"):
        named.main(["--model", "qa@9", *where], standalone_mode=False)


def test_a_whole_model_can_be_a_policy(made: tuple[Path, Path], tmp_path: Path, capsys: Any) -> None:
    base, home = made[0], tmp_path / "home"
    tuned = tiny_folder(tmp_path / "tuned", seed=3)
    entry = register_policy(tuned, base, "qa", home=home)
    assert answer(open_policy("qa@1", home=home)).text == answer(LocalModel(tuned)).text
    report = tmp_path / "report.json"
    report.write_text(json.dumps(REPORT))
    words = ["models", "register", str(made[1]), "--base", str(base), "--agent", "qa", "--report", str(report)]
    assert cli([*words, "--home", str(home), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policy"]["name"] == "qa@2"
    assert cli(["models", "ls", "--home", str(home)]) == 0
    out = capsys.readouterr().out
    assert "qa@1" in out
    assert "qa@2" in out
    (entry.path / "config.json").write_text("{}")
    with pytest.raises(AgentForgeError, match="qa@1"):
        LocalModel(entry.path).load()


def test_what_cannot_be_registered(made: tuple[Path, Path], tmp_path: Path) -> None:
    base, adapter = made
    home = tmp_path / "home"
    narrow = tmp_path / "narrow"
    tiny_model(context=8).save_pretrained(narrow)  # no tokenizer, but a model: it may be a base
    assert register_policy(adapter, narrow, "qa", home=home).name == "qa@1"
    for folder, beside, agent, why in [
        (adapter, base, "q/a", "cannot name a policy"),
        (adapter, tmp_path, "qa", "not a model folder"),
        (tmp_path, base, "qa", "cannot be read"),
    ]:
        with pytest.raises(CheckpointError, match=why):
            register_policy(folder, beside, agent, home=home)
    wrong = Path(shutil.copytree(adapter, tmp_path / "wrong"))
    (wrong / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    with pytest.raises(CheckpointError, match="IA3"):
        register_policy(wrong, base, "qa", home=home)
    with pytest.raises(CheckpointError, match="cannot be written"):
        register_policy(adapter, base, "qa", {"mean": float("nan")}, home=home)
    assert [each.name for each in Registry(home).ls("policy")] == ["qa@1"]
    assert not [path for path in (home / "models").iterdir() if path.name.startswith(".making")]
    assert known_digest(adapter / "adapter_config.json") == file_digest(adapter / "adapter_config.json")
