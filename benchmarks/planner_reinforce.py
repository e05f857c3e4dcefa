"""Does a planner get better because its plans were carried out and scored? Reinforcement, and as many supervised steps.

    python benchmarks/planner_reinforce.py --model DIR --data DIR --seconds 350 --out FILE     # one GPU
    python benchmarks/planner_reinforce.py --quick                                             # CPU, random weights

From one supervised planner two adapters with the same settings learn on the same rows (`learning.mixture`, without the
rows, services and fields that are judged; BFCL is never trained on): one by GRPO with `plan_reward` on plans sampled
under the grammar, one by supervised steps, as many as GRPO made, each on as many rows as GRPO had plans per step. The
planner has learnt from such rows before and is sure of most, which then say nothing: plans sampled for them are all
equal. So both arms learn from those whose right plan has a probability between SURE and UNSURE.
Before and after each, plans are written for held-out rows, greedily and with the weights of the decoder, as in use.

The time is planned by measurement: rows are judged in turns of the sets until a share of `--seconds` is spent, and
reinforcement ends when what is left is needed for the control and for judging. `--out` has all stages that are done.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

UNSURE, SURE = 0.02, 0.85  # probabilities of the row's own plan between which a row is learnt from
JUDGING = 0.08  # share of the seconds that one judging may take
LENGTH = 1024  # tokens per row of the supervised steps


# -- rows and the model ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Learnt:
    """A row to learn from, with its tokens."""

    row: Any
    prompt: list[int]
    answer: list[int]


def training_rows(options: argparse.Namespace, sampler: Any) -> list[Learnt]:
    """Rows of calls that fit into the lengths."""
    from agent_forge.agents.planner.script import request_text, tools_text

    if options.data is None:
        from _own_tools import TOOLS

        from agent_forge.learning.generate import Generator

        rows = list(Generator(TOOLS, seed=1).rows(options.pool))
    else:
        from _planner_tests import held_out_fields, held_out_ids

        from agent_forge.learning.mixture import Mixture

        held = {"held_out": held_out_ids(options.data), "held_out_fields": held_out_fields(options.data)}
        groups = Mixture(options.data, 4242 + options.seed, **held).groups()
        rows = list(itertools.islice((row for group in groups for row in group if row.steps is None), options.pool))
    tools = [tools_text(row.tools) for row in rows]
    texts = [*dict.fromkeys(tools), *(request_text(row.request) for row in rows), *(row.answer for row in rows)]
    ids = [each.ids for each in sampler.tokenizer.encode_batch(texts, add_special_tokens=False)]
    before = dict(zip(dict.fromkeys(tools), ids, strict=False))  # several rows have the same tools
    made = [
        Learnt(row, [*before[shown], *request], [*answer, sampler.end])
        for row, shown, request, answer in zip(
            rows, tools, ids[-2 * len(rows) : -len(rows)], ids[-len(rows) :], strict=True
        )
    ]
    return [each for each in made if len(each.answer) <= options.max_tokens and len(each.prompt) <= options.longest]


def log_probabilities(model: Any, rows: Sequence[Learnt], batch: int = 128) -> list[float]:
    """How likely the planner finds each row's own plan."""
    import torch

    from agent_forge.forge.training.policy import token_log_probs

    device = next(model.parameters()).device
    order = sorted(range(len(rows)), key=lambda place: len(rows[place].prompt) + len(rows[place].answer))
    likely = [0.0] * len(rows)
    with torch.no_grad():
        for at in range(0, len(order), batch):
            places = order[at : at + batch]
            lines = [torch.tensor([*rows[place].prompt, *rows[place].answer]) for place in places]
            tokens = torch.nn.utils.rnn.pad_sequence(lines, batch_first=True)
            mask = torch.zeros(tokens.shape)
            for line, place in enumerate(places):
                start = len(rows[place].prompt)
                mask[line, start : start + len(rows[place].answer)] = 1.0
            sums = token_log_probs(model, tokens.to(device), mask.to(device)).sum(1).tolist()
            for place, value in zip(places, sums, strict=True):
                likely[place] = value
    return likely


