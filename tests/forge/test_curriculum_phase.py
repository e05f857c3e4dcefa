"""The curriculum phase in miniature: losses, gate, checkpoint, and that a killed run ends like one that was not."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests_forge_axes import tiny_config
from tests_lively import byte_tokenizer, lively
from transformers import LlamaConfig, LlamaForCausalLM

from agent_forge import forge
from agent_forge.config import build
from agent_forge.errors import ConfigError, HandoffError
from agent_forge.forge.checkpoint import load
from agent_forge.forge.corpus import read_corpus
from agent_forge.forge.curriculum import self_model
from agent_forge.forge.curriculum.job import School, forgetting, practise_curriculum, verdict
from agent_forge.forge.curriculum.lesson import LessonLoss, dream, lesson
from agent_forge.forge.curriculum.self_model import SelfModel
from agent_forge.forge.curriculum.settings import CurriculumSettings
from agent_forge.forge.models import CognateForCausalLM
from agent_forge.forge.phases import PhaseOutcome, Work, phase
from agent_forge.forge.training.packing import IGNORE, PackedRows
from agent_forge.tasks import Draft, Verdict, task_family

RATES = dict.fromkeys(("lr", "embedding_lr", "scalar_lr"), 0.01)
SMALL: dict[str, Any] = {
    "families": ["toy-letter"], "assessed": 4, "levels": 2, "exercises": 4, "attempts": 4, "rounds": 2, "recent": 4,
    "start": 1.0, "wall": 0.0, "rows": 8, "replay_rows": 2, "length": 12, "max_tokens": 4, "seeds": 2, "judged": 8,
    "save_every": 1, "held_out": 0.2, "training": {"optimizer": "reinforce", "optimizer_changes": RATES},
}  # fmt: skip


def check(answer: str, expected: Mapping[str, Any]) -> Verdict:
    return Verdict.of(answer == expected["right"], f"{answer} instead of {expected['right']}")


@task_family("toy-letter", check=check, schema={"enum": ["h", "c"]})
def toy_letter(rng: random.Random, level: float) -> Draft:
    return Draft(f"{rng.randrange(100)}", {"right": "h"})


@task_family("toy-chance", check=lambda answer, expected: Verdict.of(expected["lucky"], "no luck"))
def toy_chance(rng: random.Random, level: float) -> Draft:
    """Right with probability 1 - level / 2, whatever is answered."""
    return Draft(f"{rng.randrange(10**9)}", {"lucky": rng.random() < 1 - level / 2})


def model_of(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "cognate":
        return lively(CognateForCausalLM(tiny_config(vocab_size=260, bos_token_id=0, eos_token_id=1)))
    layers = 2 if kind == "blocks" else 1
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": layers, "num_attention_heads": 2}
    return lively(LlamaForCausalLM(LlamaConfig(vocab_size=260, bos_token_id=0, eos_token_id=1, **sizes)))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path, rng = tmp_path_factory.mktemp("text") / "text.jsonl", random.Random(0)
    rows = [" ".join(rng.choices(["the", "cat", "dog", "sees", "likes", "fish", "corn"], k=6)) for _ in range(40)]
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return {"sources": {"text": {"path": str(path)}}}


def run(folder: Path, kind: str, text: dict[str, Any], tell: Any = lambda **_: None, **changes: Any) -> PhaseOutcome:
    base = folder / "base"
    if not base.exists():
        model_of(kind).save_pretrained(base)
        byte_tokenizer().save_pretrained(base)
    config = build(CurriculumSettings, {**SMALL, **text, **changes})
    work = Work("curriculum", config, [load(base)], 3, folder / "work", folder / "models", tell)
    return phase("curriculum").run(work)


def killing(at: tuple[str, int], **fields: Any) -> None:
    if (fields.get("stage"), fields.get("step")) == at:
        raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["llama", "cognate"])
def test_the_phase_teaches_a_planted_letter(kind: str, text: dict[str, Any], tmp_path: Path) -> None:
    """Course and control learn it alike, which the phase calls no gain; the folder loads again."""
    outcome = run(tmp_path, kind, text)
    assert outcome.checkpoint is not None
    place, metrics = outcome.checkpoint.path, outcome.checkpoint.card.metrics
    report = json.loads((place / "curriculum" / "report.json").read_text())
    assert outcome.gate.verdict == "no gain"
    assert report["arms"]["course"]["accuracy"] == report["arms"]["uniform"]["accuracy"] == 1.0
    assert len(report["arms"]["course"]["by_seed"]) == 2
    assert set(report["replay, first seed"]) == {"dream", "text", "none"}
    assert {"forgetting course", "forgetting uniform", "forgetting replay none", "rounds"} <= set(metrics)
    assert "| uniform | 1.000 |" in (place / "curriculum" / "report.md").read_text()
    loaded = forge.load(place)
    school = School(
        loaded.model,
        loaded.tokenizer,
        read_corpus(build(CurriculumSettings, {**SMALL, **text}).sources, 0.2),
        build(CurriculumSettings, {**SMALL, **text}),
        3,
        tmp_path / "again",
        lambda **_: None,
    )
    assert school.respondent.right(school.exam).all(), "what was saved is what was judged"


def test_a_run_that_was_killed_ends_like_one_that_was_not(text: dict[str, Any], tmp_path: Path) -> None:
    few = {"compare_replay": False, "training": {**SMALL["training"], "optimizer_changes": {"lr": 1e-4}}}
    whole = run(tmp_path / "whole", "llama", text, **few)
    for stage, step in (("course, dream, seed 0", 2), ("uniform, dream, seed 1", 1)):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "killed", "llama", text, partial(killing, (stage, step)), **few)
    killed = run(tmp_path / "killed", "llama", text, **few)
    assert killed.gate == whole.gate
    names = ("model.safetensors", "curriculum/report.json")
    first, second = ([(o.checkpoint.path / n).read_bytes() for n in names] for o in (whole, killed))
    assert first == second


def test_the_assessment_finds_a_planted_level(text: dict[str, Any], tmp_path: Path) -> None:
    """Success is 1 - level / 2 by construction: 75 % at 0.5. With 100 exercises a level's standard error is 0.04."""
    config = build(
        CurriculumSettings,
        {**SMALL, **text, "families": ["toy-chance"], "assessed": 100, "max_tokens": 1, "start": 0.75},
    )
    corpus = read_corpus(config.sources, 0.2)
    school = School(model_of("llama"), byte_tokenizer(), corpus, config, 0, tmp_path, lambda **_: None)
    found = school.assessment("toy-chance")
    assert found.level == pytest.approx(0.5, abs=0.15)
    assert school.assessment("toy-chance") == found, "from its file"


