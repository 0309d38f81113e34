"""Golden renders: what a view looks like, kept as text beside this file, so that a change to a picture is seen as one.

A test calls `golden("journey", view, 80)`. To write the files anew, run it with GLASS_GOLDEN=write, and read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from glassformer.page.terminal import plain

FOLDER = Path(__file__).parent
WIDTHS = (80, 120)


def golden(name: str, view: Any, width: int) -> None:
    """Hold a view's picture against the kept one; whatever differs from run to run must be taken out of it before."""
    file = FOLDER / f"{name}-{width}.txt"
    drawn = "\n".join(line.rstrip() for line in plain(view, width).splitlines()) + "\n"
    if os.environ.get("GLASS_GOLDEN") == "write":
        file.write_text(drawn, "utf-8", newline="\n")
    assert file.exists(), f"{file.name} is not there yet. Write it: GLASS_GOLDEN=write, and read it."
    assert drawn == file.read_text("utf-8")
