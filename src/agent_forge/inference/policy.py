"""A policy: a model that was trained for an agent, with a manifest that says what it was made from.

The folder holds an adapter as PEFT writes it (or a whole model) and `policy.json`: agent, version, and the digests of
base, adapter, tokenizer and chat template, the version of the reward, the digest of the data, and the report of its
evaluation. Nothing is loaded before all digests have been compared with the files. `forge.policies` registers one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent_forge.errors import CheckpointError
from agent_forge.inference.loading import read_json
from agent_forge.model_files import (
    CARD,
    POLICY,
    base_folder,
    digest_of,
    known_digest,
    template_digest,
    tokenizer_digest,
)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}@[1-9][0-9]{0,8}")  # agent@version
FORMAT = 1


@dataclass(frozen=True)
class Policy:
    """The manifest of a policy."""

    agent: str
    version: int
    base: Mapping[str, str]  # the folder that held it when it was registered, and the digest of its files
    adapter: str  # digest of the files beside the manifest
    tokenizer: str | None
    template: str | None
    reward: str | None = None  # version of the reward it was trained with
    data: str | None = None  # digest of the data
    report: Mapping[str, Any] = field(default_factory=dict)  # of its evaluation
    format: int = FORMAT

    @property
    def name(self) -> str:
        """As requests, spans and rollouts name it.

        >>> Policy("qa", 2, {}, "", None, None).name
        'qa@2'
        """
        return f"{self.agent}@{self.version}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        try:
            return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, sort_keys=True, allow_nan=False)
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"the manifest cannot be written: {error}", where=self.name) from error


def read_policy(folder: str | Path) -> Policy:
    """The manifest in a folder, which nothing has verified yet. Raises CheckpointError."""
    file = Path(folder) / POLICY
    document = read_json(file)
    try:
        if document["format"] > FORMAT:
            raise ValueError(f"its format is {document['format']}, and this version reads formats up to {FORMAT}")
        policy = Policy(**document)
        if not NAME.fullmatch(policy.name) or not isinstance(policy.base["digest"], str):
            raise ValueError("it needs an agent, a version and the digest of a base")
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"the manifest cannot be read: {error}", where=str(file)) from error
    return policy


def made_from(folder: Path, base: Path) -> dict[str, Any]:
    """What a manifest says about the files of a policy and its base. A file is read once as long as nobody writes to
    it."""
    whole = (folder / "config.json").is_file()
    about = folder if whole else base
    return {
        "adapter": digest_of(folder, (CARD, POLICY), known_digest),
        "tokenizer": tokenizer_digest(about, known_digest),
        "template": template_digest(about),
        "base": None if whole else digest_of(base, file_digest=known_digest),  # a whole model needs its base no more
    }


def verify_policy(folder: str | Path) -> Policy:
    """The manifest of a policy whose files, base, tokenizer and template are those that it names.

    Raises CheckpointError that says which is not.
    """
    folder = Path(folder)
    policy = read_policy(folder)
    base = base_folder(folder)
    if base is not None and not (base / "config.json").is_file():
        raise CheckpointError(
            f"the base of {policy.name} is not there", where=str(base), fix="Put the model back, or train again"
        )
    found = made_from(folder, base or folder)
    for part in ("adapter", "tokenizer", "template"):
        if found[part] != getattr(policy, part):
            raise CheckpointError(
                f"the {part} of {policy.name} is not the one it was registered with", where=str(folder)
            )
    if base is not None and found["base"] != policy.base["digest"]:
        raise CheckpointError(f"the base of {policy.name} is another model now", where=str(base))
    return policy


def why_not(folder: str | Path) -> str | None:
    """Why the policy in a folder must not serve; None if it may."""
    try:
        verify_policy(folder)
    except CheckpointError as error:
        return str(error)
    return None


def model_and_adapter(folder: Path) -> tuple[Path, Path | None]:
    """The folder of the model and that of the adapter on it, if any; a policy has been verified. Raises
    CheckpointError."""
    if not (folder / POLICY).is_file():
        return folder, None
    verify_policy(folder)
    base = base_folder(folder)
    return (folder, None) if base is None else (base, folder)