def test_nothing_to_practise(text: dict[str, Any], tmp_path: Path) -> None:
    config = build(CurriculumSettings, {**SMALL, **text, "families": ["toy-chance"], "target": 0.01, "start": 0.75})
    tokenizer = byte_tokenizer()
    model, corpus = model_of("llama"), read_corpus(config.sources, 0.2)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    outcome = practise_curriculum(model, tokenizer, corpus, config, 0, tmp_path)
    assert (outcome.gate.verdict, outcome.ours) == ("not measured", [])
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_a_lesson_is_the_mean_of_the_answers_and_that_of_the_replay() -> None:
    """Against cross-entropies by hand, whatever the micro-batch; the prompt is not learnt."""
    model = model_of("llama").train()
    answers = [([5, 6, 7], [8, 1]), ([9], [10, 11, 12, 1])]
    rows = PackedRows(np.arange(20, 32).reshape(2, 6), np.zeros((2, 6), dtype=int))
    batch = lesson(answers, rows.take(slice(0, 2)), 0.3)
    assert batch is not None

    def nats(prompt: list[int], rest: list[int]) -> torch.Tensor:
        logits = model(torch.tensor([prompt + rest])).logits[0].log_softmax(-1)
        return -torch.stack([logits[len(prompt) + at - 1, token] for at, token in enumerate(rest)])

    replay = torch.cat([nats([first], list(range(first + 1, first + 6))) for first in (20, 26)])
    by_hand = torch.cat([nats(*pair) for pair in answers]).mean() + 0.3 * replay.mean()
    real = int((batch.targets != IGNORE).sum())
    for size in (1, 2, 8):
        parts = [LessonLoss()(model, p).item() * int((p.targets != IGNORE).sum()) / real for p in batch.split(size)]
        assert sum(parts) == pytest.approx(by_hand.item(), abs=1e-5)
    assert lesson([], None, 1.0) is None


