"""Policies on a server: one base, an adapter a request, by the policy's name or as BASE:POLICY."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from agents_tiny_model import tiny_adapter, tiny_model

from agent_forge.inference.local_model import LocalModel

PROMPT = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def served(start_server: Callable[..., Any], tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server with the tiny model and a registry with two policies to it, and one to another base."""
    from agent_forge.forge.policies import register_policy

    folder = tmp_path_factory.mktemp("policies")
    other = folder / "other"
    tiny_model(seed=9).save_pretrained(other)
    for agent, seed, base in (("qa", 1, tiny_path), ("ops", 2, tiny_path), ("far", 3, other)):
        register_policy(tiny_adapter(folder / agent, seed), base, agent, home=folder / "home")
    server = start_server(models=(f"tiny={tiny_path}",), home=str(folder / "home"))
    server.context.parts["models"]._served["tiny"].ready.result(timeout=120)
    return server


def ask(server: Any, model: str) -> Any:
    with server.client() as client:
        body = {"model": model, "messages": PROMPT, "max_tokens": 16, "temperature": 0}
        return client.post("/v1/chat/completions", json=body)


def test_policies_share_a_base_and_answer_as_each_alone(served: Any, tiny_path: Path) -> None:
    import asyncio

    registry = served.context.registry
    expected = {}
    for name, folder in {"tiny": tiny_path, **{n: registry.find(n).path for n in ("qa@1", "ops@1")}}.items():
        expected[name] = asyncio.run(LocalModel(folder).complete(PROMPT, max_tokens=16)).text
    assert len(set(expected.values())) == 3
    names = ["tiny", "qa@1", "tiny:ops@1", registry.find("qa@1").digest, "tiny:qa@1", "ops@1", "tiny"]
    with ThreadPoolExecutor(len(names)) as pool:
        answers = list(pool.map(lambda name: ask(served, name), names))
    told = ["tiny", "qa@1", "ops@1", "qa@1", "qa@1", "ops@1", "tiny"]
    for answer, name in zip(answers, told, strict=True):
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == expected[name]
        assert answer.json()["model"] == name
    assert list(served.context.parts["models"]._served) == ["tiny"]  # one base in memory
    served.context.recorder.flush()
    policies = {span.policy for span in served.context.traces.search(kind="model", limit=99)}
    assert policies == {None, "qa@1", "ops@1"}
    with served.client() as client:
        listed = {model["id"]: model for model in client.get("/v1/models").json()["data"]}
        assert client.get("/v1/models/qa@1").json() == listed["qa@1"]
    assert (listed["qa@1"]["state"], listed["far@1"]["state"]) == ("ok", "registered")
    assert listed["qa@1"]["parent"] == registry.find("qa@1").parents[0]


def test_another_base_and_a_changed_policy_are_refused(served: Any) -> None:
    refused = ask(served, "tiny:far@1")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_not_loaded")
    assert "another base" in refused.json()["error"]["message"]
    for unknown in ("tiny:none@1", "none:qa@1", "tiny:tiny", "qa@2"):
        assert ask(served, unknown).status_code == 404, unknown
    entry = served.context.registry.find("far@1")
    with open(entry.path / "adapter_model.safetensors", "ab") as file:
        file.write(b"x")
    assert ask(served, "far@1").status_code == 503


def test_a_policy_can_be_named_at_the_start(served: Any) -> None:
    from agent_forge.errors import UsageError
    from agent_forge.server.models.loading import source_of

    base = served.context.registry.find("qa@1").parents[0]
    assert source_of("qa@1", served.context).digest == base
    with pytest.raises(UsageError, match="its own name"):
        source_of("mine=qa@1", served.context)
