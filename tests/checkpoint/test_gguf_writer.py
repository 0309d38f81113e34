"""GGUF files as they are written: read back by the gguf package's own reader and by ours, whole or not there at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType
from gguf.quants import dequantize

from glassformer.checkpoint import gguf_writer
from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.checkpoint.gguf_names import TABLES, gguf_name_and_layout, tensors_from_gguf
from glassformer.checkpoint.gguf_writer import OutputTensor, RowReader, rows_in_layout, stored_rows, write_gguf
from glassformer.checkpoint.stored_tensors import InterleavedPairs, Layout, OffsetByOne, Transposed
from glassformer.ground.errors import InputError, WriteError
from tests.checkpoint.files import refused, weights, write_folder
from tests.checkpoint.files import write_gguf as made_by_the_library
from tests.patience import patience

DRAW = np.random.default_rng(3)
VALUES = {
    "wide": DRAW.standard_normal((5, 512), np.float32),
    "narrow": DRAW.standard_normal((300, 32), np.float32),
    "flat": DRAW.standard_normal(7, np.float32),
}
FIELDS: dict[str, Any] = {
    "general.name": "a name", "x.count": 7, "x.below": -7, "x.large": 1 << 40, "x.share": 0.25, "x.yes": True,
    "x.numbers": [1, -2, 3], "x.shares": [0.5, 1.5], "x.texts": ["▁a", "", "日本"], "x.nothing": None, "x.empty": [],
    "tokenizer.ggml.precompiled_charsmap": [1, 255, -1], "general.alignment": 64, "split.count": 3,
}  # fmt: skip


def tensor(name: str, kind: str) -> OutputTensor:
    values = VALUES[name]
    rows = values.reshape(-1, values.shape[-1])
    return OutputTensor(name, kind, values.shape, lambda: lambda first, last: rows[first:last])


ALL = [tensor("flat", "F32"), tensor("wide", "Q4_K"), tensor("narrow", "Q8_0")]


class TestWriteGguf:
    def test_read_back_by_the_gguf_package(self, tmp_path: Path) -> None:
        write_gguf(tmp_path / "x.gguf", "odd", FIELDS, ALL)
        reader = GGUFReader(tmp_path / "x.gguf")
        kinds = {name: field.types for name, field in reader.fields.items() if not name.startswith("GGUF")}
        value = GGUFValueType
        assert kinds == {
            "general.architecture": [value.STRING], "general.name": [value.STRING], "x.count": [value.UINT32],
            "x.below": [value.INT32], "x.large": [value.UINT64], "x.share": [value.FLOAT32], "x.yes": [value.BOOL],
            "x.numbers": [value.ARRAY, value.INT32], "x.shares": [value.ARRAY, value.FLOAT32],
            "x.texts": [value.ARRAY, value.STRING], "tokenizer.ggml.precompiled_charsmap": [value.ARRAY, value.UINT8],
        }  # fmt: skip
        for one in reader.tensors:
            found = dequantize(one.data, one.tensor_type).reshape(VALUES[one.name].shape)
            assert one.data_offset % 32 == 0
            assert np.allclose(found, VALUES[one.name], atol=0 if one.name == "flat" else 0.4)

    def test_read_back_by_ours(self, tmp_path: Path) -> None:
        write_gguf(tmp_path / "x.gguf", "odd", FIELDS, ALL)
        found = GgufCheckpoint(tmp_path / "x.gguf")
        own = {"general.alignment", "split.count", "x.nothing", "x.empty"}
        wanted = {key: value for key, value in FIELDS.items() if key not in own}
        assert found.metadata == wanted | {
            "general.architecture": "odd", "tokenizer.ggml.precompiled_charsmap": [1, 255, 255]
        }  # fmt: skip
        assert {name: (one.kind, one.shape) for name, one in found.raw.items()} == {
            "flat": ("F32", (7,)), "wide": ("Q4_K", (5, 512)), "narrow": ("Q8_0", (300, 32)),
        }  # fmt: skip

    def test_chunks_and_threads_make_no_difference(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_gguf(tmp_path / "whole.gguf", "odd", FIELDS, ALL)
        monkeypatch.setattr(gguf_writer, "PIECE", 64)
        monkeypatch.setattr(os, "cpu_count", lambda: 5)
        reports: list[tuple[str, int, int]] = []
        write_gguf(tmp_path / "pieces.gguf", "odd", FIELDS, ALL, lambda *report: reports.append(report))
        assert (tmp_path / "pieces.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()
        assert reports == sorted(reports)
        assert reports[-1][0] == "pieces.gguf"
        assert reports[-1][1] == reports[-1][2] == sum(-(-one.size // 32) * 32 for one in ALL)

    def test_few_chunks_are_in_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gguf_writer, "PIECE", 1024)
        monkeypatch.setattr(os, "cpu_count", lambda: 2)
        ahead, lock = [0, 0], threading.Lock()  # pieces that were asked for and not yet written; the most

        def rows(first: int, last: int) -> np.ndarray:
            with lock:
                ahead[0] += 1
                ahead[1] = max(ahead)
            return np.zeros((last - first, 32), np.float32)

        def wrote(*_: object) -> None:
            with lock:
                ahead[0] -= 1

        write_gguf(tmp_path / "x.gguf", "odd", {}, [OutputTensor("a", "F16", (32 * 64, 32), lambda: rows)], wrote)
        assert ahead[1] <= 2 + 2


class TestInterruptedWrite:
    @pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
    def test_leaves_no_file(self, error: type[BaseException], tmp_path: Path) -> None:
        (tmp_path / "x.gguf").write_bytes(b"what was there")
        with pytest.raises(error):
            write_gguf(tmp_path / "x.gguf", "odd", {}, [*ALL, OutputTensor("bad", "F32", (4, 4), raising(error()))])
        assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]
        assert (tmp_path / "x.gguf").read_bytes() == b"what was there"

    def test_numbers_that_cannot_be_quantized_name_the_tensor(self, tmp_path: Path) -> None:
        bad = OutputTensor("blk.0.bad", "Q8_0", (1, 32), lambda: lambda *_: np.full((1, 32), np.nan, np.float32))
        refused(
            lambda: write_gguf(tmp_path / "x.gguf", "odd", {}, [bad]), "tensor 'blk.0.bad'", "cannot hold", kind=InputError
        )
        assert not list(tmp_path.iterdir())

    def test_a_full_disk(self, tmp_path: Path) -> None:
        full = OutputTensor("a", "F32", (4, 4), raising(OSError(28, "No space left on device")))
        refused(
            lambda: write_gguf(tmp_path / "x.gguf", "odd", {}, [full]), tmp_path / "x.gguf",
            "cannot be written (No space left on device)", "Free some space, or choose another place", kind=WriteError,
        )  # fmt: skip
        assert not list(tmp_path.iterdir())

    def test_missing_folder(self, tmp_path: Path) -> None:
        words = ("cannot be written (No such file", "Make the folder first")
        refused(lambda: write_gguf(tmp_path / "no" / "x.gguf", "odd", {}, ALL), *words, kind=WriteError)

    @pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
    @pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
    def test_killed_write_leaves_no_file_under_the_name(self, how: str, tmp_path: Path) -> None:
        """A run that is killed leaves no file under the name; one that is interrupted leaves nothing at all."""
        code = (
            "import os, sys, time, numpy as np\nfrom pathlib import Path\n"
            "from glassformer.checkpoint.gguf_writer import OutputTensor, write_gguf\n"
            "def rows(first, last):\n    os.write(1, b'writing\\n')\n    time.sleep(0.1 if first < 99 else 60)\n"
            "    return np.zeros((last - first, 1 << 20), np.float32)\n"
            "write_gguf(Path(sys.argv[1]), 'odd', {}, [OutputTensor('a', 'F16', (100, 1 << 20), lambda: rows)])\n"
        )
        process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "x.gguf")], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(6):
            assert process.stdout.readline() == "writing\n"
        process.send_signal(getattr(signal, how))
        process.stdout.close()
        process.wait(patience(60))
        assert len([*tmp_path.glob(".x.gguf.*.part")]) == len([*tmp_path.iterdir()]) == (how == "SIGKILL")
        write_gguf(tmp_path / "x.gguf", "odd", {}, ALL)
        assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]  # what was left is gone


def raising(error: BaseException) -> Any:
    def rows(first: int, last: int) -> np.ndarray:
        raise error

    return lambda: rows


@pytest.mark.parametrize("kind", ["F32", "F16", "F64"])
@pytest.mark.parametrize("cut", [(0, 6), (2, 3), (5, 6)])
def test_rows_of_a_stored_tensor(kind: str, cut: tuple[int, int], tmp_path: Path) -> None:
    numpy_kind = {"F32": np.float32, "F16": np.float16, "F64": np.float64}[kind]
    values = DRAW.standard_normal((6, 5)).astype(numpy_kind)
    from glassformer.checkpoint.folder import FolderCheckpoint

    stored = FolderCheckpoint(write_folder(tmp_path, {"model.safetensors": {"a": values}})).tensors["a"]
    rows: RowReader = stored_rows(stored)
    assert np.array_equal(rows(*cut), values[cut[0] : cut[1]].astype(np.float32))
    turned = rows_in_layout(stored, Transposed())
    assert np.array_equal(turned(1, 4), values.astype(np.float32).T[1:4])


@pytest.mark.parametrize("layout", [InterleavedPairs(1), InterleavedPairs(3), Transposed(), OffsetByOne()], ids=repr)
def test_layouts_round_trip(layout: Layout) -> None:
    values = DRAW.integers(-9, 9, (24, 10)).astype(np.float32)
    assert np.array_equal(layout.from_stored(layout.to_stored(values)), values)
    assert np.array_equal(layout.to_stored(layout.from_stored(values)), values)
    assert not np.array_equal(layout.to_stored(values), values)
    assert layout.to_stored(values).shape == layout.stored_shape(values.shape)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_gguf_names_round_trip(architecture: str, tmp_path: Path) -> None:
    """What the reader calls a tensor, the writer calls by the name that was read."""
    found = GgufCheckpoint(made_by_the_library(tmp_path / "x.gguf", architecture))
    for name, one in tensors_from_gguf(found.metadata, found.config, found.raw, found.path).items():
        theirs, layout = gguf_name_and_layout(TABLES[architecture], found.config, name, one.shape)
        assert found.raw[theirs].offset == one.offset
        assert layout == one.layout
        if layout is not None:
            assert np.array_equal(layout.to_stored(one.to_float32()), found.raw[theirs].to_float32())
    assert len(found.raw) == len(weights(architecture))
