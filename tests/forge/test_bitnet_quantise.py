"""`agent-forge quantize` and the phase, on a tiny Llama that has learned something."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from agent_forge.cli import run
from agent_forge.errors import DataError
from agent_forge.forge.checkpoint import load
from agent_forge.forge.corpus import Source, SplitCorpus, pieces, read_corpus
from agent_forge.forge.evaluation import answer_questions, continuations, divergence, measure_text
from agent_forge.forge.phases import Work, phase
from agent_forge.forge.quantization import (
    BitLinear,
    Demands,
    Format,
    MaterialSize,
    QATRecipe,
    QuantizeSettings,
    calibrate,
    folder_bytes,
    gather,
    input_moments,
    input_squares,
    quantise_folder,
    round_with_feedback,
    settled,
    to_bitlinear,
    write_rows,
)
from agent_forge.forge.quantization.calibration import feedback_codes
from agent_forge.forge.training import PackedRows, TrainSettings, encode, pack, train, train_tokenizer

NAMES = ("Ann", "Bob", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal")
THINGS = ("apples", "pears", "plums", "nuts", "figs")


def sentences(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        lines = [
            f"{rng.choice(NAMES)} has {rng.integers(2, 9)} {rng.choice(THINGS)} and gives them to {rng.choice(NAMES)}."
            for _ in range(6)
        ]
        texts.append(" ".join(lines))
    return texts


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers, trained until it knows the sentences' form."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("bitnet") / "model"
    texts = sentences(120, 1)
    tokenizer = train_tokenizer(texts, vocab_size=320)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    rows = pack(encode(tokenizer, texts), 48, tokenizer.bos_token_id)
    train(model, rows, TrainSettings(steps=60, batch_rows=8, warmup=5), progress=io.StringIO())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def own_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "mine.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences(90, 2)), encoding="utf-8")
    return file


def corpus_of(path: Path, held_out: float = 0.3) -> SplitCorpus:
    return read_corpus({"own": Source(str(path))}, held_out)


QUICK = [
    *("--held-out", "0.3", "--steps", "24", "--batch", "8", "--length", "48", "--device", "cpu"),
    *("--min-ratio", "3", "--eval-tokens", "1500", "--json"),
]


@pytest.fixture(scope="session")
def quantised(trained_folder: Path, own_text: Path, tmp_path_factory: pytest.TempPathFactory):
    """(report, packed folder, dense folder) of one run of the command."""
    out, dense = tmp_path_factory.mktemp("out") / "packed", tmp_path_factory.mktemp("out") / "dense"
    stdout = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", stdout)
        code = run(
            ["quantize", str(trained_folder), str(out), "--data", str(own_text), "--dense-out", str(dense), *QUICK]
        )
    assert code == 0
    return json.loads(stdout.getvalue()), out, dense


def test_the_report_says_what_lies_in_the_folder(quantised, trained_folder: Path) -> None:
    report, out, _ = quantised
    assert report["accepted"] is True
    assert report["bytes"] == folder_bytes(out)
    assert report["bytes_before"] == folder_bytes(trained_folder)
    assert report["ratio"] == pytest.approx(report["bytes_before"] / report["bytes"])
    weights = sum(parameter.numel() for parameter in LlamaForCausalLM.from_pretrained(trained_folder).parameters())
    assert report["bits_per_weight"] == pytest.approx(8 * (out / "model.safetensors").stat().st_size / weights)
    assert [stage["stage"] for stage in report["stages"]][:4] == [
        "original",
        "post-training, mean |w|",
        "post-training, error feedback",
        "trained",
    ]
    assert report["stages"][-1]["stage"] == "packed"


def test_perplexity_and_divergence_are_found_again_from_the_folder(quantised, trained_folder: Path, own_text) -> None:
    """The text is gathered as the command gathers it; the model comes from disk, by the Auto class alone."""
    report, out, _ = quantised
    teacher = AutoModelForCausalLM.from_pretrained(trained_folder)
    tokenizer = AutoTokenizer.from_pretrained(out)
    judged = gather(teacher, tokenizer, corpus_of(own_text), MaterialSize(24 * 8, 48, 1500)).judged
    packed = AutoModelForCausalLM.from_pretrained(out)
    assert measure_text(teacher, judged).perplexity == pytest.approx(report["ppl_before"], rel=1e-4)
    assert measure_text(packed, judged).perplexity == pytest.approx(report["ppl"], rel=1e-4)
    assert divergence(packed, teacher, judged).kl == pytest.approx(report["kl"], rel=1e-3)
    assert packed.generate(torch.tensor([[0, 40, 41]]), max_new_tokens=3, do_sample=False).shape == (1, 6)


def test_training_beats_the_levels_without_it(quantised) -> None:
    ratios = {stage["stage"]: stage["ppl_ratio"] for stage in quantised[0]["stages"]}
    assert ratios["packed"] < ratios["post-training, error feedback"] < ratios["post-training, mean |w|"]
    assert ratios["packed"] == pytest.approx(ratios["trained"], rel=0.01)


def test_the_dense_copy_holds_the_levels_and_not_the_shadow_weights(quantised) -> None:
    _, out, dense = quantised
    plain = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32)
    packed = AutoModelForCausalLM.from_pretrained(out)
    for name, module in plain.named_modules():
        if name.startswith("model.layers.") and isinstance(module, torch.nn.Linear):
            assert max(len(row.unique()) for row in module.weight) <= 3
            unpacked = packed.get_submodule(name).weight
            assert torch.equal(module.weight, unpacked)


def test_the_compact_tokenizer_reads_as_before(quantised, trained_folder: Path) -> None:
    _, out, _ = quantised
    before, after = (AutoTokenizer.from_pretrained(folder) for folder in (trained_folder, out))
    for text in (*sentences(5, 9), "café ☕ 12345\n\n  x", "<|user|>hi<|end|>"):
        assert before(text)["input_ids"] == after(text)["input_ids"]
    assert before.chat_template == after.chat_template
    assert (out / "tokenizer.json").stat().st_size < (trained_folder / "tokenizer.json").stat().st_size


def test_a_missed_gate_gives_the_input_back_and_fails_only_when_strict(
    trained_folder: Path, own_text: Path, tmp_path: Path, capsys
) -> None:
    options = ["--data", str(own_text), *QUICK[:-1], "--steps", "2", "--max-ppl", "0.5", "--set", "evaluations=0"]
    options += ["--eval-tokens", "1000", "--questions", "16"]
    assert run(["quantize", str(trained_folder), str(tmp_path / "out0"), *options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["accepted"] is False
    assert report["ppl"] == report["ppl_before"]
    assert report["kl"] == 0.0
    assert [clause["met"] for clause in report["gate"]] == [False, True, True]
    assert any(stage["stage"] == "recovery 1" for stage in report["stages"])
    assert report["stages"][-1]["ppl_ratio"] > 1  # what was measured on the model that was refused
    assert run(["quantize", str(trained_folder), str(tmp_path / "out1"), *options, "--strict"]) == 1
    shown = capsys.readouterr()
    words = " ".join(shown.out.split())  # the table is as wide as the terminal
    assert "not accepted" in words
    assert "missed: perplexity" in words
    assert "recovery 1: perplexity" in shown.err
    before = {file.name: file.read_bytes() for file in trained_folder.iterdir()}
    for out in ("out0", "out1"):
        assert {file.name: file.read_bytes() for file in (tmp_path / out).iterdir()} == before


def test_calls_that_cannot_work_are_refused_before_anything_is_done(
    quantised, trained_folder: Path, tmp_path: Path, capsys
) -> None:
    _, out, _ = quantised
    assert run(["quantize", str(trained_folder), str(out)]) == 2
    assert run(["quantize", str(trained_folder), str(tmp_path / "a"), "--layers", "nothing", *QUICK]) == 2
    assert run(["quantize", str(out), str(tmp_path / "b"), *QUICK]) == 2  # quantised already
    assert run(["quantize", str(tmp_path), str(tmp_path / "c"), *QUICK]) == 1  # no model
    assert run(["quantize", str(trained_folder), str(tmp_path / "e"), *QUICK, "--device", "abacus"]) == 2
    assert run(["quantize", str(trained_folder), str(tmp_path / "d"), "--set", "lrr=1", *QUICK]) == 2
    assert "did you mean 'lr'" in capsys.readouterr().err
    assert run(["quantize", str(trained_folder), str(tmp_path / "f"), "--max-ppl", "-1", *QUICK]) == 2
    same = ["--dense-out", str(tmp_path / "x" / ".." / "g"), *QUICK]
    assert run(["quantize", str(trained_folder), str(tmp_path / "g"), *same]) == 2
    assert "a folder of its own" in capsys.readouterr().err
    normed = ["--dense-out", str(tmp_path / "x"), "--sub-norm", *QUICK]
    assert run(["quantize", str(trained_folder), str(tmp_path / "h"), *normed]) == 2
    assert "no plain form" in capsys.readouterr().err
    file = trained_folder / "config.json"
    assert run(["quantize", str(trained_folder), str(file / "below"), *QUICK]) == 1
    assert "perplexity" not in capsys.readouterr().err  # said before the work, not after it
    assert not list(tmp_path.iterdir())
    broken = LlamaForCausalLM.from_pretrained(trained_folder)
    broken.model.norm.weight.data[0] = torch.nan
    broken.save_pretrained(tmp_path / "broken")
    assert run(["quantize", str(tmp_path / "broken"), str(tmp_path / "h"), *QUICK]) == 1
    assert "model.norm.weight holds numbers that are NaN" in capsys.readouterr().err
    assert not (tmp_path / "h").exists()


def test_without_text_and_tokenizer_the_model_writes_its_own(trained_folder: Path, tmp_path: Path) -> None:
    """Another shape as well: the head is not tied, the attention has biases, and there are four levels."""
    bare = tmp_path / "bare"
    config = LlamaForCausalLM.from_pretrained(trained_folder).config
    config.tie_word_embeddings, config.attention_bias = False, True
    LlamaForCausalLM(config).save_pretrained(bare)
    recipe = QATRecipe(steps=4, batch_rows=4, length=32, evaluations=0, recoveries=0)
    settings = QuantizeSettings(Format(levels="two_bit"), recipe, Demands(perplexity=0, accuracy=0, ratio=0))
    settings = replace(settings, most_judged=640)
    report = quantise_folder(load(bare), tmp_path / "out", settings, device="cpu").as_dict()
    assert report["bits_per_byte"] is None  # bytes of tokens are not known
    assert report["judged_on"].startswith("text written by the model itself")
    assert report["accepted"] is True
    rows = [AutoModelForCausalLM.from_pretrained(tmp_path / "out").model.layers[0].mlp.up_proj.weight[0]]
    assert len(rows[0].unique()) == 4


def test_what_a_model_writes_depends_on_the_seed_alone(trained_folder: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(trained_folder)
    tokenizer = AutoTokenizer.from_pretrained(trained_folder)
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    one, two, other = (write_rows(model, tokenizer, 3, 12, seed) for seed in (1, 1, 2))
    assert torch.equal(state, torch.random.get_rng_state())
    assert (one.tokens == two.tokens).all()
    assert (one.tokens != other.tokens).any()
    assert (one.tokens[:, 0] == tokenizer.bos_token_id).all()


def test_no_document_is_learned_from_and_judged_on(trained_folder: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(trained_folder)
    (tmp_path / "a.txt").write_text("\n\n".join(sentences(60, 3)), encoding="utf-8")  # one file, cut into pages
    material = gather(None, tokenizer, corpus_of(tmp_path), MaterialSize(64, 32, 400))
    learned = set(tokenizer.decode(material.rows.tokens.ravel()).split("."))
    for held_out in (material.judged, material.watched):
        texts = [tokenizer.decode(row[row > 2]) for row in held_out.rows.tokens]
        pieces = {piece for text in texts for piece in text.split(".")[1:-1]}
        assert len(pieces - learned) > len(pieces) / 2  # single sentences repeat by chance; documents do not
    assert sum(material.judged.bytes_of) > 400
    (tmp_path / "a.txt").write_text("too little", encoding="utf-8")
    with pytest.raises(DataError, match="too few"):
        corpus_of(tmp_path)
    with pytest.raises(DataError, match="no tokenizer"):
        gather(None, None, SplitCorpus({}, {}, 0), MaterialSize(64, 32, 400))


def test_a_long_text_is_cut_at_its_paragraphs() -> None:
    text = ("word " * 300 + "\n\n") * 40
    parts = list(pieces(text))
    assert all(len(part) <= 8000 for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(part.startswith("word") for part in parts)
    assert next(iter(pieces("x" * 20_000))) == "x" * 4000


def test_each_way_of_post_training_is_better_than_the_one_before(trained_folder: Path, own_text: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(trained_folder)
    material = gather(None, tokenizer, corpus_of(own_text), MaterialSize(32, 48, 1000))
    few = PackedRows(material.rows.tokens[:16], material.rows.documents[:16])
    perplexities = []
    for way in ("mean", "fitted", "feedback"):
        model = LlamaForCausalLM.from_pretrained(trained_folder)
        names = to_bitlinear(model, Format(learn_scales=way != "mean"))
        moments = input_moments(model, few, names)
        squares = input_squares(model, few, names)
        for name in names:
            torch.testing.assert_close(moments[name].diagonal(), squares[name])
        if way == "fitted":
            calibrate(model, squares)
        elif way == "feedback":
            round_with_feedback(model, moments)
        with settled(model):
            perplexities.append(measure_text(model, material.judged).perplexity)
    assert perplexities[2] < perplexities[1] < perplexities[0]


def test_error_feedback_is_that_of_gptq_and_lowers_the_error_of_the_outputs() -> None:
    """Against the plain form of the paper (OBQ with a fixed order): after each column, the best of the rest is solved
    for exactly, from the inverse of what is left of H."""
    torch.manual_seed(3)
    columns = 70  # more than one block
    x = torch.randn(200, columns, dtype=torch.float64) @ torch.randn(columns, columns, dtype=torch.float64)
    moment = x.T @ x / 200
    layer = BitLinear.of(torch.nn.Linear(columns, 16, bias=False, dtype=torch.float64), Format())
    scales = layer.scales.detach()
    codes = feedback_codes(layer.weight.detach(), scales, moment, layer)
    damped = moment + 0.01 * moment.diagonal().mean() * torch.eye(columns, dtype=torch.float64)
    left, expected = layer.weight.detach().clone(), torch.empty(16, columns, dtype=torch.float64)
    for c in range(columns):
        expected[:, c] = (left[:, c] / scales[:, 0]).round().clamp(-1, 1)
        inverse = torch.linalg.inv(damped[c:, c:])
        error = (left[:, c] - expected[:, c] * scales[:, 0]) / inverse[0, 0]
        left[:, c + 1 :] -= error[:, None] * inverse[0, 1:]
    assert torch.equal(codes, expected)
    plain = (layer.weight.detach() / scales).round().clamp(-1, 1)

    def loss(chosen: torch.Tensor) -> float:
        gap = layer.weight.detach() - chosen * scales
        return float(torch.einsum("rc,cd,rd->", gap, moment, gap))

    assert loss(codes) < loss(plain)


def test_the_default_number_of_steps_follows_from_the_size_of_the_model(trained_folder: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(trained_folder)
    assert QATRecipe(steps=7).steps_for(model, "cpu") == 7
    assert QATRecipe().steps_for(model, "cpu") == 300
    big = LlamaForCausalLM(LlamaConfig(vocab_size=2000, hidden_size=512, intermediate_size=1024, num_hidden_layers=4))
    assert 20 <= QATRecipe(length=512).steps_for(big, "cpu") < 300


@pytest.mark.parametrize("output", ["packed", "dense"])
def test_the_phase_passes_on_a_checkpoint_with_its_figures(
    trained_folder: Path, own_text: Path, tmp_path: Path, output: str
) -> None:
    config = QuantizeSettings(
        sources={"own": Source(str(own_text))},
        recipe=QATRecipe(steps=8, batch_rows=8, length=48, evaluations=2),
        demands=Demands(ratio=3.0, perplexity=2.0, accuracy=0.2),
        output=output,
        held_out=0.2,
        questions=40,
        most_judged=1000,
    )
    reports: list[dict] = []
    folders = (tmp_path / "work", tmp_path / "models")
    work = Work("ternary", config, [load(trained_folder)], 0, *folders, lambda **fields: reports.append(fields))
    outcome = phase("bitnet").run(work)
    assert outcome.gate.passed
    assert outcome.gate.after > outcome.gate.before  # bits per byte: worse, and within the demands
    checkpoint = outcome.checkpoint
    assert load(checkpoint.path, checkpoint.digest).card.metrics["ratio_to_float32"].value > 3
    model = AutoModelForCausalLM.from_pretrained(checkpoint.path, dtype=torch.float32 if output == "dense" else None)
    assert len(model.model.layers[0].mlp.up_proj.weight[0].unique()) <= 3
    assert {"step", "loss"} <= {key for record in reports for key in record}
    finished = {record["stage"] for record in reports if "done" in record and record["done"] == record["total"]}
    assert {"original", "moments", "error feedback", "continuation", "packed"} <= finished
    assert {"stage": "trained", "done": 0, "total": 8} in reports


def test_questions_from_held_out_text_are_answered_above_chance(trained_folder: Path, own_text: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(trained_folder)
    tokenizer = AutoTokenizer.from_pretrained(trained_folder)
    judged = gather(None, tokenizer, corpus_of(own_text), MaterialSize(8, 48, 4000)).judged
    questions = continuations(judged, 60, prompt=16, answer=6)
    assert len(questions) == 60
    score = answer_questions(model, questions)
    assert score.chance == 0.25
    untrained = answer_questions(LlamaForCausalLM(model.config), questions)
    assert score.value > untrained.value
    assert np.bincount([question.right for question in questions], minlength=4).min() > 5
    with pytest.raises(DataError, match="too few"):
        continuations(judged, 10, prompt=4000)
