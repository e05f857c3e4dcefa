"""The files that a merged model takes over besides weights: tokenizer, chat template, generation settings."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

from agent_forge.errors import ConfigError
from agent_forge.forge.merging.prepared import PreparedRecipe
from agent_forge.forge.merging.vocabulary import write_tokenizer
from agent_forge.inference.loading import read_json

COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
)


def copy_companions(prepared: PreparedRecipe, folder: Path) -> None:
    """Copies the donor's files into `folder`, then overwrites them with the mapped vocabulary and chat template."""
    if prepared.folder is not None:
        for name in COMPANIONS:
            if (prepared.folder / name).is_file():
                shutil.copyfile(prepared.folder / name, folder / name)
    if prepared.token_map is not None:
        write_tokenizer(prepared.token_map, folder)
    template = chat_template(prepared)
    if template is not None:
        settings = folder / "tokenizer_config.json"
        document = read_json(settings) if settings.is_file() else {}
        document["chat_template"] = template
        settings.write_text(json.dumps(document, ensure_ascii=False, indent=2), encoding="utf-8")
        (folder / "chat_template.jinja").unlink(missing_ok=True)


def chat_template(prepared: PreparedRecipe) -> str | None:
    """The template that the recipe names; `auto` is the one that most of its models have."""
    template = prepared.recipe.chat_template
    if template is None or "{" in template:
        return template
    if template != "auto":
        raise ConfigError(f"chat_template {template!r} is not a Jinja template", fix="Give its text, or `auto`")
    templates = [text for model in prepared.models.values() if (text := _template_of(model.folder)) is not None]
    return Counter(templates).most_common(1)[0][0] if templates else None


def _template_of(folder: Path | None) -> str | None:
    if folder is None:
        return None
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8").strip()
    if (folder / "tokenizer_config.json").is_file():
        text = read_json(folder / "tokenizer_config.json").get("chat_template")
        return text.strip() if isinstance(text, str) else None
    return None