def held_out_rows(options: argparse.Namespace) -> list[Any]:
    """Judged rows, the sets in turns: a part of the list has as many of each."""
    from _planner_tests import Judged, _scored, judged_rows

    if options.data is None:
        from _own_tools import TOOLS

        from agent_forge.learning.generate import Generator

        rows = [Judged("generated", row, _scored(row)) for row in Generator(TOOLS, seed=2, held_out=True).rows(8)]
    else:
        rows = [each for each in judged_rows(options.data, options.per_set) if "foreign" not in each.kind]
    turns: dict[str, int] = defaultdict(int)
    places = []
    for each in rows:
        places.append(turns[each.kind])
        turns[each.kind] += 1
    return [rows[place] for place in sorted(range(len(rows)), key=lambda place: places[place])]


def load(folder: Path) -> tuple[Any, Any, int]:
    """A planner with float32 weights, its tokenizer, and the token that ends a plan: a plain or packed folder, or what
    `planner_gpu.py train` leaves (the model in a folder of its own beside tokenizer.json)."""
    import torch
    from tokenizers import Tokenizer

    import agent_forge.forge.models  # noqa: F401  (registers the packed format)
    from agent_forge.forge.contracts import format_of
    from agent_forge.inference.loading import load_model
    from agent_forge.inference.packed import unpack_model

    place = folder / "model" if (folder / "model").is_dir() else folder
    model = load_model(place, dtype=torch.float32)
    if format_of(place) == "agent_forge_packed":
        model = unpack_model(model)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    kept = folder / "kept.json"
    end = json.loads(kept.read_text()).index(2) if kept.is_file() else model.generation_config.eos_token_id
    return model, tokenizer, end


def tiny() -> tuple[Any, Any, int]:
    """A random model of two layers over its own tools."""
    from _own_tools import TOOLS
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM

    from agent_forge.learning.generate import Generator

    words = Tokenizer(models.BPE())
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=800, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    words.train_from_iterator([row.prompt + row.answer for row in Generator(TOOLS, seed=1).rows(40)], trainer)
    config = LlamaConfig(
        vocab_size=words.get_vocab_size(), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096, eos_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config), words, 0


# -- figures -----------------------------------------------------------------------------------------------------------


@dataclass
class Stage:
    """What was written for each judged row."""

    calls: list[Any] = field(default_factory=list)
    right: list[float] = field(default_factory=list)
    seconds: float = 0.0


def mean_of(values: Sequence[float]) -> dict[str, float | None]:
    """A mean with its standard error."""
    if not values:
        return {"mean": None, "stderr": None, "n": 0}
    mean = sum(values) / len(values)
    spread = sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
    return {"mean": round(mean, 4), "stderr": round(math.sqrt(spread / len(values)), 4), "n": len(values)}


def needs_several(each: Any) -> bool:
    """Whether the right plan has more than one call."""
    return len(each.answers if each.answers is not None else each.row.calls) > 1


def parts_of(rows: Sequence[Any]) -> dict[str, list[int]]:
    """The places of all rows, of those that need several calls, and of each set."""
    parts: dict[str, list[int]] = {"all": list(range(len(rows)))}
    parts["several calls"] = [place for place in parts["all"] if needs_several(rows[place])]
    for place, each in enumerate(rows):
        parts.setdefault(each.kind, []).append(place)
    return parts


