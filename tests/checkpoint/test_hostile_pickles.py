"""Hostile pickles: nothing is run, nothing is written, nothing large is made, and each gets one plain sentence."""

from __future__ import annotations

import copyreg
import functools
import io
import marshal
import operator
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.checkpoint import open_at
from glassformer.checkpoint.torch_file import read_torch_file
from glassformer.ground.errors import CheckpointError
from tests.checkpoint.files import damaged, modestly, replace
from tests.checkpoint.pickles import Calls, Claimed, Storage, dumped, write_old, write_zip, zipped
from tests.sweeps import examples

WEIGHTS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(4)}
NOT_RUN = "which is not run. Fetch the safetensors file instead, or save"
DAMAGED = "damaged, or not a file that torch.save wrote"
LARGE = "its tensors would be larger than the file. Fetch it again."
NESTED = "longer or more deeply nested than that of any model"
GIGABYTE = 1 << 30

Make = Callable[[Path, str], object]  # (the file to write, a shell command that would leave a mark)


def saved(wrap: Callable[[Calls], object], old: bool = False) -> Make:
    """A call to os.system somewhere in what torch.save itself writes."""
    return lambda path, command: torch.save(wrap(Calls(os.system, command)), path, _use_new_zipfile_serialization=not old)


def calling(function: object, *arguments: object) -> Make:
    """One call beside good tensors; '!' stands for the command, '!!' for Python that runs it."""

    def make(path: Path, command: str) -> None:
        given = [
            command if one == "!" else f"__import__('os').system({command!r})" if one == "!!" else one for one in arguments
        ]
        torch.save({**WEIGHTS, "x": Calls(function, *given)}, path)

    return make


def assembled(instructions: bytes) -> Make:
    """A pickle by its instructions, in a zip as torch.save would lay it out."""
    return lambda path, _: write_zip(path, b"\x80\x02" + instructions + b".")


def claiming(count: int, shape: tuple[int, ...], stride: tuple[int, ...], held: int = 4, offset: int = 0) -> Make:
    """One tensor over a storage that says it has a count of numbers, and holds so many."""
    tensor = Claimed(Storage("0", count), shape, stride, offset)
    return lambda path, _: write_zip(path, dumped({"a": tensor}), _0=bytes(4 * held))


def claiming_old(count: int, shape: tuple[int, ...], held: int = 4, keys: tuple[str, ...] = ("0",)) -> Make:
    value = {"a": Claimed(Storage("0", count), shape, (1,))}
    return lambda path, _: write_old(path, value, list(keys), [(held, bytes(4 * held))])


def function_from_bytes(path: Path, command: str) -> None:
    code = marshal.dumps(compile(f"__import__('os').system({command!r})", "x", "exec"))
    loads = b"cmarshal\nloads\n" + b"T" + struct.pack("<i", len(code)) + code + b"\x85R"
    write_zip(path, b"\x80\x02ctypes\nFunctionType\n" + loads + b"}\x86R)R.")


def extra_pickle(path: Path, command: str) -> None:
    torch.save(WEIGHTS, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other/data.pkl", pickle.dumps(Calls(os.system, command), 2))


def twice_named(path: Path, command: str) -> None:
    """Two pickles of one name: which is read depends on who reads."""
    write_zip(path, dumped(WEIGHTS["a"].tolist()))
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x/data.pkl", pickle.dumps(Calls(os.system, command), 2))


def cut_zip(path: Path, _: str) -> None:
    torch.save(WEIGHTS, path)
    path.write_bytes(path.read_bytes()[:-100])


def tar(path: Path, command: str) -> None:
    with tarfile.open(path, "w") as archive:
        data = pickle.dumps(Calls(os.system, command), 2)
        entry = tarfile.TarInfo("pickle")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))


def script(path: Path, _: str) -> None:
    zipped(path, {"x/data.pkl": dumped({}), "x/constants.pkl": dumped({}), "x/code/x.py": b"raise SystemExit"})


def unpacking(path: Path, _: str) -> None:
    zipped(path, {"x/data.pkl": bytes(8 << 20)}, zipfile.ZIP_DEFLATED)


