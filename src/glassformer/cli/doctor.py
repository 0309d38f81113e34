"""`glass doctor`: what this machine has, what runs on it, and what could be better."""

from __future__ import annotations

import json
import os
from typing import Any

from glassformer import __version__
from glassformer.cli import common
from glassformer.errors import ExecutorError

EXAMPLE = "Example: glass doctor --json"
LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors", "huggingface_hub", "jinja2", "gguf")


def doctor(as_json: common.JsonOption = False) -> None:
    """Say what this machine has, what runs on it, and what could run better."""
    found = examine()
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    width = max(map(len, found))
    for name, value in found.items():
        lines = [f"{key} {one}" for key, one in value.items()] if isinstance(value, dict) else value
        for number, line in enumerate(lines if isinstance(lines, list) else [lines]):
            print(f"{name.replace('_', ' ') if number == 0 else '':{width}}  {line}")


def examine() -> dict[str, Any]:
    """The findings, as plain data."""
    import platform

    from glassformer.blueprints import known
    from glassformer.checkpoint.catalogue import CATALOGUE
    from glassformer.checkpoint.locate import held, home

    executors, advice = _executors()
    here = {name: str(path) for name in CATALOGUE if (path := held(name))}
    return {
        "glassformer": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "cores": os.cpu_count() or 1,
        "libraries": {name: _version(name) for name in LIBRARIES},
        "executors": executors,
        "families": list(known()),
        "models": here or {"none yet:": "glass models pull smollm2"},
        "cache": str(home()),
        "hub_offline": bool(os.environ.get("HF_HUB_OFFLINE")),
        "advice": advice or ["nothing to mend"],
    }


def _version(name: str) -> str:
    import importlib.metadata  # a slow import, and this module is imported for every verb

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _executors() -> tuple[list[str], list[str]]:
    """A line for each executor, and what could be better about them."""
    (plain, faster), (cpu, mend) = _plain(), _cpu()
    return [plain, cpu], faster + mend


def _plain() -> tuple[str, list[str]]:
    try:
        import torch
    except ImportError as error:
        return "plain: cannot run", [f"torch cannot be imported ({error}): pip install torch"]
    from glassformer.layers.linear import multiplies_well

    devices = [f"cpu ({torch.get_num_threads()} threads)"]
    if torch.cuda.is_available():
        devices.append(torch.cuda.get_device_name())
    advice = []
    if not multiplies_well(torch.bfloat16):
        advice.append("this CPU has no bfloat16 products, so bfloat16 checkpoints run faster with --dtype float32")
    return f"plain: runs on {', '.join(devices)}", advice


def _cpu() -> tuple[str, list[str]]:
    from glassformer.engine.cpu import build, library

    common.listen()  # for what building it has to say
    try:
        before = build.held()
        about = library.describe()
    except (ExecutorError, OSError) as error:
        why, _, mend = str(error).partition(". ")
        return f"cpu: cannot run: {why}", [mend or why]
    others = [level for level in about["levels"] if level != about["level"]]
    level = about["level"] + (f" (also {', '.join(others)})" if others else "")
    return f"cpu: runs on {about['threads']} threads, level {level}; its library is {_library(new=before is None)}", []


def _library(new: bool) -> str:
    """Where the native library lies, and how it came there."""
    from glassformer.engine.cpu import build

    if given := os.environ.get("GLASS_LIBRARY"):
        return f"named by GLASS_LIBRARY: {given}"
    path = build.held()
    return f"{'built just now' if new else 'prebuilt' if path == build.prebuilt() else 'cached'}: {path}"
