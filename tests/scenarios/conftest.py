"""What scenarios share: a disk that fills up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "own_mounts: mounts file systems; ordinary users run it in a namespace.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Attacks repeat themselves: measuring their coverage costs three times the work and finds nothing new."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker("untraced")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Ordinary users may not mount: for them the test runs as root of a user namespace, in a process of its own."""
    if pyfuncitem.get_closest_marker("own_mounts") is None or os.geteuid() == 0:
        return None
    inside = ["unshare", "--map-root-user", "--mount"]
    try:
        possible = subprocess.run([*inside, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        possible = False
    if not possible:
        pytest.skip("file systems can be mounted neither by this user nor in a user namespace")
    command = [*inside, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    done = subprocess.run(
        command, cwd=pyfuncitem.config.rootpath, capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return True


class SmallDisk:
    """A file system of its own, which can be filled to the last byte and freed again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self, leave: int = 0) -> None:
        """Leaves at most `leave` bytes and one page free."""
        with self._ballast.open("ab", buffering=0) as file:
            while (free := self.free - leave) > 0:
                try:
                    file.write(b"\0" * min(free, 1 << 20))
                except OSError:
                    break

    def clear(self) -> None:
        """Frees what `fill` took."""
        self._ballast.unlink()

    @property
    def free(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], SmallDisk]]:
    """Makes disks of so many MiB. Tests that use it are marked `own_mounts`."""
    mounted: list[Path] = []

    def make(size_mb: int) -> SmallDisk:
        path = tmp_path / f"disk{len(mounted)}"
        path.mkdir()
        options = ["-t", "tmpfs", "-o", f"size={size_mb}m,mode=0700", "tmpfs", str(path)]
        if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
            pytest.skip("a file system in memory cannot be mounted here")
        mounted.append(path)
        return SmallDisk(path)

    yield make
    for path in mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
