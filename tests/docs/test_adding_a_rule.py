"""docs/adding-a-rule.md: its function and its line are put into a copy of the package, and its last block is run there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from inspect import signature
from pathlib import Path

import glassformer
from glassformer.decoding.settings_table import SettingInfo, setting
from tests.docs.pages import blocks
from tests.patience import patience
from tests.test_docs import ROOT

PAGE = ROOT / "docs" / "adding-a-rule.md"


def test_the_example_rule_runs_in_a_copy_of_the_package(tmp_path: Path) -> None:
    package = tmp_path / "glassformer"
    shutil.copytree(Path(glassformer.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (rule, code, _), (table, line, _), (last, program, expected) = (
        block for block in blocks(PAGE) if block[0].startswith("python")
    )
    assert (rule, last) == ("python file=decoding/rules/sampling.py", "python after=top_a")
    rules = package / "decoding" / "rules" / "sampling.py"
    rules.write_text(f"{rules.read_text('utf-8')}\n\n{code}", "utf-8")
    (successor,) = re.findall(r"^python file=decoding/settings_table\.py before=(\w+)$", table)
    settings = package / "decoding" / "settings_table.py"
    before, mark, after = settings.read_text("utf-8").partition(f"    {successor}: ")
    assert mark
    settings.write_text(before + line + mark + after, "utf-8")
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


def test_every_key_of_a_line_that_the_page_names_exists() -> None:
    table = PAGE.read_text("utf-8").split("|---|---|\n")[1].split("\n\n")[0]
    cells = [row.split(" | ")[0] for row in table.splitlines()]
    names = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert names <= {*SettingInfo._fields, *signature(setting).parameters}
    assert {"rule", "truncates", "needs", "token_ids"} <= names
