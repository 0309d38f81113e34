"""Nothing is released twice: whatever owns native memory, files, locks or processes is shared or refuses to be copied."""

from __future__ import annotations

import ast
import copy
import gc
import importlib
import inspect
import pickle
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import glassformer
from glassformer.checkpoint.stored_tensors import MappedFile
from glassformer.engine.cpu import kv_pages
from glassformer.engine.cpu.library import Engine, library
from glassformer.engine.gpu import kv_pool
from glassformer.engine.paged_rows import PageFormat
from glassformer.ground.errors import CheckpointError, CopyError, ExecutorError
from glassformer.ground.ownership import NotCopied
from glassformer.jobs.ledger import Ledger
from tests.see.models import both

ROOT = Path(glassformer.__file__).parent
ACQUIRED_BY = {  # calls whose result an object owns, if it keeps it
    "mmap", "Popen", "open_regular", "FileIO", "fdopen", "TemporaryDirectory", "Connection", "Socket", "socketpair",
    "ForkSafeLock", "ThreadPoolExecutor", "ProcessPoolExecutor", "c_void_p",
}  # fmt: skip
OWNED_TYPES = {*ACQUIRED_BY, "BinaryIO", "NativeMatrix"}  # of fields


def name_of(node: ast.AST) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def is_of_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and name_of(node.value) == "self"


def owned(node: ast.AST) -> bool:
    """Whether an expression acquires something, or is the address of memory."""
    if isinstance(node, ast.Attribute):
        return node.attr == "data" and isinstance(node.value, ast.Attribute) and node.value.attr == "ctypes"
    if not isinstance(node, ast.Call):
        return False
    opens = name_of(node.func) == "open" and any(isinstance(argument, ast.Constant) for argument in node.args)
    return opens or name_of(node.func) in ACQUIRED_BY


def owns(cls: ast.ClassDef) -> bool:
    """Whether the objects of a class own something outside of Python, as far as its source shows."""
    for node in ast.walk(cls):
        if isinstance(node, ast.FunctionDef) and node.name == "__del__":
            return True
        if isinstance(node, ast.Call) and name_of(node.func) == "finalize" and name_of(node.args[0]) == "self":
            return True
        is_field = isinstance(node, ast.AnnAssign) and node in cls.body
        if is_field and any(name_of(part) in OWNED_TYPES for part in ast.walk(node.annotation)):
            return True
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            kept = any(is_of_self(part) for target in targets for part in ast.walk(target))
            if kept and any(owned(part) for part in ast.walk(node.value)):
                return True
    return False


MAY_OWN = re.compile(rf"__del__|finalize|ctypes|\bopen\(|{'|'.join(OWNED_TYPES)}")  # what is nowhere in most files


def classes_in(path: Path) -> Iterator[ast.ClassDef]:
    text = path.read_text("utf-8")
    if MAY_OWN.search(text):
        yield from (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))


def module_of(path: Path) -> str:
    return ".".join(("glassformer", *path.relative_to(ROOT).with_suffix("").parts))


@cache
def owners() -> list[tuple[str, str]]:
    return [(module_of(path), cls.name) for path in sorted(ROOT.rglob("*.py")) for cls in classes_in(path) if owns(cls)]


@cache
def concrete(cls: type) -> type:
    """The class, or a subclass that can be made."""
    return next(each for each in (cls, *cls.__subclasses__()) if not inspect.isabstract(each))


def copies(one: Any) -> list[Any]:
    """What comes of each way to copy an object; nothing where it is refused by the error that says so."""
    made: list[Any] = []
    for way in (copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))):
        with suppress(CopyError):
            made.append(way(one))
    return made


@pytest.fixture
def unraised(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What went wrong where Python cannot raise: in finalizers."""
    found: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda problem: found.append(problem.exc_value))
    return found


KNOWN = {"Engine", "MappedFile", "PageList", "KvPage", "RankProcesses", "Follower", "Ledger", "PackedMatrix"}


def test_every_owner_is_shared_or_refuses_to_be_copied(unraised: list[Any]) -> None:
    assert {name for _, name in owners()} >= KNOWN
    for module, name in owners():
        cls = getattr(importlib.import_module(module), name)
        assert issubclass(cls, NotCopied), f"{name} owns something outside of Python: derive it from NotCopied or Shared"
        assert "__del__" not in vars(cls), f"{name}: release in a weakref.finalize, which no half-made object has"
        half_made = concrete(cls).__new__(concrete(cls))
        assert all(each is half_made for each in copies(half_made))
        del half_made
        gc.collect()
        assert not unraised, name


def test_a_thread_pool_is_closed_once(monkeypatch: pytest.MonkeyPatch, unraised: list[Any]) -> None:
    engine, native = Engine(threads=1), library()
    handle, closed, close = engine.handle, list[int](), native.glass_close
    monkeypatch.setattr(native, "glass_close", lambda each: (closed.append(each), close(each)))
    assert copies(engine) == [engine, engine]
    thief = Engine.__new__(Engine)
    thief.__dict__.update(engine.__dict__)
    del thief
    gc.collect()
    assert handle not in closed
    assert engine.entropy_stats(np.zeros(4, np.float32)).entropy == pytest.approx(2.0)
    del engine
    gc.collect()
    assert closed.count(handle) == 1
    assert not unraised


def test_an_object_that_could_not_be_made_releases_nothing(tmp_path: Path, unraised: list[Any]) -> None:
    with pytest.raises(ExecutorError, match="cannot start"):
        Engine(level="no such level", threads=1)
    (tmp_path / "empty").touch()
    for name in ("missing", "empty"):
        with pytest.raises(CheckpointError):
            MappedFile(tmp_path / name)
    with Ledger(tmp_path / "ledger") as ledger:
        assert copies(ledger) == []
    gc.collect()
    assert not unraised


def test_a_mapped_file_stays_open_for_its_copies(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"some bytes")
    file = MappedFile(tmp_path / "file")
    again = copy.deepcopy({"file": file})["file"]
    del file
    gc.collect()
    again.check()
    assert again.read(0, 4) == b"some"


def test_pages_are_given_back_once() -> None:
    pool = kv_pool.KvPool(PageFormat(1, 1, 16, "f32"), torch.device("cpu"))
    pages = kv_pool.PageList(pool)
    pages.reserve(0, 3 * kv_pages.PAGE)
    fork = pages.share(kv_pages.PAGE)
    assert copies(pages) == []
    assert pool.used == 3
    del pages
    gc.collect()
    assert pool.used == 1
    del fork
    gc.collect()
    assert pool.used == 0
    table = kv_pages.PageTable(PageFormat(1, 1, 16, "f32"))
    table.reserve(0, 1)
    assert copies(table) == copies(table.pages[0]) == []


@pytest.mark.parametrize("executor", ["plain", "cpu"])
class TestModels:
    def run(self, executor: str) -> Any:
        model = both("llama", executor).model
        return model.watch("the cat", raw=True, max_new_tokens=3)

    def test_steps_are_a_table(self, executor: str) -> None:
        run = self.run(executor)
        assert pd.DataFrame(run.steps)["id"].tolist() == list(run.ids)
        gc.collect()
        assert self.run(executor).ids == run.ids

    def test_a_copied_model_is_the_model(self, executor: str) -> None:
        run = self.run(executor)
        assert copies(run.model) == [run.model, run.model]
        assert copies(run.model.executor) == []
        assert copy.copy(run).model is run.model
        with pytest.raises(CopyError, match="a Model"):
            pickle.dumps({"model": run.model})
