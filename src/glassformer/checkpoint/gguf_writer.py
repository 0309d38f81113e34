"""Writing GGUF: metadata and a table of tensors by the gguf package's writer, then the tensors' bytes, piece by piece.

A tensor is a function from row indices to float32 rows, so nothing has to be in memory as a whole. Pieces are packed by
several threads (numpy leaves the interpreter free) and written in their order. The file appears under its name only when it
is whole.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from glassformer.checkpoint.gguf_kinds import dequantize
from glassformer.checkpoint.gguf_parts import Parts, part_names
from glassformer.checkpoint.quantization import Bytes, Floats, quantize_rows, quantized_size
from glassformer.checkpoint.stored_tensors import Layout, StoredTensor
from glassformer.ground.errors import InputError
from glassformer.ground.files import atomic_file
from glassformer.ground.progress import NamedProgress

PIECE = 1 << 20  # numbers that one thread packs at a time
ALIGNMENT = 32
BYTE_FIELDS = ("tokenizer.ggml.precompiled_charsmap",)  # lists of numbers that are bytes
TEXT_FIELDS = ("tokenizer.ggml.merges",)  # lists of texts that may be empty
SKIPPED_FIELDS = ("general.architecture", "general.alignment", "split.")  # fields that are this file's own

RowReader: TypeAlias = Callable[[int, int], Floats]  # rows a to b of a tensor


@dataclass(frozen=True)
class OutputTensor:
    """A tensor to be written."""

    name: str
    kind: str
    shape: tuple[int, ...]  # as the file has it
    open: Callable[[], RowReader]  # called when the tensor is written

    @property
    def size(self) -> int:
        return quantized_size(self.kind, self.shape)

    def pieces(self) -> Iterator[Callable[[], Bytes]]:
        """Functions that pack one piece after the other."""
        count, columns = int(np.prod(self.shape[:-1], dtype=np.int64)), self.shape[-1]
        step, rows = max(1, PIECE // columns), self.open()
        for begin in range(0, count, step):
            yield partial(self._packed, rows, begin, min(begin + step, count))

    def _packed(self, rows: RowReader, first: int, last: int) -> Bytes:
        try:
            return quantize_rows(rows(first, last), self.kind).reshape(-1)
        except InputError as error:
            raise InputError(f"tensor {self.name!r}: {error}") from error


def stored_rows(stored: StoredTensor) -> RowReader:
    """The rows of a stored tensor, in the order that they have in their file; packed ones are expanded."""
    shape = (stored.shape or (1,)) if stored.layout is None else stored.layout.stored_shape(stored.shape)
    width = stored.size // math.prod(shape[:-1])  # bytes

    def rows(first: int, last: int) -> Floats:
        piece = stored.bytes[first * width : last * width]
        return dequantize(piece, stored.kind, (last - first, shape[-1]), stored.name)

    return rows


def rows_in_layout(stored: StoredTensor, layout: Layout | None) -> RowReader:
    """The rows of a stored tensor in a layout; None: in the family's own order."""
    if layout == stored.layout:
        return stored_rows(stored)
    values = stored.to_float32() if layout is None else layout.to_stored(stored.to_float32())
    values = values.reshape(-1, values.shape[-1])
    return lambda first, last: values[first:last]


def stack(tensors: Iterable[OutputTensor], stacked: Callable[[str], bool], fused: bool = False) -> list[OutputTensor]:
    """Tensors of one name, such as those of a layer's experts, as one tensor each; `stacked`: whether a name is such a
    one's, of which there may be one alone; `fused`: the two of an expert that are read side by side, too, the one after
    the other."""
    by_name: dict[str, list[OutputTensor]] = {}
    for tensor in tensors:
        by_name.setdefault(tensor.name, []).append(tensor)
    made = []
    for name, parts in by_name.items():
        rows, *width = parts[0].shape
        if fused and ".ffn_up_exps." in name:
            continue
        if fused and ".ffn_gate_exps." in name:
            both = [part for pair in zip(parts, by_name[name.replace("gate", "up")], strict=True) for part in pair]
            name, shape = name.replace("gate", "gate_up"), (len(parts), 2 * rows, *width)
            made.append(replace(parts[0], name=name, shape=shape, open=_rows_of_all(both)))
        elif (len(parts) == 1 and not stacked(name)) or name.endswith(".scale"):
            made.append(parts[0])
        else:
            made.append(replace(parts[0], shape=(len(parts), *parts[0].shape), open=_rows_of_all(parts)))
    return made


def fuse_attention(tensors: Iterable[OutputTensor]) -> list[OutputTensor]:
    """Each block's queries, keys and values as one matrix, where they have one shape."""
    by_name = {tensor.name: tensor for tensor in tensors}
    fused = []
    for name, tensor in by_name.items():
        if ".attn_q." in name:
            parts = [tensor, *(by_name[name.replace("attn_q", f"attn_{part}")] for part in "kv")]
            shape = (3 * tensor.shape[0], *tensor.shape[1:])
            fused.append(replace(tensor, name=name.replace("attn_q", "attn_qkv"), shape=shape, open=_rows_of_all(parts)))
        elif ".attn_k." not in name and ".attn_v." not in name:
            fused.append(tensor)
    return fused


