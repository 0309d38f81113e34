"""The native library: the wheel's, or one that was built here before, or built now with the machine's compiler.

`engine.cpp` is compiled once for the baseline of its architecture, `kernels.cpp` once per level of vector instructions; both
make one shared library, and the level is chosen at run time. A library that was built here is kept below `home()/native`;
its name is a hash of everything it depends on, so that a changed source, flag, compiler or machine means another file. It
is put there atomically.

This module needs only the standard library, because the wheel's build hook uses it too.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from glassformer.atomic_files import sync_tree, temporary_folder, write_text
from glassformer.errors import ExecutorError
from glassformer.file_lock import try_lock
from glassformer.progress import NamedProgress

Flags: TypeAlias = tuple[str, ...]

NATIVE = Path(__file__).with_name("native")
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
AVX2: Flags = ("-mavx2", "-mfma", "-mf16c", "-mbmi2")
AVX512: Flags = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni")
AMX: Flags = ("-mamx-tile", "-mamx-bf16")
LEVELS: dict[str, dict[str, Flags]] = {  # portable is a fallback only, and takes a minute with -O3
    "x86_64": {
        "portable": ("-march=x86-64", "-O2"),
        "avx2": AVX2,
        "avxvnni": (*AVX2, "-mavxvnni"),
        "avx512vnni": AVX2 + AVX512,
        "amx": AVX2 + AVX512 + AMX,
    },
    "aarch64": {
        "portable": ("-march=armv8-a", "-O2"),
        "neon": ("-march=armv8-a",),
        # Instruction scheduling is a tenth of the speed. To g++ all such cores are alike; with clang this one is the best.
        "dotprod": ("-march=armv8.2-a+dotprod+fp16", "-mtune=neoverse-n1"),
    },
}
OTHER_MACHINES: dict[str, Flags] = {"portable": ()}  # machines that are not in LEVELS
MACHINE_ALIASES = {"amd64": "x86_64", "arm64": "aarch64"}
COMMON: Flags = ("-std=c++17", "-O3", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-pthread")
STATIC_RUNTIME: dict[str, Flags] = {  # link the compiler's own libraries in, so that the machine need not have them
    ".so": ("-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL"),
    ".dll": ("-static",),
}
COMPILER_HELP = {
    "darwin": "Install one with 'xcode-select --install', or set CXX to one.",
    "win32": "Install the g++ of MinGW-w64 and put it on the PATH, or set CXX to one.",
}
DEFAULT_COMPILER_HELP = "Install g++ (Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++), or set CXX to one."
PROBE = """
#include <thread>
#include <optional>
template <typename T> int size() { if constexpr (sizeof(T) == 1) return 1; else return 2; }
extern "C" int probe() { std::optional<int> one; std::thread([&] { one = size<char>(); }).join(); return *one; }
"""
DAY = 86_400

note = logging.getLogger("glassformer").warning


def library(progress: NamedProgress | None = None, sources: Path = NATIVE, extra: Sequence[str] = ()) -> Path:
    """The library of these sources, built now if there is none yet; `extra` flags give another one.

    A failed build is recorded with the compiler's output, so that not every start tries again, until the sources, flags or
    compilers change. GLASS_REBUILD=1 ignores what is cached and recorded.
    """
    rebuild = bool(os.environ.get("GLASS_REBUILD"))
    try:
        return (None if rebuild else find_library(sources, extra)) or _build_locked(sources, extra, progress, rebuild)
    except OSError as error:
        raise ExecutorError(
            f"{_cache_folder()}: the CPU engine cannot be kept there ({error.strerror or error}). "
            "Fix that, or set GLASS_HOME to another folder."
        ) from error


def find_library(sources: Path = NATIVE, extra: Sequence[str] = ()) -> Path | None:
    """The library if it is already on this machine, in the wheel or built before, else None."""
    ready = prebuilt(sources)
    if not extra and ready.exists() and _loads(ready):
        return ready
    source_key, compilers = _source_key(sources, extra), _compilers()
    paths = (_cached_path(source_key, compiler) for compiler in compilers)
    cached = next((path for path in paths if path.exists()), None)
    if cached is None and not compilers:  # one that a compiler built which is gone now is still good
        cached = max(_cache_folder().glob(f"engine-{source_key}-*{SUFFIX}"), key=_last_use, default=None)
    if cached is not None:
        _mark_used(cached)
    return cached


def prebuilt(sources: Path = NATIVE) -> Path:
    """Where a wheel's library is, if the wheel was built from these very sources."""
    return sources / f"engine-{_fingerprint(sources, machine(), ())}{SUFFIX}"


