"""The native library: found, else built once, whole or not at all; what fails says why, and is remembered."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from glassformer.engine.cpu import build
from glassformer.ground.errors import ExecutorError
from tests.checkpoint.files import refused
from tests.engine.cpu.fake_compiler import INSTRUCTIONS, Compiler, await_file, grow_old, instructions, works, write_sources
from tests.patience import patience, wait_until

pytestmark = pytest.mark.processes


@pytest.fixture(scope="session")
def built_library(tmp_path_factory: pytest.TempPathFactory, compiler: list[str]) -> Path:
    """The stand-ins' library, for those who only want to have one."""
    folder = tmp_path_factory.mktemp("ready")
    return build.compile(write_sources(folder / "native"), folder / f"engine{build.SUFFIX}", compiler)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return write_sources(tmp_path / "native")


@pytest.fixture
def fake(tmp_path: Path) -> Compiler:
    return Compiler(tmp_path / "fake")


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The notes."""
    lines: list[str] = []
    monkeypatch.setattr(build, "note", lines.append)
    return lines


@pytest.fixture
def no_compiler(empty_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without a compiler: its empty folder of programs."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    (tmp_path / "programs").mkdir()
    return tmp_path / "programs"


@pytest.fixture
def chosen_compiler(empty_home: Path, monkeypatch: pytest.MonkeyPatch, fake: Compiler, messages: list[str]) -> Compiler:
    """A machine whose compiler is a fake one, which makes empty files, and where nothing is kept yet."""
    monkeypatch.setenv("CXX", str(fake))
    monkeypatch.delenv("GLASS_REBUILD", raising=False)
    return fake


def cached_files(home: Path) -> set[str]:
    """The kinds of what lies in the folder of libraries."""
    return {path.suffix or path.name.partition("-")[0] for path in (home / "native").iterdir()}


def test_names_of_levels() -> None:
    known = {level for machine in build.LEVELS.values() for level in machine}
    assert set(build.FEATURES) == known - {"portable"}


# Compiling ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("machine", "expected"), [
    ("x86_64", ["portable", "avx2", "avxvnni", "avx512vnni", "amx"]),
    ("AMD64", ["portable", "avx2", "avxvnni", "avx512vnni", "amx"]),
    ("aarch64", ["portable", "neon", "dotprod"]), ("arm64", ["portable", "neon", "dotprod"]), ("riscv64", ["portable"]),
])  # fmt: skip
def test_levels_of_each_machine(machine: str, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(build.levels(machine)) == expected
    monkeypatch.setattr(build.platform, "machine", lambda: machine)
    assert list(build.levels(build.machine())) == expected


def test_the_machine_of_a_cross_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", "linux-x86_64")
    assert build.machine() == "x86_64"


def test_library_contains_every_level(built_library: Path) -> None:
    assert works(built_library)
    for level in set(INSTRUCTIONS) - set(build.levels(build.machine())):
        assert instructions(built_library, level) == 0


def test_only_the_library_is_left_after_a_build(built_library: Path) -> None:
    assert sorted(path.name for path in built_library.parent.iterdir()) == sorted(["native", built_library.name])


def test_commands_for_another_machine(sources: Path, tmp_path: Path, fake: Compiler) -> None:
    build.compile(sources, tmp_path / "out" / "engine.so", fake.command, "AMD64")
    assert (tmp_path / "out" / "engine.so").exists()
    (engine,) = fake.calls_with("engine.cpp")
    kernels = {next(word for word in call if word.startswith("-DLEVEL=")): call for call in fake.calls_with("kernels.cpp")}
    link = fake.calls[-1]
    defined = [word for word in engine if word.startswith("-D")]
    levels = ["portable", "avx2", "avxvnni", "avx512vnni", "amx"]
    assert defined == [f"-DLEVEL_{level}=1" for level in levels]
    assert set(kernels) == {f"-DLEVEL={level}" for level in levels}
    for call in (engine, *kernels.values()):
        assert {*build.COMMON, "-fPIC", "-c"} <= set(call)
    for call in (engine, kernels["-DLEVEL=portable"]):
        assert "-march=x86-64" in call
        assert not any(word.startswith("-mavx") for word in call)
    assert {"-mavx2", "-mfma", "-mf16c", "-mbmi2"} <= set(kernels["-DLEVEL=avx2"])
    assert {"-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"} <= set(
        kernels["-DLEVEL=avx512vnni"]
    )
    assert "-mavx512f" not in kernels["-DLEVEL=avx2"]
    assert "-mavxvnni" in kernels["-DLEVEL=avxvnni"]
    assert {"-mavx512vnni", "-mamx-tile", "-mamx-bf16", "-mamx-int8"} <= set(kernels["-DLEVEL=amx"])
    assert {"-shared", "-pthread", "-static-libstdc++", "-static-libgcc"} <= set(link)
    assert sum(word.endswith(".o") for word in link) == 1 + len(levels)


@pytest.mark.parametrize(("name", "has", "lacks"), [
    ("engine.dylib", "-dynamiclib", "-shared"), ("engine.dll", "-static", "-fPIC"), ("engine.so", "-fPIC", "-dynamiclib"),
])  # fmt: skip
def test_each_system_has_its_own_library_suffix(
    sources: Path, tmp_path: Path, fake: Compiler, name: str, has: str, lacks: str
) -> None:
    build.compile(sources, tmp_path / name, fake.command, "arm64")
    assert (tmp_path / name).exists()
    assert has in fake.calls[-1]
    assert not any(lacks in call for call in fake.calls)


def test_levels_that_the_compiler_does_not_know_are_left_out(sources: Path, tmp_path: Path, fake: Compiler) -> None:
    fake.become(refuses=["avx512vnni"])
    build.compile(sources, tmp_path / "engine.so", fake.command, "x86_64")
    (engine,) = fake.calls_with("engine.cpp")
    assert [word for word in engine if word.startswith("-D")] == [
        "-DLEVEL_portable=1", "-DLEVEL_avx2=1", "-DLEVEL_avxvnni=1",
    ]  # fmt: skip
    assert len(fake.calls_with("kernels.cpp")) == 3


def test_missing_level_is_an_error_where_all_are_needed(sources: Path, tmp_path: Path, fake: Compiler) -> None:
    fake.become(refuses=["avx512vnni"])
    words = (fake, "cannot build avx512vnni, amx. Set CXX to a newer compiler.")
    refused(
        lambda: build.compile(sources, tmp_path / "engine.so", fake.command, "x86_64", every_level=True),
        *words, kind=ExecutorError,
    )  # fmt: skip
    assert not (tmp_path / "engine.so").exists()
    assert fake.calls_with("kernels.cpp") == []


def test_extra_flags_come_last(sources: Path, tmp_path: Path, fake: Compiler) -> None:
    extra = ["-fsanitize=address,undefined", "-g", "-O1"]
    build.compile(sources, tmp_path / "engine.so", fake.command, "x86_64", extra)
    for call in (*fake.calls_with("engine.cpp"), *fake.calls_with("kernels.cpp"), fake.calls[-1]):
        assert call.index("-O3") < call.index("-O1")
        assert set(extra) <= set(call)
    assert "-static-libstdc++" not in fake.calls[-1]


def test_compilers_whose_own_libraries_are_only_shared(sources: Path, tmp_path: Path, fake: Compiler) -> None:
    fake.become(refuses=["-static-libstdc++"])
    build.compile(sources, tmp_path / "engine.so", fake.command, "x86_64")
    first, second = fake.calls[-2:]
    assert set(first) - set(second) == set(build.STATIC_RUNTIME[".so"])


def test_progress_counts_the_steps(sources: Path, tmp_path: Path, fake: Compiler) -> None:
    told: list[tuple[str, int, int]] = []
    build.compile(sources, tmp_path / "engine.so", fake.command, "x86_64", progress=lambda *step: told.append(step))
    assert told == [("the CPU engine", done, 7) for done in range(1, 8)]


def test_a_true_error_in_the_source(sources: Path, tmp_path: Path, compiler: list[str]) -> None:
    (sources / "kernels.cpp").write_text("int kernel() { return nothing_of_that_name; }\n", "utf-8")
    target = tmp_path / "out" / "engine.so"
    error = refused(
        lambda: build.compile(sources, target, compiler),
        "the CPU engine could not be built (", "kernels.cpp:1:", "nothing_of_that_name", kind=ExecutorError,
    )  # fmt: skip
    assert "kernels.cpp" in "\n".join(error.__notes__)
    assert list(target.parent.iterdir()) == []


def test_a_link_that_fails(sources: Path, tmp_path: Path, fake: Compiler) -> None:
    fake.become(refuses=["-shared"])
    refused(
        lambda: build.compile(sources, tmp_path / "engine.so", fake.command, "x86_64"),
        "could not be linked (-shared: error: refused by the compiler).", kind=ExecutorError,
    )  # fmt: skip
    assert not (tmp_path / "engine.so").exists()


def test_a_compiler_that_is_not_there(sources: Path, tmp_path: Path) -> None:
    refused(
        lambda: build.compile(sources, tmp_path / "engine.so", [str(tmp_path / "gone")]),
        "could not be built (", "gone: error:", kind=ExecutorError,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["engine.cpp", "kernels.cpp"])
def test_sources_that_are_missing(sources: Path, tmp_path: Path, fake: Compiler, name: str) -> None:
    (sources / name).unlink()
    refused(
        lambda: build.compile(sources, tmp_path / "engine.so", fake.command),
        sources, f"{name} is missing. Install Glassformer again.", kind=ExecutorError,
    )  # fmt: skip


def test_a_library_in_use_stays_where_it_cannot_be_replaced(
    sources: Path, tmp_path: Path, fake: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.replace

    def busy(self: Path, target: Path) -> Path:
        if target.suffix == ".so":
            raise PermissionError(errno.EACCES, "in use")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", busy)
    with pytest.raises(PermissionError):
        build.compile(sources, tmp_path / "engine.so", fake.command)
    (tmp_path / "engine.so").write_text("in use", "utf-8")
    assert build.compile(sources, tmp_path / "engine.so", fake.command).read_text("utf-8") == "in use"


# Compilers ------------------------------------------------------------------------------------------------------


def program(folder: Path, name: str, compiler: Compiler) -> None:
    """A compiler under a name on the PATH."""
    if sys.platform == "win32":
        (folder / f"{name}.bat").write_text(f"@{subprocess.list2cmdline(compiler.command)} %*\n", "utf-8")
    else:
        (folder / name).write_text(f'#!/bin/sh\nexec {compiler} "$@"\n', "utf-8")
        (folder / name).chmod(0o755)


def test_first_working_compiler_is_taken(no_compiler: Path, tmp_path: Path) -> None:
    old, new = Compiler(tmp_path / "old", refuses=["-std=c++17"]), Compiler(tmp_path / "new")
    program(no_compiler, "g++", old)
    program(no_compiler, "clang++", new)
    (found,) = build.find_compiler()
    assert Path(found).stem == "clang++"
    assert len(old.calls) == len(new.calls) == 1


def test_CXX_wins(no_compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(no_compiler, "c++", Compiler(tmp_path / "other"))
    monkeypatch.setenv("CXX", str(mine := Compiler(tmp_path / "with a space")))
    assert build.find_compiler() == mine.command


def test_CXX_may_be_a_path_with_a_space(no_compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "with a space"
    folder.mkdir()
    program(folder, "mine", Compiler(tmp_path / "mine"))
    (path,) = folder.iterdir()
    monkeypatch.setenv("CXX", str(path))
    assert build.find_compiler() == [str(path)]


def test_no_compiler_is_an_error_with_help(no_compiler: Path, sources: Path) -> None:
    assert build.find_library(sources) is None
    words = ("no C++ compiler was found", build.COMPILER_HELP.get(sys.platform, build.DEFAULT_COMPILER_HELP))
    refused(build.find_compiler, *words, kind=ExecutorError)
    refused(lambda: build.library(sources=sources), *words, "the CPU engine is built with one", kind=ExecutorError)


@pytest.mark.parametrize(("system", "fix"), [
    ("linux", "apt-get install g++"), ("darwin", "xcode-select --install"), ("win32", "MinGW-w64"),
])  # fmt: skip
def test_each_system_has_its_own_compiler_help(
    no_compiler: Path, monkeypatch: pytest.MonkeyPatch, system: str, fix: str
) -> None:
    monkeypatch.setattr(build.sys, "platform", system)
    assert fix in build._compiler_help()


@pytest.mark.parametrize("value", ["no-such-compiler", "no-such-compiler -m64", "g++ 'oops"])
def test_CXX_that_names_no_compiler_is_refused(
    no_compiler: Path, sources: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("CXX", value)
    words = ("no C++ compiler was found", f"CXX is set to {value!r}: set it to one that is here, or unset it.")
    refused(lambda: build.library(sources=sources), *words, kind=ExecutorError)


def test_compilers_without_cpp17_are_refused(no_compiler: Path, tmp_path: Path) -> None:
    program(no_compiler, "g++", Compiler(tmp_path / "old", refuses=["-std=c++17"]))
    words = ("no C++17 library can be built with", "g++", "(-std=c++17: error: refused by the compiler).")
    refused(build.find_compiler, *words, kind=ExecutorError)


@pytest.mark.skipif(sys.platform == "win32", reason="made of what Unix has")
@pytest.mark.parametrize("installed", [True, False])
def test_xcode_stub_is_no_compiler(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build.sys, "platform", "darwin")
    monkeypatch.setattr(build.shutil, "which", lambda name: f"/usr/bin/{name}" if name == "c++" else None)
    monkeypatch.setattr(build, "_run", lambda command: None if installed else f"{command}: error: no tools")
    assert build._compilers() == ([["/usr/bin/c++"]] if installed else [])


# Keeping --------------------------------------------------------------------------------------------------------


def test_library_is_built_once_and_cached(empty_home: Path, sources: Path, compiler: list[str], messages: list[str],
                             monkeypatch: pytest.MonkeyPatch, fake: Compiler) -> None:  # fmt: skip
    monkeypatch.delenv("GLASS_REBUILD", raising=False)
    fake.become(real=compiler)
    monkeypatch.setenv("CXX", str(fake))
    assert build.find_library(sources) is None
    path = build.library(sources=sources)
    assert works(path, build.needed_levels())
    assert path.parent == empty_home / "native"
    assert cached_files(empty_home) == {build.SUFFIX, "lock"}
    calls = len(fake.calls)
    assert build.library(sources=sources) == build.find_library(sources) == path
    assert len(fake.calls) == calls
    assert messages[0] == f"building the CPU engine, once, for this processor: {', '.join(build.needed_levels())}"
    parts = 2 + len(build.needed_levels())
    assert [line.partition(" after ")[0] for line in messages[1:]] == [
        f"building the CPU engine: {done} of {parts} parts are ready" for done in range(1, parts)
    ]


@pytest.mark.parametrize(
    ("architecture", "features", "needed"),
    [
        ("x86_64", "fma avx2 f16c bmi2 sse4_2", ["avx2"]),
        ("x86_64", "fma avx2 f16c bmi2 avx_vnni", ["avxvnni"]),
        ("x86_64", "avx2 fma f16c bmi2 avx512f avx512dq avx512bw avx512vl avx512_vnni", ["avx512vnni"]),
        ("x86_64", "avx512f avx512dq avx512bw avx512vl avx512_vnni amx_tile amx_bf16 amx_int8", ["avx512vnni", "amx"]),
        ("x86_64", "Intel64 Family 6", ["portable", "avx2", "avxvnni", "avx512vnni", "amx"]),
        ("aarch64", "fp asimd asimddp", ["dotprod"]),
        ("aarch64", "fp asimd", ["neon"]),
        ("arm64", "arm", ["portable", "neon", "dotprod"]),
        ("riscv64", "rv64imafdc", ["portable"]),
    ],
)
def test_a_processor_needs_its_best_level_alone(
    architecture: str,
    features: str,
    needed: list[str],
    monkeypatch: pytest.MonkeyPatch,
    chosen_compiler: Compiler,
    sources: Path,
) -> None:
    monkeypatch.delenv("GLASS_LEVEL", raising=False)
    monkeypatch.setattr(build.platform, "machine", lambda: architecture)
    monkeypatch.setattr(build, "_features", lambda: features)
    path = build.library(sources=sources)
    (engine,) = chosen_compiler.calls_with("engine.cpp")
    assert [word for word in engine if word.startswith("-D")] == [f"-DLEVEL_{level}=1" for level in needed]
    assert build.library(sources=sources) == path
    whole = build.library(sources=sources, every_level=True)
    assert whole != path
    assert build.library(sources=sources) == whole  # which has it too
    monkeypatch.setenv("GLASS_LEVEL", "portable")
    assert build.library(sources=sources) == whole


def test_GLASS_LEVEL_is_built_if_it_is_not_there(
    chosen_compiler: Compiler, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLASS_LEVEL", raising=False)
    best = build.library(sources=sources)
    monkeypatch.setenv("GLASS_LEVEL", "portable")
    assert build.find_library(sources) is None
    assert build.library(sources=sources) != best
    assert "-DLEVEL_portable=1" in chosen_compiler.calls_with("engine.cpp")[-1]


def test_a_level_that_the_compiler_lacks_is_replaced_by_those_it_knows(
    sources: Path, tmp_path: Path, fake: Compiler
) -> None:
    fake.become(refuses=["avx512vnni"])
    build.compile(sources, tmp_path / "engine.so", fake.command, "x86_64", wanted=["avx512vnni", "amx"])
    (engine,) = fake.calls_with("engine.cpp")
    assert [word for word in engine if word.startswith("-D")] == [
        f"-DLEVEL_{level}=1" for level in ("portable", "avx2", "avxvnni")
    ]


def test_cache_key_covers_sources_flags_compiler_and_machine(
    chosen_compiler: Compiler, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [build.library(sources=sources)]
    for name in ("shared.h", "kernels.cpp"):
        with (sources / name).open("a", encoding="utf-8") as file:
            file.write("// changed\n")
        assert build.find_library(sources) is None
        paths.append(build.library(sources=sources))
    paths.append(build.library(sources=sources, extra=["-g"]))
    chosen_compiler.become(version="fake 2.0")
    paths.append(build.library(sources=sources))
    monkeypatch.setattr(build, "_features", lambda: "another CPU")
    paths.append(build.library(sources=sources))
    monkeypatch.setattr(build.platform, "machine", lambda: "another architecture")
    paths.append(build.library(sources=sources))
    assert len(set(paths)) == len(paths) == 7
    assert all(path.exists() for path in paths)


def test_cached_library_outlives_its_compiler(
    chosen_compiler: Compiler, sources: Path, monkeypatch: pytest.MonkeyPatch, no_compiler: Path
) -> None:
    monkeypatch.setenv("CXX", str(chosen_compiler))
    path = build.library(sources=sources)
    monkeypatch.delenv("CXX")
    assert build.library(sources=sources) == path


def test_GLASS_REBUILD_builds_again(chosen_compiler: Compiler, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build.library(sources=sources)
    calls = len(chosen_compiler.calls)
    monkeypatch.setenv("GLASS_REBUILD", "1")
    assert build.library(sources=sources) == path
    assert len(chosen_compiler.calls) == 2 * calls


def test_failed_build_is_recorded(
    chosen_compiler: Compiler, sources: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch, messages: list[str]
) -> None:
    chosen_compiler.become(refuses=["kernels.cpp"])

    def fails() -> Path:
        return build.library(sources=sources)

    first = refused(fails, "could not be built (kernels.cpp: error: refused by the compiler)", kind=ExecutorError)
    (log,) = (empty_home / "native").glob("*.log")
    assert f"What the compiler said is in {log}; GLASS_REBUILD=1 tries again." in str(first)
    assert log.read_text("utf-8").count("refused by the compiler") > 1
    assert cached_files(empty_home) == {".log", "parts", "lock"}
    calls = len(chosen_compiler.calls)
    assert str(refused(fails, kind=ExecutorError)) == str(first)
    assert len(chosen_compiler.calls) == calls
    assert sum(line.startswith("building the CPU engine, once") for line in messages) == 1
    monkeypatch.setenv("GLASS_REBUILD", "1")
    refused(fails, kind=ExecutorError)
    assert len(chosen_compiler.calls) > calls
    monkeypatch.delenv("GLASS_REBUILD")
    chosen_compiler.become()  # which is noticed
    assert fails().exists()


@pytest.mark.parametrize("change", ["source", "compiler"])
def test_failed_build_is_retried_when_something_changes(chosen_compiler: Compiler, sources: Path, change: str) -> None:
    chosen_compiler.become(refuses=["-std=c++17"])
    refused(lambda: build.library(sources=sources), "no C++17 library can be built with", kind=ExecutorError)
    if change == "source":
        chosen_compiler.become()
        (sources / "more.h").touch()
    else:
        chosen_compiler.become(version="fake 2.0")
    assert build.library(sources=sources).exists()


def test_interrupted_build_leaves_whole_parts_which_are_taken_up(
    chosen_compiler: Compiler, sources: Path, empty_home: Path
) -> None:
    def interrupt(what: str, done: int, steps: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build.library(interrupt, sources)
    assert cached_files(empty_home) == {"parts", "lock"}
    calls = len(chosen_compiler.calls_with("kernels.cpp")), len(chosen_compiler.calls_with("engine.cpp"))
    assert build.library(sources=sources).exists()
    assert (len(chosen_compiler.calls_with("kernels.cpp")), len(chosen_compiler.calls_with("engine.cpp"))) == calls
    assert cached_files(empty_home) == {build.SUFFIX, "lock"}


def test_GLASS_REBUILD_takes_up_no_part(
    chosen_compiler: Compiler, sources: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_interrupted_build_leaves_whole_parts_which_are_taken_up(chosen_compiler, sources, empty_home)
    (empty_home / "native" / "parts-of-another").mkdir()
    calls = len(chosen_compiler.calls_with("kernels.cpp"))
    monkeypatch.setenv("GLASS_REBUILD", "1")
    build.library(sources=sources)
    assert len(chosen_compiler.calls_with("kernels.cpp")) == 2 * calls
    assert cached_files(empty_home) == {build.SUFFIX, "lock"}


def builder(sources: Path) -> subprocess.Popen[str]:
    """Another process that wants the library."""
    code = "import sys, pathlib; from glassformer.engine.cpu import build; "
    code += "print(build.library(sources=pathlib.Path(sys.argv[1])))"
    command = [sys.executable, "-c", code, str(sources)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_build_one_library(chosen_compiler: Compiler, sources: Path) -> None:
    chosen_compiler.hold()
    first = builder(sources)
    chosen_compiler.await_begun()
    second = builder(sources)
    assert second.stderr is not None
    assert second.stderr.readline() == "another process is building the CPU engine: waiting for it\n"
    chosen_compiler.release()
    (path, note), (same, nothing) = first.communicate(timeout=patience(60)), second.communicate(timeout=patience(60))
    assert path == same != ""
    assert note.startswith("building the CPU engine, once")
    assert nothing == ""
    assert len(chosen_compiler.calls_with("engine.cpp")) == 1


def test_a_killed_build_is_taken_up_where_it_was(
    chosen_compiler: Compiler, sources: Path, empty_home: Path, compiler: list[str]
) -> None:
    chosen_compiler.become(real=compiler)
    chosen_compiler.hold()
    victim = builder(sources)
    await_file(empty_home / "native", "parts-*/engine-*.o")
    chosen_compiler.await_begun()
    victim.kill()  # its compilers live on, but those of the kernels are held and no other is left
    assert victim.communicate(timeout=patience(60))[0] == ""
    assert cached_files(empty_home) == {"building", "parts", "lock"}
    chosen_compiler.release()
    assert works(build.library(sources=sources), build.needed_levels())
    assert len(chosen_compiler.calls_with("engine.cpp")) == 1
    assert cached_files(empty_home) - {"building"} == {build.SUFFIX, "lock"}


@pytest.fixture
def package(tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation whose native sources are the stand-ins."""
    root = Path(build.__file__).parents[3]
    here = tmp_path / "installed"
    shutil.copytree(
        root / "glassformer", here / "glassformer", ignore=shutil.ignore_patterns("native", "static", "__pycache__")
    )
    native = write_sources(here / "glassformer" / "engine" / "cpu" / "native")
    monkeypatch.setattr(build, "NATIVE", native)
    monkeypatch.setattr(build, "__file__", str(native.with_name("build.py")))
    monkeypatch.setattr(build.find_library, "__defaults__", (native, (), False))


