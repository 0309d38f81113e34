"""docs/adding-a-dialect.md: its file is put into a copy of the package, where its last block prints what the page shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import glassformer
from glassformer.serving.http import dialect
from tests.docs.pages import blocks
from tests.patience import patience
from tests.test_docs import ROOT

PAGE = ROOT / "docs" / "adding-a-dialect.md"


def test_the_example_dialect_is_served_by_a_copy_of_the_package(tmp_path: Path) -> None:
    package = tmp_path / "glassformer"
    shutil.copytree(Path(glassformer.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (mark, code, _), (last, program, expected) = (block for block in blocks(PAGE) if block[0].startswith("python"))
    (file,) = re.findall(r"^python file=(\S+)$", mark)
    assert last == "python after=say"
    (package / file).write_text(code, "utf-8")
    check = f"import glassformer; assert glassformer.__file__.startswith({str(package)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", check + program],
        capture_output=True,
        text=True,
        timeout=patience(120),
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONIOENCODING": "utf-8"},
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == expected


def test_every_part_of_a_dialect_that_the_page_names_exists() -> None:
    table = PAGE.read_text("utf-8").split("|---|---|\n")[1].split("\n\n")[0]
    named = {re.findall(r"`(\w+)`", row.split(" | ")[0])[0] for row in table.splitlines()}
    here = {"router", "DIALECT", "generation"}  # of each dialect's own file
    assert named - here <= {*vars(dialect), *vars(dialect.RequestBody)}
    assert {"SETTINGS", "REFUSED", "NEUTRAL", "AnswerForm"} <= named