# Compiling ------------------------------------------------------------------------------------------------------


def machine() -> str:
    """The name of the architecture in LEVELS, or its own; in a cross-build, of the target."""
    name = os.environ.get("_PYTHON_HOST_PLATFORM", "").rpartition("-")[2] or platform.machine()
    return MACHINE_ALIASES.get(name.lower(), name.lower())


def levels(architecture: str) -> dict[str, Flags]:
    """Which levels an architecture has, and the flags of each; the first is the baseline."""
    return LEVELS.get(MACHINE_ALIASES.get(architecture.lower(), architecture.lower()), OTHER_MACHINES)


def find_compiler() -> list[str]:
    """The command of the first compiler here that builds a C++17 library: CXX, else c++, g++ or clang++."""
    compilers = _compilers()
    if not compilers:
        raise ExecutorError(f"no C++ compiler was found. {_compiler_help()}")
    failures = []
    with tempfile.TemporaryDirectory(prefix="glassformer-", ignore_cleanup_errors=True) as folder:
        source = Path(folder, "probe.cpp")
        source.write_text(PROBE, "utf-8")
        for compiler in compilers:
            probe = Path(folder, f"probe{SUFFIX}")
            failure = _run([*compiler, *_common_flags(probe), _shared_flag(probe), str(source), "-o", str(probe)])
            if failure is None:
                return compiler
            failures.append(failure)
    names = ", ".join(shlex.join(compiler) for compiler in compilers)
    raise _build_error(
        f"no C++17 library can be built with {names} ({_error_line(failures[0])}). {_compiler_help()}", *failures
    )


