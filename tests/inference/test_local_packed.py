"""A packed folder as a model in this process, with nothing but the base install: chat, streaming, plans."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packed_folders import byte_tokenizer, llama_folder

from agent_forge.agents.planner import LocalPlanner
from agent_forge.errors import CheckpointError, MissingExtraError, ModelError
from agent_forge.inference import Completion, TokenUsage, model
from agent_forge.inference.local_model import LocalModel, end_tokens
from agent_forge.inference.packed import PackedModel, fast_generate
from agent_forge.plans import parse_plan

HELLO = [{"role": "user", "content": "hello"}]
CHAT = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
CHAT += "{% if add_generation_prompt %}<|assistant|>{% endif %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("packed") / "tiny"
    llama_folder(made, vocab_size=257, max_position_embeddings=8192, eos_token_id=256)
    return byte_tokenizer(made, CHAT)


def ask(client: Any, messages: Any = HELLO, **options: Any) -> Completion:
    done: Completion = asyncio.run(client.complete(messages, **options))
    return done


def test_an_answer_is_what_the_model_writes(folder: Path) -> None:
    client = LocalModel(folder, keep_tokens=True)
    got = ask(client, max_tokens=30)
    packed, tokenizer = client.load()
    assert isinstance(packed, PackedModel)
    prompt = b"<|user|>hello<|assistant|>"
    assert got.prompt_ids == tuple(prompt)
    assert list(got.output_ids or ()) == fast_generate(packed, list(prompt), 30, eos_token_id=256)
    assert got.usage == TokenUsage(len(prompt), len(got.output_ids or ()))
    assert got.text == tokenizer.decode(got.output_ids, skip_special_tokens=True)
    history, whole = packed.history(), [*prompt, *(got.output_ids or ())]
    logits = packed.read(history, whole[:-1], each=len(got.output_ids or ())).astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = logprobs[range(len(logprobs)), list(got.output_ids or ())]
    assert list(got.logprobs or ()) == pytest.approx(expected.tolist(), abs=1e-3)


def test_seeds_stops_masks_and_the_context(folder: Path) -> None:
    client = LocalModel(folder)
    drawn = [ask(client, max_tokens=20, temperature=1.5, seed=seed).text for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    free = ask(client, max_tokens=40).text
    stop = free[5:7]
    assert ask(client, max_tokens=40, stop=[stop]).text == free[: free.index(stop)]
    with pytest.raises(ModelError, match="the model's context is 8,192"):
        ask(client, [{"role": "user", "content": "x" * 9000}])

    def end_after_three(written: list[int], logits: Any) -> Any:
        return np.where(np.arange(len(logits)) == (256 if len(written) == 3 else 65), 0, -np.inf)

    got = ask(LocalModel(folder, mask=end_after_three))
    assert (got.text, got.finish_reason) == ("AAA", "stop")


def test_the_end_tokens_are_those_of_the_folder(folder: Path, tmp_path: Path) -> None:
    packed, tokenizer = LocalModel(folder).load()
    assert end_tokens(packed, tokenizer) == {256}
    other = byte_tokenizer(llama_folder(tmp_path, vocab_size=257), CHAT)
    (other / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    assert end_tokens(*LocalModel(other).load()) == {3, 4, 256}
    (other / "generation_config.json").write_text("[")
    with pytest.raises(CheckpointError, match="generation_config"):
        LocalModel(other).load()


def test_other_folders_need_an_extra_and_say_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    with pytest.raises(MissingExtraError, match=r"\[forge\]"):
        LocalModel(tmp_path).load()


def test_a_planner_writes_plans(folder: Path) -> None:
    planner = LocalPlanner(LocalModel(folder, name="tiny"), most=3, budget=80)
    requests = [("short", ()), ("a rather longer request than the other", ()), ("third", ())]
    together = planner.plan_many(requests)
    for planned, (request, _) in zip(together, requests, strict=True):
        assert planned.provenance.model == "tiny"
        assert 1 <= len(parse_plan(planned.provenance.text or "", format="lines")) <= 3
        assert planner.plan_now(request).provenance.text == planned.provenance.text


def test_a_folder_is_a_model_by_name_and_plans_from_the_terminal(folder: Path, tmp_path: Path) -> None:
    assert model(str(folder)).name == "tiny"
    code = (
        "import sys; from agent_forge.cli import main\n"
        f"sys.argv[1:] = ['plan', 'Look up the weather, then tell Ann', '--model', {str(folder)!r}, '--json']\n"
        "try:\n    main()\nfinally:\n    assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    env = {"AGENT_FORGE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    env |= {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tasks"]
