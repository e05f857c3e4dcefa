"""The phases, with real training in miniature."""

from __future__ import annotations

import json
import math
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, pipeline

import agent_forge.forge
from agent_forge.errors import ConfigError, DataError, HandoffError
from agent_forge.forge.checkpoint import Card, Checkpoint, finish, load, staging
from agent_forge.forge.corpus import Source, Stage, read_corpus, set_aside
from agent_forge.forge.evaluation.text import measure_text
from agent_forge.forge.gates import GateResult, TrainingGate
from agent_forge.forge.models.norm import rms_norm
from agent_forge.forge.phases import PhaseOutcome, Work, cognate, specialise
from agent_forge.forge.phases.cognate import Cognate, settings_of
from agent_forge.forge.phases.measure import (
    behaviour_metrics,
    compare,
    gates_of,
    order_zero_bits,
    token_frequency_bits,
    use_metrics,
)
from agent_forge.forge.phases.specialise import (
    Specialise,
    changed_config,
    reading_tokenizer,
    refuse_seen_documents,
)
from agent_forge.forge.phases.worker import end_with, settle_in
from agent_forge.forge.pipeline import read_pipeline
from agent_forge.forge.registry import Registry
from agent_forge.forge.training import HeldOut, PackedRows, evaluate, train_tokenizer

HERE = Path(__file__).parent
MODEL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 64,
    "embedding_rank": 16,
    "sliding_window": 16,
    "memory_layers": [1],
    "memory_heads": 1,
    "memory_head_dim": 8,
    "memory_chunk": 8,
}
TRAINING = {"steps": 6, "batch_rows": 4, "log_every": 2, "save_every": 2}


