"""The examples of docs/server.md, against a server that listens."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agent_forge.traces import Span

PAGE = Path(__file__).parents[2] / "docs" / "server.md"
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
CURLS = [
    command
    for block in BLOCKS
    for command in re.split(r"^\$ ", block, flags=re.MULTILINE)
    if command.startswith("curl")
]


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"  # the one that is scored


def here(text: str, server: Any) -> str:
    return text.replace("http://127.0.0.1:8321", server.url).replace('"small"', '"tiny"')


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("command", CURLS, ids=lambda text: re.search(r"/v1/\S+", text)[0])
def test_the_examples_with_curl_work(live: Any, command: str) -> None:
    live.context.traces.add([Span(TRACE, TRACE[:16], "work", start_ns=1, end_ns=2)])
    ran = subprocess.run(["bash", "-c", here(command, live)], capture_output=True, text=True, timeout=60, check=True)
    if '"stream": true' in command:
        assert ran.stdout.endswith("data: [DONE]\n\n")
    else:
        document = json.loads(ran.stdout)
        assert "error" not in document
        assert document.keys() & {"data", "choices", "run", "runs", "scores"}


def test_there_are_examples() -> None:
    assert len(CURLS) >= 5


def test_the_example_with_openais_client_works(live: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openai", reason="the openai client is not installed: the extra `dev` brings it")
    [example] = [block for block in BLOCKS if block.startswith("from openai")]
    exec(compile(here(example, live), str(PAGE), "exec"), {})
    text, _, tokens = capsys.readouterr().out.strip().rpartition(" ")
    assert set(json.loads(text)) == {"name", "age"}
    assert int(tokens) > 10
