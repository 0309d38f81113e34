"""Folders in the layout of the hub: one file or many, mapped and never changed; and what is refused of them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save as as_bytes
from safetensors.torch import save_file

from glassformer.checkpoint.folder import FolderCheckpoint, read_json, read_safetensors
from glassformer.checkpoint.stored_tensors import PLAIN_KINDS, InterleavedPairs, MappedFile, StoredTensor
from glassformer.compat.pretrained import STORED_DTYPES, as_tensor
from tests.checkpoint.files import CONFIG, damaged, modestly, refused, replace, safetensors_bytes, write_folder
from tests.sweeps import examples

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
AGAIN = "Fetch it again."


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


# Reading --------------------------------------------------------------------------------------------------------


def test_folder_config_and_settings(tmp_path: Path) -> None:
    folder = FolderCheckpoint(write_folder(tmp_path, {}))
    assert folder.config == CONFIG
    assert folder.settings == {}
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.5, "name": "é"}', "utf-8")
    assert FolderCheckpoint(tmp_path).settings == {"temperature": 0.5, "name": "é"}


def test_one_safetensors_file(tmp_path: Path) -> None:
    wanted = {"a": numbers(3, 4), "b": numbers(5), "none": numbers(0, 4), "scalar": numbers()}
    found = FolderCheckpoint(write_folder(tmp_path, {"model.safetensors": wanted})).tensors
    assert found.keys() == wanted.keys()
    for name, one in found.items():
        assert (one.name, one.kind, one.shape, one.packed, one.layout) == (name, "F32", wanted[name].shape, False, None)
        assert (one.elements, one.size) == (wanted[name].size, wanted[name].nbytes)
        np.testing.assert_array_equal(one.to_float32(), wanted[name])


def test_sharded_safetensors(tmp_path: Path) -> None:
    shards = {ONE: {"a": numbers(3, 4), "b": numbers(5)}, TWO: {"c": numbers(2, 2)}}
    found = FolderCheckpoint(write_folder(tmp_path, shards)).tensors
    for name, tensors in shards.items():
        for tensor, wanted in tensors.items():
            assert found[tensor].file.path == tmp_path / name
            np.testing.assert_array_equal(found[tensor].to_float32(), wanted)
    assert found["a"].file is found["b"].file


def test_shards_in_a_subfolder(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    found = FolderCheckpoint(write_folder(tmp_path, {"deep/a.safetensors": {"a": numbers(2)}})).tensors
    assert found["a"].file.path == tmp_path / "deep" / "a.safetensors"


def test_linked_files_are_followed(tmp_path: Path) -> None:
    """The hub's cache is made of links into a folder of blobs beside the snapshot."""
    write_folder(tmp_path / "blobs", {"model.safetensors": {"a": numbers(2)}})
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blobs/model.safetensors")
    assert FolderCheckpoint(tmp_path / "snapshot").tensors.keys() == {"a"}


def test_model_safetensors_wins_over_an_index(tmp_path: Path) -> None:
    write_folder(tmp_path, {ONE: {"old": numbers(2)}})
    assert FolderCheckpoint(write_folder(tmp_path, {"model.safetensors": {"new": numbers(2)}})).tensors.keys() == {"new"}


def test_complete_needs_every_shard(tmp_path: Path) -> None:
    assert not FolderCheckpoint(tmp_path).complete
    assert FolderCheckpoint(write_folder(tmp_path, {ONE: {"a": numbers(2)}, TWO: {"b": numbers(2)}})).complete
    (tmp_path / TWO).unlink()
    assert not FolderCheckpoint(tmp_path).complete
    assert FolderCheckpoint(write_folder(tmp_path, {"model.safetensors": {"a": numbers(2)}})).complete


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_every_plain_kind_of_safetensors(tmp_path: Path, kind: str) -> None:
    wanted = torch.randn(5, 3).mul(3).to(STORED_DTYPES[kind])
    save_file({"a": wanted}, tmp_path / "model.safetensors")
    one = FolderCheckpoint(tmp_path).tensors["a"]
    assert (one.kind, one.shape, one.size, one.packed) == (kind, (5, 3), 15 * PLAIN_KINDS[kind], False)
    assert torch.equal(as_tensor(one, wanted.dtype), wanted)
    if wanted.is_floating_point():
        assert torch.equal(torch.from_numpy(one.to_float32()), wanted.float())
    else:
        refused(one.to_float32, tmp_path, "tensor 'a'", f"kind {kind}", "Use a file in one of the usual kinds")


