"""`train AGENT`: warm-up, reinforcement and control on a toy; evaluation as `agents eval`; turns with their credit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from turning import PROFILE, tiny_base  # noqa: E402

from agent_forge.agents.profiles import AgentLimits  # noqa: E402
from agent_forge.errors import DataError, UsageError  # noqa: E402
from agent_forge.forge.training.experience import Experience, experience_of, with_signal  # noqa: E402
from agent_forge.forge.training.policy import group_advantages, token_log_probs  # noqa: E402
from agent_forge.forge.training.reinforce import learn_policy  # noqa: E402
from agent_forge.forge.training.settings import LoraSettings, ReinforceSettings  # noqa: E402
from agent_forge.inference.local_model import LocalModel  # noqa: E402
from agent_forge.learning.agents import prepare, train_agent  # noqa: E402
from agent_forge.learning.attempts import (  # noqa: E402
    AnswerGrammar,
    SamplingCopy,
    TurnCollector,
    credited_turns,
    write_answers,
)
from agent_forge.learning.exercises import Examinee, evaluate_agents  # noqa: E402
from agent_forge.learning.practice import Practice, judging  # noqa: E402
from agent_forge.tasks.fixed import held_out  # noqa: E402
from agent_forge.traces import Recorder, Span, Store  # noqa: E402

FAST: dict[str, Any] = {
    "iterations": 3, "batch_size": 8, "group": 4, "warmup": 4, "warmup_rate": 0.02, "learning_rate": 1e-3,
    "max_tokens": 12, "judged": 6, "judges": 1, "evaluate_every": 2, "checkpoint_every": 1, "length": 256,
    "constrained": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("base"), layers=1)


def check_pages(home: Path, sessions: list[str], report: Mapping[str, Any]) -> None:
    """A browser sees the runs with their verdict, and the policies by name with what they earned."""
    pytest.importorskip("starlette", reason="starlette is not installed: the extra `server` brings it")
    from starlette.testclient import TestClient

    from agent_forge.server.app import create_app
    from agent_forge.server.settings import ServerSettings

    app = create_app(ServerSettings(home=str(home), log_level="error"))
    client = TestClient(app, base_url="http://127.0.0.1", headers={"accept": "text/html"})
    for session in sessions:
        page = client.get(f"/forge/{session}")
        assert page.status_code == 200
        assert all(word in page.text for word in ("held-out reward", "seed 0", report["gate"]["verdict"]))
    for path in ("/models", "/policies", "/"):
        assert "turner@1" in client.get(path).text, path
    row = client.get("/policies.json").json()["trained"][-1]
    assert (row["policy"], row["digest"]) == (report["policy"]["name"], report["policy"]["digest"])
    assert all(row[stage] == report[stage] for stage in ("before", "warmup", "after", "control"))


def test_a_policy_is_trained_registered_and_resumed(base: Path, tmp_path: Path) -> None:
    """An interrupted run goes on to the same policy; what it wrote loads, and `models verify` finds it."""
    from agent_forge.forge.adapters import load_adapter
    from agent_forge.forge.registry import Registry

    def tell(**fields: Any) -> None:
        if fields.get("phase") == "grpo" and fields.get("step") == 2 and "reward" in fields:
            raise KeyboardInterrupt

    reports = {}
    for name in ("whole", "parts"):
        settings = {**FAST, "control": name == "whole", "warmup_batch": 6, "references": 10, "control_rate": 1e-12}
        if name == "parts":
            with pytest.raises(KeyboardInterrupt):
                train_agent(PROFILE, base, tmp_path / name, tell=tell, home=tmp_path / "home", **settings)
        reports[name] = train_agent(PROFILE, base, tmp_path / name, home=tmp_path / "home", **settings)
    whole, parts = (report.as_dict() for report in reports.values())
    assert [whole[stage]["n"] for stage in ("before", "warmup", "after", "control")] == [6] * 4
    for stage in ("before", "warmup"):
        assert whole[stage] == parts[stage]
    assert parts["after"] == whole["after"]
    assert whole["control"] == whole["warmup"]  # from whose weights it goes on, at no rate worth the name
    assert whole["gains"]["warmup"]["stderr"] > 0
    assert (whole["warmup_steps"], whole["references"]) == (4, 10)  # of the 24 that four steps of six would take
    weights = [(tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert weights[0] == weights[1]
    assert (whole["policy"]["name"], parts["policy"]["name"]) == ("turner@1", "turner@2")
    checkpoint = Registry(tmp_path / "home").load(whole["policy"]["digest"])
    assert json.loads((checkpoint.path / "policy.json").read_text())["report"]["after"] == whole["after"]
    model, tokenizer = prepare(base)
    load_adapter(model, tmp_path / "whole")
    practice = Practice.of(PROFILE, model, tokenizer)
    _, answers = write_answers(
        SamplingCopy(model),
        practice,
        held_out(practice.tasks, 6, 1),
        max_tokens=12,
        constraint=AnswerGrammar.of(practice),
    )
    with judging(PROFILE, 1) as judges:
        rewards = judges(answers)
    assert [list(each) for each in rewards] == [list(each) for each in reports["whole"].stages["after"]]
    assert json.loads((tmp_path / "whole" / "report.json").read_text()) == json.loads(json.dumps(whole))
    assert not list(tmp_path.glob(".training-*"))
    sessions = {one["session"]: one for one in Registry(tmp_path / "home").sessions()}  # what the dashboard shows
    assert [one["state"] for one in sessions.values()] == ["completed"] * 2
    for name in sessions:
        states = {one["name"]: one["state"] for one in Registry(tmp_path / "home").phases(name)}
        assert states.items() >= {"warmup": "completed", "grpo": "completed"}.items()
        assert (tmp_path / "home" / "sessions" / name / "events.jsonl").stat().st_size > 0
    check_pages(tmp_path / "home", list(sessions), whole)
    with pytest.raises(UsageError, match="exists already"):
        train_agent(PROFILE, base, tmp_path / "whole", **FAST)


def test_a_run_that_is_made_again_has_events_of_its_own(base: Path, tmp_path: Path) -> None:
    """Where the first run's policy was moved away, the same command is not the same session."""
    stages = []
    for name in ("first", "second"):
        train_agent(PROFILE, base, tmp_path / "policy", home=tmp_path / "home", **{**FAST, "iterations": 1})
        events = (tmp_path / "policy" / "events.jsonl").read_text().splitlines()
        stages.append([json.loads(line)["phase"] for line in events])
        (tmp_path / "policy").rename(tmp_path / name)
    assert stages[0] == stages[1]
    assert stages[0].count("before") == 1


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("adapted", [True, False])
def test_what_samples_on_a_gpu_follows_the_policy(kind: str, adapted: bool) -> None:
    """After every change the copy has the policy's weights, its adapter merged, up to the rounding to bf16."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    from agent_forge.forge.adapters import add_adapter

    torch.manual_seed(0)
    if kind == "llama":
        shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=16, **shape))
    else:
        model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    if adapted:
        add_adapter(model.eval(), LoraSettings(rank=2))
    sampling = SamplingCopy(model.eval(), merged=True)
    tokens = torch.arange(8)[None]
    before = sampling.current()(tokens).logits
    for _ in range(2):
        with torch.no_grad():
            for weight in model.parameters():
                if weight.requires_grad:
                    weight.add_(torch.randn_like(weight), alpha=0.2)
        current = sampling.current()
        assert {weight.dtype for weight in current.parameters()} == {torch.bfloat16}
        torch.testing.assert_close(current(tokens).logits.float(), model(tokens).logits, atol=0.05, rtol=0.05)
    assert (current(tokens).logits - before).abs().max() > 0.2  # so that equality says something


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no command is an agent; a finished run's report is printed; faults are named."""
    from agent_forge.cli._app import run_command

    score = {"mean": 0.5, "stderr": 0.1, "n": 2, "correct": 0.0}
    stages = dict.fromkeys(("before", "warmup", "after"), score)
    report = {**stages, "policy": {"name": "qa@1", "digest": "d"}, "accepted": False, "stopped": None, "out": "there"}
    report["gate"] = {"before": 0.5, "after": 0.75, "stderr": 0.2, "verdict": "no gain"}
    for place in ("qa-policy", "all/analyst", "all/support"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "report.json").write_text(json.dumps(report))
    call = ["--base-model", "nowhere", "--resume", "--json", "--out"]
    options = ["--iterations", "1500", "--batch-size", "32", "--learning-rate", "1e-5", "--task-type", "auto"]
    assert run_command(["train", "qa", *options, *call, str(tmp_path / "qa-policy")]) == 0
    assert json.loads(capsys.readouterr().out) == report
    table = [each for each in call if each != "--json"]
    (tmp_path / "qa-policy" / "report.json").write_text(json.dumps({**report, "stopped": "the reward collapsed"}))
    assert run_command(["train", "qa", *table, str(tmp_path / "qa-policy")]) == 0
    shown = capsys.readouterr()
    assert shown.out.count("0.500 ± 0.100") == 3
    assert "qa@1 (+0.250 ± 0.200 over its base: no gain) is in there." in shown.out
    assert "stopped early: the reward collapsed" in shown.err
    file = tmp_path / "trainer.yaml"
    file.write_text("agents_to_optimize: [analyst_agent, support_agent]\ntrainer: {type: ppo}\n")
    assert run_command(["train", "--config", str(file), "--strict", *call, str(tmp_path / "all")]) == 1
    assert json.loads(capsys.readouterr().out) == {"agents": {"analyst": report, "support": report}}
    for name, said in (("qaa", "'qa'"), ("--seed=1", "no agent")):
        assert run_command(["train", name, *call, str(tmp_path / "new")]) == 2
        assert said in capsys.readouterr().err
    assert run_command(["train", "qa", *call, str(tmp_path / "new")]) != 0  # there is no such base


