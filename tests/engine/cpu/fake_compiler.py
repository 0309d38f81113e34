"""Small stand-ins for the native sources, and compilers that refuse, wait, and remember what they were asked."""

from __future__ import annotations

import ast
import ctypes
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from glassformer.engine.cpu import build

HEADER = """
#define JOIN(a, b) a##b
#define NAMED(a, b) JOIN(a, b)
enum { PLAIN = 1, DOT = 2, WIDE = 4, NEURAL = 8, MATRIX = 16 };
"""
ENGINE = """
#include "shared.h"
#include <cstring>
#include <thread>
#include <vector>
#define LEVEL(name) int NAMED(kernel_, name)();
#define SHARED extern "C" __attribute__((visibility("default")))
#ifdef LEVEL_portable
LEVEL(portable)
#endif
#ifdef LEVEL_neon
LEVEL(neon)
#endif
#ifdef LEVEL_dotprod
LEVEL(dotprod)
#endif
#ifdef LEVEL_avx2
LEVEL(avx2)
#endif
#ifdef LEVEL_avxvnni
LEVEL(avxvnni)
#endif
#ifdef LEVEL_avx512vnni
LEVEL(avx512vnni)
#endif
#ifdef LEVEL_amx
LEVEL(amx)
#endif
static int found(const char* level) {
#ifdef LEVEL_portable
    if (!std::strcmp(level, "portable")) return kernel_portable();
#endif
#ifdef LEVEL_neon
    if (!std::strcmp(level, "neon")) return kernel_neon();
#endif
#ifdef LEVEL_dotprod
    if (!std::strcmp(level, "dotprod")) return kernel_dotprod();
#endif
#ifdef LEVEL_avx2
    if (!std::strcmp(level, "avx2")) return kernel_avx2();
#endif
#ifdef LEVEL_avxvnni
    if (!std::strcmp(level, "avxvnni")) return kernel_avxvnni();
#endif
#ifdef LEVEL_avx512vnni
    if (!std::strcmp(level, "avx512vnni")) return kernel_avx512vnni();
#endif
#ifdef LEVEL_amx
    if (!std::strcmp(level, "amx")) return kernel_amx();
#endif
    return 0;
}
SHARED int instructions(const char* level) {
    std::vector<int> given(1);
    std::thread([&] { given[0] = found(level); }).join();
    return given[0];
}
"""
KERNELS = """
#include "shared.h"
int NAMED(kernel_, LEVEL)() {
    int found = PLAIN;
#ifdef __ARM_FEATURE_DOTPROD
    found |= DOT;
#endif
#ifdef __AVX2__
    found |= WIDE;
#endif
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
    found |= NEURAL;
#endif
#ifdef __AMX_BF16__
    found |= MATRIX;
#endif
    return found;
}
"""
INSTRUCTIONS = {  # what each level was compiled with
    "portable": 1, "neon": 1, "dotprod": 3, "avx2": 5, "avxvnni": 13, "avx512vnni": 13, "amx": 29,
}  # fmt: skip
FAKE = """
import os, sys, time
here, words = os.path.dirname(__file__), sys.argv[1:]
if words == ["--version"]:
    sys.exit(print({version!r}))
with open(os.path.join(here, "calls", f"{{time.time_ns()}}-{{os.getpid()}}"), "w", encoding="utf-8") as file:
    file.write(repr(words))
for name in {refuses!r}:
    if any(name in word for word in words):
        sys.exit(f"{{name}}: error: refused by the compiler\\ncollect2: error: that was all")
if any("kernels.cpp" in word for word in words):
    open(os.path.join(here, "begun"), "w").close()
    for _ in range(6000):
        if not os.path.exists(os.path.join(here, "hold")):
            break
        time.sleep(0.01)
if {real!r}:
    import subprocess
    sys.exit(subprocess.run({real!r} + words).returncode)
open(words[words.index("-o") + 1], "w").close()
"""


def write_sources(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"shared.h": HEADER, "engine.cpp": ENGINE, "kernels.cpp": KERNELS}.items():
        (folder / name).write_text(text, "utf-8")
    return folder


def instructions(library: Path, level: str) -> int:
    """What the library's own code says of a level; 0 where it does not hold it."""
    return int(ctypes.CDLL(str(library)).instructions(level.encode()))


def works(library: Path, levels: Sequence[str] | None = None) -> bool:
    """Whether a library holds each of these levels, or each of this machine's, compiled as it should be."""
    wanted = build.levels(build.machine()) if levels is None else levels
    return all(instructions(library, level) == INSTRUCTIONS[level] for level in wanted)


class Compiler:
    """A compiler in a folder: it writes an empty file where it should write, or lets a real compiler do it."""

    def __init__(self, folder: Path, real: Sequence[str] = (), refuses: Sequence[str] = (), version: str = "fake 1.0"):
        self.folder = folder
        (folder / "calls").mkdir(parents=True)
        self.command = [Path(sys.executable).as_posix(), "-I", "-S", (folder / "compiler.py").as_posix()]
        self.become(real, refuses, version)

    def become(self, real: Sequence[str] = (), refuses: Sequence[str] = (), version: str = "fake 1.0") -> None:
        text = FAKE.format(real=list(real), refuses=list(refuses), version=version)
        (self.folder / "compiler.py").write_text(text, "utf-8")

    def __str__(self) -> str:
        """As CXX says it."""
        return shlex.join(self.command)

    @property
    def calls(self) -> list[list[str]]:
        """What it was asked to do, in order; its name was not worth noting."""
        return [ast.literal_eval(path.read_text("utf-8")) for path in sorted((self.folder / "calls").iterdir())]

    def calls_with(self, word: str) -> list[list[str]]:
        """The calls with a word that ends so."""
        return [call for call in self.calls if any(given.endswith(word) for given in call)]

    def hold(self) -> None:
        """Stop at the kernels."""
        (self.folder / "hold").touch()

    def release(self) -> None:
        (self.folder / "hold").unlink()

    def await_begun(self) -> None:
        await_file(self.folder, "begun")


def await_file(folder: Path, pattern: str) -> Path:
    """The file that somebody else is about to write."""
    for _ in range(6000):
        if found := next(folder.glob(pattern), None):
            return found
        time.sleep(0.01)
    raise AssertionError(f"nobody wrote {pattern}")


def grow_old(path: Path, days: float) -> None:
    then = time.time() - days * build.DAY
    os.utime(path, (then, then))
