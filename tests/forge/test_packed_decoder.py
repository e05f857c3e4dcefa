"""The compiled decoder says what transformers says, token by token and for whole prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests_packed_tiny import cognate, llama, ternarised
from transformers import AutoModelForCausalLM

from agent_forge.errors import UsageError
from agent_forge.inference.packed import (
    Decoder,
    DecoderBatch,
    compiled,
    fast_generate,
    fast_tokens,
    save_packed,
    why_not,
)

IDS = [int(i) for i in torch.randint(1, 60, (50,), generator=torch.Generator().manual_seed(1))]
MODELS = {
    "llama": (llama, {}),
    "llama with biases and groups": (
        lambda: llama(tie_word_embeddings=False, attention_bias=True, mlp_bias=True),
        {"group": 16},
    ),
    "cognate with memory": (cognate, {}),
    "cognate without": (lambda: cognate(memory_layers=[], embedding_rank=None, qk_norm=False), {"half": True}),
}

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="there is no C compiler here")


def packed(make: Any, folder: Path, options: Any, **how: Any) -> Any:
    model = make()
    save_packed(model, folder, ternary=ternarised(model, **options), **how)
    return AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize(("make", "options"), MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(("layout", "embedding"), [("2bit", "int8"), ("1.6bit", "int4"), ("2bit", None)])
def test_the_logits_are_those_of_transformers(
    make: Any, options: Any, layout: str, embedding: Any, tmp_path: Path
) -> None:
    model = packed(make, tmp_path, options, layout=layout, embedding=embedding)
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([IDS])).logits[0]
    alone = Decoder(model, 64)
    logits = alone.read_all(IDS)
    # Where sums are taken in another order, an activation may round to its other neighbour: rare, and worth a step.
    error = (logits - expected).abs().amax(1) / expected.abs().max()
    assert error.median() < 1e-5
    assert error.max() < 0.05
    alone.reset()
    first, second = alone.read(IDS[:33]), alone.read(IDS[33:34])
    assert (first - expected[32]).abs().max() < 0.05 * expected.abs().max()
    assert (second - expected[33]).abs().max() < 0.05 * expected.abs().max()
    with torch.inference_mode():  # the weights moved into one piece of memory, and the model still works
        assert torch.equal(model(input_ids=torch.tensor([IDS])).logits[0], expected)


def test_it_writes_the_likeliest_tokens(tmp_path: Path) -> None:
    """Judged by transformers' logits on what was written: the best token, or one that a rounding makes the best."""
    model = packed(llama, tmp_path, {})
    written = fast_generate(model, IDS, 12)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([IDS + written])).logits[0, len(IDS) - 1 : -1]
    best = logits.amax(1)
    assert ((best - logits[range(12), written]) < 0.02 * best.abs()).all()
    assert fast_generate(model, IDS, 12, eos_token_id=written[4]) == written[: written.index(written[4]) + 1]
    assert fast_generate(model, IDS, 12, eos_token_id=[written[4]]) == written[: written.index(written[4]) + 1]
    alone = Decoder(model, 80)
    assert fast_generate(alone, IDS, 12) == fast_generate(alone, IDS, 12) == written
    some = fast_generate(model, IDS, 20, temperature=1.5, seed=3)
    assert some == list(fast_tokens(alone, IDS, 20, temperature=1.5, seed=3))
    assert some != fast_generate(model, IDS, 20, temperature=1.5, seed=4)
    assert len(fast_generate(model, IDS, 5, temperature=1.0)) == 5


def test_what_it_does_not_run_transformers_does(tmp_path: Path) -> None:
    model = packed(llama, tmp_path, {})
    whole = model.generate(torch.tensor([IDS]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    model.config.model_type = "another"
    assert fast_generate(model, IDS, 12) == whole[0, len(IDS) :].tolist()


def test_what_it_cannot_run_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = packed(llama, tmp_path, {})
    alone = Decoder(model, 16)
    with pytest.raises(UsageError, match="17 tokens, and the decoder holds 16"):
        alone.read(IDS[:17])
    with pytest.raises(UsageError, match=r"not in 0\.\.100"):
        alone.read([101])
    assert alone.position == 0
    model.model.layers[0].mlp.up_proj.sub_norm = True
    assert "sub-norm" in str(why_not(model))
    model.config.hidden_act = "gelu"
    assert "gelu" in str(why_not(model))
    assert "loops" in str(why_not(cognate(loops=2)))
    stretched = cognate()
    stretched.config.rope_parameters = {"rope_type": "dynamic"}
    assert "dynamic" in str(why_not(stretched))
    assert why_not(cognate()) is None  # plain weights are run as they are
    assert "main memory" in str(why_not(cognate().to("meta")))
    model.config.model_type = "gpt2"
    with pytest.raises(UsageError, match="gpt2"):
        Decoder(model)
    monkeypatch.setattr(compiled, "library", lambda: None)
    assert why_not(cognate()) == "there is no C compiler here"


def test_it_runs_plain_models_too(tmp_path: Path) -> None:
    model = llama()
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(Decoder(model, 64).read_all(IDS), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("make", [llama, cognate], ids=["llama", "cognate"])
def test_sequences_side_by_side_say_what_each_says_alone(make: Any, tmp_path: Path) -> None:
    """To the last bit, whoever joins and leaves beside them, and beyond the room that they began with."""
    model = packed(make, tmp_path, {})
    alone = Decoder(model, 400)
    prompts = [IDS[:n] for n in (3, 40, 1, 33, 9, 17, 5, 2, 8, 50)]
    batch, written = DecoderBatch(model), [list(prompt) for prompt in prompts]
    running = list(range(len(prompts)))

    def take(rows: list[int], logits: torch.Tensor) -> None:
        for row, one in zip(rows, logits, strict=True):
            written[row].append(int(one.argmax()))

    take(running[:4], batch.join(prompts[:4]))
    take(running[4:], batch.join(prompts[4:]))  # more than there were places for
    for step in range(250):
        take(running, batch.step([written[row][-1] for row in running]))
        if step in (2, 3, 60):
            batch.leave([1, len(running) - 1])
            running[1] = running[-2]
            del running[-2:]
    assert batch.count == len(running) == 4
    last = batch.step([written[row][-1] for row in running])
    for prompt, tokens in zip(prompts, written, strict=True):
        length = len(tokens) - len(prompt)
        assert tokens[len(prompt) :] == fast_generate(alone, prompt, length)
    for row, logits in zip(running, last, strict=True):
        alone.reset()
        again = alone.read(prompts[row])
        for token in written[row][len(prompts[row]) :]:
            again = alone.read([token])
        assert torch.equal(again, logits)
    assert batch.cells(2, 300) == 2 * batch.cells(1, 257) > batch.cells(2, 256)
