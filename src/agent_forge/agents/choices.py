"""Tools, models and planners that a caller names. None means the built-in ones, or those in the settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from agent_forge.agents.planner import (
    DefaultPlanner,
    ForgedPlanner,
    LocalPlanner,
    ModelPlanner,
    Planner,
    ReactPlanner,
    RulePlanner,
    RulesFirst,
)
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
Strategy = Literal["auto", "graph", "react"]
STRATEGIES: tuple[Strategy, ...] = ("auto", "graph", "react")


def choose_tools(tools: AnyTools) -> Toolbox:
    """A toolbox from tools, functions, or the name of a module or file; by default a search in the bundled passages and
    a calculator."""
    if tools is None:
        return Toolbox([retrieval(bundled_corpus()), calculator])
    if isinstance(tools, Toolbox):
        return tools
    if isinstance(tools, (str, os.PathLike)):
        return Toolbox.from_module(tools)
    if not isinstance(tools, Iterable):
        raise UsageError(f"tools must be a list, got {tools!r}", fix="Write tools=[...]")
    return Toolbox(tools)


def choose_model(model: AnyModel) -> ModelClient | None:
    """The model for every role: a client, or a name for `agent_forge.inference.model`; by default $AGENT_FORGE_MODEL,
    if set."""
    model = model if model is not None else os.environ.get(variable("model"))
    return client_of(model) if isinstance(model, str) else model


def choose_planner(
    planner: AnyPlanner, model: AnyModel = None, strategy: Strategy = "auto", *, bundled: bool = False
) -> Planner:
    """The planner of that name, or a trained one by its folder; by default $AGENT_FORGE_PLANNER, else the model's if
    there is one, else the forged planner, which comes with the package.

    With the `bundled` tools the rules plan, for they know those; with a model, where they read the whole question.
    `strategy`: "react" leaves the whole request to an agent, one call per turn; "graph" always plans; "auto" plans
    unless a model behind a URL is given a request of one or two steps and no tool waits for approval: an agent does it.
    """
    if strategy not in STRATEGIES:
        raise UsageError(f"there is no strategy {strategy!r}", fix=f"Choose one of {', '.join(STRATEGIES)}")
    if strategy == "react":
        if planner is not None:
            raise UsageError(
                "the strategy 'react' has no planner", fix="Leave the planner out, or use strategy 'graph'"
            )
        if choose_model(model) is None:
            raise UsageError("the strategy 'react' needs a model", fix="Name one: --model http://host:port/v1#name")
        return ReactPlanner()
    name = planner or os.environ.get(variable("planner"))
    if name is not None and not isinstance(name, str):
        return name
    if name is not None and name not in PLANNERS and (Path(name) / "config.json").is_file():
        return ForgedPlanner(Path(name))
    if name not in {None, *PLANNERS}:
        raise UsageError(f"there is no planner {name!r}", fix=f"Choose one of {', '.join(PLANNERS)}, or a folder")
    if name == "rules":
        return RulePlanner()
    if name == "forged":
        return ForgedPlanner()
    client = choose_model(model)
    if name is None and client is None:
        return DefaultPlanner() if is_shipped() and not bundled else RulePlanner()
    if name == "local" and not isinstance(client, LocalModel):
        return LocalPlanner.smollm2()
    if client is None:
        raise UsageError("the planner 'model' needs a model", fix="Name one: --model http://host:port/v1#name")
    local = isinstance(client, LocalModel) and name != "model"
    asked = ModelPlanner(client, always_graph=strategy == "graph")
    chosen: Planner = LocalPlanner(client) if local else asked  # type: ignore[arg-type]
    return RulesFirst(chosen) if bundled and name is None else chosen
