"""What phase 3 gave a model goes along through every later phase, or the phase says why it does not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests_forge_axes import tiny_config
from tests_lively import byte_tokenizer, lively
from transformers import LlamaConfig, LlamaForCausalLM

from agent_forge import cli, forge
from agent_forge.forge.checkpoint import Checkpoint, finish, load, staging
from agent_forge.forge.contracts import format_of
from agent_forge.forge.gates import PASSED, GateResult
from agent_forge.forge.models import CognateForCausalLM
from agent_forge.forge.phases import PhaseOutcome, Work, phase
from agent_forge.forge.phases.repack import run_phase_on
from agent_forge.forge.thoughts.folder import ThinkingFolder, load_thinking, save_heads
from agent_forge.forge.thoughts.generation import generate
from agent_forge.forge.thoughts.model import ThinkingModel
from agent_forge.inference.loading import load_model, load_tokenizer

PASS = GateResult("success", 0.0, 1.0, 0.1, PASSED)
CARRIED = "thoughts carried along, not judged again"
PRACTICE: dict[str, Any] = {
    "families": ["arithmetic"], "target": 0.2, "assessed": 2, "levels": 2, "exercises": 1, "attempts": 2, "rounds": 1,
    "recent": 1, "rows": 2, "replay": "text", "replay_rows": 2, "length": 12, "max_tokens": 2, "seeds": 1, "judged": 2,
    "held_out": 0.2, "compare_replay": False,
}  # fmt: skip
PACKING: dict[str, Any] = {
    "recipe": {"steps": 1, "batch_rows": 2, "length": 64, "evaluations": 0, "recoveries": 0, "start": "plain"},
    "demands": {"perplexity": 0, "accuracy": 0, "ratio": 0}, "most_judged": 400, "questions": 16, "held_out": 0.2,
}  # fmt: skip


def llama(width: int = 32) -> Any:
    sizes = {"hidden_size": width, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    return lively(LlamaForCausalLM(LlamaConfig(vocab_size=260, bos_token_id=0, eos_token_id=1, **sizes)))


def cognate() -> Any:
    return lively(CognateForCausalLM(tiny_config(vocab_size=260, bos_token_id=0, eos_token_id=1)))


def thinker(folder: Path, model: Any, seed: int = 0) -> Checkpoint:
    """A model whose thoughts change what it writes."""
    torch.manual_seed(seed)
    thinking = ThinkingModel.of(model, byte_tokenizer())
    for name in ("start", "end"):
        torch.nn.init.normal_(getattr(thinking, name), std=0.1)
    torch.nn.init.normal_(thinking.mixer.layers[-1].weight, std=0.3)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    save_heads(thinking, 3, folder)
    return load(folder)


def written(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The text of a thinking folder, and the weights of its thoughts."""
    thinking: ThinkingFolder = load_thinking(folder)
    out = generate(thinking.model, torch.tensor([[5, 80, 81, 33]]), max_new_tokens=6, thought_tokens=3, show=True)
    return out.tokens, torch.cat(out.weights)


def passing(change: Callable[[Any], Any] = lambda model: model) -> Callable[[Work], PhaseOutcome]:
    """A phase that saves a model the way they all do: weights and tokenizer."""

    def run(work: Work) -> PhaseOutcome:
        with staging(work.models) as place:
            change(load_model(work.inputs[0].path)).save_pretrained(place)
            load_tokenizer(work.inputs[0].path).save_pretrained(place)
            return PhaseOutcome(finish(place, work.card({}, {}), work.models), PASS)

    return run


def through(name: str, inputs: list[Checkpoint], place: Path, run: Callable[[Work], PhaseOutcome]) -> PhaseOutcome:
    kind = replace(phase(name), run=run)
    return run_phase_on(kind, Work(name, {}, inputs, 0, place / "work", place / "models"))


@pytest.mark.parametrize("make", [llama, cognate])
def test_a_phase_that_changes_nothing_hands_on_the_same_thoughts(make: Callable[[], Any], tmp_path: Path) -> None:
    base = thinker(tmp_path / "base", make())
    outcome = through("curriculum", [base], tmp_path, passing())
    made = outcome.checkpoint
    assert made is not None
    assert (outcome.gate.passed, outcome.gate.note) == (True, CARRIED)
    for one, two in zip(written(base.path), written(made.path), strict=True):
        assert torch.equal(one, two)
    assert load(made.path, made.digest).card.metrics["thoughts_bytes"].value > 1000
    assert [path.name for path in (tmp_path / "models").iterdir()] == [made.name], "nothing else is left"


def test_thoughts_that_cannot_go_along_are_dropped_aloud(tmp_path: Path) -> None:
    base, other = thinker(tmp_path / "base", llama()), thinker(tmp_path / "other", llama(), seed=1)
    wider = through("curriculum", [base], tmp_path / "a", passing(lambda model: llama(48)))
    assert wider.gate.note == "thoughts dropped: hidden_size was 32 and is 48"
    packed = through("compression", [base], tmp_path / "b", passing())
    assert packed.gate.note == "thoughts dropped: the result is judged by its bytes, and they would add to them"
    merged = through("merge", [base, other], tmp_path / "c", passing())
    assert merged.gate.note == "thoughts dropped: the inputs have different ones"
    for outcome in (wider, packed, merged):
        assert outcome.gate.passed
        assert outcome.checkpoint is not None
        assert not (outcome.checkpoint.path / "thoughts").exists()
    assert merged.gate.as_dict()["note"] == merged.gate.note
    assert through("merge", [base, base], tmp_path / "d", passing()).gate.note == CARRIED


def test_a_model_without_thoughts_gets_none_and_new_ones_stay(tmp_path: Path) -> None:
    base = thinker(tmp_path / "base", llama())

    def rethink(work: Work) -> PhaseOutcome:
        made = thinker(tmp_path / "new", llama(), seed=2)
        return PhaseOutcome(made, PASS)

    again = through("quietstar", [base], tmp_path / "a", rethink)
    assert (again.checkpoint, again.gate) == (load(tmp_path / "new"), PASS)
    plain = through("compression", [base], tmp_path / "b", passing()).checkpoint
    assert plain is not None
    assert through("curriculum", [plain], tmp_path / "c", passing()).gate == PASS


def test_thoughts_go_through_practice_and_packing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The real phases: one that trains, by its command, and one that packs."""
    rng = random.Random(0)
    rows = [" ".join(rng.choices(["the", "cat", "dog", "sees", "likes", "fish", "corn"], k=16)) for _ in range(40)]
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    base = thinker(tmp_path / "base", llama())
    settings, out = tmp_path / "practice.yaml", str(tmp_path / "practised")
    settings.write_text(json.dumps(PRACTICE))
    command = ["forge", "phase", "curriculum", str(base.path), out]
    assert cli.run([*command, "--config", str(settings), "--data", str(text)]) == 0
    assert f"no gain shown: 1 of 3 seeds; {CARRIED}" in " ".join(capsys.readouterr().out.split())
    sources = {"text": {"path": str(text)}}
    packed = forge.run_phase("bitnet", [out], tmp_path / "packed", sources=sources, **PACKING)
    assert format_of(packed.out) == "agent_forge_packed"
    assert packed.gate.note == CARRIED
    heads = [(Path(folder) / "thoughts" / "heads.safetensors").read_bytes() for folder in (base.path, out, packed.out)]
    assert heads[0] == heads[1] == heads[2]
    assert written(packed.out)[0].shape == (1, 10)