def in_parts(whole: OutputTensor, parts: Parts | None, config: Mapping[str, Any]) -> list[OutputTensor]:
    """A tensor, or what a file has of it."""
    names = part_names(whole.name, parts)
    if parts is None or names is None:
        return [whole]

    def rows(index: int) -> RowReader:
        part = parts.split(whole.open()(0, math.prod(whole.shape[:-1])).reshape(whole.shape), config)[index]
        part = part.reshape(-1, part.shape[-1])
        return lambda first, last: part[first:last]

    shapes = parts.shapes(whole.shape, config)
    return [
        replace(whole, name=name, shape=shape, open=partial(rows, index))
        for index, (name, shape) in enumerate(zip(names, shapes, strict=True))
    ]


def _rows_of_all(parts: Sequence[OutputTensor]) -> Callable[[], RowReader]:
    """The rows of tensors of one shape, after one another."""
    count = int(np.prod(parts[0].shape[:-1], dtype=np.int64))

    def rows(first: int, last: int) -> Floats:
        pieces = []
        while first < last:
            part, row = divmod(first, count)
            end = min(count, row + last - first)
            pieces.append(parts[part].open()(row, end))
            first += end - row
        return np.concatenate(pieces)

    return lambda: rows


def write_gguf(
    path: Path,
    architecture: str,
    fields: Mapping[str, Any],
    tensors: Sequence[OutputTensor],
    progress: NamedProgress | None = None,
    finish: Callable[[Path], None] | None = None,
) -> None:
    """Write a file whole, or not at all; `finish` is called with it before it appears under its name."""
    with atomic_file(path) as part:
        _write_header(part, architecture, fields, tensors)
        with part.open("ab") as file:
            _write_data(file, tensors, path.name, progress)
        if finish is not None:
            finish(part)


def _write_header(path: Path, architecture: str, fields: Mapping[str, Any], tensors: Iterable[OutputTensor]) -> None:
    from gguf.constants import GGMLQuantizationType

    writer = _writer(path, architecture)
    for key, value in fields.items():
        if not key.startswith(SKIPPED_FIELDS):
            _add(writer, key, value)
    for tensor in tensors:
        writer.add_tensor_info(
            tensor.name, tensor.shape, np.dtype(np.float32), tensor.size, GGMLQuantizationType[tensor.kind]
        )
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    finally:
        writer.close()


def _writer(path: Path, architecture: str) -> Any:
    """The library's writer, which also writes arrays without entries: a vocabulary may have no merges."""
    from gguf.constants import GGUFValueType as Value
    from gguf.gguf_writer import GGUFWriter

    class Writer(GGUFWriter):
        def _pack_val(self, val: Any, vtype: Value, add_vtype: bool, sub_type: Value | None = None) -> bytes:
            if vtype != Value.ARRAY or val or sub_type is None:
                return super()._pack_val(val, vtype, add_vtype, sub_type)
            return self._pack("I", vtype) + self._pack("I", sub_type) + self._pack("Q", 0)

    return Writer(path, architecture)


def _add(writer: Any, key: str, value: Any) -> None:
    """A field, in the type that the format's readers expect of such a value; None is left out."""
    from gguf.constants import GGUFValueType as Value

    if isinstance(value, list):
        if key in BYTE_FIELDS:
            writer.add_key_value(key, bytes(byte % 256 for byte in value), Value.ARRAY, Value.UINT8)
        elif key in TEXT_FIELDS:
            writer.add_key_value(key, value, Value.ARRAY, Value.STRING)
        elif value:
            writer.add_key_value(key, value, Value.ARRAY)
    elif isinstance(value, bool):
        writer.add_key_value(key, value, Value.BOOL)
    elif isinstance(value, int):
        kind = Value.INT32 if value < 0 else Value.UINT32 if value < 1 << 32 else Value.UINT64
        writer.add_key_value(key, value, kind)
    elif isinstance(value, float):
        writer.add_key_value(key, value, Value.FLOAT32)
    elif isinstance(value, str):
        writer.add_key_value(key, value, Value.STRING)


def _write_data(file: BinaryIO, tensors: Sequence[OutputTensor], what: str, progress: NamedProgress | None) -> None:
    so_far, total = 0, sum(tensor.size + _padding_size(tensor.size) for tensor in tensors)
    file.write(bytes(_padding_size(file.tell())))
    for piece in _in_order(_packing_jobs(tensors)):
        file.write(piece.data)
        so_far += piece.nbytes
        if progress is not None:
            progress(what, so_far, total)


def _packing_jobs(tensors: Iterable[OutputTensor]) -> Iterator[Callable[[], Bytes]]:
    """All that follows the header: the tensors' pieces, and after each tensor its padding."""
    for tensor in tensors:
        yield from tensor.pieces()
        yield partial(_padding, _padding_size(tensor.size))


def _padding(count: int) -> Bytes:
    return np.zeros(count, np.uint8)


def _padding_size(size: int) -> int:
    return -size % ALIGNMENT


def _in_order(jobs: Iterator[Callable[[], Bytes]]) -> Iterator[Bytes]:
    """The jobs' results, in order, while as many further jobs as there are cores run."""
    threads = os.cpu_count() or 1
    waiting: deque[Future[Bytes]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for job in jobs:
                waiting.append(pool.submit(job))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
