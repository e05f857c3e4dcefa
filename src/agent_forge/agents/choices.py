"""What a caller may name in words: tools, a model, a planner. None means what is embedded or what the settings say."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from agent_forge.agents.models import ModelClient, OpenAICompatible
from agent_forge.agents.planner import LocalPlanner, ModelPlanner, Planner, RulePlanner
from agent_forge.agents.tools import Tool, Toolbox, bundled_corpus, retrieval
from agent_forge.agents.tools.calculator import calculator
from agent_forge.errors import UsageError
from agent_forge.settings import variable

AnyTools = Toolbox | Iterable[Tool | Callable[..., Any]] | str | os.PathLike[str] | None
AnyModel = ModelClient | str | None
AnyPlanner = Planner | str | None
PLANNERS = ("rules", "local", "model")
SMOLLM2 = "smollm2"


def choose_tools(tools: AnyTools) -> Toolbox:
    """A toolbox from tools, functions, the name of a module or of a file; None: search in the bundled passages, and a
    calculator."""
    if tools is None:
        return Toolbox([retrieval(bundled_corpus()), calculator])
    if isinstance(tools, Toolbox):
        return tools
    if isinstance(tools, (str, os.PathLike)):
        return Toolbox.from_module(tools)
    return Toolbox(tools)


def choose_model(model: AnyModel) -> ModelClient | None:
    """A client for a URL (`http://host:port/v1#name`); a checkpoint in process plans but does not answer, so it gives
    no client. None: $AGENT_FORGE_MODEL, else no model."""
    named = model if model is not None else os.environ.get(variable("model"))
    if named is None or not isinstance(named, str):
        return named
    if named.startswith(("http://", "https://")):
        url, _, name = named.partition("#")
        return OpenAICompatible(url, name)
    _checkpoint(named)
    return None


def choose_planner(planner: AnyPlanner, model: AnyModel = None) -> Planner:
    """The planner of that name; None: $AGENT_FORGE_PLANNER, else a model's where there is a model, else the rules."""
    name = planner or os.environ.get(variable("planner"))
    if name is not None and not isinstance(name, str):
        return name
    place = model if model is not None else os.environ.get(variable("model"))
    if name is None:
        name = "rules" if place is None else "local" if _is_checkpoint(place) else "model"
    if name not in PLANNERS:
        raise UsageError(f"there is no planner {name!r}", fix=f"one of {', '.join(PLANNERS)}")
    if name == "rules":
        return RulePlanner()
    return _local(place) if name == "local" else _by_model(place)


def _local(place: AnyModel) -> Planner:
    if not isinstance(place, str) or place == SMOLLM2 or place.startswith(("http://", "https://")):
        return LocalPlanner.smollm2()
    return LocalPlanner.load(_checkpoint(place))


def _by_model(place: AnyModel) -> Planner:
    client = choose_model(place)
    if client is None:
        raise UsageError("the planner 'model' needs a model", fix="name one: --model http://host:port/v1#name")
    return ModelPlanner(client)


def _is_checkpoint(place: AnyModel) -> bool:
    return isinstance(place, str) and not place.startswith(("http://", "https://"))


def _checkpoint(place: str) -> str:
    if place != SMOLLM2 and not Path(place).is_dir():
        raise UsageError(
            f"{place!r} is no model", fix=f"write http://host:port/v1#name, the folder of a checkpoint, or {SMOLLM2}"
        )
    return place
