"""Calls under a grammar: do those of 10,000 random tools validate, and what does the mask cost?

python benchmarks/grammar.py                       10,000 tools, random logits, a small tokenizer
python benchmarks/grammar.py --tokenizer FILE      also the mask's time per token with that tokenizer (tokenizer.json)

jsonschema judges. Times are CPU time; compare them with a decoding step of the same machine.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

import jsonschema
import numpy as np

from agent_forge.inference.grammar import GrammarVocabulary, SchemaUnsupported, call_grammar
from agent_forge.inference.tool_calls import split_calls

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "inference"))
from inference_schemas import emit, random_schema, tiny_tokens

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "units": {"enum": ["metric", "imperial"]},
        "note": {"type": "string"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
CALL = '{"name": "weather", "arguments": {"city": "Oslo", "days": 3, "units": "metric", "note": "for the trip"}}'


def check(count: int, seed: int) -> Counter[str]:
    """How many calls were valid, invalid, not complete after 400 tokens, or of a tool that was refused."""
    tokenizer = tiny_tokens()
    vocabulary = GrammarVocabulary(tokenizer, ends=[0])
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    outcomes: Counter[str] = Counter()
    for _ in range(count):
        inner = random_schema(rng)
        schema = {"type": "object", "properties": {"x": inner}, "required": ["x"], "$defs": inner.get("$defs", {})}
        try:
            grammar = call_grammar([{"name": "find", "parameters": schema}], many=False)
        except SchemaUnsupported:
            outcomes["refused"] += 1
            continue
        text = emit(vocabulary, grammar, tokenizer, numbers)
        if text is None:
            outcomes["incomplete"] += 1
            continue
        calls = split_calls(text, ["find"])[1]
        valid = len(calls) == 1 and jsonschema.Draft202012Validator(schema).is_valid(json.loads(calls[0].arguments))
        outcomes["valid" if valid else "INVALID"] += 1
    return outcomes


def cost(file: str, rounds: int = 30) -> list[float]:
    """CPU time in µs of mask and advance, by token of one call, over several walks."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(file)
    vocabulary = GrammarVocabulary(tokenizer)
    grammar = call_grammar([{"name": "weather", "parameters": WEATHER}], many=False)
    ids = tokenizer.encode(f"<tool_call>{CALL}</tool_call>", add_special_tokens=False).ids
    logits = np.zeros(vocabulary.size, np.float32)
    times = []
    for _ in range(rounds):
        walk = vocabulary.start(grammar)
        for token in ids:
            begun = time.thread_time()
            walk.mask(logits)
            if not np.isfinite(logits[token]):  # forced text in the tokenizer's own tokens
                break
            walk.advance(token)
            times.append((time.thread_time() - begun) * 1e6)
            logits[:] = 0.0
    return times


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--tokenizer", help="a tokenizer.json")
    chosen = options.parse_args()
    if chosen.tokenizer:
        times = cost(chosen.tokenizer)
        mean, median, worst = np.mean(times), np.median(times), max(times)
        print(f"mask and advance: mean {mean:.0f} µs, median {median:.0f}, worst {worst:.0f} ({len(times)} tokens)")
    if chosen.count:
        print(dict(check(chosen.count, chosen.seed)))


if __name__ == "__main__":
    main()
