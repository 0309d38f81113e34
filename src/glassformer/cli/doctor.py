"""`glass doctor`: what this machine has, what runs on it, and what could be better."""

from __future__ import annotations

import json
import os
from typing import Any

from glassformer import __version__
from glassformer.cli import common

EXAMPLE = "Example: glass doctor --json"
LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors", "huggingface_hub", "jinja2", "gguf")


def doctor(as_json: common.JsonOption = False) -> None:
    """Say what this machine has, which executors run here, and what was lost and how to get it."""
    found = examine()
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in found.items():
        for number, line in enumerate(value if isinstance(value, list) else [value]):
            table.add_row(name if number == 0 else "", str(line))
    Console().print(table)


def examine() -> dict[str, Any]:
    """The findings, as plain data."""
    import platform

    from glassformer.blueprints import known
    from glassformer.checkpoint.catalogue import CATALOGUE
    from glassformer.checkpoint.locate import held, home

    executors, advice = _executors()
    return {
        "glassformer": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "cores": os.cpu_count() or 1,
        "libraries": [f"{name} {_version(name)}" for name in LIBRARIES],
        "executors": executors,
        "families": ", ".join(known()),
        "models here": [f"{name}: {path}" for name in CATALOGUE if (path := held(name))]
        or ["none yet: glass models pull smollm2"],
        "cache": str(home()),
        "offline": "yes (HF_HUB_OFFLINE)" if os.environ.get("HF_HUB_OFFLINE") else "no",
        "advice": advice or ["nothing to mend"],
    }


def _version(name: str) -> str:
    import importlib.metadata  # a slow import, and this module is imported for every verb

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _executors() -> tuple[list[str], list[str]]:
    try:
        import torch
    except ImportError as error:
        return ["plain: cannot run"], [f"torch cannot be imported ({error}): pip install torch"]
    from glassformer.layers.linear import multiplies_well

    devices = [f"cpu ({torch.get_num_threads()} threads)"]
    if torch.cuda.is_available():
        devices.append(torch.cuda.get_device_name())
    advice = []
    if not multiplies_well(torch.bfloat16):
        advice.append("this CPU has no bfloat16 products: float32 runs faster here (--dtype float32), at twice the memory")
    return [f"plain: runs on {', '.join(devices)}"], advice
