"""How fast is scrubbing? Megabytes per CPU second on chat JSONL, compared with Presidio, and memory by file size.

    python benchmarks/scrub.py [--quick] [--data DIR] [--gigabytes 2]

Presidio is measured if it is installed (its pattern recognisers, without a language model, the same six types).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from agent_forge.curation.scrub import scrub_file
from agent_forge.pii import find_pii

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
SIX = {
    "EMAIL": "EMAIL_ADDRESS",
    "PHONE": "PHONE_NUMBER",
    "SSN": "US_SSN",
    "CARD": "CREDIT_CARD",
    "IBAN": "IBAN_CODE",
    "IP": "IP_ADDRESS",
}
FACTS = (
    "mail me at {n}.doe@corp{n}.io",
    "call (312) 555-0{n:03d}",
    "my SSN is 123-45-6{n:03d}",
    "card 4242 4242 4242 4242",
    "host 10.0.{k}.{k}",
)


def messages(data: Path) -> list[str]:
    """Chat content: word problems with answers, tool requests and textbook prose if the shared data is available."""
    texts: list[str] = []
    for name, keys in (
        ("gsm8k/train.jsonl.gz", ("question", "answer")),
        ("plan_graph/ultratool/train.jsonl.gz", ("user_request", "task_steps")),
    ):
        if (data / name).exists():
            with gzip.open(data / name, "rt", encoding="utf-8") as lines:
                for line in lines:
                    row = json.loads(line)
                    values = (row[key] for key in keys)
                    texts += [value if isinstance(value, str) else "\n".join(value) for value in values]
    book = data / "text_openstax" / "part-00.jsonl.gz"
    if book.exists():
        with gzip.open(book, "rt", encoding="utf-8") as lines:
            for line in lines:
                text = json.loads(line)["text"][:6000]
                texts += [text[at : at + 600] for at in range(0, len(text), 600)]
    sentence = "the model wrote a plan for each task and then called two tools before it answered with 12 results"
    rng = random.Random(3)
    while len(texts) < 2000:
        texts.append(" ".join(rng.choices(sentence.split(), k=80)))
    rng.shuffle(texts)
    return texts


def write_chat(path: Path, texts: list[str], megabytes: float) -> int:
    """Writes a JSONL file of that size; about one message in thirty has personal data."""
    rng, size, number = random.Random(5), 0, 0
    with open(path, "w", encoding="utf-8") as file:
        while size < megabytes * 1e6:
            number += 1
            turns = [texts[(2 * number) % len(texts)], texts[(2 * number + 1) % len(texts)]]
            if number % 15 == 0:
                turns[0] += " " + rng.choice(FACTS).format(n=number % 900 + 100, k=number % 250)
            row = {
                "id": number,
                "messages": [{"role": r, "content": t} for r, t in zip(("user", "assistant"), turns, strict=True)],
            }
            size += file.write(json.dumps(row) + "\n")
    return path.stat().st_size


def best_cpu(run: Callable[[], object], times: int) -> float:
    """The least CPU time of several runs: other processes on the machine only add to it."""
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return best


def presidio(texts: list[str]) -> float | None:
    """CPU seconds of Presidio's analyzer on the texts, or None if it is not installed."""
    try:
        from presidio_analyzer import AnalyzerEngine
        from presidio_analyzer.nlp_engine import NlpEngineProvider
    except ImportError:
        return None
    engine = NlpEngineProvider(
        nlp_configuration={"nlp_engine_name": "no_op", "models": [{"lang_code": "en", "model_name": "no_op"}]}
    )
    analyzer = AnalyzerEngine(nlp_engine=engine.create_engine(), supported_languages=["en"])
    start = time.process_time()
    for text in texts:
        analyzer.analyze(text, language="en", entities=list(SIX.values()))
    return time.process_time() - start


def peak_memory(path: Path) -> float:
    """Peak resident megabytes of a process that scrubs the file (the high-water mark that Linux keeps)."""
    code = (
        "import re,sys\nfrom agent_forge.curation.scrub import scrub_file\nscrub_file(sys.argv[1], sys.argv[2])\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    out = path.with_suffix(".out")
    command = [sys.executable, "-c", code, str(path), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    out.unlink()
    return int(done.stdout) / 1024


def rows(quick: bool, data: Path, gigabytes: float) -> Iterator[tuple[str, float | None, str, float | None]]:
    texts = messages(data)
    repeats = 2 if quick else 5
    with tempfile.TemporaryDirectory() as folder:
        chat = Path(folder) / "chat.jsonl"
        size = write_chat(chat, texts, 2 if quick else 10) / 1e6
        whole = size / best_cpu(lambda: scrub_file(chat, Path(folder) / "out.jsonl"), repeats)
        yield "scrub a JSONL file, all types", whole, "MB/s CPU", 12.0
        sample = [text for text in texts if text][: 400 if quick else 3000]
        characters = sum(len(text.encode()) for text in sample) / 1e6
        six = characters / best_cpu(lambda: [find_pii(text, types=SIX) for text in sample], repeats)
        every = characters / best_cpu(lambda: [find_pii(text) for text in sample], repeats)
        secrets = characters / best_cpu(
            lambda: [find_pii(text, types={"SECRET", "PRIVATE_KEY"}) for text in sample], repeats
        )
        yield "find_pii, all types", every, "MB/s CPU", None
        yield "find_pii, secrets rules alone", secrets, "MB/s CPU", 20.0
        yield "find_pii, the six types Presidio also has", six, "MB/s CPU", None
        peer = presidio(sample[: 100 if quick else 1000])
        if peer is not None:
            share = sum(len(text.encode()) for text in sample[: 100 if quick else 1000]) / 1e6 / peer
            yield "Presidio, the same six types", share, "MB/s CPU", None
            yield "ratio to Presidio, the same six types", six / share, "×", 40.0
            yield "ratio to Presidio, all our types", every / share, "×", 40.0
            yield "ratio to Presidio, whole JSONL scrub", whole / share, "×", None
        for megabytes in (5, 20) if quick else (10, 100, *([gigabytes * 1000] if gigabytes else [])):
            write_chat(chat, texts, megabytes)
            yield f"peak memory at {megabytes:g} MB", peak_memory(chat), "MB", None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--gigabytes", type=float, default=0, help="also measure memory on a file of this size")
    options = parser.parse_args()
    print(f"{'what':46s} {'measured':>10s}  {'goal':>10s}")
    for name, value, unit, goal in rows(options.quick, options.data, options.gigabytes):
        print(f"{name:46s} {value:10.2f} {unit:8s} {f'≥ {goal:g}' if goal else '':>8s}", flush=True)


if __name__ == "__main__":
    main()
