"""What is shipped: a wheel with the native library inside where there is a compiler, a pure one where there is none."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from glassformer.engine.cpu import build
from tests.conftest import unavailable
from tests.engine.cpu.fake_compiler import Compiler, works, write_sources

pytestmark = pytest.mark.sweep
ROOT = Path(__file__).parents[3]
NATIVE = "glassformer/engine/cpu/native"
SOURCES = {f"{NATIVE}/{name}" for name in ("engine.cpp", "kernels.cpp", "shared.h")}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as it is, with the stand-ins for its native sources."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "native"))
    write_sources(folder / "src" / NATIVE)
    return folder


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the build backend, which is fetched where it is not installed."""
    if all(importlib.util.find_spec(name) for name in ("hatchling", "editables")):
        return ""
    folder = tmp_path_factory.mktemp("backend")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--target", str(folder)]
    done = subprocess.run([*pip, "hatchling>=1.25", "editables"], capture_output=True, text=True)
    if done.returncode:
        unavailable(f"the build backend could not be fetched: {done.stderr[-200:]}")
    return str(folder)


def run(words: list[str], folder: Path, backend: str, **environment: str) -> str:
    """A module of Python's, run in a project; what it said."""
    settings = {**os.environ, "PYTHONPATH": backend, **environment}
    done = subprocess.run([sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, env=settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def wheel(project: Path, target: Path, backend: str, **environment: str) -> tuple[Path, set[str], str]:
    """As people build one: its path, the names of its files, and what was said."""
    words = ["pip", "wheel", ".", "--verbose", "--no-deps", "--no-build-isolation", "--wheel-dir", str(target)]
    said = run(words, project, backend, **environment)
    (path,) = target.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return path, set(archive.namelist()), said


def libraries(names: set[str]) -> list[str]:
    return [name for name in names if name.startswith(f"{NATIVE}/engine-")]


def test_wheel_with_a_compiler_contains_the_library(project: Path, tmp_path: Path, backend: str) -> None:
    path, names, _ = wheel(project, tmp_path, backend)
    assert "-py3-none-" in path.name
    assert not path.name.endswith("-any.whl")
    assert names >= SOURCES
    (name,) = libraries(names)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "installed")
    assert works(tmp_path / "installed" / name)
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r}); from glassformer.engine.cpu import build; "
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code + "print(build.library())"],
        env={**os.environ, "CXX": "no-such-compiler"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(done.stdout.strip()) == tmp_path / "installed" / name


def test_wheel_without_a_compiler_is_pure(project: Path, tmp_path: Path, backend: str) -> None:
    path, names, said = wheel(project, tmp_path, backend, CXX="no-such-compiler")
    assert path.name.endswith("-py3-none-any.whl")
    assert names >= SOURCES
    assert libraries(names) == []
    assert "the wheel is without the CPU engine's library: no C++ compiler was found." in said


@pytest.mark.skipif(sys.platform != "linux", reason="only there is the other machine's name enough")
def test_wheel_for_another_machine(project: Path, tmp_path: Path, backend: str) -> None:
    other = "x86_64" if build.machine() == "aarch64" else "aarch64"
    fake = Compiler(tmp_path / "fake")
    path, names, _ = wheel(project, tmp_path, backend, CXX=str(fake), _PYTHON_HOST_PLATFORM=f"linux-{other}")
    assert path.name.endswith(f"-py3-none-linux_{other}.whl")
    assert len(libraries(names)) == 1
    assert {call[call.index("-c") - 1] for call in fake.calls_with("kernels.cpp")} == {
        flags[-1] for flags in build.levels(other).values()
    }


def test_an_editable_install_builds_nothing(project: Path, tmp_path: Path, backend: str) -> None:
    fake = Compiler(tmp_path / "fake")
    run(["hatchling", "build", "-t", "wheel:editable", "-d", str(tmp_path)], project, backend, CXX=str(fake))
    (path,) = tmp_path.glob("*.whl")
    assert path.name.endswith("-py3-none-any.whl")
    assert fake.calls == []


def test_the_source_archive_gives_the_same_wheel(project: Path, tmp_path: Path, backend: str) -> None:
    run(["hatchling", "build", "-t", "sdist", "-d", str(tmp_path)], project, backend)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / path.name.removesuffix(".tar.gz")
    assert not list((unpacked / "src" / NATIVE).glob("engine-*"))
    made, names, _ = wheel(unpacked, tmp_path, backend)
    same, expected, _ = wheel(project, tmp_path / "same", backend)
    assert made.name == same.name
    assert names == expected >= SOURCES
