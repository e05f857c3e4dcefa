"""Precision and recall by type on labelled sentences, compared with Presidio's pattern recognisers on the same rows.

    python examples/curation_pii_accuracy.py --data ../shared/data/pii [--half held-out|development|all] [--text DIR]

DATA is a folder with presidio_generated_large.json.gz and presidio_generated_small.json, the generated sentences of the
repository microsoft/presidio-research. With --text, it counts and shows the matches in the gzipped texts of a folder.
The rows are shuffled with a fixed seed; the rules were developed on the first half. Presidio is measured if it is
installed, without a language model.
"""

from __future__ import annotations

import argparse
import gzip
import random
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path

from agent_forge.curation import find_pii
from agent_forge.curation.evaluate import PRESIDIO_TYPES, Span, evaluate, read_presidio

TYPES = ("EMAIL", "CARD", "SSN", "IBAN", "IP", "PHONE", "DRIVER_LICENSE")
Finder = Callable[[str], Iterable[Span]]


def ours(text: str) -> Iterable[Span]:
    return [(match.type, match.start, match.end) for match in find_pii(text)]


def presidio() -> Finder | None:
    try:
        from presidio_analyzer import AnalyzerEngine
        from presidio_analyzer.nlp_engine import NlpEngineProvider
    except ImportError:
        return None
    models = [{"lang_code": "en", "model_name": "no_op"}]
    engine = NlpEngineProvider(nlp_configuration={"nlp_engine_name": "no_op", "models": models}).create_engine()
    analyzer = AnalyzerEngine(nlp_engine=engine, supported_languages=["en"])
    entities = [theirs for theirs, mine in PRESIDIO_TYPES.items() if mine in TYPES]

    def find(text: str) -> Iterable[Span]:
        results = analyzer.analyze(text, language="en", entities=entities)
        return [(PRESIDIO_TYPES[result.entity_type], result.start, result.end) for result in results]

    return find


def source_code(megabytes: float) -> list[str]:
    files = [path for path in Path(sysconfig.get_path("stdlib")).rglob("*.py") if "site-packages" not in path.parts]
    files.sort()
    random.Random(3).shuffle(files)
    texts, size = [], 0
    while size < megabytes * 1e6:
        texts.append(files.pop().read_text("utf-8", errors="replace"))
        size += len(texts[-1])
    return texts


def ordinary_text(folder: Path) -> dict[str, list[str]]:
    """The matches in ordinary text, by type, with the words before them."""
    matches: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.gz")):
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            for line in file:
                for kind, start, end in ours(line):
                    matches.setdefault(kind, []).append(f"{line[max(0, start - 40) : start]}>>{line[start:end]}<<")
    return matches


def show(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--half", choices=("held-out", "development", "all"), default="held-out")
    parser.add_argument(
        "--code", type=float, default=3.0, help="megabytes of the standard library to search for false matches"
    )
    parser.add_argument("--text", type=Path, help="a folder with ordinary text to search for false matches")
    options = parser.parse_args()
    if options.text:
        for kind, hits in sorted(ordinary_text(options.text).items()):
            print(f"{kind}: {len(hits)}", *hits[:10], sep="\n    ")
        return
    if not options.data.is_dir():
        parser.error(f"--data {options.data}: there is no such folder")
    rows = [
        row
        for name in ("large.json.gz", "small.json")
        for row in read_presidio(options.data / f"presidio_generated_{name}")
    ]
    random.Random(5).shuffle(rows)
    half = len(rows) // 2
    chosen = {"held-out": rows[half:], "development": rows[:half], "all": rows}[options.half]
    finders: dict[str, Finder | None] = {"agent-forge": ours, "Presidio": presidio()}
    for name, find in finders.items():
        if find is None:
            print(f"{name}: not installed")
            continue
        print(f"{name}, {len(chosen)} rows ({options.half})\n{'type':16s} labelled  recall  precision")
        for kind, score in evaluate(chosen, find, TYPES).items():
            print(f"{kind:16s} {score.labelled:8d}  {show(score.recall):>6s}  {show(score.precision):>9s}")
        wrong = [
            hit[0] for text in source_code(options.code) for hit in find(text) if hit[0] in ("PHONE", "SSN", "CARD")
        ]
        print(f"phone, SSN and card matches in {options.code:g} MB of source code: {len(wrong)}\n")


if __name__ == "__main__":
    main()
