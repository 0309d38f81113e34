"""docs/scaling.md: its job and its Python are run on a small cluster, its other command parses."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from glassformer.cli.app import app
from tests.docs.pages import run
from tests.scale.conftest import cluster  # noqa: F401
from tests.test_docs import ROOT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the extra `ray` has nothing for it")
PAGE = ROOT / "docs" / "scaling.md"
TEXT = PAGE.read_text("utf-8")


@pytest.mark.sweep
@pytest.mark.usefixtures("cluster")
def test_the_job_and_the_python_run(
    smollm2: Path, command_folder: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    ((name, rows),) = re.findall(r"```jsonl file=(\S+)\n(.*?)```", TEXT, re.S)
    (command_folder / name).write_text(rows, "utf-8")
    (command,) = re.findall(r"^(glass run .*)$", TEXT, re.M)
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert (done.exit_code, done.stdout) == (0, ""), (done.output, done.exception)
    capital, colour = map(json.loads, (command_folder / "out.jsonl").read_text("utf-8").splitlines())
    assert capital["text"] == "The capital of France is Paris."
    assert len(colour["ids"]) <= 6
    run(PAGE, caplog)
    assert capsys.readouterr().out.splitlines() == ["2 0", "[0, 1, 2, 3]"]


def test_the_server_s_command_parses() -> None:
    (line,) = re.findall(r"^\$ glass serve(.*)$", TEXT, re.M)
    command = app.get_command(app.make_context("glass", ["serve"], resilient_parsing=True), "serve")
    assert command is not None
    command.make_context("serve", shlex.split(line))
