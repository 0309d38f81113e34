"""The committed build and types are what the sources give."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from glassformer.studio import static_files
from tests.conftest import unavailable
from tools.studio_schema import document

SOURCES = Path(__file__).parents[2] / "studio"


def npm(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(shutil.which("npm")), *words], cwd=folder, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with their packages, in another folder than the one that was built in."""
    if shutil.which("npm") is None:
        unavailable("npm, which builds the studio")
    folder = tmp_path_factory.mktemp("studio") / "copy"
    shutil.copytree(SOURCES, folder, ignore=shutil.ignore_patterns("node_modules"))
    done = npm("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", folder=folder)
    if done.returncode:
        unavailable(f"the studio's packages could not be fetched: {done.stderr[-500:]}")
    return folder


def test_a_rebuild_gives_the_committed_files(project: Path) -> None:
    done = npm("run", "build", "--", "--outDir", "built", folder=project)
    assert done.returncode == 0, done.stderr
    built = project / "built"
    files = {path.relative_to(built).as_posix(): path.read_bytes() for path in built.rglob("*") if path.is_file()}
    assert files.keys() == static_files().keys(), "the build is not of these sources: make studio"
    assert all(content == static_files()[path].content for path, content in files.items())


def test_the_types_are_those_of_the_server(project: Path) -> None:
    (project / "openapi.json").write_text(json.dumps(document(), sort_keys=True), "utf-8")
    done = npm("run", "types", folder=project)
    assert done.returncode == 0, done.stderr
    types = Path("src", "api", "schema.d.ts")
    assert (project / types).read_text("utf-8") == (SOURCES / types).read_text("utf-8"), "the types are old: make studio"


@pytest.mark.sweep  # `make studio` asks the same before it builds
def test_the_sources_have_no_type_error(project: Path) -> None:
    done = npm("run", "check", folder=project)
    assert done.returncode == 0, done.stdout
