"""The native library: the wheel's, or the one that was built here before, or built now with the machine's compiler.

`engine.cpp` is compiled once for the plainest machine of its architecture, `kernels.cpp` once per level of vector
instructions; all of it is one shared library, and the level is chosen when it runs. A library that was built here is
kept below `home()/native` under a name that stands for everything it depends on, so that a changed source, flag,
compiler or machine means another file. It appears there whole or not at all.

Python's own library is all that this module needs, because the wheel's build hook uses it too.
"""

from __future__ import annotations

import errno
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
from typing import BinaryIO, TypeAlias

from glassformer.errors import ExecutorError
from glassformer.progress import NamedProgress

Flags: TypeAlias = tuple[str, ...]

NATIVE = Path(__file__).with_name("native")
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
AVX2: Flags = ("-mavx2", "-mfma", "-mf16c", "-mbmi2")
AVX512: Flags = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni")
LEVELS: dict[str, dict[str, Flags]] = {  # portable is no goal where there are others, and takes a minute with -O3
    "x86_64": {"portable": ("-march=x86-64", "-O2"), "avx2": AVX2, "avx512vnni": AVX2 + AVX512},
    "aarch64": {
        "portable": ("-march=armv8-a", "-O2"),
        "neon": ("-march=armv8-a",),
        "dotprod": (
            "-march=armv8.2-a+dotprod+fp16",
            "-mtune=cortex-a76",
        ),  # the order of instructions is a tenth of the speed
    },
}
ELSEWHERE: dict[str, Flags] = {"portable": ()}  # on machines without a row
SYNONYMS = {"amd64": "x86_64", "arm64": "aarch64"}
COMMON: Flags = ("-std=c++17", "-O3", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-pthread")
STATIC: dict[str, Flags] = {  # the compiler's own libraries go inside where they can, so that the machine need not have them
    ".so": ("-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL"),
    ".dll": ("-static",),
}
MENDS = {
    "darwin": "Install one with 'xcode-select --install', or set CXX to one.",
    "win32": "Install the g++ of MinGW-w64 and put it on the PATH, or set CXX to one.",
}
MEND = "Install g++ (Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++), or set CXX to one."
PROBE = """
#include <thread>
#include <optional>
template <typename T> int size() { if constexpr (sizeof(T) == 1) return 1; else return 2; }
extern "C" int probe() { std::optional<int> one; std::thread([&] { one = size<char>(); }).join(); return *one; }
"""
DAY = 86_400

note = logging.getLogger("glassformer").warning


def library(progress: NamedProgress | None = None, sources: Path = NATIVE, extra: Sequence[str] = ()) -> Path:
    """The library of these sources: the one that is here, else built now and kept. `extra` flags give another one.

    What could not be built is remembered with the compiler's words, so that not every start tries again, until the
    sources, flags or compilers change. GLASS_REBUILD=1 looks at nothing that is remembered.
    """
    again = bool(os.environ.get("GLASS_REBUILD"))
    try:
        return (None if again else held(sources, extra)) or _build_alone(sources, extra, progress, again)
    except OSError as error:
        raise ExecutorError(
            f"{_folder()}: the CPU engine cannot be kept there ({error.strerror or error}). "
            "Mend that, or set GLASS_HOME to another folder."
        ) from error


def held(sources: Path = NATIVE, extra: Sequence[str] = ()) -> Path | None:
    """The library where it already lies on this machine, in the wheel or built before, or None."""
    ready = prebuilt(sources)
    if not extra and ready.exists() and _loads(ready):
        return ready
    made_of, compilers = _made_of(sources, extra), _compilers()
    found = (path for one in compilers if (path := _place(made_of, one)).exists())
    kept = next(found, None)
    if kept is None and not compilers:  # what one that is gone has built is still good
        kept = max(_folder().glob(f"engine-{made_of}-*{SUFFIX}"), key=_last_use, default=None)
    if kept is not None:
        _used(kept)
    return kept


def prebuilt(sources: Path = NATIVE) -> Path:
    """Where a wheel's library lies, if the wheel was built from these very sources."""
    return sources / f"engine-{_fingerprint(sources, machine(), ())}{SUFFIX}"


# Compiling ------------------------------------------------------------------------------------------------------


def machine() -> str:
    """The name of the architecture in LEVELS, or its own; of the one built for where Python is told of a cross-build."""
    name = os.environ.get("_PYTHON_HOST_PLATFORM", "").rpartition("-")[2] or platform.machine()
    return SYNONYMS.get(name.lower(), name.lower())


def levels(architecture: str) -> dict[str, Flags]:
    """Which levels an architecture has, and the flags of each; the first is the baseline."""
    return LEVELS.get(SYNONYMS.get(architecture.lower(), architecture.lower()), ELSEWHERE)


def find_compiler() -> list[str]:
    """The command of the first compiler here that builds a C++17 library: CXX, else c++, g++ or clang++."""
    compilers = _compilers()
    if not compilers:
        raise ExecutorError(f"no C++ compiler was found. {_mend()}")
    refusals = []
    with tempfile.TemporaryDirectory(prefix="glassformer-", ignore_cleanup_errors=True) as folder:
        source = Path(folder, "probe.cpp")
        source.write_text(PROBE, "utf-8")
        for compiler in compilers:
            whole = Path(folder, f"probe{SUFFIX}")
            refusal = _run([*compiler, *_common(whole), _shared(whole), str(source), "-o", str(whole)])
            if refusal is None:
                return compiler
            refusals.append(refusal)
    names = ", ".join(shlex.join(compiler) for compiler in compilers)
    raise _refused(f"no C++17 library can be built with {names} ({_gist(refusals[0])}). {_mend()}", *refusals)


def compile(  # noqa: A001  as in re.compile
    sources: Path,
    target: Path,
    compiler: Sequence[str],
    architecture: str | None = None,
    extra: Sequence[str] = (),
    progress: NamedProgress | None = None,
) -> Path:
    """Build the library of a folder's engine.cpp and kernels.cpp; `target` appears whole or not at all.

    Levels whose flags the compiler does not know are left out. engine.cpp is told of the others with LEVEL_name=1.
    """
    for name in ("engine.cpp", "kernels.cpp"):
        if not (sources / name).is_file():
            raise ExecutorError(f"{sources}: {name} is missing. Install Glassformer again.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="building-", dir=target.parent, ignore_cleanup_errors=True) as folder:
        work, common = Path(folder), [*compiler, *_common(target)]
        known = _understood(levels(architecture or machine()), common, work)
        jobs = {"engine": ["engine.cpp", *next(iter(known.values())), *(f"-DLEVEL_{level}=1" for level in known)]}
        jobs |= {level: ["kernels.cpp", f"-DLEVEL={level}", *flags] for level, flags in known.items()}
        commands = [
            [*common, *flags, *extra, "-c", str(sources / source), "-o", str(work / f"{name}.o")]
            for name, (source, *flags) in jobs.items()
        ]
        tell = _teller(progress, len(commands) + 1)
        if refusals := [refusal for refusal in _together(commands, tell) if refusal is not None]:
            raise _refused(f"the CPU engine could not be built ({_gist(refusals[0])}).", *refusals)
        _link([*common, *extra], [work / f"{name}.o" for name in jobs], work / target.name)
        _settle(work / target.name, target)
        tell(len(commands) + 1)
    return target


def _teller(progress: NamedProgress | None, steps: int) -> Callable[[int], None]:
    """What is told how many steps are done."""
    return lambda done: progress("the CPU engine", done, steps) if progress else None


def _compilers() -> list[list[str]]:
    """The commands that may be C++ compilers, each program once; CXX, where it is set, and no other."""
    if chosen := os.environ.get("CXX"):
        words = [chosen] if shutil.which(chosen) else _words(chosen)
        return [words] if words and shutil.which(words[0]) else []
    found: dict[Path, list[str]] = {}
    for name in ("c++", "g++", "clang++"):
        if (path := shutil.which(name)) and not _hollow(path):
            found.setdefault(Path(path).resolve(), [path])
    return list(found.values())


def _words(command: str) -> list[str]:
    """A command's words as a shell reads them; none where a quotation has no end."""
    try:
        return shlex.split(command)
    except ValueError:
        return []


def _hollow(path: str) -> bool:
    """Whether this is what macOS has in place of a compiler until one is installed; running it opens a window."""
    if sys.platform != "darwin" or Path(path).parent != Path("/usr/bin"):
        return False
    return _run(["xcode-select", "-p"]) is not None


def _mend() -> str:
    if chosen := os.environ.get("CXX"):
        return f"CXX is set to {chosen!r}: set it to one that is here, or unset it."
    return MENDS.get(sys.platform, MEND)


def _identity(compiler: Sequence[str]) -> str:
    """What a compiler calls itself, in one line, and the words that it is called with."""
    try:
        done = subprocess.run([*compiler, "--version"], capture_output=True, text=True, errors="replace", env=_plainly())
        line = done.stdout.partition("\n")[0]
    except OSError:
        line = ""
    return "\n".join([line, *compiler[1:]])


def _common(target: Path) -> Flags:
    return COMMON if target.suffix == ".dll" else (*COMMON, "-fPIC")


def _shared(target: Path) -> str:
    return "-dynamiclib" if target.suffix == ".dylib" else "-shared"


def _understood(wanted: dict[str, Flags], common: Sequence[str], work: Path) -> dict[str, Flags]:
    """The levels whose flags the compiler knows; the first must be, and the true build says why if it is not."""
    empty = work / "empty.cpp"
    empty.touch()
    commands = [[*common, *wanted[level], "-c", str(empty), "-o", str(work / f"empty-{level}.o")] for level in wanted]
    known = [refusal is None for refusal in _together(commands)]
    return {level: flags for number, (level, flags) in enumerate(wanted.items()) if known[number] or number == 0}


def _link(common: Sequence[str], objects: Sequence[Path], whole: Path) -> None:
    """One library of all objects, with the compiler's own libraries inside if they are here in that form."""
    command = [*common, _shared(whole), *map(str, objects), "-o", str(whole)]
    sanitised = any(flag.startswith("-fsanitize") for flag in common)  # sanitisers must find the libraries outside
    static = () if sanitised else STATIC.get(whole.suffix, ())
    if static and _run([*command, *static]) is None:
        return
    if (refusal := _run(command)) is not None:
        raise _refused(f"the CPU engine could not be linked ({_gist(refusal)}).", refusal)


def _together(commands: Sequence[Sequence[str]], tell: Callable[[int], None] | None = None) -> list[str | None]:
    """Run commands, as many at a time as there are cores; what `_run` gives for each."""
    given: list[str | None] = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for refusal in pool.map(_run, commands):
            given.append(refusal)
            if tell:
                tell(len(given))
    return given


def _run(command: Sequence[str]) -> str | None:
    """None if a command did its work, else what it said."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", env=_plainly()
        )
    except OSError as error:
        return f"{command[0]}: error: {error.strerror or error}"
    said = (done.stdout + done.stderr).strip() or f"exit status {done.returncode}"
    return None if done.returncode == 0 else f"$ {shlex.join(command)}\n{said}"


def _plainly() -> dict[str, str]:
    """The environment in which compilers speak English, so that their errors can be found in what they say."""
    return {**os.environ, "LC_ALL": "C"}


def _gist(said: str) -> str:
    """The line that says most of what a compiler said."""
    lines = [line for line in said.splitlines() if not line.startswith(("$ ", "collect2:"))]
    return next((line for line in lines if "error:" in line), lines[0] if lines else "no reason given").rstrip(".")


def _refused(sentence: str, *said: str) -> ExecutorError:
    """The error, with all of the compiler's words as a note."""
    error = ExecutorError(sentence)
    error.add_note("\n".join(said))
    return error


def _settle(whole: Path, target: Path) -> None:
    """Put what is complete in its place; on Windows one that is in use stays, and it is made of the same."""
    try:
        whole.replace(target)
    except PermissionError:
        if not target.exists():
            raise


# Keeping --------------------------------------------------------------------------------------------------------


def _build_alone(sources: Path, extra: Sequence[str], progress: NamedProgress | None, again: bool) -> Path:
    """Build, unless another process has done so meanwhile, or it is known to fail."""
    compilers, folder = _compilers(), _folder()
    if not compilers:
        raise ExecutorError(f"no C++ compiler was found, and the CPU engine is built with one. {_mend()}")
    log = folder / f"engine-{_made_of(sources, extra)}-{_digest(*map(_identity, compilers))}.log"
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        if not again and (found := held(sources, extra)):
            return found
        if not again and log.exists():
            raise _failure(log)
        log.unlink(missing_ok=True)
        path = _build(sources, extra, log, progress)
        _sweep(folder)
    return path


def _build(sources: Path, extra: Sequence[str], log: Path, progress: NamedProgress | None) -> Path:
    """Build into the cache; a refusal is written to the log, which is how it is remembered."""
    note("building the CPU engine, once: about 20 s")
    try:
        compiler = find_compiler()
        return compile(sources, _place(_made_of(sources, extra), compiler), compiler, extra=extra, progress=progress)
    except ExecutorError as error:
        log.write_text("\n".join([str(error), *getattr(error, "__notes__", [])]), "utf-8")
        raise _failure(log) from error


def _failure(log: Path) -> ExecutorError:
    """What is remembered of a build that failed."""
    sentence = log.read_text("utf-8").partition("\n")[0]
    return ExecutorError(f"{sentence} What the compiler said is in {log}; GLASS_REBUILD=1 tries again.")


def _folder() -> Path:
    from glassformer.checkpoint.locate import home

    return home() / "native"


def _place(made_of: str, compiler: Sequence[str]) -> Path:
    return _folder() / f"engine-{made_of}-{_digest(_identity(compiler))}{SUFFIX}"


def _made_of(sources: Path, extra: Sequence[str]) -> str:
    """What a library depends on beside its compiler; machines that share a home folder tell theirs apart by it."""
    return _digest(_fingerprint(sources, machine(), extra), sys.platform, *platform.libc_ver(), _features())


def _fingerprint(sources: Path, architecture: str, extra: Sequence[str]) -> str:
    """Of the sources, and of the flags and the way they are built with, which this file says."""
    parts = [architecture, *extra, hashlib.sha256(Path(__file__).read_bytes()).hexdigest()]
    for path in sorted([*sources.rglob("*.cpp"), *sources.rglob("*.h")]):
        parts += [path.relative_to(sources).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()]
    return _digest(*parts)


def _features() -> str:
    """What the CPU can do, in the system's words."""
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip().lower() in ("flags", "features", "isa"):
                return " ".join(sorted(value.split()))
    return platform.processor()


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _loads(path: Path) -> bool:
    """Whether this machine can load a library that was built on another, which may have been newer."""
    import ctypes

    try:
        ctypes.CDLL(str(path))
    except OSError:
        return False
    return True


def _last_use(path: Path) -> float:
    """When a file was last used; 0 if it is gone meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0


def _used(path: Path) -> None:
    """Keep a library for another while."""
    if _last_use(path) < time.time() - DAY:
        with suppress(OSError):
            os.utime(path)


def _sweep(folder: Path) -> None:
    """Remove what nobody has used for a month, and what builders that were killed have left."""
    for path in folder.glob("engine-*"):
        if _last_use(path) < time.time() - 30 * DAY:
            with suppress(OSError):  # gone, or in use on Windows
                path.unlink()
    for path in folder.glob("building-*"):
        if _last_use(path) < time.time() - DAY:  # longer than any build
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One builder at a time; the system lets go of a lock when its holder ends, however that comes about."""
    with (folder / "lock").open("wb") as file:
        if not _locked(file):
            note("another process is building the CPU engine: waiting for it")
            while not _locked(file):
                time.sleep(0.1)
        yield


def _locked(file: BinaryIO) -> bool:
    """Try to lock. A file system without locks does not stop anybody: two may build, and the last one's is kept."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
    return True