def texts(count: int = 60, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    who, does, what = ["the cat", "a dog", "my hen", "one fox"], ["sees", "eats", "likes"], ["fish", "a bone", "corn"]
    return [
        " and ".join(f"{rng.choice(who)} {rng.choice(does)} {rng.choice(what)} {rng.randrange(999)}" for _ in range(4))
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    path = tmp_path_factory.mktemp("data") / "text.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts()))
    return Source(str(path))


def work(folder: Path, config: Any, *inputs: Checkpoint, **more: Any) -> Work:
    return Work("mini", config, inputs, 7, folder / "work", folder / "models", **more)


def base_config(source: Source) -> Cognate:
    return Cognate({"text": source}, MODEL, TRAINING, vocab_size=300, length=32, held_out=0.2)


@pytest.fixture(scope="module")
def base(source: Source, tmp_path_factory: pytest.TempPathFactory) -> PhaseOutcome:
    torch.set_num_threads(1)
    return cognate.run(work(tmp_path_factory.mktemp("base"), base_config(source)))


def test_cognate_makes_a_model_that_transformers_uses(base: PhaseOutcome) -> None:
    checkpoint = base.checkpoint
    assert checkpoint is not None
    assert load(checkpoint.path, checkpoint.digest) == checkpoint
    assert agent_forge.forge.models
    model = AutoModelForCausalLM.from_pretrained(checkpoint.path, trust_remote_code=False)
    assert type(model).__name__ == checkpoint.card.architecture == "CognateForCausalLM"
    assert checkpoint.card.parameters == model.num_parameters()
    speak = pipeline("text-generation", model=str(checkpoint.path))
    answer = speak("the cat sees", max_new_tokens=3, do_sample=False)[0]["generated_text"]
    assert answer.startswith("the cat sees")
    metrics = checkpoint.card.metrics
    assert metrics["bits per byte"].value == pytest.approx(base.gate.after)
    assert base.gate.before > 3, "byte frequencies alone"
    assert {
        "latency_s_at_512", "forward_tokens_per_s_at_512", "peak_memory_bytes", "training_tokens",
        "training_tokens_per_s", "leaked_documents_removed", "memory_gate_mean", "memory_gate_distance_from_1",
    } <= metrics.keys()  # fmt: skip
    assert metrics["training_tokens"].value == 6 * 4 * 32
    assert "halting_mean_depth" not in metrics, "there is no halting in this one"


def test_killed_in_the_middle_it_ends_with_the_same_model(base: PhaseOutcome, source: Source, tmp_path: Path) -> None:
    """The same seed gives the same digest, also when the process dies between two steps and another goes on."""

    class Killed(BaseException):
        pass

    def die(**record: Any) -> None:
        if record["step"] == 4:
            raise Killed

    with pytest.raises(Killed):
        cognate.run(work(tmp_path, base_config(source), tell=die))
    assert not (tmp_path / "models").exists()
    steps: list[int] = []
    again = cognate.run(work(tmp_path, base_config(source), tell=lambda **record: steps.append(record["step"])))
    assert steps[0] > 2, "it went on, and did not begin again"
    assert base.checkpoint is not None
    assert again.checkpoint is not None
    assert again.checkpoint.digest == base.checkpoint.digest
    assert again.gate == base.gate


def llama(models: Path, *, bos: bool = True, length: int = 64) -> Checkpoint:
    tokenizer = train_tokenizer(texts(), 300)
    if not bos:
        tokenizer.bos_token = tokenizer.pad_token = None
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=length,
    )  # fmt: skip
    with staging(models) as folder:
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return finish(folder, Card("imported", {}), models)


@pytest.mark.parametrize("bos", [True, False])
def test_a_specialist_of_any_hugging_face_model(bos: bool, source: Source, tmp_path: Path) -> None:
    start = llama(tmp_path / "models", bos=bos)
    config = Specialise({"text": source}, {}, {**TRAINING, "optimizer": "specialise"}, length=32, held_out=0.2)
    outcome = specialise.run(work(tmp_path, config, start))
    assert outcome.checkpoint is not None
    assert outcome.checkpoint.card.inputs == (start.digest,)
    assert outcome.checkpoint.card.architecture == "LlamaForCausalLM"
    assert outcome.checkpoint.card.tokenizer == start.card.tokenizer, "the tokenizer is handed on as it was"
    assert outcome.gate.after < outcome.gate.before
    assert "latency_s_at_64" in outcome.checkpoint.card.metrics, "not longer than the model can read"
    saved = AutoTokenizer.from_pretrained(outcome.checkpoint.path)
    assert (saved.bos_token_id is None) == (not bos)


def test_a_specialist_that_could_not_be_judged_is_refused(base: PhaseOutcome, source: Source, tmp_path: Path) -> None:
    wider = Specialise({"text": source}, {}, TRAINING, length=32, held_out=0.3)
    with pytest.raises(HandoffError, match=r"'mini' was trained with 0\.2.*Set held_out to 0\.2 or less"):
        specialise.run(work(tmp_path, wider, base.checkpoint))
    start = llama(tmp_path / "models", length=16)
    with pytest.raises(ConfigError, match="length is 32, and the model reads 16 tokens"):
        specialise.run(work(tmp_path, Specialise({"text": source}, {}, TRAINING, length=32), start))
    tokenizer = AutoTokenizer.from_pretrained(start.path)
    tokenizer.bos_token = tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "bare")
    (tmp_path / "bare" / "config.json").write_text((start.path / "config.json").read_text())
    with pytest.raises(HandoffError, match="neither BOS nor EOS"):
        reading_tokenizer(Checkpoint("x", tmp_path / "bare", Card("x", {})))


def test_what_the_base_of_the_base_has_read_counts_too(base: PhaseOutcome, source: Source, tmp_path: Path) -> None:
    assert base.checkpoint is not None
    models = tmp_path / "models"
    shutil.copytree(base.checkpoint.path, models / base.checkpoint.name)
    middle = llama(models)  # as if it were made from the base, of something else
    card = Card("middle", {"held_out": 0.3, "sources": {"other": {"path": "elsewhere"}}}, (base.checkpoint.digest,))
    child = Checkpoint(middle.digest, middle.path, card)
    refuse_seen_documents(child, "text", source.path, 0.2)
    with pytest.raises(HandoffError, match=r"'mini' was trained with 0\.2"):
        refuse_seen_documents(child, "text", source.path, 0.25)


