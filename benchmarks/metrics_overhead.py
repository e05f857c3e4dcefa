"""What do metrics cost a forge run, and a request?

A forge run is another process: the server reads the registry and the log of the run when Prometheus scrapes, so a run
pays only for its own log. Measured: CPU of one progress event against CPU of one training step of a small model, as if
every step reported one (runs report fewer); then of one scrape and of measuring one request, in the server.

    python benchmarks/metrics_overhead.py [--quick]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from prometheus_client import generate_latest

from agent_forge.forge.events import Bus, jsonl_sink
from agent_forge.server.context import Context
from agent_forge.server.metrics import metrics_of
from agent_forge.server.settings import ServerSettings

GOAL = 0.01


def cpu_each(call: object, times: int) -> float:
    started = time.process_time()
    for _ in range(times):
        call()  # type: ignore[operator]
    return (time.process_time() - started) / times


def training_step_s(steps: int) -> float:
    """CPU seconds of a training step of a small model: forward, backward, optimiser; 1,024 tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)  # threads that spin for a busy core would count as work
    config = LlamaConfig(
        vocab_size=1024, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 1024, (8, 128))

    def step() -> None:
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return cpu_each(step, steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    times = 500 if options.quick else 3000
    with tempfile.TemporaryDirectory() as folder:
        bus = Bus(jsonl_sink(Path(folder) / "sessions" / "s" / "events.jsonl"))
        event = cpu_each(lambda: bus.tell("progress", "base", step=1, loss=2.5, tokens_s=1234.5), times)
        context = Context(ServerSettings(home=folder))
        context.registry.start_session("s", {})
        metrics = metrics_of(context)
        scrape = cpu_each(lambda: generate_latest(metrics.registry), max(20, times // 50))
        request = cpu_each(lambda: metrics.requests.labels("GET", "/v1/models", "200").observe(0.01), times)
        context.close()
    step = training_step_s(10 if options.quick else 40)
    share = event / step
    print("| operation | CPU |\n|---|---|")
    print(f"| a training step of a 1 M model, 1,024 tokens | {step * 1e3:.1f} ms |")
    print(f"| its progress event, if every step reported one | {event * 1e6:.0f} µs |")
    print(f"| share of a run | {share:.3%} |")
    print(f"| a scrape (in the server, not in the run) | {scrape * 1e3:.2f} ms |")
    print(f"| measuring a request | {request * 1e6:.1f} µs |")
    print(f"\noverhead {share:.2%} (goal < {GOAL:.0%}): {'met' if share < GOAL else 'missed'}")


if __name__ == "__main__":
    main()