def test_to_float32_refuses_empty_integer_tensors(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(0, 3, dtype=torch.int64)}, tmp_path / "model.safetensors")
    refused(FolderCheckpoint(tmp_path).tensors["a"].to_float32, "tensor 'a'", "kind I64")


# Mapping --------------------------------------------------------------------------------------------------------


def test_bytes_are_views_of_the_file(tmp_path: Path) -> None:
    one, other = FolderCheckpoint(
        write_folder(tmp_path, {"model.safetensors": {"a": numbers(64), "b": numbers(64)}})
    ).tensors.values()
    assert one.file is other.file
    everything = np.frombuffer(one.file.buffer, np.uint8)
    for stored in (one, other):
        assert np.shares_memory(stored.bytes, everything)
        assert np.shares_memory(stored.to_float32(), everything)
        assert as_tensor(stored, torch.float32).data_ptr() == everything.ctypes.data + stored.offset


def test_writing_into_a_tensor_never_changes_the_file(tmp_path: Path) -> None:
    path = write_folder(tmp_path, {"model.safetensors": {"a": numbers(64)}}) / "model.safetensors"
    before = path.read_bytes()
    one = FolderCheckpoint(tmp_path).tensors["a"]
    mapped = as_tensor(one, torch.float32)
    mapped.fill_(7)
    one.bytes[:4] = 0
    assert mapped[1] == 7
    one.file.buffer.flush()
    assert path.read_bytes() == before
    assert FolderCheckpoint(tmp_path).tensors["a"].to_float32()[1] == numbers(64)[1]


def test_unaligned_tensors(tmp_path: Path) -> None:
    """The format does not align: a header of odd length, or a tensor behind an odd number of bytes."""
    wanted = numbers(3)
    table = {
        "odd": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "a": {"dtype": "F32", "shape": [3], "data_offsets": [1, 13]},
    }
    for padding in range(4):
        data = safetensors_bytes(json.dumps(table).encode() + b" " * padding, b"x" + wanted.tobytes())
        one = read_safetensors(replace(tmp_path / "x.safetensors", data))["a"]
        np.testing.assert_array_equal(one.to_float32(), wanted)
        np.testing.assert_array_equal(as_tensor(one, torch.float32), wanted)


def test_same_bytes(tmp_path: Path) -> None:
    a = numbers(6, 4)
    tensors = {"a": a, "twin": a, "other": a + 1, "flat": a.reshape(24), "half": a.astype(np.float16)}
    found = FolderCheckpoint(write_folder(tmp_path, {"model.safetensors": tensors})).tensors
    same = {name for name, one in found.items() if one.same_bytes(found["a"])}
    assert same == {"a", "twin"}
    turned = StoredTensor("a", "F32", (6, 4), found["a"].file, found["a"].offset, found["a"].size, InterleavedPairs(3))
    assert not turned.same_bytes(found["a"])


def test_same_bytes_compares_every_byte(tmp_path: Path) -> None:
    """Beyond one step of the comparison too."""
    (tmp_path / "x").write_bytes(bytes(2 * ((1 << 24) + 8) - 1) + b"\x01")
    file, size = MappedFile(tmp_path / "x"), (1 << 24) + 8
    one, other = (StoredTensor("", "U8", (size,), file, at, size) for at in (0, size))
    assert not one.same_bytes(other)
    assert one.same_bytes(one)


# Refusals -------------------------------------------------------------------------------------------------------

BROKEN_JSON: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not valid JSON"),
    "broken": (b'{"a": ', "not valid JSON"),
    "not UTF-8": (b'{"a": "\xff"}', "not valid JSON"),
    "bottomless": (b"[" * 100_000, "not valid JSON"),
    "too many digits": (b'{"a": ' + b"9" * 10_000 + b"}", "not valid JSON"),
    "list": (b"[]", "holds a list where an object belongs"),
    "text": (b'"x"', "holds a str where an object belongs"),
    "null": (b"null", "holds a NoneType where an object belongs"),
}


