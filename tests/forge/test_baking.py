"""Prompt baking: closed forms, brute force, mutations that must not pass for success, and the phase on a toy."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from _baking_toys import (  # noqa: E402
    ALSO_PIRATE,
    HELD_OUT,
    KL,
    LEARNT,
    PIRATE,
    SWAP,
    toy,
    untaught,
)
from tests_forge_axes import tiny_config  # noqa: E402

from agent_forge.config import build  # noqa: E402
from agent_forge.errors import ConfigError, UsageError  # noqa: E402
from agent_forge.forge import gates  # noqa: E402
from agent_forge.forge.adapters import (  # noqa: E402
    LoraLinear,
    adapted_layers,
    add_adapter,
    load_adapter,
    merge_adapter,
)
from agent_forge.forge.baking import BakeSettings, Baking, BakingError, bake, prompt_baking  # noqa: E402
from agent_forge.forge.baking.behaviours import behaviours  # noqa: E402
from agent_forge.forge.baking.prompt_baking import (  # noqa: E402
    AnswerRows,
    BakingPrompt,
    HeldOutAnswers,
    PromptBaking,
    question_tokens,
    teacher_states,
)
from agent_forge.forge.baking.text_classifier import TextClassifier  # noqa: E402
from agent_forge.forge.checkpoint import Metric, load  # noqa: E402
from agent_forge.forge.evaluation.logistic import fit_logistic  # noqa: E402
from agent_forge.forge.gates import NO_GAIN, PASSED  # noqa: E402
from agent_forge.forge.models import CognateForCausalLM  # noqa: E402
from agent_forge.forge.phases import Work, baking, phase  # noqa: E402
from agent_forge.forge.training.checkpoint import load_checkpoint  # noqa: E402
from agent_forge.forge.training.settings import LoraSettings  # noqa: E402
from agent_forge.inference.loading import load_model  # noqa: E402

FAST = BakeSettings(samples=4, answer_tokens=3, steps=40, batch_rows=32, lr=1e-2, lora=LoraSettings(rank=4, alpha=8))
SHORT = replace(FAST, steps=6)


def bake_toy(folder: Path, settings: BakeSettings = SHORT, **more: Any) -> tuple[Any, list[Any]]:
    model, tokenizer = toy("parity")
    reports = bake(model, tokenizer, SWAP, LEARNT, HELD_OUT, settings, folder, **more)
    return model, reports


def test_baking_closes_a_divergence_that_is_known(tmp_path):
    model, (report,) = bake_toy(tmp_path, FAST)
    assert report.before == pytest.approx(KL, rel=0.2)  # the closed form; the toy has learnt its table nearly
    assert report.closed > 0.9
    _, tokenizer = toy("parity")
    for question in HELD_OUT[:4]:
        logits = model(torch.tensor([question_tokens(model, tokenizer, question)])).logits[0, -1]
        expected = "yes" if int(question[1]) % 2 == 0 else "no"
        assert tokenizer.decode(int(logits.argmax())) == expected  # what it says after "swap", now without it


def rows_of(tokens: list[tuple[list[int], list[int]]]) -> AnswerRows:
    contexts, answers = zip(*tokens, strict=True)
    return AnswerRows.of(contexts, answers, each=True)


@pytest.mark.parametrize("kind", ["llama", "cognate"])
def test_the_loss_is_the_divergence_token_by_token(kind):
    torch.manual_seed(3)
    if kind == "llama":
        model = untaught(toy("parity")[1])
    else:
        model = CognateForCausalLM(tiny_config())
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    model.eval()
    answers = [[3, 1], [4, 5, 6, 1], [7]]
    prompted = [([2, 9, 8], answers[0]), ([2, 2, 9], answers[1]), ([2, 8, 8, 8, 8], answers[2])]
    plain = [([9, 8], answers[0]), ([9], answers[1]), ([8], answers[2])]

    def log_probabilities(context: list[int], answer: list[int]) -> Any:
        with torch.no_grad():
            logits = model(torch.tensor([[*context, *answer]]), use_cache=False).logits[0, len(context) - 1 : -1]
        return logits.double().log_softmax(-1)

    teachers = [log_probabilities(*row) for row in prompted]
    states = teacher_states(model, rows_of(prompted))
    add_adapter(model, LoraSettings(rank=2))
    for _, layer in adapted_layers(model):
        torch.nn.init.normal_(layer.lora_B, std=0.1)
    students = [log_probabilities(*row) for row in plain]
    sums = [(t.exp() * (t - s)).sum() for t, s in zip(teachers, students, strict=True)]
    expected = float(sum(sums)) / 7
    batch = rows_of(plain).take([2, 0, 1])  # in another order than the teacher's
    loss = PromptBaking(states)(model, batch)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-4)
    assert expected > 0.01
    loss.backward()
    learning = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert learning
    assert all("lora_" in name for name in learning)
    hard = float(PromptBaking(states, hard=1.0)(model, batch).detach())
    right = [s.gather(1, torch.tensor(a)[:, None]).sum() for s, a in zip(students, answers, strict=True)]
    assert hard == pytest.approx(-float(sum(right)) / 7, rel=1e-4)


def test_a_student_without_its_adapter_is_refused(tmp_path, monkeypatch):
    """Mutation: the adapter is off for teacher and student alike, so they are one function."""
    monkeypatch.setattr(LoraLinear, "forward", lambda self, x: self.base(x))
    with pytest.raises(BakingError, match="does not depend on the adapter"):
        bake_toy(tmp_path)


def test_a_student_that_stays_the_teacher_is_refused(tmp_path, monkeypatch):
    """Mutation: the adapter is part of the graph, and its product is zero."""
    monkeypatch.setattr(LoraLinear, "forward", lambda self, x: self.base(x) + 0.0 * self.lora_B.sum())
    with pytest.raises(BakingError, match="one function"):
        bake_toy(tmp_path)


def test_a_teacher_that_moves_with_the_student_is_refused(tmp_path, monkeypatch):
    """Mutation: switching the adapter off does nothing, so the teacher is the student."""
    monkeypatch.setattr(prompt_baking, "without_adapter", lambda model: nullcontext())
    with pytest.raises(BakingError, match="the teacher has moved"):
        bake_toy(tmp_path)


def test_half_baking_by_interpolation_is_half_way(tmp_path):
    start, _ = toy("parity")
    full, _ = bake_toy(tmp_path / "full")
    half, (report,) = bake_toy(tmp_path / "half", replace(SHORT, strength=0.5))
    ends = [dict(model.named_parameters()) for model in (start, full, half)]
    for name in ends[0]:
        middle = (ends[0][name].double() + ends[1][name].double()) / 2
        torch.testing.assert_close(ends[2][name].double(), middle, rtol=0, atol=1e-6)
    assert report.strength == 0.5


def test_half_baking_by_an_early_stop_is_the_same_run_cut_off(tmp_path):
    def stop(**record: Any) -> None:
        if record.get("step") == 5:
            raise KeyboardInterrupt

    whole = replace(SHORT, steps=8)
    _, (early,) = bake_toy(tmp_path / "early", replace(whole, stop=0.5))
    assert early.steps == 4
    with pytest.raises(KeyboardInterrupt):
        bake_toy(tmp_path / "whole", whole, tell=stop)
    ends = [
        load_checkpoint(tmp_path / run / "round-1" / "training" / "step-00000004")[0]["model"]
        for run in ("early", "whole")
    ]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    assert any("lora_B" in name for name in ends[0])


def test_pursuit_prompts_the_baked_model_again(tmp_path):
    model, (first, second) = bake_toy(tmp_path, replace(SHORT, pursuit=2))
    assert (first.round, second.round) == (1, 2)
    assert second.before != first.before  # another teacher: the baked model, prompted
    rebuilt, _ = toy("parity")
    for number in (1, 2):
        load_adapter(rebuilt, tmp_path / f"round-{number}" / "adapter")
        merge_adapter(rebuilt)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight, rebuilt.get_parameter(name), rtol=0, atol=1e-6)


def test_a_bake_that_was_stopped_continues_to_the_same_weights(tmp_path):
    whole, _ = bake_toy(tmp_path / "whole")

    def stop(**record: Any) -> None:
        if record.get("step") == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bake_toy(tmp_path / "parts", tell=stop)
    steps: list[int] = []
    parts, _ = bake_toy(tmp_path / "parts", tell=lambda **record: steps.append(record["step"]))
    assert min(steps) > 1
    for name, weight in whole.named_parameters():
        assert torch.equal(weight, parts.get_parameter(name)), name


def test_what_cannot_be_baked_is_refused(tmp_path):
    model, tokenizer = toy("parity")
    with pytest.raises(UsageError, match="no prompt to bake"):
        bake(model, tokenizer, BakingPrompt(), LEARNT, HELD_OUT, SHORT, tmp_path)
    with pytest.raises(UsageError, match="the model reads 64"):
        HeldOutAnswers.of(model, tokenizer, BakingPrompt("swap " * 60), HELD_OUT, FAST, 0)


# ------------------------------------------------------------------------------------------------ behaviours


def test_tool_requests_show_no_schema_and_none_is_in_two_sets():
    config = Baking(cycles=("tools",), questions=12, watched=6, judged=6, variants=1, demonstrations=5)
    (tools,) = behaviours(None, None, config, 0)
    texts = [question.text for part in (tools.learnt, tools.watched, tools.judged) for question in part]
    shown = [question for prompt in (tools.prompt, *tools.variants) for question, _ in prompt.shown]
    assert len({*texts, *shown}) == len(texts) + len(shown) == 34
    assert not any("Tools:" in text or "properties" in text for text in texts)
    assert len({json.loads(answer)["calls"][0]["tool"] for _, answer in tools.prompt.shown}) > 2
    for _, answer in tools.prompt.shown:
        assert json.loads(answer)["calls"][0]["tool"] in tools.prompt.system
    right = [json.dumps(question.expected.solution()) for question in tools.judged]
    assert tools.score(tools.judged, right) == [1.0] * 6
    assert tools.score(tools.judged, ['{"calls": []}', "no", *right[2:]]) == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    with pytest.raises(ConfigError, match="different requests"):
        behaviours(None, None, replace(config, level=0.0, judged=30), 0)


def test_function_calls_from_a_folder_of_cases(tmp_path):
    cases, truths = [], []
    for number in range(12):
        function = {"name": f"area{number}", "parameters": {"base": {"type": "integer"}}}
        asked = [[{"role": "user", "content": f"Area with base {number}?"}]]
        cases.append({"id": f"c{number}", "question": asked, "function": [function]})
        truths.append({"id": f"c{number}", "ground_truth": [{f"area{number}": {"base": [number], "unit": ["", "m"]}}]})
    for name, rows in (("simple_python", cases), ("simple_python_answers", truths)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    config = Baking(
        cycles=("tools",), data=str(tmp_path), questions=3, watched=2, judged=4, variants=0, demonstrations=2
    )
    (tools,) = behaviours(None, None, config, 0)
    for question, answer in tools.prompt.shown:
        number = int(json.loads(question.splitlines()[0])["name"].removeprefix("area"))
        assert answer == f"[area{number}(base={number})]"
    right = [f"[{next(iter(q.expected.accepted[0]))}(base={q.text.split()[-1][:-1]})]" for q in tools.judged]
    assert tools.score(tools.judged, [*right[:3], "area(base=0)"]) == [1.0, 1.0, 1.0, 0.0]
    assert not {q.text for q in tools.judged} & {q.text for q in (*tools.learnt, *tools.watched)}
    assert set(phase("baking").data(config)) == {"stories", "bfcl"}
    with pytest.raises(ConfigError, match="has 12 cases, and 20 are needed"):
        behaviours(None, None, replace(config, judged=13), 0)


def test_the_classifier_is_at_the_optimum_of_its_loss():
    """The gradient of the balanced loss, written out, is zero there."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 6))
    y = (x[:, 0] + 0.5 * rng.normal(size=40) > 0.4).astype(int)
    weight, bias = (part.numpy() for part in fit_logistic(torch.from_numpy(x), y.tolist(), 0.01, balanced=True))
    odds = np.exp(x @ weight.T + bias)
    off = odds / odds.sum(1, keepdims=True) - np.eye(2)[y]
    share = np.where(y > 0, 0.5 / y.mean(), 0.5 / (1 - y.mean()))[:, None] / 40
    assert np.abs((share * off).T @ x + 0.02 * weight).max() < 1e-7
    assert np.abs((share * off).sum(0)).max() < 1e-7
    alike = TextClassifier.fit(["arrr matey", "ahoy", "good day", "hello"], [True, True, False, False])
    pirate, plain = alike.probabilities(["arrr ahoy", "good hello"])
    assert pirate > 0.7
    assert plain < 0.3


