"""Does the grammar of the forged planner keep its word? Random schemas, requests and logits; jsonschema is the judge.

Every finished call must be valid under its tool's schema once what is left open or refers to an earlier result is set
aside, and each of its values must have been said or be listed by the schema.

python benchmarks/planner_grammar.py [--cases 10000] [--seed 1] [--tokenizer tokenizer.json]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

TALK = (
    "find book send the weather in Oslo New York for two people on March 5th, 2024 at 7:30 pm under 1,500 dollars 8% "
    '12.5 -3 0 3/4 "Hello, World!" it\'s C:\\temp\\new a\\"b café Zürich 東京 привет 😀 € x² #7 ada@example.org '
    "192.168.0.1 2024-02-30 and/or (maybe) half a dozen twenty-one i̇zmir ΟΔΟΣ ßeta _under_ -- ... , ; ! 1e3 .5 "
    "https://a.b/c?d=e&f=[1] {curly} <tag> `code` true none ? = tab\tbell\x07 nul\x00 line\u2028sep"
)
WORDS = TALK.split(" ")
TEXTS = [
    "",
    "C",
    "F",
    "Oslo",
    'say "hi"',
    "back\\slash",
    "new\nline",
    "東京",
    "it's, ok",
    "#1",
    "?",
    "😀",
    "\u2028",
    "a=b",
]
NAMES = [
    "city",
    "to",
    "count",
    "unit",
    "Größe",
    "a b",
    "x-y",
    "a.b",
    "from",
    "date",
    "items",
    "$id",
    "none",
    "1",
    "in(x)",
]
FIELDS = ["id", "name", "temp.max", "list[0]", "a-b", "two words", "température", ""]
PATTERNS = [r"^\d+$", r"^[A-Z]", r"^\d{4}-\d{2}-\d{2}$", r"^[a-z_]+$", r"o", r"^.{3,5}$"]
FORMATS = ["date", "date-time", "email", "ipv4", "uuid", "uri"]


class Schemas:
    """Random function schemas."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def functions(self) -> list[dict[str, Any]]:
        names = self.rng.sample(["get", "send_mail", "a.b", "find-it", "Größe", "x/y", "do it"], self.rng.randint(1, 4))
        return [self.function(name) for name in names]

    def function(self, name: str) -> dict[str, Any]:
        function: dict[str, Any] = {"name": name, "parameters": self.parameters(depth=2)}
        if self.rng.random() < 0.5:
            function["returns"] = self.rng.sample(FIELDS, self.rng.randint(0, 3))
        return function

    def parameters(self, depth: int) -> dict[str, Any]:
        names = self.rng.sample(NAMES, self.rng.choice((0, 1, 1, 2, 3, 5)))
        schema: dict[str, Any] = {"type": "object", "properties": {name: self.value(depth) for name in names}}
        if self.rng.random() < 0.8:
            schema["required"] = [name for name in names if self.rng.random() < 0.6]
        if self.rng.random() < 0.2:
            schema["additionalProperties"] = False
        return schema

    def value(self, depth: int) -> dict[str, Any]:
        kinds = ["string", "string", "number", "integer", "boolean", "enum", "any", "const", "kinds"]
        kind = self.rng.choice([*kinds, *(["array", "array", "object", "anyOf", "oneOf"] if depth else [])])
        schema = getattr(self, f"_{kind}")(depth)
        if self.rng.random() < 0.15:
            schema["default"] = self.rng.choice([None, 3, 2.5, True, "Oslo", "", ["a"], {"a": 1}])
        if self.rng.random() < 0.2:
            schema["description"] = "What it is, e.g. this"
        return schema

    def _string(self, depth: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string"}
        for key, values in (("pattern", PATTERNS), ("minLength", [1, 4]), ("maxLength", [3, 8]), ("format", FORMATS)):
            if self.rng.random() < 0.15:
                schema[key] = self.rng.choice(values)
        return schema

    def _number(self, depth: int, kind: str = "number") -> dict[str, Any]:
        schema: dict[str, Any] = {"type": kind}
        for key, values in (
            ("minimum", [-5, 0, 1, 2.5]),
            ("maximum", [0, 7, 100.5, 2000]),
            ("exclusiveMinimum", [0, 2]),
            ("exclusiveMaximum", [8, 1500]),
            ("multipleOf", [2, 5, 0.5]),
        ):
            if self.rng.random() < 0.2:
                schema[key] = self.rng.choice(values)
        return schema

    def _integer(self, depth: int) -> dict[str, Any]:
        return self._number(depth, "integer")

    def _boolean(self, depth: int) -> dict[str, Any]:
        return {"type": "boolean"}

    def _any(self, depth: int) -> dict[str, Any]:
        return {}

    def _kinds(self, depth: int) -> dict[str, Any]:
        return {"type": self.rng.sample(["string", "integer", "number", "boolean", "null"], 2)}

    def _const(self, depth: int) -> dict[str, Any]:
        return {"const": self.rng.choice(["fixed", 7, True, 2.5, "Oslo"])}

    def _enum(self, depth: int) -> dict[str, Any]:
        choices: list[Any] = self.rng.sample([*TEXTS, 1, 2, 2.5, True, None], self.rng.randint(1, 5))
        return {"enum": choices} | ({"type": "string"} if self.rng.random() < 0.5 else {})

    def _array(self, depth: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "array"}
        if self.rng.random() < 0.9:
            schema["items"] = self.value(depth - 1)
        for key, values in (("minItems", [1, 2, 3]), ("maxItems", [1, 2]), ("uniqueItems", [True])):
            if self.rng.random() < 0.2:
                schema[key] = self.rng.choice(values)
        return schema

    def _object(self, depth: int) -> dict[str, Any]:
        return self.parameters(depth - 1)

    def _anyOf(self, depth: int, key: str = "anyOf") -> dict[str, Any]:
        return {key: [self.value(depth - 1) for _ in range(self.rng.randint(1, 3))]}

    def _oneOf(self, depth: int) -> dict[str, Any]:
        return self._anyOf(depth, "oneOf")


@dataclass
class Tally:
    """What was found; `examples` are the first faults with what they came from."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def fault(self, kind: str, what: str) -> None:
        self.counts[kind] += 1
        if len(self.examples) < 5:
            self.examples.append(f"{kind}: {what}")


def try_case(vocabulary: Any, seed: int, tally: Tally) -> None:
    """One request over random tools, written with random logits."""
    from agent_forge.agents.planner.writer import PlanWriter

    rng = random.Random(seed)
    functions = Schemas(rng).functions()
    request = " ".join(rng.choices(WORDS, k=rng.randint(1, 12)))
    noise = np.random.default_rng(seed)
    writer = PlanWriter(vocabulary, functions, request, refuse_above=0.999)
    tally.counts["attempts"] += 1
    for _ in range(3_000):
        if writer.ended:
            break
        writer.choose(noise.normal(0, 3, vocabulary.size).astype(np.float32))
    tally.counts["ended" if writer.ended else "not ended"] += 1
    for number, call in enumerate(writer.calls, 1):
        judge(call, number, functions, request, tally)


def judge(call: Mapping[str, Any], number: int, functions: Sequence[Any], request: str, tally: Tally) -> None:
    from jsonschema import Draft202012Validator, FormatChecker

    from agent_forge.agents.grounding import Mentions, grounded

    schema = next(each for each in functions if each["name"] == call["tool"])["parameters"]
    required = schema.get("required", [])
    tally.counts["calls"] += 1
    values = {}
    for name, value in call["args"].items():
        if value is None:
            tally.counts["left open"] += 1
            if name not in required:
                tally.fault("invalid", f"{name!r} is open and not required, {call}")
        elif isinstance(value, dict) and set(value) == {"ref", "field"}:
            tally.counts["references"] += 1
            if not 1 <= value["ref"] < number:
                tally.fault("invalid", f"call {number} refers to {value['ref']}")
        else:
            values[name] = value
    tally.counts["values"] += len(values)
    missing = [name for name in required if name not in call["args"]]
    checker = FormatChecker(("date", "email", "ipv4", "uuid"))
    unasked = {**schema, "required": []}
    faults = [each.message for each in Draft202012Validator(unasked, format_checker=checker).iter_errors(values)]
    if faults or missing:
        tally.fault("invalid", f"{faults} {missing} {json.dumps(call, ensure_ascii=False)}")
    said = [Mentions(" ".join(request.split()))]
    for name, value in values.items():
        if not grounded(value, schema["properties"][name], said):
            tally.fault("ungrounded", f"{name}={value!r} of {request!r}")


def byte_vocabulary() -> str:
    """A small byte-level tokenizer of our own, as tokenizer.json."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*WORDS, 'city="Oslo", count=2, items=["a", "b"])', *NAMES] * 3, trainer)
    return str(tokenizer.to_str())


def main() -> None:
    from tokenizers import Tokenizer

    from agent_forge.inference.grammar import GrammarVocabulary

    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokenizer", help="tokenizer.json of a planner; by default a small one made here")
    options = parser.parse_args()
    words = Path(options.tokenizer).read_text(encoding="utf-8") if options.tokenizer else byte_vocabulary()
    vocabulary = GrammarVocabulary(Tokenizer.from_str(words), ends=[0])
    tally = Tally(Counter({"invalid": 0, "ungrounded": 0, "not ended": 0}))
    begun = time.process_time()
    for case in range(options.cases):
        try_case(vocabulary, options.seed * 1_000_000 + case, tally)
    print(json.dumps({**tally.counts, "cpu_s": round(time.process_time() - begun, 1)}))
    for example in tally.examples:
        print(example)


if __name__ == "__main__":
    main()