def test_a_dream_of_the_model_itself_costs_nothing() -> None:
    model, other = model_of("llama"), model_of("cognate")
    rows = dream(model, 0, 3, 8, [1], seed=0)
    assert rows.tokens.shape == (3, 9)
    assert (rows.tokens[:, 0] == 0).all()
    batch = lesson([], rows.take(slice(0, 3)), 1.0)
    assert batch is not None
    (part,) = batch.split(8)
    assert LessonLoss(model)(model, part).item() == pytest.approx(0.0, abs=1e-5)
    assert LessonLoss(other.eval())(model, part).item() > 0.1


def test_the_self_model_is_the_best_linear_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against numpy's least squares: the value, and central differences of the least error, in which W moves along."""
    monkeypatch.setattr(self_model, "RIDGE", 1e-10)
    torch.manual_seed(0)
    x = torch.randn(60, 5, dtype=torch.float64, requires_grad=True)
    a = torch.cat([x.detach()[:, :2] @ torch.randn(2, 3, dtype=torch.float64), torch.randn(60, 2)], 1) + 3
    a = a.requires_grad_()
    scale = float(a.detach().square().mean())

    def least(x: np.ndarray, a: np.ndarray) -> float:
        known = np.concatenate([x, np.ones((len(x), 1))], 1)
        return float(np.square(known @ np.linalg.lstsq(known, a, rcond=None)[0] - a).mean()) / scale

    loss = SelfModel(5).double()(x, a)
    loss.backward()
    plain = [one.detach().numpy().copy() for one in (x, a)]
    assert loss.item() == pytest.approx(least(*plain), rel=1e-6)
    for which, place in ((0, (3, 1)), (0, (50, 4)), (1, (7, 0)), (1, (20, 4))):
        ends = []
        for step in (1e-5, -1e-5):
            moved = [one.copy() for one in plain]
            moved[which][place] += step
            ends.append(least(*moved))
        assert float((x, a)[which].grad[place]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4, abs=1e-9)
    assert SelfModel(5).double()(x, 2 * x - 1).item() < 1e-12, "what is linear is predicted"


@pytest.mark.parametrize("kind", ["blocks", "cognate"])
def test_the_self_model_reads_the_middle_and_the_last_block_at_the_targets(kind: str) -> None:
    model, weight = model_of(kind), 0.5
    rng = random.Random(0)
    batch = lesson([([5, 6, 7], rng.choices(range(260), k=size)) for size in (60, 59, 40)], None, 1.0)
    assert batch is not None
    (part,) = batch.split(8)
    states: list[torch.Tensor] = []
    for layer in model.base_model.layers:
        layer.register_forward_hook(lambda _, __, out: states.append(out[0] if isinstance(out, tuple) else out))
    plain = LessonLoss()(model, part)
    real = part.targets != IGNORE
    expected = plain + weight * SelfModel(32)(states[-1][real], states[0][real])
    assert int(real.sum()) == 159, "more than the 33 numbers that a column of W has"
    assert LessonLoss(None, SelfModel.of(model), weight)(model, part).item() == pytest.approx(expected.item(), rel=1e-6)
    assert expected.item() > plain.item() + 0.01