def test_settings_that_cannot_work_are_refused_by_name():
    with pytest.raises(ConfigError, match="each cycle once"):
        Baking(cycles=("tools", "tools"))
    with pytest.raises(ConfigError, match="other prompts"):
        Baking(paraphrases=(Baking().persona,))
    with pytest.raises(ConfigError, match="unknown key 'half_bake_strength'"):
        build(Baking, {"half_bake_strength": 0.5}, "baking")
    with pytest.raises(ConfigError, match="strength"):
        build(Baking, {"bake": {"strength": 2}}, "baking")


# ------------------------------------------------------------------------------------------------ the phase


@pytest.fixture(scope="module")
def greeter(tmp_path_factory) -> Path:
    model, tokenizer = toy("greeter")
    folder = tmp_path_factory.mktemp("greeter")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    words = sorted(tokenizer.get_vocab())  # its own order differs from run to run
    rng = np.random.default_rng(0)
    rows = [{"text": " ".join(rng.choice(words[3:], 12))} for _ in range(60)]
    (folder / "text.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return folder


def work_on(folder: Path, place: Path, **changes: Any) -> Work:
    config = {
        "cycles": ["persona"], "persona": PIRATE, "paraphrases": list(ALSO_PIRATE), "questions": 16, "watched": 6,
        "judged": 12, "classifier_questions": 12, "variants": 1, "turns": 2, "seeds": 2, "most_forgotten": 1e9,
        "text": {"words": {"path": str(folder / "text.jsonl")}}, "documents": 4,
        "bake": {"samples": 2, "answer_tokens": 3, "steps": 20, "batch_rows": 16, "lr": 0.01, "lora": {"rank": 4}},
    }  # fmt: skip
    settings = build(Baking, {**config, **changes}, "baking")
    return Work("baking", settings, [load(folder)], 0, place / "work", place / "models")


def test_the_phase_bakes_a_persona_and_shows_it(greeter, tmp_path, monkeypatch):
    monkeypatch.setattr(gates, "SEEDS", 2)  # for a test, two are enough
    work = work_on(greeter, tmp_path)
    outcome = baking.run(work)
    assert outcome.gate.verdict == PASSED
    assert outcome.gate.after > 0.8
    assert outcome.gate.control is not None
    figures = outcome.checkpoint.card.metrics
    assert figures["persona_kl_closed_baked"].value > 0.8
    assert figures["persona_kept_baked"].n == figures["forgotten_control"].n == 2  # seeds
    report = json.loads((outcome.checkpoint.path / "baking.json").read_text())
    assert report["order"][0]["cycle"] == "persona"
    assert len(report["order"][0]["bakes"]) == 1
    assert report["baselines"]["persona"]["moves"] is True
    model = load_model(outcome.checkpoint.path)
    _, tokenizer = toy("greeter")
    asked = torch.tensor([question_tokens(model, tokenizer, "How do I make soup?")])
    assert tokenizer.decode(int(model(asked).logits[0, -1].argmax())) == "arrr"
    rebuilt, _ = toy("greeter")
    for adapter in sorted((outcome.checkpoint.path / "adapters").iterdir()):
        load_adapter(rebuilt, adapter)
        merge_adapter(rebuilt)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight, rebuilt.get_parameter(name), rtol=0, atol=1e-6)

    def never(**record: Any) -> None:
        assert "step" not in record, "it has trained again"

    again = baking.run(replace(work, tell=never))  # everything is in its folder
    assert again.checkpoint.digest == outcome.checkpoint.digest
    assert again.gate == outcome.gate
    shutil.rmtree(work.folder)