def shadowed(path: Path, _: str) -> None:
    """An OrderedDict with attributes in the place of its methods."""
    state = dict.fromkeys(("items", "keys", "get", "values", "__iter__"), 3)
    write_zip(path, dumped(Calls(OrderedDict, [["h_params", 3]], state=state)))


def itself(path: Path, _: str) -> None:
    value: dict[str, object] = {}
    value["model"] = value["state_dict"] = value
    write_zip(path, dumped(value))


CALLS: dict[str, tuple[Make, str]] = {  # what would be run, and what the sentence names
    "os.system": (calling(os.system, "!"), f"asks for {os.name if os.name == 'nt' else 'posix'}.system, {NOT_RUN}"),
    "subprocess": (calling(subprocess.Popen, "!", -1, None, None, None, None, None, True, True), "subprocess.Popen"),
    "eval": (calling(eval, "!!"), "builtins.eval"),
    "exec": (calling(exec, "!!"), "builtins.exec"),
    "getattr": (calling(getattr, [], "append"), "builtins.getattr"),
    "import": (calling(__import__, "antigravity"), "builtins.__import__"),
    "list": (saved(lambda evil: {"a": [WEIGHTS["a"], [evil]]}), "system"),
    "OrderedDict": (saved(lambda evil: OrderedDict(a=WEIGHTS["a"], b=OrderedDict(c=evil))), "system"),
    "h_params": (saved(lambda evil: {"h_params": {"d_model": evil}, "model_state_dict": WEIGHTS}), "system"),
    "key": (saved(lambda evil: {"a": WEIGHTS["a"], (1, 2): evil}), "system"),
    "old format": (saved(lambda evil: {"a": WEIGHTS["a"], "b": evil}, old=True), "system"),
    "bare pickle": (lambda path, command: path.write_bytes(pickle.dumps(Calls(os.system, command), 2)), "system"),
    "extra pickle": (extra_pickle, "system"),
    "storages": (calling(torch.storage._load_from_bytes, b"x"), "asks for torch.storage._load_from_bytes"),
    "bytes": (lambda path, _: torch.save({"a": b"x"}, path), "asks for _codecs.encode"),
    "partial": (calling(functools.partial, Calls(os.system, "!"), "!"), "functools.partial"),
    "attrgetter": (calling(operator.attrgetter, "a.b.c"), "operator.attrgetter"),
    "methodcaller": (calling(operator.methodcaller, "x"), "operator.methodcaller"),
    "copyreg": (calling(copyreg._reconstructor, Path, object, None), "copyreg._reconstructor"),
    "function": (function_from_bytes, "asks for types.FunctionType"),
    "objects in numpy": (lambda path, _: torch.save({"a": np.array([{}], object)}, path), "numpy"),
    "numpy scalar": (lambda path, _: torch.save({"a": np.float64(3)}, path), "numpy"),
    "a whole module": (lambda path, _: torch.save(torch.nn.Linear(2, 2), path), "torch.nn.modules.linear.Linear"),
    "subclass": (calling(torch._tensor._rebuild_from_type_v2, print, int, ("!",), {}), "_rebuild_from_type_v2"),
    "bytearray": (calling(bytearray, 8 * GIGABYTE), "builtins.bytearray"),
    "tensor class": (calling(torch.FloatTensor, 8 * GIGABYTE), "torch.FloatTensor"),
    "extension": (assembled(b"\x82\x01"), "asks for extension.1"),
    "instance": (assembled(b"(ios\nsystem\n"), "asks for os.system"),
    "odd name": (assembled(b"cos\x1b[31m\nsystem\n"), r"asks for 'os\x1b[31m.system'"),
    "long name": (assembled(b"c" + b"x" * 5000 + b"\nsystem\n"), "asks for 'xxxx"),
}
for number in range(6):
    CALLS[f"protocol {number}"] = (
        lambda path, command, number=number: write_zip(path, pickle.dumps({"a": Calls(os.system, command)}, number)),
        f".system, {NOT_RUN}",
    )

