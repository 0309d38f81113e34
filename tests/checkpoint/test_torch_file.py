"""Files that torch.save wrote: every kind, shared tensors, wrappers, the old format, and folders of them."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from glassformer.checkpoint import open_at
from glassformer.checkpoint.folder import FolderCheckpoint, read_safetensors
from glassformer.checkpoint.stored_tensors import PLAIN_KINDS, StoredTensor
from glassformer.checkpoint.torch_file import KINDS, WRAPPERS, read_torch_file
from glassformer.compat.pretrained import STORED_DTYPES, as_tensor
from tests.checkpoint.files import CONFIG, refused, write_folder
from tests.checkpoint.pickles import Claimed, Storage, dumped, zipped

BIN, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
ONE, TWO = "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"


def save(value: object, path: Path, old: bool = False) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=not old)
    return path


def equal(stored: StoredTensor, wanted: Tensor) -> bool:
    return torch.equal(as_tensor(stored, wanted.dtype), wanted)


old_or_new = pytest.mark.parametrize("old", [False, True])


@old_or_new
@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_every_plain_kind_of_torch_file(tmp_path: Path, kind: str, old: bool) -> None:
    wanted = torch.randn(5, 3).mul(3).to(STORED_DTYPES[kind])
    one = read_torch_file(save({"a": wanted}, tmp_path / "x.bin", old)).tensors["a"]
    assert (one.name, one.kind, one.shape, one.size, one.packed) == ("a", kind, (5, 3), 15 * PLAIN_KINDS[kind], False)
    assert one.file.path == tmp_path / "x.bin"
    assert len(one.file) == one.size
    assert equal(one, wanted)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn, torch.uint16])
def test_unsupported_dtypes_of_torch_file(tmp_path: Path, dtype: torch.dtype) -> None:
    path = save({"a": torch.zeros(3, dtype=dtype)}, tmp_path / "x.bin")
    refused(lambda: read_torch_file(path), path, f"tensor 'a' is of {dtype}, which is not supported.", *KINDS)


@old_or_new
def test_tensor_shapes_of_torch_file(tmp_path: Path, old: bool) -> None:
    table = torch.randn(4, 6)
    wanted = {"all": table, "turned": table.T, "rows": table[1:3], "column": table[:, 2], "number": torch.tensor(3.0),
              "negative": torch._neg_view(table), "repeated": table[0, :1].expand(3), "none": torch.zeros(0, 4)}  # fmt: skip
    found = read_torch_file(save(wanted, tmp_path / "x.bin", old)).tensors
    assert found.keys() == wanted.keys()
    for name, one in found.items():
        assert one.shape == tuple(wanted[name].shape)
        np.testing.assert_array_equal(one.to_float32(), wanted[name].numpy() if name != "negative" else -table.numpy())


@old_or_new
def test_shared_tensors_stay_shared(tmp_path: Path, old: bool) -> None:
    """A tied table must become one parameter, which goes by identity; a part or a turn of it is another tensor."""
    table = torch.randn(4, 4)
    values = {"table": table, "head": nn.Parameter(table), "turned": table.T, "part": table[:2], "copy": table.clone(),
              "none": torch.zeros(0), "empty": torch.zeros(0)}  # fmt: skip
    found = read_torch_file(save(values, tmp_path / "x.bin", old)).tensors
    assert found["table"] is found["head"]
    assert found["table"].name == "table"
    assert len({id(one) for one in found.values()}) == len(values) - 1


def test_tensors_of_a_torch_file_are_mapped(tmp_path: Path) -> None:
    """Two views of one storage are two views of the mapped file."""
    table = torch.randn(8, 8)
    found = read_torch_file(save({"all": table, "rows": table[2:4], "turned": table.T}, tmp_path / "x.bin")).tensors
    assert np.shares_memory(found["all"].bytes, found["rows"].bytes)
    assert not np.shares_memory(found["all"].bytes, found["turned"].bytes)
    assert as_tensor(found["all"], torch.float32).data_ptr() == found["all"].bytes.ctypes.data


def test_writing_into_a_tensor_never_changes_the_file(tmp_path: Path) -> None:
    path = save({"a": torch.zeros(64)}, tmp_path / "x.bin")
    before = path.read_bytes()
    one = read_torch_file(path).tensors["a"]
    as_tensor(one, torch.float32).fill_(7)
    assert one.to_float32()[3] == 7
    one.release()
    assert one.to_float32()[3] == 7
    assert path.read_bytes() == before


def test_strided_and_unaligned_tensors_of_torch_file(tmp_path: Path) -> None:
    """A zip that somebody else wrote does not align its parts."""
    wanted = np.arange(4, dtype=np.float32)
    for padding in range(4):
        tensor = dumped({"a": Claimed(Storage("0", 4), (4,), (1,))})
        parts = {"x/data.pkl": tensor, "x/" + "y" * padding: b"", "x/data/0": wanted.tobytes(), "x/version": b"3"}
        one = read_torch_file(zipped(tmp_path / f"{padding}.bin", parts)).tensors["a"]
        np.testing.assert_array_equal(one.to_float32(), wanted)
        assert one.bytes.ctypes.data % 4 == 0


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_state_dict_wrappers(tmp_path: Path, wrapper: str) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    optimiser = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimiser.step()
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimiser, [3, 5])
    training = {"epoch": 3, "optimizer": optimiser.state_dict(), "scheduler": scheduler.state_dict(), "seen": {1, 2}}
    wanted = model.state_dict()
    read = read_torch_file(save({**training, wrapper: wanted, "device": torch.device("cpu")}, tmp_path / "x.pt"))
    assert read.tensors.keys() == wanted.keys()
    assert all(equal(one, wanted[name]) for name, one in read.tensors.items())
    assert read.content["epoch"] == 3


def test_entries_that_are_no_tensors_are_left_out(tmp_path: Path) -> None:
    values = OrderedDict([("a", nn.Parameter(torch.ones(2))), ("version", 3), (7, torch.ones(2)), ("deep", {"b": 1})])
    assert read_torch_file(save(values, tmp_path / "x.bin")).tensors.keys() == {"a"}


def test_missing_torch_file(tmp_path: Path) -> None:
    refused(lambda: read_torch_file(tmp_path / "x.bin"), tmp_path / "x.bin", "the file is missing.")


# Folders --------------------------------------------------------------------------------------------------------


def write_index(folder: Path, shards: dict[str, dict[str, Tensor]]) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name, tensors in shards.items():
        save(tensors, folder / name)
    where = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    (folder / INDEX).write_text(json.dumps({"weight_map": where}))
    return folder


def test_one_pytorch_bin(tmp_path: Path) -> None:
    save({"a": torch.ones(3), "epoch": 3}, tmp_path / BIN)
    assert FolderCheckpoint(tmp_path).tensors["a"].to_float32().tolist() == [1, 1, 1]
    assert FolderCheckpoint(tmp_path).complete


def test_sharded_pytorch_bin(tmp_path: Path) -> None:
    folder = write_index(tmp_path, {ONE: {"a": torch.ones(2)}, TWO: {"b": torch.zeros(3)}})
    assert {name: one.file.path.name for name, one in FolderCheckpoint(folder).tensors.items()} == {"a": ONE, "b": TWO}
    assert FolderCheckpoint(folder).complete
    (folder / TWO).unlink()
    assert not FolderCheckpoint(folder).complete
    refused(lambda: FolderCheckpoint(folder).tensors, folder / TWO, "the file is missing")


def test_pytorch_shards_outside_the_folder_are_refused(tmp_path: Path) -> None:
    folder = write_index(tmp_path, {ONE: {"a": torch.ones(2)}})
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "../x.bin"}}))
    refused(
        lambda: FolderCheckpoint(folder).tensors, folder / INDEX, "'../x.bin' is not a file inside the checkpoint's folder"
    )
    (folder / INDEX).write_text(json.dumps({"weight_map": {"b": ONE}}))
    refused(lambda: FolderCheckpoint(folder).tensors, folder / INDEX, "tensor 'b' is not in", "as listed. Fetch both again.")
    (folder / INDEX).write_text("{}")
    refused(lambda: FolderCheckpoint(folder).tensors, folder / INDEX, "'weight_map' must map tensor names to file names")


def test_safetensors_come_first(tmp_path: Path) -> None:
    write_index(tmp_path, {ONE: {"index": torch.ones(2)}})
    assert FolderCheckpoint(tmp_path).tensors.keys() == {"index"}
    save({"old": torch.ones(2)}, tmp_path / BIN)
    assert FolderCheckpoint(tmp_path).tensors.keys() == {"old"}
    write_folder(tmp_path, {"model-1.safetensors": {"new": np.ones(2)}})
    assert FolderCheckpoint(tmp_path).tensors.keys() == {"new"}
    write_folder(tmp_path, {"model.safetensors": {"whole": np.ones(2)}})
    assert FolderCheckpoint(tmp_path).tensors.keys() == {"whole"}


def test_opening_a_weights_file_opens_its_folder(tmp_path: Path) -> None:
    write_folder(tmp_path, {"model.safetensors": {"new": np.ones(2)}})
    save({"old": torch.ones(2)}, tmp_path / BIN)
    for name, wanted in (("model.safetensors", "new"), (BIN, "old")):
        checkpoint = open_at(tmp_path / name)
        assert isinstance(checkpoint, FolderCheckpoint)
        assert checkpoint.path == tmp_path
        assert checkpoint.config == CONFIG
        assert checkpoint.tensors.keys() == {wanted}


def test_only_known_weight_file_names_are_weights(tmp_path: Path) -> None:
    for name in ("adapter_model.bin", "optimizer.pt", "training_args.bin"):
        save({"a": torch.ones(2)}, tmp_path / name)
    assert not FolderCheckpoint(tmp_path).complete
    refused(lambda: FolderCheckpoint(tmp_path).tensors, tmp_path, "holds no model.safetensors", "nor a pytorch_model.bin")


def test_a_real_model_from_safetensors_and_from_torch_file(minilm: Path, tmp_path: Path) -> None:
    wanted = read_safetensors(minilm / "model.safetensors")
    values = {name: as_tensor(one, STORED_DTYPES[one.kind]) for name, one in wanted.items()}
    save(values, tmp_path / BIN)
    found = FolderCheckpoint(tmp_path).tensors
    assert found.keys() == wanted.keys()
    assert all(one.same_bytes(wanted[name]) for name, one in found.items())
    assert FolderCheckpoint(minilm).config["model_type"] == "bert"
