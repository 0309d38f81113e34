"""docs/batch-jobs.md: its files, commands and messages."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import glassformer
from glassformer.cli.app import app
from glassformer.jobs import run_job
from tests.docs.pages import blocks, run
from tests.test_docs import ROOT

PAGE = ROOT / "docs" / "batch-jobs.md"
FILES = dict(re.findall(r"```jsonl file=(\S+)\n(.*?)```", PAGE.read_text("utf-8"), re.S))
COMMANDS = re.findall(r"```\n(glass .*)\n```", PAGE.read_text("utf-8"))


def glass(command: str) -> Result:
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, (command, done.output, done.exception)
    assert done.stdout == ""
    return done


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_the_first_job_gives_what_the_page_shows(smollm2: Path, command_folder: Path) -> None:
    (command_folder / "in.jsonl").write_text(FILES["in.jsonl"], "utf-8")
    assert "3 rows in " in glass(COMMANDS[0]).stderr
    capital, colour, story = rows(command_folder / "out.jsonl")
    assert capital == json.loads(FILES["out.jsonl"].splitlines()[0])
    assert len(colour["ids"]) <= 6
    assert story["error"] is None
    assert "all were finished before" in glass(COMMANDS[0]).stderr


def test_openais_batch(smollm2: Path, command_folder: Path) -> None:
    (command_folder / "batch.jsonl").write_text(FILES["batch.jsonl"], "utf-8")
    glass(COMMANDS[1])
    (answer,) = rows(command_folder / "answers.jsonl")
    assert answer["custom_id"] == "a"
    assert answer["response"]["body"]["usage"]["completion_tokens"] <= 6


def test_vectors(minilm: Path, command_folder: Path) -> None:
    (command_folder / "lines.txt").write_text("a cat\na dog\n", "utf-8")
    glass(COMMANDS[2])
    from pyarrow import parquet

    vectors = parquet.read_table(command_folder / "vectors.parquet")["output"].to_pylist()
    assert [len(vector) for vector in vectors] == [384, 384]
    assert len(COMMANDS) == 3


def test_python_and_the_error_row(
    smollm2: Path, command_folder: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    run(PAGE, caplog)
    assert capsys.readouterr().out.splitlines()[0] == "2 0"
    ((_, row, message),) = [block for block in blocks(PAGE) if block[0] == "jsonl row=error"]
    (command_folder / "row.jsonl").write_text(row, "utf-8")
    run_job(glassformer.load("smollm2"), "row.jsonl", "error.jsonl")
    assert rows(command_folder / "error.jsonl") == [{"id": "x", "error": message}]