def figures(rows: Sequence[Any], stage: Stage) -> dict[str, Any]:
    """By set: the share fully right, calls per plan, and how parallel the plans are: the critical path over the number
    of calls (1: a chain or a single call), of plans with calls, and of those with several."""
    from agent_forge.learning.judging import critical_path

    result = {}
    for name, places in parts_of(rows).items():
        plans = [stage.calls[place] for place in places if stage.calls[place]]
        several = [calls for calls in plans if len(calls) > 1]
        result[name] = {
            "right": mean_of([stage.right[place] for place in places]),
            "refused": mean_of([float(not stage.calls[place]) for place in places]),
            "calls": mean_of([float(len(calls)) for calls in plans]),
            "path_per_call": mean_of([critical_path(calls) / len(calls) for calls in plans]),
            "path_per_call_of_several": mean_of([critical_path(calls) / len(calls) for calls in several]),
        }
    return result


def difference(rows: Sequence[Any], first: Stage, second: Stage) -> dict[str, Any]:
    """The paired gain in the share fully right, by set."""
    return {
        name: mean_of([second.right[place] - first.right[place] for place in places])
        for name, places in parts_of(rows).items()
    }


# -- the arms ----------------------------------------------------------------------------------------------------------


class Bench:
    """One planner with an adapter, and the time it has."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        from agent_forge.forge.adapters import add_adapter
        from agent_forge.forge.training.checkpoint import weights_of
        from agent_forge.forge.training.settings import LoraSettings
        from agent_forge.learning.plan_attempts import PlanSampler
        from agent_forge.learning.sheets import encode_sheets

        self.options, self.begun = options, time.perf_counter()
        self.cuda = torch.cuda.is_available()
        torch.manual_seed(options.seed)
        model, tokenizer, end = tiny() if options.model is None else load(options.model)
        self.model, self.end = model.to("cuda" if self.cuda else "cpu"), end
        add_adapter(self.model, LoraSettings(rank=options.rank, alpha=2.0 * options.rank))
        self.sampler = PlanSampler(self.model, tokenizer, end)
        self.start = {name: weight.clone() for name, weight in weights_of(self.model).items()}
        self.report: dict[str, Any] = {"options": {name: str(value) for name, value in vars(options).items()}}
        self.say(f"loaded on {next(self.model.parameters()).device}")
        self.judged = held_out_rows(options)
        self.rows = self.unsure(training_rows(options, self.sampler))
        self.sheets = encode_sheets([[row] for row in self.rows], tokenizer, LENGTH, end)
        assert len(self.sheets) == len(self.rows), "a row is longer than a sheet"
        self.stages: dict[str, Stage] = {}
        self.step_s = 0.0

    def unsure(self, rows: list[Learnt]) -> list[Any]:
        """The rows whose own plan the planner finds neither certain nor out of reach."""
        self.say(f"{len(rows)} training rows, {len(self.judged)} held-out ones")
        likely = [math.exp(value) for value in log_probabilities(self.sampler.policy.current().eval(), rows)]
        chosen = [each.row for each, value in zip(rows, likely, strict=True) if UNSURE < value < SURE]
        chosen = chosen or [each.row for each in rows]  # random weights are sure of nothing
        several = sum(len(row.calls) > 1 for row in chosen)
        shares = {"sure": sum(value >= SURE for value in likely) / len(rows)}
        shares |= {"out of reach": sum(value <= UNSURE for value in likely) / len(rows)}
        self.report["training_rows"] = {**shares, "rows": len(chosen), "several calls": several}
        self.say(f"{len(chosen)} to learn from, {several} of several calls; of all {shares}")
        return chosen

    @property
    def spent(self) -> float:
        return time.perf_counter() - self.begun

    def say(self, text: str) -> None:
        print(f"{self.spent:6.1f} s  {text}", flush=True)

    def write(self, **more: Any) -> None:
        """Keeps what is known by now."""
        self.report |= more
        stages = {name: figures(self.judged, stage) for name, stage in self.stages.items()}
        pairs = (("before", "after"), ("before", "control"), ("control", "after"))
        gains = {
            f"{second} - {first}": difference(self.judged, self.stages[first], self.stages[second])
            for first, second in pairs
            if first in self.stages and second in self.stages
        }
        each = {name: {"right": stage.right, "calls": stage.calls} for name, stage in self.stages.items()}
        judged = [[row.kind, row.row.id] for row in self.judged]
        text = json.dumps({**self.report, "stages": stages, "gains": gains, "judged": judged, "plans": each})
        self.options.out.with_suffix(".part").write_text(text)
        self.options.out.with_suffix(".part").rename(self.options.out)

    def judge(self, name: str) -> None:
        """Plans for the held-out rows; the first time for as many as fit into their share of the seconds."""
        import torch
        from _planner_tests import write_plans

        stage, start = Stage(), time.perf_counter()
        policy = self.sampler.policy.current().eval()
        size = self.options.judged_batch
        with torch.autocast("cuda", enabled=False):
            for at in range(0, len(self.judged), size):
                part = self.judged[at : at + size]
                share = (time.perf_counter() - start) / max(1, at)
                late = share * (at + len(part)) > JUDGING * self.options.seconds
                if not self.stages and at and late:
                    self.judged = self.judged[:at]
                    break
                writers = write_plans(
                    policy, self.sampler.tokenizer, self.sampler.vocabulary, [each.row for each in part], batch=size
                )
                stage.calls += [writer.calls for writer in writers]
                stage.right += [each.judge(writer.calls)["right"] for each, writer in zip(part, writers, strict=True)]
        stage.seconds = time.perf_counter() - start
        self.stages[name] = stage
        self.write()
        shown = figures(self.judged, stage)
        line = ", ".join(f"{part} {shown[part]['right']['mean']}" for part in shown)
        self.say(f"{name}: {len(stage.right)} rows in {stage.seconds:.0f} s; right: {line}")

    def settings(self) -> Any:
        from agent_forge.forge.training.settings import ReinforceSettings

        o = self.options
        return ReinforceSettings(
            iterations=o.iterations, prompts=o.prompts, copies=o.copies, max_tokens=o.max_tokens,
            learning_rate=o.rate, warmup=o.updates, minibatches=o.updates, micro_rows=o.micro_rows, evaluate_every=0,
            patience=0, kl_every=10_000, kl_limit=1e9, resample=0, seed=o.seed, temperature=o.temperature,
        )  # fmt: skip

    def reinforce(self) -> int:
        """GRPO until the time is needed for the rest; returns the number of optimiser steps."""
        from agent_forge.forge.training.reinforce import learn_policy
        from agent_forge.learning.plan_attempts import PlanCollector

        o, settings = self.options, self.settings()
        collector = PlanCollector(self.sampler, self.rows, settings)
        begun, stamps, records = time.perf_counter(), [time.perf_counter()], list[dict[str, Any]]()
        rest = 2.3 * self.stages["before"].seconds + 5.0

        def collect(iteration: int) -> Any:
            stamps.append(time.perf_counter())
            longest = max((b - a for a, b in itertools.pairwise(stamps[1:])), default=0.0)
            control = (iteration + 1) * o.updates * self.step_s
            if iteration and self.spent + longest + control + rest > o.seconds:
                return None
            return collector(iteration)

        def note(record: dict[str, Any]) -> None:
            if "reward" not in record:
                return
            records.append(record)
            spent = {name: round(value, 1) for name, value in record["seconds"].items()}
            kept = f"{record.get('rows', 0)} of {record['rollouts']} plans in groups that differ"
            self.say(f"iteration {record['iteration']}: reward {record['reward']:.3f}, {kept}, {spent}")
            self.write(rewards=[round(each["reward"], 4) for each in records])

        result = learn_policy(self.model, collect, settings, on_record=note, progress=None)
        seconds = {name: round(value, 2) for name, value in result.seconds.items()}
        generate = seconds.get("generate") or 1e-9
        rate = {"sampled_tokens": collector.sampled, "tokens_per_s": round(collector.sampled / generate)}
        kl = [each["kl"] for each in records if each.get("kl") is not None]
        more = {"iterations": len(records), "stopped": result.stopped, "peak_memory": result.peak_memory, "kl": kl}
        wall = round(time.perf_counter() - begun, 1)
        self.write(reinforcement={**more, "seconds": seconds, "wall_s": wall, **rate})
        return len(records) * o.updates

    def supervise(self, steps: int, seed: int) -> float:
        """Supervised steps, each on as many rows as a step of reinforcement has plans; returns seconds per step."""
        from agent_forge.learning.sheets import pack_sheets
        from agent_forge.learning.supervised import learn_sheets

        o = self.options
        per_step = o.prompts * o.copies // o.updates
        chance = random.Random(seed)
        weights = [max(1, len(row.calls)) for row in self.rows]  # as PlanCollector draws them
        start = time.perf_counter()
        sheets = chance.choices(self.sheets, weights, k=steps * per_step)
        training = {"micro_rows": o.micro_rows, "save_every": 0}
        learn_sheets(self.model, pack_sheets(sheets, LENGTH), steps, o.rate, training=training, seed=seed)
        return (time.perf_counter() - start) / steps

    def restart(self) -> None:
        from agent_forge.forge.training.checkpoint import restore_weights

        restore_weights(self.model, self.start)

    def carry_out(self) -> None:
        self.supervise(1, 1)  # the first step loads kernels
        self.step_s = self.supervise(2, 1)
        self.restart()
        self.say(f"{self.step_s:.2f} s per supervised step")
        self.judge("before")
        steps = self.reinforce()
        self.judge("after")
        if self.options.adapter is not None:
            from agent_forge.forge.adapters import save_adapter

            save_adapter(self.model, self.options.adapter, base="")
        self.restart()
        begun = time.perf_counter()
        self.supervise(steps, self.options.seed)
        self.write(control={"steps": steps, "wall_s": round(time.perf_counter() - begun, 1)})
        self.judge("control")
        for name, gain in self.report_gains().items():
            self.say(
                f"{name}: " + ", ".join(f"{part} {each['mean']} ± {each['stderr']}" for part, each in gain.items())
            )

    def report_gains(self) -> dict[str, Any]:
        return dict(json.loads(self.options.out.read_text())["gains"])


NUMBERS = {  # option: (default, help)
    "seconds": (350.0, "for everything"),
    "pool": (5000, "training rows to draw from"),
    "per-set": (100, "most held-out rows per set"),
    "judged-batch": (256, "held-out rows at once"),
    "iterations": (400, "most iterations of reinforcement"),
    "prompts": (64, "requests per iteration"),
    "copies": (8, "plans per request"),
    "updates": (4, "optimiser steps per iteration"),
    "micro-rows": (32, "rows at once in learning"),
    "max-tokens": (192, "longest plan"),
    "longest": (800, "longest prompt, in tokens"),
    "rate": (2e-4, "learning rate of both arms"),
    "temperature": (1.0, "at which plans are sampled; judged is greedily"),
    "rank": (16, "rank of the adapters"),
    "seed": (0, "of adapters, rows and sampling"),
}
QUICK = {"seconds": 4.0, "pool": 60, "iterations": 1, "prompts": 3, "copies": 3, "updates": 1, "micro_rows": 4,
         "max_tokens": 48, "rank": 2}  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder of the supervised planner")
    parser.add_argument("--data", type=Path, help="folder of the public sets")
    parser.add_argument("--out", type=Path, default=Path("planner_reinforce.json"))
    parser.add_argument("--adapter", type=Path, help="folder for the adapter after reinforcement")
    for name, (default, about) in NUMBERS.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{about} [{default}]")
    parser.add_argument("--quick", action="store_true", help="random weights, seconds on a CPU")
    options = parser.parse_args()
    if options.quick:
        import tempfile

        vars(options).update(QUICK)
        options.out = Path(tempfile.mkdtemp()) / "quick.json"
    elif options.model is None or options.data is None:
        parser.error("--model and --data are needed")
    return options


if __name__ == "__main__":
    Bench(arguments()).carry_out()
