"""Folders as trainings leave them, made by hand: every number in them is known."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from glassformer.checkpoint.training_layout import ABOUT, METRICS, SNAPSHOTS, step_name
from tests.see.models import folder


def step_line(step: int, loss: float, **more: Any) -> dict[str, Any]:
    line = {"kind": "step", "step": step, "loss": loss, "learning_rate": 0.001 * step, "gradient_norm": 1.0 + 1 / step}
    return {**line, "tokens": 100, "seconds": 0.5, "epoch": 0.0, "time": 0.0, **more}


def evaluation_line(step: int, loss: float) -> dict[str, Any]:
    return {"kind": "evaluation", "step": step, "loss": loss, "seconds": 1.0, "perplexity": 2.0 * step, "time": 0.0}


def sample_line(step: int, text: str) -> dict[str, Any]:
    return {"kind": "sample", "step": step, "text": text, "time": 0.0}


def write_lines(path: Path, lines: Iterable[dict[str, Any] | str]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)


def training_folder(
    path: Path, lines: Iterable[dict[str, Any] | str], families: tuple[str, ...] = (), steps: int | None = None
) -> Path:
    """A folder with metrics, and a snapshot of a tiny model of each family, after steps 0, 10, 20, …"""
    path.mkdir(exist_ok=True)
    if steps is not None:
        (path / ABOUT).write_text(json.dumps({"kind": "text", "steps": steps}))
    write_lines(path / METRICS, lines)
    for number, family in enumerate(families):
        (path / SNAPSHOTS).mkdir(exist_ok=True)
        source = folder(family, "seq2seq" if family in ("t5", "bart") else "causal")[0]
        shutil.copytree(source, path / SNAPSHOTS / step_name(10 * number))
    return path
