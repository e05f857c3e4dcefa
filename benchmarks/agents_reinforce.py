"""Do agents get better because their own answers were scored? Warm-up, reinforcement and controls, per agent and seed.

    python benchmarks/agents_reinforce.py --model FOLDER --out results.jsonl          # one GPU
    python benchmarks/agents_reinforce.py --model FOLDER --agents support,analyst --references 384 --steps 64
    python benchmarks/agents_reinforce.py --model FOLDER --agents analyst --try slow:rate=5e-5 --try long:iterations=30
    python benchmarks/agents_reinforce.py --quick                                     # CPU, random weights, one agent

One base, and for each agent and seed an adapter of its own: supervised steps on the reference solvers' answers, then
reinforcement by rewards of sampled answers. From the same warm-up start the controls of the pilots, with as many
further supervised steps as reinforcement made updates: `control` learns from new references, none of them twice;
`again` from those of the warm-up, as one must who has no more. Their steps have `--per-step` references each, where an
update has `--rows` / `--updates` sampled answers. With `--references` the warm-up has only so many different ones.

Each stage is judged on the same held-out exercises, greedily and bound to the schema, as `agents eval` does. Training
samples are free: the form is part of the reward.

The warm-up has `--steps`, reinforcement `--iterations`, over the last `--reinforce-decay` of which its learning rate
falls to zero. It may take `--learn-seconds`; where these are up earlier, the line has fewer iterations than planned. A
line of the output is one agent and seed; those that are there are not repeated, so that a run can be continued.
`--answers` keeps what was judged, to be read. Checkers and the encoding of exercises run in `--processes`.

`--set` changes settings of reinforcement (`rate`, `updates`, `by_parts`, or any field of ReinforceSettings). `--try
NAME:SETTING=VALUE,...` runs it with each of several from the same warm weights: one line per try. The tries `control`
and `again`, or `control-SOMETHING`, make as many supervised steps instead, at the `rate` of the try if it has one.

With `--set evaluate_every=N` reinforcement ends with the best weights of every N-th iteration, as `agent-forge train`
does; without it, with the last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from _random_bases import quick_base, random_model

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

PILOTS = ("qa", "analyst", "support")
OTHERS = ("legal", "content", "marketing", "sales", "design", "builder", "deploy", "monitor", "security", "finance",
          "hr", "seo")  # fmt: skip
EXECUTED = ("qa", "builder")  # agents whose answers are programs
ROOM = 100_000  # numbers of the warm-up's exercises are below, those of reinforcement from here on
CONTROL = 2 * ROOM  # number of the first exercise of the control
AGAIN = 1000  # added to the seed: another order of the same references
SHORT = {"rate": "learning_rate", "updates": "minibatches"}  # names of settings in --try


# -- in the processes --------------------------------------------------------------------------------------------------


def settle(sandboxed: bool) -> None:
    """Prepares a process. Without a sandbox, programs run as they are: only on a machine that is thrown away."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if not sandboxed:
        from agent_forge.tasks import execution

        execution.run_python = unsandboxed


async def unsandboxed(code: str, *, stdin: str = "", limits: Any = None) -> Any:
    from agent_forge.runtime.sandbox import SandboxResult

    start = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", code, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL, cwd=tempfile.gettempdir(), env={},
    )  # fmt: skip
    try:
        out, _ = await asyncio.wait_for(process.communicate(stdin.encode()), limits.time_s)
        state = "done" if process.returncode == 0 else "failed"
    except (asyncio.TimeoutError, subprocess.SubprocessError):
        process.kill()
        out, state = b"", "timed_out"
    return SandboxResult(state, process.returncode, out.decode(errors="replace"), "", time.monotonic() - start)


@lru_cache(maxsize=1)
def tokenizer_of(folder: str) -> Any:
    from agent_forge.inference.loading import load_tokenizer

    return load_tokenizer(folder)


@lru_cache(maxsize=32)
def practice_of(agent: str, folder: str, seed: int) -> Any:
    from agent_forge.agents.profiles import roster
    from agent_forge.learning.practice import Practice

    ends = json.loads((Path(folder) / "generation_config.json").read_text()).get("eos_token_id")
    tokenizer = tokenizer_of(folder)
    own = tokenizer.eos_token_id
    every = [own, *(ends if isinstance(ends, list) else [ends])]
    return Practice(
        roster("genesis")[agent], tokenizer, list(dict.fromkeys(each for each in every if each is not None)), seed
    )


