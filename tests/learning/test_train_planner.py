"""`train planner`: a planted rule is found and a shuffled one is not; every way in gives the same planner."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from click.testing import CliRunner  # noqa: E402
from commands import agent_forge  # noqa: E402
from test_sheets import NAMES, SAID, TOOLS, byte_level, tiny_llama  # noqa: E402

from agent_forge.agents.api import plan  # noqa: E402
from agent_forge.agents.planner.forged import ForgedPlanner, PlanModel  # noqa: E402
from agent_forge.cli._app import app  # noqa: E402
from agent_forge.config import build  # noqa: E402
from agent_forge.errors import ConfigError, DataError  # noqa: E402
from agent_forge.forge import checkpoint as checkpoints  # noqa: E402
from agent_forge.forge.phases import Work, phase  # noqa: E402
from agent_forge.forge.pipeline import read_pipeline  # noqa: E402
from agent_forge.learning.planner import train_planner  # noqa: E402
from agent_forge.learning.rows import PlanRow, write_plan_rows  # noqa: E402

FAST = {"lr": 5e-3, "batch_rows": 2, "length": 255, "epochs": 8.0, "judged": 40}
LOGGED = {**FAST, "epochs": 3.0, "training": {"log_every": 1}}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of one layer."""
    folder = tmp_path_factory.mktemp("base")
    tokenizer = byte_level([row.prompt + row.answer for row in noisy(64, 2, False)], 400)
    model = tiny_llama(tokenizer.get_vocab_size(), layers=1)
    model.generation_config.eos_token_id = model.config.eos_token_id = 0
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def noisy(count: int, seed: int, shuffled: bool) -> list[PlanRow]:
    """Requests in which one word decides the tool, among rare ones that decide nothing: the nearest known request is
    then no help. Shuffled, that word decides nothing either."""
    rng = random.Random(seed)
    kinds = [rng.randrange(len(SAID)) for _ in range(count)]
    answers = rng.sample(kinds, count) if shuffled else kinds
    noise = [a + b for a in "bcdfghklmn" for b in ("ab", "eb", "ib", "ob", "ub", "ad", "ed", "id")]
    return [
        PlanRow(str(n), " ".join([SAID[kind], *rng.sample(noise, 4)]), TOOLS, ({"tool": NAMES[answer], "args": {}},))
        for n, (kind, answer) in enumerate(zip(kinds, answers, strict=True))
    ]


def rows_file(folder: Path, shuffled: bool) -> str:
    write_plan_rows(noisy(420, 1, shuffled), folder / "rows.jsonl")
    return str(folder / "rows.jsonl")


