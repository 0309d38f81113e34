"""The stage of Ray Data: rows in, answers out, as `glass run --file` writes them."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from glassformer.ground.errors import InputError, InputTypeError, SettingError
from glassformer.jobs import run_job
from glassformer.scale import Generator, generate
from tests.jobs.models import GREEDY, SAMPLED, chat_folder, chat_model, read_rows, write_rows
from tests.scale.loading import load_embedder, load_model
from tests.see.models import folder as model_folder

LOAD = partial(load_model, chat_folder())
ROWS: list[dict[str, Any]] = [*GREEDY, *SAMPLED, {"id": "bad", "prompt": ""}, {"id": "typo", "prompt": "a", "seeed": 3}]
SCHEMA = pa.schema(
    {
        "id": pa.string(), "prompt": pa.string(), "max_new_tokens": pa.int64(), "do_sample": pa.bool_(),
        "temperature": pa.float64(), "seeed": pa.int64(),
    }
)  # fmt: skip


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What `glass run --file` writes."""
    folder = tmp_path_factory.mktemp("rows")
    run_job(chat_model(), write_rows(folder / "in.jsonl", ROWS), folder / "out.jsonl", seed=7)
    return read_rows(folder / "out.jsonl")


@pytest.fixture(scope="module")
def stage() -> Generator:
    return Generator(LOAD, seed=7, batch_size=4)


def without_empty(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def test_a_table_is_answered_in_its_order(stage: Generator, expected: list[dict[str, Any]]) -> None:
    answers = stage(pa.Table.from_pylist(ROWS, SCHEMA))
    assert without_empty(answers.to_pylist()) == without_empty(expected)
    assert answers.column_names == ["id", "text", "ids", "finish", "usage", "error"]


def test_a_batch_of_arrays_is_answered_too(stage: Generator) -> None:
    batch = {
        "id": np.array([1, 2, 3]),
        "prompt": np.array(["hi", None, "hi"], object),
        "ids": np.array([None, np.array([3, 4]), None], object),
        "max_new_tokens": np.array([4, 5, math.nan], object),
        "metadata": np.array([{"from": np.array(["a"])}, None, None], object),
    }
    first, second, third = stage(batch).to_pylist()
    assert first["text"] == chat_model().chat("hi", max_new_tokens=4)
    assert (first["id"], first["metadata"]) == (1, '{"from": ["a"]}')
    assert len(second["ids"]) == 5
    assert third["text"].startswith(first["text"])


def test_a_row_without_a_right_id_is_an_error(stage: Generator) -> None:
    table = pa.table({"id": [None, 2], "prompt": ["hi", "hi"], "max_new_tokens": [2, 2]})
    first, second = stage(table).to_pylist()
    assert first["error"] == "the row has no id, by which its answer could be found. Give it one."
    assert (second["error"], second["id"]) == (None, 2)
    assert stage({"id": [[1]], "prompt": ["hi"]}).to_pylist() == [
        {"id": None, "error": "id is [1]; it must be a text or a whole number."}
    ]


def test_datasets_that_cannot_be_answered_are_refused(stage: Generator) -> None:
    with pytest.raises(
        InputError, match=r"^the dataset has no column 'id', by which answers could be found; it has: prompt.$"
    ):
        stage(pa.table({"prompt": ["hi"]}))
    with pytest.raises(
        InputTypeError, match=r"^a batch of list cannot be read. Pass batch_format='pyarrow' to map_batches.$"
    ):
        stage([1])
    with pytest.raises(SettingError, match="temperature"):
        Generator(LOAD, temperature=-1.0)


def test_a_task_answers_rows(tmp_path: Path) -> None:
    load = partial(load_embedder, model_folder("bert", "base")[0])
    texts = [{"id": number, "text": "the cat sat on the mat"[: number + 1]} for number in range(9)]
    run_job(load(), write_rows(tmp_path / "in.jsonl", texts), tmp_path / "out.parquet")
    import pyarrow.parquet as parquet

    assert Generator(load)(pa.Table.from_pylist(texts)) == parquet.read_table(tmp_path / "out.parquet")


@pytest.mark.sweep
def test_a_dataset_is_answered_by_the_workers_of_a_cluster(cluster: str, expected: list[dict[str, Any]]) -> None:
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    dataset = ray.data.from_items([*GREEDY, {"id": "bad", "prompt": ""}], override_num_blocks=4)
    answers = {row["id"]: row for row in without_empty(generate(dataset, LOAD, workers=2, seed=7).take_all())}
    kept = [row for row in without_empty(expected) if not row["id"].startswith(("sampled", "typo"))]
    assert sorted(answers) == sorted(row["id"] for row in kept)
    assert [answers[row["id"]] for row in kept] == kept