def encode(agent: str, folder: str, seed: int, first: int, count: int) -> list[tuple[list[int], list[int]]]:
    """Prompts and reference answers of training exercises, as tokens."""
    practice = practice_of(agent, folder, seed)
    exercises = [practice.exercise(number) for number in range(first, first + count)]
    return [(practice.prompt(each), practice.encoded(practice.solution(each))) for each in exercises]


def ready(folder: str) -> None:
    """Has a process import what it will need, while the model is loaded."""
    import agent_forge.learning.sheets
    import agent_forge.learning.supervised  # noqa: F401

    tokenizer_of(folder)


def loaded() -> set[str]:
    """The packages of others that a process has loaded: what a bare machine must have."""
    names = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
    return {name for name in names if not name.startswith("_")}


def sheets(agent: str, folder: str, seed: int, first: int, count: int, length: int) -> list[Any]:
    """The same as sheets for supervised steps, which begin with what their prompts share."""
    import numpy as np

    from agent_forge.learning.sheets import fill_sheets
    from agent_forge.learning.supervised import common_start

    pairs = encode(agent, folder, seed, first, count)
    shared = common_start([prompt[:-1] for prompt, _ in pairs])
    parts = [(prompt[len(shared) :], answer) for prompt, answer in pairs]
    made = fill_sheets(shared, parts, length)
    return [replace(sheet, **{name: np.array(value) for name, value in vars(sheet).items()}) for sheet in made]


# -- one agent ---------------------------------------------------------------------------------------------------------


class References(NamedTuple):
    """Reference answers as packed sheets, and to how many different exercises."""

    sheets: Any
    exercises: int