def test_changes_to_the_bases_configuration_are_checked(base: PhaseOutcome) -> None:
    assert base.checkpoint is not None
    assert changed_config(base.checkpoint, {"loops": 2, "halting": True}).loops == 2
    for change, message in (({"lops": 2}, "Did you mean 'loops'"), ({"loops": 0}, "loops 0 is below 1")):
        with pytest.raises(ConfigError, match=message):
            changed_config(base.checkpoint, change)


def test_stages_read_other_sources(source: Source, tmp_path: Path) -> None:
    other = tmp_path / "numbers.jsonl"
    other.write_text("".join(json.dumps({"text": f"{n} {n * n} {n**3} " * 3}) + "\n" for n in range(40)))
    sources = {"text": source, "numbers": Source(str(other))}
    stages = (Stage(0.5, {"text": 1.0}), Stage(0.5, {"text": 0.5, "numbers": 0.5}))
    rows = {"text": PackedRows(np.full((9, 5), 1), np.zeros((9, 5))), "numbers": PackedRows(*np.full((2, 3, 5), 2))}
    config = Cognate(sources, stages=stages)
    mix = cognate._mix(work(tmp_path, config), rows, settings_of({"steps": 10, "batch_rows": 4}, 0))
    seen = [sorted(mix.batch(step, 4, seed=3).inputs[:, 0].tolist()) for step in range(10)]
    assert {number for batch in seen[:5] for number in batch} == {1}
    assert sum(batch.count(2) for batch in seen[5:]) == 10
    config = Cognate(sources, MODEL, TRAINING, stages, vocab_size=300, length=32, held_out=0.2)
    outcome = cognate.run(work(tmp_path, config))
    assert outcome.checkpoint is not None
    assert [stage["share"] for stage in outcome.checkpoint.card.config["stages"]] == [0.5, 0.5]


