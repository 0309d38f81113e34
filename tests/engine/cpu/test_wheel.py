"""What is shipped: a wheel with the native library inside where there is a compiler, a pure one where there is none.

A release's wheels (`tools/wheels.py`) are built for each architecture, and have all of its levels.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import glassformer
from glassformer.engine.cpu import build
from tests.conftest import unavailable
from tests.engine.cpu.fake_compiler import Compiler, works, write_sources
from tests.fuzz.targets import write_llama
from tools import wheels, zig_cxx

pytestmark = pytest.mark.processes

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


def run(words: list[str], folder: Path, backend: str, fails: bool = False, **environment: str) -> str:
    """The output of a module of Python's, run in a project."""
    path = os.pathsep.join(filter(None, [backend, os.environ.get("PYTHONPATH")]))
    settings = {**os.environ, "PYTHONPATH": path, **environment}
    done = subprocess.run([sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, env=settings)
    assert bool(done.returncode) == fails, done.stdout + done.stderr
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


@pytest.mark.sweep
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


@pytest.mark.sweep
def test_wheel_without_a_compiler_is_pure(project: Path, tmp_path: Path, backend: str) -> None:
    path, names, said = wheel(project, tmp_path, backend, CXX="no-such-compiler")
    assert path.name.endswith("-py3-none-any.whl")
    assert names >= SOURCES
    assert libraries(names) == []
    assert "the wheel is without the CPU engine's library: no C++ compiler was found." in said


@pytest.mark.sweep
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


@pytest.mark.sweep
def test_an_editable_install_builds_nothing(project: Path, tmp_path: Path, backend: str) -> None:
    fake = Compiler(tmp_path / "fake")
    run(["hatchling", "build", "-t", "wheel:editable", "-d", str(tmp_path)], project, backend, CXX=str(fake))
    (path,) = tmp_path.glob("*.whl")
    assert path.name.endswith("-py3-none-any.whl")
    assert fake.calls == []


@pytest.mark.sweep
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


# Without a compiler ---------------------------------------------------------------------------------------------

COPYING_COMPILER = """
import shutil, sys
library, *words = sys.argv[1:]
output = words[words.index("-o") + 1]
if output.endswith(".o"):
    open(output, "w").close()
else:
    shutil.copy(library, output)
"""
DECODE = """
import sys
import glassformer
from glassformer.engine.cpu import build
print(build.library())
print(glassformer.load(sys.argv[1], executor="cpu").watch("the dog", raw=True, max_new_tokens=4).text)
"""


def test_installed_wheel_decodes_without_a_compiler(
    tmp_path: Path, backend: str, compiler: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copying_compiler.py").write_text(COPYING_COMPILER, "utf-8")
    real = [
        sys.executable,
        str(tmp_path / "copying_compiler.py"),
        str(build.library()),
    ]  # what was built for the other tests
    path, names, _ = wheel(ROOT, tmp_path, backend, CXX=str(Compiler(tmp_path / "fake", real)))
    (library,) = libraries(names)
    installed, programs = tmp_path / "installed", tmp_path / "programs"
    run(["pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(installed), str(path)], tmp_path, backend)
    programs.mkdir()
    for name in ("CXX", "GLASS_LIBRARY", "GLASS_REBUILD"):
        monkeypatch.delenv(name, raising=False)
    settings = {**os.environ, "PATH": str(programs), "PYTHONPATH": str(installed), "GLASS_HOME": str(tmp_path / "home")}
    folder = write_llama(tmp_path / "model")
    done = subprocess.run(
        [sys.executable, "-c", DECODE, str(folder)], env=settings, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    expected = glassformer.load(folder, executor="cpu").watch("the dog", raw=True, max_new_tokens=4).text
    assert done.stdout == f"{installed / library}\n{expected}\n"
    assert not (tmp_path / "home" / "native").exists()


# Releases -------------------------------------------------------------------------------------------------------


def test_release_without_a_level_is_an_error(project: Path, tmp_path: Path, backend: str) -> None:
    level, flags = list(build.levels(build.machine()).items())[-1]
    fake = Compiler(tmp_path / "fake", refuses=[flags[-1]])
    command = ["hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    output = run(command, project, backend, fails=True, CXX=str(fake), GLASS_RELEASE="1")
    assert f"cannot build {level}. Set CXX to a newer compiler." in output
    assert not list((tmp_path / "dist").glob("*.whl"))


def test_release_without_a_compiler_is_an_error(project: Path, tmp_path: Path, backend: str) -> None:
    command = ["hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    output = run(command, project, backend, fails=True, CXX="no-such-compiler", GLASS_RELEASE="1")
    assert "no C++ compiler was found." in output
    assert not list((tmp_path / "dist").glob("*.whl"))


@pytest.mark.parametrize(("flag", "expected"), [
    ("-march=armv8-a", ["-mcpu=generic+v8a"]),
    ("-march=armv8.2-a+dotprod+fp16", ["-mcpu=generic+v8_2a+dotprod+fullfp16"]),
    ("-march=x86-64", ["-mcpu=x86_64"]),
    ("-mtune=neoverse-n1", ["-Xclang", "-tune-cpu", "-Xclang", "neoverse-n1"]),
    ("-Wl,--exclude-libs,ALL", []),
    ("-mavx512vnni", ["-mavx512vnni"]),
])  # fmt: skip
def test_zig_spelling_of_flags(flag: str, expected: list[str]) -> None:
    assert zig_cxx.translate(flag) == expected


def test_releases_are_for_every_architecture_with_vector_levels() -> None:
    assert set(wheels.ARCHITECTURES) == set(build.LEVELS)


def test_release_that_needs_a_newer_glibc_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_wheel(command: list[str], **_: object) -> None:
        folder = Path(command[command.index("--directory" if "hatchling" in command else "--wheel-dir") + 1])
        folder.mkdir()
        (folder / "glassformer-1-py3-none-manylinux_2_36_x86_64.whl").touch()

    monkeypatch.setattr(wheels.subprocess, "run", write_wheel)
    with pytest.raises(SystemExit, match="manylinux_2_17_x86_64"):
        wheels.main([str(tmp_path / "dist"), "--only", "x86_64"])
    assert not (tmp_path / "dist").exists()


@pytest.fixture(scope="module")
def release_wheel(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds the wheel of an architecture, each one once; minutes, since zig first builds its C++ library for each."""
    if sys.platform != "linux":
        pytest.skip("releases are built on Linux")
    if missing := [name for name in ("auditwheel", "hatchling", "ziglang") if importlib.util.find_spec(name) is None]:
        unavailable(f"{', '.join(missing)} not installed: `pip install '.[wheels]'`")

    @cache
    def built(architecture: str) -> Path:
        folder = tmp_path_factory.mktemp(architecture)
        run(["tools.wheels", str(folder), "--only", architecture], ROOT, "")
        (path,) = folder.iterdir()
        return path

    return built


def unpacked_library(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = libraries(set(archive.namelist()))
        return Path(archive.extract(name, folder))


@pytest.mark.sweep
@pytest.mark.parametrize("architecture", wheels.ARCHITECTURES)
def test_release_wheel_contains_every_level(release_wheel: Callable[[str], Path], architecture: str, tmp_path: Path) -> None:
    path = release_wheel(architecture)
    assert f"-py3-none-manylinux2014_{architecture}.manylinux_2_17_{architecture}.whl" in path.name
    library = unpacked_library(path, tmp_path).read_bytes()
    assert library[18] == {"x86_64": 62, "aarch64": 183}[architecture]  # the ELF header's machine
    assert [level for level in build.levels(architecture) if b"\0" + level.encode() + b"\0" not in library] == []


@pytest.mark.sweep
@pytest.mark.parametrize("architecture", wheels.ARCHITECTURES)
def test_release_wheel_is_reproducible(release_wheel: Callable[[str], Path], architecture: str, tmp_path: Path) -> None:
    first = release_wheel(architecture)
    run(["tools.wheels", str(tmp_path), "--only", architecture], ROOT, "")
    assert (tmp_path / first.name).read_bytes() == first.read_bytes()


PRINT_LEVELS = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char** words) {
    void* library = dlopen(words[1], RTLD_NOW);
    if (library) puts(((const char* (*)(void))dlsym(library, "glass_levels"))());
    else puts(dlerror());
    return !library;
}
"""


@pytest.mark.sweep
def test_release_library_loads_under_qemu(release_wheel: Callable[[str], Path], tmp_path: Path) -> None:
    other = next(name for name in wheels.ARCHITECTURES if name != build.machine())
    emulator, root = shutil.which(f"qemu-{other}"), Path(f"/usr/{other}-linux-gnu")
    if emulator is None or not root.exists():
        pytest.skip(f"there is no qemu-{other} (qemu-user), or no glibc for it in {root}")
    library = unpacked_library(release_wheel(other), tmp_path)
    (tmp_path / "levels.c").write_text(PRINT_LEVELS, "utf-8")
    target = f"{other}-linux-gnu.{wheels.GLIBC}"
    run(["ziglang", "cc", "-target", target, "levels.c", "-o", "levels", "-ldl"], tmp_path, "")
    command = [emulator, "-cpu", "max", "-L", str(root), str(tmp_path / "levels"), str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    best, *_, last = done.stdout.split()
    assert {best, last} < set(build.levels(other))
    assert last == "portable" != best
