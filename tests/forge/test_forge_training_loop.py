"""The loop learns, resumes exactly, survives kill -9 and a full memory, and stops when it goes wrong."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import tests_forge_run as example
import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

from agent_forge.errors import AgentForgeError, DataError
from agent_forge.forge.models import CognateForCausalLM
from agent_forge.forge.training import (
    TrainingDiverged,
    TrainSettings,
    checkpoints,
    load_checkpoint,
    loop,
    read_log,
    train,
)
from agent_forge.forge.training.checkpoint import save_checkpoint, weights_of
from agent_forge.forge.training.report import TrainingLog
from agent_forge.forge.training.speed import compiled

STEPS = 10
FORK = multiprocessing.get_context("fork")  # a real process, without ten seconds of imports


def run(folder: Path | None, steps: int = STEPS, model=None, until: int | None = None, **changes):
    """Trains the example; `until` stops it short, as a crash between two steps would."""
    model = model or example.model()
    settings = TrainSettings(**{**example.SETTINGS, "steps": steps, **changes})

    def stop(record):
        if until is not None and record["step"] >= until:
            raise KeyboardInterrupt

    result = train(model, example.data(), settings, folder, example.judge, stop, progress=None)
    return model, result


def curve(folder: Path) -> list[tuple[int, float]]:
    return [(record["step"], record["loss"]) for record in read_log(folder / "log.jsonl") if "loss" in record]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    torch.set_num_threads(1)
    model, result = run(folder)
    return model, result, curve(folder)


def test_it_learns():
    model = example.model()
    before = example.judge(model)
    _, result = run(None, steps=60, model=model, ema=0.0)
    assert result.final.bits_per_byte < 0.8 * before.bits_per_byte
    assert result.final.accuracy > before.accuracy + 4 * result.final.accuracy_stderr
    assert (result.steps, result.tokens) == (60, 60 * 4 * 16)
    assert not model.training


def test_any_hugging_face_model_trains():
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    before = example.judge(model)
    _, result = run(None, steps=40, model=model, ema=0.0)
    assert result.final.bits_per_byte < 0.9 * before.bits_per_byte


class TestResuming:
    def test_a_stopped_run_goes_on_bit_for_bit(self, unbroken, tmp_path):
        model, _, expected = unbroken
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, until=8)
        resumed, _ = run(tmp_path)
        assert curve(tmp_path) == expected
        assert _same(resumed, model)

    def test_it_survives_kill_9(self, unbroken, tmp_path):
        model, _, expected = unbroken
        process = FORK.Process(target=run, args=(tmp_path,))
        process.start()
        deadline = time.monotonic() + 120
        while not checkpoints(tmp_path) and process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.002)
        process.kill()
        process.join()
        assert process.exitcode in (-signal.SIGKILL, 0)
        assert checkpoints(tmp_path)
        resumed, _ = run(tmp_path)
        assert curve(tmp_path) == expected
        assert _same(resumed, model)

    def test_a_finished_run_is_not_run_again(self, tmp_path):
        run(tmp_path, steps=4)
        written = (tmp_path / "log.jsonl").read_text()
        _, result = run(tmp_path, steps=4)
        assert result.steps == 4
        assert [json.loads(line) for line in written.splitlines() if "loss" in json.loads(line)] == [
            record for record in read_log(tmp_path / "log.jsonl") if "loss" in record
        ]

    def test_old_checkpoints_are_removed(self, tmp_path):
        run(tmp_path, steps=10, save_every=2, keep=2)
        assert [path.name for path in checkpoints(tmp_path)] == ["step-00000008", "step-00000010"]

    def test_half_a_line_in_the_log_is_dropped(self, tmp_path):
        path = tmp_path / "log.jsonl"
        path.write_text('{"step": 1, "loss": 2}\n{"step": 2, "loss": 1}\n{"step": 3, "lo')
        TrainingLog(path, resumed_at=1)
        assert read_log(path) == [{"step": 1, "loss": 2}]


def _same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(weights_of(one).values(), weights_of(other).values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


class TestCheckpoints:
    def test_a_half_written_one_does_not_count(self, tmp_path):
        save_checkpoint(tmp_path / "step-00000001", {"model": {"w": torch.ones(2)}}, {"step": 1})
        (tmp_path / ".step-00000002.part").mkdir()
        (tmp_path / "step-00000003").mkdir()
        assert [path.name for path in checkpoints(tmp_path)] == ["step-00000001"]

    def test_what_is_saved_comes_back(self, tmp_path):
        folder = save_checkpoint(tmp_path / "c", {"model": {"w": torch.arange(3)}}, {"step": 4})
        save_checkpoint(folder, {"model": {"w": torch.arange(4)}}, {"step": 5})
        tensors, state = load_checkpoint(folder)
        assert tensors["model"]["w"].tolist() == [0, 1, 2, 3]
        assert state == {"step": 5}

    def test_a_damaged_one_is_refused(self, tmp_path):
        with pytest.raises(DataError, match="not a training checkpoint"):
            load_checkpoint(tmp_path)


class TestMemory:
    def test_the_micro_batch_does_not_change_the_step(self):
        gradients = []
        for micro in (4, 2, 1):
            model, result = run(None, steps=1, micro_rows=micro, ema=0.0)
            gradients.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
            assert result.micro_rows == micro
        torch.testing.assert_close(gradients[0], gradients[1])
        torch.testing.assert_close(gradients[0], gradients[2])

    def test_running_out_of_it_halves_the_micro_batch_and_keeps_the_step(self):
        """The allocator is the edge of the process: a model that refuses more than one row stands for a full GPU."""
        reference, _ = run(None, steps=3, micro_rows=1)
        model = example.model()
        model.model.layers[1].register_forward_pre_hook(_refuse_more_than_one_row)
        small, result = run(None, steps=3, model=model, micro_rows=4)
        assert result.micro_rows == 1
        assert _same(small, reference)

    def test_when_one_row_is_too_much_it_says_so(self):
        model = example.model()
        model.model.layers[1].register_forward_pre_hook(_refuse)
        with pytest.raises(AgentForgeError, match="gradient checkpointing"):
            run(None, steps=1, model=model)

    def test_checkpointed_gradients_give_the_same_run(self):
        plain, _ = run(None, steps=2)
        saved, _ = run(None, steps=2, gradient_checkpointing=True)
        for a, b in zip(plain.parameters(), saved.parameters(), strict=True):
            torch.testing.assert_close(a, b)


def _refuse_more_than_one_row(module, args):
    if args[0].shape[0] > 1 and module.training:
        raise torch.OutOfMemoryError("CUDA out of memory")


def _refuse(module, args):
    raise torch.OutOfMemoryError("CUDA out of memory")


class TestGoingWrong:
    def test_a_loss_that_is_not_finite_stops_the_run_with_the_last_good_weights(self, tmp_path):
        model = example.model()
        good = {}

        def spoil(record):
            if record["step"] == 3:
                good.update({name: w.clone() for name, w in weights_of(model).items()})
            if record["step"] == 5:
                with torch.no_grad():
                    model.model.layers[0].up_proj.weight.fill_(float("nan"))

        settings = TrainSettings(**{**example.SETTINGS, "steps": 10})
        with pytest.raises(TrainingDiverged, match="nan at step 6") as caught:
            train(model, example.data(), settings, tmp_path, on_record=spoil, progress=None)
        assert caught.value.checkpoint == tmp_path / "step-00000003"
        assert all(torch.equal(good[name], w) for name, w in weights_of(model).items())

    def test_a_loss_that_runs_away_stops_the_run(self):
        changes = {"optimizer_changes": {"lr": 30.0, "embedding_lr": 5.0}, "clip": 0.0, "warmup": 0}
        with pytest.raises(TrainingDiverged, match="save checkpoints") as caught:
            run(None, steps=60, divergence=1.0, **changes)
        assert caught.value.checkpoint is None


class TestStopping:
    def test_no_gain_stops_and_the_best_weights_come_back(self, tmp_path):
        model, result = run(tmp_path, steps=200, evaluate_every=5, patience=2, least_gain=0.5, save_every=0, ema=0.0)
        assert result.stopped_early
        assert result.steps < 200
        assert result.best_step < result.steps
        assert example.judge(model).bits_per_byte == pytest.approx(result.best.bits_per_byte)

        again, second = run(tmp_path, steps=200, evaluate_every=5, patience=2, least_gain=0.5, save_every=0, ema=0.0)
        assert (second.steps, second.best_step, second.final) == (result.steps, result.best_step, result.final)
        assert _same(again, model)

    def test_a_finished_run_knows_its_last_evaluation(self, tmp_path):
        _, first = run(tmp_path, steps=4, evaluate_every=2)
        _, second = run(tmp_path, steps=4, evaluate_every=2)
        assert second.final == first.final is not None

    def test_the_average_is_what_is_evaluated_and_kept(self):
        model, result = run(None, steps=12, ema=0.95)
        assert example.judge(model).bits_per_byte == pytest.approx(result.final.bits_per_byte)


def test_bf16_on_a_cpu_and_document_masks_and_qk_clip_run():
    model = example.model(qk_norm=False)
    _, result = run(
        None, steps=4, model=model, precision="bf16", document_mask=True, qk_clip=0.5, qk_clip_every=2, ema=0.0
    )
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert result.losses[-1] < 6
    from agent_forge.forge.training import largest_logits

    batch = example.data().batch(3, 4, 7)
    assert max(logits.max() for logits in largest_logits(model, batch.inputs).values()) <= 0.51


def test_another_objective_can_be_given():
    seen = []

    def loss(model, batch):
        seen.append(len(batch))
        return model(batch.inputs, use_cache=False).logits.square().mean()

    settings = TrainSettings(**{**example.SETTINGS, "steps": 3})
    train(example.model(), example.data(), settings, loss=loss, progress=None)
    assert seen == [2] * 6


def test_compiling_changes_nothing_but_speed():
    model = example.model()
    settings = TrainSettings(**{**example.SETTINGS, "steps": 2, "compile": True})
    torch._dynamo.reset()
    with torch._dynamo.config.patch(suppress_errors=False):
        torch.compiler.set_stance("force_eager")
        try:
            train(model, example.data(), settings, progress=None)
        finally:
            torch.compiler.set_stance("default")
    assert _same(model, run(None, steps=2)[0])
    assert "refine" not in vars(model.model)


def test_of_a_foreign_model_the_layers_are_compiled_one_by_one():
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, **shape))
    layers = [*model.model.layers]
    with compiled(model):
        assert all(layer._compiled_call_impl is not None for layer in layers)
        assert model.model._compiled_call_impl is None
    assert all(layer._compiled_call_impl is None for layer in layers)


class Repeating:
    """Stands for a CUDA graph: knows no arguments, only the places that it was recorded on."""

    def __init__(self, work):
        self.work, self.loss, self.replays = work, torch.zeros(()), 0

    def replay(self):
        self.replays += 1
        self.loss.copy_(self.work())


class TestReplay:
    @pytest.fixture
    def graphs(self, monkeypatch):
        graphs: list[Repeating] = []

        def record(work):
            graphs.append(Repeating(work))
            return graphs[-1], graphs[-1].loss

        monkeypatch.setattr(loop, "cuda_graph", record)
        monkeypatch.setattr(loop.TrainingRun, "_recordable", lambda self, loss: True)
        return graphs

    @pytest.mark.parametrize(("micro", "replays"), [(4, 2), (2, 5), (3, 2)])  # 3 leaves one row over: run as it is
    def test_it_makes_the_same_steps(self, graphs, micro, replays, monkeypatch):
        replayed, _ = run(None, steps=3, micro_rows=micro)
        assert [graph.replays for graph in graphs] == [replays]
        graphs.clear()
        monkeypatch.setattr(loop.TrainingRun, "_recordable", lambda self, loss: False)
        plain, _ = run(None, steps=3, micro_rows=micro)
        assert not graphs
        assert _same(replayed, plain)
        assert all(p.grad is None for p in replayed.parameters())

    def test_a_full_memory_records_anew(self, graphs):
        reference, _ = run(None, steps=3, micro_rows=1)
        graphs.clear()
        model = example.model()
        model.model.layers[1].register_forward_pre_hook(_refuse_more_than_one_row)
        small, result = run(None, steps=3, model=model, micro_rows=4)
        assert result.micro_rows == 1
        assert len(graphs) == 1
        assert _same(small, reference)

    def test_what_cannot_be_recorded_runs_as_it_is_and_says_so(self, graphs, monkeypatch):
        def fail(work):
            raise RuntimeError("operation not permitted when capturing\nand more")

        reference, _ = run(None, steps=3, micro_rows=2)
        monkeypatch.setattr(loop, "cuda_graph", fail)
        with pytest.warns(UserWarning, match=r"without a CUDA graph: operation not permitted when capturing$"):
            model, _ = run(None, steps=3, micro_rows=2)
        assert _same(model, reference)

    def test_only_a_gpu_records(self):
        settings = TrainSettings(**{**example.SETTINGS, "graph": True})
        assert (
            loop.TrainingRun(example.model(), example.data(), settings, None, None, None, None, None).passes.record
            is None
        )


def one_of_two(rank: int, folder: Path) -> None:
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # without it gloo asks for the machine's name, which need not resolve
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    settings = TrainSettings(**{**example.SETTINGS, "steps": 3, "micro_rows": 1})
    torch.manual_seed(rank)  # every process begins with the first one's weights, whatever its own
    model = example.model() if rank == 0 else CognateForCausalLM(example.model().config)
    train(model, example.data(), settings, folder, progress=None)
    dist.destroy_process_group()


def test_two_processes_make_the_same_steps_as_one(tmp_path):
    """As torchrun starts them, over gloo."""
    reference, _ = run(None, steps=3, micro_rows=1)
    started = [FORK.Process(target=one_of_two, args=(rank, tmp_path)) for rank in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join(timeout=180)
    assert [process.exitcode for process in started] == [0, 0]
    tensors, _ = load_checkpoint(checkpoints(tmp_path)[-1])
    for name, weight in weights_of(reference).items():
        torch.testing.assert_close(tensors["average"][name], weight)