def test_an_evaluation_is_that_of_agents_eval(base: Path) -> None:
    model, tokenizer = prepare(base)
    practice = Practice.of(PROFILE, model, tokenizer)
    exercises = held_out(practice.tasks, 6, 5)
    _, answers = write_answers(
        SamplingCopy(model), practice, exercises, max_tokens=9, constraint=AnswerGrammar.of(practice)
    )
    with judging(PROFILE, 1) as judges:
        mean = sum(reward for reward, _ in judges(answers)) / 6
    local = LocalModel(lambda: (model, tokenizer), name="tiny")
    with Recorder(Store.open(":memory:")) as recorder:
        scores = evaluate_agents([(PROFILE, each) for each in exercises], Examinee(local, max_tokens=9), recorder)
        texts = {
            span.inputs["messages"][-1]["content"]: span.outputs["text"]
            for trace in recorder.store.each_trace()
            for span in trace
            if span.kind == "model"
        }
    assert {answer.exercise.prompt: answer.text for answer in answers} == texts
    assert scores.agents["turner"].mean == pytest.approx(mean, abs=2e-3)  # one counts the end token, one does not


def test_turns_share_an_advantage_by_who_depended_on_whom() -> None:
    """A chain model → tool → model: both calls matter. A second call whose result nobody used gets nothing."""

    def span(name: str, kind: str, at: int, **fields: Any) -> Span:
        made = Span(name=name, kind=kind, trace_id="t" * 32, span_id=name.ljust(16, "0"), start_ns=at, end_ns=at + 1)
        for field, value in fields.items():
            setattr(made, field, value)
        return made

    root = span("root", "agent", 0)
    root.end_ns = 100
    spans = [
        root,
        span("one", "model", 1, output_ids=[1], prompt_ids=[5], logprobs=[-1.0], outputs={"text": "look up"}),
        span("tool", "tool", 3, outputs="the secret word is xylophone", inputs={"asked": "look up"}),
        span("two", "model", 5, output_ids=[2, 3], prompt_ids=[5, 6], logprobs=[-1.0, -2.0],
             outputs={"text": "xylophone"}, inputs={"messages": ["the secret word is xylophone"]}),
    ]  # fmt: skip
    for each in spans[1:]:
        each.parent_id = root.span_id
    turns = credited_turns(spans, 2.0)
    assert [turn.output for turn in turns] == [[1], [2, 3]]
    assert sum(turn.advantage for turn in turns) / 2 == pytest.approx(2.0)  # nothing is lost, nothing invented
    assert all(turn.advantage > 0 for turn in turns)
    even = credited_turns(spans, -1.0, "uniform")
    assert [turn.advantage for turn in even] == pytest.approx([-4 / 3, -2 / 3])  # the tool's share is its caller's
    later = credited_turns(spans, 1.0, "discounted", 0.5)
    assert later[1].advantage > later[0].advantage


