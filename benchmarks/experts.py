"""What do expert vectors gain over the base, and over a LoRA adapter of as many parameters with the same rewards?

    python benchmarks/experts.py FOLDER --seconds 540       (a causal LM, e.g. SmolLM2-135M-Instruct; one GPU)
    python benchmarks/experts.py --quick                    (a tiny random model on the CPU: that it runs, no more)

Everything is the experts phase (docs/experts.md): self-test, three seeds of vectors and adapters per domain, held-out
exercises, ways of choosing, and, where Optuna is installed, the search over designs. The number of training steps is
what fits into `--seconds`, after a few steps of each kind were timed. With `--work` the work is kept there, and the
same command goes on with what an earlier one did not finish.

Prints the report as Markdown, with one seed and with all that fit, and the cost of switching: of the added term, of a
switch, and of folding.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # answers differ in length: compiling would not pay

import numpy as np
import torch
from _seeds import elapsed, fast_folder, seeds_that_fit

from agent_forge import forge
from agent_forge.config import build
from agent_forge.forge.adapters import adapted_layers, add_adapter
from agent_forge.forge.experts.bank import ExpertBank
from agent_forge.forge.experts.domains import Domain, choose_domains, discover
from agent_forge.forge.experts.job import Workshop, equal_adapter, make_experts
from agent_forge.forge.experts.report import document_of, markdown_of, write_report
from agent_forge.forge.experts.settings import ExpertSettings
from agent_forge.forge.experts.svf import add_scales, fold_vectors, remove_scales, scaled_layers, set_learning
from agent_forge.forge.practice.continuations import text_families
from agent_forge.forge.practice.measuring import kept
from agent_forge.forge.practice.respondent import Respondent

TEXT = {name: {"path": name} for name in ("stories", "problems")}  # bundled
FULL: dict[str, Any] = {
    "sources": TEXT,
    "discovery": {
        "families": ["arithmetic", "program_output", "programs", "retrieval", "analyst", "tool_calls"],
        "levels": [0.0, 0.3, 1.0], "discovery_samples": 96, "min_experts": 2, "max_experts": 2,
    },
    "svf": {
        "batch_size": 128, "copies": 8, "learning_rate": 0.02, "lora_learning_rate": 0.002, "kl_coefficient": 0.02,
        "validate_every": 0,
    },
    "max_tokens": 32, "seeds": 3, "judged": 400, "labelled": 32, "cem_generations": 2, "cem_population": 8,
}  # fmt: skip
QUICK: dict[str, Any] = {
    "sources": TEXT,
    "discovery": {"levels": [0.0], "discovery_samples": 8, "min_experts": 2, "lowest": 0, "highest": 1},
    "svf": {"steps": 1, "batch_size": 4, "copies": 2, "validate_every": 0},
    "max_tokens": 64, "seeds": 2, "judged": 4, "labelled": 2, "cem_generations": 1, "cem_population": 4,
}  # fmt: skip
JUDGING = 0.35  # of the time: judging and choosing
SEARCH = {"population_size": 8, "num_generations": 2, "items": 32, "thoughts": [1, 4]}


def tiny_model() -> tuple[Any, Any]:
    """A random model with a tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bare = Tokenizer(models.BPE({token: n for n, token in enumerate(["<s>", "</s>", *letters])}, []))
    bare.pre_tokenizer, bare.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=260, bos_token_id=0, eos_token_id=1, **sizes))
    return model.eval(), PreTrainedTokenizerFast(tokenizer_object=bare, bos_token="<s>", eos_token="</s>")


def fitting_steps(respondent: Respondent, seconds: float, work: Path) -> int:
    """Training steps per run that end by `seconds`, from the time of a few steps of either kind."""
    settings = respondent.settings
    text = text_families(settings.sources, settings.held_out)
    file = work / "experts" / "self-test.json"  # where the phase will look for it
    rows = kept(file, lambda: [asdict(one) for one in discover(respondent, settings.discovery, 0, tell, text=text)])
    domains = choose_domains([Domain(**row) for row in rows], settings.discovery)
    if not domains:
        return 1
    steps = replace(settings.svf, steps=12)  # of which every third is saved: the median is without that
    short = replace(respondent, settings=replace(settings, svf=steps))
    spent = 0.0
    for kind in ("vectors", "control"):
        if kind == "vectors":
            names = add_scales(respondent.model)
            set_learning(respondent.model, True)
            numbers = sum(len(layer.shift_R) for _, layer in scaled_layers(respondent.model))
            print(f"{len(names)} matrices, {numbers:,} numbers per expert; {elapsed():.0f} s so far", flush=True)
        else:
            add_adapter(respondent.model, equal_adapter(respondent.model, numbers))
        stamps: list[float] = []  # of the end of every step
        room = Workshop(short, domains, 0, work / "timing", lambda *, stamps=stamps, **_: stamps.append(elapsed()))
        room.learn(domains[0], 0, 1e-6, kind)
        shutil.rmtree(work / "timing")
        each = float(np.median(np.diff(stamps)))
        spent += each
        print(f"{kind}: {each:.2f} s per step of {settings.svf.batch_size} answers", flush=True)
        if kind == "vectors":
            remove_scales(respondent.model)
        else:
            for name, layer in list(adapted_layers(respondent.model)):
                respondent.model.set_submodule(name, layer.base)
    return max(1, int((seconds - elapsed()) / (spent * settings.seeds * len(domains))))


