"""Models derived from a model share its executors: nothing is loaded twice."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import pytest

import glassformer
from glassformer import Change
from glassformer.compat import pretrained
from glassformer.engine.cpu import executor as cpu_executor

ABLATED = {"blocks.0.attention.heads": Change(scale=0, heads=[1])}


@pytest.fixture
def model(tiny_qwen3: Path) -> Any:
    return glassformer.load(tiny_qwen3)


def derived(model: Any) -> list[Any]:
    return [model.changed(ABLATED), model.with_prefix_cache(), model.with_tokenizer(model.tokenizer)]


def test_derived_models_share_executors(model: Any) -> None:
    assert all(other.executors is model.executors and other.opened is model.opened for other in derived(model))


@pytest.mark.parametrize("executor", ["cpu", "plain"])
def test_nothing_is_loaded_twice(executor: Any, tiny_qwen3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []
    for module, name in ((pretrained, "load"), (cpu_executor, "CpuExecutor")):
        original = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *args, original=original, **options: (loads.append(1), original(*args, **options))[1]
        )
    model = glassformer.load(tiny_qwen3, executor=executor)
    assert loads == []  # until it runs
    for other in (model, *derived(model), model.changed(ABLATED).changed(ABLATED)):
        assert other.chat("Hi", max_new_tokens=1)
    assert len(loads) == 1


def test_run_of_a_changed_watch_has_the_changed_model(model: Any) -> None:
    run = model.watch("Hi", change=ABLATED, max_new_tokens=2)
    assert set(run.model.changes) == set(ABLATED)
    assert run.model.executors is model.executors
    assert model.changes == {}
    assert model.watch("Hi", max_new_tokens=2).model is model
    assert model.replay(run).identical
    assert run.text == model.changed(ABLATED).chat("Hi", max_new_tokens=2)


def test_changes_add_up(model: Any) -> None:
    changed = model.changed(ABLATED).changed({"blocks.*.mlp.update": Change(scale=0.5)})
    assert {"blocks.0.attention.heads", "blocks.0.mlp.update", "blocks.2.mlp.update"} <= set(changed.changes)


def test_prefix_cache_counts_the_tokens_it_has(model: Any) -> None:
    cached = model.with_prefix_cache()
    run = cached.watch("Hi", max_new_tokens=2)
    assert model.cached_prefix(run.prompt_ids) == 0
    assert cached.cached_prefix(run.prompt_ids) > 0
    assert cached.changed(ABLATED).cached_prefix(run.prompt_ids) == 0  # the cache is of the unchanged model
    assert cached.chat("Hi", max_new_tokens=2) == model.chat("Hi", max_new_tokens=2)


def test_with_tokenizer_replaces_the_checkpoints(model: Any) -> None:
    other = copy(model.tokenizer)
    assert model.with_tokenizer(other).tokenizer is other
    assert model.tokenizer is model.opened.tokenizer