def test_an_agent_with_a_tool_is_learnt_from_turn_by_turn(base: Path) -> None:
    """Rows are model calls: what the tool said is read, not learnt, and log-probabilities are the policy's own."""
    from agent_forge.agents.tools import tool

    @tool
    def look(place: Literal["here", "there"]) -> str:
        """What is at a place.

        Args:
            place: Where to look.
        """
        return "xylophone"

    model, tokenizer = prepare(base)
    profile = replace(PROFILE, tools=("look",), grounded=False, limits=AgentLimits(corrections=0))
    practice = Practice.of(profile, model, tokenizer)
    settings = ReinforceSettings(prompts=2, copies=6, max_tokens=80, seed=3)

    def judges(answers: Any) -> list[tuple[float, bool]]:
        return [(float(place % 2), False) for place, _ in enumerate(answers)]

    collect = TurnCollector(
        SamplingCopy(model), profile, practice, judges, settings, turns=2, tools=[look], constrained=True
    )
    experience = collect(0)
    assert experience.drawn is not None
    assert experience.advantages is not None
    expected = group_advantages(experience.drawn, torch.arange(2).repeat_interleave(6))
    each = (experience.advantages.sum(1) / experience.mask.sum(1)).tolist()  # one number per call
    learnt = [tokenizer.decode(row[mask.bool()]) for row, mask in zip(experience.tokens, experience.mask, strict=True)]
    read = [tokenizer.decode(row[~mask.bool()]) for row, mask in zip(experience.tokens, experience.mask, strict=True)]
    row = 0
    for attempt in expected.tolist():
        if "<tool_call>" in learnt[row]:  # two calls, the first of which also has the tool's share
            assert "xylophone" not in read[row]
            assert "xylophone" in read[row + 1]
            assert each[row] + each[row + 1] == pytest.approx(2 * attempt, rel=1e-4)
            assert abs(each[row]) > abs(each[row + 1])
            row += 2
        else:
            assert each[row] == pytest.approx(attempt, rel=1e-4)
            row += 1
    assert row == len(learnt) > 12, "no attempt used its tool"
    assert not any("xylophone" in text for text in learnt)
    with torch.no_grad():
        log_probs = token_log_probs(model, experience.tokens, experience.mask)
    assert torch.allclose(log_probs, experience.log_probs, atol=1e-4)
    once = replace(settings, iterations=1, learning_rate=1e-3, evaluate_every=0)
    learn_policy(model, lambda _: experience, once, progress=None)
    with torch.no_grad():
        change = (token_log_probs(model, experience.tokens, experience.mask) - log_probs) * experience.advantages
    assert change.sum() > 0  # what went well has become likelier, what went wrong less so