def switching_costs(model: Any, repeats: int = 20) -> list[str]:
    """Seconds per forward pass of 64 tokens for 8 rows: base, expert, one expert per row; per switch; and per fold."""
    device = next(model.parameters()).device
    tokens = torch.randint(0, model.config.vocab_size, (8, 64), device=device)
    start = time.perf_counter()
    add_scales(model)
    bases = time.perf_counter() - start
    vectors = {name: 1 + 0.01 * torch.randn(len(layer.shift_R)) for name, layer in scaled_layers(model)}
    bank = ExpertBank(model, {"one": vectors, "two": vectors})
    rows: list[Any] = ["one", "two"] * 4

    def timed(work: Any) -> float:
        with torch.no_grad():
            work()
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(repeats):
                work()
            if device.type == "cuda":
                torch.cuda.synchronize()
        return (time.perf_counter() - start) / repeats * 1e3

    figures = {"base": None, "one expert": "one", "an expert per row": rows}
    lines = [f"bases of all matrices, once: {bases:.1f} s"]
    for name, choice in figures.items():
        bank.switch(choice)
        lines.append(f"forward, 8 x 64 tokens, {name}: {timed(lambda: model(tokens, use_cache=False)):.1f} ms")
    lines.append(f"switch: {timed(lambda: bank.switch('two')):.2f} ms")
    memory = sum(layer.bytes for _, layer in scaled_layers(model)) / 1e6
    weights = sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6
    lines.append(f"bases {memory:.0f} MB beside weights of {weights:.0f} MB")
    remove_scales(model)
    start = time.perf_counter()
    fold_vectors(model, vectors)
    return [*lines, f"fold: {time.perf_counter() - start:.1f} s"]


def settings_of(quick: bool, changes: list[str]) -> ExpertSettings:
    values = json.loads(json.dumps(QUICK if quick else FULL))
    for change in changes:
        key, _, text = change.partition("=")
        (*groups, name), place = key.split("."), values
        for group in groups:
            place = place.setdefault(group, {})
        place[name] = json.loads(text)
    if find_spec("optuna"):
        values.setdefault("adas", {**SEARCH, **({"items": 2, "num_generations": 1} if quick else {})})
    else:
        print("no search over designs: Optuna is not installed")
    return build(ExpertSettings, values, "benchmark")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="Folder of a causal LM")
    parser.add_argument("--quick", action="store_true", help="A tiny random model, a step or two")
    parser.add_argument("--seconds", type=float, default=540, help="Time for everything (default: 540)")
    parser.add_argument("--steps", type=int, help="Training steps per run, instead of as many as fit")
    parser.add_argument("--work", type=Path, help="Folder to keep the work in (default: a temporary one)")
    parser.add_argument("--out", type=Path, help="Folder for report.md, report.json and front.svg")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="Change, e.g. svf.copies=4")
    options = parser.parse_args()
    if options.model is None:
        model, tokenizer = tiny_model()
    else:
        opened = forge.load(options.model)
        model, tokenizer = opened.model, opened.tokenizer
    settings = settings_of(options.quick, options.set)
    with tempfile.TemporaryDirectory(dir=fast_folder()) as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        noted, steps = work / "steps", options.steps or (settings.svf.steps if options.quick else 0)
        if not steps and noted.is_file():
            steps = int(noted.read_text())
        if not steps:
            steps = fitting_steps(Respondent(model, tokenizer, settings), (1 - JUDGING) * options.seconds, work)
        noted.write_text(str(steps))
        print(f"{steps} steps per run; {elapsed():.0f} s so far", flush=True)
        settings = replace(settings, svf=replace(settings.svf, steps=steps))
        # the bases of the matrices are computed anew for every step, so the later seeds are one step
        for seeds in seeds_that_fit(settings.seeds, options.seconds, at_once=True):
            outcome = make_experts(model, tokenizer, replace(settings, seeds=seeds), 0, work / "experts", tell)
            print(f"\n== {seeds} seeds, {elapsed():.0f} s\n\n{markdown_of(document_of(outcome))}", flush=True)
            if options.out:
                write_report(outcome, options.out)
                run = {"seeds": seeds, "steps": steps, "seconds": elapsed()}
                (options.out / "run.json").write_text(json.dumps(run))
    if elapsed() < options.seconds:
        print("\n".join(switching_costs(model, 2 if options.quick else 20)))
    print(f"{elapsed():.0f} s in all")


def tell(**fields: Any) -> None:
    if fields.get("done") == fields.get("total"):  # a domain's result comes with neither
        figures = " ".join(f"{name} {value:.3f}" for name, value in fields.items() if isinstance(value, float))
        print(f"{elapsed():6.0f} s  {fields['stage']} {figures}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