class Pilot:
    """One agent and seed on the shared base."""

    def __init__(self, bench: Bench, agent: str, seed: int) -> None:
        import torch

        from agent_forge.forge.adapters import add_adapter
        from agent_forge.learning.attempts import AnswerGrammar, SamplingCopy
        from agent_forge.learning.practice import Judges
        from agent_forge.tasks.fixed import held_out

        self.bench, self.agent, self.seed = bench, agent, seed
        self.practice = practice_of(agent, str(bench.folder), seed)
        torch.manual_seed(seed)
        add_adapter(bench.model, bench.lora)
        self.policy = SamplingCopy(bench.model)
        self.grammar = AnswerGrammar.of(self.practice, bench.vocabulary(self.practice))
        self.judges = Judges(replace(self.practice.profile), bench.pool)
        self.exercises = held_out(self.practice.tasks, bench.options.judged, 1)
        pairs = encode(agent, str(bench.folder), seed, 0, 60)
        self.limit = min(bench.options.most, max(len(answer) for _, answer in pairs) + 8)
        prompt, answer = (sum(map(len, column)) / len(pairs) for column in zip(*pairs, strict=True))
        self.say(f"prompts of {prompt:.0f} tokens, answers of {answer:.0f}, sampled up to {self.limit}")
        self.spent: dict[str, float] = {}
        self.stages: dict[str, list[tuple[float, bool]]] = {}

    def say(self, text: str) -> None:
        print(f"{self.agent} {self.seed}: {text}", file=sys.stderr, flush=True)

    def timed(self, name: str, start: float) -> None:
        spent = time.perf_counter() - start
        self.spent[name] = self.spent.get(name, 0.0) + spent
        self.say(f"{name} {spent:.1f} s")

    def judge(self, stage: str, count: int | None = None) -> list[tuple[float, bool]]:
        """What the policy earns on the held-out exercises. Every stage has the same room for its answers: the base
        writes longer ones than the references are, and would earn nothing if these were cut off."""
        from agent_forge.learning.attempts import write_answers
        from agent_forge.learning.practice import score_of

        start = time.perf_counter()
        _, answers = write_answers(
            self.policy, self.practice, self.exercises[:count], max_tokens=self.bench.options.most,
            constraint=self.grammar,
        )  # fmt: skip
        self.stages[stage] = self.judges(answers)
        self.timed("judge", start)
        if self.bench.options.answers is not None:
            self.bench.options.answers.mkdir(parents=True, exist_ok=True)
            lines = zip(answers, self.stages[stage], strict=True)
            (self.bench.options.answers / f"{self.agent}-{self.seed}-{stage}.jsonl").write_text(
                "".join(json.dumps({"reward": reward, "answer": answer.text}) + "\n" for answer, (reward, _) in lines)
            )
        score = score_of(self.stages[stage])
        self.say(f"{stage} {score.mean:.4f} ± {score.stderr:.4f}")
        return self.stages[stage]

    def references(self, first: int, count: int) -> References:
        from agent_forge.learning.sheets import pack_sheets

        start = time.perf_counter()
        sheets = self.bench.sheets(self.agent, self.seed, first, count)
        packed = pack_sheets(sheets, self.bench.options.length)
        self.timed("encode", start)
        return References(packed, count)

    def supervise(self, name: str, references: References, seed: int, steps: int, rate: float | None = None) -> None:
        """Steps on `--per-step` references each, in as many passes as that takes."""
        from agent_forge.forge.training.settings import first_updates
        from agent_forge.learning.supervised import learn_sheets

        options, sheets = self.bench.options, references.sheets
        start = time.perf_counter()
        epochs = steps * options.per_step / references.exercises
        rows = max(1, math.ceil(epochs * len(sheets) / steps))
        result = learn_sheets(
            self.bench.model, sheets, steps, rate or options.rate, epochs=epochs, seed=seed,
            training={
                "log_every": max(1, steps), "save_every": 0, "gradient_checkpointing": bool(options.shape),
                **({"micro_rows": min(rows, 8)} if next(self.bench.model.parameters()).is_cuda else {}),
                "warmup": max(1, steps // 20) if name == "warmup" else first_updates(steps),
            },
        )  # fmt: skip
        self.timed(name, start)
        split = f", split into {result.micro_rows} rows at once" if result.micro_rows < rows else ""
        self.say(
            f"{steps} steps, {epochs:.1f} passes over {references.exercises} references; {rows} rows of "
            f"{sheets.length} tokens per step, {sheets.used:.0%} used{split}; last loss {result.losses[-1]:.3f}"
        )

    def warm_up(self) -> tuple[References, dict[str, Any]]:
        """The references of the warm-up, and the weights after it."""
        from agent_forge.forge.training.checkpoint import weights_of

        steps = self.bench.options.steps
        references = self.references(0, self.bench.wanted())
        self.supervise("warmup", references, self.seed, steps)
        self.judge("warmup")
        return references, {name: weight.clone() for name, weight in weights_of(self.bench.model).items()}

    def settings(self, changes: dict[str, Any] | None = None) -> tuple[Any, bool]:
        """Those of reinforcement, and whether each part of an answer has its own credit."""
        from agent_forge.config import build
        from agent_forge.forge.training.settings import ReinforceSettings

        options = self.bench.options
        chosen = {
            "iterations": options.iterations, "prompts": options.rows // options.group, "copies": options.group,
            "max_tokens": self.limit, "learning_rate": options.reinforce_rate,
            "temperature": options.temperature, "decay": options.reinforce_decay, "minibatches": options.updates,
            "micro_rows": options.micro_rows,
            "evaluate_every": 0, "patience": 0, "kl_every": 10_000, "kl_limit": 1e9, "resample": 0, "seed": self.seed,
            "gradient_checkpointing": bool(options.shape),
        }  # fmt: skip
        chosen |= {**options.settings, **(changes or {})}
        by_parts = bool(chosen.pop("by_parts", False))
        return build(ReinforceSettings, chosen, "--set or --try"), by_parts

    def reinforce(self, settings: Any, by_parts: bool) -> dict[str, Any]:
        from agent_forge.forge.training.reinforce import learn_policy
        from agent_forge.learning.attempts import AnswerCollector, reference_of

        collector = AnswerCollector(self.policy, self.practice, self.judges, settings, by_parts=by_parts)
        seconds = self.bench.options.learn_seconds
        start, rewards, moved = time.perf_counter(), [], []
        begun: list[float] = []  # when each iteration began

        def collect(iteration: int) -> Any:
            now = time.perf_counter()
            last = now - begun[-1] if begun else 0.0
            if begun and now - start + last > seconds:
                return None
            begun.append(now)
            return collector(iteration)

        def note(record: dict[str, Any]) -> None:
            if "reward" in record:
                rewards.append(round(record["reward"], 4))
                parts = ", ".join(f"{name} {spent:.2f} s" for name, spent in record["seconds"].items())
                sure = record.get("sampled_log_prob", math.nan)  # per token, of those that are learnt from
                moved.append(record.get("update_kl"))
                self.say(
                    f"iteration {record['iteration']}: reward {rewards[-1]:.4f}, log-prob {sure:.4f}, "
                    f"moved {moved[-1] or math.nan:.3g}, {parts}"
                )

        start_policy = reference_of(self.bench.model) if settings.kl else None
        result = learn_policy(
            self.bench.model, collect, settings, reference=start_policy, on_record=note, progress=None,
            evaluate=self.chooser() if settings.evaluate_every else None,
        )  # fmt: skip
        self.timed("reinforce", start)
        late = "time is up" if len(rewards) < settings.iterations else None
        tokens, generated = collector.sampled, result.seconds.get("generate", 0.0)
        return {
            "iterations": len(rewards), "planned": settings.iterations, "updates": len(rewards) * settings.updates,
            "rewards": rewards, "moved": moved, "stopped": result.stopped or late, "sampled_tokens": tokens,
            "seconds": {name: round(spent, 2) for name, spent in result.seconds.items()},
            "tokens_per_s": round(tokens / generated) if generated else None, "peak_memory": result.peak_memory,
            "chosen": None if result.best is None else asdict(result.best),
        }  # fmt: skip

    def chooser(self) -> Callable[[Any], Any]:
        """The score that decides which weights are kept, as in `train AGENT`: on exercises that no report has."""
        from agent_forge.forge.training.watch import HeldOutScore
        from agent_forge.learning.attempts import write_answers

        count, most = self.bench.options.judged, self.bench.options.most
        exercises = self.practice.validation(2 * count)[count:]  # the first ones report what is tried

        def evaluate(_: Any) -> HeldOutScore:
            answers = write_answers(self.policy, self.practice, exercises, max_tokens=most, constraint=self.grammar)[1]
            score = HeldOutScore.of([reward for reward, _ in self.judges(answers)])
            self.say(f"chosen by {score.mean:.4f} ± {score.stderr:.4f}")
            return score

        return evaluate

    def carry_out(self) -> dict[str, Any]:
        """Every stage of the agent, without a warm-up the base alone; returns its line of the output."""
        from agent_forge.learning.practice import score_of

        bench = self.bench
        self.stages["before"] = bench.before(self)
        if not bench.options.steps:
            return {"agent": self.agent, "seed": self.seed, "before": asdict(score_of(self.stages["before"]))}
        references, warm = self.warm_up()
        learnt = self.reinforce(*self.settings())
        self.judge("after")
        if bench.options.adapters is not None:
            from agent_forge.forge.adapters import save_adapter

            save_adapter(bench.model, bench.options.adapters / f"{self.agent}-{self.seed}", base=bench.folder)
        if learnt["updates"] and (self.agent in PILOTS or bench.options.control_all):
            self.controls(references, warm, learnt["updates"])
        return self.line(learnt)

    def controls(self, references: References, warm: dict[str, Any], steps: int) -> None:
        """As many supervised steps as reinforcement made updates: on new references, and on those of the warm-up."""
        from agent_forge.forge.training.checkpoint import restore_weights

        # without --references the warm-up had new ones in every step, as the control has
        for name in ("control", "again") if self.bench.options.references else ("control",):
            restore_weights(self.bench.model, warm)
            self.supervise(name, *self.material(name, steps, references), steps, self.bench.options.control_rate)
            self.judge(name)

    def material(self, name: str, steps: int, references: References) -> tuple[References, int]:
        """What a control learns from, and the seed of its order."""
        if name == "again":
            return references, self.seed + AGAIN
        return self.references(CONTROL, min(ROOM, steps * self.bench.options.per_step)), self.seed

    def line(self, learnt: dict[str, Any]) -> dict[str, Any]:
        from agent_forge.learning.practice import gains, paired, score_of

        scores = {name: asdict(score_of(rewards)) for name, rewards in self.stages.items()}
        base = self.stages["before"]  # of the first exercises alone: the base's answers are the longest by far
        compared = gains({name: rewards for name, rewards in self.stages.items() if name != "before"})
        mean, error = paired(base, self.stages["warmup"][: len(base)])
        compared["gains"]["warmup"] = {"mean": mean, "stderr": error}
        if "again" in self.stages:
            mean, error = paired(self.stages["again"], self.stages["after"])
            compared["gains"]["over_again"] = {"mean": mean, "stderr": error}
        return {
            "agent": self.agent, "seed": self.seed, "n": len(self.exercises), **scores, **compared,
            "warmup_steps": self.bench.options.steps, "references": self.bench.wanted(), "limit": self.limit,
            "reinforcement": learnt, "spent": {name: round(spent, 2) for name, spent in self.spent.items()},
        }  # fmt: skip

    def explore(self, tries: list[tuple[str, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
        """Reinforcement with each of some settings, from the same warm weights. Settings are chosen by exercises that
        the report does not have."""
        from agent_forge.forge.training.checkpoint import restore_weights
        from agent_forge.learning.practice import paired, score_of

        chosen = [(name, changes, self.settings(changes)) for name, changes in tries]  # faults show before the work
        self.exercises = self.practice.validation(self.bench.options.judged)
        references, warm = self.warm_up()
        before = self.stages["warmup"]
        for name, changes, (settings, by_parts) in chosen:
            start = time.perf_counter()
            restore_weights(self.bench.model, warm)
            kind = name.partition("-")[0]
            if kind in ("control", "again"):
                steps = settings.iterations * settings.updates
                rate = float(changes.get("learning_rate", self.bench.options.control_rate))
                self.supervise(kind, *self.material(kind, steps, references), steps, rate)
                learnt = {"iterations": 0, "planned": 0, "updates": steps, "rewards": []}
            else:
                learnt = self.reinforce(settings, by_parts)
            after = self.judge(name)
            mean, error = paired(before, after)
            yield {
                "try": name, "agent": self.agent, "seed": self.seed, "n": len(self.exercises), "settings": changes,
                "warmup": asdict(score_of(before)), "after": asdict(score_of(after)),
                "gains": {"learning": {"mean": mean, "stderr": error}}, "reinforcement": learnt,
                "wall_s": round(time.perf_counter() - start, 1),
            }  # fmt: skip


class Bench:
    """What the agents share: the base, the processes, and the base's own rewards."""

    def __init__(self, options: argparse.Namespace, pool: Any) -> None:
        import torch

        from agent_forge.forge.training.settings import LoraSettings
        from agent_forge.inference.loading import load_model

        self.options, self.pool, self.folder = options, pool, options.model
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = random_model(options.shape) if options.shape else load_model(self.folder, dtype=torch.float32)
        self.model.to(device)
        self.lora = LoraSettings(rank=options.rank, alpha=2.0 * options.rank)
        self.encoded: dict[tuple[str, int, int], list[Any]] = {}
        self.known: dict[str, list[tuple[float, bool]]] = {}
        self._vocabulary: Any = None

    def vocabulary(self, practice: Any) -> Any:
        """The tokens as grammars see them, once for all agents."""
        from agent_forge.inference.grammar import GrammarVocabulary

        if self._vocabulary is None:
            self._vocabulary = GrammarVocabulary(practice.tokenizer, ends=practice.ends)
        return self._vocabulary

    def wanted(self) -> int:
        """Different references for the warm-up."""
        return int(min(self.options.references or ROOM, self.options.steps * self.options.per_step))

    def prepare(self, agent: str, seed: int, first: int, count: int) -> None:
        """Begins to encode exercises, while other work goes on."""
        part = 64
        jobs = [
            self.pool.submit(
                sheets, agent, str(self.folder), seed, first + start, min(part, count - start), self.options.length
            )
            for start in range(0, count, part)
        ]
        self.encoded[agent, seed, first] = jobs

    def sheets(self, agent: str, seed: int, first: int, count: int) -> list[Any]:
        if (agent, seed, first) not in self.encoded:
            self.prepare(agent, seed, first, count)
        return [sheet for job in self.encoded.pop((agent, seed, first)) for sheet in job.result()]

    def before(self, pilot: Pilot) -> list[tuple[float, bool]]:
        """The base's rewards: the adapter changes nothing yet. They are the same for every seed."""
        if pilot.agent not in self.known:
            self.known[pilot.agent] = pilot.judge("before", self.options.judged_before)
        return self.known[pilot.agent]

    def drop_adapter(self) -> None:
        from agent_forge.forge.adapters import adapted_layers

        for name, layer in list(adapted_layers(self.model)):
            self.model.set_submodule(name, layer.base)


# -- all of them -------------------------------------------------------------------------------------------------------


def runs(options: argparse.Namespace) -> list[tuple[str, int]]:
    """Agents and seeds: the pilots first, their further seeds last."""
    chosen = options.agents.split(",") if options.agents else [*PILOTS, *OTHERS]
    first, *further = map(int, options.seeds.split(","))
    return [(agent, first) for agent in chosen] + [
        (agent, seed) for seed in further for agent in chosen if agent in PILOTS
    ]


def keep(options: argparse.Namespace, line: dict[str, Any]) -> None:
    """Writes a line of the output and shows what matters of it."""
    with open(options.out, "a") as file:
        file.write(json.dumps(line) + "\n")
    names = ("before", "warmup", "after", "control", "again")
    shown = [f"{name} {line[name]['mean']:.3f}" for name in names if name in line]
    if "gains" not in line:
        print(
            f"{line['agent']} {line['seed']}: {shown[0]} ± {line['before']['stderr']:.3f}",
            line["wall_s"],
            "s",
            flush=True,
        )
        return
    error = line["gains"]["learning"]["stderr"] or 0.0
    shown.append(f"gain {line['gains']['learning']['mean']:+.3f} ± {error:.3f}")
    learnt = line["reinforcement"]
    print(f"{line['agent']} {line['seed']} {line.get('try', '')}: " + ", ".join(shown), line["wall_s"], "s", flush=True)
    print(f"  {learnt['iterations']} of {learnt['planned']} iterations, rewards", *learnt["rewards"], flush=True)


def carry_out(bench: Bench, work: list[tuple[str, int]]) -> None:
    """One agent and seed after the other, as long as there is time."""
    options, start = bench.options, time.perf_counter()
    took = 0.0  # seconds of the longest so far
    for place, (agent, seed) in enumerate(work):
        if time.perf_counter() - start + took > options.total_seconds:
            print(f"{agent} {seed}: no time left", file=sys.stderr)
            continue
        if place + 1 < len(work):  # the next agent's exercises are encoded while this one learns
            bench.prepare(*work[place + 1], 0, bench.wanted())
        begun = time.perf_counter()
        pilot = Pilot(bench, agent, seed)
        if options.tries:
            for line in pilot.explore(options.tries):
                keep(options, line)
        else:
            line = pilot.carry_out()
            keep(options, {**line, "wall_s": round(time.perf_counter() - begun, 1)})
        bench.drop_adapter()
        took = max(took, time.perf_counter() - begun)


def main() -> None:
    options = arguments()
    from agent_forge.runtime.sandbox import sandbox_available

    sandboxed, why = sandbox_available()
    done = set()
    if options.out.exists():
        lines = map(json.loads, options.out.read_text().splitlines())
        done = {(line["agent"], line["seed"]) for line in lines if "try" not in line}
    work = [each for each in runs(options) if options.tries or each not in done]
    if not (sandboxed or options.without_sandbox):
        print(f"no sandbox ({why}): {', '.join(EXECUTED)} are left out", file=sys.stderr)
        work = [each for each in work if each[0] not in EXECUTED]
    if not work:
        return
    start = time.perf_counter()
    with ProcessPoolExecutor(options.processes, get_context("spawn"), settle, (sandboxed,)) as pool:
        for _ in range(options.processes):
            pool.submit(ready, str(options.model))
        bench = Bench(options, pool)
        print(f"started in {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
        carry_out(bench, work)
        if options.quick:
            print("modules:", *sorted(loaded() | pool.submit(loaded).result()), file=sys.stderr)
        pool.shutdown(wait=False, cancel_futures=True)


NUMBERS = {  # option: (default, help)
    "seeds": ("0,1", "of the pilots; the others have the first"),
    "learn-seconds": (130.0, "no iteration of reinforcement is begun that would end later"),
    "total-seconds": (540.0, "no agent is begun that would end later"),
    "judged": (256, "held-out exercises per stage"),
    "judged-before": (128, "of them for the base, whose answers are the longest"),
    "most": (512, "longest answer, in tokens"),
    "rows": (512, "answers per iteration of reinforcement"),
    "group": (8, "answers per exercise"),
    "updates": (2, "optimiser steps per iteration"),
    "micro-rows": (64, "rows at once"),
    "iterations": (16, "iterations of reinforcement, unless the time is up before"),
    "steps": (32, "supervised steps of the warm-up; 0: the base is judged, and nothing else done"),
    "per-step": (96, "exercises per supervised step"),
    "references": (0, "different reference answers for the warm-up; 0: new ones in every step"),
    "length": (2048, "tokens per supervised row"),
    "rate": (1e-3, "learning rate of the supervised steps"),
    "control-rate": (1e-3, "learning rate of the controls"),
    "reinforce-rate": (2e-4, "learning rate of reinforcement"),
    "temperature": (0.5, "at which reinforcement samples; judged is greedily"),
    "reinforce-decay": (0.5, "share of its updates over which that falls to zero"),
    "rank": (16, "rank of the adapters"),
    "processes": (14, "that check answers and encode exercises"),
}
QUICK = {
    "judged": 4, "rows": 8, "group": 4, "updates": 2, "iterations": 2, "steps": 2, "per_step": 4,
    "length": 4096, "processes": 1, "most": 24, "rank": 4, "seeds": "0",
}  # fmt: skip


def trial(text: str) -> tuple[str, dict[str, Any]]:
    """A name and the settings of reinforcement that it changes.

    >>> trial("slow:rate=1e-4,iterations=15")
    ('slow', {'learning_rate': '1e-4', 'iterations': 15})
    """
    import yaml

    name, _, changes = text.partition(":")
    pairs = [each.partition("=") for each in changes.split(",") if each]
    return name, {SHORT.get(setting, setting): yaml.safe_load(value) for setting, _, value in pairs}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--out", type=Path, default=Path("agents_reinforce.jsonl"))
    parser.add_argument("--adapters", type=Path, help="folder for the adapters after reinforcement")
    parser.add_argument("--answers", type=Path, help="folder for the answers that were judged, with their rewards")
    parser.add_argument("--agents", help="names, separated by commas [default: all fifteen]")
    for name, (default, about) in NUMBERS.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{about} [{default}]")
    parser.add_argument("--control-all", action="store_true", help="controls for every agent, not for the pilots alone")
    parser.add_argument(
        "--set", dest="settings", type=lambda text: trial(f":{text}")[1], default={}, metavar="SETTING=VALUE,...",
        help="settings of reinforcement",
    )  # fmt: skip
    parser.add_argument(
        "--try", dest="tries", action="append", type=trial, default=[], metavar="NAME:SETTING=VALUE,..."
    )
    parser.add_argument("--without-sandbox", action="store_true", help="run programs as they are: disposable machines")
    parser.add_argument("--shape", choices=("3b", "tiny"), help="random weights of that size, to see what it takes")
    parser.add_argument("--quick", action="store_true", help="random weights, one agent, seconds on a CPU")
    options = parser.parse_args()
    if options.quick:
        vars(options).update(QUICK)
        options.agents = options.agents or "support"
        options.model = options.model or quick_base(Path(tempfile.mkdtemp()))
        options.out = Path(tempfile.mkdtemp()) / "quick.jsonl"
    if options.model is None:
        parser.error("--model is needed")
    return options


if __name__ == "__main__":
    main()
