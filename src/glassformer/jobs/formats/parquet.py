"""Parquet files of rows, read and written in pieces. Needs pyarrow: the extra `parquet`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from glassformer.ground.errors import InputError, needed_for, reason_of
from glassformer.jobs.input_rows import InputFile
from glassformer.page.format import to_json

BATCH = 1024  # rows held in memory
EMPTY_LIST = "list of "  # which is a list of anything


class ParquetInput(InputFile):
    """A row of the table is a row of the input; an empty cell is a field that is not there."""

    def __init__(self, path: Path) -> None:
        _, parquet = import_pyarrow()
        super().__init__(path)
        try:
            self.table = parquet.ParquetFile(self.file)
            about = self.table.metadata
            counts = [about.row_group(index).num_rows for index in range(about.num_row_groups)]
            if min(counts, default=0) < 0 or sum(counts) != about.num_rows:
                raise ValueError(f"its parts have {sum(counts)} rows, and it says {about.num_rows}")
        except Exception as error:  # pyarrow's own errors and Python's: a damaged file can raise any
            self.close()
            raise InputError(f"{path} is no Parquet file that can be read: {reason_of(error)}.") from error

    def count(self) -> int:
        return int(self.table.metadata.num_rows)

    def values(self) -> Iterator[Any]:
        rows = 0
        try:
            for batch in self.table.iter_batches(BATCH):
                rows += batch.num_rows
                yield from map(without_nulls, batch.to_pylist())
            if rows != self.count():
                raise ValueError(f"it has {rows} rows, and says {self.count()}")
        except Exception as error:
            raise InputError(f"{self.path} is damaged: {reason_of(error)}. Write it again.") from error


def without_nulls(value: Any) -> Any:
    """A value without the fields that are empty: a column has a cell in each row, whether the row has the field or not."""
    if isinstance(value, Mapping):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def write_parquet(path: Path, rows: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
    """Rows of JSON as a table; `rows` gives them twice, first for the columns' types."""
    _, parquet = import_pyarrow()
    schema = schema_of(rows())
    with parquet.ParquetWriter(path, schema) as writer:
        remaining = iter(rows())
        while batch := list(islice(remaining, BATCH)):
            writer.write_table(table_of(batch, schema))


def schema_of(rows: Iterable[Mapping[str, Any]]) -> Any:
    """The columns that rows of JSON need, and their types."""
    pa, _ = import_pyarrow()
    kinds: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            kinds.setdefault(name, set()).add(_kind(value))
    return pa.schema([(name, _column_type(name, kinds[name] - {"null"})) for name in kinds])


def table_of(rows: Sequence[Mapping[str, Any]], schema: Any) -> Any:
    """Rows of JSON as a table with these columns."""
    pa, _ = import_pyarrow()
    texts = {field.name for field in schema if field.type == pa.string()}
    cells = [{name: _text(value) if name in texts else value for name, value in row.items()} for row in rows]
    return pa.Table.from_pylist(cells, schema)


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return f"list of {' '.join(sorted(_widest({_kind(item) for item in value})))}"
    if isinstance(value, int) and not -(2**31) <= value < 2**31:
        return "long" if -(2**63) <= value < 2**63 else "object"
    kinds = {bool: "bool", int: "int", float: "float", str: "str", type(None): "null"}
    return kinds.get(type(value), "object")


def _column_type(name: str, kinds: set[str]) -> Any:
    """The type of a column whose values are of these kinds; what no simple type holds is JSON as text."""
    pa, _ = import_pyarrow()
    if name == "usage":
        counts = ("prompt_tokens", "completion_tokens", "total_tokens")
        return pa.struct([(count, pa.int64()) for count in counts])
    simple = {
        "bool": pa.bool_(),
        "int": pa.int64(),
        "long": pa.int64(),
        "float": pa.float64(),
        "list of int": pa.list_(pa.int32()),
        "list of long": pa.list_(pa.int64()),
        "list of float": pa.list_(pa.float64() if name == "metadata" else pa.float32()),  # which comes back as it is
    }
    kinds = kinds - {EMPTY_LIST} if any(kind.startswith(EMPTY_LIST) and kind != EMPTY_LIST for kind in kinds) else kinds
    kinds = _widest(kinds)
    return simple.get(next(iter(kinds)), pa.string()) if len(kinds) == 1 else pa.string()


def _widest(kinds: set[str]) -> set[str]:
    """Kinds of values without those that another of them holds."""
    return kinds - {kind.replace("long", "int") for kind in kinds if kind.endswith("long")}


def _text(value: Any) -> str | None:
    if isinstance(value, str):  # halves of surrogate pairs, which JSON can escape and UTF-8 cannot hold
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return None if value is None else to_json(value)


def import_pyarrow() -> tuple[Any, Any]:
    """pyarrow and its Parquet module."""
    with needed_for("a Parquet file"):
        import pyarrow as pa
        from pyarrow import parquet
    return pa, parquet