def test_a_planted_rule_is_found_by_the_command(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "planner"
    options = [f"--{name.replace('_rows', '').replace('_', '-')}={value}" for name, value in FAST.items()]
    arguments = ["train", "planner", "--base-model", str(base), "--data", rows_file(tmp_path, False), *options]
    result = CliRunner().invoke(app, [*arguments, "--out", str(out), "--json"], standalone_mode=False)
    assert result.exception is None, result.output
    report = json.loads(result.stdout)
    assert report["accepted"]
    assert report["gate"]["verdict"] == "passed"
    assert report["fully right, planner"] > 0.9
    assert report["fully right, before"] < 0.6
    for rival in ("rules", "nearest request", "request copied", "chain"):
        assert 0 <= report[f"fully right, {rival}"] <= 1
        assert f"edge F1, {rival}" in report
    # the folder plans, without torch, by its name; and the model in it is packed
    row = noisy(1, 9, False)[0]
    planner = ForgedPlanner(out)
    assert type(PlanModel(out).model).__name__ == "PackedModel"
    planned = plan(row.request, tools=[_described(each) for each in row.tools], planner=str(out))
    assert [task.action for task in planned] == [row.calls[0]["tool"]]
    assert planned.provenance is not None
    assert planned.provenance.planner == planner.name


def _described(function: Any) -> Any:
    from agent_forge.agents.tools.tool import described

    return described(function["name"], "", {"type": "object", "properties": {}})


def test_shuffled_plans_teach_nothing_and_the_report_says_so(base: Path, tmp_path: Path) -> None:
    rows, steps = rows_file(tmp_path, True), []

    def tell(**fields: Any) -> None:
        if "loss" in fields:
            steps.append(fields["step"])
            if len(steps) == 30:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_planner(base, tmp_path / "out", data=(rows,), tell=tell, **LOGGED)
    report = train_planner(base, tmp_path / "out", data=(rows,), tell=tell, **LOGGED)
    assert min(steps[30:]) > 20  # the same call goes on where it was interrupted
    assert not list(tmp_path.glob(".training-*"))
    assert not report.accepted
    assert report.gate.verdict == "no gain"
    assert report.as_dict()["fully right, planner"] < 0.6


def test_an_adapter_on_generated_rows_and_a_cut_vocabulary(base: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    names = ("get_weather", "book_hotel")
    tools.write_text(json.dumps([{"name": name, "description": name, "parameters": city} for name in names]))
    small = {**FAST, "epochs": 0.1, "judged": 4, "length": 512}
    report = train_planner(
        base, tmp_path / "out", tools=str(tools), generated=24, lora=True, vocabulary=380, output="dense", **small
    )
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").is_file()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] <= 380
    written = PlanModel(tmp_path / "out").write("Get the weather in Oslo", [json.loads(tools.read_text())[0]])
    assert written.ended
    assert report.checkpoint.card.metrics["training rows"].value == 24


def test_what_cannot_be_learnt_from_is_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to learn from"):
        train_planner(base, tmp_path / "out")
    (tmp_path / "few.jsonl").write_text("")
    with pytest.raises(DataError, match="too few"):
        train_planner(base, tmp_path / "out", data=(str(tmp_path / "few.jsonl"),))
    assert not (tmp_path / "out").exists()


def test_a_misspelt_planner_is_no_agent(tmp_path: Path) -> None:
    done = agent_forge(tmp_path, "train", "plannr", "--tools", "tools.py")
    assert done.returncode == 2
    assert "agent-forge train planner" in done.stderr


def test_the_whole_recipe_is_a_pipeline(base: Path, tmp_path: Path) -> None:
    """The preset's phases at nano size: supervised training, then fewer layers and two bits, packed."""
    rows = rows_file(tmp_path, False)
    small = {"public": "null", "sheets": 0, "data": json.dumps([rows]), "judged": 24, "batch_rows": 2, "length": 255}
    sets = [f"start={json.dumps([str(base)])}"]
    for name, more in {
        "supervised": {"lr": 5e-3, "epochs": 8, "vocabulary": 390, "training": "{}"},
        "small": {"lr": 0.01, "epochs": 3, "layers": 1, "training": "{}"},
    }.items():
        sets += [f"phases.{name}.config.{key}={value}" for key, value in {**small, **more}.items()]
    pipeline = read_pipeline("planner", sets=sets)
    checkpoint = checkpoints.load(base)
    for name, step in pipeline.phases.items():
        kind = phase(step.phase)
        config = build(kind.config, step.config, name)
        work = Work(name, config, [checkpoint], pipeline.seed, tmp_path / name, tmp_path / "models")
        outcome = kind.run(work)
        assert outcome.checkpoint is not None
        checkpoint = outcome.checkpoint
        assert outcome.gate.verdict == "passed", outcome.gate
    shape = json.loads((checkpoint.path / "config.json").read_text())
    kinds = {each["kind"] for each in shape["quantization_config"]["matrices"].values()}
    assert kinds == {"4level", "int4"}
    assert shape["vocab_size"] <= 390
    assert checkpoint.card.metrics["fully right, planner"].value > 0.8
    assert PlanModel(checkpoint.path).write(noisy(1, 9, False)[0].request, TOOLS).ended
