"""Every public call, with odd values for each of its parameters: a GlassError or a result, never another exception."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassformer
from glassformer.ground.errors import GlassError, InputError, SettingError
from glassformer.see.view import View
from tests.see.models import TEXT, both, encoder

ODD: dict[str, Any] = {
    "None": None, "-1": -1, "10**30": 10**30, "half": 0.5, "nan": float("nan"), "nonsense": "nonsense", "bytes": b"x",
    "list": [], "object": object(), "array": np.zeros(3),
}  # fmt: skip
ODDER: dict[str, Any] = {
    "inf": float("inf"), "empty": "", "surrogate": "\ud800", "dict": {}, "set": {1}, "True": True,
    "matrix": np.ones((2, 2), np.int64), "int64": np.int64(10**12), "float32": np.float32(0.5), "bool_": np.bool_(True),
    "Decimal": Decimal("0.5"), "list of None": [None], "nested": [[1], [2, 3]], "path": Path("nowhere"), "range": range(2),
}  # fmt: skip
GENERATING = {"chat", "stream", "watch", "watch_many", "start", "prepare", "strategies"}
# what other parts of the package call, and what takes their objects
INTERNAL = {
    "cancel",
    "values_at",
    "chunks",
    "from_module",
    "generate_steps",
    "of_run",
    "policies",
    "recipe",
}
REQUIRED: dict[str, Any] = {  # arguments with which a call works, by name
    "prompt": TEXT, "text": TEXT, "texts": [TEXT], "first": "the cat", "second": "the dog", "name": "model.norm.weight",
    "setting": "temperature", "values": [0.5, 1.0], "ids": [1, 2], "changes": {}, "path": "x.nonsense", "at": [0],
    "site": "blocks.0.residual", "positions": [0], "folder": "x.nonsense", "token": 0, "number": 0, "context": 8,
}  # fmt: skip


@cache
def decoder() -> Any:
    return both("qwen3").model


@cache
def run() -> Any:
    return decoder().watch(TEXT, max_new_tokens=2)


@cache
def views() -> list[View]:
    model, text = decoder(), decoder().read(TEXT)
    return [
        model.tree(TEXT, width=2, depth=2), text.attention(), text.heads(), text.lens(), text.attribution(), text.trace(),
        model.tokens(TEXT), model.batch([TEXT]), model.parameters(), model.look(TEXT), model.patch("the cat", "the dog"),
        model.vocabulary, glassformer.plan(model), run().receipt, run().why(), run().whys, run().sweep("temperature", [1.0]),
    ]  # fmt: skip


def functions() -> dict[str, Callable[..., Any]]:
    texts = decoder().read(TEXT), decoder().read("the dog sat")
    return {
        "load": glassformer.load,
        "plan": partial(glassformer.plan, decoder()),
        "plan of": glassformer.plan,
        "pipeline": partial(glassformer.pipeline, "text-generation", decoder()),
        "task": glassformer.pipeline("text-generation", decoder(), max_new_tokens=1),
        "compare texts": partial(glassformer.compare, *texts),
        "compare runs": partial(glassformer.compare, run(), run()),
        "compare": glassformer.compare,
        "Change": glassformer.Change,
        "Watch": glassformer.Watch,
        "GenerationConfig": glassformer.GenerationConfig,
    }


def methods(*owners: Any) -> dict[str, Callable[..., Any]]:
    """The public methods of objects."""
    return {
        f"{type(owner).__name__}.{name}": getattr(owner, name)
        for owner in owners
        for name, _ in inspect.getmembers(type(owner), callable)
        if not name.startswith("_") and name not in INTERNAL
    }


OWNERS: dict[str, Callable[[], dict[str, Callable[..., Any]]]] = {
    "functions": functions,
    "model": lambda: methods(decoder()),
    "run": lambda: methods(run()),
    "reading": lambda: methods(decoder().read(TEXT)),
    "views": lambda: methods(*views()),
}
MORE_OWNERS: dict[str, Callable[[], dict[str, Callable[..., Any]]]] = {
    "on the CPU engine": lambda: methods(both("llama", "cpu").model),
    "encoder-decoder": lambda: methods(both("t5").model),
    "encoder": lambda: methods(encoder().model, encoder().model.read(TEXT)),
}


def required_argument(name: str) -> Any:
    made = {
        "source": decoder, "run": lambda: decoder().start(TEXT), "receipt": run, "tokenizer": lambda: decoder().tokenizer,
        "states": lambda: np.zeros((1, decoder().config.hidden_size), np.float32),
    }  # fmt: skip
    return made[name]() if name in made else REQUIRED.get(name, TEXT)


def failures(name: str, call: Callable[..., Any], values: dict[str, Any]) -> Iterator[str]:
    """Each call that ends in an exception that is no GlassError."""
    parameters = inspect.signature(call).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    required = {p.name: required_argument(p.name) for p in named if p.default is p.empty}
    keywords = [p.name for p in named]
    if any(p.kind is p.VAR_KEYWORD for p in parameters) and "prompt" in required:
        keywords += ["raw", "system", "template"]
    if name.split(".")[-1] in GENERATING:
        required["max_new_tokens"] = 1
    for keyword in keywords:
        for label, value in values.items():
            try:
                result = call(**{**required, keyword: value})
                if inspect.isgenerator(result):
                    next(result, None)
            except GlassError:
                continue
            except Exception as error:
                yield f"{name}({keyword}={label}): {type(error).__name__}: {error}"
    try:
        call(**required, nonsens=1)
        yield f"{name}(nonsens=1) is accepted"
    except GlassError:
        pass
    except Exception as error:
        yield f"{name}(nonsens=1): {type(error).__name__}: {error}"


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("owner", OWNERS)
def test_odd_arguments_end_in_typed_errors(owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert [line for name, call in OWNERS[owner]().items() for line in failures(name, call, ODD)] == []


@pytest.mark.sweep
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("owner", OWNERS | MORE_OWNERS)
def test_odder_arguments_end_in_typed_errors(owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    calls = (OWNERS | MORE_OWNERS)[owner]()
    assert [line for name, call in calls.items() for line in failures(name, call, ODD | ODDER)] == []


def test_numpy_numbers_are_numbers() -> None:
    model = decoder()
    plain = model.watch(TEXT, max_new_tokens=2, do_sample=True, temperature=0.5, seed=3)
    numpy = {"max_new_tokens": np.int64(2), "do_sample": np.bool_(True), "temperature": np.float32(0.5), "seed": np.uint8(3)}
    assert model.watch(TEXT, **numpy).text == plain.text
    assert str(model.tree(TEXT, width=np.int64(2), depth=np.int32(1))) == str(model.tree(TEXT, width=2, depth=1))
    assert glassformer.Change(scale=np.float32(0.5), heads=[np.int64(1)]) == glassformer.Change(scale=0.5, heads=[1])


@pytest.mark.parametrize("name", ["max_new_tokens", "do_sample", "temperature", "stop_strings", "eos_token_id"])
def test_an_array_is_no_setting(name: str) -> None:
    for settings in ({name: np.zeros(3)}, {"generation_config": None, name: np.ones((2, 2))}):
        with pytest.raises(SettingError, match=f"{name} is array"):
            decoder().watch(TEXT, **settings)
    with pytest.raises(SettingError, match=f"{name} is array"):
        glassformer.GenerationConfig(**{name: np.zeros(3)})


def test_settings_of_odd_types() -> None:
    assert glassformer.GenerationConfig(num_beams=None, top_k=np.int64(3)) == glassformer.GenerationConfig(top_k=3)
    for value in (b"x", Decimal("0.5"), {0.5}, "0.5", True, [0.5]):
        with pytest.raises(SettingError, match="temperature"):
            decoder().watch(TEXT, do_sample=True, temperature=value)


@pytest.mark.parametrize("name", ["\0.json", "\ud800.json", "x" * 5000 + ".json"])
def test_a_name_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(GlassError, match="cannot be written"):
        run().save(tmp_path / name)
    with pytest.raises(InputError, match="is no receipt"):
        decoder().replay(tmp_path / name)


def test_saving_to_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="in which form"):
        run().save(tmp_path)


def test_errors_inside_a_call_are_not_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **named: Any) -> Any:
        raise TypeError("a bug of ours")

    monkeypatch.setattr("glassformer.see.tokens.tokenized", broken)
    with pytest.raises(TypeError, match="a bug of ours"):
        decoder().tokens(TEXT)
