"""A model by name: a URL, a folder, a GGUF file, a recording, or SmolLM2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_forge.errors import UsageError
from agent_forge.inference.chat import ChatClient
from agent_forge.urls import without_credentials

FORMS = "http://host:port/v1#name, a checkpoint folder, a .gguf file, recorded:file.jsonl or smollm2"


def model(name: str, **options: Any) -> ChatClient:
    """The client for a model name; `options` are passed to it.

    >>> model("http://localhost:8000/v1#llama-3", timeout_s=30)
    OpenAICompatible('http://localhost:8000/v1', 'llama-3')

    Raises UsageError for a name in none of these forms, and whatever the client raises.
    """
    if name.startswith(("http://", "https://")):
        from agent_forge.inference.openai_compatible import OpenAICompatible

        url, _, served = name.partition("#")
        if not served:
            shown = without_credentials(url)
            raise UsageError(f"{shown!r} does not name a model", fix=f"Write {shown}#name")
        return OpenAICompatible(url, served, **options)
    if name.startswith("recorded:"):
        from agent_forge.inference.recorded import Recorded

        return Recorded(name.removeprefix("recorded:"), **options)
    from agent_forge.inference.local_model import LocalModel

    if name.lower() == "smollm2":
        return LocalModel.smollm2(**options)
    path = Path(name).expanduser()
    if path.is_dir():
        return LocalModel(path, **options)
    if path.suffix == ".gguf" and path.is_file():
        from agent_forge.inference.llama_gguf import load_gguf

        return LocalModel(lambda: load_gguf(path), **{"name": path.stem, **options})
    raise UsageError(f"there is no model {name!r}", fix=f"Name one of: {FORMS}")