@pytest.mark.parametrize("what", BROKEN_JSON)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_broken_json_is_refused(tmp_path: Path, name: str, what: str) -> None:
    data, why = BROKEN_JSON[what]
    path = replace(tmp_path / name, data)
    refused(
        lambda: FolderCheckpoint(tmp_path).config if name == "config.json" else FolderCheckpoint(tmp_path).settings,
        path,
        why,
        AGAIN,
    )


def test_missing_json_or_a_folder_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    refused(lambda: FolderCheckpoint(tmp_path).config, path, "the file is missing", "needs config.json beside its weights")
    path.mkdir()
    refused(lambda: read_json(path), path, "is a folder, and a file is needed")


def test_folder_without_weights(tmp_path: Path) -> None:
    (tmp_path / "tf_model.h5").touch()
    refused(
        lambda: FolderCheckpoint(tmp_path).tensors,
        tmp_path,
        "no model.safetensors",
        "nor a pytorch_model.bin",
        "convert them to safetensors",
    )


GOOD = as_bytes({"a": numbers(3, 4), "b": numbers(5)}, {"format": "pt"})
HEAD = 8 + struct.unpack("<Q", GOOD[:8])[0]


def listed(**fields: object) -> dict[str, object]:
    """A table of one tensor of four bytes."""
    return {"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4], **fields}}


DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty. Fetch or copy the checkpoint again."),
    "a few bytes": (GOOD[:7], "damaged or cut short"),
    "no header": (GOOD[:8], "damaged or cut short"),
    "cut in the header": (GOOD[: HEAD - 1], "damaged or cut short"),
    "cut in the data": (GOOD[:-1], "damaged or cut short"),
    "too long": (GOOD + b"x", "damaged or cut short"),
    "header length": (struct.pack("<Q", 2**63) + GOOD[8:], "damaged or cut short"),
    "header length of 2 GB": (struct.pack("<Q", 2**31) + GOOD[8:], "damaged or cut short"),
    "header not JSON": (GOOD[:8] + b"?" + GOOD[9:], "damaged or cut short"),
    "header not UTF-8": (GOOD[:10] + b"\xff" + GOOD[11:], "damaged or cut short"),
    "header a list": (safetensors_bytes([]), "damaged or cut short"),
    "unknown dtype": (safetensors_bytes(listed(dtype="F3"), b"1234"), "damaged or cut short"),
    "shape too large": (safetensors_bytes(listed(shape=[5]), b"1234"), "damaged or cut short"),
    "shape that wraps": (safetensors_bytes(listed(shape=[2**32, 2**32, 4]), b"1234"), "damaged or cut short"),
    "offsets outside": (safetensors_bytes(listed(data_offsets=[4, 8]), b"1234"), "damaged or cut short"),
    "offsets backwards": (safetensors_bytes(listed(data_offsets=[4, 0]), b"1234"), "damaged or cut short"),
    "endless number": (safetensors_bytes(b'{"a":{"x":' + b"9" * 9999 + b',"dtype":"U8","shape":[4],'
                                                 b'"data_offsets":[0,4]}}', b"1234"), "damaged or cut short"),
    "entry as a list": (safetensors_bytes({"a": ["U8", [4], [0, 4]]}, b"1234"), "entry for tensor 'a' is unusable"),
    "dtype as an object": (safetensors_bytes(listed(dtype={"U8": None}), b"1234"), "entry for tensor 'a' is unusable"),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_safetensors_are_refused(tmp_path: Path, what: str) -> None:
    data, why = DAMAGED[what]
    path = replace(tmp_path / "model.safetensors", data)
    with modestly():
        read_safetensors(path)
    refused(lambda: FolderCheckpoint(tmp_path).tensors, path, why, "again.")


@pytest.mark.parametrize("kind", ["U16", "U32", "U64"])
def test_unsupported_safetensors_dtype(tmp_path: Path, kind: str) -> None:
    width = {"U16": 2, "U32": 4, "U64": 8}[kind]
    table = listed(dtype=kind, data_offsets=[0, 4 * width])
    path = replace(tmp_path / "model.safetensors", safetensors_bytes(table, bytes(4 * width)))
    refused(
        lambda: FolderCheckpoint(tmp_path).tensors,
        path,
        f"tensor 'a' is of dtype {kind}",
        "not supported",
        "Known: F64, F32",
    )


@pytest.mark.parametrize("where", [None, [], "x", {"a": 5}, {"a": None}, {"a": ["x"]}])
def test_shard_index_of_the_wrong_type(tmp_path: Path, where: object) -> None:
    path = replace(tmp_path / INDEX, json.dumps({"weight_map": where}).encode())
    refused(lambda: FolderCheckpoint(tmp_path).tensors, path, "'weight_map' must map tensor names to file names", AGAIN)
    refused(lambda: FolderCheckpoint(tmp_path).complete, path)


OUTSIDE = [
    "/etc/passwd", "../x.safetensors", "deep/../../x.safetensors", "..\\x.safetensors", "\\x.safetensors", "\\\\server\\x",
    "C:\\x.safetensors", "C:x.safetensors", "x\0.safetensors", "x\n.safetensors", "\ud800.safetensors",
]  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE, ids=ascii)
def test_shards_outside_the_folder_are_never_opened(tmp_path: Path, name: str) -> None:
    inner = tmp_path / "inner"
    write_folder(inner, {})
    replace(tmp_path / "x.safetensors", GOOD)
    path = replace(inner / INDEX, json.dumps({"weight_map": {"a": name}}).encode())
    refused(lambda: FolderCheckpoint(inner).tensors, path, repr(name), "it is not opened", "Fetch the index again.")


