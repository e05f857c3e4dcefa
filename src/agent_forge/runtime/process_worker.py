"""A worker process: reads calls from its standard input, answers on its standard output, as length-prefixed JSON."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable
from inspect import isawaitable
from types import ModuleType
from typing import IO, Any

from agent_forge.plans import Task
from agent_forge.runtime.result import message_of

MAIN = "__agent_forge_main__"  # the caller's script, imported under this name so that its main block does not run


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Carries out calls until the input ends."""
    while head := requests.read(8):
        body = carry_out(requests.read(int.from_bytes(head, "big")))
        answers.write(len(body).to_bytes(8, "big") + body)
        answers.flush()


def carry_out(body: bytes) -> bytes:
    """The answer to one call: its result, or the error."""
    request = json.loads(body)
    try:
        function = find(request["function"])
        result = function(Task(**request["task"]), request["inputs"])
        if isawaitable(result):
            getattr(result, "close", lambda: None)()
            raise TypeError("the handler is asynchronous; worker processes take plain functions")
        return json.dumps({"result": result}).encode()
    except (Exception, SystemExit) as error:
        return json.dumps({"error": [type(error).__name__, message_of(error), traceback.format_exc()]}).encode()


def find(reference: dict[str, str]) -> Callable[[Task, dict[str, Any]], Any]:
    """The function that `workers.reference` named."""
    module: Any = _main(reference["file"]) if "file" in reference else importlib.import_module(reference["module"])
    for part in reference["name"].split("."):
        module = getattr(module, part)
    function: Callable[[Task, dict[str, Any]], Any] = module
    return function


def _main(file: str) -> ModuleType:
    if MAIN not in sys.modules:
        spec = importlib.util.spec_from_file_location(MAIN, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{file} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[MAIN] = module
        spec.loader.exec_module(module)
    return sys.modules[MAIN]


def main() -> None:
    """What a handler prints goes to the standard error; the standard output belongs to the answers."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    serve(requests, answers)


if __name__ == "__main__":
    main()