def test_self_modelling_leaves_the_other_arm_as_it_was_and_resumes(text: dict[str, Any], tmp_path: Path) -> None:
    """Without the loss every seed's course is, to the last bit, the course of a phase that knows nothing of it."""
    training = {**SMALL["training"], "optimizer_changes": {"lr": 1e-3}}
    few = {"compare_replay": False, "training": training, "seeds": 1, "replay": "text", "judged": 2, "assessed": 2,
           "rounds": 1}  # fmt: skip
    whole = run(tmp_path / "plain", "blocks", text, **few)
    asked = {**few, "self_modelling": 0.5, "compare_self_modelling": True}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", "blocks", text, partial(killing, ("course, text, seed 0", 2)), **asked)
    outcomes = [run(tmp_path / name, "blocks", text, **asked) for name in ("self", "killed")]
    plain, ours, killed = ((tmp_path / name / "work" / "judged") for name in ("plain", "self", "killed"))
    names = ("course without self-modelling-text-0.json", "course-text-0.json")
    other, with_it = (json.loads((ours / name).read_text()) for name in names)
    assert other == json.loads((plain / names[1]).read_text())
    assert with_it["nats"] != other["nats"], "the loss does something"
    assert with_it == json.loads((killed / names[1]).read_text())
    made = [one.checkpoint for one in outcomes]
    assert made[0].digest == made[1].digest
    names = forge.load(made[0].path).model.state_dict().keys()
    assert names == forge.load(whole.checkpoint.path).model.state_dict().keys()
    report = json.loads((made[0].path / "curriculum" / "report.json").read_text())
    assert set(report["self_modelling"]) == {"gain", "gain_stderr", "forgetting", "forgetting_stderr"}
    assert "Self-modelling changed accuracy by" in (made[0].path / "curriculum" / "report.md").read_text()
    with pytest.raises(HandoffError, match="at least two blocks"):
        run(tmp_path / "llama", "llama", text, **asked)
    with pytest.raises(ConfigError, match="no self_modelling to compare with"):
        build(CurriculumSettings, {"compare_self_modelling": True})


def test_the_gate_by_hand() -> None:
    """Four exercises, two seeds: gains of 0.5 and 0.25 over the control."""
    base = np.zeros(4)
    ours = np.array([[1, 1, 1, 1], [1, 1, 1, 0]], dtype=float)
    control = np.array([[1, 0, 1, 0], [1, 0, 1, 0]], dtype=float)
    gate = verdict(base, ours, control, (0.0, 0.0), 0.01)
    items, seeds = np.var([0, 1, 0, 0.5], ddof=1) / 4, np.var([0.5, 0.25], ddof=1) / 2
    assert (gate.before, gate.after, gate.control) == (0.0, 0.875, 0.5)
    assert gate.stderr == pytest.approx((items + seeds) ** 0.5)
    assert gate.verdict == "no gain", "0.375 is less than two standard errors"
    many = np.tile(ours, 100), np.tile(control, 100)
    sure = (np.zeros(400), np.ones((3, 400)), many[1][[0, 1, 0]])
    assert verdict(*sure, (0.0, 0.0), 0.01).passed
    assert verdict(*sure, (0.004, 0.003), 0.01).passed
    for seeds in (1, 2):
        few = verdict(np.zeros(400), np.ones((seeds, 400)), many[1][:seeds], (0.0, 0.0), 0.01)
        assert (few.after, few.verdict, few.note) == (1.0, "no gain", f"no gain shown: {seeds} of 3 seeds")
    assert not verdict(*sure, (0.004, 0.004), 0.01).passed, "forgetting that is not clearly bounded"
    assert not verdict(np.ones(400), np.ones((2, 400)), many[1], (0.0, 0.0), 0.01).passed, "no better than before"
    lost, error = forgetting(np.array([1.0, 2.0]), np.array([[2.0, 4.0], [2.0, 4.0]]), np.array([10.0, 20.0]))
    assert (lost, error) == (pytest.approx(0.1), pytest.approx(0.0))
    lost, error = forgetting(np.zeros(2), np.array([[1.0, 1.0], [3.0, 3.0]]), np.array([10.0, 10.0]))
    assert (lost, error) == (pytest.approx(0.2), pytest.approx(np.std([0.1, 0.3], ddof=1) / 2**0.5))
