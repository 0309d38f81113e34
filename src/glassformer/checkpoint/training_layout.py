"""The names inside a training's folder, and what can be read of them without torch."""

from __future__ import annotations

import re
from pathlib import Path

from glassformer.ground.errors import CheckpointError

ABOUT, METRICS, CURVES, LOCK = "training.json", "metrics.jsonl", "curves.html", ".training.lock"
THREADS = "threads.json"
RESULTS = ("config.json", "adapter_config.json")  # one of them is there when the training is over
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


def check_finished(folder: Path) -> None:
    """Refuse the folder of a training that has not ended as a model, and say what to open instead."""
    begun = (folder / ABOUT).exists() and any((folder / name).exists() for name in (METRICS, LOCK))
    if not begun or any((folder / name).exists() for name in RESULTS):
        return
    advice = f"Resume it with glass train --out {folder} --resume"
    if snapshots := step_folders(folder / SNAPSHOTS):
        advice += f", or use {snapshots[max(snapshots)]}"
    raise CheckpointError(f"{folder}: a training that has not ended, and so no model yet. {advice}.")
