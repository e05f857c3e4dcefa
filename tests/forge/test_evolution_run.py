"""Evolutions of real, tiny models: from parents on disk to a verdict, and the phase of the pipeline."""

from __future__ import annotations

import json
import math
import multiprocessing
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests_forge_family import make_family, stories, write_rows
from transformers import LlamaConfig, LlamaForCausalLM

from agent_forge.cli import run as cli
from agent_forge.errors import ConfigError, HandoffError
from agent_forge.forge import checkpoint as checkpoints
from agent_forge.forge.checkpoint import Checkpoint
from agent_forge.forge.evaluation.choices import MultipleChoice, answer_questions, questions_of
from agent_forge.forge.evolution.examiner import Examination, Examiner
from agent_forge.forge.evolution.fitness import ModelScores, perplexity
from agent_forge.forge.evolution.genome import Genome, start_genome
from agent_forge.forge.evolution.jury import EvaluationLog, Jury
from agent_forge.forge.evolution.report import write_report
from agent_forge.forge.evolution.run import AVERAGE, Evolved, evolve
from agent_forge.forge.evolution.search import Member
from agent_forge.forge.evolution.settings import TECHNIQUES, Evolve, Search, TaskSource
from agent_forge.forge.evolution.tasks import Item, TaskItems, rows_of
from agent_forge.forge.merging import merge, parse_recipe
from agent_forge.forge.phases import Work
from agent_forge.forge.phases.evomerge import PHASE
from agent_forge.forge.training.evaluation import HeldOut, evaluate

FORK = multiprocessing.get_context("fork")  # a real process, without ten seconds of imports


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("family")
    return {**make_family(folder), **{f"{name} rows": Path(path) for name, path in write_rows(folder).items()}}


