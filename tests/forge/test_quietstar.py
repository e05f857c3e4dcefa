"""Phase 3 in miniature: its arms, controls, gate and checkpoint, and that a killed run goes on."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests_forge_axes import tiny_config
from transformers import LlamaConfig, LlamaForCausalLM

from agent_forge import cli, forge
from agent_forge.config import build
from agent_forge.errors import ConfigError, DataError, HandoffError
from agent_forge.forge.checkpoint import Checkpoint, load
from agent_forge.forge.corpus import Source
from agent_forge.forge.evolution.settings import Evolve
from agent_forge.forge.models import CognateForCausalLM
from agent_forge.forge.phases import ALIASES, PhaseOutcome, Work, phase, quietstar
from agent_forge.forge.phases.quietstar import QuietStar
from agent_forge.forge.pipeline import phase_key
from agent_forge.forge.thoughts.folder import load_thinking
from agent_forge.forge.thoughts.generation import generate
from agent_forge.forge.thoughts.traces import read_strategies, traces_of
from agent_forge.forge.training import train_tokenizer

SMALL = {
    "thought_tokens": 2,
    "ahead": 2,
    "positions": 4,
    "head_steps": 1,
    "steps": 2,
    "batch_rows": 2,
    "length": 16,
    "seeds": 2,
    "held_out": 0.2,
    "most_judged": 120,
    "training": {"log_every": 1, "save_every": 1},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    path, rng = tmp_path_factory.mktemp("data") / "text.jsonl", random.Random(0)
    words = ["the", "a", "cat", "dog", "hen", "fox", "sees", "eats", "likes", "fish", "bone", "corn"]
    rows = [" ".join(rng.choices(words, k=14)) for _ in range(60)]
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return Source(str(path))


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory, source: Source) -> dict[str, Checkpoint]:
    return {kind: make_base(kind, tmp_path_factory.mktemp(kind), source) for kind in ("cognate", "llama")}


def make_base(kind: str, folder: Path, source: Source) -> Checkpoint:
    torch.manual_seed(0)
    tokenizer = train_tokenizer([Path(source.path).read_text()], 300)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=300, **shape, bos_token_id=0, eos_token_id=1))
    if kind == "cognate":
        model = CognateForCausalLM(tiny_config(vocab_size=300))
        for name, parameter in model.named_parameters():  # a new one begins as the identity
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load(folder)


def run(folder: Path, base: Checkpoint, source: Source, **changes: Any) -> PhaseOutcome:
    config = QuietStar({"text": source}, **{**SMALL, **{k: v for k, v in changes.items() if k != "tell"}})
    tell = {"tell": changes["tell"]} if "tell" in changes else {}
    return quietstar.run(Work("mini", config, [base], 7, folder / "work", folder / "models", **tell))


@pytest.fixture(scope="module")
def outcomes(bases: dict[str, Checkpoint], source: Source, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    torch.set_num_threads(1)
    return {kind: run(tmp_path_factory.mktemp("run"), base, source) for kind, base in bases.items()}


@pytest.mark.parametrize("kind", ["cognate", "llama"])
def test_the_phase_makes_a_model_that_thinks(kind: str, outcomes: dict[str, PhaseOutcome]) -> None:
    """A few steps teach nothing, and the phase says so; every control is on the card, and the folder loads again."""
    outcome = outcomes[kind]
    assert (outcome.gate.verdict, outcome.gate.metric) == ("no gain", "nats per token, hardest tenth")
    checkpoint = outcome.checkpoint
    assert checkpoint is not None
    metrics = checkpoint.card.metrics
    for control in ("before", "zero", "shuffled", "pause", "plain"):
        assert metrics[f"nats, hardest tenth, thoughts minus {control}"].stderr > 0
        assert "2 seeds" in metrics[f"nats, all tokens, {control}"].how
    assert metrics["nats, hardest tenth, before"].value == pytest.approx(outcome.gate.before)
    assert {"thought nats per token", "thought relevance", "weight of thoughts"} <= metrics.keys()
    assert load(checkpoint.path, checkpoint.digest) == checkpoint
    thinking = load_thinking(checkpoint.path)
    prompt = torch.tensor([thinking.tokenizer("the cat sees")["input_ids"]])
    out = generate(thinking.model, prompt, max_new_tokens=2, thought_tokens=thinking.thought_tokens, show=True)
    assert out.tokens.shape[1] == prompt.shape[1] + 2
    assert out.thoughts[0].shape == (1, 2)
    assert float(thinking.model.mixer.layers[-1].weight.abs().max()) > 0, "the mixing head has learnt"


def test_killed_in_the_middle_it_ends_with_the_same_model(
    bases: dict[str, Checkpoint], source: Source, outcomes: dict[str, PhaseOutcome], tmp_path: Path
) -> None:
    class Killed(BaseException):
        pass

    seen: list[tuple[str, int]] = []

    def die(**record: Any) -> None:
        if "step" in record:
            seen.append((record["stage"], record["step"]))
            if len(seen) == 3:
                raise Killed

    base, whole = bases["cognate"], outcomes["cognate"]
    with pytest.raises(Killed):
        run(tmp_path, base, source, tell=die)
    assert not (tmp_path / "models").exists()
    again: list[tuple[str, int]] = []
    note = lambda **record: again.append((record["stage"], record["step"])) if "step" in record else None  # noqa: E731
    resumed = run(tmp_path, base, source, tell=note)
    assert whole.checkpoint is not None
    assert resumed.checkpoint is not None
    assert (seen[-1], again[0]) == (("thoughts, seed 0", 3), ("thoughts, seed 0", 3)), "step 3 was not saved yet"
    assert resumed.checkpoint.digest == whole.checkpoint.digest
    assert resumed.gate == whole.gate


def test_the_cheaper_form_runs(bases: dict[str, Checkpoint], source: Source, tmp_path: Path) -> None:
    outcome = run(tmp_path, bases["cognate"], source, form="rlp", thoughts=1, seeds=1, head_steps=0, steps=1)
    assert (outcome.gate.verdict, outcome.gate.note) == ("no gain", "no gain shown: 1 of 3 seeds")
    assert outcome.checkpoint is not None
    assert not any("average" in name for name in load_thinking(outcome.checkpoint.path).model.state_dict())


@pytest.mark.parametrize(
    ("field", "value", "answer"),
    [
        ("thought_length", 8, "it is `thought_tokens` here"),
        ("num_thoughts", 4, "it is `thoughts` here"),
        ("coherence_threshold", 0.7, "coherence is measured"),
        ("thoughts", 1, "needs another one"),
        ("form", "rlp", "one thought per position"),
        ("training", {"steps": 3}, "belongs beside"),
    ],
)
def test_settings_are_refused_by_name(field: str, value: Any, answer: str) -> None:
    with pytest.raises(ConfigError, match=answer):
        build(QuietStar, {"sources": {"text": {"path": "stories"}}, field: value})


def test_the_techniques_of_a_merge_are_named() -> None:
    with pytest.raises(ConfigError, match=r"it is `search\.techniques` here"):
        build(Evolve, {"data": {"stories": {"path": "stories"}}, "techniques": ["slerp"]})


SOLUTION = "He got 5*40=<<5*40=200>>200 pages\nSo they last 200/4=<<200/4=50>>50 days\n#### 50"


def test_strategies_are_data(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"question": "How many days?", "answer": SOLUTION}) + "\n")
    for name, text in (
        ("steps", "He got 5*40=200 pages So they last 200/4=50 days"),
        ("parts", "First part: He got 5*40=200 pages The rest: So they last 200/4=50 days"),
        ("check", "He got 5*40=200 pages So they last 200/4=50 days Check: So they last 200/4=50 days That gives 50."),
    ):
        (trace,) = traces_of(str(rows), {name: read_strategies()[name]})
        assert (trace.strategy, trace.question, trace.thought, trace.answer) == (name, "How many days?", text, "50")
    doubt = traces_of(str(rows), {"doubt": "Is it {guess}?"})[0].thought
    assert doubt == "Is it 5?"
    own = tmp_path / "own.yaml"
    for text, answer in (
        ("a: '{nothing}'", "has a field 'nothing'"),
        ("[]", "a name and a text"),
        ("a: '{'", "cannot"),
    ):
        own.write_text(text)
        with pytest.raises(ConfigError, match=answer):
            read_strategies(str(own))
    rows.write_text(json.dumps({"question": "How many?", "answer": "50"}) + "\n")
    with pytest.raises(DataError, match="#### 42"):
        traces_of(str(rows), read_strategies())


def test_traces_are_learnt_first(bases: dict[str, Checkpoint], source: Source, tmp_path: Path) -> None:
    """Also by a model whose vocabulary has no tokens for thoughts; marks are read, but never predicted."""
    rows, folder = tmp_path / "rows.jsonl", tmp_path / "base"
    rows.write_text("".join(json.dumps({"question": f"{n} days?", "answer": SOLUTION}) + "\n" for n in range(40)))
    shutil.copytree(bases["llama"].path, folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / file).read_text()
        (folder / file).write_text(text.replace("<|startofthought|>", "<|a|>").replace("<|endofthought|>", "<|b|>"))
    fast = {"optimizer_changes": {"lr": 0.02, "embedding_lr": 0.02, "scalar_lr": 0.02}}
    small = {"seeds": 1, "head_steps": 0, "steps": 1, "length": 64, "positions": 2, "most_judged": 60}
    outcome = run(tmp_path, load(folder), source, traces=str(rows), trace_steps=12, **small, training=fast)
    assert outcome.checkpoint is not None
    thinking = load_thinking(outcome.checkpoint.path).model
    assert (thinking.start_id, thinking.end_id) == (300, 301)
    metrics = outcome.checkpoint.card.metrics
    changes = [metric.value for name, metric in metrics.items() if name.endswith(", change")]
    assert max(changes) < -0.1, "one solution, forty times"
    assert {name.split(", ")[1] for name in metrics if name.startswith("trace nats")} <= set(read_strategies())


def test_one_phase_by_command_and_in_python(
    bases: dict[str, Checkpoint], source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same settings give the same model; a phase that makes nothing without gain leaves its input."""
    small = {**SMALL, "seeds": 1, "head_steps": 0, "steps": 1}
    settings = tmp_path / "small.yaml"
    settings.write_text(json.dumps(small))
    base = str(bases["llama"].path)
    command = ["forge", "phase", "quietstar", base, str(tmp_path / "a"), "--config", str(settings)]
    assert cli.run([*command, "--data", source.path, "--seed", "3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    report = forge.run_phase("quietstar", [base], tmp_path / "b", QuietStar({source.path: source}, **small), seed=3)
    assert (document["digest"], document["accepted"]) == (report.digest, False)
    assert load_thinking(tmp_path / "a").thought_tokens == 2
    assert report.checkpoint.card.phase == "quietstar"
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "small.yaml"}, "nothing else is left"
    made = forge.run_phase("toys.nothing", [base], tmp_path / "c", tell=lambda **_: None)
    assert (made.digest, made.gate.verdict) == (bases["llama"].digest, "no gain")
    with pytest.raises(HandoffError, match="exactly 1 checkpoints, found 2"):
        forge.run_phase("quietstar", [base, base], tmp_path / "d")
    assert cli.run([*command, "--set", "thought_length=3"]) == 2
    assert "thought_tokens" in capsys.readouterr().err


def test_the_names_of_the_specification() -> None:
    assert phase("final_compression") is phase("compression")
    config = build(phase("compression").config, {})
    keys = {phase_key(name, phase(name), config, [], 0) for name in ("compression", "final_compression")}
    assert len(keys) == 1, "finished work is found by either name"
    assert (ALIASES["forge"], ALIASES["edge"]) == ("curriculum", "experts")
