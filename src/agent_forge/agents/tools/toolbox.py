"""Tools by name: for models that choose among them, and for plans that name them."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from agent_forge.agents.tools.schemas import plain_schema
from agent_forge.agents.tools.tool import Tool, described, did_you_mean, tool
from agent_forge.errors import ToolError

if TYPE_CHECKING:
    from agent_forge.plans import Task

Handler = Callable[["Task", dict[str, Any]], Awaitable[Any]]


class UnknownTool(ToolError):
    """A name that is not in the toolbox."""


class Toolbox:
    """A set of tools with distinct names.

    >>> @tool
    ... def shout(text: str) -> str:
    ...     "Says it louder."
    ...     return text.upper()
    >>> box = Toolbox([shout])
    >>> list(box.names), box.get("shout").description
    (['shout'], 'Says it louder.')
    """

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for each in tools:
            self.register(each)

    def register(self, item: Tool | Callable[..., Any]) -> Tool:
        """Adds a tool, or a function that becomes one. Raises ToolError if another tool has the same name."""
        added = item if isinstance(item, Tool) else tool(item)
        if self._tools.setdefault(added.name, added) is not added:
            raise ToolError(f"there are two tools named {added.name!r}", fix="Rename one: @tool(name=...)")
        return added

    def get(self, name: str) -> Tool:
        """The tool of that name. Raises UnknownTool, which suggests the nearest name."""
        if name not in self._tools:
            raise UnknownTool(f"there is no tool {name!r}{did_you_mean(name, self._tools)}")
        return self._tools[name]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __repr__(self) -> str:
        return f"Toolbox({', '.join(self._tools)})"

    def specs(self) -> list[dict[str, Any]]:
        """All tools in the format of the OpenAI API's `tools`."""
        return [each.spec for each in self]

    async def call(self, name: str, args: Mapping[str, Any]) -> Any:
        """Calls a tool by name."""
        return await self.get(name).call(args)

    @classmethod
    def from_module(cls, source: str | os.PathLike[str]) -> Toolbox:
        """The tools of an importable module (`package.module`) or of a Python file (`path/to/tools.py`), or those that
        a JSON file describes as the OpenAI API does: these can be planned with, not called.

        Raises ToolError if it cannot be imported, has no tools, or has two of the same name.
        """
        if os.fspath(source).endswith(".json"):
            return cls(_described_in(Path(source)))
        module = load_python(os.fspath(source))
        tools = [value for name, value in vars(module).items() if isinstance(value, Tool) and not name.startswith("_")]
        if not tools:
            raise ToolError("it contains no tools", where=str(source), fix="Put @tool above the functions")
        try:
            return cls(tools)
        except ToolError as error:
            raise ToolError(error.what, where=str(source), fix=error.fix) from error


def _described_in(path: Path) -> list[Tool]:
    """The tools in a JSON file: a list of `{"name", "description", "parameters"}`, bare or as `{"function": …}`."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        entries = document["tools"] if isinstance(document, dict) else document
        functions = [entry.get("function", entry) for entry in entries]
        tools = [
            described(each["name"], each.get("description") or "", plain_schema(each.get("parameters") or {}))
            for each in functions
        ]
    except OSError as error:
        raise ToolError(f"it cannot be read: {error.strerror}", where=str(path)) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        fix = 'Write [{"name": …, "description": …, "parameters": {…}}, …]'
        raise ToolError("it is not a list of function schemas", where=str(path), fix=fix) from error
    if not tools:
        raise ToolError("it contains no tools", where=str(path))
    return tools


def load_python(source: str) -> ModuleType:
    """A file, or a module that can be imported, of a user's own. Raises ToolError with what went wrong in it."""
    is_file = source.endswith(".py") or os.sep in source
    try:
        return _load_file(Path(source)) if is_file else _load_module(source)
    except ToolError:
        raise
    except (Exception, SystemExit) as error:
        raise ToolError(f"importing it failed with {type(error).__name__}: {error}", where=source) from error


def _load_module(name: str) -> ModuleType:
    folder = str(Path.cwd())
    sys.path.append(folder)  # console scripts, unlike `python -m`, do not have the working directory on their path
    try:
        importlib.invalidate_caches()
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise  # the module exists; one of its imports does not
        raise ToolError("there is no such module", where=name, fix="Name an importable module or a .py file") from error
    finally:
        sys.path.remove(folder)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ToolError("there is no such file", where=str(path), fix="Name an importable module or a .py file")
    name = f"agent_forge_tools_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ToolError("it is not a Python file", where=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # type hints are resolved through sys.modules
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def as_handler(toolbox: Toolbox) -> Handler:
    """A handler for the executor: the `action` of a task names the tool, its `args` are the arguments."""

    async def handler(task: Task, inputs: dict[str, Any]) -> Any:
        return await _tool_for(task, toolbox).call(task.args)

    return handler


def _tool_for(task: Task, toolbox: Toolbox) -> Tool:
    if not task.action:
        raise ToolError("it names no tool", where=f"task {task.id!r}", fix=f"Use one of {', '.join(toolbox.names)}")
    try:
        return toolbox.get(task.action)
    except UnknownTool as error:
        raise UnknownTool(error.what, where=f"task {task.id!r}") from error