def compile(  # noqa: A001  as in re.compile
    sources: Path,
    target: Path,
    compiler: Sequence[str],
    architecture: str | None = None,
    extra: Sequence[str] = (),
    progress: NamedProgress | None = None,
    every_level: bool = False,
) -> Path:
    """Build the library of a folder's engine.cpp and kernels.cpp; `target` is written atomically.

    Levels whose flags the compiler does not know are left out, or an error with `every_level`. The others are passed to
    engine.cpp as LEVEL_name=1.
    """
    for name in ("engine.cpp", "kernels.cpp"):
        if not (sources / name).is_file():
            raise ExecutorError(f"{sources}: {name} is missing. Install Glassformer again.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(target.parent, "building-") as work:
        common, candidates = [*compiler, *_common_flags(target)], levels(architecture or machine())
        supported = _supported_levels(candidates, common, work)
        if every_level and (unknown := [level for level in candidates if level not in supported]):
            raise ExecutorError(f"{shlex.join(compiler)} cannot build {', '.join(unknown)}. Set CXX to a newer compiler.")
        jobs = {"engine": ["engine.cpp", *next(iter(supported.values())), *(f"-DLEVEL_{level}=1" for level in supported)]}
        jobs |= {level: ["kernels.cpp", f"-DLEVEL={level}", *flags] for level, flags in supported.items()}
        commands = [
            [*common, *flags, *extra, "-c", str(sources / source), "-o", str(work / f"{name}.o")]
            for name, (source, *flags) in jobs.items()
        ]

        def report(done: int) -> None:
            if progress:
                progress("the CPU engine", done, len(commands) + 1)

        if failures := [failure for failure in _run_parallel(commands, report) if failure is not None]:
            raise _build_error(f"the CPU engine could not be built ({_error_line(failures[0])}).", *failures)
        _link([*common, *extra], [work / f"{name}.o" for name in jobs], work / target.name)
        _move_into_place(work / target.name, target)
        report(len(commands) + 1)
    return target


def _compilers() -> list[list[str]]:
    """The commands that may be C++ compilers, each program once; only CXX where it is set."""
    if command := os.environ.get("CXX"):
        words = [command] if shutil.which(command) else _split_command(command)
        return [words] if words and shutil.which(words[0]) else []
    compilers: dict[Path, list[str]] = {}
    for name in ("c++", "g++", "clang++"):
        if (path := shutil.which(name)) and not _is_xcode_stub(path):
            compilers.setdefault(Path(path).resolve(), [path])
    return list(compilers.values())


def _split_command(command: str) -> list[str]:
    """A command's words as a shell reads them; none where a quote is not closed."""
    try:
        return shlex.split(command)
    except ValueError:
        return []


def _is_xcode_stub(path: str) -> bool:
    """Whether this is macOS's stand-in for a compiler that is not installed; running it opens a window."""
    if sys.platform != "darwin" or Path(path).parent != Path("/usr/bin"):
        return False
    return _run(["xcode-select", "-p"]) is not None


def _compiler_help() -> str:
    if command := os.environ.get("CXX"):
        return f"CXX is set to {command!r}: set it to one that is here, or unset it."
    return COMPILER_HELP.get(sys.platform, DEFAULT_COMPILER_HELP)


def _compiler_identity(compiler: Sequence[str]) -> str:
    """A compiler's command, and the size and time of each file in it; asking for its version would delay every start."""
    parts = []
    for word in compiler:
        program = Path(shutil.which(word) or word)
        status = program.stat() if program.is_file() else None
        parts.append(f"{word} {status.st_size} {status.st_mtime_ns}" if status else word)
    return "\n".join(parts)


def _common_flags(target: Path) -> Flags:
    return COMMON if target.suffix == ".dll" else (*COMMON, "-fPIC")


def _shared_flag(target: Path) -> str:
    return "-dynamiclib" if target.suffix == ".dylib" else "-shared"


def _supported_levels(candidates: dict[str, Flags], common: Sequence[str], work: Path) -> dict[str, Flags]:
    """The levels whose flags the compiler knows, and always the first: if it is not, the build itself will say why."""
    empty = work / "empty.cpp"
    empty.touch()
    commands = [
        [*common, *flags, "-c", str(empty), "-o", str(work / f"empty-{level}.o")] for level, flags in candidates.items()
    ]
    supported = [failure is None for failure in _run_parallel(commands)]
    return {level: flags for number, (level, flags) in enumerate(candidates.items()) if supported[number] or number == 0}


def _link(common: Sequence[str], objects: Sequence[Path], output: Path) -> None:
    """Link all objects to one library, with the compiler's own libraries inside if their static versions are here."""
    command = [*common, _shared_flag(output), *map(str, objects), "-o", str(output)]
    sanitized = any(flag.startswith("-fsanitize") for flag in common)  # sanitizers need the shared ones
    static = () if sanitized else STATIC_RUNTIME.get(output.suffix, ())
    if static and _run([*command, *static]) is None:
        return
    if (failure := _run(command)) is not None:
        raise _build_error(f"the CPU engine could not be linked ({_error_line(failure)}).", failure)


def _run_parallel(commands: Sequence[Sequence[str]], report: Callable[[int], None] | None = None) -> list[str | None]:
    """Run commands, as many at a time as there are cores; for each one the result of `_run`."""
    results: list[str | None] = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for result in pool.map(_run, commands):
            results.append(result)
            if report:
                report(len(results))
    return results


def _run(command: Sequence[str]) -> str | None:
    """None if a command succeeds, else the command and its output."""
    try:
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", env=_english_environment()
        )
    except OSError as error:
        return f"{command[0]}: error: {error.strerror or error}"
    output = (process.stdout + process.stderr).strip() or f"exit status {process.returncode}"
    return None if process.returncode == 0 else f"$ {shlex.join(command)}\n{output}"


def _english_environment() -> dict[str, str]:
    """The environment in which compilers speak English, so that `_error_line` finds their errors."""
    return {**os.environ, "LC_ALL": "C"}


def _error_line(output: str) -> str:
    """The most telling line of a compiler's output."""
    lines = [line for line in output.splitlines() if not line.startswith(("$ ", "collect2:"))]
    return next((line for line in lines if "error:" in line), lines[0] if lines else "no reason given").rstrip(".")


def _build_error(message: str, *outputs: str) -> ExecutorError:
    """The error, with the compiler's full output as a note."""
    error = ExecutorError(message)
    error.add_note("\n".join(outputs))
    return error


