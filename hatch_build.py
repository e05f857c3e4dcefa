"""Compiles the C kernels into the wheel, once for each kind of processor (see agent_forge.native).

Without a compiler the wheel holds the sources alone, as an editable install does: they are then compiled at first use.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS: dict[str, tuple[str, ...]] = {  # with the flags that they are loaded with
    "inference/packed/decoder.c": (),
    "inference/packed/products.c": (),
    "forge/compression/rans.c": (),
    "forge/merging/kernel.c": ("-fno-trapping-math",),
}


class KernelHook(BuildHookInterface):
    """Adds the compiled kernels to a wheel."""

    _folder: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        package = Path(self.root) / "src" / "agent_forge"
        sys.path.insert(0, str(package.parent))
        from agent_forge import native

        self._folder = folder = Path(mkdtemp(prefix="agent-forge-kernels-"))
        for name, flags in KERNELS.items():
            for library in native.ship(package / name, *flags, to=folder):
                build_data["force_include"][str(library)] = f"agent_forge/{Path(name).parent}/{library.name}"
        if build_data["force_include"]:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"], build_data["tag"] = False, f"py3-none-{platform}"
        else:
            self.app.display_warning("no C compiler: the wheel holds the kernels as source")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder)
