"""`glass models ps`: which `glass` processes hold a model now."""

from __future__ import annotations

import time
from dataclasses import asdict

from glassformer.cli import common
from glassformer.cli.processes import model_processes

EXAMPLE = "Example: glass models ps --json"


def ps(as_json: common.JsonOption = False) -> None:
    """List the glass processes that hold a model now, and since when."""
    processes = model_processes()
    if as_json:
        common.print_json([asdict(process) for process in processes])
        return
    if not processes:
        common.note("No glass process holds a model now.")
    for process in processes:
        minutes = int(time.time() - process.started) // 60
        common.print_line(f"{process.pid:>7}  {process.command:<12}  {process.model}  for {minutes} min")
