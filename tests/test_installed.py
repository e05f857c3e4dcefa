"""The command that adds an extra fits how this copy was installed."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from agent_forge import installed
from agent_forge.errors import MissingExtraError
from agent_forge.installed import NAME, install_command

PACKAGE = Path(installed.__file__).parent


class Installed(metadata.Distribution):
    """A distribution as an installer would have written it."""

    def __init__(self, where: Path, **files: str) -> None:
        self.where, self.files_read = where, files

    def read_text(self, filename: str) -> str | None:
        return self.files_read.get(filename.replace(".", "_").lower())

    def locate_file(self, path: Any) -> Any:
        return self.where / path


def of(where: Path = PACKAGE.parent, installer: str = "pip", **record: Any) -> Installed:
    return Installed(where, installer=f"{installer}\n", **({"direct_url_json": json.dumps(record)} if record else {}))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (of(), f"pip install '{NAME}[server]'"),
        (of(installer="uv"), f"uv pip install '{NAME}[server]'"),
        (
            of(PACKAGE / "x", url=PACKAGE.parents[1].as_uri(), dir_info={"editable": True}),
            f"pip install -e '{PACKAGE.parents[1]}[server]'",
        ),
        (of(url=PACKAGE.parents[1].as_uri(), dir_info={}), f"pip install '{PACKAGE.parents[1]}[server]'"),
        (
            of(url="file:///a%20b/x.whl", archive_info={}),
            f"pip install '{NAME}[server] @ file:///a%20b/x.whl'",
        ),
        (
            of(url="https://example.org/f.git", vcs_info={"vcs": "git", "commit_id": "abc"}),
            f"pip install '{NAME}[server] @ git+https://example.org/f.git@abc'",
        ),
        (
            of(Path("/elsewhere")),
            f"pip install '{PACKAGE.parents[1]}[server]'",
        ),  # this copy is on the path
        (None, f"pip install '{PACKAGE.parents[1]}[server]'"),
    ],
    ids=["index", "uv", "editable", "folder", "wheel", "git", "another", "path"],
)
def test_the_command_fits(found: Installed | None, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(name: str) -> Installed:
        if found is None or name != NAME:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(metadata, "distribution", distribution)
    assert install_command("server") == said
    assert f"Run `{said}`" in str(MissingExtraError("the server", "server"))


def test_without_a_gpu_torch_comes_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "_has_torch", lambda: False)
    monkeypatch.setattr(installed, "_without_cuda", lambda: True)
    first, _, rest = install_command("forge").partition(" && ")
    assert first == "pip install torch --index-url https://download.pytorch.org/whl/cpu"
    assert rest.endswith("[forge]'")
    assert "torch" not in install_command("server")
    monkeypatch.setattr(installed, "_without_cuda", lambda: False)
    assert install_command("forge") == rest
    monkeypatch.setattr("sys.platform", "win32")
    assert install_command("server").count('"') == 2


def test_no_hint_names_a_distribution_by_hand() -> None:
    """Hints come from `install_command`, so that they fit; `agent-forge` on an index is not ours."""
    root = PACKAGE.parents[1]
    files = [*PACKAGE.rglob("*.py"), *root.joinpath("docs").rglob("*.md"), *root.glob("*.md")]
    wrong = [file for file in files if "install 'agent-forge[" in file.read_text(encoding="utf-8")]
    assert wrong == []
