"""Every level's kernels against a slow statement of what they mean: native/kernels_test.cpp, built and run.

Levels that this machine cannot run are run elsewise, by the sweeps: those of the other architecture are cross-compiled and
run under qemu, and AVX-512, which qemu does not know, is run through SIMDe's portable statement of its instructions; AMX's
are stated in native/tiles, for processors that have AVX-512. AVX-VNNI is tested on processors that have it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from glassformer.engine.cpu import build, library
from tests.engine.compiled import kept

pytestmark = pytest.mark.processes

HERE = Path(__file__).with_name("native")
SANITISED = ("-O1", "-g1", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
CROSS = {"x86_64": "x86-64-linux-gnu", "aarch64": "aarch64-linux-gnu"}  # Debian's names of the compilers' packages
BEYOND_QEMU = {"avxvnni", "avx512vnni", "amx"}
IN_SIMDE = {"avx512vnni"}


@pytest.fixture(scope="module")
def here(compiler: list[str]) -> dict[str, build.Flags]:
    """The levels that this machine can run, best first, and their flags."""
    known = build.levels(build.machine())
    return {level: known[level] for level in library.levels()}


def run(command: Sequence[str | Path]) -> str:
    """What a command says; it must do its work."""
    words = [str(word) for word in command]
    misaligned = build.machine() == "x86_64"  # ASan's own stack, which gcc 13 does not align for 512-bit vectors
    aligned = {"ASAN_OPTIONS": "detect_stack_use_after_return=0"} if misaligned else {}
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", env={**os.environ, **aligned}
    )
    if done.returncode:
        pytest.fail(f"{words[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-4000:]}", pytrace=False)
    return done.stdout


def make(folder: Path, compiler: Sequence[str], levels: Mapping[str, build.Flags], extra: Sequence[str] = ()) -> Path:
    """The program with the kernels of these levels."""
    names = [f"-DLEVEL_{level}=1" for level in levels]
    jobs = {"test": [HERE / "kernels_test.cpp", "-O1", *names, f"-I{build.NATIVE}"]}
    jobs |= {level: [build.NATIVE / "kernels.cpp", f"-DLEVEL={level}", *flags] for level, flags in levels.items()}
    objects = [folder / f"{name}.o" for name in jobs]
    commands = [
        [*compiler, *build.COMMON, *given, *extra, "-c", "-o", target]
        for given, target in zip(jobs.values(), objects, strict=True)
    ]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(run, commands))
    program = folder / "kernels_test"
    static = build.STATIC_RUNTIME[build.SUFFIX] if sys.platform == "win32" else ()
    run([*compiler, *build.COMMON, *extra, *static, *objects, "-o", program])
    return program


def found(program: str, package: str) -> str:
    """Where a program is; what needs it is skipped if it is not here, for only sweeps do."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed (Debian, Ubuntu: apt-get install {package})")
    return path


def shared(kernels: Path, level: str) -> list[str]:
    """What a level's object shows besides its table.

    Of several functions with one name the linker keeps any, perhaps one whose instructions the processor lacks.
    """
    if sys.platform != "linux" or (names := shutil.which("nm")) is None:
        return []
    symbols = (line.split() for line in run([names, "-g", "-P", kernels]).splitlines())
    return [name for name, kind, *_ in symbols if kind not in "Uw" and f"kernels_{level}" not in name]


def test_kernels_of_the_best_level(compiler: list[str], here: dict[str, build.Flags]) -> None:
    best = next(iter(here))
    unoptimized = (*here["portable"], "-O0")  # what the best one's are compared with, compiled in a moment
    levels = {"portable": unoptimized, best: here[best]}
    command = [*compiler, *build.COMMON, *(word for level, flags in levels.items() for word in (level, *flags))]
    sources = [*sorted(build.NATIVE.iterdir()), HERE / "kernels_test.cpp", Path(__file__)]
    folder = kept("kernels", command, sources, lambda folder: make(folder, compiler, levels))
    assert run([folder / "kernels_test", best]) == f"{best}: all is well\n"
    assert shared(folder / f"{best}.o", best) == []


@pytest.mark.sweep
def test_kernels_of_all_levels(tmp_path: Path, compiler: list[str], here: dict[str, build.Flags]) -> None:
    program = make(tmp_path, compiler, here)
    for level in here:
        assert run([program, level]) == f"{level}: all is well\n"
        assert shared(tmp_path / f"{level}.o", level) == []


@pytest.mark.sweep
@pytest.mark.parametrize("sanitisers", ["address,undefined", "thread"])
def test_kernels_of_all_levels_with_sanitizers(
    tmp_path: Path, compiler: list[str], here: dict[str, build.Flags], sanitisers: str
) -> None:
    program = make(tmp_path, compiler, here, (*SANITISED, f"-fsanitize={sanitisers}"))
    for level in here:
        assert run([program, level]) == f"{level}: all is well\n"


@pytest.mark.sweep
@pytest.mark.parametrize("architecture", CROSS)
def test_kernels_of_another_architecture_under_qemu(tmp_path: Path, architecture: str) -> None:
    if architecture == build.machine():
        pytest.skip(f"this machine is {architecture} itself, and runs its levels without qemu")
    triple = f"{architecture}-linux-gnu"
    compiler = found(f"{triple}-g++", f"g++-{CROSS[architecture]}")
    emulator = found(f"qemu-{architecture}", "qemu-user")
    levels = build.levels(architecture)
    program = make(tmp_path, [compiler], levels)
    for level in levels:
        if level not in BEYOND_QEMU:
            said = run([emulator, "-L", f"/usr/{triple}", "-cpu", "max", program, level])
            assert said == f"{level}: all is well\n"


@pytest.mark.sweep
def test_kernels_of_amx_with_its_instructions_in_plain_numbers(
    tmp_path: Path, compiler: list[str], here: dict[str, build.Flags]
) -> None:
    if "avx512vnni" not in here:
        pytest.skip("this processor has no AVX-512, which AMX needs for all but its own instructions")
    flags = (*build.levels(build.machine())["amx"], f"-I{HERE / 'tiles'}")
    program = make(tmp_path, compiler, {"portable": (*here["portable"], "-O0"), "amx": flags})
    assert run([program, "amx"]) == "amx: all is well\n"


@pytest.mark.sweep
@pytest.mark.parametrize("level", sorted(IN_SIMDE))
def test_kernels_beyond_qemu_through_simde(tmp_path: Path, compiler: list[str], level: str) -> None:
    shim = f"-I{HERE / 'simde'}"
    probe = tmp_path / "probe.cpp"
    probe.write_text("#include <simde/x86/avx512.h>\n", "utf-8")
    if subprocess.run([*compiler, "-E", str(probe)], capture_output=True).returncode:
        pytest.skip("SIMDe's headers are not installed (Debian, Ubuntu: apt-get install libsimde-dev)")
    plain = build.levels(build.machine())["portable"]
    program = make(tmp_path, compiler, {"portable": plain, level: (*plain, shim)})
    assert run([program, level]) == f"{level}: all is well\n"
