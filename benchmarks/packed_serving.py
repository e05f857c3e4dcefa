"""How many tokens per second does `agent-forge serve` write with a packed model, for 1, 4 and 16 clients over HTTP?

Two servers with the same packed model, asked in turns: one with the compiled decoder, and one that
goes through the modules of transformers with the same packed products; beside them the compiled
decoder without a server. On a shared machine the clock says little, so the CPU time of the server's
process is given as well.

    python benchmarks/packed_serving.py [--quick] [--model FOLDER] [--clients N] [--tokens N]
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from serve_concurrency import Server, crowd

CROWDS = (1, 4, 16)
MODULES = """
import sys
from agent_forge.server.models import rows
rows.runs_compiled = lambda model: False
from agent_forge.cli import run
sys.exit(run(sys.argv[1:]))
"""


class ByModules(Server):
    """The same server without the compiled decoder."""

    def __init__(self, model: Path, home: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        options = ["--port", str(self.port), "--home", str(home), "--slots", "64", "--model", f"m={model}"]
        command = [sys.executable, "-c", MODULES, "serve", *options, "--log-level", "error"]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self._wait()


def make_model(folder: Path) -> Path:
    """A Llama in the shape of SmolLM2-135M with random ternary weights: speed does not depend on what it says."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from agent_forge.inference.packed import TernaryWeight, save_packed

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=2048, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=49151, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    ternary = {}
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            scale = layer.weight.detach().abs().mean(1, keepdim=True)
            ternary[name] = TernaryWeight((layer.weight.detach() / scale).round().clamp(-1, 1), scale)
    save_packed(model, folder, ternary=ternary, layout="2bit", embedding="int8")
    add_tokenizer(folder, config.vocab_size)
    return folder


def add_tokenizer(folder: Path, size: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {**{char: n for n, char in enumerate(alphabet)}, **{f"w{n}": n for n in range(256, size - 1)}}
    inner = Tokenizer(models.BPE(words, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|end|>"])
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>").save_pretrained(folder)


def without_server(folder: Path, prompts: list[list[int]], most: int) -> float:
    """Tokens per second of CPU time, with the compiled decoder in this process."""
    from agent_forge.inference.packed import DecoderBatch, PackedModel

    batch = DecoderBatch(PackedModel.load(folder))
    best = float("inf")
    for _ in range(3):
        begun = time.process_time()
        tokens = batch.join(prompts).argmax(-1).tolist()
        for _ in range(most - 1):
            tokens = batch.step(tokens).argmax(-1).tolist()
        best = min(best, time.process_time() - begun)
        batch.leave(range(len(prompts)))
    return len(prompts) * most / best


def ask(server: Server, prompts: list[list[int]], most: int) -> tuple[float, float]:
    """Tokens per second, by the clock and of the server's CPU time."""
    spent = server.cpu_s()
    seconds, answers = asyncio.run(crowd(server.port, prompts, most))
    if not all(answer.whole for answer in answers):
        raise SystemExit("an answer was lost")
    tokens = sum(answer.tokens for answer in answers)
    return tokens / seconds, tokens / (server.cpu_s() - spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer tokens and rounds")
    parser.add_argument("--model", help="folder of a packed model; default: random weights of SmolLM2-135M's shape")
    parser.add_argument("--clients", type=int, action="append", help="clients at once; repeat for another row")
    parser.add_argument("--tokens", type=int, help="tokens per answer")
    args = parser.parse_args()
    most = args.tokens or (24 if args.quick else 64)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(args.model) if args.model else make_model(Path(folder) / "model")
        prompts = [[(7 * row + 13 * n) % 7000 + 256 for n in range(32)] for row in range(max(args.clients or CROWDS))]
        servers = [ByModules(place, Path(folder) / "a"), Server(place, Path(folder) / "b")]
        print("| clients | tok/s: modules | decoder | ratio | per CPU s: modules | decoder | ratio | without server |")
        print("|---|---|---|---|---|---|---|---|")
        try:
            for clients in args.clients or CROWDS:
                rounds = []
                for _ in range(1 if args.quick else 2):
                    rounds.append([ask(server, prompts[:clients], most) for server in servers])
                best = [[max(one[n][kind] for one in rounds) for n in (0, 1)] for kind in (0, 1)]
                alone = without_server(place, prompts[:clients], most)
                figures = " | ".join(f"{old:.0f} | {new:.0f} | {new / old:.1f}" for old, new in best)
                print(f"| {clients} | {figures} | {alone:.0f} |", flush=True)
        finally:
            for server in servers:
                server.close()


if __name__ == "__main__":
    main()
