"""A ternary model goes through a phase that trains: dense inside, packed before and after."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests_lively import byte_tokenizer, lively
from transformers import LlamaConfig, LlamaForCausalLM

from agent_forge import forge
from agent_forge.forge.checkpoint import Checkpoint, load
from agent_forge.forge.contracts import Contract, format_of
from agent_forge.forge.curriculum import job
from agent_forge.forge.gates import PASSED, GateResult
from agent_forge.forge.handoff import handoff
from agent_forge.forge.phases import PhaseOutcome, Work
from agent_forge.forge.phases.repack import packing_of, run_phase_on
from agent_forge.forge.session import ForgeSession
from agent_forge.inference.packed.model import DecoderBatch
from agent_forge.inference.torch_rows import torch_rows

DENSE, PASS = Contract(formats=("dense",)), GateResult("success", 0.0, 1.0, 0.1, PASSED)
STEP: dict[str, Any] = {
    "families": ["arithmetic"], "target": 0.2, "assessed": 2, "levels": 2, "exercises": 1, "attempts": 2, "rounds": 1,
    "recent": 1, "rows": 2, "replay": "text", "replay_rows": 2, "length": 12, "max_tokens": 2, "seeds": 1, "judged": 2,
    "held_out": 0.2, "compare_replay": False,
    "training": {"optimizer_changes": dict.fromkeys(("lr", "embedding_lr", "scalar_lr"), 1e-4)},
}  # fmt: skip


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, dict[str, Any]]:
    """A ternary model, and the text that it was quantised with."""
    place, rng = tmp_path_factory.mktemp("packed"), random.Random(0)
    rows = [" ".join(rng.choices(["the", "cat", "dog", "sees", "likes", "fish", "corn"], k=16)) for _ in range(40)]
    (place / "text.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=260, bos_token_id=0, eos_token_id=1, **sizes)
    lively(LlamaForCausalLM(config)).save_pretrained(place / "dense")
    byte_tokenizer().save_pretrained(place / "dense")
    sources = {"text": {"path": str(place / "text.jsonl")}}
    recipe = {"steps": 1, "batch_rows": 2, "length": 64, "evaluations": 0, "recoveries": 0, "start": "plain"}
    demands = {"perplexity": 0, "accuracy": 0, "ratio": 0}
    quantised: dict[str, Any] = {"recipe": recipe, "demands": demands, "most_judged": 400, "questions": 16}
    report = forge.run_phase("bitnet", [place / "dense"], place / "ternary", sources=sources, held_out=0.2, **quantised)
    assert report.accepted
    return load(place / "ternary"), sources


def test_a_packed_model_goes_through_a_phase_and_comes_back_packed(
    packed: tuple[Checkpoint, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The phase may say what it likes here: its gain is not what is tested."""
    ternary, sources = packed
    monkeypatch.setattr(job, "verdict", lambda *_: PASS)
    report = forge.run_phase("curriculum", [ternary.path], tmp_path / "out", sources=sources, **STEP)
    assert report.accepted
    assert format_of(report.out) == format_of(ternary.path) == "agent_forge_packed"
    assert report.digest != ternary.digest
    card = report.checkpoint.card
    assert {"perplexity_ratio", "held-out accuracy at the target level before"} <= set(card.metrics)
    model = forge.load(report.out, device="cpu").model
    rows = torch_rows(model)
    assert isinstance(rows, DecoderBatch), "the compiled decoder reads it"
    tokens = [5, 80, 81, 33]
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0, -1].float().numpy()
    np.testing.assert_allclose(rows.join([tokens])[0], expected, rtol=1e-2, atol=1e-2 * np.abs(expected).max())
    again, _ = handoff(DENSE, [report.checkpoint], "next", tmp_path / "models")
    assert packing_of(again[0]) == packing_of(handoff(DENSE, [ternary], "next", tmp_path / "models")[0][0])


def test_demands_that_the_packed_form_misses_are_no_gain(
    packed: tuple[Checkpoint, dict[str, Any]], tmp_path: Path
) -> None:
    dense = handoff(DENSE, [packed[0]], "next", tmp_path)[0][0]
    config = {**dense.card.config, "demands": {**dense.card.config["demands"], "ratio": 1e6}}
    strict = replace(dense, card=replace(dense.card, config=config))
    kind: Any = SimpleNamespace(run=lambda work: PhaseOutcome(work.inputs[0], PASS))
    outcome = run_phase_on(kind, Work("same", None, [strict], 0, tmp_path / "work", tmp_path))
    assert (outcome.checkpoint, outcome.gate.verdict) == (None, "no gain"), "the packed input goes on"


def test_without_a_gain_a_pipeline_goes_on_with_the_packed_input(
    packed: tuple[Checkpoint, dict[str, Any]], tmp_path: Path
) -> None:
    dense = handoff(DENSE, [packed[0]], "next", tmp_path)[0][0]
    registry: Any = SimpleNamespace(registry=SimpleNamespace(load={packed[0].digest: packed[0]}.get))
    assert ForgeSession._as_it_came(registry, dense) is packed[0]
    assert ForgeSession._as_it_came(registry, packed[0]) is packed[0]
