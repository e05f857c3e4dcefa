"""The experts phase on a planted toy: two domains with opposite right answers, each solved by its own vector."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests_forge_axes import tiny_config  # noqa: E402
from tests_lively import byte_tokenizer, lively  # noqa: E402

from agent_forge import forge  # noqa: E402
from agent_forge.config import build  # noqa: E402
from agent_forge.errors import ConfigError  # noqa: E402
from agent_forge.forge.adapters import add_adapter  # noqa: E402
from agent_forge.forge.checkpoint import load  # noqa: E402
from agent_forge.forge.corpus import Source  # noqa: E402
from agent_forge.forge.experts.bank import ExpertBank, read_expert, read_experts, weights_digest  # noqa: E402
from agent_forge.forge.experts.dispatch import DomainClassifier, prompt_states  # noqa: E402
from agent_forge.forge.experts.domains import Domain, choose_domains  # noqa: E402
from agent_forge.forge.experts.job import DomainResult, Workshop, equal_adapter, verdict  # noqa: E402
from agent_forge.forge.experts.settings import Discovery, ExpertSettings  # noqa: E402
from agent_forge.forge.models import CognateForCausalLM  # noqa: E402
from agent_forge.forge.phases import PhaseOutcome, Work, phase  # noqa: E402
from agent_forge.forge.practice.continuations import text_families  # noqa: E402
from agent_forge.forge.practice.measuring import paired_error  # noqa: E402
from agent_forge.forge.practice.respondent import Respondent  # noqa: E402
from agent_forge.tasks import Draft, Verdict, task_family  # noqa: E402

SETTINGS: dict[str, Any] = {
    "discovery": {
        "families": ["toy-heat", "toy-chill"], "levels": [0.5], "discovery_samples": 16, "min_experts": 2,
        "lowest": 0.02, "highest": 0.98,
    },
    "svf": {
        "steps": 4, "batch_size": 32, "copies": 16, "learning_rate": 0.1, "lora_learning_rate": 1e-6,
        "kl_coefficient": 0.01, "validate_every": 0,
    },
    "max_tokens": 4, "seeds": 2, "judged": 8, "labelled": 4, "cem_generations": 1, "cem_population": 4,
}  # fmt: skip


def check(answer: str, expected: Mapping[str, Any]) -> Verdict:
    return Verdict.of(answer == expected["right"], "the other one")


def planted(name: str, right: str) -> None:
    schema = {"enum": ["h", "c"]}

    @task_family(name, check=check, solve=lambda expected: expected["right"], schema=schema)
    def draw(rng: random.Random, level: float) -> Draft:
        return Draft(f"{name[4]}{rng.randrange(100)}", {"right": right})


planted("toy-heat", "h")
planted("toy-chill", "c")


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=260, num_attention_heads=2, num_key_value_heads=1, **sizes, **ends))


def cognate() -> Any:
    return CognateForCausalLM(tiny_config(vocab_size=260, bos_token_id=0, eos_token_id=1))


def saved(model: Any, folder: Path) -> Path:
    torch.manual_seed(0)
    lively(model).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def settings(**changes: Any) -> ExpertSettings:
    return build(ExpertSettings, {**SETTINGS, **changes})


def run(folder: Path, base: Path, config: ExpertSettings, tell: Any = lambda **_: None) -> PhaseOutcome:
    return phase("experts").run(Work("experts", config, [load(base)], 3, folder / "work", folder / "models", tell))


def test_two_planted_domains_are_solved_by_two_experts_and_picked(tmp_path: Path) -> None:
    base = saved(llama(), tmp_path / "base")
    adas = {"population_size": 2, "num_generations": 1, "items": 4, "thoughts": [1, 2]}
    config = settings(adas=adas if find_spec("optuna") else {})
    stages: list[str] = []

    def interrupt(**fields: Any) -> None:
        stages.append(fields["stage"])
        if fields["stage"] == "vectors: toy-heat, seed 1" and fields["done"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, base, config, interrupt)
    before, stages[:] = {*stages}, []
    outcome = run(tmp_path, base, config, lambda **fields: stages.append(fields["stage"]))
    assert before >= {"self-test", "vectors: toy-chill, seed 0"}
    assert before.isdisjoint({*stages} - {"vectors: toy-heat, seed 1"}), "what was done is not done again"

    place = outcome.checkpoint.path
    report = json.loads((place / "experts" / "report.json").read_text())
    rows = {row["domain"]: row for row in report["domains"]}
    for name in ("toy-heat", "toy-chill"):
        assert rows[name]["expert"] == 1.0
        figures = report["dispatch"]["classifier"][name]
        assert (figures["named"], figures["success"], figures["n"]) == (1.0, 1.0, rows[name]["n"])
        assert 2 <= rows[name]["n"] <= 8, "each held-out exercise once"
        assert report["mixtures"][name]["success"] == 1.0
    assert min(row["base"] for row in rows.values()) == 0.0, "a greedy base gives the same answer in both"
    assert report["control_numbers"] >= report["vector_numbers"]
    assert "| toy-heat (0.5) |" in (place / "experts" / "report.md").read_text()
    assert report["search"] is None or "<svg" in (place / "experts" / "front.svg").read_text()

    assert load(place, outcome.checkpoint.digest).card.parameters == load(base).card.parameters
    assert weights_digest(place) == weights_digest(base)
    assert set(read_experts(place)) == set(rows)
    loaded = forge.load(place)
    respondent = Respondent(loaded.model, loaded.tokenizer, config)
    exercises = {name: Domain(name, 0.5, 0.5, 0.1).exercises(8, 0, held_out=True) for name in rows}
    classifier, names = DomainClassifier.read(place / "experts" / "classifier.safetensors")
    bank = ExpertBank.open(place, loaded.model)
    for name, items in exercises.items():
        bank.switch(None)
        picks = classifier.pick(prompt_states(loaded.model, [respondent.question(one).prompt for one in items]))
        assert {names[pick] for pick in picks} == {name}
        with bank.using(name):
            assert respondent.right(items).all()


def test_one_mixture_for_all_domains_is_folded_into_the_weights(tmp_path: Path) -> None:
    base = saved(llama(), tmp_path / "base")
    svf = {**SETTINGS["svf"], "steps": 1, "batch_size": 4, "copies": 4, "kl_coefficient": 0.0}
    discovery = {**SETTINGS["discovery"], "families": ["toy-chill"], "min_experts": 1}
    outcome = run(tmp_path, base, settings(output="folded", discovery=discovery, svf=svf, judged=4, labelled=2))
    place, work = outcome.checkpoint.path, tmp_path / "work"
    assert read_experts(place) == {}
    weights = json.loads((work / "mixtures" / "all-0.json").read_text())
    _, vectors = read_expert(work / "vectors" / "0-0.safetensors", "")
    bank = ExpertBank(forge.load(base).model, {"toy-chill": vectors})
    bank.weigh(torch.tensor(weights))
    tokens = torch.tensor([[0, 40, 50, 60]])
    with torch.no_grad():
        assert torch.allclose(forge.load(place).model(tokens).logits, bank.model(tokens).logits, atol=1e-4)


def test_a_cognate_learns_vectors_too(tmp_path: Path) -> None:
    base = forge.load(saved(cognate(), tmp_path / "base"))
    domain = Domain("toy-chill", 0.5, 0.5, 0.1)
    config = settings(seeds=2, svf={**SETTINGS["svf"], "steps": 3, "kl_coefficient": 0.0})
    room = Workshop(Respondent(base.model, base.tokenizer, config), [domain], 0, tmp_path / "work", lambda **_: None)
    weights = {name: weight.clone() for name, weight in base.model.state_dict().items()}
    vectors = room.train_vectors()[0]["toy-chill"]
    assert all(bool((z != 1).any()) for name, z in vectors.items() if weights[f"{name}.weight"].any())
    later = {name.replace(".base", ""): weight for name, weight in base.model.state_dict().items()}
    assert all(torch.equal(weight, later[name]) for name, weight in weights.items()), "only the vectors learn"


def test_without_enough_domains_nothing_is_trained_and_nothing_is_claimed(tmp_path: Path) -> None:
    base = saved(llama(), tmp_path / "base")
    discovery = {**SETTINGS["discovery"], "lowest": 0.97}
    outcome = run(tmp_path, base, settings(discovery=discovery))
    assert outcome.gate.verdict == "not measured"
    report = json.loads((outcome.checkpoint.path / "experts" / "report.json").read_text())
    assert report["domains"] == []
    assert [row["family"] for row in report["self_test"]] == ["toy-heat", "toy-chill"]
    assert read_experts(outcome.checkpoint.path) == {}
    assert "too few domains" in (outcome.checkpoint.path / "experts" / "report.md").read_text()


def test_text_makes_domains_for_models_that_solve_no_task() -> None:
    (name,) = text_families({"stories": Source("stories")}, 0.05)
    respondent = Respondent(lively(llama()).eval(), byte_tokenizer(), settings(max_tokens=80))
    trained, judged = (Domain(name, 1.0, 0.5, 0.1).exercises(12, 0, held_out=held) for held in (False, True))
    assert {one.prompt for one in trained}.isdisjoint(one.prompt for one in judged)
    texts, _ = respondent.sampled(trained, temperature=1.0)
    for exercise, text in zip(trained, texts, strict=True):
        assert len(exercise.expected["choices"]) == 8
        assert text.strip() in exercise.expected["choices"], "the grammar allows nothing else"
        assert exercise.check(text).correct == (text.strip() == exercise.solution())
        assert exercise.check(exercise.solution()).correct


def test_domains_are_where_the_model_is_right_sometimes() -> None:
    tested = [
        Domain("a", 0.0, 0.95, 0.1), Domain("a", 0.5, 0.6, 0.1), Domain("a", 1.0, 0.3, 0.1),
        Domain("b", 0.0, 0.05, 0.1), Domain("c", 0.0, 0.1, 0.1), Domain("d", 0.0, 0.5, 0.1),
    ]  # fmt: skip
    chosen = choose_domains(tested, Discovery(max_experts=2, min_experts=1))
    assert [(domain.name, domain.level) for domain in chosen] == [("a", 0.5), ("d", 0.0)]
    assert [domain.name for domain in choose_domains(tested, Discovery())] == ["a", "c", "d"]


def test_the_gate_wants_two_domains_that_beat_the_base_and_the_control() -> None:
    def result(base: float, expert: float, control: float, n: int = 400) -> DomainResult:
        rng = np.random.default_rng(0)
        rows = [(rng.random((3, n)) < rate).astype(float) for rate in (base, expert, control)]
        return DomainResult(Domain("x", 0.5, base, 0.1), rows[0][0], rows[1], rows[2])

    good, no_better_than_lora, no_better = result(0.3, 0.6, 0.4), result(0.3, 0.6, 0.6), result(0.3, 0.3, 0.1)
    assert [one.gate().verdict for one in (good, no_better_than_lora, no_better)] == ["passed", "no gain", "no gain"]
    config = settings()
    assert verdict([good, good, no_better], config).passed
    assert not verdict([good, no_better_than_lora], config).passed
    for seeds in (1, 2):
        few = replace(good, expert=good.expert[:seeds], control=good.control[:seeds])
        gate = verdict([few, few], config)
        assert (gate.verdict, gate.note) == ("no gain", f"no gain shown: {seeds} of 3 seeds")
    gate = verdict([good, no_better], config)
    assert gate.before == pytest.approx(0.3, abs=0.05)
    assert gate.control == pytest.approx(0.25, abs=0.05)


def test_the_error_counts_exercises_and_seeds() -> None:
    rng = np.random.default_rng(0)
    items, seeds = rng.normal(size=(1, 500)), rng.normal(size=(5, 1))
    assert paired_error(np.repeat(items, 4, 0)) == pytest.approx(items.std(ddof=1) / np.sqrt(500))
    assert paired_error(np.repeat(seeds, 30, 1)) == pytest.approx(seeds.std(ddof=1) / np.sqrt(5))
    assert paired_error(items) == pytest.approx(items.std(ddof=1) / np.sqrt(500)), "of one seed: over the exercises"
    draws = [(rng.normal(size=(1, 40)) + rng.normal(size=(3, 1)) * 0.2).mean() for _ in range(2000)]  # closed form:
    assert np.std(draws) == pytest.approx(np.sqrt(1 / 40 + 0.04 / 3), rel=0.1)
    errors = [paired_error(rng.normal(size=(1, 40)) + rng.normal(size=(3, 1)) * 0.2) for _ in range(500)]
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.sqrt(1 / 40 + 0.04 / 3), rel=0.1)


@pytest.mark.parametrize("numbers", [1, 500, 5_000])
def test_the_control_has_at_least_as_many_parameters(numbers: int) -> None:
    model = llama()
    shape = equal_adapter(model, numbers)
    add_adapter(model, shape)
    size = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert size >= numbers
    if numbers == 500:
        assert (shape.rank, shape.last) == (1, 2) or size < 2 * numbers


def test_settings_contradict_themselves_in_words() -> None:
    with pytest.raises(ConfigError, match="not a multiple of copies"):
        settings(svf={"batch_size": 30, "copies": 8})
    with pytest.raises(ConfigError, match="min_experts is 5"):
        settings(discovery={"min_experts": 5, "max_experts": 4})
    with pytest.raises(ConfigError, match="nothing would choose the mixture"):
        settings(output="folded", cem_generations=0)
    with pytest.raises(ConfigError, match="num_singular_values"):
        settings(svf={"num_singular_values": 32})