@pytest.mark.parametrize(
    ("kept", "forgotten", "seeds", "verdict"),
    [(0.8, 0.034, 3, PASSED), (0.79, 0.0, 3, NO_GAIN), (1.0, 0.035, 3, NO_GAIN), (0.9, 0.0, 1, NO_GAIN)],
)
def test_the_gate_wants_most_of_the_gain_and_little_forgotten(kept, forgotten, seeds, verdict):
    moving = [SimpleNamespace(behaviour=SimpleNamespace(name=name)) for name in ("tools", "persona")]
    metrics = {"tools_kept_baked": Metric(1.0, n=seeds), "persona_kept_baked": Metric(kept, 0.01, seeds)}
    more = {
        "persona_kept_control": Metric(0.5),
        "tools_kept_control": Metric(0.6),
        "forgotten_baked": Metric(forgotten),
    }
    gate = baking.verdict(moving, {**metrics, **more}, Baking())
    assert gate.verdict == verdict
    assert gate.note == ("" if seeds == 3 else "no gain shown: 1 of 3 seeds")
    assert gate.after == kept  # the worst behaviour counts
    assert baking.verdict([], {}, Baking()).metric.startswith("nothing to bake")


def test_a_prompt_that_does_nothing_is_not_baked(greeter, tmp_path):
    work = work_on(greeter, tmp_path, persona="bake bread", paraphrases=["make soup"])
    outcome = baking.run(work)
    assert outcome.gate.metric.startswith("nothing to bake")
    assert outcome.gate.verdict == NO_GAIN
    assert outcome.checkpoint.card.notes.startswith("nothing to bake")
    assert not (outcome.checkpoint.path / "adapters").exists()
    assert not (work.folder / "seed-0").exists()


def test_a_cognate_is_baked_like_any_other(tmp_path):
    _, tokenizer = toy("parity")
    tokenizer.chat_template = None  # as a Cognate's: turns are lines of text
    torch.manual_seed(0)
    model = CognateForCausalLM(tiny_config(vocab_size=len(tokenizer), sliding_window=32, loops=2))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    (report,) = bake(model.eval(), tokenizer, SWAP, LEARNT[:8], HELD_OUT[:4], replace(SHORT, steps=3), tmp_path)
    assert report.before > 0
    assert not list(adapted_layers(model))
