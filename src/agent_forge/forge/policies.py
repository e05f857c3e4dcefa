"""Policies in the registry: an adapter (or a whole model) trained for an agent, beside the base that it belongs to.

entry = register_policy("adapter", "models/base", "qa", report)     # entry.name is "qa@1", entry.digest its digest
model = open_policy("qa@1", baseline="smollm2")                     # verified, else the baseline with a warning
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_forge.errors import AgentForgeError, CheckpointError
from agent_forge.forge import checkpoint as checkpoints
from agent_forge.forge.checkpoint import Card, Checkpoint
from agent_forge.forge.registry import POLICIES, Entry, Registry
from agent_forge.inference import ChatClient, model
from agent_forge.inference.adapter_file import CONFIG, WEIGHTS, Adapter
from agent_forge.inference.loading import weight_files
from agent_forge.inference.policy import NAME, Policy, made_from
from agent_forge.inference.safetensors_file import read_header
from agent_forge.model_files import CARD, POLICY
from agent_forge.platforms import lock

log = logging.getLogger(__name__)


def register_policy(
    folder: str | os.PathLike[str],
    base: str | os.PathLike[str],
    agent: str,
    report: Mapping[str, Any] | None = None,
    *,
    reward: str | None = None,
    data: str | None = None,
    home: str | os.PathLike[str] | Registry | None = None,
) -> Entry:
    """Copies an adapter into the registry as the next version of an agent's policy, with its manifest, and registers
    its base, where it lies. Cleanup keeps both.

    `folder` holds PEFT's files, or a whole model; `base` is the folder of the model that it was trained from; `report`
    is the evaluation, `reward` the version of the reward, `data` the digest of what it was trained on. Raises
    CheckpointError for an adapter that does not fit the base, and for a name that cannot be one.
    """
    source, registry = Path(folder), home if isinstance(home, Registry) else Registry(home)
    beside = checkpoints.load(base)
    with open(registry.home / "policies.lock", "a", encoding="utf-8") as file:
        lock(file.fileno(), wait=True)  # two that end at once get two versions
        return _register(
            source, beside, agent, registry, {"reward": reward, "data": data, "report": dict(report or {})}
        )


def _register(source: Path, beside: Checkpoint, agent: str, registry: Registry, told: dict[str, Any]) -> Entry:
    versions = [entry.card["config"]["version"] for entry in registry.ls(POLICIES) if _agent(entry) == agent]
    version = 1 + max(versions, default=0)
    if not NAME.fullmatch(f"{agent}@{version}"):
        raise CheckpointError(f"{agent[:100]!r} cannot name a policy", fix="Use letters, digits, . _ and -")
    registry.add(beside)
    with checkpoints.staging(registry.models) as staged:
        _copy(source, staged, beside.path)
        found = made_from(staged, beside.path)
        named = {"folder": str(beside.path.resolve()), "digest": beside.digest}
        policy = Policy(agent, version, **{**found, "base": named}, **told)
        (staged / POLICY).write_text(policy.to_json(), encoding="utf-8")
        data = {} if policy.data is None else {"training": policy.data}
        card = Card(POLICIES, policy.to_dict(), (beside.digest,), data)
        made = checkpoints.finish(staged, card, registry.models)
    registry.add(made)
    registry.pin(made.digest)
    return registry.find(made.digest)


def _agent(entry: Entry) -> Any:
    return entry.card["config"].get("agent")


def _copy(source: Path, target: Path, base: Path) -> None:
    if (source / "config.json").is_file():
        for file in checkpoints.files_of(source):
            if (name := file.relative_to(source).as_posix()) not in (CARD, POLICY):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target / name)
        return
    shapes = {name: tuple(entry["shape"]) for file in weight_files(base) for name, entry in read_header(file).items()}
    Adapter.open(source, shapes)
    for name in (CONFIG, WEIGHTS):
        shutil.copyfile(source / name, target / name)


def open_policy(
    name: str,
    baseline: ChatClient | str | None = None,
    *,
    home: str | os.PathLike[str] | Registry | None = None,
    **options: Any,
) -> ChatClient:
    """A registered policy as a model in this process, every byte of it and of its base verified.

    Where it is unknown, changed or made for another base, the baseline answers, and a warning says why; without a
    baseline that is raised. `options` are those of the client.
    """
    registry = home if isinstance(home, Registry) else Registry(home)
    try:
        return model(str(registry.load(name).path), **options)
    except AgentForgeError as error:
        if baseline is None:
            raise
        log.warning("the baseline serves instead of %s: %s", name, error)
        return model(baseline, **options) if isinstance(baseline, str) else baseline
