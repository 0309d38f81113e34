"""Parquet in and out: the same rows as lines of JSON."""

from __future__ import annotations

import random
import sys
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import glassformer
from glassformer.ground.errors import InputError, MissingExtra
from glassformer.jobs import run_job
from glassformer.jobs.formats.parquet import write_parquet
from glassformer.jobs.job import open_input
from tests.fuzz.mutations import mutated_bytes
from tests.jobs.models import GREEDY, SAMPLED, chat_model, read_rows, write_rows
from tests.see.models import encoder

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_table_gives_the_answers_of_its_rows(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho", "name": "x"}]
    rows: list[dict[str, Any]] = [*GREEDY[:3], *SAMPLED[:3], {"messages": messages}, {"ids": [5, 6, 7]}, {"id": "none"}]
    parquet.write_table(pa.Table.from_pylist([{"id": None, **row} for row in [dict.fromkeys(
        ("id", "prompt", "messages", "ids", "max_new_tokens", "do_sample", "temperature")) | row for row in rows]]),
        tmp_path / "in.parquet")  # fmt: skip
    write_rows(tmp_path / "in.jsonl", rows)
    options: dict[str, Any] = {"max_new_tokens": 4, "seed": 1}
    run_job(chat_model(), tmp_path / "in.jsonl", tmp_path / "lines.jsonl", **options)
    run_job(chat_model(), tmp_path / "in.parquet", tmp_path / "table.jsonl", **options)
    lines = read_rows(tmp_path / "lines.jsonl")
    assert read_rows(tmp_path / "table.jsonl") == lines
    run_job(chat_model(), tmp_path / "in.parquet", tmp_path / "out.parquet", **options)
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table["id"].to_pylist() == [str(line["id"]) for line in lines]
    for name in ("text", "ids", "finish", "usage", "error"):
        assert table[name].to_pylist() == [line.get(name) for line in lines]
    assert table.schema.field("ids").type == pa.list_(pa.int32())


def test_vectors_are_a_column_of_floats(tmp_path: Path) -> None:
    task = glassformer.pipeline("embed", encoder("bert").model)
    path = write_rows(tmp_path / "in.jsonl", ["the cat", 3, "the dog"])
    summary = run_job(task, path, tmp_path / "out.parquet")
    assert summary.failed == 1
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.schema.field("output").type == pa.list_(pa.float32())
    assert table.schema.field("id").type == pa.int64()
    assert table["output"].to_pylist()[0] == pytest.approx(task("the cat").tolist(), abs=1e-6)
    assert table["error"].to_pylist() == [None, "a task takes text, not int.", None]


def test_values_of_several_types_are_json(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"a": 1, "b": {"c": [1]}, "d": True},
        {"a": "x", "b": None, "d": None, "e": 0.5},
        {"e": []},
    ]
    write_parquet(tmp_path / "out.parquet", lambda: rows)
    assert parquet.read_table(tmp_path / "out.parquet").to_pylist() == [
        {"a": "1", "b": '{"c": [1]}', "d": True, "e": None},
        {"a": "x", "b": None, "d": None, "e": "0.5"},
        {"a": None, "b": None, "d": None, "e": "[]"},
    ]
    write_parquet(tmp_path / "empty.parquet", list)
    assert parquet.read_table(tmp_path / "empty.parquet").num_rows == 0
    write_parquet(tmp_path / "lists.parquet", lambda: [{"a": []}, {"a": [1.5]}])
    assert parquet.read_table(tmp_path / "lists.parquet")["a"].to_pylist() == [[], [1.5]]


def test_cells_that_json_cannot_represent_are_error_rows(tmp_path: Path) -> None:
    cells = [{"prompt": "hi", "metadata": value} for value in (0.5, float("nan"), float("inf"))]
    parquet.write_table(pa.Table.from_pylist(cells), tmp_path / "in.parquet")
    assert run_job(chat_model(), tmp_path / "in.parquet", tmp_path / "out.jsonl", max_new_tokens=2).failed == 2
    assert read_rows(tmp_path / "out.jsonl")[0]["metadata"] == 0.5
    dates = [{"prompt": "hi", "metadata": datetime(2024, 1, 1)}, {"prompt": "hi", "metadata": None}]
    parquet.write_table(pa.Table.from_pylist(dates), tmp_path / "dates.parquet")
    assert run_job(chat_model(), tmp_path / "dates.parquet", tmp_path / "dates.jsonl", max_new_tokens=2).failed == 1


def test_long_numbers_and_halves_of_letters_have_a_column(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"a": 2**40, "b": [1, 2**40], "c": 2**70, "d": "x\ud83d", "metadata": [0.1]},
        {"a": 1, "b": [2], "c": 1, "d": "\ud83d\ude00", "metadata": []},
    ]
    write_parquet(tmp_path / "out.parquet", lambda: rows)
    assert parquet.read_table(tmp_path / "out.parquet").to_pylist() == [
        {"a": 2**40, "b": [1, 2**40], "c": str(2**70), "d": "x\ufffd", "metadata": [0.1]},
        {"a": 1, "b": [2], "c": "1", "d": "\U0001f600", "metadata": []},
    ]


def test_a_damaged_table_is_refused_in_a_sentence(tmp_path: Path) -> None:
    parquet.write_table(pa.Table.from_pylist([{"prompt": f"row {number}"} for number in range(50)]), tmp_path / "in.parquet")
    whole = (tmp_path / "in.parquet").read_bytes()
    draw = random.Random(5)
    messages = []
    for _ in range(150):
        (tmp_path / "bad.parquet").write_bytes(mutated_bytes(whole, draw))
        try:
            with closing(open_input(tmp_path / "bad.parquet")) as source:
                assert len(list(source.values())) == source.count()
        except InputError as error:
            messages.append(str(error).removeprefix(str(tmp_path)))
    assert messages
    assert max(map(len, messages)) < 300


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.parquet").write_text("nonsense")
    with pytest.raises(InputError, match="in.parquet"):
        run_job(chat_model(), tmp_path / "in.parquet", tmp_path / "out.jsonl")


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.parquet").write_text("nonsense")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match="pyarrow"):
        run_job(chat_model(), tmp_path / "in.parquet", tmp_path / "out.jsonl")
    path = write_rows(tmp_path / "in.jsonl", [{"prompt": "hi"}])
    with pytest.raises(MissingExtra, match="pyarrow"):  # before anything runs
        run_job(chat_model(), path, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet.ledger").exists()
