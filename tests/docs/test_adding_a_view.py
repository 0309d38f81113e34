"""docs/adding-a-view.md: with its file among the views, it prints what the page shows, and is a verb, a route and a form."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.test_tour import check_output
from tests.patience import patience
from tests.test_docs import ROOT

PAGE = (ROOT / "docs" / "adding-a-view.md").read_text("utf-8")
EVERYWHERE = """
import os, sys
from click.testing import CliRunner
from fastapi.testclient import TestClient
from glassformer.cli.app import app as command
from glassformer.runtime.model import load
from glassformer.serving.http.app import create_app
from glassformer.serving.http.openapi import PAGE
from glassformer.serving.registry import ModelSource, Registry

assert "\\n  norms " in CliRunner().invoke(command, ["--help"]).output
assert "'--token'" in CliRunner().invoke(command, ["norms", "--tokn", "x"]).output
done = CliRunner().invoke(command, ["norms", "--raw", "The capital of France is", "--token", "France", "--json"])
assert done.exit_code == 0, done.output
assert json.loads(done.stdout)["layers"] == data["layers"]

registry = Registry([ModelSource("smollm2", lambda: load("smollm2"))])
with TestClient(create_app(registry), base_url="http://127.0.0.1") as client:
    (listed,) = [view for view in client.get("/glass/views").json()["views"] if view["name"] == "norms"]
    field = next(field for field in listed["fields"] if field["name"] == "position")
    assert (field["kind"], field["description"]) == ("integer or text", "Of this token: its position or its text.")
    body = {"prompt": "The capital of France is", "raw": True, "position": "France"}
    assert client.post("/glass/norms", json=body).json()["layers"] == data["layers"]
    python = client.post("/glass/norms", json=body, headers={"Accept": PAGE}).json()["python"]
    assert python == "model.read('The capital of France is', raw=True).norms('France')", python
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    assert {"NormsRequest", "NormsJson"} <= schemas.keys()
registry.close()
"""


def test_the_example_view_appears_everywhere(tmp_path: Path, smollm2: Path) -> None:
    ((name, source),) = re.findall(r"```python file=(\S+)\n(.*?)```", PAGE, re.S)
    assert name == "see/norms.py"
    (tmp_path / "norms.py").write_text(source, "utf-8")
    (block,) = re.findall(r"```python after=norms\n(.*?)```", PAGE, re.S)
    (output,) = re.findall(r"```text\n(.*?)```", PAGE, re.S)
    found = f"import glassformer.see\nglassformer.see.__path__.append({str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([found, block, EVERYWHERE])], cwd=tmp_path, env={**os.environ, "COLUMNS": "80"},
        capture_output=True, text=True, timeout=patience(300),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_output(done.stdout, output)
