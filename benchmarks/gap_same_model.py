"""A plan against one call per turn with the same real model in both arms (docs/results/end-to-end.md).

python benchmarks/gap_same_model.py [--questions 12] [--models forged,smollm2]

Bundled 2Wiki questions, one tool: `find_fact` reads a fact about a thing in the bundled passages by rules, the same in
every arm. `graph` writes a plan and the executor runs it; `react` makes one call per turn and reads what came back.
The forged planner only writes calls, so that the answer is the result of the last one; in its turns the facts found so
far stand behind the question, and it ends by `none` (not at once, in neither arm: it takes a question for none of a
tool's business), by the same call again, or after six turns.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agent_forge.agents import tool
from agent_forge.agents.synthesis import look_up
from agent_forge.agents.tools import bundled_corpus, bundled_questions
from agent_forge.errors import AgentForgeError

PUBLISHED = {"seconds": -0.32, "tokens": -0.25, "tool_calls": -0.22}  # GAP-3B against ReAct on HotpotQA
TURNS = 6


@dataclass
class Tally:
    """What one question cost."""

    seconds: float = 0.0  # of processor time
    tokens: int = 0  # read and written
    model_calls: int = 0
    tool_calls: int = 0
    answer: str | None = None


@tool
def find_fact(entity: str, relation: str) -> str:
    """Find a fact about a person, film, song or place: its director, composer, mother, father, spouse, date of birth,
    place of birth, date of death, country and so on.

    Args:
        entity: name of the person, film, song or place
        relation: what to find, such as director, mother, date of birth, place of birth
    """
    passages = [{"title": hit.passage.title, "text": hit.passage.text} for hit in bundled_corpus().search(entity, 3)]
    fact = look_up(relation, entity, passages)
    return fact.value if fact else "unknown"


def forged_graph(question: str) -> Tally:
    from agent_forge.agents.planner import forged

    model = forged.plan_model(forged.SHIPPED)
    writer = model.write(question, [forged.function_of(find_fact)], refuse_above=1.0)
    found: list[str] = []
    for call in writer.calls:
        found.append(_fact({name: _resolved(value, found) for name, value in call["args"].items()}))
    return Tally(0.0, writer.read_tokens, 1, len(found), found[-1] if found else None)


def forged_react(question: str) -> Tally:
    from agent_forge.agents.planner import forged

    model = forged.plan_model(forged.SHIPPED)
    tally, known, made = Tally(), "", []
    for turn in range(TURNS):
        refuse_above = 0.5 if turn else 1.0
        writer = model.write(question + known, [forged.function_of(find_fact)], refuse_above=refuse_above)
        tally.tokens += writer.read_tokens
        tally.model_calls += 1
        if not writer.calls or writer.calls[0]["args"] in made:
            break
        args = writer.calls[0]["args"]
        made.append(args)
        tally.answer = _fact(args)
        tally.tool_calls += 1
        known += f" The {args.get('relation')} of {args.get('entity')} is {tally.answer}."
    return tally


def _resolved(value: Any, found: Sequence[str]) -> Any:
    return found[value["ref"] - 1] if isinstance(value, dict) and "ref" in value else value


def _fact(args: dict[str, Any]) -> str:
    return find_fact.function(str(args.get("entity") or ""), str(args.get("relation") or ""))


def smollm2(strategy: str) -> Callable[[str], Tally]:
    def ask(question: str) -> Tally:
        from agent_forge import run

        options = {"planner": "local"} if strategy == "graph" else {}
        try:
            result = run(question, tools=[find_fact], model=_client(), strategy=strategy, record=False, repairs=0,
                         **options)  # fmt: skip
        except AgentForgeError:  # no plan that may run: it counts as no answer, and costs what it cost in time
            return Tally(model_calls=1)
        usage = result.usage
        tokens = (usage.input_tokens or 0) + (usage.output_tokens or 0)
        return Tally(0.0, tokens, usage.model_calls, usage.tool_calls, result.answer)

    return ask


_CLIENTS: list[Any] = []


def _client() -> Any:
    from agent_forge.inference.local_model import LocalModel

    if not _CLIENTS:
        _CLIENTS.append(LocalModel.smollm2())
    return _CLIENTS[0]


ARMS: dict[str, dict[str, Callable[[str], Tally]]] = {
    "forged": {"react": forged_react, "graph": forged_graph},
    "smollm2": {"react": smollm2("react"), "graph": smollm2("graph")},
}


def normal(text: str | None) -> str:
    """As in SQuAD: no case, no punctuation, no articles."""
    text = re.sub(r"[^\w\s]", "", (text or "").lower())
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--models", default="forged,smollm2")
    options = parser.parse_args()
    count = 2 if options.quick else options.questions
    questions = bundled_questions()[:: max(1, len(bundled_questions()) // count)][:count]
    for model in options.models.split(","):
        means: dict[str, dict[str, float]] = {}
        for name, arm in ARMS[model].items():
            tallies, right = [], 0
            for place, question in enumerate([questions[0], *questions]):  # the first one twice: once to warm up
                begun = time.process_time()
                tally = arm(question.question)
                tally.seconds = time.process_time() - begun
                if place:
                    tallies.append(tally)
                    right += normal(tally.answer) == normal(question.answer)
            keys = ("seconds", "tokens", "model_calls", "tool_calls")
            means[name] = {key: sum(getattr(each, key) for each in tallies) / len(tallies) for key in keys}
            row = "  ".join(f"{key} {value:.2f}" for key, value in means[name].items())
            print(f"{model} {name:6} {row}  right {right} of {len(tallies)}", flush=True)
        for key, published in PUBLISHED.items():
            change = means["graph"][key] / means["react"][key] - 1 if means["react"][key] else float("nan")
            print(
                f"{model} graph against react, {key}: {change:+.0%} (GAP-3B, published: {published:+.0%})", flush=True
            )


if __name__ == "__main__":
    main()
