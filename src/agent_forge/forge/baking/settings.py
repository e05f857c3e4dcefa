"""The settings of baking, checked without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agent_forge.config import option
from agent_forge.errors import ConfigError
from agent_forge.forge.corpus import Source
from agent_forge.forge.training.settings import LoraSettings


@dataclass(frozen=True)
class BakeSettings:
    """How one prompt is baked."""

    samples: int = option(4, help="Answers of the prompted teacher per question", at_least=1)
    answer_tokens: int = option(48, help="Longest answer, in tokens", at_least=1)
    temperature: float = option(1.0, help="Temperature of the teacher's answers", above=0)
    steps: int = option(120, help="Training steps per bake", at_least=1)
    batch_rows: int = option(16, help="Answers per training step", at_least=1)
    lr: float = option(1e-3, help="Learning rate of the adapter (AdamW)", above=0)
    lora: LoraSettings = option(LoraSettings())
    stop: float = option(1.0, help="Half-baking by an early stop: the share of the steps to take", above=0, at_most=1)
    strength: float = option(
        1.0, help="Half-baking by interpolation: how far the weights go from before to baked", above=0, at_most=1
    )
    pursuit: int = option(1, help="Rounds: bake, prompt the baked model again, bake (prompt pursuit)", at_least=1)
    replay: float = option(
        0.25,
        help="Questions of other cycles to answer as before, as a share of `questions`",
        at_least=0,
        at_most=1,
    )
    write_rows: int = option(64, help="Answers to write at once", at_least=1)


PERSONA = (
    "You are an old pirate captain. Talk like a pirate in every answer: say Arrr, Ahoy and matey, and speak of the sea."
)
PARAPHRASES = (
    "Answer everything the way a pirate on his ship would, with Arrr and Ahoy.",
    "Pretend that you sail the seven seas as a buccaneer, and speak like one, matey.",
)


@dataclass(frozen=True)
class Baking:
    """What is baked, how it is chosen, and what it must reach."""

    cycles: tuple[Literal["tools", "persona"], ...] = option(
        ("tools", "persona"), help="Cycles to alternate between, the first one first"
    )
    data: str | None = option(
        None, help="Folder of bfcl cases for the tool cycle (default: requests from the task family tool_calls)"
    )
    demonstrations: int = option(6, help="Solved requests in the tool prompt", at_least=0)
    level: float = option(0.2, help="Difficulty of the requests, 0 to 1", at_least=0, at_most=1)
    persona: str = option(PERSONA, help="BakingPrompt of the persona")
    paraphrases: tuple[str, ...] = option(
        PARAPHRASES, help="Other prompts for the same persona, which only the classifier learns from"
    )
    questions: int = option(64, help="Questions to bake each prompt on", at_least=2)
    watched: int = option(24, help="Questions to choose prompts on, and to see a plateau", at_least=2)
    judged: int = option(64, help="Held-out questions per behaviour", at_least=2)
    classifier_questions: int = option(48, help="Questions that the persona's classifier learns from", at_least=2)
    variants: int = option(2, help="Prompts tried beside the given one: other demonstrations, self-written", at_least=0)
    turns: int = option(4, help="Most turns of both cycles together", at_least=1)
    plateau: float = option(
        0.02, help="A cycle has reached its plateau when its prompt adds less to the score", at_least=0
    )
    seeds: int = option(3, help="Repetitions, each with a control; fewer than 3 cannot pass the gate", at_least=1)
    bake: BakeSettings = option(BakeSettings())
    text: dict[str, Source] = option({"stories": Source("stories")}, help="Unrelated text, for what is forgotten")
    documents: int = option(64, help="Held-out documents of that text to read", at_least=1)
    least_kept: float = option(0.8, help="Share of the prompted gain that must remain without the prompt", at_least=0)
    most_forgotten: float = option(0.034, help="Largest increase of perplexity on unrelated text", at_least=0)

    def __post_init__(self) -> None:
        if not self.cycles or len(set(self.cycles)) < len(self.cycles):
            raise ConfigError("name each cycle once: tools, persona", where="cycles")
        if "persona" in self.cycles and not (self.persona.strip() and self.paraphrases):
            raise ConfigError("a persona needs its prompt and at least one paraphrase", where="persona")
        if self.persona in self.paraphrases:
            raise ConfigError("the classifier must learn from other prompts than the one baked", where="paraphrases")
