"""How much of a model's throughput is left when 64 clients stream from it over HTTP?

A server with one small model and, in turns with it, `generate()` on a batch of the same prompts: tokens per second of
all clients together against those of the batch. Also the time to first token, lost requests, and the server's memory
from round to round (`--minutes 10` for a long run).

    python benchmarks/serve_concurrency.py [--quick] [--model FOLDER] [--clients 64] [--minutes M]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOAL = 0.8


def make_model(folder: Path) -> Path:
    """A Llama of 25 M parameters with random weights: speed does not depend on what it says."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192, hidden_size=448, intermediate_size=1216, num_hidden_layers=8, num_attention_heads=7,
        num_key_value_heads=7, max_position_embeddings=2048, bos_token_id=None, eos_token_id=8191, pad_token_id=0,
        tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {**{char: n for n, char in enumerate(alphabet)}, **{f"w{n}": n for n in range(256, 8191)}}
    inner = Tokenizer(models.BPE(words, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|end|>"])
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>").save_pretrained(folder)
    return folder


class Server:
    """`agent-forge serve` in a process of its own."""

    def __init__(self, model: Path | None, home: Path, slots: int = 64) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "agent_forge", "serve", "--port", str(self.port), "--home", str(home)]
        command += ["--slots", str(slots), "--log-level", "error"]
        command += ["--model", f"m={model}"] if model is not None else []
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + 180
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=10):
                    return
            except OSError:
                time.sleep(0.2)
        raise SystemExit("the server did not become ready")

    def memory_mb(self) -> float:
        """Resident memory."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) / 1024

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=60)


@dataclass
class Answer:
    tokens: int
    first_s: float
    whole: bool


async def stream(port: int, prompt: list[int], most: int) -> Answer:
    """One client: a request by hand, so that the client costs little of the machine it shares with the server."""
    request = {"model": "m", "prompt": prompt, "max_tokens": most, "temperature": 0, "stream": True}
    body = json.dumps({**request, "stream_options": {"include_usage": True}}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + body)
    received, first = bytearray(), 0.0
    while chunk := await reader.read(1 << 16):
        received += chunk
        if not first and b"data: " in received:
            first = time.perf_counter() - started
    writer.close()
    text = received.decode()
    whole = "data: [DONE]" in text and any(f'"finish_reason": "{end}"' in text for end in ("length", "stop"))
    tokens = int(text.rpartition('"completion_tokens": ')[2].partition(",")[0]) if whole else 0
    return Answer(tokens, first, whole)


async def crowd(port: int, prompts: list[list[int]], most: int) -> tuple[float, list[Answer]]:
    started = time.perf_counter()
    answers = await asyncio.gather(*(stream(port, prompt, most) for prompt in prompts))
    return time.perf_counter() - started, list(answers)


def generate(model: Any, prompts: list[list[int]], most: int) -> tuple[float, float]:
    """Seconds of one batch, by the clock and of CPU."""
    import torch

    tokens = torch.tensor(prompts)
    started, spent = time.perf_counter(), time.process_time()
    output = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=most, do_sample=False, eos_token_id=None
    )
    assert output.shape[1] == tokens.shape[1] + most
    return time.perf_counter() - started, time.process_time() - spent


@dataclass
class Round:
    """Both, one after the other."""

    alone_s: float
    alone_cpu_s: float
    served_s: float
    served_cpu_s: float  # of the server's process
    answers: list[Answer]
    memory_mb: float


def one_round(model: Any, server: Server, prompts: list[list[int]], most: int, before: Round | None) -> Round:
    """`before`, if given, lends its figures of `generate()`."""
    alone = (before.alone_s, before.alone_cpu_s) if before is not None else generate(model, prompts, most)
    spent = server.cpu_s()
    served, answers = asyncio.run(crowd(server.port, prompts, most))
    return Round(*alone, served, server.cpu_s() - spent, answers, server.memory_mb())


def show(rounds: list[Round], clients: int, most: int) -> None:
    ratios, cpu_ratios = [], []
    print(f"{clients} clients, {most} tokens each\n")
    print("| round | generate() tok/s | served tok/s | ratio | CPU ratio | first token p50 | p95 | lost | server MB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for number, one in enumerate(rounds, 1):
        answers, tokens = one.answers, sum(answer.tokens for answer in one.answers)
        alone, served = clients * most / one.alone_s, tokens / one.served_s
        firsts = sorted(answer.first_s for answer in answers)
        ratios.append(served / alone)
        cpu_ratios.append(one.alone_cpu_s / one.served_cpu_s)
        p50, p95 = firsts[len(firsts) // 2], firsts[int(len(firsts) * 0.95)]
        lost = sum(not answer.whole for answer in answers)
        rates = f"{alone:.0f} | {served:.0f} | {ratios[-1]:.2f} | {cpu_ratios[-1]:.2f}"
        print(f"| {number} | {rates} | {p50:.2f} s | {p95:.2f} s | {lost} | {one.memory_mb:.0f} |")
    middle = statistics.median(ratios)
    print(f"\nmedian ratio {middle:.2f} (goal ≥ {GOAL}): {'met' if middle >= GOAL else 'missed'}")
    print(f"median CPU ratio (generate's over the server's, same tokens) {statistics.median(cpu_ratios):.2f}")
    memory = [one.memory_mb for one in rounds[1:] or rounds]
    print(
        f"memory after the first round: {memory[0]:.0f} MB, at the end {memory[-1]:.0f} MB, most {max(memory):.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer tokens and rounds")
    parser.add_argument("--model", help="a folder with a model; without it, 25 M random parameters")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--tokens", type=int, help="tokens each client asks for")
    parser.add_argument("--minutes", type=float, help="go on for so long, and look at the memory")
    options = parser.parse_args()
    most = options.tokens or (24 if options.quick else 64)
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    import agent_forge.forge.models  # noqa: F401  (makes Cognate known to transformers)

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(options.model) if options.model else make_model(Path(folder) / "model")
        model = AutoModelForCausalLM.from_pretrained(place, dtype="float32").eval()
        vocabulary = model.config.vocab_size
        prompts = [[(7 * row + 13 * n) % (vocabulary - 300) + 256 for n in range(32)] for row in range(options.clients)]
        server = Server(place, Path(folder) / "home", options.clients)
        rounds: list[Round] = []
        try:
            generate(model, prompts, 4)
            asyncio.run(crowd(server.port, prompts, 4))
            end = time.monotonic() + 60 * (options.minutes or 0)
            while len(rounds) < (2 if options.quick else 4) or time.monotonic() < end:
                before = rounds[-1] if options.minutes and len(rounds) >= 4 else None
                rounds.append(one_round(model, server, prompts, most, before))
        finally:
            server.close()
    show(rounds, options.clients, most)


if __name__ == "__main__":
    main()
