"""A stage of Ray Data: rows of a dataset in, their answers out.

    answers = dataset.map_batches(
        Generator, fn_constructor_args=("smollm2",), fn_constructor_kwargs={"max_new_tokens": 32},
        batch_format="pyarrow", batch_size=256, num_cpus=8, compute=ray.data.ActorPoolStrategy(size=4),
    )

A row has the fields that a row of `glass run --file` has, and its answer those that `glass run --file` writes: one for each
row, under the row's id, with an error where there is no answer. An empty cell is a field that is not there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from glassformer.ground.arguments import checked
from glassformer.ground.errors import InputError, InputTypeError
from glassformer.jobs.engines import JobPlan, LocalEngine
from glassformer.jobs.formats.parquet import import_pyarrow, schema_of, table_of, without_nulls
from glassformer.jobs.formats.row_format import InputRow, JsonObject, PlainRows
from glassformer.runtime.model import load
from glassformer.scale.cluster import ClusterMachine, allot, import_ray, machines, use_assigned_cores
from glassformer.scale.worker import Load

if TYPE_CHECKING:
    from ray.data import Dataset

BATCH_ROWS = 256  # that a worker is given at once


class Generator:
    """For `Dataset.map_batches`: a model on each worker, with as many threads as the worker has cores."""

    def __init__(self, model: str | Load, *, batch_size: int | None = None, **keywords: Any) -> None:
        """Load the model.

        Args:
            model: a catalogue name, a hub id or a path that every machine has; or a function that gives a model, or a task:
                `partial(glassformer.pipeline, "embed")`.
            batch_size: texts that are written together; by default the task's own, or 32.
            keywords: prompt options and settings for every row; a row's own come on top. Without a `seed`, it is 0.
        """
        ray = import_ray()
        if ray.is_initialized():
            use_assigned_cores(ray)
        self.engine = LocalEngine(load(model) if isinstance(model, str) else model(), keywords, Generator)
        self.engine.start()
        self.batch_size = batch_size

    def __call__(self, batch: Any) -> Any:
        """The answers to a batch, as a table of Arrow, in the order of its rows."""
        rows = [_row(index, value) for index, value in enumerate(_values(batch))]
        plan = JobPlan(PlainRows.name, len(rows), self.engine.seed or 0, 0, self.batch_size)
        outputs: dict[int, JsonObject] = {}
        for index, record in self.engine.records(rows, (), plan, lambda count: None):
            outputs[index] = record["output"]
        ordered = [outputs[row.index] for row in rows]
        return table_of(ordered, schema_of(ordered))


@checked
def generate(
    dataset: Any,
    model: str | Callable[[], Any],
    *,
    workers: int | None = None,
    gpus: bool | None = None,
    batch_size: int | None = None,
    **keywords: Any,
) -> Dataset:
    """The answers to a dataset's rows: `map_batches` with `Generator`, on workers that share the cluster's machines evenly.

    Args:
        dataset: one of `ray.data`, with a column `id`, and `prompt`, `messages` or `ids`.
        model: as for `Generator`.
        workers: how many; by default one for each GPU, or else one for each machine.
        gpus: whether a worker has a GPU; by default it does where the cluster has any.
        batch_size: texts that a worker writes together; by default the task's own, or 32.
        keywords: prompt options and settings for every row.
    """
    ray = import_ray()
    allotment = allot(_with_spare_core(machines(ray)), workers, gpus)
    answers: Dataset = dataset.map_batches(
        Generator, fn_constructor_args=(model,), fn_constructor_kwargs={"batch_size": batch_size, **keywords},
        batch_format="pyarrow", batch_size=BATCH_ROWS, compute=ray.data.ActorPoolStrategy(size=allotment.workers),
        **allotment.options,
    )  # fmt: skip
    return answers


def _with_spare_core(available: list[ClusterMachine]) -> list[ClusterMachine]:
    """The machines without a core of the largest: Ray Data reads and writes with tasks, which would wait for the workers."""
    *others, largest = sorted(available, key=lambda machine: machine.cores)
    return [*others, replace(largest, cores=max(1, largest.cores - 1))]


def _row(index: int, value: JsonObject) -> InputRow:
    """A row of a dataset. It needs an id of its own: there is no order that could number it."""
    try:
        row_id = PlainRows.id_of(value)
    except InputError as error:
        return InputRow(index, None, value, error)
    if row_id is None:
        return InputRow(
            index, None, value, InputError("the row has no id, by which its answer could be found. Give it one.")
        )
    return InputRow(index, row_id, value)


def _values(batch: Any) -> list[JsonObject]:
    """What the rows of a batch hold, in either of two formats."""
    pa, _ = import_pyarrow()
    if isinstance(batch, pa.Table):
        names, values = batch.column_names, batch.to_pylist()
    elif isinstance(batch, Mapping):
        names = list(batch)
        values = [dict(zip(names, map(_plain, cells), strict=True)) for cells in zip(*batch.values(), strict=True)]
    else:
        raise InputTypeError(
            f"a batch of {type(batch).__name__} cannot be read. Pass batch_format='pyarrow' to map_batches."
        )
    if "id" not in names:
        raise InputError(f"the dataset has no column 'id', by which answers could be found; it has: {', '.join(names)}.")
    return [without_nulls(value) for value in values]


def _plain(value: Any) -> Any:
    """A cell of NumPy as Python has it; NaN stands for an empty one."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, np.ndarray)):
        return [_plain(item) for item in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and math.isnan(value) else value
