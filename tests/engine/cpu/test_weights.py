"""Weights on their way to native code: the cached file of tiles, and files whose tensors are not what their config says."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from safetensors.numpy import load_file, save_file

from glassformer.checkpoint.content_digest import FOOTER
from glassformer.checkpoint.quantization import quantize_rows
from glassformer.engine.cpu import weights
from glassformer.engine.cpu.executor import CpuExecutor
from glassformer.engine.cpu.library import Engine, FileKind, MatrixKind, dequantize_row
from glassformer.engine.protocol import Feed
from glassformer.ground.errors import CheckpointError
from tests.checkpoint.files import refused, write_gguf
from tests.engine.cpu.packed import KEPT, RARE, VOCABULARY, metadata, packed_model, tensors
from tests.engine.executors import Subject, write_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh place for cached files."""
    monkeypatch.setattr(weights, "home", lambda: tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def written_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the files that are made from now on."""
    found: list[int] = []
    make = weights._write_file
    monkeypatch.setattr(weights, "_write_file", lambda path, size, fill: (found.append(size), make(path, size, fill)))
    return found


def scores(executor: Any) -> np.ndarray:
    found: np.ndarray = executor.run([Feed(executor.open(), [4, 8, 15])])[0].host()
    return found


def files(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "tiles").iterdir())


class TestTheCachedFile:
    def test_tiles_are_written_once_and_reused(self, tmp_path: Path, home: Path, written_sizes: list[int]) -> None:
        subject = packed_model(tmp_path / "x.gguf", "Q4_K")
        first = scores(subject.cpu())
        (name,) = files(home)
        assert name.endswith(".tiles")
        assert np.array_equal(scores(Subject(tmp_path / "x.gguf").cpu()), first)
        assert [size + FOOTER for size in written_sizes] == [(home / "tiles" / name).stat().st_size]

    def test_float_checkpoints_need_no_tiles(self, tmp_path: Path, home: Path, written_sizes: list[int]) -> None:
        write_checkpoint(tmp_path / "model", "llama").cpu()
        assert not written_sizes
        assert not (home / "tiles").exists()

    def test_tiles_are_rewritten_when_the_checkpoint_changes(
        self, tmp_path: Path, home: Path, written_sizes: list[int]
    ) -> None:
        path = tmp_path / "x.gguf"
        before = scores(packed_model(path, "Q8_0").cpu())
        path.unlink()
        write_gguf(path, "llama", metadata(), tensors("Q8_0", seed=4))
        subject = Subject(path)
        after = scores(subject.cpu())
        assert len(written_sizes) == 2
        assert not np.allclose(before, after, atol=1e-2)
        assert subject.verdict(subject.cpu()).agrees(1e-3)

    def test_tiles_are_rewritten_when_any_shard_changes(self, tmp_path: Path, home: Path, written_sizes: list[int]) -> None:
        """GPT-2's matrices lie across, and so are made; here one of them is in a file of its own."""
        folder = write_checkpoint(tmp_path / "model", "gpt2").folder
        whole = load_file(folder / "model.safetensors")
        apart = "transformer.h.1.mlp.c_fc.weight"
        (folder / "model.safetensors").unlink()
        shards = {"a.safetensors": {n: v for n, v in whole.items() if n != apart}, "b.safetensors": {apart: whole[apart]}}
        index = {name: shard for shard, converted in shards.items() for name in converted}
        (folder / "model.safetensors.index.json").write_text('{"weight_map": ' + repr(index).replace("'", '"') + "}")
        for name, converted in shards.items():
            save_file(converted, folder / name, {"format": "pt"})
        before = scores(Subject(folder).cpu())
        (folder / "b.safetensors").unlink()
        save_file({apart: whole[apart] * 2}, folder / "b.safetensors", {"format": "pt"})
        assert not np.allclose(scores(Subject(folder).cpu()), before, atol=1e-2)
        assert len(written_sizes) == 2

    @pytest.mark.parametrize("size", [0, 100])
    def test_cached_file_of_another_size_is_rewritten(
        self, size: int, tmp_path: Path, home: Path, written_sizes: list[int]
    ) -> None:
        subject = packed_model(tmp_path / "x.gguf", "Q4_0")
        wanted = scores(subject.cpu())
        (name,) = files(home)
        path = home / "tiles" / name
        whole = path.read_bytes()
        path.unlink()
        path.write_bytes(whole[:size])
        assert np.array_equal(scores(subject.cpu()), wanted)
        assert path.read_bytes() == whole
        assert len(written_sizes) == 2

    @pytest.mark.parametrize("at", [0, 5000, -FOOTER - 1, -FOOTER, -1])
    def test_damaged_tiles_are_rewritten(
        self, at: int, tmp_path: Path, home: Path, written_sizes: list[int], caplog: pytest.LogCaptureFixture
    ) -> None:
        """Also where size and time are those of what was written."""
        subject = packed_model(tmp_path / "x.gguf", "Q4_0")
        wanted = scores(subject.cpu())
        (name,) = files(home)
        path = home / "tiles" / name
        damaged, status = bytearray(path.read_bytes()), path.stat()
        damaged[at] ^= 1
        path.write_bytes(damaged)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert np.array_equal(scores(Subject(tmp_path / "x.gguf").cpu()), wanted)
        assert len(written_sizes) == 2
        assert caplog.messages == [f"{path}: damaged; the packed weights are made anew."]

    def test_other_numbers_under_the_same_path_size_and_time(
        self, tmp_path: Path, home: Path, written_sizes: list[int]
    ) -> None:
        path = tmp_path / "x.gguf"
        before = scores(packed_model(path, "Q8_0").cpu())
        status = path.stat()
        write_gguf(tmp_path / "y.gguf", "llama", metadata(), tensors("Q8_0", seed=4))
        path.write_bytes((tmp_path / "y.gguf").read_bytes())
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert path.stat().st_size == status.st_size
        assert not np.allclose(scores(Subject(path).cpu()), before, atol=1e-2)
        assert np.array_equal(scores(Subject(path).cpu()), scores(Subject(tmp_path / "y.gguf").cpu()))
        assert len(written_sizes) == 2  # a copy needs none of its own

    def test_tiles_stay_in_memory_where_nothing_can_be_written(
        self, tmp_path: Path, home: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        subject = packed_model(tmp_path / "x.gguf", "Q4_0")
        home.write_text("not a folder")
        found = scores(subject.cpu())
        assert "the packed weights cannot be kept in" in caplog.text
        assert "each start makes them in memory" in caplog.text
        home.unlink()
        assert np.array_equal(found, scores(subject.cpu()))

    @pytest.mark.parametrize("error", [KeyboardInterrupt, CheckpointError("bad"), MemoryError])
    def test_interrupted_write_leaves_no_file(
        self, error: Any, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        subject = packed_model(tmp_path / "x.gguf", "Q4_0")
        pack_one, calls = Engine.pack, []

        def fails(self: Any, *given: Any) -> None:
            calls.append(given)
            if len(calls) == 3:
                raise error
            pack_one(self, *given)

        with monkeypatch.context() as patch:
            patch.setattr(Engine, "pack", fails)
            with pytest.raises(error if isinstance(error, type) else type(error)):
                subject.cpu()
        assert files(home) == []
        scores(subject.cpu())
        assert len(files(home)) == 1

    def test_cached_file_deleted_before_it_is_mapped(
        self, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Somebody else may clear the cache at any time."""
        subject = packed_model(tmp_path / "x.gguf", "Q4_0")
        wanted = scores(subject.cpu())
        shutil.rmtree(home)
        make = weights._write_file
        monkeypatch.setattr(weights, "_write_file", lambda path, *given: (make(path, *given), path.unlink()))
        assert np.array_equal(scores(subject.cpu()), wanted)

    def test_unused_tiles_are_removed(self, tmp_path: Path, home: Path) -> None:
        subject = packed_model(tmp_path / "x.gguf", "Q4_0")
        subject.cpu()
        (name,) = files(home)
        days = {"old.tiles": 31, "new.tiles": 29, ".x.tiles.left.part": 0, name: 29, "old.other": 99}
        for file, age in days.items():
            path = home / "tiles" / file
            path.touch()
            os.utime(path, (time.time() - age * weights.DAY,) * 2)
        subject.cpu()  # uses its own once more
        os.utime(home / "tiles" / "new.tiles", (0, 0))
        packed_model(tmp_path / "y.gguf", "Q8_0").cpu()  # makes another
        assert {name, "old.other"} == {file for file in files(home) if file in days}


class TestTiles:
    @pytest.mark.parametrize("kind", [kind for kind in KEPT if kind in FileKind.__members__])
    def test_tiles_dequantize_to_the_file_s_numbers(self, kind: str) -> None:
        """Back from tiles, each row is what the file's bytes mean; also where rows are no multiple of sixteen."""
        from glassformer.checkpoint.gguf_kinds import dequantize
        from glassformer.engine.cpu.library import NativeMatrix, packed_kind, packed_size

        rows, columns = 37, 512
        values = np.random.default_rng(1).standard_normal((rows, columns)).astype(np.float32)
        raw = quantize_rows(values, kind)
        wanted = dequantize(raw.reshape(-1), kind, (rows, columns), "")
        order = np.random.default_rng(2).permutation(rows).astype(np.int32)
        for given in (None, order):
            out = np.empty(packed_size(FileKind[kind], rows, columns), np.uint8)
            Engine(threads=2).pack(FileKind[kind], raw.reshape(-1), rows, columns, given, out)
            matrix = NativeMatrix(out.ctypes.data, None, packed_kind(FileKind[kind]), rows, columns)
            for number in range(rows):
                one = dequantize_row(matrix, number)
                assert np.allclose(one, wanted[number if given is None else given[number]], rtol=1e-6, atol=1e-7)

    @pytest.mark.parametrize("kind", RARE)
    def test_rare_kinds_are_kept_as_floats(self, kind: str, tmp_path: Path) -> None:
        converted = packed_model(tmp_path / "x.gguf", kind).cpu()._weights._converted.values()
        assert {one.kind for one in converted} == {MatrixKind.F32}

    def test_transposed_bfloat16_stays_bfloat16(self, tmp_path: Path) -> None:
        import torch

        converted = write_checkpoint(tmp_path, "gpt2", dtype=torch.bfloat16).cpu()._weights._converted.values()
        assert {one.kind for one in converted} == {MatrixKind.BF16}

    def test_parity_of_rows_of_three_blocks(self, tmp_path: Path) -> None:
        subject = packed_model(tmp_path / "x.gguf", "Q8_0", hidden=96)
        assert subject.verdict(subject.cpu()).agrees(1e-3)


class TestHostileTables:
    """Native code reads as many numbers as the config says, so nothing may come to it that has fewer."""

    def refuse(self, path: Path, changes: dict[str, Any], *words: object, **sizes: Any) -> None:
        write_gguf(path, "llama", metadata(**sizes), {**tensors("Q8_0"), **changes})
        refused(lambda: Subject(path).cpu(), path, *words)

    @pytest.mark.parametrize(
        ("name", "shape"),
        [
            ("blk.0.attn_v.weight", (96, 256)),
            ("blk.0.attn_v.weight", (128, 128)),
            ("blk.1.ffn_down.weight", (256, 256)),
            ("blk.1.ffn_up.weight", (32, 256)),
            ("blk.0.attn_output.weight", (256, 512)),
            ("output.weight", (VOCABULARY - 1, 256)),
        ],
    )
    @pytest.mark.parametrize("kind", ["Q8_0", "F32"])
    def test_matrices_of_another_shape_are_refused(
        self, name: str, shape: tuple[int, int], kind: str, tmp_path: Path
    ) -> None:
        values = np.ones(shape, np.float32)
        tensor = (quantize_rows(values, kind), GGMLQuantizationType[kind]) if kind != "F32" else values
        self.refuse(tmp_path / "x.gguf", {name: tensor}, f"has shape {shape}, but the config makes")

    @pytest.mark.parametrize("name", ["output_norm", "blk.0.attn_norm", "blk.1.ffn_norm"])
    @pytest.mark.parametrize("size", [1, 255, 257])
    def test_norms_of_another_length_are_refused(self, name: str, size: int, tmp_path: Path) -> None:
        changes = {f"{name}.weight": np.ones(size, np.float32)}
        self.refuse(tmp_path / "x.gguf", changes, f"has shape ({size},), but the config makes", "(256,)")

    def test_biases_of_another_length_are_refused(self, tmp_path: Path) -> None:
        folder = write_checkpoint(tmp_path, "qwen2").folder
        whole = load_file(folder / "model.safetensors")
        name = "model.layers.1.self_attn.k_proj.bias"
        save_file({**whole, name: whole[name][:-1].copy()}, folder / "model.safetensors", {"format": "pt"})
        refused(lambda: Subject(folder).cpu(), folder, f"{name!r} has shape (23,), but the config makes", "(24,)")

    def test_a_table_of_distances_of_another_shape(self, tmp_path: Path) -> None:
        folder = write_checkpoint(tmp_path, "t5").folder
        whole = load_file(folder / "model.safetensors")
        name = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        save_file({**whole, name: whole[name][:-1].copy()}, folder / "model.safetensors", {"format": "pt"})
        refused(lambda: Subject(folder).cpu(), folder, "has shape (7, 4), but the config makes", "(8, 4)")

    def test_fewer_positions_than_the_context(self, tmp_path: Path) -> None:
        folder = write_checkpoint(tmp_path, "gpt2").folder
        whole = load_file(folder / "model.safetensors")
        name = "transformer.wpe.weight"
        save_file({**whole, name: whole[name][:100].copy()}, folder / "model.safetensors", {"format": "pt"})
        refused(lambda: Subject(folder).cpu(), folder, "has shape (100, 48), but the config makes", "(256, 48)")

    def test_fewer_vectors_than_ids(self, tmp_path: Path) -> None:
        """A folder's config may promise a vocabulary that its table does not have."""
        folder = write_checkpoint(tmp_path, "llama").folder
        text = (folder / "config.json").read_text()
        (folder / "config.json").write_text(text.replace('"vocab_size": 160', '"vocab_size": 170'))
        refused(lambda: Subject(folder).cpu(), folder, "has shape (160, 48), but the config makes", "(170, 48)")

    def test_missing_tensor_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "x.gguf"
        converted = tensors("Q8_0")
        del converted["blk.1.ffn_norm.weight"]
        write_gguf(path, "llama", metadata(), converted)
        refused(lambda: Subject(path).cpu(), "the weights lack", "Is this the config of these weights?")

    def test_empty_checkpoint_is_refused(self, tmp_path: Path) -> None:
        self.refuse(tmp_path / "x.gguf", {"blk.0.ffn_up.weight": np.ones((0, 256), np.float32)}, "ffn_up")

    def test_tensor_of_the_wrong_byte_size_is_refused(self, tmp_path: Path) -> None:
        subject = packed_model(tmp_path / "x.gguf", "Q8_0")
        converted = dict(subject.opened.tensors)
        name = next(name for name in converted if name.endswith("up_proj.weight"))
        for changes in ({"size": converted[name].size - 34}, {"kind": "Q4_K"}, {"kind": "F32"}):
            wrong = {**converted, name: replace(converted[name], **changes)}
            words = ("bytes, which do not make", "Fetch the file again.")
            refused(lambda wrong=wrong: CpuExecutor(subject.config, subject.blueprint, wrong), tmp_path, name, *words)  # type: ignore[misc]

    def test_a_bias_of_scores_may_be_missing(self, tmp_path: Path) -> None:
        """BART's is zero then, as it is in the plain executor."""
        folder = write_checkpoint(tmp_path, "bart").folder
        whole = load_file(folder / "model.safetensors")
        del whole["final_logits_bias"]
        save_file(whole, folder / "model.safetensors", {"format": "pt"})
        subject = Subject(folder)
        assert subject.verdict(subject.cpu()).agrees(1e-5)
