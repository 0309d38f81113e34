"""Models, files and calls that entries of the catalogue share."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from glassformer import AutoTokenizer, StaticCache, load, pipeline
from glassformer.compat.auto import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification
from glassformer.compat.scratch import Model as ScratchModel
from glassformer.engine.protocol import Feed
from glassformer.jobs import run_job
from glassformer.model_files import open_model
from tests.jobs.models import chat_model, write_rows
from tests.parity import reference
from tests.see.models import TEXT, both, folder

IDS = torch.tensor([[5, 6, 7]])
VECTORS = torch.zeros(1, 3, 48)
USER = {"role": "user", "content": "Hi!"}
Entry = tuple[type[Exception], Callable[[], object], str]


def path(family: str, head: str = "causal") -> Path:
    return folder(family, head)[0]


@cache
def decoder() -> Any:
    """A small model that writes, with a context of 256 tokens."""
    return both("qwen3").model


@cache
def run() -> Any:
    return decoder().watch(TEXT, max_new_tokens=2, eos_token_id=None)


@cache
def pair() -> Any:
    """An encoder-decoder."""
    return both("t5").model


@cache
def module() -> Any:
    """As transformers would load it."""
    return AutoModelForCausalLM.from_pretrained(path("llama"))


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(path("gpt2"))


def guided(**settings: Any) -> Any:
    """By a model without tokens that begin or end a text."""
    blank = {"bos_token_id": None, "eos_token_id": None, "tokenizer": tokenizer()}
    return module().generate(IDS, guidance_scale=2.0, **blank, **settings)


def altered(family: str, head: str = "causal", **fields: Any) -> Path:
    """A checkpoint whose config says something else."""
    target = place() / f"{family} with another {' and '.join(fields)}"
    shutil.copytree(path(family, head), target, dirs_exist_ok=True)
    for file in target.glob("*config.json"):
        file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **fields}), "utf-8")
    return target


def row() -> Any:
    return decoder().executor.open()


def feed(*ids: int, **options: Any) -> Any:
    opened = row()
    try:
        return decoder().executor.run([Feed(opened, list(ids), **options)])
    finally:
        decoder().executor.close(opened)


def closed_row() -> Any:
    opened = row()
    decoder().executor.close(opened)
    return opened


@cache
def place() -> Path:
    """An empty folder, in which calls may write."""
    return Path(tempfile.mkdtemp())


def write(name: str, text: str) -> Path:
    path = place() / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text, "utf-8")
    return path


def job(output: str = "out.jsonl", model: Any = None, **settings: Any) -> Any:
    rows = write_rows(place() / "in.jsonl", [{"id": "a", "prompt": "the cat"}])
    return run_job(model or chat_model(), rows, place() / output, **settings)


def limited(limit: str, value: float, call: Callable[[], object]) -> Callable[[], object]:
    """The call where a limit of the package is another."""

    def limited_call() -> object:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(f"glassformer.{limit}", value)
            return call()

    return limited_call


def without(module: str, call: Callable[[], object]) -> Callable[[], object]:
    """The call where a library is not installed."""

    def lacking_call() -> object:
        with pytest.MonkeyPatch.context() as patched:
            patched.setitem(sys.modules, module, None)
            return call()

    return lacking_call


def chat_tokenizer() -> Any:
    return chat_model().tokenizer


@cache
def other_module() -> Any:
    return AutoModelForCausalLM.from_pretrained(path("gpt2"))


@cache
def pair_module() -> Any:
    return AutoModelForSeq2SeqLM.from_pretrained(path("bart", "seq2seq"))


@cache
def half_a_head() -> Any:
    """A head for further tokens whose files have one of its weights."""
    with tempfile.TemporaryDirectory() as name:
        reference.write(Path(name), "qwen3_5_text")
        weights = Path(name) / "model.safetensors"
        save_file({**load_file(weights), "mtp.fc.weight": torch.zeros(48, 96)}, weights, {"format": "pt"})
        return open_model(name).draft_head


@cache
def classifier() -> Any:
    return AutoModelForSequenceClassification.from_pretrained(path("gpt2", "sequence"))


@cache
def scratch() -> Any:
    sizes = {"d_model": 24, "context_length": 11, "num_blocks": 2, "num_heads": 3, "vocab_size": 60}
    return ScratchModel({**sizes, "dropout": 0.1, "batch_size": 4, "learning_rate": 1e-3, "device": "cpu"})


def used_for_two() -> StaticCache:
    """A cache that a batch of two has filled."""
    cache = StaticCache(module().config, max_cache_len=8)
    module()(torch.cat((IDS, IDS)), past_key_values=cache)
    return cache


def halved(scores: Any, *_: object) -> Any:
    """A rule that loses scores."""
    return scores[:3]


@cache
def recorded() -> Any:
    return decoder().read_many([TEXT] * 5).record("embedding", folder=place() / "recorded")


@cache
def task(name: str, family: str, head: str) -> Any:
    return pipeline(name, path(family, head))


def rerank_in_words() -> Any:
    """By a model with a chat template, and a vocabulary without a `yes`."""
    model = load(path("qwen3"))
    model.tokenizer.chat_template = "{{ messages[1].content }}"
    return pipeline("rerank", model)


fill = partial(task, "fill-mask", "bert", "masked")
classify = partial(task, "text-classification", "bert", "sequence")
label = partial(task, "token-classification", "bert", "token")
zero_shot = partial(task, "zero-shot-classification", "bert", "sequence")
rerank = partial(task, "rerank", "bert", "sequence")
answer = partial(task, "question-answering", "bert", "question")
generate = partial(task, "text-generation", "qwen3", "causal")
translate = partial(task, "translation", "t5", "seq2seq")