SHAPES: dict[str, tuple[Make, str]] = {  # what is no call, but no checkpoint either
    "deep key": (assembled(b"}" + b")" + b"\x85" * 1_000_000 + b"K\x01s"), NESTED),
    "wide key": (assembled(b"})" + b"".join(b"q\x00h\x00\x86" for _ in range(64)) + b"K\x01s"), NESTED),
    "wide key of texts": (assembled(b"}(" + b"X\x01\x00\x00\x00a" * 20_000 + b"tK\x01s"), NESTED),
    "unprintable reason": (assembled(b"}X\x01\x00\x00\x00aX\x02\x00\x00\x00\x1b[Qs"), DAMAGED),
    "deep list": (assembled(b"]" * 200_000 + b"a" * 199_999), "holds a list where named tensors belong"),
    "long pickle": (assembled(b"N0" * (9 << 20)), NESTED),
    "many instructions": (assembled(b"N0" * 300_000), NESTED),
    "many in a bare pickle": (lambda path, _: path.write_bytes(b"\x80\x02" + b"N0" * 300_000 + b"."), NESTED),
    "long text": (assembled(b"X\xff\xff\xff\xffabc"), DAMAGED),
    "long number": (assembled(b"\x8b\xff\xff\xff\x7fabc"), DAMAGED),
    "no end": (lambda path, _: write_zip(path, b"\x80\x02}"), DAMAGED),
    "empty stack": (assembled(b"s"), DAMAGED),
    "unknown memo": (assembled(b"h\x07"), DAMAGED),
    "newer protocol": (lambda path, _: write_zip(path, pickle.dumps({"a": [1]}, 4)), "written in pickle protocol 4"),
    "a number": (assembled(b"K\x01"), "holds a int where named tensors belong"),
    "nothing": (lambda path, _: torch.save({}, path), "holds no tensors but nothing."),
    "no tensors": (lambda path, _: torch.save(dict.fromkeys(range(9)), path), "no tensors but 0, 1, 2, 3, 4 and 4 more."),
    "shadowed": (shadowed, "holds no tensors but 'h_params'."),
    "itself": (itself, "holds no tensors but 'model', 'state_dict'."),
    "twice": (twice_named, "compressed, doubled or larger than the file"),
    "unpacking": (unpacking, "compressed, doubled or larger than the file"),
    "script": (script, "a TorchScript program, which is not run."),
    "other zip": (lambda path, _: zipped(path, {"a.txt": b"hello"}), "a zip archive, but not one that torch.save wrote"),
    "empty zip": (lambda path, _: path.write_bytes(b"PK\x03\x04"), DAMAGED),
    "cut zip": (cut_zip, DAMAGED),
    "tar": (tar, DAMAGED),
    "other pickle": (lambda path, _: path.write_bytes(dumped([1])), "a pickle, but not one that torch.save wrote"),
    "garbage": (lambda path, _: path.write_bytes(bytes(range(255, 0, -1)) * 9), DAMAGED),
    "zeros": (lambda path, _: path.write_bytes(bytes(999)), DAMAGED),
    "text": (lambda path, _: path.write_text("version https://git-lfs\nsize 3\n"), DAMAGED),
    "empty": (lambda path, _: path.touch(), "the file is empty."),
    "shape past its storage": (claiming(4, (5,), (1,)), DAMAGED),
    "offset past its storage": (claiming(4, (4,), (1,), offset=1), DAMAGED),
    "huge shape": (claiming(4, (2 * GIGABYTE,), (1,)), DAMAGED),
    "negative stride": (claiming(4, (4,), (-1,)), DAMAGED),
    "negative shape": (claiming(4, (-4,), (1,)), DAMAGED),
    "storage past its record": (claiming(8, (8,), (1,)), "storage is not as long as the file says"),
    "storage past the file": (claiming(2 * GIGABYTE, (2 * GIGABYTE,), (1,)), DAMAGED),
    "storage that is not there": (lambda p, _: write_zip(p, dumped({"a": Claimed(Storage("7", 1), (1,), (1,))})), DAMAGED),
    "repeating itself": (claiming(4, (2 * GIGABYTE,), (0,)), LARGE),
    "old: storage past the file": (claiming_old(2 * GIGABYTE, (4,)), LARGE),
    "old: shape past its storage": (claiming_old(4, (2 * GIGABYTE,)), DAMAGED),
    "old: and never filled": (claiming_old(4, (9,), keys=()), "storage is not as long as the file says"),
    "old: cut": (claiming_old(4, (4,), held=2), DAMAGED),
    "old: unknown key": (claiming_old(4, (4,), keys=("9",)), DAMAGED),
}


