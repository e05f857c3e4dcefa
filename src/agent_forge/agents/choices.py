"""Tools, models and planners that a caller names. None means the built-in ones, or those in the settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from agent_forge.agents.planner import ForgedPlanner, LocalPlanner, ModelPlanner, Planner, RulePlanner, RulesFirst
from agent_forge.agents.planner.forged import is_shipped
from agent_forge.agents.tools import Tool, Toolbox, bundled_corpus, retrieval
from agent_forge.agents.tools.calculator import calculator
from agent_forge.errors import UsageError
from agent_forge.inference import ModelClient
from agent_forge.inference import model as client_of
from agent_forge.inference.local_model import LocalModel
from agent_forge.settings import variable

AnyTools = Toolbox | Iterable[Tool | Callable[..., Any]] | str | os.PathLike[str] | None
AnyModel = ModelClient | str | None
AnyPlanner = Planner | str | None
PLANNERS = ("rules", "forged", "model", "local")


def choose_tools(tools: AnyTools) -> Toolbox:
    """A toolbox from tools, functions, or the name of a module or file; by default a search in the bundled passages and
    a calculator."""
    if tools is None:
        return Toolbox([retrieval(bundled_corpus()), calculator])
    if isinstance(tools, Toolbox):
        return tools
    if isinstance(tools, (str, os.PathLike)):
        return Toolbox.from_module(tools)
    return Toolbox(tools)


def choose_model(model: AnyModel) -> ModelClient | None:
    """The model for tasks: a client, or a name for `agent_forge.inference.model`; by default $AGENT_FORGE_MODEL, if
    set. A local model that is only named just plans: small models cannot be trusted with facts."""
    client = _client(model)
    return None if isinstance(client, LocalModel) and not isinstance(model, LocalModel) else client


def choose_planner(planner: AnyPlanner, model: AnyModel = None, *, bundled: bool = False) -> Planner:
    """The planner of that name; by default $AGENT_FORGE_PLANNER, else the model's if there is one, else the forged
    planner, which comes with the package.

    With the `bundled` tools the rules plan, for they know those; with a model, where they read the whole question.
    """
    name = planner or os.environ.get(variable("planner"))
    if name is not None and not isinstance(name, str):
        return name
    if name not in {None, *PLANNERS}:
        raise UsageError(f"there is no planner {name!r}", fix=f"Choose one of {', '.join(PLANNERS)}")
    client = _client(model)
    if name == "forged" or (name is None and client is None and not bundled and is_shipped()):
        return ForgedPlanner()
    if name == "rules" or (name is None and client is None):
        return RulePlanner()
    if name == "local" and not isinstance(client, LocalModel):
        return LocalPlanner.smollm2()
    if client is None:
        raise UsageError("the planner 'model' needs a model", fix="Name one: --model http://host:port/v1#name")
    local = isinstance(client, LocalModel) and name != "model"
    chosen: Planner = LocalPlanner(client) if local else ModelPlanner(client)  # type: ignore[arg-type]
    return RulesFirst(chosen) if bundled and name is None else chosen


def _client(model: AnyModel) -> ModelClient | None:
    model = model if model is not None else os.environ.get(variable("model"))
    return client_of(model) if isinstance(model, str) else model
