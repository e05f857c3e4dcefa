"""What the two cycles bake, and how it is judged on questions that were never baked.

A-cycle: tool schemas and demonstrations, so that the model calls tools which its prompt does not show; the share of
answers that are exactly the right calls. B-cycle: a persona; how sure a classifier is, trained on answers to other
prompts for the same persona and to other questions.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from agent_forge.errors import ConfigError
from agent_forge.forge.baking.prompt_baking import BakingPrompt, question_tokens, write
from agent_forge.forge.baking.settings import Baking
from agent_forge.forge.baking.text_classifier import TextClassifier
from agent_forge.forge.evaluation.sets import read_requests
from agent_forge.forge.evaluation.tasks import read_calls, right_calls
from agent_forge.tasks import family
from agent_forge.tasks.families.tool_calls import FORM, listed, request_of


@dataclass(frozen=True)
class JudgedQuestion:
    """What the model is asked, and what judges its answer."""

    text: str
    expected: Any = None


@dataclass(frozen=True)
class Behaviour:
    """A prompt, questions to bake it on, to choose prompts on (`watched`) and to be judged on; no question twice."""

    name: str
    prompt: BakingPrompt
    learnt: tuple[JudgedQuestion, ...]
    watched: tuple[JudgedQuestion, ...]
    judged: tuple[JudgedQuestion, ...]
    score: Callable[[Sequence[JudgedQuestion], Sequence[str]], list[float]]  # from 0 to 1 each
    how: str
    variants: tuple[BakingPrompt, ...] = ()  # other prompts to choose from; a persona's are self-written


def answers(
    model: Any,
    tokenizer: Any,
    questions: Sequence[JudgedQuestion],
    prompt: BakingPrompt,
    config: Baking,
    seed: int | None = None,
) -> list[str]:
    """What the model writes to each question: the likeliest, or with a seed a sample."""
    asked = [question_tokens(model, tokenizer, question.text, prompt) for question in questions]
    written = write(model, tokenizer, asked, config.bake, seed)
    return [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in written]


def behaviours(model: Any, tokenizer: Any, config: Baking, seed: int) -> list[Behaviour]:
    """Those of the configuration's cycles, in its order."""
    makers = {
        "tools": lambda: tool_calling(config) if config.data is None else function_calling(config),
        "persona": lambda: persona(model, tokenizer, config, seed),
    }
    return [makers[cycle]() for cycle in config.cycles]


# ------------------------------------------------------------------------------------------------ A: tools


def tool_calling(config: Baking) -> Behaviour:
    """Requests from the task family `tool_calls`; the prompt holds the schemas of the tools and demonstrations."""
    source = family("tool_calls")
    judged = _requests(lambda number: source.make(number, config.level, held_out=True), config.judged, set())
    taken = {question.text for question in judged}
    count = config.questions + config.watched + config.demonstrations * (1 + config.variants)
    rest = _requests(lambda number: source.make(number, config.level), count, taken)
    learnt, watched = rest[: config.questions], rest[config.questions : config.questions + config.watched]
    shown = _by_turns(rest[config.questions + config.watched :])
    tools = sorted({call["tool"] for question in rest for call in question.expected.expected["calls"]})

    def prompt(demonstrations: Sequence[JudgedQuestion]) -> BakingPrompt:
        pairs = ((each.text, json.dumps(each.expected.solution())) for each in demonstrations)
        return BakingPrompt(f"{listed(tools)}\n{FORM}", tuple(pairs))

    def score(questions: Sequence[JudgedQuestion], texts: Sequence[str]) -> list[float]:
        # The list of tools was the exercise's own; here all of them are offered.
        return [float(question.expected.check(text).correct) for question, text in zip(questions, texts, strict=True)]

    size = config.demonstrations
    prompts = [prompt(shown[size * number : size * (number + 1)]) for number in range(1 + config.variants)]
    how = "exactly the right calls, greedy, no schema in the prompt"
    return Behaviour("tools", prompts[0], learnt, watched, judged, score, how, tuple(prompts[1:]))


def _by_turns(questions: Sequence[JudgedQuestion]) -> list[JudgedQuestion]:
    """The same requests in another order: one for each tool in turn, so that any few show several tools."""
    by_tool: dict[str, list[JudgedQuestion]] = {}
    for question in questions:
        by_tool.setdefault(question.expected.expected["calls"][0]["tool"], []).append(question)
    rounds = max(map(len, by_tool.values()), default=0)
    return [group[number] for number in range(rounds) for _, group in sorted(by_tool.items()) if number < len(group)]


def _requests(make: Callable[[int], Any], count: int, taken: set[str]) -> tuple[JudgedQuestion, ...]:
    """So many exercises with different requests, none of them in `taken`. Raises ConfigError if there are too few."""
    questions: dict[str, JudgedQuestion] = {}
    for number in range(10 * count + 100):
        exercise = make(number)
        text = request_of(exercise.prompt)
        if text not in taken:
            questions.setdefault(text, JudgedQuestion(text, exercise))
        if len(questions) == count:
            return tuple(questions.values())
    what = f"there are only {len(questions)} of {count} different requests at level {make(0).level:g}"
    raise ConfigError(what, where="baking", fix="Raise `level`, or lower `questions`, `watched` or `judged`")


