"""`agent-forge evaluate` and `agent-forge models import`, against independent references."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests_packed_tiny import llama, ternarised
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_forge import forge
from agent_forge.cli import run
from agent_forge.errors import UsageError
from agent_forge.forge.checkpoint import load
from agent_forge.forge.gguf_export import export_gguf
from agent_forge.forge.registry import Registry
from agent_forge.forge.training import train_tokenizer
from agent_forge.inference.llama_gguf import load_gguf
from agent_forge.inference.packed import save_packed

WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "über", "many", "dogs", "ran", "to", "löß", "and", "fro"]
WORDS += ["in", "greyish", "moonlight", "near", "12", "ponds"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate") / "llama"
    torch.manual_seed(3)
    tokenizer = train_tokenizer([" ".join(WORDS)] * 20, vocab_size=320)
    special = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    llama(vocab_size=320, initializer_range=0.3, **special).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Choices of very different lengths, so that the two accuracies differ, in characters that take several bytes."""
    rng = np.random.default_rng(5)

    def words(count: int) -> str:
        return " ".join(rng.choice(WORDS, count))

    rows = [
        {
            "question": words(6),
            "choices": [words(int(length)) for length in rng.permutation([1, 2, 5, 9])],
            "answer": int(rng.integers(4)),
        }
        for _ in range(40)
    ]
    file = tmp_path_factory.mktemp("questions") / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def by_the_harness(folder: Path, file: Path, begin: bool = False) -> dict[str, float]:
    """lm-evaluation-harness' `process_results` of a multiple-choice task (acc, acc_norm) and its standard error of a
    mean, on log-likelihoods from one unbatched forward pass for each answer, tokenised as its `_encode_pair` does.
    `begin` is its option `add_bos_token`."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    acc, acc_norm = [], []
    for row in map(json.loads, file.read_text().splitlines()):
        context, lls = f"Question: {row['question']}\nAnswer:", []
        for choice in row["choices"]:
            first = [tokenizer.bos_token_id] if begin else []
            whole = first + tokenizer(f"{context} {choice}", add_special_tokens=False)["input_ids"]
            before = len(first + tokenizer(context, add_special_tokens=False)["input_ids"])
            with torch.no_grad():
                logs = torch.log_softmax(model(torch.tensor([whole])).logits[0].double(), -1)
            lls.append(sum(float(logs[at - 1, whole[at]]) for at in range(before, len(whole))))
        completion_len = np.array([float(len(choice)) for choice in row["choices"]])
        acc.append(1.0 if np.argmax(lls) == row["answer"] else 0.0)
        acc_norm.append(1.0 if np.argmax(np.array(lls) / completion_len) == row["answer"] else 0.0)
    error = float(np.std(acc, ddof=1) / np.sqrt(len(acc)))
    return {"accuracy": np.mean(acc), "accuracy_norm": np.mean(acc_norm), "stderr": error, "n": len(acc)}


def command(*arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert run([*arguments, "--json"]) == 0, capsys.readouterr().err
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_accuracies_are_those_of_the_harness(model: Path, questions: Path, capsys) -> None:
    call = ("evaluate", str(model), "--suite", "arc_easy,piqa", "--data", str(questions))
    for begin, option in ((True, "--begin"), (False, "--no-begin")):
        expected = by_the_harness(model, questions, begin)
        assert expected["accuracy"] != expected["accuracy_norm"]  # or the test could not tell them apart
        document = command(*call, option, capsys=capsys)
        assert document["tasks"] == {name: pytest.approx(expected) for name in ("arc_easy", "piqa")}
        assert document["scores"][0]["chance"] == 0.25
    assert (
        command(*call, capsys=capsys)["tasks"] == command(*call, "--begin", capsys=capsys)["tasks"]
    )  # its tokenizer's
    assert forge.evaluate(model, suite=["arc_easy"], data=str(questions), most=7).scores[0].n == 7


def test_packed_folders_and_registered_checkpoints(
    model: Path, questions: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("AGENT_FORGE_HOME", str(tmp_path / "home"))
    plain = AutoModelForCausalLM.from_pretrained(model)
    save_packed(plain, tmp_path / "packed", ternary=ternarised(plain, half=True), embedding=None)
    AutoTokenizer.from_pretrained(model).save_pretrained(tmp_path / "packed")
    Registry().add(load(tmp_path / "packed"))
    options = ["--suite", "arc_easy", "--data", str(questions)]
    by_folder = command("evaluate", str(tmp_path / "packed"), *options, capsys=capsys)
    by_digest = command("evaluate", load(tmp_path / "packed").digest[:12], *options, capsys=capsys)
    assert by_folder["tasks"] == by_digest["tasks"]
    assert by_folder["tasks"]["arc_easy"] == pytest.approx(by_the_harness(tmp_path / "packed", questions, True))
    assert run(["evaluate", str(model), *options]) == 0
    assert "arc_easy" in capsys.readouterr().out


@pytest.fixture
def endpoint() -> Iterator[str]:
    """A server that knows one answer, and fences it as chat models do where it is asked for code."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = request["messages"][-1]["content"]
            text = "Sure:\n```python\ndef double(x):\n    return 2 * x\n```\nDone." if "code" in prompt else "It is 42."
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            body = json.dumps({"id": "1", "object": "chat.completion", "model": "m", "choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1#m"
    server.shutdown()
    server.server_close()


def test_an_endpoint_answers_what_needs_only_its_text(endpoint: str, questions: Path, tmp_path: Path, capsys) -> None:
    for name, rows in {
        "gsm8k": [{"question": "6 times 7?", "answer": "#### 42"}, {"question": "1 plus 1?", "answer": "#### 2"}],
        "mbpp": [{"text": "Double a number.", "test_list": ["assert double(2) == 4"]}],
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    document = command("evaluate", endpoint, "--suite", "gsm8k,mbpp", "--data", str(tmp_path), capsys=capsys)
    assert document["tasks"] == {
        "gsm8k": {"accuracy": 0.5, "accuracy_norm": None, "stderr": 0.5, "n": 2},
        "mbpp": {"accuracy": 1.0, "accuracy_norm": None, "stderr": None, "n": 1},
    }
    assert run(["evaluate", endpoint, "--suite", "arc_easy", "--data", str(questions)]) == 2
    assert "arc_easy needs the likelihood of given answers" in capsys.readouterr().err


def test_calls_that_cannot_work(model: Path, questions: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.delenv("AGENT_FORGE_DATA", raising=False)
    with pytest.raises(UsageError, match="no questions are named"):
        forge.evaluate(model, suite=["piqa"])
    for arguments, message in (
        (["evaluate", str(model), "--suite", "arc_esay", "--data", str(questions)], "Did you mean 'arc_easy'"),
        (["evaluate", str(model), "--suite", "piqa", "--data", str(tmp_path / "none")], "there is no file or folder"),
        (["evaluate", str(tmp_path / "none"), "--suite", "piqa", "--data", str(questions)], "none"),
        (["models", "import", str(tmp_path / "x.gguf"), str(tmp_path / "out")], "there is no file"),
    ):
        assert run(arguments) != 0
        assert message in capsys.readouterr().err
    (tmp_path / "not.gguf").write_bytes(b"hello")
    assert run(["models", "import", str(tmp_path / "not.gguf"), str(tmp_path / "out")]) == 1
    assert not (tmp_path / "out").exists()


def test_a_gguf_file_becomes_a_folder_that_phases_take(model: Path, tmp_path: Path, capsys) -> None:
    file = tmp_path / "m.gguf"
    original, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    export_gguf(original, tokenizer, file, others="F32", pre="llama-bpe")
    document = command("models", "import", str(file), str(tmp_path / "out"), capsys=capsys)
    assert document == {"folder": str(tmp_path / "out"), "digest": load(tmp_path / "out").digest}
    theirs, words = load_gguf(file)
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = torch.tensor([words("the cat sat on über")["input_ids"]])
    assert torch.equal(ours(ids).logits, theirs(ids).logits)
    assert (
        AutoTokenizer.from_pretrained(tmp_path / "out")("the löß 12")["input_ids"] == words("the löß 12")["input_ids"]
    )
    assert load(tmp_path / "out").card.phase == "imported"
    text, rng = tmp_path / "text.jsonl", np.random.default_rng(1)
    text.write_text("".join(json.dumps({"text": " ".join(rng.permutation(WORDS))}) + "\n" for _ in range(40)))
    sources = {"text": {"path": str(text)}}
    child = forge.train(
        tmp_path / "out", tmp_path / "child", sources=sources, held_out=0.3, length=32,
        training={"steps": 1, "batch_rows": 2, "optimizer": "specialise"},
    )  # fmt: skip
    assert child.checkpoint.card.inputs == (document["digest"],)
    assert run(["models", "import", str(file), str(tmp_path / "out")]) == 2  # it exists
    half = command("models", "import", str(file), str(tmp_path / "half"), "--dtype", "float16", capsys=capsys)
    assert half["digest"] != document["digest"]
