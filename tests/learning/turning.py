"""A toy agent: its task is to answer with the word that the prompt ends with, as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_forge.agents.profiles import AgentProfile
from agent_forge.tasks import Draft, Verdict, task_family

WORDS = ("left", "right", "up", "down")
SCHEMA = {
    "type": "object",
    "properties": {"go": {"enum": list(WORDS)}},
    "required": ["go"],
    "additionalProperties": False,
}


def check(answer: Any, expected: Any) -> Verdict:
    return Verdict.of(answer["go"] == expected["go"], f"{answer['go']} is not {expected['go']}")


@task_family("turning", check=check, solve=lambda expected: {"go": expected["go"]}, schema=SCHEMA)
def turning(rng: Any, level: float) -> Draft:
    word = rng.choice(WORDS)
    return Draft(f"{rng.randrange(100_000)} {word}", {"go": word})


PROFILE = AgentProfile(name="turner", instructions="Go.", family="turning", tools=())
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}<assistant>"


def tiny_base(folder: Path, hidden: int = 32, layers: int = 2) -> Path:
    """A random model with a chat template, as a folder."""
    from test_sheets import byte_level, tiny_llama
    from transformers import PreTrainedTokenizerFast

    texts = [
        f'{n * 7919 % 100_000} {word}<user><assistant><system>{{"go": "{word}"}}' for n in range(40) for word in WORDS
    ]
    words = byte_level(
        [*texts, "Go. Answer with JSON alone, of this JSON Schema: " + str(SCHEMA).replace("'", '"')] * 3, 400
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", chat_template=TEMPLATE)
    model = tiny_llama(len(tokenizer), hidden, layers)
    model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