def _move_into_place(built: Path, target: Path) -> None:
    """Replace the target atomically; on Windows one that is in use stays, and is the same."""
    sync_tree(built)
    try:
        built.replace(target)
    except PermissionError:
        if not target.exists():
            raise


# Caching --------------------------------------------------------------------------------------------------------


def _build_locked(sources: Path, extra: Sequence[str], progress: NamedProgress | None, rebuild: bool) -> Path:
    """Build, unless another process has done so meanwhile, or a failure is recorded."""
    compilers, folder = _compilers(), _cache_folder()
    if not compilers:
        raise ExecutorError(f"no C++ compiler was found, and the CPU engine is built with one. {_compiler_help()}")
    log = folder / f"engine-{_source_key(sources, extra)}-{_digest(*map(_compiler_identity, compilers))}.log"
    folder.mkdir(parents=True, exist_ok=True)
    with _build_lock(folder):
        if not rebuild and (cached := find_library(sources, extra)):
            return cached
        if not rebuild and log.exists():
            raise _recorded_failure(log)
        log.unlink(missing_ok=True)
        path = _build(sources, extra, log, progress)
        _remove_unused(folder)
    return path


def _build(sources: Path, extra: Sequence[str], log: Path, progress: NamedProgress | None) -> Path:
    """Build into the cache; a failure is recorded in the log."""
    note("building the CPU engine, once: about 20 s")
    try:
        compiler = find_compiler()
        return compile(
            sources, _cached_path(_source_key(sources, extra), compiler), compiler, extra=extra, progress=progress
        )
    except ExecutorError as error:
        write_text(log, "\n".join([str(error), *getattr(error, "__notes__", [])]))
        raise _recorded_failure(log) from error


def _recorded_failure(log: Path) -> ExecutorError:
    """The error of a build that failed, from its log."""
    message = log.read_text("utf-8").partition("\n")[0]
    return ExecutorError(f"{message} What the compiler said is in {log}; GLASS_REBUILD=1 tries again.")


def _cache_folder() -> Path:
    from glassformer.checkpoint.locate import home

    return home() / "native"


def _cached_path(source_key: str, compiler: Sequence[str]) -> Path:
    return _cache_folder() / f"engine-{source_key}-{_digest(_compiler_identity(compiler))}{SUFFIX}"


def _source_key(sources: Path, extra: Sequence[str]) -> str:
    """A hash of what a library depends on, except its compiler; machines may share a home folder."""
    return _digest(_fingerprint(sources, machine(), extra), sys.platform, *platform.libc_ver(), _features())


def _fingerprint(sources: Path, architecture: str, extra: Sequence[str]) -> str:
    """A hash of the sources, and of this file, which has the flags."""
    parts = [architecture, *extra, hashlib.sha256(Path(__file__).read_bytes()).hexdigest()]
    for path in sorted([*sources.rglob("*.cpp"), *sources.rglob("*.h")]):
        parts += [path.relative_to(sources).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()]
    return _digest(*parts)


def _features() -> str:
    """The CPU's features as the system lists them."""
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip().lower() in ("flags", "features", "isa"):
                return " ".join(sorted(value.split()))
    return platform.processor()


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _loads(path: Path) -> bool:
    """Whether this machine can load a library that was built on another, perhaps newer one."""
    import ctypes

    try:
        ctypes.CDLL(str(path))
    except OSError:
        return False
    return True


def _last_use(path: Path) -> float:
    """When a file was last used; 0 if it is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0


def _mark_used(path: Path) -> None:
    """Note that a library is in use, so that it is not removed."""
    if _last_use(path) < time.time() - DAY:
        with suppress(OSError):
            os.utime(path)


def _remove_unused(folder: Path) -> None:
    """Remove libraries unused for a month."""
    for path in folder.glob("engine-*"):
        if _last_use(path) < time.time() - 30 * DAY:
            with suppress(OSError):  # gone, or in use on Windows
                path.unlink()


@contextmanager
def _build_lock(folder: Path) -> Iterator[None]:
    """One build at a time; the system releases the lock when its process ends, in whatever way."""
    with (folder / "lock").open("wb") as file:
        if not try_lock(file):
            note("another process is building the CPU engine: waiting for it")
            while not try_lock(file):
                time.sleep(0.1)
        yield
