"""The wheel's build hook: it puts the CPU engine's native library inside, so that installing needs no compiler.

Where it cannot be built the wheel stays pure, and the library is built on first use; so it is in an editable install, whose
sources change. With GLASS_RELEASE=1, which `tools/wheels.py` sets, it is an error instead if the library cannot be built
with every level of its architecture.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags


class NativeLibrary(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        sys.path.insert(0, str(Path(self.root, "src")))  # the package is not installed where it is being built
        from glassformer.engine.cpu import build
        from glassformer.ground.errors import ExecutorError

        self.folder = tempfile.TemporaryDirectory(prefix="glassformer-", ignore_cleanup_errors=True)
        target, release = build.prebuilt(), bool(os.environ.get("GLASS_RELEASE"))
        try:
            library = build.compile(
                build.NATIVE, Path(self.folder.name, target.name), build.find_compiler(), every_level=release
            )
        except ExecutorError as error:
            if release:
                self.app.display_error("\n".join([str(error), *getattr(error, "__notes__", [])]))
                sys.exit(1)
            self.app.display_warning(f"the wheel is without the CPU engine's library: {error}")
            return
        build_data["force_include"][str(library)] = str(target.relative_to(Path(self.root, "src")))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if folder := getattr(self, "folder", None):
            folder.cleanup()


def _platform() -> str:
    """This system's most general tag: the library serves every Python on it."""
    return next(tag for tag in platform_tags() if not tag.startswith(("manylinux", "musllinux")))
