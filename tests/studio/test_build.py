"""The committed build and types are what the sources give.

What held for a state of the files is noted in build/, and not tried again: npm takes most of a minute.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter
from hashlib import sha256
from pathlib import Path

import pytest

from glassformer.studio import static_files
from tests.conftest import unavailable
from tests.engine.compiled import KEPT
from tests.patience import patience
from tools.studio_schema import document

SOURCES = Path(__file__).parents[2] / "studio"
Check = Callable[..., None]


def npm(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(shutil.which("npm")), *words], cwd=folder, capture_output=True, text=True, timeout=patience(600)
    )


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


@pytest.fixture
def check_once(request: pytest.FixtureRequest) -> Check:
    """Runs a check in the copy of the sources, unless it held for the same sources, build, npm and further input before."""

    def run(check: Callable[[Path], None], more: str = "") -> None:
        digest = sha256(more.encode() + (npm("--version", folder=SOURCES).stdout.encode() if shutil.which("npm") else b""))
        paths = [path for path in sorted(SOURCES.rglob("*")) if path.is_file() and "node_modules" not in path.parts]
        files = {path.relative_to(SOURCES).as_posix(): path.read_bytes() for path in paths}
        for name, content in {**files, **{name: file.content for name, file in static_files().items()}}.items():
            digest.update(b"\0".join([name.encode(), sha256(content).digest()]))
        note = KEPT / f"studio-{check.__name__}-{digest.hexdigest()[:16]}"
        if not note.exists():
            check(request.getfixturevalue("project"))
            KEPT.mkdir(exist_ok=True)
            note.touch()

    return run


def test_a_rebuild_gives_the_committed_files(check_once: Check) -> None:
    def rebuild(project: Path) -> None:
        done = npm("run", "build", "--", "--outDir", "built", folder=project)
        assert done.returncode == 0, done.stderr
        built = project / "built"
        files = {path.relative_to(built).as_posix(): path.read_bytes() for path in built.rglob("*") if path.is_file()}
        assert files.keys() == static_files().keys(), "the build is not of these sources: make studio"
        assert all(content == static_files()[path].content for path, content in files.items())

    check_once(rebuild)


def test_the_types_are_those_of_the_server(check_once: Check) -> None:
    described = json.dumps(document(), sort_keys=True)

    def write_types(project: Path) -> None:
        (project / "openapi.json").write_text(described, "utf-8")
        done = npm("run", "types", folder=project)
        assert done.returncode == 0, done.stderr
        types = Path("src", "api", "schema.d.ts")
        assert (project / types).read_text("utf-8") == (SOURCES / types).read_text("utf-8"), "the types are old: make studio"

    check_once(write_types, described)


def test_the_sources_have_no_type_error(check_once: Check) -> None:
    def check_types(project: Path) -> None:
        done = npm("run", "check", folder=project)
        assert done.returncode == 0, done.stdout

    check_once(check_types)


def test_no_circle_of_sources() -> None:
    """Type-only imports included. Components are left out: a tree's node draws its children, which are nodes."""
    folder = SOURCES / "src"
    files = {path: path.read_text("utf-8") for path in folder.rglob("*.ts")}
    imports = {
        str(path.relative_to(folder)): {
            str(file.relative_to(folder))
            for name in re.findall(r"""from\s+["'](\.[^"']+)["']""", text)
            for file in (Path(f"{(path.parent / name).resolve()}{suffix}") for suffix in ("", ".ts"))
            if file in files
        }
        for path, text in files.items()
    }
    assert sum(map(len, imports.values())) > len(files)
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))