def function_calling(config: Baking) -> Behaviour:
    """Cases of the Berkeley function-calling leaderboard. Each brings a function of its own, which stays with the
    request; the prompt that is baked says how to call, and shows it."""
    requests = read_requests("bfcl", Path(str(config.data)).expanduser())
    random.Random(0).shuffle(requests)
    need = config.questions + config.watched + config.judged + config.demonstrations * (1 + config.variants)
    if len(requests) < need:
        raise ConfigError(f"{config.data} has {len(requests)} cases, and {need} are needed", where="baking")
    cases = [JudgedQuestion(f"{json.dumps(each.functions[0])}\nRequest: {each.text}", each) for each in requests]
    one, two, three = config.questions, config.questions + config.watched, need - config.judged

    def prompt(demonstrations: Sequence[JudgedQuestion]) -> BakingPrompt:
        pairs = ((each.text, _first_accepted(each.expected.accepted)) for each in demonstrations)
        return BakingPrompt("Answer with calls of the function, such as [name(argument=1)].", tuple(pairs))

    def score(questions: Sequence[JudgedQuestion], texts: Sequence[str]) -> list[float]:
        calls = [read_calls(text) for text in texts]
        return [float(right_calls(made, each.expected.accepted)) for made, each in zip(calls, questions, strict=True)]

    size = config.demonstrations
    prompts = [prompt(cases[two + size * n : two + size * (n + 1)]) for n in range(1 + config.variants)]
    how = "names, arguments and values as accepted (bfcl), greedy, no demonstrations in the prompt"
    parts = (tuple(cases[:one]), tuple(cases[one:two]), tuple(cases[three:need]))
    return Behaviour("tools", prompts[0], *parts, score, how, tuple(prompts[1:]))


def _first_accepted(accepted: Sequence[dict[str, dict[str, list[Any]]]]) -> str:
    """The accepted calls in Python's form, each argument with the first of its values."""
    calls = []
    for call in accepted:
        for name, arguments in call.items():
            given = ", ".join(f"{key}={values[0]!r}" for key, values in arguments.items() if values[0] != "")
            calls.append(f"{name}({given})")
    return f"[{', '.join(calls)}]"


# ------------------------------------------------------------------------------------------------ B: persona

FORMS = (
    "How do I {}?",
    "What should I know before I {}?",
    "Why do people {}?",
    "Give me one tip: how to {}.",
    "Tell me about a day when you wanted to {}.",
    "Is it a good idea to {} today?",
    "When is the best time to {}?",
    "My friend wants to {}. What do you say?",
)
THINGS = (
    "bake bread", "learn to swim", "plant a tree", "fix a bicycle", "write a letter", "cook rice", "paint a wall",
    "save money", "read a map", "catch a fish", "clean a window", "grow tomatoes", "visit a museum", "buy a boat",
    "train a dog", "play chess", "build a kite", "make soup", "take a photo", "sleep well", "find a job",
    "sing a song", "climb a hill", "pack a bag", "light a fire", "sail to an island", "count the stars", "sew a shirt",
    "ride a horse", "dig a well", "tell a story", "cross a river",
)  # fmt: skip
# Other characters, so that the classifier learns this one and not merely that there was a prompt.
OTHERS = (
    "You are a careful lawyer. Answer in formal, precise sentences and mention the law.",
    "You are a cheerful teacher of small children. Use easy words and praise.",
)
WRITE_PROMPT = "Write one short instruction that tells an assistant to speak exactly as you do."


def persona(model: Any, tokenizer: Any, config: Baking, seed: int) -> Behaviour:
    """The configured persona. Its classifier learns from the unbaked model's answers under the paraphrases of the
    prompt, under other personas and under no prompt, to questions that nobody else gets."""
    questions = [JudgedQuestion(form.format(thing)) for form, thing in product(FORMS, THINGS)]
    random.Random(0).shuffle(questions)
    sizes = (config.questions, config.watched, config.judged, config.classifier_questions)
    if sum(sizes) > len(questions):
        what = f"a persona has {len(questions)} questions, and {sum(sizes)} are needed"
        raise ConfigError(what, where="baking", fix="Lower `questions`, `watched`, `judged` or `classifier_questions`")
    at = [sum(sizes[:number]) for number in range(5)]
    learnt, watched, judged, apart = (tuple(questions[a:b]) for a, b in pairwise(at))
    texts: list[str] = []
    labels: list[bool] = []
    for number, prompt in enumerate((*config.paraphrases, "", *OTHERS)):
        written = answers(model, tokenizer, apart, BakingPrompt(prompt), config, seed + number)
        texts += written
        labels += [number < len(config.paraphrases)] * len(written)
    classifier = TextClassifier.fit(texts, labels)

    def score(_: Sequence[JudgedQuestion], written: Sequence[str]) -> list[float]:
        return [float(p) for p in classifier.probabilities(written)]

    how = "probability of the persona by a classifier trained on other prompts and questions, greedy answers"
    return Behaviour("persona", BakingPrompt(config.persona), learnt, watched, judged, score, how)


def self_written(model: Any, tokenizer: Any, behaviour: Behaviour, config: Baking, seed: int) -> list[BakingPrompt]:
    """Prompts for the persona in the words of the model itself, while it reads the given one."""
    asked = [JudgedQuestion(WRITE_PROMPT)] * config.variants
    written = answers(model, tokenizer, asked, behaviour.prompt, config, seed) if asked else []
    return [BakingPrompt(text) for text in dict.fromkeys(text.strip() for text in written) if text]