def peak() -> int:
    """The most memory that this process ever had, in bytes; 0 where nobody says."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.parametrize("ending", [".bin", pytest.param(".ckpt", marks=pytest.mark.sweep)])
@pytest.mark.parametrize("what", [*CALLS, *SHAPES])
def test_hostile_pickles_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, ending: str) -> None:
    monkeypatch.chdir(tmp_path)
    path, mark = tmp_path / f"x{ending}", tmp_path / "mark"
    make, words = (CALLS | SHAPES)[what]
    make(path, f"echo > {mark}")
    before = peak()
    with pytest.raises(CheckpointError) as caught:
        open_at(path).tensors  # noqa: B018
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < len(str(path)) + 400
    assert not mark.exists()
    assert list(tmp_path.iterdir()) == [path]
    assert peak() - before < GIGABYTE // 2


def test_there_are_enough_hostile_pickles() -> None:
    assert len(CALLS) >= 20


def test_code_run_by_a_pickle_would_be_noticed(tmp_path: Path) -> None:
    """The same pickles do run where one lets them."""
    make, _ = CALLS["bare pickle"]
    make(tmp_path / "x", f"echo > {tmp_path / 'mark'}")
    pickle.loads((tmp_path / "x").read_bytes())
    assert (tmp_path / "mark").exists()


def test_pickled_attributes_do_not_replace_tensor_methods(tmp_path: Path) -> None:
    value = torch.nn.Parameter(torch.arange(4.0))
    value.is_contiguous = value.untyped_storage = value.stride = OrderedDict  # type: ignore[method-assign, assignment]
    state = Calls(torch._utils._rebuild_parameter_with_state, torch.arange(4.0), False, OrderedDict(), value.__dict__)
    torch.save({"a": state}, tmp_path / "x.bin")
    np.testing.assert_array_equal(
        read_torch_file(tmp_path / "x.bin").tensors["a"].to_float32(), np.arange(4, dtype=np.float32)
    )


# Damage ---------------------------------------------------------------------------------------------------------


def as_saved(old: bool) -> bytes:
    target = io.BytesIO()
    torch.save({"h_params": {"d_model": 3}, "model_state_dict": WEIGHTS}, target, _use_new_zipfile_serialization=not old)
    return target.getvalue()


def readable(path: Path) -> None:
    with modestly():
        for one in read_torch_file(path).tensors.values():
            assert one.bytes.size == one.size


@pytest.mark.parametrize("old", [False, True])
@settings(deadline=None, max_examples=examples(25, 100))
@given(data=st.data())
def test_any_damage_to_a_pickle_is_a_checkpoint_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, old: bool, data: st.DataObject
) -> None:
    whole = as_saved(old)
    path = tmp_path_factory.getbasetemp() / f"damaged-{old}.bin"
    readable(replace(path, data.draw(damaged(whole, len(whole)))))


@settings(deadline=None, max_examples=examples(50, 200))
@given(data=st.data())
def test_pickle_damage_that_the_zip_does_not_notice(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    with zipfile.ZipFile(io.BytesIO(as_saved(False))) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = data.draw(st.sampled_from([name for name in parts if parts[name]] + ["archive/data.pkl"] * 9))
    parts[name] = data.draw(damaged(parts[name], len(parts[name])))
    path = tmp_path_factory.getbasetemp() / "damaged-inside.bin"
    path.unlink(missing_ok=True)
    readable(zipped(path, parts))


def test_a_hostile_length_in_an_old_format_file(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    write_old(path, {"a": Claimed(Storage("0", 4), (4,), (1,))}, ["0"], [(4, struct.pack("<4f", 1, 2, 3, 4))])
    assert read_torch_file(path).tensors["a"].to_float32().tolist() == [1, 2, 3, 4]
