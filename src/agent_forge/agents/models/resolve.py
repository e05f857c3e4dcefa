"""A model by name: a URL, a folder, a recording, or SmolLM2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_forge.agents.models.client import ChatClient
from agent_forge.errors import UsageError

FORMS = "http://host:port/v1#name, a folder with a checkpoint, a .gguf file, recorded:file.jsonl or smollm2"


def model(name: str, **options: Any) -> ChatClient:
    """The client for a model; `options` go to it.

    >>> model("http://localhost:8000/v1#llama-3", timeout_s=30)
    OpenAICompatible('http://localhost:8000/v1', 'llama-3')

    Raises UsageError for a name that is none of the forms, and what the client raises.
    """
    if name.startswith(("http://", "https://")):
        return _by_url(name, options)
    if name.startswith("recorded:"):
        from agent_forge.agents.models.recorded import Recorded

        return Recorded(name.removeprefix("recorded:"), **options)
    from agent_forge.agents.models.local_model import LocalModel

    if name.lower() == "smollm2":
        return LocalModel.smollm2(**options)
    path = Path(name).expanduser()
    if path.is_dir():
        return LocalModel(path, **options)
    if path.suffix == ".gguf" and path.is_file():
        from agent_forge.agents.models.llama_gguf import load_gguf

        return LocalModel(lambda: load_gguf(path), **{"name": path.stem, **options})
    raise UsageError(f"there is no model {name!r}", fix=f"name a model as {FORMS}")


def _by_url(name: str, options: dict[str, Any]) -> ChatClient:
    from agent_forge.agents.models.openai_compatible import OpenAICompatible

    url, hash_mark, served = name.partition("#")
    if not hash_mark or not served:
        raise UsageError(f"{name!r} does not say which model", fix=f"write {url}#name")
    return OpenAICompatible(url, served, **options)