def unlink(folder: Path) -> None:
    (folder / TWO).unlink()


def empty_name(folder: Path) -> None:
    replace(folder / INDEX, b'{"weight_map": {"a": ""}}')


def swap(folder: Path) -> None:
    replace(folder / TWO, (folder / ONE).read_bytes())


SHARDS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "missing": (unlink, (TWO, "the file is missing. Fetch or copy the checkpoint again.")),
    "nameless": (empty_name, ("is a folder, and a file is needed",)),
    "without its tensor": (swap, (INDEX, f"tensor 'b' is not in {TWO!r} as listed. Fetch both again.")),
}


@pytest.mark.parametrize("what", SHARDS)
def test_shards_that_lack_an_indexed_tensor(tmp_path: Path, what: str) -> None:
    spoil, words = SHARDS[what]
    spoil(write_folder(tmp_path, {ONE: {"a": numbers(2)}, TWO: {"b": numbers(2)}}))
    refused(lambda: FolderCheckpoint(tmp_path).tensors, tmp_path, *words)


# Damage ---------------------------------------------------------------------------------------------------------


def test_safetensors_cut_short_anywhere(tmp_path: Path) -> None:
    for cut in range(1, len(GOOD)):
        path = replace(tmp_path / "x.safetensors", GOOD[:cut])
        refused(lambda path=path: read_safetensors(path), path, AGAIN)  # type: ignore[misc]


def open_folder(folder: Path) -> None:
    """As far as this layer goes: what the config says is judged by the family's blueprint."""
    opened = FolderCheckpoint(folder)
    assert isinstance(opened.config, dict)
    assert isinstance(opened.settings, dict)
    for one in opened.tensors.values():
        one.to_float32()


INDEX_TEXT = json.dumps({"weight_map": {"a": ONE, "b": TWO}}).encode()
SMALL_FILES = {"config.json": json.dumps(CONFIG).encode(), INDEX: INDEX_TEXT}


@given(st.data())
@settings(max_examples=examples(75, 300), deadline=None)
def test_any_damage_to_a_folder_is_a_checkpoint_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    spoilt = data.draw(st.sampled_from([ONE, ONE, ONE, *SMALL_FILES]))
    for name, whole in {**SMALL_FILES, ONE: GOOD, TWO: GOOD}.items():
        head = HEAD if name == ONE else len(whole)
        replace(folder / name, data.draw(damaged(whole, head)) if name == spoilt else whole)
    with np.errstate(all="ignore"), modestly():
        open_folder(folder)