@pytest.mark.usefixtures("package")
def test_a_build_that_takes_long_is_not_waited_for(
    chosen_compiler: Compiler, empty_home: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLASS_LIBRARY", raising=False)
    chosen_compiler.hold()
    waited: list[bool] = []
    while not (chosen_compiler.folder / "begun").exists():  # a machine may be slow to start the builder at all
        waited.append(build.await_library(1.0))
    assert not any(waited)
    assert build.find_library() is None
    chosen_compiler.release()
    assert build.await_library(3600.0)  # which finds the other build at work, or done
    assert build.find_library() is not None
    assert build.await_library(0.0)


@pytest.mark.skipif(sys.platform == "win32", reason="process groups are POSIX's")
@pytest.mark.usefixtures("package")
def test_an_interrupt_ends_the_compilers_too(chosen_compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen_compiler.hold()

    def interrupt(seconds: float) -> None:
        if (chosen_compiler.folder / "begun").exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(build.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build.await_library(3600.0)
    monkeypatch.undo()
    compilers = [int(path.name.rpartition("-")[2]) for path in (chosen_compiler.folder / "calls").iterdir()]
    wait_until(lambda: not any(is_running(process) for process in compilers))


def is_running(process: int) -> bool:
    """Whether it has not ended; one that nobody has waited for yet has."""
    stat = Path(f"/proc/{process}/stat")
    try:
        os.kill(process, 0)
        return not stat.is_file() or ") Z" not in stat.read_text("utf-8")
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.usefixtures("package")
def test_notes_of_a_build_in_another_process_are_passed_on(chosen_compiler: Compiler, messages: list[str]) -> None:
    assert build.await_library(3600.0)
    assert messages[0].startswith("building the CPU engine, once, for this processor: ")
    assert "building the CPU engine: 1 of " in messages[1]


@pytest.mark.usefixtures("package")
def test_a_build_that_fails_is_not_waited_for_longer(chosen_compiler: Compiler) -> None:
    chosen_compiler.become(refuses=["kernels.cpp"])
    assert build.await_library(3600.0)
    assert build.find_library() is None


def test_a_file_system_without_locks(
    chosen_compiler: Compiler, sources: Path, monkeypatch: pytest.MonkeyPatch, messages: list[str]
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    if sys.platform == "win32":
        import msvcrt

        monkeypatch.setattr(msvcrt, "locking", unsupported)
    else:
        import fcntl

        monkeypatch.setattr(fcntl, "flock", unsupported)
    assert build.library(sources=sources).exists()
    assert messages[0].startswith("building the CPU engine, once")


def test_a_home_that_cannot_be_written_to(
    chosen_compiler: Compiler, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GLASS_HOME", str(tmp_path / "file"))
    words = (tmp_path / "file" / "native", "cannot be kept there (", "or set GLASS_HOME to another folder.")
    refused(lambda: build.library(sources=sources), *words, kind=ExecutorError)


def test_unused_libraries_are_removed(chosen_compiler: Compiler, sources: Path) -> None:
    old = build.library(sources=sources)
    used = build.library(sources=sources, extra=["-g"])
    recent = build.library(sources=sources, extra=["-O1"])
    for path, days in ((old, 31), (used, 31), (recent, 29)):
        grow_old(path, days)
    assert build.find_library(sources, ["-g"]) == used
    build.library(sources=sources, extra=["-O2"])
    assert [path.exists() for path in (old, used, recent)] == [False, True, True]


# In the wheel ---------------------------------------------------------------------------------------------------


def test_the_wheels_own_is_taken_first(chosen_compiler: Compiler, sources: Path, built_library: Path) -> None:
    shutil.copy(built_library, build.prebuilt(sources))
    assert build.library(sources=sources) == build.find_library(sources) == build.prebuilt(sources)
    assert chosen_compiler.calls == []


@pytest.mark.parametrize("reason", ["source", "flags", "asked"])
def test_the_wheels_own_is_not_taken_for_another(
    chosen_compiler: Compiler,
    sources: Path,
    built_library: Path,
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
    empty_home: Path,
) -> None:
    shutil.copy(built_library, build.prebuilt(sources))
    if reason == "source":
        (sources / "shared.h").write_text("", "utf-8")
    if reason == "asked":
        monkeypatch.setenv("GLASS_REBUILD", "1")
    path = build.library(sources=sources, extra=["-g"] if reason == "flags" else [])
    assert path.parent == empty_home / "native"


def test_the_wheels_own_that_does_not_load_here(chosen_compiler: Compiler, sources: Path, empty_home: Path) -> None:
    build.prebuilt(sources).write_bytes(b"for a newer system")
    assert build.library(sources=sources).parent == empty_home / "native"


def test_build_needs_only_the_standard_library(sources: Path) -> None:
    """As for the wheel's build hook, where nothing is installed."""
    root = Path(build.__file__).parents[3]
    code = f"import sys; sys.path.insert(0, {str(root)!r}); from glassformer.engine.cpu import build; print(build.NATIVE); "
    code += "assert not {'numpy', 'torch'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(build.NATIVE)