def test_training_may_be_watched_on_documents_of_its_own(source: Source, tmp_path: Path) -> None:
    records: list[dict[str, Any]] = []
    training = {**TRAINING, "steps": 40, "evaluate_every": 2, "patience": 1, "least_gain": 9.0}
    config = Cognate({"text": source}, MODEL, training, vocab_size=300, length=32, held_out=0.2)
    cognate.run(work(tmp_path, config, tell=lambda **fields: records.append(fields)))
    watched = [fields["evaluation"]["documents"] for fields in records if "evaluation" in fields]
    assert watched == [1, 1], "stopped at the second: it had not gained nine bits"
    assert {fields["steps"] for fields in records} == {40}
    corpus = read_corpus({"text": source}, 0.2)
    rest, apart = set_aside(corpus, share=0.1)
    assert sorted([*rest.train["text"], *apart]) == sorted(corpus.train["text"])
    assert len(apart) == round(0.1 * len(corpus.train["text"]))
    assert not set(apart) & set(corpus.held_out["text"])
    with pytest.raises(DataError, match="too few documents"):
        set_aside(replace(corpus, train={"text": ["one"]}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"hiden_size": 32}}, "unknown key 'hiden_size'. Did you mean 'hidden_size'?"),
        ({"model": {"vocab_size": 32}}, "It belongs beside `model`"),
        ({"model": {"loops": 0}}, "loops 0 is below 1"),
        ({"training": {"stesp": 3}}, "stesp"),
        ({"training": {"seed": 3}}, "the seed is the pipeline's"),
        ({"training": {"optimizer": "sgd"}}, "there is no optimizer preset 'sgd'"),
        ({"model": {"loops": 1.5}}, "loops is 1.5, not int"),
        ({"model": {"num_attention_heads": 0}}, "num_attention_heads 0 is below 1"),
        ({"length": 8192}, "length is 8192, and the model reads 4096 tokens"),
        ({"training": {"schedule": "linear"}}, "schedule is 'linear', not wsd or cosine"),
        ({"training": {"optimizer_changes": {"lrr": 1}}}, "unknown key 'lrr'"),
        ({"training": {"optimizer_changes": {"lr": "fast"}}}, "lr: expected a number"),
        ({"training": {"optimizer_changes": {"ns_steps": 0}}}, "ns_steps"),
        ({"training": {"optimizer_changes": {"betas": [0.9]}}}, "expected 2 values"),
        ({"training": {"patience": 2}}, "Set `evaluate_every` too"),
        ({"stages": (Stage(0.5, {"a": 1.0}),)}, "the shares add up to 0.5, not 1"),
        ({"stages": (Stage(1.0, {"b": 1.0}),)}, "unknown source 'b'"),
        ({"stages": (Stage(1.0, {"a": 0.0}),)}, "weights above 0"),
        ({"sources": {}}, "name at least one source of text"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_at_once(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Cognate(**{"sources": {"a": Source("stories")}, **change})
    assert message in str(caught.value)
    with pytest.raises(ConfigError, match="name at least one source"):
        Specialise({})
    assert settings_of({"steps": 3}, 9).seed == 9
    settings_of({"optimizer_changes": {"lr": "1e-3"}}, 9)
    assert Cognate({"a": Source("stories")}, {"rms_norm_eps": "1e-5"}).model


@pytest.mark.parametrize("preset", ["nano", "small", "full"])
def test_reading_a_pipeline_builds_nothing_of_torch(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: object, **__: object) -> None:
        raise AssertionError("reading a file must not build anything")

    for kind in (torch.optim.Optimizer, torch.nn.Module, torch.nn.Parameter):
        monkeypatch.setattr(kind, "__init__", build)
    monkeypatch.setattr(torch.Tensor, "backward", build)
    state = torch.get_rng_state()
    assert read_pipeline(preset).phases
    assert torch.equal(torch.get_rng_state(), state)


def test_bits_by_byte_frequency_are_the_entropy() -> None:
    """On the text itself, and much of it, the cost is the entropy of its bytes."""
    text = "".join(texts(2000))
    counts = Counter(text.encode())
    total = sum(counts.values())
    entropy = -sum(n / total * math.log2(n / total) for n in counts.values())
    (bits,) = order_zero_bits([text], [text])
    assert bits / total == pytest.approx(entropy, rel=1e-3)
    smoothed = [-math.log2((counts[byte] + 1) / (total + 256)) for byte in "héllo\x00".encode()]
    assert order_zero_bits([text], ["héllo\x00"])[0] == pytest.approx(sum(smoothed))


def test_bits_by_token_frequency_are_the_entropy_of_the_tokens() -> None:
    text = "the cat and the dog and the hen " * 9
    tokenizer = train_tokenizer([text], 300)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    smoothed = {token: (ids.count(token) + 1) / (len(ids) + len(tokenizer)) for token in ids}
    (bits,) = token_frequency_bits(tokenizer, [np.array(ids)], [text])
    assert bits == pytest.approx(-sum(math.log2(smoothed[token]) for token in ids))


def test_the_base_is_compared_with_frequencies_of_the_training_text(base: PhaseOutcome, source: Source) -> None:
    assert base.checkpoint is not None
    tokenizer = AutoTokenizer.from_pretrained(base.checkpoint.path)
    corpus = read_corpus({"text": source}, 0.2)
    train, held_out = corpus.train["text"], corpus.held_out["text"]
    tokens = [np.array(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in train]
    bits = min(order_zero_bits(train, held_out).sum(), token_frequency_bits(tokenizer, tokens, held_out).sum())
    assert base.gate.before == pytest.approx(bits / sum(len(text.encode()) for text in held_out))


def test_a_gate_of_training_asks_for_a_least_gain_and_for_more_than_its_control() -> None:
    rng = np.random.default_rng(0)
    sizes, before = [100] * 50, rng.normal(300, 30, 50)
    little, much = before * 0.995 + rng.normal(0, 0.1, 50), before * 0.9 + rng.normal(0, 0.1, 50)
    assert compare(before, little, sizes).passed  # clear, and next to nothing
    gate = compare(before, little, sizes, least_gain=0.01)
    assert (gate.verdict, gate.least_gain) == ("no gain", pytest.approx(0.01 * gate.before))
    assert compare(before, much, sizes, least_gain=0.01).passed
    assert compare(before, much, sizes, 0.01, control=little).passed
    beaten = compare(before, much, sizes, 0.01, control=much - 1.0)
    assert (beaten.verdict, beaten.control) == ("no gain", pytest.approx((much - 1.0).sum() / 5000))
    assert compare(before, much, sizes, 0.01, control=much).verdict == "no gain"  # no better than the control


def test_one_step_of_training_does_not_pass(base: PhaseOutcome, source: Source, tmp_path: Path) -> None:
    one = {**TRAINING, "steps": 1, "save_every": 0}
    first = cognate.run(work(tmp_path / "base", replace(base_config(source), training=one)))
    assert first.gate.verdict == "no gain"
    assert base.checkpoint is not None
    config = Specialise({"text": source}, training={**one, "optimizer": "specialise"}, length=32, held_out=0.2)
    assert specialise.run(work(tmp_path / "child", config, base.checkpoint)).gate.verdict == "no gain"


def test_a_control_takes_the_same_compute(base: PhaseOutcome, source: Source, tmp_path: Path) -> None:
    """The control is the same training with other settings; where these are equal, so is its result."""
    training = {"steps": 4, "batch_rows": 4, "optimizer": "specialise", "log_every": 1}
    config = Specialise({"text": source}, training=training, length=32, held_out=0.2)
    assert base.checkpoint is not None

    def gate(control: dict[str, Any]) -> tuple[GateResult, int]:
        steps: list[int] = []
        controlled = replace(config, gate=TrainingGate(least_gain=0.0, control=control))
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        told = work(folder, controlled, base.checkpoint, tell=lambda **record: steps.append(record["step"]))
        return specialise.run(told).gate, len(steps) - 4

    equal, steps = gate({"training": {"log_every": 1}})
    assert (equal.control, steps) == (pytest.approx(equal.after), 4)
    assert equal.verdict == "no gain"
    weaker, steps = gate({"training": {"batch_rows": 2, "optimizer_changes": {"lr": 0.0, "embedding_lr": 0.0}}})
    assert steps == 8  # half the rows, twice the steps
    assert weaker.control is not None
    assert weaker.control > weaker.after
    with pytest.raises(ConfigError, match="a control cannot change 'held_outt'"):
        TrainingGate(control={"held_outt": 0.1})
    with pytest.raises(ConfigError, match="unknown key 'stepps'"):
        gate({"training": {"stepps": 3}})


def test_the_bits_of_documents_agree_with_the_evaluation_of_training(base: PhaseOutcome) -> None:
    path = base.checkpoint.path
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    held_out = HeldOut.of(tokenizer, texts(9, seed=5), 16)
    bits = measure_text(model, held_out).bits
    evaluation = evaluate(model, held_out)
    assert bits.sum() / sum(held_out.bytes_of) == pytest.approx(evaluation.bits_per_byte, rel=1e-6)
    alone = measure_text(model, HeldOut.of(tokenizer, texts(9, seed=5)[3:4], 16)).bits
    assert bits[3] == pytest.approx(alone[0], rel=1e-5), "a document's bits are its own"


def test_behaviour_is_what_the_model_does(tiny: Any) -> None:
    model = tiny(vocab_size=300, loops=3, halting=True, halt_bias=0.0, memory_layers=[0, 1])
    tokenizer = train_tokenizer(texts(), 300)
    held_out = HeldOut.of(tokenizer, texts(4, seed=5), 24)
    metrics = behaviour_metrics(model, held_out)
    batch = held_out.rows.take(slice(None))
    real = batch.targets != -100
    depth = model(batch.inputs, use_cache=False).depth
    assert metrics["halting_mean_depth"].value == pytest.approx(float(depth[real].float().mean()))
    assert metrics["halting_mean_depth"].n == int(real.sum())
    assert 1 <= metrics["halting_mean_depth"].value <= 3
    always, never = (tiny(vocab_size=300, loops=3, halting=True, halt_bias=bias) for bias in (30.0, -30.0))
    for changed, depth_of in ((always, 1.0), (never, 3.0)):
        with torch.no_grad():
            changed.model.halting.weight.zero_()
            changed.model.halting.bias.fill_(30.0 if depth_of == 1.0 else -30.0)
        assert behaviour_metrics(changed, held_out)["halting_mean_depth"].value == depth_of
    plain = tiny(vocab_size=300, memory_layers=[])
    assert behaviour_metrics(plain, held_out) == {}
    few = behaviour_metrics(model, held_out, rows=1)["memory_gate_mean"]
    assert (few.stderr, few.n) == (None, int((held_out.rows.take(slice(0, 1)).targets != -100).sum()))


def test_the_measured_gate_is_the_one_the_model_applies(tiny: Any) -> None:
    """Recomputed from what goes into the memory's layer and what comes out of it."""
    model = tiny()
    memory = model.model.layers[1].memory
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    hook = memory.register_forward_hook(lambda _, inputs, out: seen.append((inputs[1], out)))
    with gates_of(model) as gates, torch.no_grad():
        model(torch.randint(0, 64, (2, 12)), use_cache=False)
    hook.remove()
    (attention, gated), (gate,) = seen[0], gates
    assert torch.allclose(rms_norm(attention, memory.eps) * memory.attention_gain * gate, gated, atol=1e-5)
    model(torch.randint(0, 64, (2, 12)), use_cache=False)
    assert len(gates) == 1, "after the block nothing is collected"


def test_use_is_measured(tiny: Any) -> None:
    metrics = use_metrics(tiny(), length=32, repeats=3)
    rate, latency = metrics["forward_tokens_per_s_at_32"], metrics["latency_s_at_32"]
    assert rate.value == pytest.approx(32 / latency.value)
    assert metrics["peak_memory_bytes"].value > 1e6


def test_a_worker_ends_with_its_session() -> None:
    """A session (the middle process) dies; the worker that it started notices and ends."""
    read, write = os.pipe()
    session = os.fork()
    if session == 0:  # the session
        os.close(read)
        if os.fork() == 0:  # its worker; only it keeps the pipe open
            end_with(os.getppid(), every_s=0.05)
            time.sleep(300)
        os.close(write)
        time.sleep(300)
    os.close(write)
    assert select.select([read], [], [], 0.3)[0] == [], "both live"
    os.kill(session, signal.SIGKILL)
    os.waitpid(session, 0)
    assert select.select([read], [], [], 60)[0] == [read], "the worker still lives"
    assert os.read(read, 1) == b""
    os.close(read)


def test_a_worker_leaves_ctrl_c_to_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = signal.getsignal(signal.SIGINT)
    try:
        settle_in(session_pid=-1, threads=1)  # a session that is gone already
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.wait(30)
    assert torch.get_num_threads() == 1


def _runs(process: int) -> bool:
    """Whether it is there, and not only as the entry that nobody has asked after."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ctrl_c_pauses_the_session_and_ends_the_worker(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    document = {
        "name": "toy",
        "phases": {"base": {"phase": "toys.make", "config": {"slow_s": 300, "pid": str(started)}}},
    }
    (tmp_path / "p.yaml").write_text(json.dumps(document))
    command = [
        sys.executable,
        "-m",
        "agent_forge",
        "forge",
        "run",
        str(tmp_path / "p.yaml"),
        "--home",
        str(tmp_path / "h"),
    ]
    paths = os.pathsep.join((str(HERE), os.environ.get("PYTHONPATH", "")))
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ, "PYTHONPATH": paths}
    )
    end = time.monotonic() + 240
    while not (started.exists() and started.read_text()):
        assert time.monotonic() < end, "the worker did not start"
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does: to the session and to its worker
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "is paused: the same command continues it" in err
    assert "Traceback" not in err
    end = time.monotonic() + 60  # a worker looks for its session twice a second, and this machine may be busy
    while _runs(int(started.read_text())):
        assert time.monotonic() < end, "the worker goes on without its session"
        time.sleep(0.1)
    (session,) = Registry(tmp_path / "h").sessions()
    assert session["state"] == "paused"
    assert [phase["state"] for phase in Registry(tmp_path / "h").phases(session["session"])] == ["paused"]
