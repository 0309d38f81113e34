"""The names inside a training's folder, and what can be read of them without torch."""

from __future__ import annotations

import re
from pathlib import Path

ABOUT, METRICS, CURVES, LOCK = "training.json", "metrics.jsonl", "curves.html", ".training.lock"
CHECKPOINTS, SNAPSHOTS = "checkpoints", "snapshots"
STEP = re.compile(r"step-(\d{8})")


def step_name(step: int) -> str:
    """
    >>> step_name(200)
    'step-00000200'
    """
    return f"step-{step:08}"


def step_folders(folder: Path) -> dict[int, Path]:
    """The folders `step-…` inside one, by step; each is whole, since it gets its name last."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return {int(match[1]): path for path in paths if (match := STEP.fullmatch(path.name))}
