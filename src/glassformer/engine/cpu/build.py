"""The native library: the wheel's, or one that was built here before, or built now with the machine's compiler.

`engine.cpp` is compiled once for the baseline of its architecture, `kernels.cpp` once per level of vector instructions; both
make one shared library, and the level is chosen at run time. A wheel's library has every level; one that is built here has
the level that this processor runs, which takes a third of the time. It is kept below `home()/native`; its name is a hash of
everything it depends on, so that a changed source, flag, compiler or machine means another file. It is put there atomically,
and so is each part that was compiled for it: a build that was killed resumes.

This module needs only the standard library, because the wheel's build hook uses it too.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from glassformer.ground.errors import ExecutorError
from glassformer.ground.files import home, sync_tree, temporary_folder, write_text
from glassformer.ground.ownership import try_lock
from glassformer.ground.progress import NamedProgress

Flags: TypeAlias = tuple[str, ...]

NATIVE = Path(__file__).with_name("native")
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
AVX2: Flags = ("-mavx2", "-mfma", "-mf16c", "-mbmi2")
AVX512: Flags = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni")
AMX: Flags = ("-mamx-tile", "-mamx-bf16", "-mamx-int8")
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
FEATURES = {  # that a processor must have for a level, as Linux lists them; the library itself asks the processor
    "neon": {"asimd"},
    "dotprod": {"asimddp"},
    "avx2": {"avx2", "fma", "f16c", "bmi2"},
    "avxvnni": {"avx2", "fma", "f16c", "bmi2", "avx_vnni"},
    "avx512vnni": {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni"},
    "amx": {"avx512_vnni", "amx_tile", "amx_bf16", "amx_int8"},
}
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
PATIENCE = 60.0  # seconds that `auto` waits for a build before PyTorch answers instead

note = logging.getLogger("glassformer").warning


def library(
    progress: NamedProgress | None = None, sources: Path = NATIVE, extra: Sequence[str] = (), every_level: bool = False
) -> Path:
    """The library of these sources for this processor, built now if there is none yet; `extra` flags give another one.

    A failed build is recorded with the compiler's output, so that not every start tries again, until the sources, flags or
    compilers change. GLASS_REBUILD=1 ignores what is cached and recorded.
    """
    rebuild, wanted = bool(os.environ.get("GLASS_REBUILD")), () if every_level else needed_levels()
    try:
        return (None if rebuild else find_library(sources, extra, every_level)) or _build_locked(
            sources, extra, wanted, progress, rebuild
        )
    except OSError as error:
        raise ExecutorError(
            f"{_cache_folder()}: the CPU engine cannot be kept there ({error.strerror or error}). "
            "Fix that, or set GLASS_HOME to another folder."
        ) from error


def find_library(sources: Path = NATIVE, extra: Sequence[str] = (), every_level: bool = False) -> Path | None:
    """The library if it is already on this machine, in the wheel or built before, else None."""
    ready = prebuilt(sources)
    if not extra and ready.exists() and _loads(ready):
        return ready
    source_key, compilers = _source_key(sources, extra), _compilers()
    contents: list[Sequence[str]] = [()] if every_level else [(), needed_levels()]
    paths = (_cached_path(source_key, compiler, levels) for levels in contents for compiler in compilers)
    cached = next((path for path in paths if path.exists()), None)
    if cached is None and not compilers:  # one that a compiler built which is gone now is still good
        cached = max(_cache_folder().glob(f"engine-{source_key}-*{SUFFIX}"), key=_last_use, default=None)
    if cached is not None:
        _mark_used(cached)
    return cached


def await_library(patience: float = PATIENCE) -> bool:
    """Build the library in a process of its own, and wait for it so long; False if it is still being built then.

    That process goes on, and the next start has the library. Whether the build failed is said by `library`.
    """
    if os.environ.get("GLASS_LIBRARY") or os.environ.get("GLASS_REBUILD") or find_library() or not _compilers():
        return True
    package = str(NATIVE.parents[3])
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    deadline = time.monotonic() + patience
    with tempfile.TemporaryDirectory(prefix="glassformer-", ignore_cleanup_errors=True) as folder:
        notes = Path(folder, "notes")
        with notes.open("wb") as file:
            builder = subprocess.Popen(
                [sys.executable, "-m", "glassformer.engine.cpu.build"], env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file, start_new_session=True,
            )  # fmt: skip
        told = 0
        try:
            while (ended := builder.poll() is not None) or time.monotonic() < deadline:
                lines = notes.read_text("utf-8", "replace").splitlines()
                for line in lines[told:]:
                    note(line)
                told = len(lines)
                if ended:
                    return True
                time.sleep(0.05)
        except BaseException:
            _end(builder)  # as somebody expects who interrupts; what is compiled by then is kept
            raise
    return False


def _end(builder: subprocess.Popen[bytes]) -> None:
    """End a process that has a process group of its own, and with it its compilers."""
    if sys.platform == "win32":
        builder.terminate()
    else:
        with suppress(ProcessLookupError):
            os.killpg(builder.pid, signal.SIGTERM)


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


def needed_levels() -> tuple[str, ...]:
    """The levels that a library for this processor must have; all where it is not known what the processor has.

    With AMX also the next one, because the system may refuse a process its registers.
    """
    known, asked = list(levels(machine())), os.environ.get("GLASS_LEVEL")
    if asked in known:
        return (asked,)
    features = set(_features().split())
    best = next((level for level in reversed(known) if FEATURES.get(level, {"unknown"}) <= features), None)
    if best is None:
        return tuple(known)
    return ("avx512vnni", "amx") if best == "amx" else (best,)


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
    wanted: Sequence[str] = (),
    parts: Path | None = None,
) -> Path:
    """Build the library of a folder's engine.cpp and kernels.cpp; `target` is written atomically.

    Levels whose flags the compiler does not know are left out, or an error with `every_level`. Of the others those are built
    that are `wanted`, or all if none is or the compiler knows none of those; they are passed to engine.cpp as LEVEL_name=1.
    What is compiled is kept in `parts` until the library is linked, and taken from there if it is there already.
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
        baseline = next(iter(supported.values()))
        chosen = {level: flags for level, flags in supported.items() if level in wanted} or supported
        jobs = {f"engine-{'-'.join(chosen)}": ["engine.cpp", *baseline, *(f"-DLEVEL_{level}=1" for level in chosen)]}
        jobs |= {level: ["kernels.cpp", f"-DLEVEL={level}", *flags] for level, flags in chosen.items()}
        kept = parts or work
        kept.mkdir(exist_ok=True)
        missing = {name: job for name, job in jobs.items() if not (kept / f"{name}.o").exists()}
        done = len(jobs) - len(missing)

        def compile_part(name: str) -> str | None:
            source, *flags = missing[name]
            half_made = work / f"{name}.part.o"
            failure = _run([*common, *flags, *extra, "-c", str(sources / source), "-o", str(half_made)])
            if failure is None:
                _move_into_place(half_made, kept / f"{name}.o")
            return failure

        failures = []
        for failure in _run_parallel(compile_part, missing):
            if failure is not None:
                failures.append(failure)
            elif progress and not failures:
                done += 1
                progress("the CPU engine", done, len(jobs) + 1)
        if failures:
            raise _build_error(f"the CPU engine could not be built ({_error_line(failures[0])}).", *failures)
        _link([*common, *extra], [kept / f"{name}.o" for name in jobs], work / target.name)
        _move_into_place(work / target.name, target)
        if parts:
            shutil.rmtree(parts, ignore_errors=True)
        if progress:
            progress("the CPU engine", len(jobs) + 1, len(jobs) + 1)
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
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        supported = [failure is None for failure in pool.map(_run, commands)]
    return {level: flags for index, (level, flags) in enumerate(candidates.items()) if supported[index] or index == 0}


