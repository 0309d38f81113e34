"""zig's C++ compiler with g++'s spelling of the flags in `build.py`: `CXX="python tools/zig_cxx.py -target TARGET"`.

Zig has its own names of processors, and its linker no --exclude-libs (what it links statically is hidden anyway).
"""

from __future__ import annotations

import subprocess
import sys

FEATURES = {"fp16": "fullfp16"}  # LLVM's names of extensions, where they are not g++'s


def translate(flag: str) -> list[str]:
    """Zig's flags for one of g++'s."""
    name, _, value = flag.partition("=")
    if name == "-march" and value.startswith("armv"):
        version, *extensions = value.split("+")
        version = version.removeprefix("armv").removesuffix("-a").replace(".", "_")
        return ["-mcpu=" + "+".join(["generic", f"v{version}a", *(FEATURES.get(name, name) for name in extensions)])]
    if name == "-march":
        return [f"-mcpu={value.replace('-', '_')}"]
    if name == "-mtune":
        return ["-Xclang", "-tune-cpu", "-Xclang", value]
    if name == "-Wl,--exclude-libs,ALL":
        return []
    return [flag]


def main() -> int:
    flags = [word for flag in sys.argv[1:] for word in translate(flag)]
    return subprocess.run([sys.executable, "-m", "ziglang", "c++", *flags, "-g0", "-s"]).returncode


if __name__ == "__main__":
    sys.exit(main())