def config_of(family: dict[str, Path], *parents: str, **changes: object) -> Evolve:
    given = {
        "parents": tuple(str(family[name]) for name in parents or ("tales", "maths")),
        "base": str(family["base"]),
        "data": {name: TaskSource(str(family[f"{name} rows"])) for name in ("stories", "sums")},
        "length": 64,
        "worst_loss": 0.25,
        "search": Search(generations=3),
    }
    return Evolve(**{**given, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def evolved(family: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Evolved:
    out = tmp_path_factory.mktemp("evolved")
    result = evolve(config_of(family), out)
    write_report(result, out)
    return result


def examiner_of(config: Evolve, tmp_path: Path) -> Examiner:
    return Examiner.open(config, tmp_path / "projected")


def jury_of(config: Evolve, tmp_path: Path, examiner: Examiner | None = None) -> Jury:
    examiner = examiner or examiner_of(config, tmp_path)
    return Jury(config, examiner, EvaluationLog(tmp_path / "evaluations.jsonl"), tmp_path / "projected")


def starts(jury: Jury) -> list[Genome]:
    return [start_genome(jury.space, technique) for technique in TECHNIQUES]


def test_the_techniques_make_different_models_of_the_right_size(family: dict[str, Path], tmp_path: Path) -> None:
    jury = jury_of(config_of(family), tmp_path)
    base = {name: tensor.detach().std() for name, tensor in jury.examiner.model_at(family["base"]).named_parameters()}
    weights = []
    for genome in starts(jury):
        model = jury.examiner.merged(jury.stages(genome))
        weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).clone())
        for name, parameter in model.named_parameters():  # no technique shrinks or blows up what it merges
            if parameter.dim() == 2 and "rates" not in name:
                assert 0.5 < float(parameter.detach().std() / base[name]) < 2, (genome.technique, name)
    for number, one in enumerate(weights):
        assert not any(torch.equal(one, other) for other in weights[:number])


def test_the_linear_start_is_the_average_of_the_parents(family: dict[str, Path], tmp_path: Path) -> None:
    jury = jury_of(config_of(family), tmp_path)
    parents = [dict(jury.examiner.model_at(parent.path).named_parameters()) for parent in jury.family.parents]
    for name, tensor in jury.examiner.merged(jury.stages(start_genome(jury.space, "linear"))).named_parameters():
        assert torch.allclose(tensor, sum(parent[name] for parent in parents) / len(parents), atol=1e-6), name


def test_the_all_zero_model_is_the_worst(family: dict[str, Path], tmp_path: Path) -> None:
    jury = jury_of(config_of(family), tmp_path)
    members = [Member(genome, jury.key(genome)) for genome in starts(jury)]
    jury.evaluate(members)
    empty = jury.examiner.model_at(family["base"])
    for parameter in empty.parameters():
        parameter.data.zero_()
    scores = jury.examiner.selection.run(empty)
    assert perplexity(scores["stories"]) == pytest.approx(empty.config.vocab_size, rel=1e-3)
    others = [member.fitness for member in members] + list(jury.parents.values())
    assert jury.yardstick.fitness(ModelScores(scores, jury.cost)) < 0.6 < min(others)


def test_specialists_of_two_tasks_make_a_better_model(evolved: Evolved) -> None:
    """The parents each know one task; on rows that selected nothing the champion beats the better of them."""
    assert evolved.verdict.gate.verdict == "passed"
    assert evolved.goes_on == evolved.champion
    gate = evolved.verdict.gate
    assert gate.after > gate.before + 2 * gate.stderr
    assert evolved.verdict.worst_change >= -evolved.config.worst_loss
    assert set(evolved.held_out) == {"base", "tales", "maths", AVERAGE, "champion"}


def test_the_recipe_makes_the_champion_again_bit_for_bit(evolved: Evolved, tmp_path: Path) -> None:
    weights = evolved.champion / "model.safetensors"
    merge(parse_recipe(evolved.recipe), tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == weights.read_bytes()
    file = evolved.champion.parent / "champion.yaml"
    assert cli(["merge", str(file), str(tmp_path / "by-command")]) == 0
    assert (tmp_path / "by-command" / "model.safetensors").read_bytes() == weights.read_bytes()


def test_what_was_evaluated_in_memory_is_what_is_on_disk(evolved: Evolved, tmp_path: Path) -> None:
    jury = jury_of(evolved.config, tmp_path)
    in_memory = dict(jury.examiner.merged(jury.stages(evolved.history.champion.genome)).named_parameters())
    on_disk = dict(jury.examiner.model_at(evolved.champion).named_parameters())
    assert in_memory.keys() == on_disk.keys()
    assert all(torch.equal(in_memory[name], on_disk[name]) for name in in_memory)


def test_the_report_says_it_all(evolved: Evolved) -> None:
    out = evolved.champion.parent
    document = json.loads((out / "report.json").read_text())
    assert {"generations", "evaluations", "champion", "parents", "held_out", "verdict"} <= document.keys()
    assert {"recipe", "fitness"} <= document["champion"].keys()
    assert {"champion", "best_parent", "stderr"} <= document["held_out"].keys()
    assert document["generations"] == len(document["history"]) == 3
    assert document["evaluations"] == len(evolved.history.members)
    assert [row["name"] for row in document["parents"]] == ["base", "tales", "maths"]
    assert document["uniform_average"]["fitness"] <= document["champion"]["fitness"]  # it is in the first generation
    assert set(document["tasks"]) == {"stories", "sums"}
    assert document["tasks"]["sums"]["champion"]["accuracy"] > document["tasks"]["sums"]["tales"]["accuracy"]
    assert document["tasks"]["stories"]["champion"]["perplexity"] < document["tasks"]["stories"]["maths"]["perplexity"]
    text = (out / "report.md").read_text()
    assert "**passed**" in text
    assert evolved.recipe.strip() in text


def test_parents_that_are_one_model_are_no_gain(family: dict[str, Path], tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        shutil.copytree(family["maths"], tmp_path / name)
    config = config_of(
        {**family, **{name: tmp_path / name for name in ("one", "two", "three")}},
        "one", "two", "three",
        base=str(tmp_path / "one"),
        search=Search(generations=2),
    )  # fmt: skip
    result = evolve(config, tmp_path / "out")
    assert result.verdict.gate.verdict == "no gain"
    assert result.goes_on == tmp_path / "one"
    assert result.verdict.gate.after == pytest.approx(1.0, abs=1e-4)
    assert len(result.history.generations) == 1  # a merge of a model with itself is that model


def test_a_run_that_was_killed_goes_on_and_ends_the_same(
    family: dict[str, Path], evolved: Evolved, tmp_path: Path
) -> None:
    ledger = tmp_path / "out" / "evaluations.jsonl"
    process = FORK.Process(target=evolve, args=(evolved.config, tmp_path / "out"))
    process.start()
    deadline = time.monotonic() + 300
    while (not ledger.exists() or ledger.read_bytes().count(b"\n") < 15) and process.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    before = [json.loads(line)["key"] for line in ledger.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    again = evolve(evolved.config, tmp_path / "out")
    keys = [json.loads(line)["key"] for line in ledger.read_text().splitlines() if line.endswith("}")]
    assert keys[: len(before)] == before
    assert len(keys) == len(set(keys))  # nothing was evaluated twice
    assert again.recipe == evolved.recipe
    assert again.history.generations == evolved.history.generations
    assert again.verdict == evolved.verdict


def test_a_worker_process_gives_the_same_figures(family: dict[str, Path], tmp_path: Path) -> None:
    config = config_of(family)
    examiner = examiner_of(config, tmp_path)
    figures = []
    for count in (0, 1):
        jury = jury_of(replace(config, search=replace(config.search, workers=count)), tmp_path / str(count), examiner)
        members = [Member(genome, jury.key(genome)) for genome in starts(jury)[:2]]
        jury.evaluate(members)
        jury.close()
        figures.append([(member.key, member.worth) for member in members])
    assert figures[0] == [(key, pytest.approx(worth)) for key, worth in figures[1]]


def test_the_adaptive_specialist_is_refused_or_projected(family: dict[str, Path], tmp_path: Path) -> None:
    refused = config_of(family, "tales", "maths", "adaptive")
    with pytest.raises(HandoffError, match=r"'adaptive' differs from the base in halting .*loops .*project: true"):
        examiner_of(refused, tmp_path)
    assert not list(tmp_path.iterdir())
    config = replace(refused, project=True, search=Search(generations=1))
    result = evolve(config, tmp_path / "out")
    assert {"adaptive", "adaptive (projected)"} <= set(result.held_out)
    projected = result.family.parents[2]
    assert projected.path.parent == tmp_path / "out" / "projected"
    assert checkpoints.load(projected.path).card.inputs[0] == checkpoints.load(family["adaptive"]).digest
    model = examiner_of(config, tmp_path).model_at(projected.path)
    assert (model.config.loops, model.model.halting) == (1, None)
    document = write_report(result, tmp_path / "out")
    assert [row["name"] for row in document["parents"]].count("adaptive") == 1


def test_parents_that_do_not_fit_are_refused(family: dict[str, Path], tmp_path: Path) -> None:
    def changed(name: str, **fields: object) -> Path:
        shutil.copytree(family["tales"], tmp_path / name)
        file = tmp_path / name / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
        return tmp_path / name

    window = changed("window", sliding_window=16)
    words = changed("words")
    (words / "tokenizer.json").write_text((words / "tokenizer.json").read_text() + " ")
    llama = tmp_path / "llama"
    LlamaForCausalLM(LlamaConfig(vocab_size=300, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                                 num_attention_heads=1)).save_pretrained(llama)  # fmt: skip
    shutil.copy(family["tales"] / "tokenizer.json", llama)
    wide = changed("wide")
    from safetensors.torch import load_file, save_file

    tensors = load_file(wide / "model.safetensors")
    tensors["model.layers.0.up_proj.weight"] = torch.zeros(65, 32)
    save_file(tensors, wide / "model.safetensors", metadata={"format": "pt"})
    for folder, fault in (
        (window, r"sliding_window \(16, not 32\)"),
        (words, "another tokenizer"),
        (llama, "is a LlamaForCausalLM, but the base is a CognateForCausalLM"),
        (wide, r"model.layers.0.up_proj.weight is \[65, 32\], not \[64, 32\]"),
    ):
        config = config_of({**family, "odd": folder}, "tales", "odd")
        with pytest.raises(HandoffError, match=fault):
            evolve(config, tmp_path / "out")
    assert not (tmp_path / "out" / "evaluations.jsonl").exists()


def test_scores_agree_with_the_evaluations_of_training(family: dict[str, Path], tmp_path: Path) -> None:
    """Text against `evaluate`, choices against `answer_questions`: other code, the same figures."""
    examiner = examiner_of(config_of(family), tmp_path)
    model = examiner.model_at(family["tales"])
    texts = stories(9, 5)
    prompts = [text.rsplit(" ", 2)[0] for text in texts]
    quiz = [Item(prompt, (" sleeps.", " and the", " fish"), n % 3) for n, prompt in enumerate(prompts)]
    items = {"tales": [Item("", (text,)) for text in texts], "quiz": quiz}
    tasks = [TaskItems("tales", "text", (), ()), TaskItems("quiz", "choices", (), ())]
    rows = {name: rows_of(part, examiner.tokenizer, 24) for name, part in items.items()}
    scores = Examination.of(tasks, items, rows, "cpu").run(model)
    expected = evaluate(model, HeldOut.of(examiner.tokenizer, texts, 24))
    loss, tokens, hits, tries = scores["tales"].sum(axis=0)
    assert loss / tokens == pytest.approx(expected.loss, rel=1e-5)
    assert (tokens, hits / tries) == (expected.tokens, pytest.approx(expected.accuracy))
    choices = questions_of([MultipleChoice(item.prompt, item.answers, item.right) for item in quiz], examiner.tokenizer)
    assert scores["quiz"][:, 2].mean() == pytest.approx(answer_questions(model, choices).value)


def test_a_model_that_is_not_finite_is_recorded_as_such(family: dict[str, Path], tmp_path: Path) -> None:
    jury = jury_of(config_of(family), tmp_path)
    genome = starts(jury)[0]
    record = jury.examiner.examine(jury.stages(genome))
    broken = {task: [[None, *row[1:]] for row in rows] for task, rows in record["scores"].items()}
    jury.log.put("broken", {**record, "scores": broken})
    member = Member(genome, "broken")
    jury.evaluate([member])
    assert member.fitness == 0
    assert not math.isnan(member.worth)


@pytest.mark.parametrize(
    ("parents", "fault"),
    [(("one",), "at least two parents"), (("models/one", "two", "./models/one"), "'models/one' occurs twice")],
)
def test_parents_are_checked_before_any_work(parents: tuple[str, ...], fault: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=fault):
        evolve(Evolve(data={"rows": TaskSource("rows.jsonl")}, parents=parents), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command(family: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from agent_forge.config import dump

    file = tmp_path / "evolve.yaml"
    file.write_text(dump(config_of(family, search=Search(generations=2, population=5))))
    assert cli(["evolve", str(file), str(tmp_path / "out"), "--json"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["verdict"] in ("passed", "no gain")
    assert "generation: 0/2, champion" in printed.err
    events = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events] == [0, 1]
    assert all({"champion", "diversity", "evaluations"} <= event.keys() for event in events)
    assert cli(["evolve", str(file), str(tmp_path / "out")]) == 0  # everything is in the log
    assert "fitness, held out" in capsys.readouterr().out
    assert cli(["evolve", str(file), str(tmp_path / "out"), "--set", "search.generation=3"]) == 2
    assert "did you mean 'generations'" in capsys.readouterr().err
    assert cli(["evolve", str(tmp_path / "none.yaml"), str(tmp_path / "out")]) == 2


def test_the_phase(family: dict[str, Path], tmp_path: Path) -> None:
    """Without gain the best parent goes on, which need not be the first input."""
    models = tmp_path / "models"
    folders = {name: shutil.copytree(family[name], models / name) for name in ("base", "tales", "maths")}
    inputs = [checkpoints.load(folders[name]) for name in ("base", "tales", "maths", "base")]
    data = {name: TaskSource(str(family[f"{name} rows"])) for name in ("stories", "sums")}
    events: list[int] = []

    def tell(**fields: Any) -> None:
        events.append(fields["step"])

    for worst_loss, verdict in ((0.0, "no gain"), (0.9, "passed")):  # the second finds the recipes of the first judged
        search = Search(generations=2, population=5)
        config = Evolve(data=data, held_out=None, length=64, worst_loss=worst_loss, search=search)
        outcome = PHASE.run(Work("evomerge", config, inputs, 0, tmp_path / "work", models, tell))
        assert outcome.gate.verdict == verdict
        assert inputs[outcome.passes_on].path == folders["maths"]
    assert events == [0, 1, 0, 1]
    checkpoint = outcome.checkpoint
    assert checkpoint is not None
    assert (checkpoint.card.phase, checkpoint.card.inputs) == ("evomerge", tuple(item.digest for item in inputs[:3]))
    for name in ("recipe.yaml", "card.json"):
        assert "maths" in (checkpoint.path / name).read_text()
        assert str(tmp_path) not in (checkpoint.path / name).read_text(), "where it was made is no part of a checkpoint"
    assert "# Evolution" in checkpoint.card.notes
    assert checkpoints.load(checkpoint.path, checkpoint.digest).card.metrics["fitness"].value == outcome.gate.after
    assert PHASE.data(config).keys() == {"stories", "sums"}


def test_the_phase_takes_its_parents_from_the_pipeline(family: dict[str, Path], tmp_path: Path) -> None:
    inputs = [checkpoints.load(family[name]) for name in ("base", "tales")]
    config = config_of(family)
    with pytest.raises(ConfigError, match="come from the pipeline"):
        PHASE.run(Work("evomerge", config, inputs, 0, tmp_path, tmp_path))


def test_the_phase_with_nothing_to_merge(family: dict[str, Path], tmp_path: Path) -> None:
    inputs = [checkpoints.load(family["base"])] * 3
    data = {"stories": TaskSource(str(family["stories rows"]))}
    outcome = PHASE.run(Work("evomerge", Evolve(data=data), inputs, 0, tmp_path, tmp_path))
    assert (outcome.checkpoint, outcome.gate.verdict, outcome.passes_on) == (None, "not measured", 0)


def test_rows_that_a_parent_has_learnt_from_are_refused(family: dict[str, Path], tmp_path: Path) -> None:
    """By the cards: a source that was read with a smaller share held out, under its name or at its place."""
    inputs = [checkpoints.load(family[name]) for name in ("base", "tales", "maths")]
    rows = str(family["stories rows"])

    def learnt(name: str, **source: object) -> list[Checkpoint]:
        card = replace(inputs[2].card, config={"held_out": 0.1, "sources": {name: {"path": "elsewhere", **source}}})
        return [*inputs[:2], replace(inputs[2], card=card)]

    def run(given: list[Checkpoint], **changes: object) -> None:
        task = TaskSource(rows, **changes)  # type: ignore[arg-type]
        config = Evolve(data={"stories": task}, held_out=0.1, length=64, search=Search(generations=1))
        PHASE.run(Work("evomerge", config, given, 0, tmp_path / "work", tmp_path / "models"))

    for given in (learnt("stories"), learnt("others", path=rows)):
        with pytest.raises(HandoffError, match=r"held_out is 0\.5, but .* was trained with 0\.1"):
            run(given, share=0.5)
    run(learnt("stories", held_out=0.5), share=0.5)
    run(learnt("others"), share=0.5)