def _link(common: Sequence[str], objects: Sequence[Path], output: Path) -> None:
    """Link all objects to one library, with the compiler's own libraries inside if their static versions are here."""
    command = [*common, _shared_flag(output), *map(str, objects), "-o", str(output)]
    sanitized = any(flag.startswith("-fsanitize") for flag in common)  # sanitizers need the shared ones
    static = () if sanitized else STATIC_RUNTIME.get(output.suffix, ())
    if static and _run([*command, *static]) is None:
        return
    if (failure := _run(command)) is not None:
        raise _build_error(f"the CPU engine could not be linked ({_error_line(failure)}).", failure)


def _run_parallel(run: Callable[[str], str | None], names: Iterable[str]) -> Iterator[str | None]:
    """The results of a function, as many calls at a time as there are cores, each when it is there."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for future in as_completed([pool.submit(run, name) for name in names]):
            yield future.result()


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


def _build_locked(
    sources: Path, extra: Sequence[str], wanted: Sequence[str], progress: NamedProgress | None, rebuild: bool
) -> Path:
    """Build, unless another process has done so meanwhile, or a failure is recorded."""
    compilers, folder = _compilers(), _cache_folder()
    if not compilers:
        raise ExecutorError(f"no C++ compiler was found, and the CPU engine is built with one. {_compiler_help()}")
    log = folder / f"engine-{_source_key(sources, extra)}-{_digest(*map(_compiler_identity, compilers), *wanted)}.log"
    folder.mkdir(parents=True, exist_ok=True)
    with _build_lock(folder):
        if not rebuild and (cached := find_library(sources, extra, every_level=not wanted)):
            return cached
        if not rebuild and log.exists():
            raise _recorded_failure(log)
        log.unlink(missing_ok=True)
        for parts in folder.glob("parts-*") if rebuild else ():
            shutil.rmtree(parts, ignore_errors=True)
        path = _build(sources, extra, wanted, log, progress)
        _remove_unused(folder)
    return path


def _build(sources: Path, extra: Sequence[str], wanted: Sequence[str], log: Path, progress: NamedProgress | None) -> Path:
    """Build into the cache; a failure is recorded in the log."""
    note(f"building the CPU engine, once{', for this processor: ' + ', '.join(wanted) if wanted else ''}")
    begun = time.monotonic()

    def tell(what: str, done: int, parts: int) -> None:
        if done < parts:
            note(f"building the CPU engine: {done} of {parts} parts are ready after {time.monotonic() - begun:.0f} s")

    try:
        compiler = find_compiler()
        target = _cached_path(_source_key(sources, extra), compiler, wanted)
        parts = target.with_name(f"parts-{_digest(target.stem)}")
        return compile(sources, target, compiler, extra=extra, progress=progress or tell, wanted=wanted, parts=parts)
    except ExecutorError as error:
        write_text(log, "\n".join([str(error), *getattr(error, "__notes__", [])]))
        raise _recorded_failure(log) from error


def _recorded_failure(log: Path) -> ExecutorError:
    """The error of a build that failed, from its log."""
    message = log.read_text("utf-8").partition("\n")[0]
    return ExecutorError(f"{message} What the compiler said is in {log}; GLASS_REBUILD=1 tries again.")


def _cache_folder() -> Path:
    return home() / "native"


def _cached_path(source_key: str, compiler: Sequence[str], levels: Sequence[str] = ()) -> Path:
    """Where a library of these levels is kept; of all without any."""
    return _cache_folder() / ("-".join(["engine", source_key, _digest(_compiler_identity(compiler)), *levels]) + SUFFIX)


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
    """Remove libraries unused for a month, and parts of builds that nobody took up again."""
    for path in [*folder.glob("engine-*"), *folder.glob("parts-*")]:
        if _last_use(path) < time.time() - 30 * DAY:
            with suppress(OSError):  # gone, or in use on Windows
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def _build_lock(folder: Path) -> Iterator[None]:
    """One build at a time; the system releases the lock when its process ends, in whatever way."""
    with (folder / "lock").open("wb") as file:
        if not try_lock(file):
            note("another process is building the CPU engine: waiting for it")
            while not try_lock(file):
                time.sleep(0.1)
        yield


if __name__ == "__main__":
    try:
        library()
    except ExecutorError as error:  # recorded, and said by whoever asks for the library
        print(error)
        sys.exit(1)
