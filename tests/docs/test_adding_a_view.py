"""docs/adding-a-view.md: its two files are put where views live, and its last block prints what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.test_tour import check_output
from tests.test_docs import ROOT

PAGE = (ROOT / "docs" / "adding-a-view.md").read_text("utf-8")


def test_the_example_view_prints_what_the_page_shows(tmp_path: Path, smollm2: Path) -> None:
    files = re.findall(r"```python file=(\S+)\n(.*?)```", PAGE, re.S)
    assert [name for name, _ in files] == ["views/norms.py", "observe/norms.py"]
    for name, code in files:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(code, "utf-8")
    (block,) = re.findall(r"```python after=norms\n(.*?)```", PAGE, re.S)
    (output,) = re.findall(r"```text\n(.*?)```", PAGE, re.S)
    paths = "\n".join(
        f"import glassformer.{folder}; glassformer.{folder}.__path__.append({str(tmp_path / folder)!r})"
        for folder in ("views", "observe")
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{paths}\n{block}"], cwd=tmp_path, env={**os.environ, "COLUMNS": "80"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_output(done.stdout, output)


def test_the_method_of_the_example_is_python() -> None:
    (method,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    compile(method, "adding-a-view.md", "exec")
