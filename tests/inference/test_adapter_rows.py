"""Several adapters on one base in one batch: each row is what its adapter gives alone, and the base is not copied."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from agents_tiny_model import tiny_adapter, tiny_model, tiny_tokenizer  # noqa: E402

from agent_forge.errors import CheckpointError, ModelError  # noqa: E402
from agent_forge.forge.adapters import load_adapter  # noqa: E402
from agent_forge.inference.adapters import AdapterBank  # noqa: E402
from agent_forge.inference.engine import Engine  # noqa: E402
from agent_forge.inference.job import DecodeJob  # noqa: E402
from agent_forge.inference.sampling import Sampling  # noqa: E402
from agent_forge.inference.text import TextWriter  # noqa: E402

NAMES = (None, "a", "b", "c")
ROWS = ("a", None, "b", "c", "a", "b")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, Path]:
    """Adapters of other ranks and layers: c leaves the layers of a and b alone."""
    folder = tmp_path_factory.mktemp("adapters")
    layers = ("q_proj", "down_proj")
    return {
        "a": tiny_adapter(folder / "a", 1, 2, layers),
        "b": tiny_adapter(folder / "b", 2, 5, layers[:1]),
        "c": tiny_adapter(folder / "c", 3, 3, ("v_proj", "up_proj")),
    }


def calm_model() -> Any:
    """The tiny model with logits of about 1, so that 1e-5 is some hundred roundings."""
    model = tiny_model()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(0.3)
    return model


def alone(folders: dict[str | None, Path], name: str | None, make: Any = tiny_model) -> Any:
    model = make()
    if name is not None:
        load_adapter(model, folders[name])
    return model.eval()


def test_a_batch_of_adapters_is_each_of_them_alone(folders: dict[str | None, Path]) -> None:
    model = calm_model()
    weights = {name: (each.data_ptr(), each.clone()) for name, each in model.named_parameters()}
    bank = AdapterBank(model)
    for name in ("a", "b", "c"):
        bank.add(name, folders[name])
    bank.add("a", folders["b"])  # is there already
    torch.manual_seed(4)
    tokens = torch.randint(0, 256, (len(ROWS), 9))
    with torch.no_grad():
        bank.use(ROWS)
        together = model(input_ids=tokens).logits
        each = {name: alone(folders, name, calm_model) for name in NAMES}
        for row, name in enumerate(ROWS):
            expected = each[name](input_ids=tokens[row : row + 1]).logits[0]
            assert torch.allclose(together[row], expected, atol=1e-5, rtol=0), name
            bank.use([name])  # one name for all rows
            assert torch.allclose(model(input_ids=tokens).logits[row], expected, atol=1e-5, rtol=0), name
    spread = (together[0] - each["b"](input_ids=tokens[:1]).logits[0]).abs().max()
    assert spread > 1e-2  # another adapter would show
    now = dict(model.named_parameters())
    assert len(now) == len(weights)  # the adapters are no weights of the model
    for name, (place, before) in weights.items():
        found = now.get(name, now.get(name.replace(".weight", ".base.weight")))
        assert found.data_ptr() == place, name  # not copied
        assert torch.equal(found, before), name


def test_the_engine_mixes_adapters_and_writes_what_each_writes(folders: dict[str | None, Path]) -> None:
    tokenizer = tiny_tokenizer()
    prompts = [list(f"row {number} says".encode()) for number in range(len(ROWS))]

    async def written(engine: Engine, names: tuple[str | None, ...], which: list[int]) -> dict[int, tuple[Any, Any]]:
        loop = asyncio.get_running_loop()
        jobs = {}
        for row in which:
            sampling = Sampling(temperature=0, top_logprobs=0)
            writer = TextWriter(tokenizer, ())
            job = DecodeJob(prompts[row], 12 + row, sampling, writer, frozenset(), asyncio.Queue(), loop)
            job.adapter = names[row]
            jobs[row] = job
        engine.submit(jobs.values())
        answers = {}
        for row, job in jobs.items():
            logprobs = []
            while True:
                _, piece = await job.outbox.get()
                if piece.error is not None:
                    raise piece.error
                logprobs.append(piece.token.logprob)
                if piece.finish is not None:
                    break
            answers[row] = (job.writer.text, logprobs)
        return answers

    engine = Engine(tiny_model(), slots=4, waiting=99, cache_bytes=1 << 30)  # rows leave and others join
    try:
        for name in ("a", "b", "c"):
            engine.add_adapter(name, folders[name])
        mixed = asyncio.run(written(engine, ROWS, list(range(len(ROWS)))))
    finally:
        engine.close()
    for name in NAMES:
        single = Engine(alone(folders, name), slots=4, waiting=99, cache_bytes=1 << 30)
        try:
            which = [row for row, own in enumerate(ROWS) if own == name]
            for row, (text, logprobs) in asyncio.run(written(single, (None,) * len(ROWS), which)).items():
                assert mixed[row][0] == text
                assert mixed[row][1] == pytest.approx(logprobs, abs=1e-4)  # after many steps
        finally:
            single.close()
    assert len({text for text, _ in mixed.values()}) == len(ROWS)


def test_peft_gives_the_same(folders: dict[str | None, Path], tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    theirs = peft.PeftModel.from_pretrained(tiny_model(), folders["a"])
    config = theirs.peft_config["default"]
    assert (config.r, config.lora_alpha, sorted(config.target_modules)) == (2, 4, ["down_proj", "q_proj"])
    theirs.save_pretrained(tmp_path / "theirs")
    bank = AdapterBank(model := tiny_model())
    bank.add("theirs", tmp_path / "theirs")
    bank.use(["theirs"])
    tokens = torch.arange(20).reshape(2, 10)
    with torch.no_grad():
        assert torch.allclose(model(input_ids=tokens).logits, theirs(input_ids=tokens).logits, atol=1e-5, rtol=0)


def test_what_a_bank_refuses(folders: dict[str | None, Path]) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    other = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=16))
    with pytest.raises(CheckpointError, match="do not fit"):
        AdapterBank(other).add("a", folders["a"])
    with pytest.raises(ModelError, match="packed model"):
        AdapterBank(torch.nn.Embedding(2, 2))
