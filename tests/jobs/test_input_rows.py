"""Files of rows, odd ones too: whatever a line holds, the others are read."""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from glassformer.ground.errors import InputError
from glassformer.jobs import input_rows
from glassformer.jobs.job import open_input


def values(path: Path) -> list[Any]:
    """What the rows hold, errors as their messages."""
    source = open_input(path)
    try:
        rows = [str(value) if isinstance(value, InputError) else value for value in source.values()]
        assert source.count() == len(rows)
        return rows
    finally:
        source.close()


def test_odd_lines_are_errors_in_their_places(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    lines = [
        b'\xef\xbb\xbf{"prompt": "a"}',
        b"",
        b"  \t",
        b'{"prompt": "b"}\r',
        b"\xff\xfe",
        b"{",
        b'"text"',
        b"[" * 100_000,
    ]
    path.write_bytes(b"\n".join(lines))
    first, second, third, fourth, text, deep = values(path)
    assert [first, second, text] == [{"prompt": "a"}, {"prompt": "b"}, "text"]
    assert third == "in.jsonl, line 5: not UTF-8 text (invalid start byte). Convert it first."
    assert fourth.startswith("in.jsonl, line 6: not valid JSON (Expecting property name")
    assert deep.startswith("in.jsonl, line 8: not valid JSON (")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('{"metadata": NaN}', "the row holds NaN or Infinity, which are no numbers of JSON. Leave them out, or write null."),
        ('{"metadata": {"a": [-Infinity]}}', "the row holds NaN or Infinity"),
        ('{"metadata": 1e999}', "the row holds NaN or Infinity"),
        ('{"metadata": ' + "[" * 101 + "]" * 101 + "}", "the row is nested more than 100 levels deep."),
        ('{"metadata": ' + "[" * 95 + "]" * 95 + "}", None),
        ('{"metadata": ' + "[[],{}]," * 0 + "[" + ",".join(["[]"] * 200) + "]}", None),  # wide, not deep
        ('{"metadata": "\\ud800"}', None),
        ('{"id": 1, "id": 2}', None),
        ('{"metadata": ' + "9" * 4000 + "}", None),
    ],
)
def test_what_json_cannot_represent_is_a_problem_of_its_row(row: str, problem: str | None) -> None:
    found = input_rows.row_problem(json.loads(row))
    assert str(found).startswith(problem) if problem else found is None


def test_what_a_table_holds_beside_json_is_a_problem() -> None:
    found = input_rows.row_problem({"metadata": [date(2024, 1, 1)]})
    assert str(found) == (
        "the row holds what JSON cannot represent (Object of type date is not JSON serializable). Write it as a text."
    )


def test_a_huge_line_is_skipped_without_being_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_rows, "MAX_LINE", 20)
    monkeypatch.setattr(input_rows, "BLOCK", 7)
    path = tmp_path / "in.jsonl"
    for length in range(15, 60):
        path.write_text(f'"a"\n"{"x" * length}"\n"b"\n"{"y" * length}"')
        rows = values(path)
        assert [rows[0], rows[2]] == ["a", "b"]
        if length > 18:  # with its quotation marks
            assert rows[3] == "in.jsonl, line 4: longer than 20 bytes. Split it."
        if length > 17:  # and its end of line
            assert rows[1] == "in.jsonl, line 2: longer than 20 bytes. Split it."


def test_other_files_have_a_text_on_each_line(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text('one\n\n{"two"}\r\n', "utf-8")
    assert values(tmp_path / "lines.txt") == ["one", '{"two"}']


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"")
    assert values(tmp_path / "in.jsonl") == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "in.jsonl")
    with pytest.raises(InputError, match="is a pipe or a device, and is read more than once. Write it to a file first."):
        open_input(tmp_path / "in.jsonl")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        open_input(tmp_path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        open_input(tmp_path / "nowhere.jsonl")


def test_a_change_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('"a"\n')
    source = open_input(tmp_path / "in.jsonl")
    source.check_unchanged()
    with (tmp_path / "in.jsonl").open("a") as file:
        file.write('"b"\n')
    with pytest.raises(InputError, match="in.jsonl was changed"):
        source.check_unchanged()
    source.close()
