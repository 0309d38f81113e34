"""`load(…, tensor_parallel=2)`: all that a model does in one process it does in two, with the same text."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import glassformer
from glassformer.cli.app import app
from glassformer.engine.tensor_parallel import ranks
from glassformer.ground.changes import Change
from glassformer.ground.errors import ExecutorError, RankLost, SiteError
from glassformer.see.receipt import executor_arguments
from tests.patience import patience
from tests.see.models import TEXT, folder

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("one_thread")]
PROMPTS = [TEXT, "a", "the dog and the cat"]


@pytest.fixture(scope="module")
def path() -> Path:
    return folder("llama", "causal")[0]


@pytest.fixture(scope="module")
def one(path: Path) -> Any:
    """The model in this process alone."""
    return glassformer.load(path, executor="plain")


@pytest.fixture(scope="module")
def split(path: Path) -> Iterator[Any]:
    """A split model, in this process and another."""
    model = glassformer.load(path, executor="plain", tensor_parallel=2)
    yield model
    (process,) = model.executor.ranks.processes
    os.kill(process, 0)  # it is there
    model.executor.ranks.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    with pytest.raises(RankLost, match=r"the processes of this model have been closed\. Load the model again\."):
        model.chat("a", raw=True)


@pytest.mark.parametrize(
    "settings",
    [{}, {"do_sample": True, "seed": 3, "temperature": 1.2}, {"num_beams": 3}, {"repetition_penalty": 1.3}],
    ids=["greedy", "sampled", "beams", "penalized"],
)  # fmt: skip
def test_texts_are_those_of_one_process(one: Any, split: Any, settings: dict[str, Any]) -> None:
    settings = {"raw": True, "max_new_tokens": 10, **settings}
    for prompt in PROMPTS:
        assert split.chat(prompt, **settings) == one.chat(prompt, **settings) == "".join(split.stream(prompt, **settings))


def test_views_are_those_of_one_process(one: Any, split: Any) -> None:
    runs = [model.watch(TEXT, raw=True, max_new_tokens=4) for model in (one, split)]
    first, second = runs
    assert second.ids == first.ids
    assert np.allclose(second.attention(layer=1, head=3).weights, first.attention(layer=1, head=3).weights, atol=1e-5)
    assert str(second.lens()) == str(first.lens())
    assert str(second.attribution(0)) == str(first.attribution(0))
    changes = {"blocks.1.attention.heads": Change(scale=0, heads=[0, 2])}
    texts = [model.changed(changes).chat(TEXT, raw=True, max_new_tokens=8) for model in (one, split)]
    assert texts[0] == texts[1]
    with pytest.raises(SiteError, match=r"cannot be sent to the other processes of a split model. Give blocks\.1\.residual"):
        split.changed({"blocks.1.residual": lambda value, where: value}).chat(TEXT, raw=True, max_new_tokens=2)


def test_a_prefix_is_read_once(one: Any, split: Any) -> None:
    cached = split.with_prefix_cache()
    for prompt in (TEXT, TEXT + " and", TEXT + " and sat"):
        assert cached.chat(prompt, raw=True, max_new_tokens=5) == one.chat(prompt, raw=True, max_new_tokens=5)
    assert cached.cached_prefix(cached.encode(TEXT, raw=True)[1]) > 10


def test_a_scheduler_serves_it(one: Any, split: Any) -> None:
    from tests.serving.test_scheduler import Client, request, scheduler_of

    client = Client()
    scheduler = scheduler_of(split, client)
    runs = [request(split, prompt) for prompt in PROMPTS]
    generations = [scheduler.submit([run]) for run in runs]
    client.wait(*generations)
    scheduler.close()
    expected = [list(one.watch(prompt, raw=True, max_new_tokens=8).ids) for prompt in PROMPTS]
    assert [client.ids(generation) for generation in generations] == expected


def test_a_receipt_names_the_processes(split: Any) -> None:
    receipt = split.watch(TEXT, raw=True, max_new_tokens=3).receipt.to_dict()
    assert executor_arguments(receipt) == {"executor": "plain", "dtype": "float32", "tensor_parallel": 2}
    assert split.replay(receipt).identical


def test_there_is_no_whole_module(split: Any) -> None:
    with pytest.raises(ExecutorError, match="is split among 2 processes, none of which has the whole module"):
        _ = split.module


def test_a_forked_process_cannot_run_it(split: Any) -> None:
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("no forks on this system")
    context = multiprocessing.get_context("fork")
    messages = context.SimpleQueue()

    def child() -> None:
        try:
            split.executor.open()
        except ExecutorError as error:
            messages.put(str(error))

    process = context.Process(target=child)
    process.start()
    process.join(patience(60))
    assert messages.get() == "a model that is split among ranks runs only in the process that loaded it, not in a fork."
    assert split.chat("a", raw=True, max_new_tokens=2)  # and this one goes on


@pytest.mark.usefixtures("command_folder")
def test_the_command_starts_processes_that_end_with_the_model(path: Path, one: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = ranks._start, list[ranks.Follower]()
    monkeypatch.setattr(ranks, "_start", lambda *arguments: started.append(start(*arguments)) or started[-1])
    result = CliRunner().invoke(app, ["run", "--raw", TEXT, "-n", "6", "-m", str(path), "--tensor-parallel", "2"])
    assert result.exit_code == 0, result.output
    assert one.chat(TEXT, raw=True, max_new_tokens=6) in result.stdout
    gc.collect()
    assert [follower.process.returncode for follower in started] == [0]


class TestRefusals:
    def test_fewer_gpus_than_processes(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        split = glassformer.load(path, executor="gpu", tensor_parallel=2)
        with pytest.raises(ExecutorError, match="the GPU engine"):
            _ = split.executor
        monkeypatch.setitem(vars(split.executors), "gpu_reason", None)  # as if there were one GPU that it runs on
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        with pytest.raises(ExecutorError, match="tensor_parallel=2 with executor='gpu' needs 2 GPUs, and there are 1"):
            _ = split.executor
