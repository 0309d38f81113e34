"""`torch.compile(model, fullgraph=True)`: the forward pass is one graph, whose numbers are those of the model itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer
from tests.ecosystem.models import load_pair, make_batches
from tests.parity.configs import DECODERS, FAMILIES, PAIRS, REPRESENTATIVE

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = ("llama",)  # compiling takes seconds


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def head_of(family: str) -> str:
    return "causal" if family in DECODERS else "seq2seq" if family in PAIRS else "masked"


def swept(families: Any) -> list[Any]:
    """Families as parameters, of which few are quick."""
    return [pytest.param(family, marks=() if family in QUICK else pytest.mark.sweep) for family in families]


def compiled(model: Any) -> Any:
    return torch.compile(model, fullgraph=True, backend="eager")  # a graph that breaks is an error; no code is generated


@pytest.mark.parametrize("family", swept(FAMILIES))
def test_the_forward_pass_is_one_graph(family: str, model_folder: Callable[[str, str], Path]) -> None:
    head = head_of(family)
    model = load_pair(model_folder(family, head), head).ours
    batch = make_batches("seq2seq" if head == "seq2seq" else "causal")[0]
    without_cache = {} if head == "masked" else {"use_cache": False}
    expected = model(**batch, **without_cache)
    result = compiled(model)(**batch, **without_cache)
    assert type(result) is type(expected)
    assert list(result) == list(expected)
    torch.testing.assert_close(result.loss, expected.loss)
    torch.testing.assert_close(result.logits, expected.logits)
    result.loss.backward()
    assert model.get_input_embeddings().weight.grad is not None


@pytest.mark.parametrize("family", swept(family for family in REPRESENTATIVE if family in DECODERS))
def test_a_pass_over_a_static_cache_is_one_graph(family: str, model_folder: Callable[[str, str], Path]) -> None:
    model = load_pair(model_folder(family, "causal"), "causal").ours
    ids = make_batches("causal")[0]["input_ids"][:1]
    run, cache = compiled(model), glassformer.StaticCache(model.config, max_cache_len=16)
    with torch.no_grad():
        run(ids[:, :7], past_key_values=cache)
        steps = [run(ids[:, at : at + 1], past_key_values=cache).logits for at in (7, 8)]
        assert cache.get_seq_length() == 9
        torch.testing.assert_close(torch.cat(steps, 1), model(ids).logits[:, 7:], atol=1e-5, rtol=1e-5)


@pytest.mark.sweep
@pytest.mark.parametrize("head", ["sequence", "token", "question", "base"])
def test_other_heads_are_one_graph(head: str, model_folder: Callable[[str, str], Path]) -> None:
    model = load_pair(model_folder("bert", head), head).ours
    batch = {name: value for name, value in make_batches("causal")[0].items() if name != "labels"}
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(**batch)[0], model(**batch)[0])
