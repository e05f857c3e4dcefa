"""Does the real `agentlightning` 0.3 package read what `traces export --format agent-lightning` writes?

    python benchmarks/agent_lightning_roundtrip.py            # creates a virtual environment if necessary
    python benchmarks/agent_lightning_roundtrip.py --quick

Writes traces, feeds them to the package's own in-memory store and both of its adapters, and compares every token,
message and reward that comes out. The package is heavy (150 packages, 800 MB), so it has an environment of its own:
$AGENT_FORGE_AGL_PYTHON, or `--venv FOLDER`, created with pip if missing. Also prints the cost of storing the spans, in
the package's memory and on our disk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PACKAGE = "agentlightning==0.3.*"

# Runs inside the other environment: load the file into the package's store, adapt, print what came out.
FEED = r"""
import asyncio, json, sys, time
from collections import defaultdict
import agentlightning as agl
from agentlightning.adapter import TracerTraceToTriplet, TraceToMessages
from agentlightning.emitter.reward import find_final_reward
from agentlightning.store.memory import InMemoryLightningStore
from agentlightning.types import Span

async def main(path):
    spans = [Span(**json.loads(line)) for line in open(path, encoding="utf-8")]
    rollouts = defaultdict(list)
    for span in spans:
        rollouts[span.rollout_id].append(span)
    store, results, moved = InMemoryLightningStore(), {}, {}
    for rollout_id, group in rollouts.items():
        started = await store.start_rollout(input={"exported_from": rollout_id})
        ids = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
        moved[rollout_id] = [span.model_copy(update=ids) for span in group]
    began = time.process_time()
    await store.add_many_spans([span for group in moved.values() for span in group])
    seconds = time.process_time() - began
    apart, began = InMemoryLightningStore(), time.perf_counter()
    for group in moved.values():  # a call per trace, as a runner does
        started = await apart.start_rollout(input={})
        ids = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
        await apart.add_many_spans([span.model_copy(update=ids) for span in group])
    apart_s = time.perf_counter() - began
    for rollout_id, group in moved.items():
        stored = list(await store.query_spans(group[0].rollout_id))
        triplets = TracerTraceToTriplet().adapt(stored)
        results[rollout_id] = {
            "spans": len(stored),
            "triplets": [triplet.model_dump() for triplet in triplets],
            "messages": TraceToMessages().adapt(stored),
            "final_reward": find_final_reward(stored),
        }
    times = {"store_s": seconds, "apart_s": apart_s}
    print(json.dumps({"version": agl.__version__, "rollouts": results, "spans": len(spans), **times}))

