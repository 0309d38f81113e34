"""docs/adding-a-view.md: its two files are put where views live, and its last block prints what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent

from tests.docs.test_tour import check_output
from tests.patience import patience
from tests.test_docs import ROOT

PAGE = (ROOT / "docs" / "adding-a-view.md").read_text("utf-8")


METHOD = """
from glassformer.observe.norms import norms
from glassformer.observe.reading import Reading
from glassformer.views.norms import Norms

class Addition:
{method}

Reading.norms = Addition.norms
"""


def test_the_example_view_prints_what_the_page_shows(tmp_path: Path, smollm2: Path) -> None:
    files = re.findall(r"```python file=(\S+)\n(.*?)```", PAGE, re.S)
    assert [name for name, _ in files] == ["views/norms.py", "observe/norms.py"]
    for name, code in files:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(code, "utf-8")
    (method,) = re.findall(r"```python method=Reading\n(.*?)```", PAGE, re.S)
    (block,) = re.findall(r"```python after=norms\n(.*?)```", PAGE, re.S)
    (output,) = re.findall(r"```text\n(.*?)```", PAGE, re.S)
    paths = "\n".join(
        f"import glassformer.{folder}; glassformer.{folder}.__path__.append({str(tmp_path / folder)!r})"
        for folder in ("views", "observe")
    )
    code = f"{paths}\n{METHOD.format(method=indent(method, '    '))}\n{block}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True,
        timeout=patience(300),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_output(done.stdout, output)
