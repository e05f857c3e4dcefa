"""How this copy was installed, and so which command adds an extra to it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from importlib import metadata, util
from pathlib import Path

NAME = "agent-forge-foundry"  # on a package index, where `agentforge` and `agent-forge` are somebody else's
WITH_TORCH = ("all", "forge", "local")
CPU_TORCH = "install torch --index-url https://download.pytorch.org/whl/cpu"  # without CUDA: 1 GB instead of 6


def install_command(extra: str | None = None) -> str:
    """The command that adds an extra to this copy, or installs it again, from where it came from.

    For extras with torch, on a Linux machine without an NVIDIA driver, the build for CPUs alone comes first.
    """
    found = _distribution()
    installer = _read(found, "INSTALLER").strip() if found else ""
    pip = "uv pip" if installer == "uv" else "pip"
    command = f"{pip} install {_target(found, f'[{extra}]' if extra else '')}"
    if extra in WITH_TORCH and not _has_torch() and _without_cuda():
        return f"{pip} {CPU_TORCH} && {command}"
    return command


def _distribution() -> metadata.Distribution | None:
    """What the installer wrote about this copy; None for a copy that is only on the path."""
    try:
        found = metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        return None
    here = Path(__file__).resolve()
    places = (Path(str(found.locate_file("agent_forge"))), Path(_origin(found).get("folder", os.devnull)))
    return found if any(place.resolve() in here.parents for place in places) else None


def _origin(found: metadata.Distribution) -> dict[str, str]:
    """Where it came from, if not from a package index: PEP 610's direct_url.json in brief."""
    from urllib.parse import unquote, urlsplit

    record = json.loads(_read(found, "direct_url.json") or "{}")
    url = record.get("url", "")
    if "vcs_info" in record:
        info = record["vcs_info"]
        return {"address": f"{info['vcs']}+{url}@{info['commit_id']}"}
    if "dir_info" in record:
        editable = "-e " if record["dir_info"].get("editable") else ""
        path = unquote(urlsplit(url).path)
        return {"folder": path.lstrip("/") if sys.platform == "win32" else path, "editable": editable}
    return {"address": url} if url else {}


def _read(found: metadata.Distribution, file: str) -> str:
    return found.read_text(file) or ""


def _target(found: metadata.Distribution | None, extra: str) -> str:
    if found is None:
        source = Path(__file__).resolve().parents[2]
        return _quoted(f"{source}{extra}" if (source / "pyproject.toml").is_file() else f"{NAME}{extra}")
    origin = _origin(found)
    if "folder" in origin:
        return origin["editable"] + _quoted(f"{origin['folder']}{extra}")
    return _quoted(f"{NAME}{extra} @ {origin['address']}" if "address" in origin else f"{NAME}{extra}")


def _quoted(text: str) -> str:
    """For a shell: single quotes, which Windows' command prompt does not know."""
    return f'"{text}"' if sys.platform == "win32" else shlex.quote(text)


def _has_torch() -> bool:
    try:
        return util.find_spec("torch") is not None
    except ValueError:  # something that took its name
        return True


def _without_cuda() -> bool:
    """Whether torch from the index would bring gigabytes of CUDA for nothing. Only its builds for Linux do."""
    return sys.platform == "linux" and shutil.which("nvidia-smi") is None and not Path("/proc/driver/nvidia").exists()
