"""Golden renders: each view as text in a file next to this one, so that a change of its looks shows up in review.

A test calls `golden("journey", view, 80)`. To rewrite the files, run it with GLASS_GOLDEN=write, and read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from glassformer.page.terminal import plain_text

FOLDER = Path(__file__).parent
WIDTHS = (80, 120)


def golden(name: str, view: Any, width: int) -> None:
    """Compare a view's render with its file; whatever differs from run to run must be taken out before."""
    file = FOLDER / f"{name}-{width}.txt"
    rendered = "\n".join(line.rstrip() for line in plain_text(view, width).splitlines()) + "\n"
    if os.environ.get("GLASS_GOLDEN") == "write":
        file.write_text(rendered, "utf-8", newline="\n")
    assert file.exists(), f"{file.name} is not there yet. Write it: GLASS_GOLDEN=write, and read it."
    assert rendered == file.read_text("utf-8")