asyncio.run(main(sys.argv[1]))
"""


def environment(venv: str | None) -> str | None:
    """The interpreter that has the package; None if it must be installed first and there is no folder for it."""
    if os.environ.get("AGENT_FORGE_AGL_PYTHON"):
        return os.environ["AGENT_FORGE_AGL_PYTHON"]
    if venv is None:
        return None
    python = Path(venv) / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", PACKAGE], check=True)
    return str(python)


def feed(python: str, path: str) -> dict:
    """What the package reads from an exported file."""
    # litellm, one of its dependencies, otherwise fetches a price list from the network on import
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run([python, "-c", FEED, path], capture_output=True, text=True, check=False, env=env, timeout=600)
    if done.returncode:
        raise SystemExit(f"agentlightning could not read the file:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def make_traces(count: int, seed: int = 0) -> list:
    """Traces of agents that call a model and tools in turn, with tokens, log-probabilities and a verified reward."""
    from agent_forge.traces.span import Span

    rng = random.Random(seed)
    traces = []
    for number in range(count):
        trace_id = f"{rng.getrandbits(128) | 1:032x}"
        root = Span(trace_id, f"{rng.getrandbits(64) | 1:016x}", "answer", "agent", agent="solver", status="ok")
        root.start_ns = (1_760_000_000 + number * 100) * 10**9
        root.reward = round(rng.random(), 3)
        spans, at, messages = [root], root.start_ns + 10**6, [{"role": "user", "content": f"question {number}"}]
        for turn in range(rng.randint(1, 4)):
            call = Span(trace_id, f"{rng.getrandbits(64) | 1:016x}", "chat m", "model", root.span_id, at, at + 10**9)
            call.model, call.status, call.inputs = "m", "ok", {"messages": list(messages)}
            call.outputs = {"text": f"thought {turn} of {number}", "finish_reason": "stop"}
            call.prompt_ids = [rng.randrange(32_000) for _ in range(rng.randint(4, 40))]
            call.output_ids = [rng.randrange(32_000) for _ in range(rng.randint(1, 30))]
            call.logprobs = [-rng.random() for _ in call.output_ids]
            tool = Span(trace_id, f"{rng.getrandbits(64) | 1:016x}", "search", "tool", root.span_id)
            tool.start_ns, tool.end_ns, tool.status = at + 11 * 10**8, at + 15 * 10**8, "ok"
            tool.inputs, tool.outputs = {"query": f"q{turn}"}, [f"result {turn} of {number}"]
            tool.links = [(trace_id, call.span_id)]
            messages += [
                {"role": "assistant", "content": call.outputs["text"]},
                {"role": "user", "content": tool.outputs[0]},
            ]
            spans += [call, tool]
            at += 2 * 10**9
        root.end_ns = at
        traces.append(spans)
    return traces


def apart(traces: list, threads: int) -> float:
    """Seconds to add every trace with a call of its own, each committed when it returns."""
    from agent_forge.traces.rows import to_rows
    from agent_forge.traces.store import Store

    with tempfile.TemporaryDirectory() as folder, Store.open(folder) as store, ThreadPoolExecutor(threads) as pool:
        store.numbered(to_rows(traces[0]))  # its groups are in the store before the clock starts
        began = time.perf_counter()
        assert sum(pool.map(store.add, traces)) == sum(map(len, traces))
        return time.perf_counter() - began


def differences(traces: list, results: dict, credit: str | None = None) -> list[str]:
    """What the package read differently from what was written."""
    from agent_forge.traces.trajectory import assemble

    wrong = []
    for trace in traces:
        trajectory = assemble(trace)
        rollout = results["rollouts"].get(f"ro-{trace[0].trace_id}")
        if rollout is None:
            wrong.append(f"{trace[0].trace_id}: not there")
            continue
        calls = [span for span in trajectory.spans if span.kind == "model"]
        triplets = rollout["triplets"]
        if len(triplets) != len(calls):
            wrong.append(f"{trace[0].trace_id}: {len(triplets)} triplets for {len(calls)} calls")
            continue
        shares = trajectory.credit(credit) if credit else {}
        for place, (call, triplet) in enumerate(zip(calls, triplets, strict=True)):
            last = place == len(calls) - 1
            reward = shares[call.span_id] if credit else trajectory.reward if last else None
            read = {
                "prompt tokens": (triplet["prompt"]["token_ids"], call.prompt_ids),
                "response tokens": (triplet["response"]["token_ids"], call.output_ids),
                "log-probabilities": ([x["logprob"] for x in triplet["response"]["logprobs"]], call.logprobs),
                "prompt": (
                    [m["content"] for m in triplet["prompt"]["raw_content"]],
                    [m["content"] for m in call.inputs["messages"]],
                ),
                "answer": (triplet["response"]["raw_content"][0]["content"], call.outputs["text"]),
                "reward": (triplet["reward"], reward),
                "agent": (triplet["metadata"]["agent_name"], "solver"),
            }
            wrong += [f"{call.span_id}: {name}: {got!r} for {put!r}" for name, (got, put) in read.items() if got != put]
        if rollout["final_reward"] != trajectory.reward:
            wrong.append(f"{trace[0].trace_id}: final reward {rollout['final_reward']} for {trajectory.reward}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20 traces instead of 500")
    parser.add_argument("--venv", default=str(Path(tempfile.gettempdir()) / "agent-forge-agl"), help="its environment")
    options = parser.parse_args()
    python = environment(options.venv)
    assert python is not None
    from agent_forge.traces.dataset import write_dataset
    from agent_forge.traces.store import Store

    traces = make_traces(20 if options.quick else 500)
    with tempfile.TemporaryDirectory() as folder:
        wrong, calls = [], sum(span.kind == "model" for trace in traces for span in trace)
        for credit in (None, "shapley"):
            path = str(Path(folder) / "spans.jsonl")
            lines = write_dataset(traces, "agent-lightning", path, credit=credit)
            results = feed(python, path)
            wrong += differences(traces, results, credit)
            print(f"agentlightning {results['version']}: {lines} spans of {len(traces)} rollouts, {calls} calls,"
                  f" rewards {credit or 'final'}: {len(wrong)} differences")  # fmt: skip
        ours = [span for trace in traces for span in trace]
        with Store.open(folder) as store:
            began = time.process_time()
            store.add(ours)
            seconds = time.process_time() - began
        theirs, mine = results["spans"] / results["store_s"], len(ours) / seconds
        print("store, one batch        spans per CPU second   ratio")
        print(f"agentlightning in memory  {theirs:18.0f}    1.00")
        print(f"ours, SQLite on disk      {mine:18.0f}  {mine / theirs:6.2f}")
        theirs = results["spans"] / results["apart_s"]
        print("a call for every trace      spans per second   ratio")
        print(f"agentlightning in memory  {theirs:18.0f}    1.00")
        for threads in (1, 4, 16):
            rate = len(ours) / apart(traces, threads)
            print(f"ours, {threads:2} threads           {rate:18.0f}  {rate / theirs:6.2f}")
    for line in wrong[:20]:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