def test_turns_that_all_earn_the_same_are_drawn_again_and_do_not_end_the_run(base: Path) -> None:
    model, tokenizer = prepare(base)
    practice = Practice.of(PROFILE, model, tokenizer)
    settings = ReinforceSettings(
        iterations=3, prompts=2, copies=2, max_tokens=4, resample=1, learning_rate=1e-3, evaluate_every=0
    )
    drawn: list[set[str]] = []

    def judges(answers: Any) -> list[tuple[float, bool]]:
        drawn.append({answer.exercise.prompt for answer in answers})
        differ = len(drawn) > 3  # not in the first iteration, nor in the first draw of the second
        return [(float(differ and place % 2), False) for place, _ in enumerate(answers)]

    records: list[dict[str, Any]] = []
    collect = TurnCollector(SamplingCopy(model), PROFILE, practice, judges, settings, turns=2)
    result = learn_policy(model, collect, settings, on_record=records.append, progress=None)
    assert result.iterations == 3
    assert result.stopped is None
    assert [bool(record.get("rows")) for record in records if "reward" in record] == [False, True, True]
    assert len(drawn) == 5
    assert len(set.union(*drawn)) == 10  # exercises of its own in every draw


def test_attempts_without_a_model_call_are_no_rows() -> None:
    empty = experience_of([], [], [], [], [], [])
    row = experience_of([[1, 2]], [[0, 1]], [[0.0, -1.0]], [1.0], [0], [[0.0, 1.0]])
    assert len(empty.take(with_signal(empty).nonzero()[:, 0])) == 0
    joined = Experience.joined([empty, row])
    assert joined.tokens.tolist() == [[1, 2]]
    assert joined.groups.tolist() == [0]


def test_the_experiment_of_the_original_runs(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces are collected, and SFT, DPO and GRPO learn: `examples/train_on_traces.py` at the smallest size."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    from train_on_traces import experiment

    settings = {**FAST, "iterations": 1, "warmup": None, "judged": 2, "lora": False}
    text = experiment(str(base), PROFILE, 12, tmp_path / "out", **settings)
    assert "12 traces" in text
    assert text.count(" ± ") == 6
    for number, algorithm in enumerate(("sft", "dpo", "grpo"), 1):
        report = json.loads((tmp_path / "out" / algorithm / "report.json").read_text())
        assert report["policy"]["name"] == f"turner@{number}"
        model, _ = prepare(tmp_path / "out" / algorithm)  # all weights learn: a whole model with its tokenizer
        assert model.num_parameters() == prepare(base)[0].num_parameters()
        if algorithm != "grpo":
            assert report["traces"]["right"] == 6
            assert report["warmup"] == report["before"]
    with pytest.raises(DataError, match="no right attempts"):
        train_agent(replace(PROFILE, name="other"), base, tmp_path / "none", algorithm="sft",
                    traces=str(tmp_path / "out" / "home"), **settings)  # fmt: skip
    assert not list(tmp_path.glob(".training-*"))
