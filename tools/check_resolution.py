"""Whether everything that a user installs can be resolved from the package index alone, with wheels for every part.

    python tools/check_resolution.py

A wheel that lies on this machine can hide that a pin contradicts what the index has, so nothing but the index is asked: no
configuration of pip, no local wheels. uv resolves each extra for every Python and architecture that we support; it reads
only the packages' metadata, and needs none of these interpreters. pip then resolves what `make run` installs, with each
interpreter that is here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = ("x86_64-manylinux_2_31", "aarch64-manylinux_2_31")  # Debian 11, Ubuntu 20.04 and later
EXTRAS = (None, "torch", "grammar", "serve", "dev")
LOCAL = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_CONSTRAINT")
CONTRADICTIONS = ("No solution found", "ResolutionImpossible")  # anything else may be the network's fault
TRIES = 3
Commands = dict[str, list[str]]


def index_only(environment: Mapping[str, str], configured_index: str | None) -> dict[str, str]:
    """An environment in which pip and uv know one index, the configured one if there is one, and nothing else."""
    bare = {name: value for name, value in environment.items() if name not in LOCAL and not name.startswith("UV_")}
    bare["PIP_CONFIG_FILE"] = os.devnull
    if index := environment.get("PIP_INDEX_URL") or configured_index:
        bare |= {"PIP_INDEX_URL": index, "UV_DEFAULT_INDEX": index}
    return bare


def uv_commands(output: Path) -> Commands:
    """For each Python, platform and extra the command that resolves it."""
    commands = {}
    for python, platform, extra in product(PYTHONS, PLATFORMS, EXTRAS):
        name = f".[{extra}]" if extra else "."
        commands[f"{name} for Python {python} on {platform}"] = [
            sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--quiet", "--no-config",
            "--only-binary", ":all:",
            "--constraint", "constraints.txt", "--python-version", python, "--python-platform", platform,
            "--output-file", str(output / f"{python}-{platform}-{extra}.txt"), *(["--extra", extra] if extra else []),
        ]  # fmt: skip
    return commands


def pip_commands() -> Commands:
    """For each interpreter here the command that resolves what `make run` installs, reading as little as pip can."""
    interpreters = {python: shutil.which(f"python{python}") for python in PYTHONS}
    return {
        f"pip with {interpreter}": [
            interpreter, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--dry-run", "--ignore-installed",
            "--use-feature=fast-deps", "--constraint", "constraints.txt", "--editable", ".[grammar]",
        ]
        for interpreter in interpreters.values()
        if interpreter is not None and _has_pip(interpreter)
    }  # fmt: skip


def failures(commands: Commands, environment: Mapping[str, str], at_once: int) -> Iterator[str]:
    """What could not be resolved, and why."""

    def run(command: list[str], tries: int = TRIES) -> subprocess.CompletedProcess[str]:
        process = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        contradicts = any(words in process.stderr for words in CONTRADICTIONS)
        return process if process.returncode == 0 or contradicts or tries == 1 else run(command, tries - 1)

    with ThreadPoolExecutor(at_once) as pool:
        for name, process in zip(commands, pool.map(run, commands.values()), strict=True):
            if process.returncode:
                yield f"{name}:\n{process.stderr.strip() or process.stdout.strip()}"
            else:
                print(f"{name}: resolved", flush=True)


def _has_pip(interpreter: str) -> bool:
    return subprocess.run([interpreter, "-m", "pip", "--version"], capture_output=True).returncode == 0


def _configured_index() -> str | None:
    """The index that pip's configuration names, if it names one."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None


def main() -> int:
    environment = index_only(os.environ, _configured_index())
    with tempfile.TemporaryDirectory() as folder:
        failed = list(failures(uv_commands(Path(folder)), environment, at_once=4))
    failed += failures(pip_commands(), environment, at_once=1)
    for failure in failed:
        print(failure, file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
