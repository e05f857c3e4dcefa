"""The whole way: calibrate, allocate, write, load, recover, judge, roll back."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests_compress_tiny import make_tiny, texts
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_forge.errors import CheckpointError, UsageError
from agent_forge.forge.checkpoint import count_parameters
from agent_forge.forge.compression import folder as folders
from agent_forge.forge.compression.allocation import Option, allocate, worthwhile
from agent_forge.forge.compression.codecs import decode, encode
from agent_forge.forge.compression.container import pack
from agent_forge.forge.compression.packed_tokenizer import pack_tokenizer, unpack_tokenizer
from agent_forge.forge.compression.recovery import recover
from agent_forge.forge.compression.report import draw_stages, scatter, stage_table
from agent_forge.forge.compression.search import Compressor, compress, load_original
from agent_forge.forge.compression.sensitivity import matrices, measure_costs
from agent_forge.forge.compression.settings import CompressSettings, Effort, usual_effort
from agent_forge.forge.compression.student import student_config, teach_student
from agent_forge.forge.compression.text import mixed, prepare_text
from agent_forge.forge.compression.trials import plain_tensors
from agent_forge.forge.evaluation.text import measure_text
from agent_forge.forge.training.packing import PackedRows

FAST = CompressSettings(
    codecs=("grid", "ternary"), recovery_steps=6, rows=8, gradient_rows=8, trial_tokens=192, measured=0,
    batch_rows=4, length=48, questions=12, tries=3,
)  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("compress") / "tiny")


@pytest.fixture(scope="module")
def text(tiny):
    return prepare_text(tiny, *texts(), FAST.length, 24)


@pytest.fixture(scope="module")
def told() -> list[dict]:
    """What the run of `done` reports as it goes on."""
    return []


@pytest.fixture(scope="module")
def done(tiny, told, tmp_path_factory):
    """(report, folder) of one run within a budget that can be met."""

    def tell(**fields: object) -> None:
        told.append(fields)

    out = tmp_path_factory.mktemp("out") / "small"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agent_forge.forge.progress.EVERY_S", 0.0)  # every report, not one per second
        text = prepare_text(tiny, *texts(), FAST.length, 24, tell=tell)
        return compress(tiny, out, text, replace(FAST, budget=26_000), tell), out


def test_the_artefact_is_within_its_budget_and_its_figures_are_measured_from_the_folder(done, text, tiny) -> None:
    report, out = done
    figures = report.as_dict()
    assert figures["accepted"]
    assert figures["bytes"] == folders.folder_bytes(out) <= 26_000
    assert figures["bytes_before"] == folders.folder_bytes(tiny)
    assert figures["ratio"] == pytest.approx(figures["bytes_before"] / figures["bytes"])
    assert figures["bits_per_weight"] == pytest.approx(8 * figures["bytes"] / report.weights)
    again = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    assert measure_text(again, text.held_out).perplexity == pytest.approx(figures["ppl"], rel=1e-5)
    original = load_original(tiny)
    assert measure_text(original, text.held_out).perplexity == pytest.approx(figures["ppl_before"], rel=1e-5)
    assert figures["ppl"] <= 1.3 * figures["ppl_before"]
    assert figures["kl"] > 0
    assert json.loads(json.dumps(figures, allow_nan=False))["stages"][0]["stage"].startswith("codecs")


@pytest.mark.usefixtures("done")
def test_every_long_loop_reports_how_far_it_is(tiny, told) -> None:
    """The reports of a run in order: each stage counts up to its total, then the figures of an artefact follow."""
    counts: dict[str, list[tuple[int, int]]] = {}
    for report in told:
        if "done" in report:
            counts.setdefault(report["stage"], []).append((report["done"], report["total"]))
    judged = {"codecs 0.026 MB", "recovered 0.026 MB"}
    assert (
        counts.keys()
        == {"tokenise", "original", "multiple choice", "moments", "gradients", "trials", "recover"} | judged
    )
    trials = counts.pop("trials")  # counted in weights, for each of the twelve steps of the grid, and ternary
    sizes = [weight.numel() for weight in matrices(load_original(tiny)).values()]
    assert len(trials) == 2 * 13 * len(sizes) + 1
    assert trials == sorted(trials)
    assert trials[-1] == (13 * sum(sizes), 13 * sum(sizes))
    for stage, steps in counts.items():
        total = steps[0][1]
        rounds = 3 if stage == "multiple choice" else 1  # the original and two artefacts
        assert steps == [(done, total) for done in range(total + 1)] * rounds
    assert judged == {report["stage"] for report in told if "ppl" in report}


def test_it_loads_generates_and_keeps_its_tokenizer(done, tiny) -> None:
    _, out = done
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    tokenizer, original = AutoTokenizer.from_pretrained(out), AutoTokenizer.from_pretrained(tiny)
    sentence = "Once upon a time there were 3 bears – ünïcode."
    assert tokenizer(sentence)["input_ids"] == original(sentence)["input_ids"]
    assert tokenizer.decode(tokenizer(sentence)["input_ids"]) == original.decode(original(sentence)["input_ids"])
    ids = torch.tensor([tokenizer("Once upon")["input_ids"]])
    assert model.generate(ids, max_new_tokens=3, do_sample=False, eos_token_id=None).shape[1] == ids.shape[1] + 3
    assert AutoModelForCausalLM.from_pretrained(out, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_a_card_counts_weights_not_bytes(done, tiny, tmp_path) -> None:
    report, out = done
    assert count_parameters(out) == count_parameters(tiny) == report.weights
    broken = shutil.copytree(out, tmp_path / "broken")
    data = bytearray((broken / folders.WEIGHTS).read_bytes())
    data[data.index(b"AFC1") + 16] = 0  # the head of the first container is no JSON any more
    (broken / folders.WEIGHTS).write_bytes(data)
    with pytest.raises(CheckpointError, match="cannot be read"):
        count_parameters(broken)


def test_a_damaged_artefact_is_refused(done, tmp_path) -> None:
    _, out = done
    weights = (out / folders.WEIGHTS).read_bytes()
    for name, data in (("cut", weights[:-9]), ("changed", weights[:-9] + bytes([weights[-9] ^ 4]) + weights[-8:])):
        broken = tmp_path / name
        shutil.copytree(out, broken)
        (broken / folders.WEIGHTS).write_bytes(data)
        with pytest.raises(Exception, match=r"checksum|damaged|incomplete|header|safetensors|Safetensor"):
            AutoModelForCausalLM.from_pretrained(broken)


def test_a_weight_under_another_name_is_refused_and_not_made_up(done, tmp_path) -> None:
    """The checksums are of the containers, the names stand outside them; transformers only warns of what is missing."""
    shutil.copytree(done[1], tmp_path / "damaged")
    file = tmp_path / "damaged" / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("up_proj.weight"))
    tensors[name.replace("up_proj", "uq_proj")] = tensors.pop(name)
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=f"{name}.*not in the file"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "damaged")


def test_a_tensor_of_another_shape_is_refused(done, tmp_path) -> None:
    _, out = done
    broken = tmp_path / "broken"
    shutil.copytree(out, broken)
    tensors = load_file(broken / folders.WEIGHTS)
    name = next(name for name in tensors if name.endswith("up_proj.weight"))
    other = pack(encode("raw", torch.zeros(3, 3)))
    tensors[name] = torch.frombuffer(bytearray(other), dtype=torch.uint8)
    save_file(tensors, broken / folders.WEIGHTS, {"format": "pt"})
    with pytest.raises(CheckpointError, match="should be"):
        AutoModelForCausalLM.from_pretrained(broken)


def test_the_same_seed_gives_the_same_bytes(done, tiny, text, tmp_path) -> None:
    _, out = done
    compress(tiny, tmp_path / "again", text, replace(FAST, budget=26_000))
    assert (tmp_path / "again" / folders.WEIGHTS).read_bytes() == (out / folders.WEIGHTS).read_bytes()


def test_an_impossible_budget_is_not_accepted_and_the_last_passing_artefact_is_kept(tiny, text, tmp_path) -> None:
    report = compress(tiny, tmp_path / "out", text, replace(FAST, codecs=("integer",), budget=2_000, recovery_steps=0))
    figures = report.as_dict()
    assert not figures["accepted"]
    assert figures["ppl"] <= 1.3 * figures["ppl_before"]
    assert figures["bytes"] == folders.folder_bytes(tmp_path / "out") == figures["least_bytes_that_passed"]
    assert "least size that passed" in figures["reason"]
    assert "distil a smaller student" in figures["reason"]


def test_where_nothing_passes_the_original_is_what_is_left(tiny, text, tmp_path) -> None:
    coarse = replace(FAST, codecs=("ternary",), max_increase=1e-9, recovery_steps=0)
    report = compress(tiny, tmp_path / "out", text, coarse)
    assert not report.accepted
    assert "OUT is the original" in report.reason
    same = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(same.head_down.weight, load_original(tiny).head_down.weight)


def test_without_a_budget_the_smallest_that_passes_is_found(tiny, text, tmp_path) -> None:
    report = compress(tiny, tmp_path / "out", text, replace(FAST, max_increase=0.05, recovery_steps=0, tries=4))
    assert report.accepted
    good = [stage.figures.bytes for stage in report.stages if stage.good]
    assert report.figures.bytes == min(good) == folders.folder_bytes(tmp_path / "out")
    assert len(report.stages) <= 5


def test_a_folder_that_is_not_empty_is_refused(tiny, text, tmp_path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(UsageError, match="not empty"):
        compress(tiny, tmp_path, text, FAST)
    with pytest.raises(UsageError, match="no codec 'zip'"):
        compress(tiny, tmp_path / "new", text, replace(FAST, codecs=("zip",)))


def test_recovery_lowers_the_divergence_at_a_coarse_step(tiny, text) -> None:
    search = Compressor(tiny, text, replace(FAST, recovery_steps=40, recovery_lr=0.1))
    coarse = {name: encode("grid", weight.data, step=2.0) for name, weight in matrices(search.model).items()}
    search.plain = {}
    before = _with(search, coarse)
    after = _with(search, search.recovered(coarse, 0.0, 10**9))
    assert after < 0.8 * before


def test_the_price_of_a_bit_holds_the_size_of_the_codes(tiny, text) -> None:
    search = Compressor(tiny, text, FAST)
    coarse = {name: encode("grid", weight.data, step=0.8) for name, weight in matrices(search.model).items()}
    size = sum(encoded.size() for encoded in coarse.values())
    latents = recover(search.model, search.model, coarse, text.rows, 40, lr=0.05, price=1e-6)
    bits = float(sum(latent.bits() for latent in latents.values() if latent.bits() is not None))
    assert 0.97 < sum(latent.encoded().size() for latent in latents.values()) / size < 1.03
    assert 0.6 < bits / 8 / size < 1  # an estimate of the same thing, without heads and tables


@pytest.mark.parametrize(("codec", "settings"), [("ternary", {}), ("integer", {"bits": 3})])
def test_every_codec_goes_through_recovery(tiny, text, codec: str, settings: dict) -> None:
    search = Compressor(tiny, text, replace(FAST, recovery_steps=12))
    coarse = {name: encode(codec, weight.data, **settings) for name, weight in matrices(search.model).items()}
    recovered = search.recovered(coarse, 0.0, 10**9)
    assert {encoded.codec for encoded in recovered.values()} == {codec}
    before, after = _with(search, coarse), _with(search, recovered)
    assert after == before if codec == "integer" else after < before


def _with(search: Compressor, tensors) -> float:
    """The divergence from the original with some tensors replaced."""
    model = load_original(search.source)
    places = dict(model.named_parameters())
    for name, encoded in tensors.items():
        places[name].data = decode(encoded)
    return search.judge.of_model(model, 1).kl


def test_costs_are_second_moments_and_fisher_information(tiny, text) -> None:
    model = load_original(tiny)
    rows = PackedRows(text.rows.tokens[:12], text.rows.documents[:12])
    costs = measure_costs(model, rows, 4)
    inputs = []
    hook = model.head_down.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach().flatten(0, 1)))
    with torch.no_grad():
        for start in range(0, len(rows), 4):
            model(input_ids=rows.take(slice(start, start + 4)).inputs)
    hook.remove()
    x = torch.cat(inputs).double()
    plain = x.T @ x / len(x)
    share = 48 / (48 + len(x))  # shrunk towards the diagonal: width against tokens
    expected = (1 - share) * plain + share * torch.diag(plain.diagonal())
    assert torch.allclose(costs["head_down.weight"].hessian.double(), expected, rtol=1e-3, atol=1e-5)
    table = costs["model.embed_tokens.weight"]
    assert table.hessian.shape == (32, 32)
    real = torch.from_numpy(rows.tokens[rows.documents >= 0]).long()
    assert torch.equal(table.rows, torch.bincount(real, minlength=290) + 3.0)
    more = measure_costs(model, rows, 4, more=text.rows)
    assert more["model.embed_tokens.weight"].rows.sum() > 10 * table.rows.sum()
    assert all(weight.grad is None for weight in model.parameters())


def test_the_rows_of_a_table_of_positions_cost_the_same(text) -> None:
    """Only in the table of words do rows cost what their words occur; GPT-2 has another one, of positions."""
    from transformers import GPT2Config, GPT2LMHeadModel

    rows = PackedRows(text.rows.tokens[:4], text.rows.documents[:4])
    model = GPT2LMHeadModel(GPT2Config(vocab_size=290, n_positions=64, n_embd=32, n_layer=1, n_head=2))
    costs = measure_costs(model, rows, 4)
    assert costs["transformer.wte.weight"].rows.shape == (290,)
    positions = costs["transformer.wpe.weight"]
    assert positions.rows is None
    assert positions.hessian.shape == (32, 32)


def test_moments_need_no_gradients(tiny, text) -> None:
    """Rows beyond `gradient_rows` sharpen the moments and leave the Fisher information as it was."""
    model = load_original(tiny)
    rows = PackedRows(text.rows.tokens[:12], text.rows.documents[:12])
    all_rows, few = measure_costs(model, rows, 4), measure_costs(model, rows, 4, gradient_rows=4)
    first = measure_costs(model, PackedRows(rows.tokens[:4], rows.documents[:4]), 4)
    assert torch.equal(few["head_down.weight"].hessian, all_rows["head_down.weight"].hessian)
    assert torch.equal(few["head_down.weight"].rows, first["head_down.weight"].rows)
    assert not torch.equal(few["head_down.weight"].rows, all_rows["head_down.weight"].rows)


def test_calibration_rows_come_from_all_the_text_and_judging_reads_many_documents(tiny) -> None:
    train, held_out = texts()
    prepared = prepare_text(tiny, train, held_out, 24, 14)
    count = prepared.rows.documents.max() + 1
    first = {int(document) for row in prepared.rows.documents[:24] for document in row if document >= 0}
    assert max(first) > count / 2 > min(first)
    by_document = np.bincount(prepared.held_out.rows.documents[:, 0])
    assert by_document.tolist() == [2] * 7 == [2] * len(held_out)
    assert len(prepare_text(tiny, train, held_out, 24, 40).held_out.rows) in range(34, 41)
    assert sum(prepared.held_out.bytes_of) < sum(len(text.encode()) for text in held_out)
    again = prepare_text(tiny, train, held_out, 24, 14)
    assert np.array_equal(again.rows.tokens, prepared.rows.tokens)
    assert mixed([["a", "b"], [], ["x"]]) == ["a", "x", "b"]


def test_rows_are_no_longer_than_the_model_reads_and_need_its_tokenizer(tiny, tmp_path) -> None:
    short = tmp_path / "short"
    shutil.copytree(tiny, short)
    config = json.loads((short / "config.json").read_text(encoding="utf-8"))
    (short / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 20}), encoding="utf-8")
    assert prepare_text(short, *texts(), 48, 24).rows.length == 20
    for file in short.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(CheckpointError, match="no tokenizer"):
        prepare_text(short, *texts(), 48, 24)


def test_a_model_with_a_weight_that_is_no_number_is_refused_in_words(tiny, tmp_path) -> None:
    model = load_original(tiny)
    name, weight = next(iter(matrices(model).items()))
    weight.data[0, 0] = math.inf
    model.save_pretrained(tmp_path / "broken")
    with pytest.raises(CheckpointError, match=f"{name} holds numbers that are NaN or infinite"):
        load_original(tmp_path / "broken")


def test_the_work_follows_the_size(tiny, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert usual_effort(tiny) == Effort(measured=0)
    monkeypatch.setattr("agent_forge.forge.compression.settings.count_parameters", lambda _: 25_000_000)
    assert usual_effort(tiny) == Effort(recovery_steps=0)
    stated = CompressSettings(recovery_steps=7, rows=3).effort(tiny)
    assert stated == Effort(recovery_steps=7, rows=3)  # what is stated wins
    monkeypatch.setattr("agent_forge.forge.compression.settings.count_parameters", lambda _: 135_000_000)
    large = usual_effort(tiny)
    assert (large.measured, large.recovery_steps) == (1, 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert usual_effort(tiny).recovery_steps > Effort().recovery_steps


def test_losses_that_were_not_measured_follow_the_distortion(tiny, text) -> None:
    """Inferred losses are of the size of measured ones, and grow with the distortion."""
    few = replace(FAST, questions=0, trial_tokens=320, codecs=("grid",))
    search = Compressor(tiny, text, few)
    search.calibrate()
    for measured in (1, 2):
        guessed = Compressor(tiny, text, replace(few, measured=measured))
        guessed.calibrate()
        away = []
        for name, trials in search.trials.items():
            for measured_trial, inferred in zip(trials, guessed.trials[name], strict=True):
                assert measured_trial.option.bytes == inferred.option.bytes
                if measured_trial.option.loss > 1e-4:
                    away.append(abs(math.log(inferred.option.loss / measured_trial.option.loss)))
            steps = [trial.option.loss for trial in guessed.trials[name] if trial.option.codec == "grid"]
            assert steps == sorted(steps)
        assert np.median(away) < math.log(2)


def test_the_allocation_is_the_best_there_is() -> None:
    """Against brute force over all choices: never over the budget, and within one upgrade of the least loss."""
    generator = torch.Generator().manual_seed(0)
    options = {}
    for name in "abcd":
        sizes = torch.randint(10, 200, (4,), generator=generator).sort().values.tolist()
        losses = torch.rand(4, generator=generator).sort(descending=True).values.tolist()
        options[name] = [Option("c", size, loss) for size, loss in zip(sizes, losses, strict=True)]
    import itertools

    for budget in range(120, 700, 60):
        allocation = allocate(options, budget)
        fitting = [c for c in itertools.product(*options.values()) if sum(o.bytes for o in c) <= budget]
        if not fitting:
            assert allocation is None
            continue
        best = min(sum(o.loss for o in c) for c in fitting)
        largest = max(a.loss - b.loss for of in options.values() for a, b in itertools.pairwise(worthwhile(of)))
        assert allocation is not None
        assert allocation.bytes <= budget
        assert best <= allocation.loss <= best + largest


def test_a_tokenizer_is_packed_without_loss(tiny) -> None:
    plain = (tiny / "tokenizer.json").read_text(encoding="utf-8")
    packed = pack_tokenizer(plain)
    assert json.loads(unpack_tokenizer(packed)) == json.loads(plain)
    assert len(packed) < len(plain) / 8
    odd = json.loads(plain)
    odd["model"]["merges"] = odd["model"]["merges"][::-1]  # names no longer follow from the merges
    assert json.loads(unpack_tokenizer(pack_tokenizer(json.dumps(odd)))) == odd
    joined = json.loads(plain)
    joined["model"]["merges"] = [" ".join(pair) for pair in joined["model"]["merges"]]
    assert json.loads(unpack_tokenizer(pack_tokenizer(json.dumps(joined)))) == joined
    with pytest.raises(CheckpointError, match="tokenizer"):
        unpack_tokenizer(packed[:-5])


def test_tokens_that_double_for_ever_are_refused() -> None:
    tokens = ["a" * 2**power for power in range(18)]
    model = {
        "type": "BPE",
        "vocab": {token: i for i, token in enumerate(tokens)},
        "merges": [[t, t] for t in tokens[:-1]],
    }
    with pytest.raises(CheckpointError, match="characters"):
        unpack_tokenizer(pack_tokenizer(json.dumps({"model": model})))


def test_a_tokenizer_that_cannot_be_packed_is_kept_as_it_is(tiny, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(folders, "_reads_alike", lambda *_: False)
    folders.write_tokenizer(tiny, tmp_path, ["a"])
    assert json.loads((tmp_path / "tokenizer.json").read_text()) == json.loads((tiny / "tokenizer.json").read_text())
    assert not (tmp_path / folders.FILE).exists()


def test_a_student_is_smaller_and_learns(tiny, text, tmp_path) -> None:
    teacher = load_original(tiny)
    count = teach_student(teacher, tiny, tmp_path / "student", text.rows, 20_000, 10, batch_rows=4)
    student = AutoModelForCausalLM.from_pretrained(tmp_path / "student")
    assert sum(weight.numel() for weight in student.parameters()) == count <= 20_000
    assert AutoTokenizer.from_pretrained(tmp_path / "student").bos_token_id is not None
    fresh = AutoModelForCausalLM.from_config(student.config)
    assert measure_text(student, text.held_out).loss < measure_text(fresh, text.held_out).loss
    with pytest.raises(UsageError, match="no smaller model"):
        student_config(teacher.config, 10)


def test_the_report_has_a_table_and_a_picture(done, tmp_path) -> None:
    report, _ = done
    draw_stages(report, tmp_path / "stages.svg")
    drawn = (tmp_path / "stages.svg").read_text()
    assert drawn.count("<circle") == len(report.stages) + 1
    import xml.dom.minidom

    xml.dom.minidom.parseString(drawn)
    assert stage_table(report).row_count == len(report.stages) + 1
    assert "&lt;b&gt;" in scatter([(1.0, 2.0, "<b>", True)], "x", "y", limit=1.5)


def test_a_model_with_buffers_that_are_computed_loads_again(tiny, text, tmp_path) -> None:
    """A Llama's rotary frequencies are in no file: they are left as the model makes them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    words = count_words(tiny)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=words, **shape, tie_word_embeddings=True)).save_pretrained(
        tmp_path / "llama"
    )
    for file in tiny.glob("tokenizer*"):
        shutil.copy(file, tmp_path / "llama" / file.name)
    search = Compressor(tmp_path / "llama", text, replace(FAST, questions=0))
    tensors = {name: encode("rtn", weight.data, bits=8, group=32) for name, weight in matrices(search.model).items()}
    plain = {name: encode("raw", weight) for name, weight in plain_tensors(search.model).items()}
    search.write(tmp_path / "out", {**tensors, **plain})
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert torch.equal(loaded.model.rotary_emb.inv_freq, search.model.model.rotary_emb.inv_freq)
    assert search.judge.of_folder(tmp_path / "out").kl < 1e-3


def count_words(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text())["vocab_size"])
