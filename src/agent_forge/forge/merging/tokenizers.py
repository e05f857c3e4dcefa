"""What a merged model takes over from its donor besides weights: tokenizer, chat template, generation settings."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

from agent_forge.errors import ConfigError
from agent_forge.forge.merging.sources import read_json
from agent_forge.forge.merging.staging import Stage
from agent_forge.forge.merging.vocabulary import write_tokenizer

COMPANIONS: tuple[str, ...] = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "vocab.json",
)
COMPANIONS += ("merges.txt", "added_tokens.json", "chat_template.jinja", "generation_config.json")


def copy_companions(stage: Stage, folder: Path) -> None:
    """Copies the donor's files into `folder`, then writes the mapped vocabulary and the chat template over them."""
    if stage.folder is not None:
        for name in COMPANIONS:
            if (stage.folder / name).is_file():
                shutil.copyfile(stage.folder / name, folder / name)
    if stage.token_map is not None:
        write_tokenizer(stage.token_map, folder)
    template = chat_template(stage)
    if template is not None:
        settings = folder / "tokenizer_config.json"
        document = read_json(settings) if settings.is_file() else {}
        document["chat_template"] = template
        settings.write_text(json.dumps(document, ensure_ascii=False, indent=2), encoding="utf-8")
        (folder / "chat_template.jinja").unlink(missing_ok=True)


def chat_template(stage: Stage) -> str | None:
    """The template that the recipe asks for: `auto` is the one that most models have."""
    asked = stage.recipe.chat_template
    if asked is None:
        return None
    if asked != "auto":
        if "{" not in asked:
            raise ConfigError(f"chat_template {asked!r} is not a Jinja template", fix="give its text, or `auto`")
        return asked
    found = [text for model in stage.models.values() if (text := _template_of(model.folder)) is not None]
    return Counter(found).most_common(1)[0][0] if found else None


def _template_of(folder: Path | None) -> str | None:
    if folder is None:
        return None
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8").strip()
    if (folder / "tokenizer_config.json").is_file():
        text = read_json(folder / "tokenizer_config.json").get("chat_template")
        return text.strip() if isinstance(text, str) else None
    return None
